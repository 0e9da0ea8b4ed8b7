"""Texts of options, and whole command lines: words that fit, changed, doubled, misspelt, and nonsense."""

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from judge import Case
from log_inputs import measured_files
from mutations import Grammar, as_json, as_yaml, file_of, other_bytes, other_text, tree
from nonsense import VALUES
from output_inputs import planned
from recording_inputs import EDITS, recordings
from seeds import (
    SMALL,
    STAR,
    TOPOLOGIES,
    devices,
    lines_of,
    model_arguments,
    model_configs,
    policies,
    rows_of,
    small_workloads,
    topologies,
)
from trace_inputs import ASTRA, astra_files, traces

from scaleout.cli.collective import parse_ranks, parse_sizes
from scaleout.cli.operator import parse_sweep
from scaleout.cli.options import parse_algorithms, parse_changes, parse_settings
from scaleout.cluster.topology.backends import with_policy
from scaleout.cluster.topology.topology import load_topology
from scaleout.cluster.topology.what_if import change_network
from scaleout.config.documents import to_json
from scaleout.config.units import BYTES, BYTES_PER_S, SECONDS, parse
from scaleout.schedule import SCHEDULES
from scaleout.schedule.fusion import OPERATORS
from scaleout.simulation.what_if import rank_mapping
from scaleout.study.comparison import compare
from scaleout.validation.measure import experiments
from scaleout.workloads.families import load_workload

# ---- Options


def _text(random, seeds):
    """A text of an option: valid, or changed, or of nonsense."""
    text, what = random.choice(seeds), random.random()
    if what < 0.25:
        return text
    if what < 0.80:
        return other_text(random, text)
    if what < 0.90:
        return f"{text}{random.choice(',;:+=- ')}{random.choice(seeds)}"
    if what < 0.95 and "=" in text:
        return f"{text.partition('=')[0]}={_nonsense(random)}"
    return _nonsense(random)


def _name(random, names):
    """A first word of a command, which most often is one that there is."""
    return _text(random, names) if random.random() < 0.15 else random.choice(names)


def _nonsense(random):
    texts = VALUES[random.choice(sorted(VALUES))]
    text = random.choice(texts)
    return text if len(text) < 300 or random.random() < 0.02 else text[:300]


