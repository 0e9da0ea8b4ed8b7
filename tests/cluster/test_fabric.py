"""Graphs from files: what is read, and what is refused, through the command line as well."""

import json
import re

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.cluster.topology.fabric import fabric_of, fabric_of_graph, load_fabric
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError

YAML = """
source: made up
dimensions:
  - kind: graph
    size: {size}
    switches: [leaf]
    links: [{links}]
    bandwidth: 8 Gb/s
    bandwidth_source: made up
    latency: 1 us
    latency_source: made up
"""
STAR = ["{between: [0, leaf]}", "{between: [1, leaf]}", "{between: [2, leaf], bandwidth: 4 Gb/s, latency: 2 us}"]


def written(folder, text, name="mine.yaml"):
    path = folder / name
    path.write_text(text)
    return path


def star(folder, suffix, *, change=lambda graph: None):
    """Three ranks on a switch, written by networkx."""
    graph = networkx.MultiGraph() if suffix == ".multi.graphml" else networkx.Graph()
    for rank in range(3):
        graph.add_edge(str(rank), "leaf", bandwidth="8 Gb/s", latency="1 us")
    change(graph)
    path = folder / f"mine{suffix}"
    if suffix == ".edgelist":
        networkx.write_edgelist(graph, path)
    else:
        networkx.write_graphml(graph, path)
    return path


def test_links_are_listed(tmp_path):
    (dimension,) = load_topology(str(written(tmp_path, YAML.format(size=3, links=", ".join(STAR))))).dimensions
    assert dimension.fabric.links[2] == (2, 3, 0.5e9, 2e-6)
    assert dimension.fabric.name(3) == "leaf"
    assert (dimension.bytes_per_s, dimension.latency_s) == (1e9, 1e-6)


@pytest.mark.parametrize("suffix", [".graphml", ".edgelist"])
def test_a_file_of_networkx_is_a_topology(tmp_path, scaleout, suffix):
    path = star(tmp_path, suffix)
    code, out, _ = scaleout("collective", "all_gather", "--bytes", "3MB", "--topology", path, "--json")
    direct = next(row for row in json.loads(out)["results"] if row["algorithm"] == "direct")
    assert (code, direct["time_s"]) == (0, pytest.approx(2e-6 + 2e6 / 1e9))
    code, out, _ = scaleout("show", path)
    assert (code, "graph" in out) == (0, True)


def test_a_file_lies_beside_the_topology(tmp_path):
    star(tmp_path, ".graphml")
    text = YAML.format(size=3, links="").replace("    switches: [leaf]\n    links: []\n", "    file: mine.graphml\n")
    assert load_topology(str(written(tmp_path, text))).dimensions[0].fabric.num_ranks == 3
    text = text.replace("size: 3", "size: 4")
    with pytest.raises(ConfigError, match=r"the graph in 'mine\.graphml' has 3 ranks, and the size is 4"):
        load_topology(str(written(tmp_path, text)))


def test_nodes_of_any_name_say_which_rank_they_are(tmp_path):
    def rename(graph):
        networkx.set_node_attributes(graph, {"0": 2, "1": 1, "2": 0}, "rank")

    fabric = load_fabric(star(tmp_path, ".graphml", change=rename))
    assert fabric.num_ranks == 3
    assert sorted(min(link[:2]) for link in fabric.links) == [0, 1, 2]
    assert fabric.switches == ("leaf",)


@pytest.mark.parametrize(
    ("links", "size", "words"),
    [
        (STAR[:2], 3, "the graph is disconnected: no way leads from 0 to 2; add the links that are missing"),
        ([*STAR, "{between: [0, 0]}"], 3, "link 0-0 joins a node to itself; remove it"),
        ([*STAR, "{between: [leaf, 0]}"], 3, "link leaf-0 stands twice; give it once"),
        ([*STAR, "{between: [0, laef]}"], 3, "unknown node 'laef': neither a rank (0 to 2) nor a switch; did you mean"),
        ([*STAR, "{between: [3, leaf]}"], 3, "unknown node 3: neither a rank (0 to 2)"),
        (STAR, 4, "no way leads from 0 to 3"),
        (
            [*STAR[:2], "{between: [2, leaf], bandwidth: 0 Gb/s}"],
            3,
            "link 2-leaf carries 0 B/s; give a bandwidth above",
        ),
        ([*STAR[:2], "{between: [2, leaf], bandwidth: -1 Gb/s}"], 3, "must be finite and not negative"),
        ([*STAR[:2], "{between: [2, leaf], latency: fast}"], 3, "'fast' is not a time"),
        ([*STAR[:2], "{between: [2]}"], 3, "between"),
        ([], 3, "a graph needs either 'links' (between, bandwidth, latency) or 'file'"),
        (STAR, 0, "dimensions.0.size: must be greater than 0, not 0"),
    ],
)
def test_listed_links_that_make_no_network_are_refused(tmp_path, scaleout, links, size, words):
    path = written(tmp_path, YAML.format(size=size, links=", ".join(links)))
    code, out, err = scaleout("collective", "all_gather", "--bytes", "1MB", "--topology", path)
    assert (code, out) == (2, "")
    assert words in err
    assert "mine.yaml" in err
    assert "Traceback" not in err


