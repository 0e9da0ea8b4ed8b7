"""Random topologies and programs, small enough to simulate by the hundred and odd enough to find what breaks.

Times are multiples of a quarter of a microsecond in part, so that ties, where order is decided by rule, are common.
"""

from functools import cache

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from scaleout.cluster.topology.dimension import edges_of, graph_dimension
from scaleout.cluster.topology.fabric import Fabric, FabricLink
from scaleout.cluster.topology.faults import LinkChange, name_link
from scaleout.cluster.topology.kinds import KINDS
from scaleout.cluster.topology.topology import Dimension, Topology
from scaleout.cluster.topology.what_if import NetworkChanges, change_network
from scaleout.config import library
from scaleout.errors import ConfigError
from scaleout.network.routes.links import links_of
from scaleout.program.graph import COLLECTIVES, NONE, GraphBuilder, NodeKind
from scaleout.program.mesh import Mesh
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule.pairs import CONSUMERS, PRODUCERS
from scaleout.workloads.families import FAMILIES, load_workload

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
def faults(draw, topology):
    """A slower and a broken link by name, as `faulty` takes them, where messages still find a way."""
    found = {}
    for change, factor in (("degrade", 0.5), ("broken", 0.0)):
        number = draw(st.integers(0, len(topology.dimensions) - 1))
        edges = edges_of(topology.dimensions[number])
        if not len(edges.tails) or draw(st.booleans()):
            continue
        edge = draw(st.integers(0, len(edges.tails) - 1))
        line = topology.lines(number)[draw(st.integers(0, topology.num_ranks // topology.shape[number] - 1))]
        ends = tuple(sorted((int(edges.tails[edge]), int(edges.heads[edge]))))
        name = name_link(topology.dimensions, LinkChange(number, int(line), ends, factor))
        more = found | {change: {name: str(factor)} if factor else [name]}
        if _connects(topology, more):
            found = more
    return found


def faulty(topology, found):
    """Return a topology with faults, as studies spell them."""
    return change_network(topology, NetworkChanges.of(**found))


def changed(topology):
    """Topologies with such faults."""
    return faults(topology).map(lambda found: faulty(topology, found))


def _connects(topology, found):
    """Whether each rank still reaches each other one."""
    ranks = np.arange(topology.num_ranks)
    try:
        links_of(faulty(topology, found)).routes(np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks)))
    except ConfigError:
        return False
    return True


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