_PLACES = ["linear", "transposed", "order:1,0", "strided:2", "random:7", "3,2,1,0", "0,1,2,3", "order", "strided:4"]
_LINKS = ["0-1=0.5", "1-0=0.6", "0-switch=10 GB/s", "2-3=1 GB/s", "leaf0-spine0=0.5", "0-leaf0=0.1", "3-4=0.5"]
_BROKEN = ["0-1", "1-0", "2-3", "leaf0-spine0", "spine1-leaf1", "0-switch", "7-0", "0-2"]
_SLOW = ["0=1.3", "1=2", "3=0.5", "5=1.3"]
_SIZES = ["64MiB", "1KiB:1GiB", "1MiB,64MiB", "0", "1", "1GB:2GB", "1KiB:1MiB,5 GB"]
_RANKS = ["0-3", "0,2", "0-1,3", "1", "3,2,1", "0-7"]
_ALGORITHMS = ["all_reduce=ring", "all-reduce=direct", "all_gather=ring", "all_to_all=direct", "reduce_scatter=ring"]
_SWEEPS = ["slice_size=1:64", "occupancy=0.25,0.5", "slice_size=1,2", "work_groups=32:64"]
_QUANTITIES = ["64MiB", "200 Gb/s", "700 ns", "5 us", "80GB", "1e3 B", "400 Gb/s"]
_POLICIES = ["nccl_ring", "nccl_ring+nccl_tree", "fastest", "mine.yaml", "nccl_ring=a.txt,nccl_tree=b.txt"]
_KEYS = [
    "layers=2", "global_batch=8", "data_parallel=4", "tensor_parallel=2", "microbatch=1", "zero=3", "recompute=full",
    "pipeline_parallel=2", "pipeline_schedule=1f1b", "pipeline_schedule=gpipe", "batch_per_replica=2", "sequence=64",
    "framework=megatron", "framework=fsdp2", "mode=inference", "mode=prefill", "mode=decode", "attention=flash",
    "gradient_bucket=1 MB", "sequence_parallel=true", "context_parallel=2", "dtype=bf16", "linear_dtype=fp8",
    "virtual_stages=2", "expert_parallel=2", "heads=4", "hidden=128", "ffn=256", "kv_heads=2", "vocabulary=1024",
    "top_layers=1", "bottom_layers=1", "pooling=2", "embedding_dim=8", "mlp_width=16", "tables_per_rank=1",
    "capacity_factor=1.25", "optimizer=adam", "rotary=false", "activation=gelu", "topology=mi210-node", "device=mi210",
]  # fmt: skip
_OPERATOR_KEYS = [
    "slice_size=2", "occupancy=0.5", "work_groups=32", "row_latency=1 us", "global_batch=64", "embedding_dim=16",
    "pooling=4", "tables=2", "M=256", "N=256", "K=256", "dtype=bf16", "put=kernel", "tile=128", "rows=128", "chunks=2",
]  # fmt: skip
_TRACK_KEYS = [
    "rows=512", "columns=256", "depth=128", "dtype=fp16", "split_depth=2", "transposed=true", "collective=ring",
    "collective=direct", "collective=all_to_all", "collective=all_gather", "following=1", "policy=round-robin",
    "policy=dedicated", "trigger=1 MB", "tracker_entries=16", "split_units=8",
]  # fmt: skip
_TAPERS = ["1=2:1", "1=2:1@2", "1=1:1,2:1@2", "infiniband=4:3@2", "0=1:2", "ring=2", "all=2:1@", "1=:1@x"]
_RATES = ["1=2x", "infiniband=0.5x", "nvlink=400Gb/s", "all=700 ns", "0=3", "graph=1e9x", "switch=x", "7=2x", "=2x"]
_EXPRESSIONS = [
    "switch(8,nvlink4) x switch(16,ndr)", "torus(4,4,ndr/4)", "fat_tree(4,4,ndr,taper=2:1/1:1)", "mesh(2,2,hdr)",
    "dragonfly(2,2,2,global_links=1,bandwidth=1 GB/s,latency=1us/1us/1us)", "ring(4,bandwidth=1e9 B/s,latency=0)",
]  # fmt: skip
_COUNTS = ["2", "32", "0", "-1", "1e3", "5", "7.5", "x", "1048576", "9" * 30]
_OPTIONS = {
    "placement": (_PLACES, lambda text: rank_mapping(text, _cluster("h200-node-4"))),
    "degrade": (_LINKS, lambda *texts: _changed("graph-8", degrade=texts)),
    "broken": (_BROKEN, lambda *texts: _changed("graph-8", broken=texts)),
    "links": (_BROKEN, lambda *texts: _changed("t3-ring-8", degrade=[f"{texts[0]}=0.5"], broken=texts[1:])),
    "slow": (_SLOW, lambda *texts: _changed("h200-node-4", slow=texts)),
    "taper": (_TAPERS, lambda *texts: _changed("dgx-h200-4", taper=texts)),
    "bandwidth": (_RATES, lambda *texts: _changed("dgx-h200-4", bandwidth=texts)),
    "latency": (_RATES, lambda *texts: _changed("graph-8", latency=texts)),
    "expression": (_EXPRESSIONS, load_topology),
    "nodes": (_COUNTS, lambda text: _changed("dgx-h200-16-fat-tree", nodes=text)),
    "nic_down": (_COUNTS, lambda *texts: _changed("dgx-h200-2", nic_down=texts)),
    "sizes": (_SIZES, parse_sizes),
    "ranks": (_RANKS, lambda text: parse_ranks(text, 8)),
    "algorithms": (_ALGORITHMS, lambda *texts: parse_algorithms(texts)),
    "sweep": (_SWEEPS, parse_sweep),
    "settings": (_KEYS, lambda *texts: load_workload("mine.yaml", parse_settings(texts))),
    "size": (_QUANTITIES, lambda text: parse(text, BYTES)),
    "rate": (_QUANTITIES, lambda text: parse(text, BYTES_PER_S)),
    "time": (_QUANTITIES, lambda text: parse(text, SECONDS)),
    "policy": (_POLICIES, lambda text: with_policy(_cluster("sierra-8"), text)),
}
"""Option to texts of it, and what reads one or several."""
_SEVERAL = (
    "degrade", "broken", "links", "slow", "algorithms", "settings", "taper", "bandwidth", "latency", "nic_down",
)  # fmt: skip