def _lose(graph):
    del graph.edges["1", "leaf"]["bandwidth"]


def _cut(graph):
    graph.remove_edge("1", "leaf")


def _slow(graph):
    graph.edges["1", "leaf"]["bandwidth"] = "0 Gb/s"


def _loop(graph):
    graph.add_edge("1", "1", bandwidth="8 Gb/s", latency="1 us")


def _skip(graph):
    networkx.relabel_nodes(graph, {"2": "7"}, copy=False)


def _anonymous(graph):
    networkx.relabel_nodes(graph, {"0": "a", "1": "b", "2": "c"}, copy=False)


@pytest.mark.parametrize("suffix", [".graphml", ".edgelist"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_lose, "link (1-leaf|leaf-1) has no attribute 'bandwidth'; add it"),
        (_cut, "disconnected|not numbered"),  # an edge list cannot hold a node without an edge
        (_slow, "carries 0 B/s; give a bandwidth above zero"),
        (_loop, "link 1-1 joins a node to itself"),
        (_skip, "the 3 ranks are not numbered 0 to 2; number each once"),
        (_anonymous, "no node is a rank; number the ranks in the node attribute 'rank'"),
    ],
)
def test_files_that_hold_no_network_are_refused(tmp_path, scaleout, suffix, change, words):
    path = star(tmp_path, suffix, change=change)
    code, out, err = scaleout("collective", "all_gather", "--bytes", "1MB", "--topology", path)
    assert (code, out) == (2, "")
    assert re.search(words, err), err
    assert f"mine{suffix}" in err


def test_files_that_are_no_graphs_are_refused(tmp_path, scaleout):
    for name, text in (
        ("a.graphml", "<xml"),
        ("a.graphml", ""),
        ("a.edgelist", "0 1 {'bandwidth'"),
        ("b.edgelist", ""),
    ):
        code, _, err = scaleout(
            "collective", "all_gather", "--bytes", "1kB", "--topology", written(tmp_path, text, name)
        )
        assert code == 2
        assert name in err
        assert "Traceback" not in err
    directed = networkx.DiGraph([("0", "1")])
    networkx.write_graphml(directed, tmp_path / "c.graphml")
    with pytest.raises(ConfigError, match="the graph is directed, and links are full-duplex"):
        load_fabric(tmp_path / "c.graphml")
    double = networkx.MultiGraph()
    for _ in range(2):
        double.add_edge("0", "1", bandwidth="8 Gb/s", latency="1 us")
    networkx.write_graphml(double, tmp_path / "d.graphml")
    networkx.write_edgelist(double, tmp_path / "d.edgelist")
    for suffix in (".graphml", ".edgelist"):
        with pytest.raises(ConfigError, match="stands twice"):
            load_fabric(tmp_path / f"d{suffix}")
    code, _, err = scaleout("collective", "all_gather", "--bytes", "1kB", "--topology", "none.graphml")
    assert (code, "does not exist" in err) == (2, True)


@pytest.mark.parametrize(
    ("switches", "words"), [(["a", "a"], "switch 'a' stands twice"), (["1"], "switch '1' has the name of a rank")]
)
def test_switches_have_names_of_their_own(switches, words):
    with pytest.raises(ConfigError, match=words):
        fabric_of(2, switches, [])


