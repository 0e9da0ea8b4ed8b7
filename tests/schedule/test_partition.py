"""The partition space: what every partition conserves, and who ends up with which shards."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import jobs, pipelines

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import Dimension, Topology, degrade_links, load_topology
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, GraphBuilder, NodeKind
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.schedule.centauri.partition.group import (
    SUBSTITUTES,
    WAYS,
    Levels,
    levels_of,
    partition_groups,
    substitute,
)
from scaleout.simulation.run import simulate

DEVICE = load_device("a100-80g")
CLUSTER = load_topology("a100-cluster-a-2")
random_jobs = st.one_of(jobs(max_roles=2, streams=2), pipelines())
schedules = st.sampled_from(["baseline", "overlap"])


def columns_of(program):
    return [
        (field.name, getattr(graph, field.name).tobytes() if isinstance(value, np.ndarray) else value)
        for graph in program.graphs
        for field in dataclasses.fields(graph)
        for value in [getattr(graph, field.name)]
    ]


def received_bytes(program, rank):
    """Bytes that a rank must receive in each phase of its collectives, whatever the groups: `(p - 1) / p n` each.

    Of reductions, the mirror image, bytes that it must send: a root of a reduce sends none, as that of a broadcast
    receives none.
    """
    graph = program.graphs[program.role_of_rank[rank]]
    totals = {}
    for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
        kind = COLLECTIVES[graph.collective[node]]
        group = program.groups[graph.group[node]].of(rank)
        p = len(group)
        if kind in ("reduce", "broadcast"):
            part = "reduce_scatter" if kind == "reduce" else "all_gather"
            totals[part] = totals.get(part, 0) + (rank != group[0]) * int(graph.bytes[node])
            continue
        for part in ("reduce_scatter", "all_gather") if kind == "all_reduce" else (kind,):
            totals[part] = totals.get(part, 0) + (p - 1) / p * int(graph.bytes[node])
    return totals


def simulated_s(program, topology):
    return simulate(apply_schedule(program, "overlap"), topology).makespan_s


# ---- Laws of all partitions


def check_conserved(program, found, *, rounding_bytes=0):
    assert found.total_flops == program.total_flops
    assert found.num_ranks == program.num_ranks
    for rank in range(program.num_ranks):
        old, new = received_bytes(program, rank), received_bytes(found, rank)
        assert {kind for kind in old if old[kind] > 0} == {kind for kind in new if new[kind] > 0}
        sent = [totals.pop("all_to_all", 0) for totals in (old, new)]
        assert sent[1] >= sent[0] - 1e-6  # by levels, a whole buffer on each
        for kind, size_bytes in old.items():
            assert new.get(kind, 0) == pytest.approx(size_bytes, rel=1e-12, abs=rounding_bytes + 1e-6)


@given(random_jobs, schedules)
@settings(max_examples=60)
def test_substitution_conserves_work_and_leaves_its_input(job, schedule):
    program, topology = job
    program = apply_schedule(program, schedule)
    before = columns_of(program)
    found = substitute(program)
    assert columns_of(program) == before
    assert columns_of(substitute(program)) == columns_of(found)
    check_conserved(program, found)
    kinds = {COLLECTIVES[kind] for graph in found.graphs for kind in graph.collective if kind >= 0}
    assert "all_reduce" not in kinds
    assert simulate(found, topology).makespan_s >= 0  # it runs to its end


@given(random_jobs, schedules, st.sampled_from(WAYS))
@settings(max_examples=100)
def test_every_way_to_substitute_runs_and_those_that_scale_conserve_bytes(job, schedule, way):
    """Table 2 marks what scales: there a rank must receive (of reductions, send) no more than before."""
    program, topology = job
    program = apply_schedule(program, schedule)
    before = columns_of(program)
    found = substitute(program, way=way)
    assert columns_of(program) == before
    assert columns_of(substitute(program, way=way)) == columns_of(found)
    assert found.total_flops == program.total_flops
    for rank in range(program.num_ranks if way != "rooted" else 0):
        old, new = received_bytes(program, rank), received_bytes(found, rank)
        shards = (
            2 * max(len(group) for family in program.groups for group in family.members) * sum(map(len, program.graphs))
        )
        assert all(new.get(kind, 0) == pytest.approx(size, abs=shards) for kind, size in old.items())
    alike = [len({len(group) for group in family.members}) == 1 for family in program.groups]
    for graph in found.graphs:
        for node in np.flatnonzero((graph.kind == NodeKind.COLLECTIVE) & (graph.slices == 1)).tolist():
            of = graph.group[node]
            left = (
                COLLECTIVES[graph.collective[node]] in SUBSTITUTES
                and way in SUBSTITUTES[COLLECTIVES[graph.collective[node]]]
            )
            assert not left or (way == "distinct-roots" and not alike[of])
    assert simulate(found, topology).makespan_s >= 0
    assert simulate(apply_schedule(found, "overlap"), topology).makespan_s >= 0


@given(random_jobs, schedules)
@settings(max_examples=100)
def test_group_partition_conserves_work_and_leaves_its_input(job, schedule):
    program, topology = job
    program = apply_schedule(program, schedule)
    before = columns_of(program)
    machine = Machine(DEVICE, topology)
    found = partition_groups(program, machine)
    assert columns_of(program) == before
    assert columns_of(partition_groups(program, machine)) == columns_of(found)
    levels = 3 * sum(len(graph) for graph in program.graphs)
    check_conserved(program, found, rounding_bytes=levels)
    assert simulate(apply_schedule(found, "overlap"), topology).makespan_s >= 0
    assert simulate(found, topology).makespan_s >= 0


# ---- Reachability, by brute force


def carried_out(stages, held, kind):
    """Shards that each rank holds after collectives over groups, one after another; see `_after`."""
    for family in stages:
        held = {rank: shards for group in family.members for rank, shards in _after(kind, group, held).items()}
    return held


def _after(kind, group, held):
    """Shards that the members of a group hold after a collective; the root is the first.

    `held` maps a rank to shards, and each to whose values it sums. Reduced are partial sums of the same shards, from
    whoever took part so far. Scattered: each keeps its part. Gathered: all that any had. Who is not served keeps none.
    """
    root, share = group[0], {}
    if kind in ("all_reduce", "reduce_scatter", "reduce"):
        assert all(held[rank].keys() == held[root].keys() for rank in group)  # only like buffers can be added up
        found = {shard: set().union(*(held[rank][shard] for rank in group)) for shard in held[root]}
    elif kind in ("all_gather", "gather"):
        found = {shard: of for rank in group for shard, of in held[rank].items()}
    else:
        found = held[root]
    if kind in ("reduce_scatter", "scatter"):
        shards = sorted(found)
        share = {
            rank: shards[i * len(shards) // len(group) :][: len(shards) // len(group)] for i, rank in enumerate(group)
        }
    served = (root,) if kind in ("reduce", "gather") else group
    return {rank: {shard: found[shard] for shard in share.get(rank, found)} if rank in served else {} for rank in group}


def run_through(program, held):
    """Shards of a byte each that ranks hold after the collectives of a program of one role, in its order.

    Those of one kind are of consecutive parts of the buffer, and touch only them.
    """
    (graph,) = program.graphs
    begins = {}
    for node in np.flatnonzero(graph.kind == NodeKind.COLLECTIVE).tolist():
        kind, size_bytes = COLLECTIVES[graph.collective[node]], int(graph.bytes[node])
        part = range(begins.get(kind, 0), begins.get(kind, 0) + size_bytes)
        begins[kind] = part.stop
        within = {rank: {shard: of for shard, of in shards.items() if shard in part} for rank, shards in held.items()}
        after = carried_out([program.groups[graph.group[node]]], within, kind)
        outside = {
            rank: {shard: of for shard, of in shards.items() if shard not in part} for rank, shards in held.items()
        }
        held = {rank: outside[rank] | after[rank] for rank in held}
    return held


def at_first(program):
    """Shards that ranks hold before a collective: their own of an all-gather, else all, each of their own values."""
    (graph,) = program.graphs
    size_bytes, held = int(graph.bytes[0]), {}
    for group in program.groups[graph.group[0]].members:
        for place, rank in enumerate(group):
            share = size_bytes // len(group)
            own = range(place * share, (place + 1) * share)
            gathers = COLLECTIVES[graph.collective[0]] == "all_gather"
            held[rank] = {shard: {rank} for shard in (own if gathers else range(size_bytes))}
    return held


@pytest.mark.parametrize(("kind", "way"), [(kind, way) for kind, ways in SUBSTITUTES.items() for way in ways])
@given(data=st.data())
@settings(max_examples=20)
def test_every_substitute_gives_each_rank_what_the_original_gave_it(kind, way, data):
    size, count, share = (data.draw(st.integers(1, most)) for most in (6, 3, 3))
    ranks = data.draw(st.permutations(range(size * count)))
    program = collective_program(kind, size * share, ranks=size * count)
    groups = tuple(tuple(ranks[i : i + size]) for i in range(0, len(ranks), size))
    program = dataclasses.replace(program, groups=(GroupFamily("any", groups),))
    found = substitute(program, way=way)
    kinds = {COLLECTIVES[each] for each in found.graphs[0].collective.tolist() if each >= 0}
    assert kinds == set(SUBSTITUTES[kind][way])
    assert run_through(found, at_first(program)) == run_through(program, at_first(program))


def test_the_oracle_sees_wrong_roots():
    """Reduces of distinct roots over groups that all begin with one rank leave all shards on it."""
    program = collective_program("reduce_scatter", 8, ranks=4)
    found = substitute(program, way="distinct-roots")
    wrong = dataclasses.replace(found, groups=(found.groups[0],) * len(found.groups))
    assert run_through(found, at_first(program)) == run_through(program, at_first(program))
    assert run_through(wrong, at_first(program)) != run_through(program, at_first(program))


@st.composite
def grids(draw):
    """A product of dimensions of two speeds, and groups that are windows of it, their ranks in any order."""
    shape = draw(st.sampled_from([(2, 2), (4, 2), (2, 3), (2, 2, 2), (3, 2, 2), (8, 2)]))
    speeds = draw(st.lists(st.sampled_from([25e9, 100e9]), min_size=len(shape), max_size=len(shape)))
    topology = Topology(
        "grid", tuple(Dimension("switch", n, speed, 1e-6) for n, speed in zip(shape, speeds, strict=True))
    )
    within = [draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0])) for n in shape]
    at = topology.coordinates(range(topology.num_ranks)) // np.array(within)
    blocks = {}
    for rank, where in enumerate(map(tuple, at.tolist())):
        blocks.setdefault(where, []).append(rank)
    return topology, GroupFamily("g", tuple(tuple(draw(st.permutations(block))) for block in blocks.values()))


@given(grids())
@settings(max_examples=100)
def test_levels_reach_whom_the_whole_group_reached(case):
    topology, family = case
    found = levels_of(family, topology)
    if isinstance(found, str):
        return
    for each in found.families:  # balanced: one bandwidth in each sub-group
        for group in each.members:
            extends = np.ptp(topology.coordinates(group), axis=0) > 0
            assert len({topology.dimensions[n].bytes_per_s for n in np.flatnonzero(extends)}) == 1
    own = {rank: {rank: {rank}} for group in family.members for rank in group}
    gathered = carried_out(found.families[::-1], own, "all_gather")
    assert gathered == carried_out([family], own, "all_gather")
    buffers = {r: {shard: {r} for shard in range(len(group))} for group in family.members for r in group}
    scattered = carried_out(found.families, buffers, "reduce_scatter")
    for group in family.members:  # every shard on one rank, summed over all ranks of the group
        kept = [(shard, frozenset(of)) for rank in group for shard, of in scattered[rank].items()]
        assert sorted(shard for shard, _ in kept) == list(range(len(group)))
        assert {of for _, of in kept} == {frozenset(group)}


@given(grids())
@settings(max_examples=100)
def test_an_all_to_all_by_levels_brings_every_part_to_whom_it_is_for(case):
    """On each level a rank hands every part to the member that lies as its receiver does along that level."""
    topology, family = case
    found = levels_of(family, topology)
    if isinstance(found, str):
        return
    parts = {(rank, other): rank for group in family.members for rank in group for other in group}
    for level in found.families:
        where = {rank: np.array(topology.coordinates([rank])[0]) for group in family.members for rank in group}
        held = dict.fromkeys(where, 0)
        for (sender, receiver), holder in parts.items():
            (members,) = [group for group in level.members if holder in group]
            along = np.ptp(np.array([where[rank] for rank in members]), axis=0) > 0
            (nearer,) = [rank for rank in members if (where[rank][along] == where[receiver][along]).all()]
            parts[sender, receiver] = nearer
            held[nearer] += 1
        sizes = {rank: len(group) for group in family.members for rank in group}
        assert held == sizes  # a whole buffer after each level
    assert all(holder == receiver for (_, receiver), holder in parts.items())


def test_the_oracle_sees_levels_in_the_wrong_order():
    """Gathering within nodes twice never crosses them."""
    family = GroupFamily("world", (tuple(range(16)),))
    found = levels_of(family, CLUSTER)
    own = {rank: {rank: {rank}} for rank in range(16)}
    assert carried_out([found.families[0]] * 2, own, "all_gather") != carried_out([family], own, "all_gather")


# ---- By hand


def collective_program(kind, size_bytes, ranks=16):
    graph = GraphBuilder()
    graph.collective(kind, size_bytes, group=0)
    groups = (GroupFamily("world", (tuple(range(ranks)),)),)
    return Program("one", (graph.build(),), np.zeros(ranks, np.int64), groups)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_two_nodes_of_cluster_a_halve_what_crosses_the_port(kind):
    """1.6 GB over 2 x 8: a flat ring sends 15/16 of it over each node's 25 GB/s, 60 ms; the levels n / 8 between nodes,
    of which half leaves each of 8 GPUs at 2 GB/s through the host, 50 ms, and 7/8 n at 300 GB/s within, 4.667 ms.
    """
    rings = dict.fromkeys(("all_gather", "reduce_scatter"), "ring")
    program = apply_schedule(collective_program(kind, 1_600_000_000), "overlap")
    flat = simulate(program, CLUSTER, algorithms=rings)
    assert flat.makespan_s == pytest.approx(60e-3, rel=2e-3)
    parted = partition_groups(program, Machine(DEVICE, CLUSTER))
    assert simulate(parted, CLUSTER, algorithms=rings).makespan_s == pytest.approx(50e-3 + 4.667e-3, rel=2e-3)
    names = ["inter", "intra"] if kind == "all_gather" else ["intra", "inter"]
    assert [name.rsplit("_", 1)[1] for name in parted.graphs[0].names] == names
    assert [int(n) for n in parted.graphs[0].bytes] == [2 * 10**8, 16 * 10**8][:: 1 if kind == "all_gather" else -1]
    assert [family.name for family in parted.groups] == ["world", "world_intra", "world_inter"]
    assert parted.groups[2].members[3] == (3, 11)


def test_an_all_to_all_of_two_nodes_goes_within_them_first():
    found = partition_groups(collective_program("all_to_all", 1600), Machine(DEVICE, CLUSTER)).graphs[0]
    assert [name.rsplit("_", 1)[1] for name in found.names] == ["intra", "sorted", "inter"]
    assert found.bytes.tolist() == [1600, 3200, 1600]
    assert found.duration_s[1] > 0


def test_an_all_reduce_becomes_two_collectives_of_its_bytes():
    found = substitute(collective_program("all_reduce", 1000)).graphs[0]
    assert found.names == ("all_reduce_reduce_scatter", "all_reduce_all_gather")
    assert found.bytes.tolist() == [1000, 1000]
    assert found.dependencies_of(1).tolist() == [0]


def test_distinct_roots_are_a_chain_for_each_member():
    found = substitute(collective_program("all_reduce", 1001, ranks=4), way="distinct-roots")
    graph = found.graphs[0]
    assert [name.removeprefix("all_reduce_") for name in graph.names[:4]] == [
        "reduce_root_0", "broadcast_root_0", "reduce_root_1", "broadcast_root_1",
    ]  # fmt: skip
    assert graph.names[-1] == "all_reduce_done"
    assert graph.bytes.tolist() == [250, 250, 250, 250, 250, 250, 251, 251, 0]
    assert [graph.dependencies_of(node).tolist() for node in range(9)] == [
        [],
        [0],
        [],
        [2],
        [],
        [4],
        [],
        [6],
        [1, 3, 5, 7],
    ]
    assert [found.groups[group].members for group in graph.group[:8:2]] == [
        ((0, 1, 2, 3),), ((1, 2, 3, 0),), ((2, 3, 0, 1),), ((3, 0, 1, 2),),
    ]  # fmt: skip


@pytest.mark.parametrize("network", ["alpha_beta", "link"])
@pytest.mark.parametrize("way", WAYS)
def test_substitutes_fold_as_they_are_unfolded(way, network):
    topology = Topology("grid", (Dimension("mesh", 4, 1e9, 1e-6), Dimension("switch", 3, 2e9, 1e-6)))
    found = apply_schedule(collective_program("all_reduce", 10**6, ranks=12), f"overlap+substituted:{way}")
    folded, unfolded = (simulate(found, topology, network=network, unfold=each).makespan_s for each in (False, True))
    assert folded == pytest.approx(unfolded, rel=1e-12)


def test_groups_of_different_sizes_have_no_common_roots():
    program = collective_program("all_reduce", 1000, ranks=3)
    program = dataclasses.replace(program, groups=(GroupFamily("any", ((0, 1), (2,))),))
    assert columns_of(substitute(program, way="distinct-roots")) == columns_of(program)


def test_a_way_is_named_in_the_schedule():
    program = collective_program("all_gather", 1000, ranks=4)
    found = apply_schedule(program, "overlap+substituted:rooted").graphs[0]
    assert [COLLECTIVES[kind] for kind in found.collective.tolist()] == ["gather", "broadcast"]
    assert columns_of(apply_schedule(program, "substituted")) == columns_of(apply_schedule(program, "baseline"))
    with pytest.raises(ConfigError, match="substituted:root: unknown way 'root'; did you mean 'rooted'"):
        apply_schedule(program, "substituted:root")


WORLD = GroupFamily("world", (tuple(range(16)),))


@pytest.mark.parametrize(
    ("topology", "family", "reason"),
    [
        (load_topology("dgx-h200-1"), GroupFamily("w", (tuple(range(8)),)), "one bandwidth"),
        (load_topology("dragonfly-1056"), GroupFamily("w", (tuple(range(1056)),)), "unequal bandwidths"),
        (CLUSTER, GroupFamily("w", ((0, 1, 2, 8, 9, 10, 11),)), "no grid"),
        (CLUSTER, GroupFamily("w", ((0, 1, 8, 9), (2, 3, 4, 5))), "lie in different ways"),
        (CLUSTER, GroupFamily("w", ((0, 1), (2,))), "different sizes"),
        (CLUSTER, GroupFamily("w", ((0,), (1,))), "one rank"),
        (degrade_links(load_topology("torus-4x4x8"), {"0:0-1@0": 0.5}), GroupFamily("w", (tuple(range(128)),)),
         "slower than their like"),
    ],
)  # fmt: skip
def test_unbalanced_groups_are_excluded_with_the_reason(topology, family, reason):
    found = levels_of(family, topology)
    assert isinstance(found, str)
    assert reason in found


def test_cluster_a_has_two_levels():
    found = levels_of(WORLD, CLUSTER)
    assert isinstance(found, Levels)
    assert found.sizes == (8, 2)
