"""Random topologies and programs, small enough to simulate by the hundred and odd enough to find what breaks.

Times are multiples of a quarter of a microsecond in part, so that ties, where order is decided by rule, are common.
"""

from functools import cache

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.dimension import edges_of, graph_dimension
from scaleout.cluster.topology.fabric import Fabric, FabricLink
from scaleout.cluster.topology.faults import LinkChange, name_link
from scaleout.cluster.topology.kinds import KINDS
from scaleout.cluster.topology.topology import (
    Dimension,
    Topology,
    break_links,
    degrade_links,
    load_topology,
    slow_down,
)
from scaleout.config import library
from scaleout.errors import ConfigError
from scaleout.network.routes.links import links_of
from scaleout.program.graph import COLLECTIVES, NONE, GraphBuilder, NodeKind
from scaleout.program.mesh import Mesh
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule.pairs import CONSUMERS, PRODUCERS
from scaleout.workloads.config import FAMILIES, load_workload

SHAPES = [(4,), (2,), (2, 2), (4, 2), (8,), (1,), (5,), (3, 3), (2, 2, 2), (2, 6)]
"""Sizes of random topologies, innermost first."""

KERNELS = (
    kernel("gemm", dtype="bf16", M=64, N=48, K=40),
    kernel("gemv", dtype="bf16", M=100, N=30),
    kernel("add", dtype="bf16", elements=1001),
    kernel("embedding_bag_fwd", dtype="fp32", batch=7, tables=3, dim=5, pooling=9, rows=100),
    kernel("embedding_sgd_sparse", dtype="fp32", batch=7, tables=3, dim=5, pooling=9),
    kernel("embedding_bag_bwd_sparse", dtype="fp32", batch=7, tables=3, dim=5, pooling=9),
)
"""Kernels that the schedules can fuse, and one that they cannot."""

seconds = st.one_of(
    st.sampled_from([0.0, 1e-6]),
    st.integers(0, 40).map(lambda quarters: quarters * 0.25e-6),
    st.floats(0, 1e-5, allow_subnormal=False),
)
sizes = st.one_of(st.sampled_from([0, 1, 25_000, 50_000]), st.integers(0, 1_000_000))


@cache
def examples():
    """Name of each family of models to its shipped workload of the fewest ranks; a family must have one."""
    found = sorted((load_workload(name) for name in library.names("workload")), key=lambda each: each.num_ranks)
    return {family: next(each for each in found if each.kind == family) for family in FAMILIES}


def dimension_of(kind, size, **fields):
    """A dimension of any kind of the table, with what the kind needs besides."""
    return Dimension(kind, size, **({"bytes_per_s": 2e9, "latency_s": 1e-6} | KINDS[kind].example(size) | fields))


def takes(kind, size):
    """Whether a kind of dimension can be of a size: `check` refuses sizes of which it has no links."""
    try:
        dimension_of(kind, size)
    except ConfigError:
        return False
    return True


def kinds_of(size, *, even=False):
    """Kinds of dimension that can be of a size; with `even` those alone where it does not matter where a group lies."""
    return st.sampled_from([name for name, kind in KINDS.items() if takes(name, size) and (kind.even or not even)])


