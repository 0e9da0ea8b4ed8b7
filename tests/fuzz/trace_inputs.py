"""Sets of Chakra traces and inputs of ASTRA-sim, changed by message, by frame and by byte."""

import gzip
import json
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

from astra_inputs import coll, comp, recv, send, write_inputs
from chakra_messages import CONVENTIONAL_KINDS, AttributeProto, GlobalMetadata, Node, NodeType, attribute
from google.protobuf.message import DecodeError
from mutations import Grammar, as_json, as_yaml, file_of, other_bytes, tree
from nonsense import FILES
from recording_inputs import recorded_layers
from seeds import SMALL

from scaleout.cluster.device.spec import load_device
from scaleout.errors import TraceError
from scaleout.interop.astra.inputs import read_groups
from scaleout.interop.astra.job import Options, load
from scaleout.interop.astra.run import simulate
from scaleout.interop.chakra.vocabulary import OWN_KINDS
from scaleout.interop.chakra.wire import encoded
from scaleout.workloads.families import load_workload

# ---- Chakra


@cache
def _trace_seeds():
    """Sets of traces: prefix of the names left out, a rank's frames each."""
    seeds = []
    with tempfile.TemporaryDirectory() as folder:
        from scaleout.interop.chakra.save import save_program
        from scaleout.study.job import timed

        for name in ("dlrm", "transformer"):
            values = {key: value for key, value in SMALL[name].items() if key not in ("kind", "like")}
            Path(folder, f"{name}.yaml").write_text(json.dumps({"kind": name, **values}))
            job = load_workload(str(Path(folder, f"{name}.yaml")))
            facts = {"workload": name, "device": "h200", "topology": "h200-node-4"}
            files = save_program(timed(job, load_device("h200")), Path(folder, name), name=name, facts=facts)
            seeds.append([Path(folder, name, Path(file).name).read_bytes() for file in files][:4])
        ranks = [
            [comp(0), coll(1, "ALL_REDUCE", 1000, deps=[0], pg_name="1"), send(2, 1, 8), comp(3, deps=[1, 2])],
            [comp(0), coll(1, "ALL_REDUCE", 1000, deps=[0], pg_name="1"), recv(2, 0, 8), comp(3, deps=[1, 2])],
        ]
        write_inputs(Path(folder), ranks)
        seeds.append([Path(folder, f"w.{rank}.et").read_bytes() for rank in range(2)])
        declared = Node(id=7, name="## process_group:init ##", type=NodeType.METADATA_NODE)
        declared.inputs.values = repr([json.dumps([{"pg_name": "1", "ranks": [0, 1]}])])
        pytorch = [encoded(len(frame)) + frame for frame in (b"", declared.SerializeToString())]
        seeds.append([b"".join(pytorch) + _joined(_frames(seeds[-1][rank])[1:]) for rank in range(2)])
        program, facts, _ = recorded_layers(Path(folder))
        save_program(program, Path(folder, "recorded"), name="w", facts=facts)
        seeds.append([Path(folder, "recorded", f"w.{rank}.et").read_bytes() for rank in range(2)])
    return seeds


def _frames(content):
    from scaleout.interop.chakra.framing import Content, frames

    return [frame for _, frame in frames(Content(Path("x"), content))]


def _joined(frames):
    return b"".join(encoded(len(frame)) + frame for frame in frames)


_KINDS = CONVENTIONAL_KINDS | OWN_KINDS
_NAMES = [*_KINDS, "x"]
_INTEGERS = [0, 1, -1, 2, 5, 255, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63), 10**15]
_FLOATS = [0.0, -1.0, 1e308, 5e-324, 1e15, float("nan"), float("inf")]
_TEXTS = ["", "0", "1", "x", "\x1b[31m", "9" * 5000, "[" * 40_000, "nan", "h200", "h200-node-4", "{}", "[1, 2]", "-1"]


