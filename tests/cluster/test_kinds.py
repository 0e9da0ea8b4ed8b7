"""Every kind of dimension of the table: its links, and its closed forms against routes over the links.

A kind that is added to `KINDS` is tested by this file as it is.
"""

import itertools
import sys

import networkx
import numpy as np
import pytest
from guides import module_of
from strategies import dimension_of, takes

from scaleout.cluster.machine import first_ranks
from scaleout.cluster.topology.dimension import edges_of, num_nodes, ports_of, switches_of
from scaleout.cluster.topology.kinds import KINDS
from scaleout.cluster.topology.kinds.kind import DimensionKind
from scaleout.cluster.topology.peers import distances
from scaleout.cluster.topology.placement import kept_in_place, place, siblings
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import collective_cost, send_cost
from scaleout.network.alpha_beta.load import load_of
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import ALGORITHMS, schedule
from scaleout.network.flow import collective as link
from scaleout.network.routes.links import links_of
from scaleout.network.routes.routing import router
from scaleout.network.routes.symmetry import symmetry

SIZES = (1, 2, 3, 4, 6, 8, 12)
SHIPPED = ("ring", "switch", "fully_connected", "mesh", "fat_tree", "dragonfly", "graph")
N = 1e6
each_kind = pytest.mark.parametrize("kind", KINDS)


def one(kind, size):
    return Topology(f"{kind}-{size}", (dimension_of(kind, size),))


CASES = [(kind, size) for kind in KINDS for size in SIZES if takes(kind, size)]
each_size = pytest.mark.parametrize(("kind", "size"), CASES)
each_size_of_several = pytest.mark.parametrize(("kind", "size"), [case for case in CASES if case[1] > 1])


def everyone(n):
    """Both ends of the messages of every rank to every other."""
    return tuple(axis.ravel()[np.arange(n * n) % (n + 1) != 0] for axis in np.indices((n, n)))


@each_kind
def test_a_kind_is_described(kind):
    assert KINDS[kind].name == kind
    assert KINDS[kind].description
    assert KINDS[kind].part in (None, *KINDS)
    assert {2, 4, 8} <= {size for size in SIZES if takes(kind, size)}  # the sizes that all tests use
    assert kind not in SHIPPED or all(takes(kind, size) for size in SIZES)


@each_size
def test_links_join_all_ranks_both_ways_and_have_a_port_each(kind, size):
    dimension = dimension_of(kind, size)
    edges, ports = edges_of(dimension), ports_of(dimension)
    ways = list(zip(edges.tails.tolist(), edges.heads.tolist(), strict=True))
    assert sorted(ways) == sorted((head, tail) for tail, head in ways)
    assert len(set(switches_of(dimension))) == num_nodes(dimension) - size
    graph = networkx.Graph(ways)
    assert size == 1 or (set(range(size)) <= set(graph) and networkx.is_connected(graph))
    numbers = set(zip(edges.ports.tolist(), edges.coordinates.tolist(), strict=True))
    assert len(numbers) == len(ways)
    assert all(0 <= port < len(ports) and 0 <= at < size for port, at in numbers)
    if KINDS[kind].even:
        for port, at, span, bytes_per_s in zip(
            edges.ports, edges.coordinates, edges.spans, edges.bytes_per_s, strict=True
        ):
            assert (ports[port].bytes_per_s, ports[port].span) == (bytes_per_s, span)
            assert at not in ports[port].absent_at
    if size > 1:
        assert KINDS[kind].links_of_a_rank(dimension) == np.bincount(edges.tails, minlength=size)[:size].max()


@each_size_of_several
def test_routes_in_closed_form_are_those_over_the_links(kind, size):
    dimension = dimension_of(kind, size)
    found = KINDS[kind].routes(dimension, everyone(size))
    if found is None:
        return
    closed, hops = found
    routed, latency_s = router(dimension).ways(everyone(size))
    assert sorted(zip(*map(np.ndarray.tolist, closed), strict=True)) == sorted(
        zip(*map(np.ndarray.tolist, routed), strict=True)
    )
    assert latency_s == pytest.approx(dimension.latency_of(np.broadcast_to(hops, len(latency_s))), rel=1e-12)


def groups_of(topology):
    """Groups of equal strides that start at the first rank."""
    n = topology.num_ranks
    for m, s in itertools.product(range(2, n + 1), range(1, n)):
        if (m - 1) * s < n:
            yield list(range(0, (m - 1) * s + 1, s))


@each_size_of_several
def test_loads_in_closed_form_are_those_over_the_links(kind, size):
    """Every round of every algorithm, of a group and the siblings that share its links."""
    topology = one(kind, size)
    for ranks in groups_of(topology):
        placement = place(topology, ranks)
        if (
            placement.topology is not None
            or not placement.regular
            or len(siblings(topology, ranks)) * len(ranks) < size
        ):
            continue
        for algorithm, kind_of_collective in itertools.product(ALGORITHMS.values(), ("all_reduce", "all_to_all")):
            if algorithm.supports(kind_of_collective, placement) is None:
                for round_ in set(schedule(kind_of_collective, placement, algorithm=algorithm.name).rounds):
                    closed, routed = load_of(round_, placement), load_of(round_, kept_in_place(placement))
                    assert closed.latency_s == pytest.approx(routed.latency_s, rel=1e-9)
                    assert closed.busiest_s_per_byte == pytest.approx(routed.busiest_s_per_byte, rel=1e-9)


