"""Methods of answers, some of whose arguments are nonsense, and graphs of networkx whose nodes and links are."""

from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import networkx
from judge import Case
from mutations import as_yaml, other_text, tree
from nonsense import FOREIGN, OBJECTS
from python_inputs import nonsense
from recording_inputs import EDITS, recorded_layers
from seeds import SMALL

import scaleout
from scaleout.interop.chakra.save import save_program

_ANSWERS = {
    "run": lambda job: scaleout.run(job, schedules=["baseline", "overlap"]),
    "collective": lambda job: scaleout.collective("all_reduce", "1KiB,1MiB", topology="h200-node-4"),
    "search": lambda job: scaleout.search(job, topology="h200-node-4", global_batch=8, workers=1),
    "study": lambda job: scaleout.sweep(
        workload=job, schedule=["baseline", "overlap"], set={"batch_per_replica": [2, 4]}, workers=1
    ),
    "trace": lambda job: _recorded(Path(job).parent),
}
_METHODS = {
    "run": ("plot", "to_frame", "to_dict", "_repr_html_", "__getitem__", "write"),
    "collective": ("plot", "to_frame", "to_dict", "_repr_html_"),
    "search": ("plot", "to_frame", "to_dict", "_repr_html_", "export"),
    "study": ("plot", "plot", "plot", "to_frame", "_repr_html_"),
    "trace": ("plot", "to_frame", "edit", "edit", "run", "run"),
}
_GOOD = {
    "__getitem__": ["baseline", "overlap", "fused"], "export": ["torchtitan", "megatron", "deepspeed"],
    "write": ["out", "", ".", "a/b", "answer", "answer/x"],
}  # fmt: skip
"""Methods of one argument, by place, to some that they take."""
_HOW = {
    "topology": ["h200-node-4", "mi210-pair"], "device": ["h200", "mi210"], "schedules": [["recorded"], ["overlap"]],
    "network_changes": [{"slow": {0: 1.5}}], "network": ["link"], "host": ["eager"],
    "algorithms": [{"all_reduce": "ring"}],
}  # fmt: skip
_COLUMNS = ["schedule", "makespan_s", "workload", "case", "status", "message", "speedup", "fits", "mfu", "ranks", "x"]


def _recorded(folder):
    program, facts, report = recorded_layers(folder)
    save_program(program, folder / "traces", name=report.name, facts=facts)
    return scaleout.read_trace(folder / "traces")


@cache
def _answer(name):
    folder = TemporaryDirectory()
    path = Path(folder.name, "mine.yaml")
    path.write_text(as_yaml(tree(SMALL["transformer"])))
    return folder, _ANSWERS[name](str(path))


def answers(random):
    """An answer, a method and a number of which its arguments are drawn; or a number of which a graph is."""
    name = random.choice((*_METHODS, "graph"))
    method = random.choice(_METHODS.get(name, ("",)))
    return Case("answer", {"answer": f"{name} {random.randrange(2**63)} {method}".encode()})


def read_answer(case):
    """Call the method, and close what it drew."""
    from matplotlib import pyplot

    name, seed, *method = case.files["answer"].decode().split()
    random = Random(int(seed))
    if name == "graph":
        scaleout.collective(
            random.choice(("all_reduce", "all_to_all")), "1KiB", topology=_graph(random), network="link"
        )
        return
    try:
        given = _given(random, method[0], name)
        found = getattr(_answer(name)[1], method[0])(*given[0], **given[1])
        if method[0] == "edit":
            found.run()
    except KeyError as error:
        if method[0] != "__getitem__":
            raise
        raise scaleout.ConfigError(str(error)) from None
    finally:
        pyplot.close("all")


def _given(random, method, name):
    """Arguments of a method, by place and by name."""
    if method in _GOOD:
        return (_either(random, _GOOD[method]),), {}
    if method == "edit":
        edits = dict(each.split("=", 1) for each in random.sample(EDITS, random.choice((1, 1, 2))))
        return (), {key: _either(random, [value]) for key, value in edits.items()}
    if method == "run":
        chosen = random.sample(sorted(_HOW), random.choice((0, 1, 1, 2)))
        return (), {key: _either(random, _HOW[key]) for key in chosen}
    by_name = {"ax": _either(random, [None])} if method == "plot" and random.random() < 0.4 else {}
    if method == "plot" and name == "study":
        chosen = random.sample(("x", "y", "colour", "facet"), random.randrange(5))
        by_name |= {key: _either(random, _COLUMNS) for key in chosen}
    return (), by_name


def _either(random, good):
    what = random.random()
    if what < 0.5:
        return random.choice(good)
    text = random.choice(good)
    return other_text(random, text) if what < 0.6 and isinstance(text, str) else nonsense(random)


_ROOT = [0, 1, 2, "s", "0", "leaf", None, 1.0, True, ("a", 1), "", "\x1b[31m", 10**30, -1, "x" * 3000, "\ud800"]
_RATES = ["10 GB/s", "1e9 B/s", 0, -1, "", "1 us", 10**400, float("nan"), "5 parsec/s"]


def _graph(random):
    """A small graph of ranks and switches: some nodes, links and attributes are nonsense."""
    makers = (networkx.Graph, networkx.Graph, networkx.Graph, networkx.Graph, networkx.DiGraph, networkx.MultiGraph)
    graph = random.choice(makers)()
    if random.random() < 0.1:
        graph.name = random.choice((*OBJECTS, *FOREIGN))
    size = random.randrange(7)
    graph.add_nodes_from(range(size))
    for _ in range(random.randrange(3)):
        graph.add_node(_hashable(random), **{random.choice(("rank", "x")): _either(random, [0, 1, 2])})
    nodes = [*graph.nodes]
    numbers = [*range(len(nodes))]
    for at, other in pairwise(numbers):
        told = {"bandwidth": "10 GB/s", "latency": "1 us"}
        if random.random() < 0.1:
            told[random.choice((*told, "x"))] = _either(random, _RATES)
        graph.add_edge(nodes[at], nodes[random.choice((at, other, other, other, other, 0))], **told)
        if other not in numbers[:1] and random.random() < 0.9:
            graph.add_edge(nodes[at], nodes[other], **told)
    return graph


def _hashable(random):
    value = _either(random, _ROOT)
    try:
        hash(value)
    except TypeError:
        return "s"
    return "s" if value is None else value  # which no graph takes