def _other_node(random, node):
    """Change a node in place."""
    attributes = list(node.attr)
    what = random.randrange(10)
    if what == 0:
        node.id = random.choice((0, 1, 2, 2**63, 2**64 - 1, random.randrange(10)))
    elif what == 1:
        node.type = random.choice((*NodeType, *NodeType))
    elif what == 2:
        node.duration_micros = random.choice((0, 1, 10**6, 2**31, 2**53, 2**63, 2**64 - 1))
    elif what == 3:
        (node.data_deps if random.random() < 0.7 else node.ctrl_deps).append(
            random.choice((node.id, 0, 1, 2**64 - 1, random.randrange(20)))
        )
    elif what == 4:
        node.name = random.choice((*_TEXTS, "## process_group:init ##"))
    elif what == 5:
        node.inputs.values = random.choice((*_TEXTS, repr([random.choice(FILES["json"])]), repr([json.dumps(
            [{"pg_name": random.choice(_TEXTS), "ranks": [0, random.choice(_INTEGERS)]}])])))  # fmt: skip
    elif what == 6 or not attributes:
        node.attr.append(_other_attribute(random, random.choice(_NAMES)))
    elif what == 7:
        node.attr.remove(random.choice(attributes))
    else:
        changed = random.choice(attributes)
        if random.random() < 0.3:
            changed.name = random.choice(_NAMES)
        else:
            changed.CopyFrom(_other_attribute(random, changed.name))


def _other_attribute(random, name):
    number, text = random.choice(_INTEGERS), random.choice(_TEXTS)
    values = {"string_val": text, "bool_val": number > 0, "double_val": random.choice(_FLOATS),
              "int32_val": number % 2**31, "uint64_val": abs(number), "uint32_val": abs(number) % 2**31,
              "bool_list": [True] * (number % 5)}  # fmt: skip
    kind = _KINDS[name] if name in _KINDS and random.random() < 0.7 else random.choice((*values, "int64_val"))
    value = [number] * (abs(number) % 5) if kind.endswith("int64_list") else values.get(kind, number)
    return AttributeProto(name=name) if random.random() < 0.05 else attribute(name, kind, value)


_FACTS = ["0", "-1", "1", "1e-300", "9" * 18, "9" * 5000, "nan", "1x1", "x", "0x0 1x", "1x" + "9" * 18, "\ud800",
          "recorded", "512x6 32x1 " * 1000]  # fmt: skip


def _other_facts(random, metadata):
    """Change what the metadata tells, such as steps, parameters and share of the host of a recording."""
    for _ in range(random.choice((1, 1, 2))):
        if not metadata.attr:
            break
        fact = random.choice(list(metadata.attr))
        if random.random() < 0.2:
            metadata.attr.remove(fact)
        else:
            fact.CopyFrom(attribute(fact.name, "string_val", random.choice(_FACTS)))
    return metadata


def _other_trace(random, content):
    """Change a trace: its nodes, the order of its frames, or its bytes."""
    frames = _frames(content)
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        at = random.randrange(len(frames))
        what = random.random()
        if what < 0.5 and not at:
            with suppress(TraceError, DecodeError, ValueError):
                frames[0] = _other_facts(random, GlobalMetadata.FromString(frames[0])).SerializeToString()
        elif what < 0.6 and at:
            with suppress(TraceError, DecodeError, ValueError):  # bytes or a value that no node can hold
                node = Node.FromString(frames[at])
                _other_node(random, node)
                frames[at] = node.SerializeToString()
        elif what < 0.7 and len(frames) > 1:
            del frames[at]
        elif what < 0.8:
            frames.insert(random.randint(0, len(frames)), frames[at])
        elif what < 0.9:
            random.shuffle(frames)
        else:
            frames[at] = other_bytes(random, frames[at], frames)
    whole = _joined(frames)
    what = random.random()
    if what < 0.15:
        whole = other_bytes(random, whole, [content])
    elif what < 0.18:
        whole = whole[: random.randint(0, len(whole))]
    elif what < 0.21:
        whole = gzip.compress(whole, mtime=0)
        whole = other_bytes(random, whole) if what < 0.20 else whole
    elif what < 0.2101:
        whole = gzip.compress(bytes(2**28 + 2**20), mtime=0)
    return whole


