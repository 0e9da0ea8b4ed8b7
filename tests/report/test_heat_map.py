"""Traffic of all links: against the links one by one, as a table, and as a picture that can be read."""

import json
import sys
import tempfile
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from matplotlib import pyplot as plt
from strategies import topologies

from scaleout.analysis.traffic import DimensionTraffic
from scaleout.api.networks import load_topology as load
from scaleout.cli import main
from scaleout.cluster.topology.topology import Dimension, Topology, break_links, degrade_links, load_topology
from scaleout.cluster.topology.what_if import NetworkChanges, change_network
from scaleout.network.flow.collective import collective_cost, collective_costs
from scaleout.network.routes.links import links_of
from scaleout.report import files as report
from scaleout.report.plots import links as heat_map

N = 128e6
TOPOLOGIES = [
    Topology("plane", (Dimension("ring", 4, 1e9, 1e-6), Dimension("mesh", 3, 1e9, 1e-6))),
    Topology("cube", tuple(Dimension("ring", size, 1e9, 1e-6) for size in (2, 3, 4))),
    Topology("ring", (Dimension("ring", 5, 1e9, 1e-6),)),
    Topology("pairs", (Dimension("fully_connected", 4, 1e9, 1e-6), Dimension("switch", 2, 1e9, 1e-6))),
    Topology("tree", (Dimension("fat_tree", 16, 1e9, 1e-6, (4, 4), (2.0,)),)),
    Topology("alone", (Dimension("ring", 1, 1e9, 1e-6), Dimension("ring", 3, 1e9, 1e-6))),
]
each_topology = pytest.mark.parametrize("topology", TOPOLOGIES, ids=lambda topology: topology.name)


def traffic_of(topology, kind="all_to_all", ranks=None, **options):
    ranks = range(topology.num_ranks) if ranks is None else ranks
    return collective_cost(kind, N, links_of(topology, **options), ranks, "direct").traffic


@each_topology
def test_the_table_holds_every_link_once_and_all_bytes(topology):
    """Folded and message by message: a table of a group with siblings is that of all groups."""
    traffic = traffic_of(topology, injection_bytes_per_s=1e12)
    table = pd.DataFrame(traffic.columns())
    assert not table.duplicated(["dimension", "role", "rank", "to_rank", "ranks_below"]).any()
    assert (table["utilisation"] <= 1 + 1e-9).all()
    assert table["utilisation"].max() == pytest.approx(traffic.busiest[0].utilisation)
    injected = table[table["kind"] == "injection"]
    assert len(injected) == topology.num_ranks
    p = topology.num_ranks
    assert injected["bytes"].to_numpy() == pytest.approx(N * (p - 1) / p)
    between = table[table["to_rank"] >= 0]
    apart = topology.coordinates(between["rank"].to_numpy()) != topology.coordinates(between["to_rank"].to_numpy())
    assert (apart.sum(axis=1) == 1).all()
    rows = pd.DataFrame(traffic.by_port())
    assert rows["total_bytes"].sum() == pytest.approx(table["bytes"].sum())
    assert rows["links"].sum() == len(table)


def test_a_degraded_link_has_its_own_bandwidth():
    ring = degrade_links(Topology("ring", (Dimension("ring", 4, 1e9, 0.0),)), {"0-1": 0.25})
    table = pd.DataFrame(traffic_of(ring).columns())
    slow = table[table["bytes_per_s"] == 0.25e9]
    assert sorted(zip(slow["rank"], slow["to_rank"], strict=True)) == [(0, 1), (1, 0)]
    assert (table["utilisation"] * table["bytes_per_s"]).max() == pytest.approx(table["bytes"].max() / (N / 0.25e9 / 2))


def test_the_middle_of_a_line_is_the_busiest_and_its_ends_have_one_neighbour():
    table = pd.DataFrame(traffic_of(Topology("line", (Dimension("mesh", 4, 1e9, 0.0),))).columns())
    rows = table.set_index(["rank", "to_rank"])["bytes"] / (N / 4)  # shards: j on one side, 4 - j on the other
    assert rows.to_dict() == pytest.approx({(0, 1): 3, (1, 2): 4, (2, 3): 3, (1, 0): 3, (2, 1): 4, (3, 2): 3})