@each_size_of_several
def test_no_cost_is_below_the_bound_of_the_links(kind, size):
    topology = one(kind, size)
    for ranks in groups_of(topology):
        placement = place(topology, ranks)
        for collective in ("all_reduce", "all_gather", "all_to_all", "broadcast"):
            cost = collective_cost(collective, N, placement)
            assert cost.time_s >= lower_bound_s(collective, N, placement) * (1 - 1e-9)


@each_size_of_several
def test_turns_take_every_link_to_its_like(kind, size):
    topology = one(kind, size)
    links, ranks = links_of(topology), np.arange(size)
    found = symmetry(topology, [np.zeros(size, np.int64)])
    routes = links.routes(*everyone(size))
    load = np.bincount(routes.links, routes.shares, minlength=len(links)).reshape(-1, size)
    for port, carried in zip(links.ports, load, strict=True):
        if port.span == 1:
            assert carried[found.representatives(ranks)] == pytest.approx(carried)


@each_size_of_several
def test_messages_of_one_distance_cost_the_same(kind, size):
    topology = one(kind, size)
    sources, destinations = everyone(size)
    costs = {}
    for distance, a, b in zip(distances(topology, sources, destinations)[:, 0], sources, destinations, strict=True):
        costs.setdefault(int(distance), set()).add(send_cost(N, topology, source=int(a), destination=int(b)).time_s)
    assert all(max(times) == pytest.approx(min(times), rel=1e-12) for times in costs.values())


@each_kind
def test_the_first_ranks_of_a_line_are_a_dimension_or_refused(kind):
    if KINDS[kind].part is None:
        with pytest.raises(ConfigError, match="of which 4 are no part that is known"):
            first_ranks(one(kind, 8), 4)
    else:
        assert first_ranks(one(kind, 8), 4).dimensions == (dimension_of(KINDS[kind].part, 4),)


# ---- A kind in one file: its links, and nothing else


FILE = """
source: made up
dimensions:
  - {kind: hypercube, size: 8, bandwidth: 2 GB/s, bandwidth_source: x, latency: 1 us, latency_source: x}
"""


@pytest.fixture
def hypercube(tmp_path, monkeypatch):
    """The example of the guide: ranks that differ in one bit are linked."""
    monkeypatch.setitem(sys.modules, "hypercube", None)
    monkeypatch.setitem(
        KINDS, "hypercube", module_of("extend.md", "A kind of dimension", tmp_path, "hypercube").Hypercube()
    )
    (tmp_path / "mine.yaml").write_text(FILE)
    return load_topology(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_kind_that_knows_its_links_only_costs_what_the_same_links_do(hypercube, kind):
    """A hypercube of 8 is a product of three rings of two: halving and doubling use one bit a round on both."""
    product = Topology("2x2x2", (dimension_of("ring", 2),) * 3)
    by_closed_form, found = (
        [
            collective_cost(kind, N, place(topology, range(8)), "rabenseifner").time_s,
            link.collective_cost(kind, N, links_of(topology), range(8), "rabenseifner").time_s,
        ]
        for topology in (hypercube, product)
    )
    assert by_closed_form == pytest.approx(found, rel=1e-9)


def test_a_new_kind_passes_the_tests_of_all_kinds(hypercube):
    assert hypercube.dimensions[0].kind == "hypercube"
    for test in (
        test_links_join_all_ranks_both_ways_and_have_a_port_each,
        test_no_cost_is_below_the_bound_of_the_links,
        test_turns_take_every_link_to_its_like,
        test_messages_of_one_distance_cost_the_same,
    ):
        for size in (2, 4, 8):
            test("hypercube", size)
    assert [size for size in SIZES if takes("hypercube", size)] == [1, 2, 4, 8]


CLOSED_FORMS = ("routes", "ring_load", "everyone_load", "shift_load", "exchange_load", "carried")


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.even])
@pytest.mark.parametrize("form", CLOSED_FORMS)
def test_what_has_no_closed_form_is_routed_with_the_same_answer(kind, form, monkeypatch):
    topology, ranks = one(kind, 8), [0, 2, 4, 6]
    cases = [(collective, name) for collective in ("all_reduce", "all_to_all") for name in ALGORITHMS]
    cases = [case for case in cases if ALGORITHMS[case[1]].supports(case[0], place(topology, ranks)) is None]

    def costs(number):
        """Cost of as many seconds of bytes; other bandwidths, lest caches answer."""
        bandwidth = 2.0 ** (30 + number)
        slower = Topology("t", (dimension_of(kind, 8, bytes_per_s=bandwidth),))
        return [collective_cost(case[0], N * bandwidth, place(slower, ranks), case[1]).time_s for case in cases]

    expected = costs(0)
    stripped = type("Stripped", (type(KINDS[kind]),), {form: getattr(DimensionKind, form)})
    monkeypatch.setitem(KINDS, kind, stripped())
    assert costs(1 + CLOSED_FORMS.index(form)) == pytest.approx(expected, rel=1e-9)