@cache
def _groups():
    return Grammar([tree({"1": [0, 1], "2": [2, 3]}), tree({"1": [0, 1]}), tree({"1": [0, 1, 2, 3], "7": [0]})])


def traces(random):
    seed = random.choice(_trace_seeds())
    files = {f"w.{rank}.et": content for rank, content in enumerate(seed)}
    same = _other_trace(random, seed[0])
    if random.random() < 0.5:
        files = dict.fromkeys(files, same)  # every rank alike: more of what lies behind the reader is reached
    else:
        files[random.choice(sorted(files))] = same
    if random.random() < 0.05:
        files[random.choice(("w.5.et", "w.01.et", "w.00000000000000000000001.et", "x.0.et", "w.9999999999.et"))] = same
    if random.random() < 0.8:
        files["w.json"] = (
            file_of(random, _groups(), as_json) if random.random() < 0.5 else b'{"1": [0, 1], "2": [2, 3]}'
        )
    return files


# ---- ASTRA-sim


SYSTEM = {
    "scheduling-policy": "LIFO", "endpoint-delay": 10, "active-chunks-per-dimension": 1, "preferred-dataset-splits": 4,
    "all-reduce-implementation": ["ring"], "all-gather-implementation": ["ring"], "local-mem-bw": 1600,
    "reduce-scatter-implementation": ["ring"], "all-to-all-implementation": ["direct"], "boost-mode": 0,
    "collective-optimization": "localBWAware", "roofline-enabled": 0, "peak-perf": 900, "replay-only": 0,
}  # fmt: skip
NETWORK = {"topology": ["Ring"], "npus_count": [2], "bandwidth": [50.0], "latency": [500.0]}
MEMORY = {"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 100, "remote-mem-bw": 10}


@cache
def _astra_grammars():
    two = {"topology": ["Ring", "Switch"], "npus_count": [2, 1], "bandwidth": [50.0, 20.0], "latency": [500.0, 10.0]}
    systems = [
        SYSTEM,
        SYSTEM | {"all-reduce-implementation": ["doubleBinaryTree"]},
        SYSTEM | {"replay-only": 1},
        SYSTEM
        | {
            "roofline-enabled": 1,
            "model-shared-bus": 0,
            "L": 1,
            "trace-enabled": 0,
            "local-reduction-delay": 1,
            "local-mem-trace-filename": "x",
            "inter-dimension-scheduling": "themis",
        },
    ]
    return {
        "system.json": Grammar([tree(each) for each in systems]),
        "network.yml": Grammar([tree(NETWORK), tree(two), tree(NETWORK | {"topology": ["FullyConnected"]})]),
        "groups.json": _groups(),
        "memory.json": Grammar([tree(MEMORY), tree({"memory-type": "NO_MEMORY_EXPANSION"})]),
    }


def astra_files(random):
    files = {
        name: (as_yaml if name == "network.yml" else as_json)(
            grammar.seeds[-1 if name == "groups.json" else 0]
        ).encode()
        for name, grammar in _astra_grammars().items()
    }
    files["groups.json"] = b'{"1": [0, 1]}'
    for name in random.sample(sorted(files), random.choice((0, 1, 1, 1, 2))):
        files[name] = file_of(random, _astra_grammars()[name], as_yaml if name == "network.yml" else as_json)
    seed = _trace_seeds()[2]
    for rank in range(2):
        files[f"w.{rank}.et"] = _other_trace(random, seed[rank]) if random.random() < 0.3 else seed[rank]
    return files


ASTRA = (
    "--workload-configuration=w", "--system-configuration=system.json", "--network-configuration=network.yml",
    "--comm-group-configuration=groups.json", "--remote-memory-configuration=memory.json",
)  # fmt: skip


def read_astra(case):
    read_groups(Path("groups.json"), num_ranks=2)
    given = [Path(name) for name in ("w", "system.json", "network.yml", "memory.json", "groups.json")]
    job = load(Options(*given))
    if job.network.num_ranks <= 8 and sum(map(_work_of, job.graphs)) < 10**6:
        simulate(job)


def _work_of(graph):
    return sum(1 + task.size_bytes // 10**6 for task in graph.tasks)