@each_topology
def test_every_network_has_a_picture(topology, tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(heat_map, "save", lambda figure, path: kept.append(figure))
    heat_map.draw_links(traffic_of(topology), tmp_path / "links.png", title="a title")
    (figure,) = kept
    figure.canvas.draw()
    texts = {axes.get_ylabel() for axes in figure.axes}
    assert "utilisation of a link [%]" in texts
    shown = [axes for axes in figure.axes if axes.get_visible()]
    boxes = [axes.get_tightbbox() for axes in shown]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(figure.bbox.padded(1).containsx(box.x0) and figure.bbox.padded(1).containsx(box.x1) for box in boxes)
    plt.close(figure)


@given(topology=topologies())
@settings(max_examples=25, deadline=None)
def test_any_network_has_a_table_and_a_picture(topology):
    """Graphs, dragonflies, slow and broken links too: the injected bytes of all, no link overfull, and a figure."""
    traffic = traffic_of(topology, "all_gather")
    if traffic is None:  # a group of one
        return
    table = pd.DataFrame(traffic.columns())
    assert (table["bytes_per_s"] > 0).all()
    assert table["bytes"].sum() > 0
    assert (table["utilisation"] <= 1 + 1e-9).all()
    with tempfile.TemporaryDirectory() as folder:
        heat_map.draw_links(traffic, Path(folder) / "links.png", title="any")


def test_a_plane_shows_each_link_in_its_place(monkeypatch, tmp_path):
    """One message 0 -> 1 of a 4x3 torus: one dark arrow, from (0, 0) up; the wrapped links are drawn at both ends."""
    torus = Topology("torus", (Dimension("ring", 4, 1e9, 0.0), Dimension("ring", 3, 1e9, 0.0)))
    traffic = collective_cost("send", N, links_of(torus), (0, 1), "point_to_point").traffic
    kept = []
    monkeypatch.setattr(heat_map, "save", lambda figure, path: kept.append(figure))
    heat_map.draw_links(traffic, tmp_path / "links.png", title="")
    (arrows,) = (item for item in kept[0].axes[0].collections if type(item).__name__ == "Quiver")
    assert arrows.N == 4 * 12 + 2 * 3 + 2 * 4  # four links a rank, and those round the end once more
    dark = np.flatnonzero(np.asarray(arrows.get_array()) > 1)
    places = {(float(np.round(arrows.X[i])), float(np.round(arrows.Y[i])), float(np.sign(arrows.V[i]))) for i in dark}
    assert (0.0, 0.0, 1.0) in places
    plt.close(kept[0])


def command(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["scaleout", "collective", *arguments])
    main()
    return capsys.readouterr().out


def test_the_command_writes_links_and_heat_map(monkeypatch, capsys, tmp_path):
    out = command(
        monkeypatch, capsys, "all_reduce", "--bytes", "1MB", "--topology", "torus-8x16", "--network", "link",
        "--output", str(tmp_path / "new"),
    )  # fmt: skip
    assert {path.name for path in (tmp_path / "new").glob("[!.]*")} == {"summary.json", *report.LINKS}
    assert "how busy its links are" in out
    summary = json.loads((tmp_path / "new" / "summary.json").read_text())
    first = summary["results"][0]
    table = pd.read_parquet(tmp_path / "new" / "links.parquet")
    assert len(table) == 128 * 4
    assert table["bytes"].sum() == pytest.approx(sum(row["total_bytes"] for row in first["traffic"]))


@pytest.mark.parametrize("network", ["alpha_beta", "link"])
def test_the_decision_table_says_where_auto_changes(network, monkeypatch, capsys):
    arguments = ["all_reduce", "--topology", "torus-8x16", "--network", network, "--decide"]
    found = json.loads(command(monkeypatch, capsys, *arguments, "--bytes", "1KiB,64MiB", "--json"))
    small, large = found["by_size"]
    assert (large["algorithm"], large["runner_up"], large["changed"]) == ("multiported_bucket", "hierarchical", True)
    assert small["algorithm"] != large["algorithm"]
    assert large["ratio"] > 1.5
    if network == "link":
        costs = collective_costs("all_reduce", 2**26, links_of(load_topology("torus-8x16")), range(128))
        best, second = sorted(cost.time_s for cost in costs.values())[:2]
        assert (large["time_s"], large["ratio"]) == pytest.approx((best, second / best))
        auto = collective_cost("all_reduce", 2**26, links_of(load_topology("torus-8x16")), range(128), "auto")
        assert (auto.algorithm, auto.time_s) == (large["algorithm"], large["time_s"])
    else:
        out = command(monkeypatch, capsys, *arguments)
        assert out.count("iB ") == 21  # 1 KiB, 2 KiB, ..., 1 GiB
        assert "changes here" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--decide", "--algorithm", "ring"], "--decide compares all algorithms; leave out --algorithm ring"),
        (["--decide", "--network", "link", "--output", "x"], "leave out --output"),
        ([], "give the sizes of the collective"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["scaleout", "collective", "all_reduce", "--topology", "torus-8x16", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_algorithms_of_too_many_messages_are_left_out_and_named(monkeypatch, capsys):
    tree = ["all_reduce", "--bytes", "1KiB", "--topology", "torus-64x64x32", "--network", "link", "--json"]
    monkeypatch.setattr("scaleout.network.flow.demand.MOST_ROUNDS", 2000)
    monkeypatch.setattr("scaleout.network.collectives.rounds.MOST_MESSAGES", 10**5)
    with pytest.raises(SystemExit):
        command(monkeypatch, capsys, *tree)
    assert "too many" in capsys.readouterr().err
    monkeypatch.setattr("scaleout.network.collectives.rounds.MOST_MESSAGES", 2 * 10**5)
    found = json.loads(command(monkeypatch, capsys, *tree))
    assert "ring" in found["algorithms_left_out"]
    assert not {row["algorithm"] for row in found["results"]} & set(found["algorithms_left_out"])


def figure_of(traffic, monkeypatch, tmp_path):
    kept = []
    monkeypatch.setattr(heat_map, "save", lambda figure, path: kept.append(figure))
    heat_map.draw_links(traffic, tmp_path / "links.png", title="")
    return kept[0]


def arrows_of(axes):
    return [item for item in axes.collections if type(item).__name__ == "Quiver"]


def test_switched_nodes_are_drawn_with_every_link_both_ways_on_one_scale(monkeypatch, tmp_path):
    """One message 0 -> 5 of 2 nodes of 4: up and down within a node, and between them, and no other link is dark."""
    nodes = (Dimension("switch", 4, 4e9, 0.0, link="nvlink"), Dimension("switch", 2, 1e9, 0.0, link="infiniband"))
    traffic = collective_cost("send", N, links_of(Topology("two", nodes)), (0, 5), "point_to_point").traffic
    figure = figure_of(traffic, monkeypatch, tmp_path)
    axes = figure.axes[0]
    arrows = arrows_of(axes)
    assert [item.N for item in arrows] == [8, 8, 8, 8]
    assert all(item.get_clim() == (0, 100) for item in arrows)
    loads = [np.sort(np.asarray(item.get_array()))[::-1][:2].tolist() for item in arrows]
    assert loads == [pytest.approx([each, 0], abs=1e-6) for each in (25, 25, 100, 100)]
    assert [int(np.argmax(item.get_array())) for item in arrows[::3]] == [0, 5]  # up from the one, down to the other
    assert [label.get_text() for label in axes.get_xticklabels()] == ["node 0", "node 1"]
    said = " ".join(label.get_text() for label in axes.get_yticklabels())
    assert "nvlink\nup at most 25%, down at most 25%" in said
    assert "infiniband\nup at most 100%, down at most 100%" in said
    plt.close(figure)


def test_of_many_nodes_the_busy_ones_are_drawn_and_the_others_counted(monkeypatch, tmp_path):
    nodes = (Dimension("switch", 2, 4e9, 0.0), Dimension("fat_tree", 64, 1e9, 0.0, (8, 8), (2.0,)))
    links = links_of(Topology("many", nodes))
    traffic = collective_cost("send", N, links, (74, 91), "point_to_point").traffic
    figure = figure_of(traffic, monkeypatch, tmp_path)
    axes = figure.axes[0]
    shown = [label.get_text() for label in axes.get_xticklabels()]
    assert {"node 37", "node 45"} <= set(shown)
    assert len(shown) <= 4
    assert f"{len(shown)} of 64 nodes (" in axes.get_xlabel()
    assert [np.nanmax(item.get_array()) for item in arrows_of(axes)[-4:]] == pytest.approx([100, 100, 25, 25])
    plt.close(figure)
    alike = traffic_of(Topology("many", nodes), "all_gather")
    figure = figure_of(alike, monkeypatch, tmp_path)
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["node 0", "node 1", "node 63"]
    assert "3 of 64 nodes (all loaded alike)" in figure.axes[0].get_xlabel()
    plt.close(figure)


def marks_of(axes):
    """Name of a mark to the places of those marked so."""
    found = {}
    for line in axes.lines:
        if line.get_zorder() == 5:
            found.setdefault(line.get_marker(), []).extend(zip(*line.get_data(), strict=True))
    return found


def test_broken_and_degraded_links_are_marked_where_they_are(monkeypatch, tmp_path):
    nodes = (Dimension("switch", 4, 4e9, 0.0), Dimension("switch", 6, 1e9, 0.0))
    changed = degrade_links(Topology("six", nodes), {"1:18-switch": 0.5})  # the third rank of the last node but one
    figure = figure_of(traffic_of(changed, "all_gather"), monkeypatch, tmp_path)
    (ring,) = marks_of(figure.axes[0])["o"]
    shown = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert "node 4" in shown
    assert set(marks_of(figure.axes[0])) == {"o"}
    rank_x = figure.axes[0].get_xticks()[shown.index("node 4")] + 0.5  # of four ranks, the third
    assert ring[0] == pytest.approx(rank_x)
    assert 0 < ring[1] < 0.5  # at the rank's end of its link
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["less bandwidth than built: 1:18-switch"]
    numbers = {text.get_text(): text.xy for text in figure.axes[0].texts}
    assert numbers["18"] == (pytest.approx(rank_x), 0)
    plt.close(figure)
    plane = Topology("plane", (Dimension("ring", 4, 1e9, 0.0), Dimension("ring", 3, 1e9, 0.0)))
    figure = figure_of(traffic_of(break_links(degrade_links(plane, {"1:0-4": 0.25}), ["0:1-2"])), monkeypatch, tmp_path)
    found = {
        mark: {(round(float(x), 1), round(float(y), 1)) for x, y in at} for mark, at in marks_of(figure.axes[0]).items()
    }
    assert found["x"] == {(0.1, 1.5), (-0.1, 1.5)}  # between ranks 1 and 2, which lie above each other
    assert found["o"] == {(0.5, -0.1), (0.5, 0.1)}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["broken: 1-2", "less bandwidth than built: 0-4"]
    plt.close(figure)


def test_the_links_of_a_card_that_is_down_are_told_by_node_and_rank(monkeypatch, tmp_path):
    """Ranks 13 and 12 share a card: two marks above them in the box of node 1, their numbers between."""
    changed = change_network(load_topology("dgx-h200-4"), NetworkChanges(nic_down=(13,)))
    figure = figure_of(DimensionTraffic(links_of(changed), {0: 0.25, 1: 0.5}, 1.0), monkeypatch, tmp_path)
    axes = figure.axes[0]
    rings = sorted(marks_of(axes)["o"])
    node_x = axes.get_xticks()[[label.get_text() for label in axes.get_xticklabels()].index("node 1")]
    assert [x for x, _ in rings] == pytest.approx([node_x + 0.5, node_x + 1.5])  # the fifth and sixth of eight
    assert {text.get_text(): text.xy for text in axes.texts} == {"12-13": (pytest.approx(node_x + 1), 0)}
    (legend,) = (text.get_text() for text in figure.legends[0].get_texts())
    assert legend == "less bandwidth than built: 1:12-switch, 1:13-switch"
    plt.close(figure)


@pytest.mark.parametrize(
    ("name", "slower", "broken", "marks"),
    [
        ("torus(2,3,4,hdr)", "1:0-2", ["2:1-7"], {"o": {(0, 0), (1, 0)}, "x": {(0, 1), (1, 1)}}),
        ("fully_connected(4,hdr) x switch(3,hdr)", "1-2", [], {"o": {(1, 2), (2, 1)}}),
        ("graph", "1-2", [], {"o": {(100, 0), (100, 1)}}),
    ],
)
def test_changed_links_are_marked_in_panels_and_bars_too(name, slower, broken, marks, *, monkeypatch, tmp_path):
    """At the coordinate along a dimension and the line, at both ends of a pair, and at the end of an edge's bar."""
    ring = nx.cycle_graph(4)
    nx.set_edge_attributes(ring, "1 GB/s", "bandwidth")
    nx.set_edge_attributes(ring, "0 s", "latency")
    topology = load(ring if name == "graph" else name, {"degrade": {slower: "0.5"}, "broken": broken})
    figure = figure_of(traffic_of(topology), monkeypatch, tmp_path)
    found = dict[str, set[tuple[int, int]]]()
    for axes in figure.axes:
        for mark, at in marks_of(axes).items():
            found[mark] = found.get(mark, set()) | {(round(x), round(y)) for x, y in at}
    assert found == marks
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    names = [f"broken: {each[2:]}" for each in broken] + [f"less bandwidth than built: {slower[-3:]}"]
    assert sorted(legend) == names
    plt.close(figure)


@each_topology
def test_what_a_closed_form_knows_is_drawn_as_the_busiest_of_each_dimension(topology, monkeypatch, tmp_path):
    traffic = DimensionTraffic(links_of(topology), {0: 0.25, 1: 0.5}, 1.0)
    figure = figure_of(traffic, monkeypatch, tmp_path)
    assert "busiest link of each dimension [%]" in {axes.get_ylabel() for axes in figure.axes}
    assert "alike" not in figure.axes[0].get_xlabel()
    for port, ranks, _, busy in traffic.ports():
        assert busy.tolist() == [{0: 0.25, 1: 0.5}.get(port.dimension, 0.0)] * len(ranks)
    plt.close(figure)