def _changed(name, **texts):
    return change_network(_cluster(name), parse_changes(texts))


@cache
def _cluster(name):
    return load_topology(name)


def option_case(random):
    name = random.choice(sorted(_OPTIONS))
    count = random.choice((1, 1, 2, 3)) if name in _SEVERAL else 1
    texts = [_text(random, _OPTIONS[name][0]) for _ in range(count)]
    if count > 1 and random.random() < 0.3:
        texts[1] = other_text(random, texts[0]).replace("\0", "")
    files = {name: "\0".join(text.replace("\0", "") for text in texts).encode("utf-8", "surrogatepass")}
    if name == "settings":
        files["mine.yaml"] = as_yaml(tree(random.choice(list(SMALL.values())))).encode()
    if name == "policy":
        files["mine.yaml"] = file_of(random, policies(), as_yaml)
        files["a.txt"] = other_bytes(random, _NCCL_TESTS)
        files["b.txt"] = _NCCL_TESTS
    return Case("option", files)


_NCCL_TESTS = b"""#  Rank  0 Group  0 Pid 1 on host device  0 [0x00] V100
#  Rank  1 Group  0 Pid 2 on host device  1 [0x00] V100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    11.11    0.09    0.16      0    11.11    0.09    0.16      0
     1048576        262144     float     sum      -1    31.11   33.71   59.00      0    31.11   33.71   59.00      0
# Avg bus bandwidth    : 29.5
"""


def read_option(case):
    name = next(iter(case.files))
    _OPTIONS[name][1](*case.files[name].decode("utf-8", "surrogatepass").split("\0"))


# ---- Command lines


