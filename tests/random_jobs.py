"""Random jobs: shipped models made small, by any plan, on any network, and what they may run under.

A job is a workload by name, its keys, and a topology and a device as the command line takes them, so that what breaks a
law can be run by hand. Keys that make no job are drawn too: who asks for a job leaves out what is refused.
"""

from functools import cache
from typing import Literal, get_args, get_origin

from hypothesis import strategies as st
from strategies import faults

from scaleout.cluster.device.host import HOSTS
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config import library
from scaleout.simulation.options import CLOCKS, NETWORKS
from scaleout.workloads.config.frameworks import FRAMEWORKS
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.families import load_workload
from scaleout.workloads.pipeline import PIPELINES

SMALL = {
    "llama-3-8b": {},
    "megatron-22b": {"hidden": 1024, "heads": 16, "ffn": 4096},
    "gpt-oss-120b": {"experts": 16},
    "mixtral-8x7b": {},
    "deepseek-v3": {"experts": 16, "shared_experts": 1, "top_k": 2, "heads": 32, "ffn": 4096, "predicted_ahead": 0},
    "mamba-2-hybrid-8b": {},
    "dit-xl-2": {},
    "dlrm-128": {},
    "dlrm-dcnv2": {},
    "resnet-50": {},
    "alexnet": {},
}
"""Shipped models of all families, and what makes them small besides fewer layers."""

_OF_LAYERS = [name for name in SMALL if issubclass(type(load_workload(name)), LayeredModel)]
_DRAWN = ("mode", "zero", "sequence_parallel", "recompute")
"""Keys that `plans` draws by themselves."""
_DIMENSIONS = ("ring", "mesh", "switch", "fully_connected", "fat_tree", "dragonfly")
_LINKS = (("nvlink4", "ndr", "hdr"), ("nvlink5",), ("ici-v4",))
"""Link types that one library knows."""


# ---- Networks


@cache
def shipped(ranks):
    """Names of the shipped topologies of so many ranks."""
    return [name for name in library.names("topology") if load_topology(name).num_ranks == ranks]


