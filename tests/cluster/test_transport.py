"""Protocols of a communication library: what they cost, which is chosen, and how well NCCL on H200 is predicted."""

import dataclasses
import json
import re
import runpy
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import topologies

from scaleout.cli import main
from scaleout.cluster.topology import communication_library as transport
from scaleout.cluster.topology.communication_library import Hop, Library, Protocol, Terms, load_library
from scaleout.cluster.topology.placement import place, place_isolated
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.config.library import folder
from scaleout.errors import ConfigError
from scaleout.network import collectives
from scaleout.network.alpha_beta import cost as alpha_beta
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.flow import collective as link
from scaleout.network.routes.links import links_of

FIGURES = Path(__file__).parents[2] / "figures"
N = 1e6
MEBIBYTE = 2**20
ALPHA, BANDWIDTH = 1e-6, 100e9
SWITCH = Topology("switch-4", (Dimension("switch", 4, BANDWIDTH, ALPHA, link="cable"),))
EVERY = tuple(kind for kind in collectives.KINDS if kind != "send")


def using(*protocols, topology=SWITCH):
    return dataclasses.replace(topology, library=Library("toy", protocols))


def terms(startup_s=0.0, latency_s=0.0, efficiency=1.0, local=float("inf")):
    return Terms(startup_s, (Hop("cable", latency_s, efficiency),), local)


def test_a_protocol_is_charged_as_worked_by_hand():
    topology = using(Protocol("P", EVERY, terms(7e-6, 2e-6, 0.5, 400e9)))
    cost = collective_cost("all_gather", N, place(topology, range(4)), "ring")
    assert cost.protocol == "P"
    assert cost.latency_s == pytest.approx(7e-6 + 3 * (1e-6 + 2e-6))
    assert cost.serialization_s == pytest.approx(0.75 * N / 50e9 + 0.25 * N / 400e9)
    # What the link model has to know: all but the links' latency comes first, and the links are busy for longer.
    assert cost.before_s == pytest.approx(7e-6 + 3 * 2e-6)
    assert cost.inflation == pytest.approx(cost.serialization_s / (0.75 * N / BANDWIDTH))
    # A broadcast keeps no shard of its own.
    cost = collective_cost("broadcast", N, place(topology, range(4)), "binomial_tree")
    assert cost.serialization_s == pytest.approx(2 * N / 50e9)


LOW, HIGH = terms(1e-6, efficiency=0.25), terms(10e-6)


def chosen(topology, size, kind="all_gather", algorithm="ring"):
    cost = collective_cost(kind, size, place(topology, range(4)), algorithm)
    return cost.protocol, cost.latency_s


def test_the_faster_protocol_is_chosen():
    """LL gains 9 us at the start and loses 3 * 0.75 n / 100 GB/s: even at 400 kB."""
    topology = using(Protocol("LL", EVERY, LOW), Protocol("Simple", EVERY, HIGH))
    assert chosen(topology, 399e3)[0] == "LL"
    assert chosen(topology, 401e3)[0] == "Simple"


def test_what_the_library_expects_decides_and_what_it_takes_is_charged():
    topology = using(Protocol("LL", EVERY, LOW, modelled=HIGH), Protocol("Simple", EVERY, HIGH, modelled=LOW))
    assert chosen(topology, 399e3) == ("Simple", pytest.approx(10e-6 + 3 * ALPHA))
    assert chosen(topology, 401e3) == ("LL", pytest.approx(1e-6 + 3 * ALPHA))


def test_a_protocol_for_small_messages_is_taken_whatever_it_costs():
    """A message of an all-to-all is a shard; up to the limit the library does not weigh others."""
    small = Protocol("LL", EVERY, HIGH, largest_message_bytes=100.0)
    topology = using(small, Protocol("Simple", EVERY, LOW))
    assert chosen(topology, 400.0, "all_to_all", "direct")[0] == "LL"
    assert chosen(topology, 401.0, "all_to_all", "direct")[0] == "Simple"
    assert chosen(topology, 400.0, "broadcast", "direct")[0] == "Simple"


