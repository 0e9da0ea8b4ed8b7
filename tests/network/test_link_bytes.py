"""What links carry is what is sent: by hand, and without what a protocol's rate takes of their time."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.topology.topology import break_links, load_topology
from scaleout.network.flow import demand as demands
from scaleout.network.flow.collective import collective_cost
from scaleout.network.flow.demand import demand_of
from scaleout.network.flow.shared import BY_BATCH, BY_MESSAGE, SharedTraffic, Transfer
from scaleout.network.routes.links import links_of
from scaleout.network.routes.symmetry import Symmetry

GIB = 2**30


def test_a_ring_over_two_nodes_by_hand():
    """Ranks send 2 (p - 1) / p of the buffer to their neighbours, of which each card has an eighth."""
    cost = collective_cost("all_reduce", GIB, links_of(load_topology("dgx-h200-2")), range(16), "ring")
    sent = {use.link: use.size_bytes for use in cost.busiest_links}
    assert sent["0:0-switch"] == pytest.approx(2 * 15 / 16 * GIB)
    assert sent["1:0-switch"] == pytest.approx(2 * 15 / 16 * GIB / 8)


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
    st.sampled_from(["dgx-h200-2", "dgx-h200-4", "torus-4x4x8", "dgx-a100-1"]),
    st.integers(10, 30),
)
def test_a_library_changes_times_and_no_bytes(kind, name, power):
    topology = load_topology(name)
    found = [
        collective_cost(kind, 2**power, links_of(each), range(topology.num_ranks), "ring").traffic
        for each in (topology, bare(topology))
    ]
    np.testing.assert_allclose(found[0].sent_bytes, found[1].sent_bytes, rtol=1e-9)
    np.testing.assert_allclose(found[1].sent_bytes, found[1].carried_bytes, rtol=1e-9)
    assert (found[0].sent_bytes <= found[0].carried_bytes * (1 + 1e-9)).all()


def bare(topology):
    return replace(topology, library=None)


@pytest.mark.parametrize("schedule", ["baseline", "overlap"])
def test_a_step_sends_the_same_with_a_library_or_without(scaleout, tmp_path, schedule):
    """Slices, collectives that share links and messages of a pipeline: all their bytes, whatever shares what when."""
    plain = tmp_path / "bare.yaml"
    plain.write_text("like: dgx-h200-2\nlibrary: none\n")
    job = (
        "run", "llama-3-8b", "--set", "layers=4", "--set", "pipeline_parallel=2", "--set", "data_parallel=8",
        "--set", "microbatch=1", "--network", "link", "--schedule", schedule, "--ideal",
        "--algorithm", "all_gather=ring", "--algorithm", "reduce_scatter=ring", "--algorithm", "all_reduce=ring",
    )  # fmt: skip
    rows = [
        {use["role"] + str(use["dimension"]): use["total_bytes"] for use in found["results"][0]["traffic"]}
        for found in (json.loads(scaleout(*job, "--topology", each, "--json")[1]) for each in ("dgx-h200-2", plain))
    ]
    assert rows[0].keys() == rows[1].keys()
    assert max(rows[0].values()) > 0
    for role, size_bytes in rows[0].items():
        assert size_bytes == pytest.approx(rows[1][role], rel=1e-9)


@pytest.mark.parametrize("worth_s", [BY_BATCH, BY_MESSAGE])
@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
@pytest.mark.parametrize("algorithm", ["ring", "bidirectional_ring"])
@pytest.mark.parametrize("name", ["torus(4,6,ndr)", "torus(3,2,3,ndr)"])
def test_messages_between_the_same_ends_go_as_one_flow(name, algorithm, kind, worth_s, monkeypatch):
    """On a torus with a broken link the parallel rings' messages: the same moments and bytes as each for itself.

    Of two transfers at once bytes are added to links in another order.
    """
    links = links_of(break_links(load_topology(name), ["0-1"]))
    once, found = demands._sent, []

    def apart(pairs, round_):
        return demands._Sent(*pairs, np.ones(len(pairs[0]), np.int64))

    for sent in (once, apart):
        monkeypatch.setattr(demands, "_sent", sent)
        demand = demand_of(links, Symmetry(), [tuple(range(links.topology.num_ranks))], kind, algorithm)
        first = demand.rounds[0]
        assert int(first.times.sum()) == first.num_messages
        assert (len(first) < first.num_messages) == (sent is once)
        sizes = {0: 1000003.0 * np.pi, 1: 1e6 / 3}
        (one, its_bytes), (two, bytes_of_two) = (carried(links, demand, sizes, n, worth_s) for n in (1, 2))
        found.append((one, its_bytes.tolist(), two, pytest.approx(bytes_of_two, rel=1e-12), demand.num_transfers))
    assert found[0][:3] == found[1][:3]
    assert found[0][4:] == found[1][4:]
    assert bytes_of_two == found[0][3]


def carried(links, demand, sizes, number, worth_s):
    """Carry some transfers that start one after another; return when what happens, and the bytes over links."""
    traffic = SharedTraffic(links, worth_s)
    for name in range(number):
        traffic.start(name, Transfer(demand, sizes[name]), name * 1e-4)
    moments = []
    while (moment := traffic.advance())[0] < np.inf:
        moments.append(moment)
    return moments, traffic.link_bytes