_CHANGES = {
    "--nodes": _COUNTS, "--taper": _TAPERS, "--bandwidth": _RATES, "--latency": _RATES, "--nic-down": _COUNTS,
    "--degrade": _LINKS, "--break": _BROKEN,
}  # fmt: skip
_PICTURES = {"--format": ["png", "svg", "bmp"], "--width": ["column", "page", "x"]}
_SIMULATED = {
    **_CHANGES, **_PICTURES,
    "--schedule": [*SCHEDULES, "overlap:always", "centauri+fused", "overlap+fused", "chunked:4", "chunked:1000"],
    "--algorithm": _ALGORITHMS, "--host": ["none", "eager"], "--clocks": ["unthrottled", "sustained", "cold_start"],
    "--network": ["alpha_beta", "link", "link"], "--injection": ["400 Gb/s", "10 GB/s"], "--placement": _PLACES,
    "--policy": _POLICIES, "--slow": _SLOW, "--set": _KEYS, "--ideal": None, "--verbose": None,
    "--topology": TOPOLOGIES, "--device": ["h200", "mi210", "t3-gpu", "a100-80g", "tpu-v4"], "--no-contention": None,
    "--edit": EDITS,
}  # fmt: skip
_LOSSES = {
    "--tokens": ["1B", "15T"], "--checkpoint": ["10s", "1 us"], "--restart": ["5min"], "--interval": ["1h", "1s"],
    "--failures": ["1/year", "2000000/day", "0/year"], "--jitter": ["0.02"], "--stragglers": ["0.01=1.3"],
    "--seed": ["7"],
}  # fmt: skip
_VERBS = {
    "run": {**_SIMULATED, "--measure-next": ["next.jsonl", "mine.yaml", "", "."]},
    "goodput": {**_SIMULATED, **_LOSSES},
    "strategies": {**_SIMULATED, "--strategy": ["ddp", "centauri", "zero-3", "megatron"]},
    "buckets": {**_SIMULATED, "--bytes": _SIZES, "--algorithm": ["auto", "ring", "nccl_ring", "fastest"]},
    "search": {"--ranks": ["4", "8"], "--memory": ["80GB", "1 TB"], "--global-batch": ["8", "16"], "--top": ["3"],
               "--schedule": ["overlap", "centauri", "fused"], "--simulations": ["2"], "--set": _KEYS,
               "--export": ["torchtitan", "megatron", "deepspeed"],
               "--host": ["none", "eager"], "--clocks": ["unthrottled", "sustained"], "--topology": TOPOLOGIES},
    "collective": {"--bytes": _SIZES, "--algorithm": ["auto", "ring", "direct"], "--group": _RANKS, "--chunks": ["4"],
                   "--network": ["alpha_beta", "link"], "--injection": ["400 Gb/s"], "--decide": None,
                   "--policy": _POLICIES, "--compare": None, **_CHANGES},
    "operator": {"--set": _OPERATOR_KEYS, "--sweep": _SWEEPS, "--device": ["h200", "mi210"],
                 "--topology": ["h200-node-4", "mi210-pair", "graph-8"]},
    "track": {"--set": _TRACK_KEYS, "--device": ["t3-gpu", "t3-gpu-2x", "h200"],
              "--topology": ["t3-ring-8", "graph-8"]},
    "show": {"--set": _KEYS, "--keys": ["workload", "device", "study", "x"], **_CHANGES}, "list": {},
    "trace": {"--set": _KEYS, "--device": ["h200", "mi210"]},
    "validate": {"--table": ["x"], "--arena": None, "--device": ["h200", "mi210"],
                 "--topology": ["h200-node-4", "h200"]},
    "study": {"--shard": ["1/2", "2/1", "0/0"], "--timelines": ["best", "all"], "--top": ["2"], "--yes": None,
              **_PICTURES},
    "measure": {"--gpus": ["2", "4"], "--quick": None, "--only": ["gemm*", "all_*"], "--dtype": ["bf16"],
                "--set": _KEYS, "--repeats": ["3"], "--retry": None, "--rows": ["rows.jsonl"],
                "--workload": ["mine.yaml"]},
    "reproduce": {"--vary": None},
    "diff": {"--schedule": ["baseline", "overlap"]},
    "import pytorch": {"--step": ["3", "0"], "--allow-partial": None},
    "import model": {"--set": _KEYS, "--topology": TOPOLOGIES, "--device": ["h200", "mi210"]},
    "astra": {"--num-queues-per-dim": ["1", "2"], "--compute-scale": ["1"], "--injection-scale": ["1", "0.5"],
              "--rendezvous-protocol": ["true"], "--backend": ["unaware", "aware"], "--physical": None},
}  # fmt: skip
"""Verb to its options and texts of each; None for those without a value."""
_AS_JSON = {
    "run", "strategies", "buckets", "search", "collective", "operator", "track", "show", "validate", "astra", "diff",
    "goodput", "study",
    "import pytorch", "import model",
}  # fmt: skip
_HEAVY = {"strategies": 0.03, "search": 0.03, "reproduce": 0.02, "buckets": 0.06, "study": 0.3, "goodput": 0.3}
"""Verbs that take long, and how often one of them is kept."""


def _given(random, options):
    given = []
    for _ in range(random.choice((0, 1, 1, 2, 3, 5))):
        name = random.choice(sorted(options))
        values = options[name]
        if random.random() < 0.02:
            name = other_text(random, name) or "-"
        given += [name] if values is None else [name, _text(random, values)]
    return given


def _workload(random):
    changed = random.random() < 0.4
    mine = SMALL[random.choice(sorted(SMALL))]
    content = file_of(random, small_workloads(), as_yaml) if changed else as_yaml(tree(mine)).encode()
    return {"mine.yaml": content}, ["mine.yaml"]