@st.composite
def _dimensions(draw, size):
    kind = draw(kinds_of(size, even=True))
    speed, latency = draw(st.sampled_from([25e9, 100e9])), draw(st.sampled_from([0.0, 0.25e-6, 0.7e-6]))
    reduces = "in_network_reduction" in KINDS[kind].takes and draw(st.booleans())
    if kind != "fat_tree":
        return dimension_of(kind, size, bytes_per_s=speed, latency_s=latency, in_network_reduction=reduces)
    leaf = draw(st.sampled_from([d for d in range(2, size) if size % d == 0] or [size]))
    levels = ((leaf, size // leaf), (draw(st.sampled_from([1.0, 2.0])),)) if leaf < size else ((size,), ())
    return Dimension(kind, size, speed, latency, *levels, in_network_reduction=reduces)


@st.composite
def fabrics(draw, size):
    """Any connected graph: a tree of ranks and a few switches in any order, and a few more links."""
    switches = tuple(f"s{number}" for number in range(draw(st.integers(0 if size > 1 else 1, 3))))
    order = draw(st.permutations(range(size + len(switches))))
    pairs = {(order[draw(st.integers(0, at - 1))], node) for at, node in enumerate(order) if at}
    pairs = {(min(pair), max(pair)) for pair in pairs}
    for _ in range(draw(st.integers(0, size))):
        a, b = draw(st.sampled_from(order)), draw(st.sampled_from(order))
        pairs |= {(min(a, b), max(a, b))} if a != b else set()
    speeds, latencies = st.sampled_from([25e9, 50e9, 100e9]), st.sampled_from([0.0, 0.25e-6, 0.7e-6])
    return Fabric(size, switches, tuple(FabricLink(a, b, draw(speeds), draw(latencies)) for a, b in sorted(pairs)))


@st.composite
def dragonflies(draw, size):
    """Any split of the ranks into routers and groups, with enough global links or some more."""
    ranks = draw(st.sampled_from([d for d in range(1, size + 1) if size % d == 0]))
    routers = draw(st.sampled_from([d for d in range(1, size // ranks + 1) if size // ranks % d == 0]))
    groups = size // ranks // routers
    links = -(-(groups - 1) // routers) * draw(st.sampled_from([1, 2]))
    return Dimension(
        "dragonfly", size, 25e9, draw(st.sampled_from([0.0, 0.25e-6])), (ranks, routers, groups), global_links=links,
        level_bytes_per_s=draw(st.sampled_from([(), (50e9, 12.5e9)])),
    )  # fmt: skip


@st.composite
def changed(draw, topology):
    """A topology with a slower and a broken link, where messages still find a way."""
    for broken in (False, True):
        number = draw(st.integers(0, len(topology.dimensions) - 1))
        edges = edges_of(topology.dimensions[number])
        if not len(edges.tails) or draw(st.booleans()):
            continue
        edge = draw(st.integers(0, len(edges.tails) - 1))
        line = topology.lines(number)[draw(st.integers(0, topology.num_ranks // topology.shape[number] - 1))]
        change = LinkChange(number, int(line), tuple(sorted((int(edges.tails[edge]), int(edges.heads[edge])))), 0.0)
        try:
            name = name_link(topology.dimensions, change)
            found = break_links(topology, [name]) if broken else degrade_links(topology, {name: 0.5})
            ranks = np.arange(topology.num_ranks)
            links_of(found).routes(np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks)))
            topology = found
        except ConfigError:
            continue  # no way was left
    return topology


@st.composite
def topologies(draw, shapes=tuple(SHAPES), *, even=False):
    """Products of dimensions of all kinds, with links of few speeds, some of them slower or broken."""
    dimensions = []
    for size in draw(st.sampled_from(shapes)):
        kind = "even" if even else draw(st.sampled_from(["even"] * 4 + ["graph", "dragonfly"]))
        strategies = {
            "even": _dimensions(size),
            "graph": fabrics(size).map(graph_dimension),
            "dragonfly": dragonflies(size),
        }
        dimensions.append(draw(strategies[kind]))
    topology = Topology("random", tuple(dimensions), draw(st.sampled_from([0.0, 1e-6])))
    return topology if even or not draw(st.booleans()) else draw(changed(topology))


@st.composite
def meshes(draw, num_ranks):
    """Any degrees of parallelism over a number of ranks."""
    sizes = []
    left = num_ranks
    for _ in range(3):
        sizes.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= sizes[-1]
    expert = draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
    return Mesh(tensor=sizes[0], context=sizes[1], pipeline=sizes[2], data=left, expert=expert)


@st.composite
def families(draw, num_ranks):
    """Groups of some axes of a mesh, and groups of any ranks in any order."""
    mesh = draw(meshes(num_ranks))
    found = [mesh.groups(axis) for axis in draw(st.permutations(["world", "tensor", "data", "expert"]))[:2]]
    order = draw(st.permutations(range(num_ranks)))
    size = draw(st.integers(1, num_ranks))
    groups = tuple(tuple(order[i : i + size]) for i in range(0, num_ranks, size))
    return (*found, GroupFamily("any", groups))


@st.composite
def _skeletons(draw, num_families):
    """The collectives of a job in order: what the members of a group must agree on."""
    one = st.tuples(st.sampled_from(COLLECTIVES), sizes, st.integers(0, num_families - 1))
    return draw(st.lists(one, min_size=1, max_size=5))


@st.composite
def contests(draw):
    """Every rank alike, and every collective on a stream of its own: many want the same wire at the same moment."""
    topology = draw(topologies(((2,), (4,), (6,), (8,), (2, 2), (4, 2))))
    groups = draw(families(topology.num_ranks))
    graph = GraphBuilder()
    for stream, (kind, size_bytes, group) in enumerate(draw(_skeletons(len(groups)))):
        late = draw(st.sampled_from([0.0, 0.0, 1e-6]))
        made = graph.add((), name="kernel", duration_s=late, time_source=TimeSource.GIVEN)
        graph.add(
            (made,) if late else (), name=kind, kind=NodeKind.COLLECTIVE, collective=COLLECTIVES.index(kind),
            bytes=size_bytes, group=group, stream=1 + stream, priority=draw(st.integers(0, 1)),
        )  # fmt: skip
    roles = np.zeros(topology.num_ranks, np.int64)
    return Program("contest", (graph.build(),), roles, groups), topology


@st.composite
def graphs(draw, skeleton, *, streams=1, priorities=1):
    """One rank's graph: the collectives of a skeleton, kernels between them, and any dependencies."""
    graph = GraphBuilder()

    def add(after=None, **columns):
        recent = range(max(0, len(graph) - 4), len(graph))
        if after is None:
            after = draw(st.one_of(st.just(()), st.sets(st.sampled_from(recent), max_size=3))) if recent else ()
        stream, priority = draw(st.integers(0, streams - 1)), draw(st.integers(0, priorities - 1))
        return graph.add(after, stream=stream, priority=priority, **columns)

    def add_kernel(calls=KERNELS, after=None):
        call = draw(st.sampled_from(calls))
        phase = draw(st.sampled_from(["forward", "backward"]))
        return add(
            after, name=call.op, kernel=graph.kernel_index(call), flops=call.flops, bytes=call.bytes, phase=phase,
            duration_s=draw(seconds), time_source=TimeSource.GIVEN,
        )  # fmt: skip

    for kind, size_bytes, group in skeleton:
        for _ in range(draw(st.integers(0, 1))):
            add_kernel()
        fitting = [call for call in KERNELS if call.op in PRODUCERS.get(kind, ("add",))]
        after = [add_kernel(fitting)] if draw(st.booleans()) else None
        reduced = add(
            after, name=f"{kind}_{len(graph)}", kind=NodeKind.COLLECTIVE, collective=COLLECTIVES.index(kind),
            bytes=size_bytes, group=group,
        )  # fmt: skip
        fitting = [call for call in KERNELS if call.op in CONSUMERS.get(kind, ("add",))]
        if draw(st.booleans()):
            add_kernel(fitting, [reduced])
    return graph.build()


@st.composite
def jobs(draw, *, max_roles=1, streams=1, priorities=1):
    """A random program and a topology for it: every rank alike, or a few roles that meet at the same collectives."""
    topology = draw(topologies())
    groups = draw(families(topology.num_ranks))
    skeleton = draw(_skeletons(len(groups)))
    roles = draw(st.integers(1, max_roles))  # fewer if no rank takes the last one
    of_role = tuple(draw(graphs(skeleton, streams=streams, priorities=priorities)) for _ in range(roles))
    role_of_rank = draw(st.lists(st.integers(0, roles - 1), min_size=topology.num_ranks, max_size=topology.num_ranks))
    return Program("random", of_role, np.array(role_of_rank, np.int64), groups), topology


@st.composite
def pipelines(draw):
    """A program of as many roles as ranks: each receives, computes, sends on, and all reduce at the end."""
    topology = draw(topologies())
    p = topology.num_ranks
    size_bytes, microbatches = draw(sizes), draw(st.integers(1, 3))
    built = []
    for rank in range(p):
        graph = GraphBuilder()
        last = ()
        for tag in range(microbatches):
            if rank > 0:
                received = graph.add((), name="receive", kind=NodeKind.RECV, peer=rank - 1, tag=tag, bytes=size_bytes)
                last = (*last, received)
            last = (graph.add(last, name="stage", duration_s=draw(seconds), time_source=TimeSource.GIVEN),)
            if rank < p - 1:
                graph.add(last, name="send", kind=NodeKind.SEND, peer=rank + 1, tag=tag, bytes=size_bytes)
        graph.collective("all_reduce", size_bytes, group=0, after=last)
        built.append(graph.build())
    everyone = GroupFamily("world", (tuple(range(p)),))
    return Program("pipeline", tuple(built), np.arange(p), (everyone,)), topology


@st.composite
def exchanges(draw):
    """Ranks of a mesh that pass messages on along its axes, by the ranks' numbers; a few of them are slower.

    Several messages to different peers have one tag, and are received in another order than they are sent.
    """
    topology = draw(topologies())
    grid = np.arange(topology.num_ranks).reshape(draw(st.sampled_from([topology.shape[::-1], (-1,)])))
    steps = [(axis, step) for axis in range(grid.ndim) for step in (1, -1)]
    rounds = draw(st.lists(st.lists(st.sampled_from(steps), min_size=1, max_size=3), min_size=1, max_size=3))
    seconds_of, sizes_of = [draw(seconds) for _ in range(2)], [draw(sizes) for _ in rounds]
    received = [draw(st.permutations(moves)) for moves in rounds]
    slow = [draw(st.sampled_from([0, 0, 0, 1])) for _ in range(topology.num_ranks)]
    roles, role_of_rank, named = {}, [], []
    for rank in range(topology.num_ranks):
        ends = {step: int(np.roll(grid, -step[1], step[0])[grid == rank][0]) for step in steps}
        back = {(axis, step): ends[axis, -step] for axis, step in steps}
        peers, graph, last = {}, GraphBuilder(), ()
        for tag, (moves, order, size_bytes) in enumerate(zip(rounds, received, sizes_of, strict=True)):
            last = (graph.add(last, name="work", duration_s=seconds_of[slow[rank]], time_source=TimeSource.GIVEN),)
            for kind, ranks in ((NodeKind.SEND, [ends[move] for move in moves]),
                                (NodeKind.RECV, [back[move] for move in order])):  # fmt: skip
                columns = {"kind": kind, "name": "m", "tag": tag // 2, "bytes": size_bytes}
                for peer in ranks:
                    node = graph.add(last[:1], peer=peers.setdefault(peer, len(peers)), **columns)
                    last = (*last, node) if kind == NodeKind.RECV else last
        named.append(list(peers))
        key = (slow[rank], tuple(graph.build().peer.tolist()))
        role_of_rank.append(roles.setdefault(key, (len(roles), graph.build()))[0])
    width = max(map(len, named))
    table = np.array([[*peers, *[NONE] * (width - len(peers))] for peers in named], np.int64)
    graphs = tuple(graph for _, graph in roles.values())
    return Program("mesh", graphs, np.array(role_of_rank), (), table), topology


def longest_chain_s(line):
    """Length of a timeline's longest chain of dependencies, with networkx: no schedule of these nodes is shorter."""
    chain = nx.DiGraph()
    for node in range(len(line.graph)):
        chain.add_edge(("start", node), ("end", node), weight=line.duration_s[node])
        for before in line.graph.dependencies_of(node).tolist():
            chain.add_edge(("end", before), ("start", node), weight=0.0)
    return nx.dag_longest_path_length(chain) if len(line.graph) else 0.0


# ---- Shipped workloads with other keys

_TOPOLOGIES = {
    8: (
        *("dgx-h200-1", "dgx-b200-1", "dgx-h200-nvls-1", "a100-node-8", "sierra-8", "t3-ring-8", "graph-8"),
        *("ring-2+ring-4", "switch-2+dragonfly-4", "fat_tree-8", "fully_connected-4+ring-2"),
    ),
    16: (
        *("dgx-h200-2", "a100-cluster-a-2", "sierra-16", "t3-ring-16"),
        *("ring-4+ring-4", "dragonfly-16", "switch-8+mesh-2", "fat_tree-16"),
    ),
    32: ("dgx-h200-4", "sierra-32", "t3-ring-32", "ring-2+ring-4+ring-4", "dragonfly-32", "switch-8+fat_tree-4"),
}
_DEVICES = ("h200", "h200", "mi210", "a100-80g", "b200")
_SMALL = {
    "llama-3-8b": {},
    "mixtral-8x7b": {},
    "deepseek-v3": {
        "experts": 16, "shared_experts": 1, "top_k": 2, "dense_layers": 1, "stage_layers": [], "heads": 32, "ffn": 4096
    },
    "mamba-2-hybrid-8b": {"pattern": "M-*-"},
    "dit-xl-2": {"sequence": 256},
}  # fmt: skip
"""Shipped models of layers, and what makes four layers of them."""


def topology_of(name):
    """Return a shipped topology, or one of dimensions such as ``ring-2+ring-4``, innermost first."""
    if name in library.names("topology"):
        return load_topology(name)
    parts = (part.rsplit("-", 1) for part in name.split("+"))
    return Topology(name, tuple(dimension_of(kind, int(size), bytes_per_s=25e9) for kind, size in parts))


@st.composite
def _layered(draw, ranks, name):
    """Keys of a small model of layers whose degrees multiply to the ranks."""
    plain, decoder = name == "dit-xl-2", name in ("llama-3-8b", "mixtral-8x7b", "deepseek-v3")
    mode = draw(st.sampled_from(["training", "training", "prefill", *([] if plain else ["decode"])]))
    rest, keys = ranks, {"layers": 4, "mode": mode, "hidden": draw(st.sampled_from([1024, 4096]))}
    keys["tensor_parallel"] = draw(st.sampled_from([1, 2, 4, 8]))
    rest //= keys["tensor_parallel"]
    degrees = [1, 2, 4] if mode == "training" else [1]
    keys["pipeline_parallel"] = draw(st.sampled_from([each for each in degrees if rest % each == 0]))
    rest //= keys["pipeline_parallel"]
    degrees = [1, 2] if decoder and mode != "decode" else [1]
    keys["context_parallel"] = draw(st.sampled_from([each for each in degrees if rest % each == 0]))
    if keys["context_parallel"] > 1:
        ways = ["ring", "all_gather", "all_gather_steps", *(["ulysses"] if keys["tensor_parallel"] < 8 else [])]
        keys["context_exchange"] = draw(st.sampled_from(ways))
    keys["data_parallel"] = rest // keys["context_parallel"]
    keys["sequence"] = draw(st.sampled_from([1024, 8192]))
    keys["sequence_parallel"] = not plain and mode != "decode" and keys["tensor_parallel"] > 1 and draw(st.booleans())
    keys["expert_parallel"] = 1
    if name in ("mixtral-8x7b", "deepseek-v3"):
        degrees = [each for each in (1, 2, 4, 8) if keys["data_parallel"] % each == 0]
        keys["expert_parallel"] = draw(st.sampled_from(degrees))
    step = draw(_step(keys)) if mode == "training" else {"batch_per_replica": 64, "pipeline_schedule": "1f1b"}
    return keys | {"zero": 0, "recompute": "none"} | step | _SMALL[name]


@st.composite
def _step(draw, keys):
    """Keys of a training step: its pipeline, what is sharded and what is computed again."""
    stages, replicas = keys["pipeline_parallel"], keys["data_parallel"] * keys["context_parallel"]
    found = {"microbatch": 1, "batch_per_replica": stages * draw(st.sampled_from([1, 2]))}
    kinds = ["gpipe", "1f1b", *(["interleaved_1f1b", "zb_h1", "zb_v"] if stages == 2 else [])]
    found["pipeline_schedule"] = draw(st.sampled_from(kinds)) if stages > 1 else "1f1b"
    if found["pipeline_schedule"] == "interleaved_1f1b":
        found["virtual_stages"] = 2
    found["zero"] = draw(st.sampled_from([0, 1, 2, 3] if stages == 1 else [0, 1]))
    found["recompute"] = draw(st.sampled_from(["none", "none", "full"]))
    if found["zero"] and keys["expert_parallel"] == 1 and replicas % 2 == 0 and replicas > 2:
        found["shard_ranks"] = draw(st.sampled_from([None, 2]))
    if found["zero"] < 2:
        found["overlap_gradient_reduce"] = draw(st.booleans())
    if found["zero"] in (1, 2):
        found["overlap_parameter_gather"] = draw(st.booleans())
    return found


@st.composite
def random_jobs(draw):
    """A workload, its keys, a topology and a device; `topology_of` has the topology."""
    ranks = draw(st.sampled_from(list(_TOPOLOGIES)))
    name = draw(st.sampled_from(["dlrm-128", "resnet-50", *_SMALL, "llama-3-8b", "mixtral-8x7b"]))
    if name in _SMALL:
        keys = draw(_layered(ranks, name))
    else:
        keys = {"data_parallel": ranks, "global_batch": ranks * draw(st.sampled_from([16, 64]))}
        keys |= {"mode": draw(st.sampled_from(["training", "forward"]))} if name == "dlrm-128" else {}
        keys |= {"gradient_bucket": draw(st.sampled_from(["1 MiB", "25 MiB"]))} if name == "resnet-50" else {}
    return name, keys, draw(st.sampled_from(_TOPOLOGIES[ranks])), draw(st.sampled_from(_DEVICES))


@st.composite
def conditions(draw, job):
    """What a job may run under, as keywords of `compare`: a network, a placement, faults, a host and clocks.

    On links all lies as it was built beyond 8 ranks: where no two ranks are alike it takes a minute.
    """
    _, _, name, device = job
    topology = topology_of(name)
    hosts = ["none", "eager"] if "pointwise_forward" in load_device(device).host_launch_s else ["none"]
    found = {
        "host": draw(st.sampled_from(hosts)),
        "network": draw(st.sampled_from(["alpha_beta", "alpha_beta", "link"])),
        "clocks": draw(st.sampled_from(["unthrottled", "unthrottled", "sustained", "cold_start"])),
    }
    if found["network"] == "link" and topology.num_ranks > 8:
        return found | {"topology": topology}
    ranks = draw(st.just(range(topology.num_ranks)) | st.permutations(range(topology.num_ranks)))
    topology = draw(changed(topology)) if draw(st.booleans()) else topology
    slow = draw(st.dictionaries(st.sampled_from(ranks), st.sampled_from([1.1, 2.0]), max_size=1))
    return found | {"topology": slow_down(topology, slow), "placement": list(ranks)}