FILE = """
source: made up
dimensions:
  - kind: {kind}
    size: {size}
    {rest}
    bandwidth: {bandwidth}
    bandwidth_source: made up
    latency: {latency}
    latency_source: made up
{changes}
"""
FLY = {"kind": "dragonfly", "size": 12, "rest": "radices: [2, 2, 3]\n    global_links: 1", "bandwidth": "8 Gb/s"}
FLY |= {"latency": "1 us", "changes": ""}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rest": "radices: [2, 6]\n    global_links: 1"}, "give three: ranks a router, routers a group, groups"),
        ({"rest": "radices: [2, 2, 4]\n    global_links: 1"}, "whose product is 12"),
        ({"rest": "radices: [2, 2, 3]"}, "cannot join every two groups; give it 1 'global_links' or more"),
        ({"bandwidth": "[8 Gb/s, 4 Gb/s]"}, "one bandwidth or three"),
        ({"bandwidth": "[8 Gb/s, 4 Gb/s, 0 Gb/s]"}, "give a bandwidth above zero"),
        ({"latency": "[1 us, 2 us]"}, "has 2 latencies; give one or one a level"),
        ({"kind": "leaf_spine", "rest": "radices: [12]"}, "a leaf_spine has radices [12]; give two"),
        ({"kind": "ring", "rest": "", "latency": "[1 us, 2 us]"}, "a ring has no levels"),
        ({"kind": "ring", "rest": "links: [{between: [0, 1]}]"}, "leave out 'switches', 'links' and 'file'"),
        ({"kind": "ring", "rest": "", "changes": "changes: {break: [0-5]}"}, "no link joins these two"),
        ({"kind": "ring", "rest": "", "changes": "changes: {degrade: {0-1: 2}}"}, "give a factor from 1e-09 to 1"),
        ({"kind": "ring", "rest": "", "changes": "changes: {slow: {99: 2}}"}, "rank 99 is not in topology"),
        (
            {"kind": "ring", "rest": "", "changes": "changes: {slow: {1: 0}}"},
            "give how many times as long it takes, from 1 to 1e+09",
        ),
        ({"kind": "ring", "rest": "", "changes": "changes: {brake: [0-1]}"}, "unknown key 'changes.brake'"),
    ],
)
def test_dimensions_and_changes_that_make_no_sense_are_refused(tmp_path, scaleout, change, words):
    path = written(tmp_path, FILE.format(**(FLY | change)))
    code, out, err = scaleout("collective", "all_gather", "--bytes", "1MB", "--topology", path)
    assert (code, out) == (2, "")
    assert words in err, err


def test_changes_stand_in_the_file(tmp_path):
    changes = "changes: {degrade: {0-1: 0.5, 1-2: 2 Gb/s}, break: [3-4], slow: {5: 1.5}, source: an outage}"
    topology = load_topology(
        str(written(tmp_path, FILE.format(**(FLY | {"kind": "ring", "rest": "", "changes": changes}))))
    )
    assert [(change.ends, change.factor) for change in topology.changes] == [
        ((0, 1), 0.5),
        ((1, 2), 0.25),
        ((3, 4), 0.0),
    ]
    assert topology.slow_ranks == ((5, 1.5),)
    assert "changes: an outage" in topology.source


@pytest.mark.parametrize("name", ["dragonfly-1056", "leaf-spine-64", "rail-pods-256", "graph-8"])
def test_the_shipped_examples_carry_collectives(scaleout, name):
    code, out, _ = scaleout("collective", "all_reduce", "--bytes", "64MiB", "--topology", name, "--json")
    assert code == 0
    assert all(row["time_s"] > 0 for row in json.loads(out)["results"])


@given(st.data())
def test_an_edge_list_is_read_as_networkx_does(tmp_path_factory, data):
    """The same ranks, switches and links, in the same order and each from the same end."""
    nodes = [*map(str, range(data.draw(st.integers(2, 6)))), "leaf", "spine"]
    nodes = data.draw(st.permutations(nodes))
    pairs = {frozenset((nodes[at], nodes[data.draw(st.integers(0, at - 1))])) for at in range(1, len(nodes))}
    pairs |= data.draw(st.sets(st.sets(st.sampled_from(nodes), min_size=2, max_size=2).map(frozenset)))
    ends = data.draw(st.permutations([tuple(sorted(pair)) for pair in pairs]))
    link = "{'bandwidth': '1 GB/s',  'latency': '%d us'} # a comment"
    lines = ["# a comment", "", "alone"]
    lines += [
        f"{data.draw(st.sampled_from(['', ' ']))}{a}\t{b} {link % number}" if data.draw(st.booleans())
        else f"{b} {a} {link % number}"
        for number, (a, b) in enumerate(ends)
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("graph") / "x.edgelist"
    path.write_text("\n".join(lines))
    assert load_fabric(path) == fabric_of_graph(networkx.parse_edgelist(lines, create_using=networkx.MultiGraph))


@pytest.mark.parametrize("text", ["0 1 [1]", "0 1 {", "0 1 {[]: 1}", "0 1 x", "0 1 {'a': 1/0}", "0 1 " + "[" * 5000])
def test_what_is_no_edge_list_is_refused(tmp_path, text):
    path = tmp_path / "x.edgelist"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"x\.edgelist: not an edge list"):
        load_fabric(path)