def _machine(random, *, device=False):
    """Seldom a topology of its own, and a device."""
    files, arguments = {}, []
    if random.random() < 0.3:
        files["net.yaml"] = file_of(random, topologies(), as_yaml)
        arguments += ["--topology", "net.yaml"]
    elif random.random() < 0.1:
        files["net.edgelist"] = _star(random)
        arguments += ["--topology", "net.edgelist", "--network", "link"]
    if device and random.random() < 0.2:
        files["device.yaml"] = file_of(random, devices(), as_yaml)
        arguments += ["--device", "device.yaml"]
    return files, arguments


def _star(random):
    """Return a star whose switch is seldom called otherwise, everywhere the same."""
    name = other_text(random, "leaf") if random.random() < 0.5 else "leaf"
    content = STAR.replace("leaf", "".join(name.split()) or "leaf").encode("utf-8", "surrogatepass")
    return other_bytes(random, content) if random.random() < 0.2 else content


def _run(random):
    if random.random() < 0.1:
        return {"plans.json": planned(random)}, ["--plan", _text(random, ["plans.json#1", "plans.json#2"])]
    if random.random() < 0.2:
        edit = ["--edit", _text(random, EDITS)] if random.random() < 0.5 else []
        return traces(random), ["--trace", "w", *edit]
    (workload, first), (machine, more) = _workload(random), _machine(random, device=True)
    return workload | machine, first + more


def _collective(random):
    files, arguments = _machine(random)
    arguments = arguments or ["--topology", random.choice(TOPOLOGIES)]
    kinds = ("all_reduce", "all-gather", "all_to_all", "send", "broadcast", "reduce_scatter")
    return files, [_name(random, kinds), *arguments, "--bytes", random.choice(_SIZES)]


def _operator(random):
    files, arguments = _machine(random)
    return files, [_name(random, sorted(OPERATORS)), *arguments]


def _show(random):
    name = random.choice(("mine.yaml", "h200", "h200-node-4", "w.0.et", "dlrm-128"))
    return traces(random) if name == "w.0.et" else _workload(random)[0], [_name(random, [name])]


def _measure(random):
    what = _name(random, (*experiments.EXPERIMENTS, "all"))
    files = {"rows.jsonl": lines_of(random, rows_of("traces/h200-pair/*.jsonl"))} | _workload(random)[0]
    return files, [what, "--plan", "--quick", "--output", "out"]


def _validate(random):
    if random.random() < 0.5:
        return measured_files(random), ["rows.jsonl"]
    files = {"net.yaml": file_of(random, topologies(), as_yaml)} if random.random() < 0.5 else {}
    grammar = Grammar([tree(row | ({"topology": "net.yaml"} if files else {})) for row in _MAPPED])
    return files | {"rows.jsonl": lines_of(random, grammar, most=3)}, ["rows.jsonl"]


_MAPPED = [
    {"workload": SMALL["transformer"], "changes": {"layers": 1}, "topology": "h200-node-4", "device": "h200",
     "schedule": "overlap", "measured_us": 812.5},
    {"workload": SMALL["dlrm"], "topology": "h200-node-4", "device": "h200", "schedule": "baseline",
     "measured_us": 1e3},
]  # fmt: skip
"""Rows that hold their workload."""


def _goodput(random):
    files, first = _workload(random)
    return files, [*first, "--tokens", "1B", "--checkpoint", "10s"]


def _study(random):
    files = {"study.yaml": file_of(random, Grammar([tree(_SMALL_STUDY), tree(_ONE_AXIS), tree(_FAILING)]), as_yaml)}
    files["mine.yaml"] = as_yaml(tree(SMALL["transformer"])).encode()
    return files, ["study.yaml", "--output", "out", "--workers", "1", "--no-report"]


