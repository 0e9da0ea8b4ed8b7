"""Seeds of files and rows, and files changed: shipped files, and small jobs of two to eight ranks, which end soon."""

import json
from functools import cache
from pathlib import Path

import yaml
from judge import Case
from model_files import BRIDGE, SCRIPT, TOML
from mutations import Grammar, as_json, as_yaml, file_of, other_bytes, other_text, tree
from nonsense import FILES

import scaleout

ROOT = Path(scaleout.__file__).parents[1]


def _yaml_seeds(pattern, *, most_bytes=20_000):
    files = sorted(path for path in ROOT.glob(pattern) if path.stat().st_size < most_bytes)
    return [tree(_with_files(yaml.safe_load(path.read_text()), path.parent)) for path in files]


def _with_files(value, folder):
    """Name the files that a shipped file names by their whole paths."""
    if isinstance(value, dict):
        return {key: _with_files(one, folder) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_files(one, folder) for one in value]
    is_file = isinstance(value, str) and value.endswith(("yaml", "jsonl")) and (folder / value).is_file()
    return str(folder / value) if is_file else value


SMALL = {
    "transformer": {"kind": "transformer", "description": "x", "source": "x", "hidden": 64,
                    "layers": 2, "heads": 4, "ffn": 128, "vocabulary": 128,
                    "sequence": 32, "batch_per_replica": 2, "data_parallel": 2, "tensor_parallel": 2,
                    "topology": "h200-node-4", "device": "h200"},
    "dlrm": {"kind": "dlrm", "description": "x", "source": "x", "data_parallel": 4, "global_batch": 64,
             "tables_per_rank": 2, "rows_per_table": 1000,
             "embedding_dim": 16, "pooling": 4, "dense_features": 16, "mlp_width": 32, "bottom_layers": 1,
             "top_layers": 2, "interaction": "sum", "topology": "h200-node-4", "device": "h200"},
    "mega-gpt-2": {"like": "mega-gpt-2", "layers": 2, "topology": "t3-ring-8"},
    "gpt-3": {"like": "gpt-3", "layers": 4, "tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 1,
              "batch_per_replica": 4, "topology": "h200-node-4"},
    "mixtral": {"like": "mixtral-8x7b", "layers": 2, "tensor_parallel": 1, "data_parallel": 4, "expert_parallel": 4,
                "batch_per_replica": 1, "topology": "h200-node-4"},
    "dit": {"like": "dit-xl-2", "layers": 2, "data_parallel": 4, "topology": "h200-node-4"},
    "mamba": {"like": "mamba-2-hybrid-8b", "tensor_parallel": 1, "data_parallel": 4, "batch_per_replica": 1,
              "topology": "h200-node-4"},
    "resnet": {"like": "resnet-50", "data_parallel": 4, "topology": "h200-node-4"},
}  # fmt: skip
"""Jobs of every family, small enough to be simulated whole."""

TOPOLOGIES = [
    "h200-node-4", "mi210-node", "graph-8", "dgx-h200-1", "dgx-h200-nvls-1", "t3-ring-8", "sierra-8", "v100-node-8",
    "mi210-pair", "dgx-h200-2", "dgx-a100-1",
]  # fmt: skip
GRAPHML = """<?xml version="1.0"?>
<!DOCTYPE graphml [<!ENTITY a "0"><!ENTITY b "&a;&a;&a;&a;">]>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="d0" for="edge" attr.name="bandwidth" attr.type="string"/>
<key id="d1" for="edge" attr.name="latency" attr.type="string"/>
<key id="d2" for="node" attr.name="rank" attr.type="int"/>
<graph edgedefault="undirected">
<node id="n0"><data key="d2">0</data></node><node id="n1"><data key="d2">1</data></node><node id="s"/>
<edge source="n0" target="s"><data key="d0">10 GB/s</data><data key="d1">1 us</data></edge>
<edge source="n1" target="s"><data key="d0">10 GB/s</data><data key="d1">1 us</data></edge>
</graph></graphml>
"""
EDGES = """0 1 {'bandwidth': '10 GB/s', 'latency': '1e3 ns'}
1 2 {'bandwidth': '10 GB/s', 'latency': '1 us'}
2 s {'bandwidth': '1e9 B/s', 'latency': 0}
"""
STAR = "".join(f"{rank} leaf {{'bandwidth': '10 GB/s', 'latency': '1 us'}}\\n" for rank in range(4))
"""A network of four ranks, which most jobs here have."""


@cache
def workloads():
    return Grammar(_yaml_seeds("workloads/*.yaml") + [tree(seed) for seed in SMALL.values()])


@cache
def small_workloads():
    return Grammar([tree(seed) for seed in SMALL.values()])