def test_a_protocol_for_small_messages_goes_over_the_links_that_it_names_alone():
    """NCCL has buffers for LL messages within a node; between nodes they are Simple at any size."""
    nodes = load_topology("dgx-h200-2")
    inside, across = place(nodes, range(8)), place(nodes, range(16))
    pair, far = place_isolated(nodes, (0, 1)), place_isolated(nodes, (0, 8))
    for kib, within in ((1, "p2p LL"), (512, "p2p LL"), (513, "p2p Simple")):
        found = [collective_cost("all_to_all", kib * 1024 * group.num_ranks, group) for group in (inside, across)]
        found += [collective_cost("send", kib * 1024, group) for group in (pair, far)]
        assert [cost.protocol for cost in found] == [within, "p2p Simple"] * 2
    small = dataclasses.replace(Protocol("LL", EVERY, LOW), largest_message_bytes=1e12)
    bare = dataclasses.replace(SWITCH, dimensions=(dataclasses.replace(SWITCH.dimensions[0], link="other"),))
    assert chosen(using(small, topology=bare), N)[0] == ""  # the links alone: no protocol is for any size


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(("dgx-h200-2", "dgx-h200-16", "p5-64")), st.integers(10, 24), st.booleans())
def test_larger_messages_between_nodes_never_take_less_time(name, power, is_send):
    """With LL at half the rate an all-to-all of 512 KiB a pair took as long as one of 1 MiB."""
    topology = load_topology(name)
    group = place_isolated(topology, (0, 8)) if is_send else place(topology, range(topology.num_ranks))
    kind, ranks, peers = ("send", 1, 1) if is_send else ("all_to_all", topology.num_ranks, topology.num_ranks - 8)
    once, twice = (collective_cost(kind, by * 2**power * ranks, group).time_s for by in (1, 2))
    assert twice - once > peers * 2**power / topology.dimensions[-1].bytes_per_s  # what a port sends more


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_the_protocol_of_messages_carries_gathers_and_scatters(kind):
    """NCCL makes them of grouped sends and receives; the root's own shard crosses no link."""
    topology = using(
        Protocol("P2P", ("send",), Terms(7e-6, local_bytes_per_s=1e9)), Protocol("Simple", ("all_gather",), HIGH)
    )
    cost = collective_cost(kind, N, place(topology, range(4)))
    assert (cost.protocol, cost.algorithm) == ("P2P", "direct")
    assert cost.time_s == pytest.approx(7e-6 + ALPHA + 0.75 * N / BANDWIDTH + 0.25 * N / 1e9)


def test_kinds_that_no_protocol_serves_cost_what_the_links_do():
    cost = collective_cost("all_reduce", N, place(using(Protocol("P", ("send",), HIGH)), range(4)), "ring")
    assert (cost.protocol, cost.inflation) == ("", 1.0)
    assert cost == collective_cost("all_reduce", N, place(SWITCH, range(4)), "ring")


def test_auto_takes_from_the_algorithms_of_the_library():
    library = Library("toy", (Protocol("P", EVERY, HIGH),), (("all_reduce", ("ring", "hierarchical")),))
    group = place(dataclasses.replace(SWITCH, library=library), range(4))
    assert [found.name for found in collectives.candidates("all_reduce", group)] == ["ring"]
    assert collective_cost("all_reduce", 8.0, group).algorithm == "ring"
    assert collective_cost("all_reduce", 8.0, place(SWITCH, range(4))).algorithm == "direct"
    wrong = dataclasses.replace(library, algorithms=(("all_reduce", ("rings",)),))
    with pytest.raises(ConfigError, match="names algorithm 'rings' for all_reduce; did you mean 'ring'"):
        collective_cost("all_reduce", 8.0, place(dataclasses.replace(SWITCH, library=wrong), range(4)))


@st.composite
def libraries(draw):
    """Any few protocols, with and without times that are expected."""
    seconds = st.sampled_from([0.0, 0.25e-6, 5e-6])

    def some_terms():
        hops = tuple(Hop(name, draw(seconds), draw(st.sampled_from([0.25, 0.5, 1.0]))) for name in ("", "cable"))
        return Terms(draw(seconds), hops, draw(st.sampled_from([50e9, 400e9, float("inf")])))

    protocols = []
    for number in range(draw(st.integers(1, 3))):
        expects = some_terms() if draw(st.booleans()) else None
        limit = draw(st.sampled_from([1e4, float("inf"), float("inf")]))
        protocols.append(Protocol(str(number), collectives.KINDS, some_terms(), expects, limit))
    return Library("any", tuple(protocols))


