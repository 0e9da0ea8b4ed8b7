"""Folding survives asymmetry: what a fault, a straggler or a placement does not reach stays folded, and is the same.

Jobs are replicas of a pipeline of tensor-parallel stages, whose messages name relative peers as those of the generated
workloads do. Classes of ranks are counted by hand; times are those of every rank simulated on its own.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import changed, seconds, sizes, topologies

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.communication_library import ResourceUse
from scaleout.cluster.topology.topology import Dimension, Topology, break_links, degrade_links, slow_down
from scaleout.errors import SimulationError
from scaleout.program.graph import COLLECTIVES, GraphBuilder, NodeKind
from scaleout.program.mesh import Mesh
from scaleout.program.operations import TimeSource
from scaleout.program.program import Program
from scaleout.simulation.contention import Contention
from scaleout.simulation.options import NETWORKS
from scaleout.simulation.run import simulate
from scaleout.simulation.what_if import map_ranks, rank_mapping

USE = dict(zip(ResourceUse.model_fields, (66, 66, 1.2e12, 1e9, 1.5, 1.0)))  # noqa: B905 - the rest by default
HALF = Contention(load_device("h200"), ResourceUse.model_construct(**USE))

NODES = Topology("nodes", (Dimension("switch", 4, 400e9, 1e-6), Dimension("switch", 16, 50e9, 3e-6)))
TORUS = Topology("torus", (Dimension("ring", 4, 50e9, 1e-6), Dimension("ring", 16, 50e9, 1e-6)))


def replicas(mesh, *, sends=1_000_000, reduces=(1_000_000, 5_000_000), microbatches=2, lasts_s=1e-5):
    """A step of every stage: receive from the stage before, compute, reduce within the stage, send on; then reduce."""
    families = tuple(mesh.groups(axis) for axis in ("tensor", "data", "pipeline"))
    stages, graphs = mesh.degree("pipeline"), []
    for stage in range(stages):
        graph = GraphBuilder()
        last = []
        for tag in range(microbatches):
            ends = {"tag": tag, "bytes": sends, "group": 2}
            if stage > 0:
                last = [graph.add((), name="receive", kind=NodeKind.RECV, peer=-1, **ends), *last]
            last = [graph.add(last, name="stage", duration_s=lasts_s, time_source=TimeSource.GIVEN)]
            last = [graph.collective("all_reduce", reduces[0], group=0, after=last)]
            if stage < stages - 1:
                graph.add(last, name="send", kind=NodeKind.SEND, peer=1, **ends)
        graph.add(
            last, name="gradients", kind=NodeKind.COLLECTIVE, collective=COLLECTIVES.index("all_reduce"),
            bytes=reduces[1], group=1, stream=1,
        )  # fmt: skip
        graphs.append(graph.build())
    rank = np.arange(mesh.num_ranks)
    stage_of_rank = np.zeros_like(rank)
    for group in mesh.groups("pipeline").members:
        stage_of_rank[list(group)] = np.arange(stages)
    return Program("replicas", tuple(graphs), stage_of_rank, families)


@st.composite
def reached(draw):
    """Replicas on any topology, with changed links, slow ranks and another placement."""
    topology = draw(topologies(((4,), (8,), (4, 2), (2, 4), (2, 2, 2), (3, 4), (4, 4), (16,))))
    topology = draw(changed(topology)) if draw(st.booleans()) else topology
    ranks = st.integers(0, topology.num_ranks - 1)
    topology = slow_down(topology, draw(st.dictionaries(ranks, st.sampled_from([1.5, 2.0]), max_size=1)))
    left, degrees = topology.num_ranks, {}
    for axis in ("tensor", "pipeline"):
        degrees[axis] = draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        left //= degrees[axis]
    program = replicas(
        Mesh(**degrees, data=left), sends=draw(sizes), reduces=(draw(sizes), draw(sizes)),
        microbatches=draw(st.integers(1, 2)), lasts_s=draw(seconds),
    )  # fmt: skip
    placement = draw(st.sampled_from(["linear", "linear", "transposed", "random:1", "swapped"]))
    if placement == "swapped":
        mapping = np.arange(topology.num_ranks)
        pair = [draw(ranks), draw(ranks)]
        mapping[pair] = mapping[pair[::-1]]
    else:
        mapping = rank_mapping(placement, topology)
    return map_ranks(program, mapping), topology


def times(result):
    """Times of every node of every rank, and the algorithms."""
    by_rank = {rank: line for line in result.timelines for rank in line.ranks}
    lines = [by_rank[rank] for rank in range(result.program.num_ranks)]
    columns = np.concatenate([np.stack((line.start_s, line.end_s, line.occupancy_s)).ravel() for line in lines])
    return columns, [line.algorithm for line in lines]


@pytest.mark.parametrize("contention", ["none", "half"])
@pytest.mark.parametrize("network", NETWORKS)
@given(reached())
@settings(max_examples=120)
def test_folded_and_unfolded_are_equal(network, contention, job):
    """To the last bit; on links to rounding, as a transfer alone on its links ends at its start plus what it takes.

    Groups that are one transfer when folded may be two that meet on a link when they are not.
    """
    options = {"network": network, "contention": HALF if contention == "half" else None}
    try:
        folded = simulate(*job, **options)
    except SimulationError:  # ranks wait for each other for ever
        with pytest.raises(SimulationError):
            simulate(*job, **options, unfold=True)
        return
    unfolded = simulate(*job, **options, unfold=True)
    assert len(folded.timelines) <= len(unfolded.timelines)
    (found, chosen), (expected, expected_of) = times(folded), times(unfolded)
    assert chosen == expected_of
    if network == "alpha_beta":
        assert found.tolist() == expected.tolist()
    else:
        assert found == pytest.approx(expected, rel=1e-12, abs=0)
        tables = [result.link_traffic.columns() for result in (folded, unfolded)]
        for column in ("kind", "role", "rank", "to_rank"):
            assert [table[column].tolist() for table in tables] == [tables[0][column].tolist()] * 2
        assert tables[0]["bytes"] == pytest.approx(tables[1]["bytes"], rel=1e-12)  # summed in another order


def classes(mesh, topology, mapping=None):
    """Timelines of a long job under both networks."""
    program = replicas(mesh, microbatches=20)
    program = program if mapping is None else map_ranks(program, mapping)
    found = []
    for network in NETWORKS:
        lines = simulate(program, topology, network=network).timelines
        assert sorted(rank for line in lines for rank in line.ranks) == list(range(64))
        found.append(len(lines))
    return found


@pytest.mark.parametrize(("stages", "whole"), [(1, 1), (4, 4)])
def test_what_is_not_reached_on_switches_is_folded_as_far_as_it_can_be(stages, whole):
    """Four tensor-parallel ranks a node, stages of as many nodes as there are replicas.

    Of the ranks of a stage the slow one, its node, the other ranks with its tensor-parallel number, and all others are
    alike: four classes, and as many in each other stage, which waits for this one. So for a slow port into the network
    where stages send over it; where only gradients do, the group that is over it and all others. A slow port within
    the node makes its node late, in all stages.
    """
    mesh = Mesh(tensor=4, pipeline=stages, data=16 // stages)
    assert classes(mesh, NODES) == [whole, whole]
    assert classes(mesh, slow_down(NODES, {5: 1.5})) == [4 * stages] * 2
    assert classes(mesh, degrade_links(NODES, {"1:5-switch": 0.5})) == [4 * stages if stages > 1 else 2] * 2
    assert classes(mesh, degrade_links(NODES, {"0:5-switch": 0.5})) == [2 * stages] * 2


def test_what_is_not_reached_on_a_torus_is_folded_under_links_too():
    """Rings of 4 tensor-parallel ranks, one of which has a slow or no link, and rings of 16 for gradients."""
    mesh = Mesh(tensor=4, data=16)
    for topology in (degrade_links(TORUS, {"0:5-6": 0.5}), break_links(TORUS, ["0:5-6"])):
        assert classes(mesh, topology) == [2, 2]  # the row of the link, and all others
    for topology in (degrade_links(TORUS, {"1:5-9": 0.5}), break_links(TORUS, ["1:5-9"])):
        assert classes(mesh, topology) == [2, 2]  # its column, and all others
    assert classes(mesh, slow_down(TORUS, {5: 1.5})) == [4, 4]


def test_two_ranks_in_each_others_place_leave_the_others_folded():
    """Two nodes and two groups for gradients have a stranger each, whose messages cross the network."""
    mapping = np.arange(64)
    mapping[[5, 40]] = [40, 5]
    alone, on_links = classes(Mesh(tensor=4, data=16), NODES, mapping)
    assert alone == 9
    assert on_links == 12