@cache
def topologies():
    kinds = [{"kind": "mesh", "size": 4}, {"kind": "fully_connected", "size": 4}]
    more = {"bandwidth": "10 GB/s", "latency": "1 us", "bandwidth_source": "x", "latency_source": "x"}
    seeds = [{"source": "x", "dimensions": [kind | more]} for kind in kinds]
    changed = {"source": "x", "dimensions": [{"kind": "ring", "size": 4} | more], "changes": {
        "slow": {1: 1.5}, "degrade": {"0-1": 0.5}, "break": ["2-3"]}}  # fmt: skip
    file = {
        "source": "x",
        "dimensions": [{"kind": "graph", "size": 2, "file": "net.graphml", "links_source": "x"} | more],
    }
    return Grammar(_yaml_seeds("topologies/*.yaml") + [tree(seed) for seed in (*seeds, changed, file)])


@cache
def devices():
    return Grammar(_yaml_seeds("traces/*/device.yaml"))


@cache
def libraries():
    return Grammar(_yaml_seeds("topologies/*/*.yaml") + _yaml_seeds("traces/*/nccl.yaml"))


@cache
def model_configs():
    models = json.loads((ROOT / "tests/interop/huggingface.json").read_text())["models"]
    return Grammar([tree(_cut(each["config"])) for each in models])


def _cut(config):
    """A config of few layers."""
    few = {key: 2 for key in ("num_hidden_layers", "n_layer") if key in config}
    return config | few | ({"layer_types": config["layer_types"][:2]} if "layer_types" in config else {})


def model_arguments(random):
    """A TOML of torchtitan, or a script or YAML of Megatron, changed."""
    name = random.choice(("job.toml", "train.sh", "run.yaml"))
    if name == "run.yaml":
        return Case("model arguments", {name: file_of(random, Grammar([tree(BRIDGE)]), as_yaml)})
    text = TOML if name == "job.toml" else SCRIPT
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        lines = text.split("\n")
        at = random.randrange(len(lines))
        text = "\n".join([*lines[:at], other_text(random, lines[at]), *lines[at + 1 :]])
    content = text.encode("utf-8", "surrogatepass")
    return Case("model arguments", {name: other_bytes(random, content) if random.random() < 0.3 else content})


POLICY = {"source": "x", "rules": [{"size": "1 MB", "ranks": 4, "backend": "nccl_ring"}, {"backend": "nccl_tree"}]}


EXPRESSIONS = (
    "makespan_s * 1000", "ranks == 128 and fits", "1 - 1 / speedup", "-" * 400 + "ranks", "not " * 240 + "fits",
    "(" * 90 + "1" + ")" * 90, "9 ** 9 ** 9 ** 9", "9" * 900 + " // 7", "'a' * 10 ** 9", "max()", "round(1e308 * 10)",
    "schedule in ['fused', 1]", "set.global_batch / 0", "bandwidth[0] ** 0.5", "1 if fits else",
    "__import__('os').getpid()", "ranks.__class__", "[ranks for ranks in fits]", "lambda: 1", "'\\d'",
    "1if fits else 2", "0x1F + 0b1", "min(" * 60 + "1" + ", 2)" * 60, "1 < 2 < " + "3 < " * 200 + "4",
)  # fmt: skip


@cache
def studies():
    seeds = _yaml_seeds("workloads/studies/*.yaml")
    small = {"title": "t", "workload": "dlrm-128", "set": {"global_batch": [512, 1024]}}
    seeds += [tree({**small, "where": each, "columns": {"x": each}}) for each in EXPRESSIONS]
    return Grammar(seeds)


@cache
def policies():
    return Grammar([tree(POLICY)])


@cache
def rows_of(pattern):
    """Grammars of the rows of shipped files: one of lines of provenance, one of those with other keys each."""
    found = {}
    for path in sorted(ROOT.glob(pattern)):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            found.setdefault((path.stem, tuple(sorted(row))), row)
    return Grammar([tree(row) for row in found.values() if "provenance" not in row])


def lines_of(random, grammar, *, most=6, first='{"provenance": {}}\n'):
    lines = [as_json(grammar.mutated(random) if random.random() < 0.5 else random.choice(grammar.seeds))
             for _ in range(random.randint(1, most))]  # fmt: skip
    if random.random() < 0.02:
        lines.insert(random.randint(0, len(lines)), random.choice(FILES["json"]))
    content = (first + "\n".join(lines) + "\n").encode("utf-8", "surrogatepass")
    return other_bytes(random, content) if random.random() < 0.1 else content


def yaml_case(grammar, kind):
    return lambda random: Case(kind, {"mine.yaml": file_of(random, grammar(), as_yaml)})


def topology_case(random):
    files = {"mine.yaml": file_of(random, topologies(), as_yaml)}
    if b"net.graphml" in files["mine.yaml"]:
        files["net.graphml"] = other_bytes(random, GRAPHML.encode())
    return Case("topology", files)


def fabric_case(random):
    name, content = random.choice((("mine.graphml", GRAPHML), ("mine.edgelist", EDGES)))
    return Case("fabric", {name: other_bytes(random, content.encode(), [GRAPHML.encode(), EDGES.encode()])})


def only_file(case):
    (name,) = case.files
    return Path(name)