@given(topologies(), libraries(), st.floats(1.0, 1e8), st.data())
@settings(max_examples=150, deadline=None)
def test_a_library_is_never_faster_than_its_links(topology, library, size, data):
    group = place(dataclasses.replace(topology, library=library), range(topology.num_ranks))
    kind = data.draw(st.sampled_from(EVERY))
    if group.num_ranks == 1:
        return
    algorithm = data.draw(st.sampled_from([found.name for found in collectives.candidates(kind, group)]))
    cost = collective_cost(kind, size, group, algorithm)
    bare = collective_cost(kind, size, place(topology, range(topology.num_ranks)), algorithm)
    assert cost.time_s >= bare.time_s * (1 - 1e-12)
    assert cost.serialization_s >= lower_bound_s(kind, size, group) * (1 - 1e-9)
    assert cost.inflation >= 1 - 1e-12
    assert -1e-15 <= cost.before_s <= cost.latency_s * (1 + 1e-12)


@given(libraries(), st.floats(1.0, 1e8), st.data())
@settings(max_examples=60, deadline=None)
def test_both_networks_charge_a_protocol_alike(library, size, data):
    dimension = data.draw(st.sampled_from(["switch", "ring", "fully_connected"]))
    topology = Topology("any", (Dimension(dimension, 4, BANDWIDTH, ALPHA, link="cable"),), 1e-6, library=library)
    kind = data.draw(st.sampled_from(["all_reduce", "reduce_scatter", "all_gather", "all_to_all"]))
    names = [found.name for found in collectives.candidates(kind, place(topology, range(4)))]
    algorithm = data.draw(st.sampled_from([name for name in names if name != "double_binary_tree"]))
    cost = alpha_beta.collective_cost(kind, size, place(topology, range(4)), algorithm)
    assert link.collective_cost(kind, size, links_of(topology), range(4), algorithm).time_s == pytest.approx(
        cost.time_s
    )


# ---- Files

FILE = """
name: toy
source: made up
algorithms: {{all_reduce: [ring]}}
protocols:
  - name: P
    collectives: [{kind}]
    startup: {startup}
    links: {{cable: {{latency: 1 us, efficiency: {efficiency}}}}}
    source: made up
"""
GOOD = {"kind": "all_reduce", "startup": "2 us", "efficiency": "0.5"}


def test_a_library_is_read_from_its_file(tmp_path):
    path = tmp_path / "toy.yaml"
    path.write_text(FILE.format(**GOOD))
    library = load_library(path)
    assert library.protocols == (Protocol("P", ("all_reduce",), Terms(2e-6, (Hop("cable", 1e-6, 0.5),))),)
    assert library.algorithms_for("all_reduce") == ("ring",)
    assert library.algorithms_for("send") == ()
    assert library.links == ("cable",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"efficiency": "1.5"}, "protocols.0.links.cable.efficiency"),
        ({"efficiency": "0"}, "protocols.0.links.cable.efficiency"),
        ({"startup": "-1 us"}, "protocols.0.startup"),
        ({"startup": "1 parsec"}, "unknown unit 'parsec'"),
        ({"kind": "allreduce"}, "protocols.0.collectives.0"),
    ],
)
def test_what_is_wrong_with_a_library_is_said(tmp_path, change, message):
    path = tmp_path / "toy.yaml"
    path.write_text(FILE.format(**(GOOD | change)))
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        load_library(path)
    assert "toy.yaml" in str(caught.value)


TOPOLOGY = """
source: made up
library: {library}
dimensions:
  - {{kind: switch, size: 4, link: {link}, bandwidth: 1 GB/s, bandwidth_source: x, latency: 1 us, latency_source: x}}
"""


@pytest.mark.parametrize(
    ("library", "link", "message"),
    [
        ("absent.yaml", "cable", "absent.yaml' does not exist; give one beside the topology file"),
        ("toy.yaml", "cables", "dimensions.0: library 'toy' knows no link 'cables'; did you mean 'cable'?"),
        ("toy.yaml", "''", "dimensions.0: library 'toy' cannot know what link this is"),
    ],
)
def test_what_is_wrong_between_topology_and_library_is_said(tmp_path, library, link, message):
    (tmp_path / "toy.yaml").write_text(FILE.format(**GOOD))
    (tmp_path / "mine.yaml").write_text(TOPOLOGY.format(library=library, link=link))
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_topology(str(tmp_path / "mine.yaml"))


def test_a_library_may_lie_in_the_folder_above(tmp_path):
    """Rows name topologies in a folder of their own, whose files name a library from where the rows lie."""
    (tmp_path / "topo").mkdir()
    (tmp_path / "topo" / "toy.yaml").write_text(FILE.format(**GOOD))
    (tmp_path / "topo" / "mine.yaml").write_text(TOPOLOGY.format(library="topo/toy.yaml", link="cable"))
    assert load_topology(str(tmp_path / "topo" / "mine.yaml")).library is not None