_SMALL_STUDY = {
    "title": "t", "workload": "mine.yaml", "set": {"batch_per_replica": [2, 4]}, "schedule": ["baseline", "fused"],
    "zip": [{"host": ["none", "eager"], "network": ["alpha_beta", "link"]}], "cases": [{"clocks": "unthrottled"}],
    "where": ["ranks > 0"], "columns": {"x": "makespan_s * 2"}, "baseline": {"schedule": "baseline"},
    "goodput": {"checkpoint": "10 s", "failures": "1/year", "tokens": "1B"},
    "views": [{"kind": "bar", "x": "schedule", "y": "makespan_s"}],
}  # fmt: skip
_ONE_AXIS = {
    "title": "t", "workload": "mine.yaml", "schedule": ["baseline", "overlap"], "baseline": {"schedule": "baseline"},
    "where": "fits", "columns": {"x": "makespan_s / ranks"},
}  # fmt: skip
_FAILING = {**_ONE_AXIS, "slow": {"9": 2}, "network": "link", "timelines": "best"}
"""Studies whose baseline is of all that varies; of one all cases fail."""


def _search(random):
    files, first = _workload(random)
    return files, [*first, "--workers", "1", "--topology", "h200-node-4", "--global-batch", "8"]


@cache
def _results():
    """Return a grammar of what `scaleout run --json` answers, under two schedules, and the answers."""
    with TemporaryDirectory() as folder:
        answers = []
        for batch in (8, 16):
            Path(folder, "mine.yaml").write_text(as_yaml(tree({**SMALL["dlrm"], "global_batch": batch})))
            job = load_workload(str(Path(folder, "mine.yaml")))
            answers.append(json.loads(to_json(compare(job, schedules=("baseline", "overlap")).summary())))
    return Grammar([tree(each) for each in answers]), answers


def _diff(random):
    if random.random() < 0.3:
        return traces(random), [".", ".", "--topology", random.choice(TOPOLOGIES)]
    grammar, answers = _results()
    files = {"a.json": file_of(random, grammar, as_json), "b.json": as_json(tree(random.choice(answers))).encode()}
    return files, random.choice((["a.json", "b.json"], ["b.json", "a.json"]))


def _import_pytorch(random):
    files = {name: content for name, content in recordings(random).files.items() if name != "options"}
    return files, ["job.tar.gz" if "job.tar.gz" in files else "job", "--output", "out"]


def _import_model(random):
    if random.random() < 0.5:
        more = ["--output", random.choice(("out.yaml", "config.json", ".", ""))] if random.random() < 0.2 else []
        return {"config.json": file_of(random, model_configs(), as_json)}, ["config.json", *more]
    files = model_arguments(random).files
    return files, [next(iter(files))]


_FIRST = {
    "run": _run, "strategies": _workload, "buckets": _workload, "search": _search, "collective": _collective,
    "operator": _operator, "show": _show, "measure": _measure,
    "track": lambda random: ({}, ["--set", "rows=512", "--set", "columns=256", "--set", "depth=128"]),
    "list": lambda random: ({}, [_name(random, ("workloads", "schedules", "collectives", "x", "devices"))]),
    "trace": lambda random: (_workload(random)[0], ["mine.yaml", "--output", "out"]),
    "validate": _validate, "goodput": _goodput, "study": _study,
    "reproduce": lambda random: ({}, [_nonsense(random)]),
    "astra": lambda random: (astra_files(random), list(ASTRA)),
    "diff": _diff, "import pytorch": _import_pytorch, "import model": _import_model,
}  # fmt: skip
"""Verb to its files, and the words before its options, of a job that ends soon."""


def command_case(random):
    """Make a whole command line with its files."""
    verb = random.choice(sorted(_VERBS))
    if random.random() >= _HEAVY.get(verb, 1):
        verb = "run"
    files, first = _FIRST[verb](random)
    words = verb.split()
    arguments = [*words, *first, *_given(random, _VERBS[verb] or {"--help": None})]
    if verb in _AS_JSON and random.random() < 0.8:
        arguments.insert(len(words), "--json")
    if verb in _AS_JSON and verb != "import pytorch" and random.random() < (0.2 if "net.edgelist" in files else 0.02):
        arguments += ["--output", "out"]
    if random.random() < 0.02:
        arguments[random.randrange(len(arguments))] = _nonsense(random)
    return Case("command", files, tuple(each.replace("\0", "") or "-" for each in arguments))