@st.composite
def networks(draw, ranks):
    """A shipped topology, or one in a line: parts of all kinds, innermost first."""
    if draw(st.booleans()):
        return draw(st.sampled_from(shipped(ranks)))
    parts, links = [], draw(st.sampled_from(_LINKS))
    while ranks > 1:
        size = draw(st.sampled_from([each for each in range(2, ranks + 1) if ranks % each == 0]))
        kind, ranks = draw(st.sampled_from(_DIMENSIONS)), ranks // size
        sizes, more = [size], []
        if kind in ("fat_tree", "dragonfly"):
            cut = draw(st.sampled_from([each for each in range(2, size + 1) if size % each == 0]))
            sizes = [cut, size // cut] if cut < size else [size]
        if kind == "dragonfly":
            sizes = [1, *sizes] if len(sizes) > 1 else [1, 1, size]
            more = ["latency=700ns", f"global_links={sizes[-1]}"]
        elif len(sizes) > 1:
            more = [f"taper={draw(st.sampled_from('12'))}:1"]
        parts.append(f"{kind}({','.join([*map(str, sizes), draw(st.sampled_from(links)), *more])})")
    return " x ".join(parts)


# ---- Plans


@cache
def options_of(name):
    """Keys of a shipped workload that are one of a few values, and those: what its family's schema says."""
    found = {}
    family = type(load_workload(name))
    for key, field in family.model_fields.items():
        choices = [each for each in (field.annotation, *get_args(field.annotation)) if get_origin(each) is Literal]
        values = [value for each in choices for value in get_args(each)]
        if field.annotation is bool or bool in get_args(field.annotation):
            values += [False, True]
        if values and get_origin(field.annotation) is not tuple and key not in _DRAWN:
            found[key] = values
    return found | ({"framework": list(FRAMEWORKS)} if issubclass(family, LayeredModel) else {})


@st.composite
def plans(draw, ranks, name):
    """Keys of a small model of layers, whose degrees multiply to the ranks."""
    workload = load_workload(name)
    refused = workload.REFUSES
    modes = ["training", "training", "training", "prefill", "prefill" if name == "dit-xl-2" else "decode"]
    mode = draw(st.sampled_from(modes))
    rest, keys = ranks, {"mode": mode}
    for axis in draw(st.permutations(["tensor", "pipeline", "context"])):
        able = f"{axis}_parallel" not in refused and not (axis == "context" and mode == "decode")
        degree = draw(st.sampled_from([each for each in (1, 1, 2, 4, 8) if rest % each == 0 and (able or each == 1)]))
        keys[f"{axis}_parallel"], rest = degree, rest // degree
    keys["data_parallel"] = rest
    keys["sequence_parallel"] = keys["tensor_parallel"] > 1 and mode != "decode" and draw(st.booleans())
    keys["sequence_parallel"] &= "sequence_parallel" not in refused
    if keys["context_parallel"] > 1:
        keys["context_exchange"] = draw(st.sampled_from(["ring", "all_gather", "all_gather_steps", "ulysses"]))
    if name != "dit-xl-2":
        keys |= {"sequence": draw(st.sampled_from([1024, 8192])), "hidden": draw(st.sampled_from([1024, 4096]))}
    keys |= draw(_pipelines(keys["pipeline_parallel"]))
    if mode != "training":
        keys |= {
            "batch_per_replica": 64,
            "microbatch": draw(st.sampled_from([None, 16])),
            "zero": 0,
            "recompute": "none",
        }
        keys |= {"pipeline_schedule": "1f1b", "virtual_stages": None, "microbatch_group": None}
    else:
        keys |= draw(_shards(keys))
    if name == "mamba-2-hybrid-8b":
        keys["pattern"] = ("M-*-" * keys["layers"])[: keys["layers"]]
    return keys | SMALL[name] | (draw(_experts(keys)) if workload.has_experts else {"expert_parallel": 1})


@st.composite
def _pipelines(draw, stages):
    """Schedule, micro-batches and layers of a pipeline that can be."""
    found = {"microbatch": 1, "stage_layers": [], "virtual_stages": None, "microbatch_group": None}
    able = []
    for name, pipeline in PIPELINES.items():
        for chunks in (pipeline.num_chunks,) if pipeline.num_chunks else (2, 3):
            able += [
                (name, chunks, count)
                for count in (stages, 2 * stages, 2 * stages + 1)
                if pipeline.check(stages, count, chunks) is None
            ]
    name, chunks, count = draw(st.sampled_from(able)) if stages > 1 else ("1f1b", 1, draw(st.sampled_from([1, 2])))
    if PIPELINES[name].num_chunks is None:
        found["virtual_stages"] = chunks
        found["microbatch_group"] = draw(st.sampled_from([None, None, count]))
    layers = PIPELINES[name].layout.num_stages(stages, chunks)
    return found | {"pipeline_schedule": name, "batch_per_replica": count, "layers": max(2, layers)}


@st.composite
def _shards(draw, keys):
    """What of a training step is sharded, and what is computed again."""
    replicas = keys["data_parallel"] * keys["context_parallel"]
    found = {
        "zero": draw(st.sampled_from([0, 1, 2, 3])),
        "recompute": draw(st.sampled_from(["none", "none", "full", "selective"])),
    }
    if found["zero"] and replicas > 2 and replicas % 2 == 0:
        found["shard_ranks"] = draw(st.sampled_from([None, None, 2]))
    return found


@st.composite
def _experts(draw, keys):
    """How experts are spread, and what the router sends them."""
    ranks = keys["data_parallel"]
    found = {"expert_parallel": draw(st.sampled_from([each for each in (1, 2, 4, 8) if ranks % each == 0]))}
    if keys["sequence_parallel"] or keys["tensor_parallel"] == 1:
        found["expert_tensor_parallel"] = draw(st.sampled_from([None, None, 1, 2]))
    more = draw(st.sampled_from(["balanced", "balanced", "capacity", "imbalance", "groups"]))
    if more == "capacity":
        found["capacity_factor"] = draw(st.sampled_from([0.5, 1.0, 1.25]))
    if more == "imbalance":
        found |= {"imbalance": draw(st.sampled_from([0.04, 0.72])), "imbalance_seed": draw(st.integers(0, 9))}
    if more == "groups":
        found |= {"expert_groups": 2, "groups_per_token": draw(st.sampled_from([1, 2]))}
    return {"dense_layers": 0, "expert_groups": 1, "groups_per_token": None} | found


@st.composite
def random_jobs(draw):
    """A workload, its keys, a topology and a device."""
    ranks = draw(st.sampled_from([8, 8, 16, 32]))
    name = draw(st.sampled_from([*SMALL, *_OF_LAYERS]))
    if name in _OF_LAYERS:
        keys = draw(plans(ranks, name))
    else:
        keys = {"data_parallel": ranks, "global_batch": ranks * draw(st.sampled_from([16, 64]))}
        keys |= {"gradient_bucket": draw(st.sampled_from(["1 MiB", "25 MiB"]))}
        keys |= {"mode": draw(st.sampled_from(["training", "forward"]))} if name.startswith("dlrm") else {}
    options = options_of(name)
    for key in draw(st.lists(st.sampled_from(list(options)), max_size=3, unique=True)):
        keys[key] = draw(st.sampled_from(options[key]))
    return name, keys, draw(networks(ranks)), draw(st.sampled_from(library.names("device")))


# ---- What a job runs under


@st.composite
def conditions(draw, job):
    """A network model, contention, a host and clocks, as keywords of `compare`; a placement; and faults.

    On links all lies as it was built beyond 8 ranks: where no two ranks are alike it takes a minute.
    """
    _, _, name, device = job
    topology = load_topology(name)
    hosts = list(HOSTS) if "pointwise_forward" in load_device(device).host_launch_s else ["none"]
    found = {
        "host": draw(st.sampled_from(hosts)),
        "network": draw(st.sampled_from(NETWORKS)),
        "clocks": draw(st.sampled_from(CLOCKS)),
        "contention": draw(st.booleans()),
    }
    if found["network"] == "link" and topology.num_ranks > 8:
        return found, {}
    if draw(st.booleans()):
        found["placement"] = draw(st.permutations(range(topology.num_ranks)))
    slow = st.dictionaries(st.integers(0, topology.num_ranks - 1), st.sampled_from([1.1, 2.0]), max_size=1)
    return found, draw(faults(topology)) | {"slow": draw(slow)} if draw(st.booleans()) else {}