def test_a_library_knows_the_kinds_of_collectives():
    assert get_args(transport.Kind) == collectives.KINDS


# ---- NCCL on H200, against what was measured


def rows(path):
    """Rows of a file of measured collectives: columns spread, rows of one as they are."""
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "provenance" in row:
            continue
        columns = {key: value for key, value in row.items() if key in ("bytes", "us", "us_min", "chosen")}
        if not isinstance(row["bytes"], list):
            yield row
            continue
        for values in zip(*columns.values(), strict=True):
            yield row | dict(zip(columns, values, strict=True))


def group(topology, row):
    return place_isolated(topology, [0, 1]) if row["collective"] == "send" else place(topology, range(row["ranks"]))


NODE = load_topology("h200-node-4")
MEASURED = [
    (row, collective_cost(row["collective"], row["bytes"], group(NODE, row)))
    for row in rows(folder("device") / "h200" / "collectives.jsonl")
    if "algorithm" not in row
]
ODD_TREE = [("broadcast", 3)]  # two trees of three ranks are no chain


def test_nccl_chooses_the_protocol_that_we_say():
    """Every choice of ring all-reduce, all-gather and reduce-scatter that its log gives, from 1 KiB to 1 GiB."""
    checked = [
        (row["chosen"][1].lower(), cost.protocol.lower())
        for row, cost in MEASURED
        if row["collective"] in ("all_reduce", "all_gather", "reduce_scatter")
    ]
    assert len(checked) > 150
    assert all(chose == say for chose, say in checked)


@pytest.mark.parametrize("key", sorted({(row["collective"], row["ranks"]) for row, _ in MEASURED}), ids=str)
def test_nccl_is_predicted_within_a_tenth(key):
    errors = [
        abs((cost.time_s - NODE.startup_s) * 1e6 / row["us"] - 1)
        for row, cost in MEASURED
        if (row["collective"], row["ranks"]) == key and row["bytes"] >= 0.99 * MEBIBYTE
    ]
    assert len(errors) >= 10
    assert np.median(errors) < (0.10 if key not in ODD_TREE else 0.20)


def test_all_reduce_of_three_ranks_which_nothing_was_fitted_to():
    errors = [
        abs((cost.time_s - NODE.startup_s) * 1e6 / row["us"] - 1)
        for row, cost in MEASURED
        if (row["collective"], row["ranks"]) == ("all_reduce", 3) and row["bytes"] >= 0.99 * MEBIBYTE
    ]
    assert max(errors) < 0.05


def test_the_figure_gives_the_fit_that_the_library_holds(tmp_path, monkeypatch, capsys):
    """The constants of the file are those that its measured rows give, to the digits that it states."""
    monkeypatch.setattr(sys, "argv", ["nccl.py", "--output", str(tmp_path), "--forced"])
    figure = runpy.run_path(str(FIGURES / "nccl.py"))
    figure["main"]()
    assert (tmp_path / "nccl.png").stat().st_size > 10_000
    assert re.search(r"from 1 MiB up: median error [0-4]\.\d% of 150 rows", capsys.readouterr().out)
    table = pd.DataFrame(figure["measured_rows"](folder("device") / "h200" / "collectives.jsonl"))
    (dimension,) = NODE.dimensions
    for protocol in NODE.library.protocols[:3]:
        found = figure["fitted"](table, protocol.name)
        (hop, _), takes = protocol.actual.hops, protocol.actual
        assert takes.startup_s * 1e6 == pytest.approx(found["startup_us"], abs=0.06)
        assert (dimension.latency_s + hop.latency_s) * 1e6 == pytest.approx(found["step_us"], abs=0.06)
        assert hop.efficiency * dimension.bytes_per_s / 1e9 == pytest.approx(found["bandwidth_GB_per_s"], rel=0.02)
        assert takes.local_bytes_per_s / 1e9 == pytest.approx(found["local_GB_per_s"], rel=0.02)


def test_the_figure_reads_rows_of_others(tmp_path, monkeypatch, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"collective": "send_recv", "ranks": 2, "bytes": 1073741824, "us": 2944.2}\n')
    monkeypatch.setattr(sys, "argv", ["nccl.py", "--output", str(tmp_path), "--startup", "--measured", str(file)])
    runpy.run_path(str(FIGURES / "nccl.py"))["main"]()
    assert "of 1 rows" in capsys.readouterr().out
    assert pd.read_csv(tmp_path / "nccl.csv")["collective"].tolist() == ["send"]


A100 = [  # ranks, bytes, us
    *((2, 109051904, 633.5), (2, 492830720, 2601.2), (3, 77594624, 568.0), (3, 904921088, 5718.7)),
    *((4, 93323264, 728.2), (4, 700448768, 4804.0), (5, 137363456, 1069.4), (5, 845152256, 6050.4)),
    *((6, 74448896, 639.4), (6, 837812224, 6190.5), (7, 93323264, 805.1), (7, 989855744, 7447.9)),
    *((8, 155189248, 1345.1), (8, 873463808, 6724.1)),
]


@pytest.mark.parametrize(("ranks", "size_bytes", "us"), A100)
def test_all_reduce_on_a100_of_all_sizes_of_groups(ranks, size_bytes, us):
    """nccl-tests in one node, from vTrain (trace/a100): four numbers for groups of 2 to 8."""
    cost = collective_cost("all_reduce", size_bytes, place(load_topology("dgx-a100-1"), range(ranks)))
    assert cost.time_s * 1e6 == pytest.approx(us, rel=0.06)


# ---- Protocols of an algorithm of their own

OWN = Protocol("own", EVERY, HIGH, algorithms=("ring",))


def test_a_protocol_of_an_algorithm_serves_it_alone():
    topology = using(OWN, Protocol("P", EVERY, LOW))
    found = [collective_cost("all_gather", N, place(topology, range(4)), name).protocol for name in ("ring", "direct")]
    assert found == ["own", "P"]
    small = Protocol("LL", EVERY, LOW, largest_message_bytes=1e12)  # taken for the others whatever it costs
    assert [chosen(using(OWN, small), N, algorithm=name)[0] for name in ("ring", "direct")] == ["own", "LL"]


def test_an_unknown_algorithm_of_a_protocol_is_refused():
    topology = using(dataclasses.replace(OWN, algorithms=("rings",)))
    with pytest.raises(ConfigError, match="names algorithm 'rings' for all_gather; did you mean 'ring'"):
        collective_cost("all_gather", N, place(topology, range(4)))


def test_the_table_says_what_the_library_takes_even_if_it_is_wrong(tmp_path, monkeypatch, capsys):
    """The library expects nothing of its ring's start-up, which takes a second."""
    wrong = "  - {name: Q, collectives: [all_reduce], algorithms: [ring], startup: 1 s, expected: {startup: 0 s},\n" \
            "     links: {cable: {latency: 0 s}}, source: made up}\n"  # fmt: skip
    (tmp_path / "toy.yaml").write_text(FILE.format(**GOOD).replace("[ring]", "[ring, direct]") + wrong)
    (tmp_path / "mine.yaml").write_text(TOPOLOGY.format(library="toy.yaml", link="cable"))
    arguments = ["scaleout", "collective", "all_reduce", "--topology", str(tmp_path / "mine.yaml"), "--bytes", "1kB"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--decide"])
    main()
    out = capsys.readouterr().out
    assert "runner-up is faster" in out
    assert out.index("ring") < out.index("direct")
    monkeypatch.setattr(sys, "argv", [*arguments, "--json"])
    main()
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [(row["algorithm"], row["auto"]) for row in rows] == [("direct", False), ("ring", True)]


def test_stragglers_by_hand():
    """Of four ends with exponent 1/2 the slowest is twice as slow, in latency and bandwidth."""
    assert Terms(hops=(Hop("efa", 3e-6, 0.5, 0.5),)).over([("efa", 4), ("cable", 9)]) == ((6e-6, 0.0), (0.25, 1.0))


@given(straggling=st.floats(0, 1), efficiency=st.floats(0.1, 1), kind=st.sampled_from(EVERY))
def test_more_stragglers_are_never_faster(straggling, efficiency, kind):
    def cost_s(exponent):
        protocol = Protocol("P", EVERY, Terms(hops=(Hop("cable", 1e-6, efficiency, exponent),)))
        return collective_cost(kind, N, place(using(protocol), range(4))).time_s

    assert cost_s(straggling) >= cost_s(0.0) * (1 - 1e-12)
    assert cost_s(1.0) >= cost_s(straggling) * (1 - 1e-12)
