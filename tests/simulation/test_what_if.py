"""What-ifs: slow ranks, rank placement, slow and broken links of whole jobs, in Python and on the command line."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import exchanges, jobs, pipelines
from test_fold import times_of

import scaleout
from scaleout.cluster.topology.topology import Dimension, Topology, break_links, degrade_links, load_topology, slow_down
from scaleout.errors import ConfigError
from scaleout.program.graph import GraphBuilder
from scaleout.program.mesh import Mesh
from scaleout.program.operations import TimeSource
from scaleout.program.program import GroupFamily, Program
from scaleout.simulation.fold import fold
from scaleout.simulation.run import simulate
from scaleout.simulation.what_if import map_ranks, rank_mapping, slow_ranks

TORUS = Topology("torus", (Dimension("ring", 8, 25e9, 1e-6), Dimension("ring", 16, 25e9, 1e-6)))


def spmd(families, *, groups=(0,), num_ranks=128):
    """Every rank computes for a millisecond and joins an all-reduce of each of some families."""
    graph = GraphBuilder()
    last = graph.add((), name="work", duration_s=1e-3, time_source=TimeSource.GIVEN)
    for group in groups:
        last = graph.collective("all_reduce", 1_000_000, group=group, after=(last,))
    return Program("spmd", (graph.build(),), np.zeros(num_ranks, np.int64), families)


ROWS_AND_COLUMNS = (Mesh(tensor=8, data=16).groups("tensor"), Mesh(tensor=8, data=16).groups("data"))


# ---- Slow ranks


def test_a_slow_rank_holds_up_the_job_and_has_a_role_of_its_own():
    program = spmd(ROWS_AND_COLUMNS)
    slowed = slow_ranks(program, {5: 1.5, 6: 1.5})
    assert len(slowed.graphs) == 2
    assert slowed.ranks_of_role.tolist() == [126, 2]
    assert program.ranks_of_role.tolist() == [128]
    before, after = simulate(program, TORUS), simulate(slowed, TORUS)
    assert after.makespan_s == pytest.approx(before.makespan_s + 0.5e-3, rel=1e-12)
    assert simulate(program, slow_down(TORUS, {5: 1.5})).makespan_s == after.makespan_s


def test_a_slow_rank_unfolds_its_groups_and_no_more():
    """Rank 5 is slow; its row waits for it, and all other rows are one class."""
    folding = fold(slow_ranks(spmd(ROWS_AND_COLUMNS[:1]), {5: 2.0}), TORUS)
    assert np.bincount(folding.class_of_rank).tolist() == [7, 1, 120]
    columns = fold(slow_ranks(spmd(ROWS_AND_COLUMNS, groups=(0, 1)), {5: 2.0}), TORUS)
    assert len(columns.representative) == 4  # it, its row, its column, and all others


def test_a_slow_link_unfolds_the_groups_on_its_line_and_no_more():
    for topology in (degrade_links(TORUS, {"8-9": 0.5}), break_links(TORUS, ["8-9"])):
        assert np.bincount(fold(spmd(ROWS_AND_COLUMNS[:1]), topology).class_of_rank).tolist() == [120, 8]
        assert np.bincount(fold(spmd(ROWS_AND_COLUMNS[1:]), topology).class_of_rank).tolist() == [128]
        both = fold(spmd(ROWS_AND_COLUMNS, groups=(0, 1)), topology)
        assert np.bincount(both.class_of_rank).tolist() == [120, 8]
    times = [simulate(spmd(ROWS_AND_COLUMNS[:1]), each).makespan_s for each in (TORUS, topology)]
    assert times[1] > times[0]


@given(jobs(max_roles=2), st.data())
@settings(max_examples=60)
def test_folded_and_unfolded_are_equal_with_slow_ranks(job, data):
    program, topology = job
    ranks = st.integers(0, program.num_ranks - 1)
    slowed = slow_ranks(program, data.draw(st.dictionaries(ranks, st.sampled_from([0.5, 1.0, 1.5]), max_size=3)))
    assert slowed.num_ranks == program.num_ranks
    assert slowed.payload_bytes == program.payload_bytes
    assert times_of(slowed, topology, False) == times_of(slowed, topology, True)


@pytest.mark.parametrize(
    ("factors", "words"), [({128: 2.0}, "not in the job"), ({0: 0.0}, "give a factor from 1e-9 to 1e9")]
)
def test_slow_ranks_that_make_no_sense_are_refused(factors, words):
    with pytest.raises(ConfigError, match=words):
        slow_ranks(spmd(ROWS_AND_COLUMNS), factors)


# ---- Placement


def test_placements_worked_by_hand():
    grid = Topology("grid", (Dimension("ring", 3, 1.0, 0.0), Dimension("ring", 2, 1.0, 0.0)))
    assert rank_mapping("linear", grid).tolist() == [0, 1, 2, 3, 4, 5]
    assert rank_mapping("transposed", grid).tolist() == [0, 3, 1, 4, 2, 5]  # rank 1 is the next along dimension 1
    assert rank_mapping("order:1,0", grid).tolist() == [0, 3, 1, 4, 2, 5]
    assert rank_mapping("order:0,1", grid).tolist() == [0, 1, 2, 3, 4, 5]
    assert rank_mapping("strided:2", grid).tolist() == [0, 2, 4, 1, 3, 5]
    assert rank_mapping("5,4,3,2,1,0", grid).tolist() == [5, 4, 3, 2, 1, 0]
    assert rank_mapping("random:1", grid).tolist() == rank_mapping("random:1", grid).tolist()
    assert sorted(rank_mapping("random:2", grid).tolist()) == [0, 1, 2, 3, 4, 5]


def test_a_mapping_may_stand_in_a_file(tmp_path):
    path = tmp_path / "mapping.txt"
    path.write_text("3 2\n1, 0\n")
    line = Topology("line", (Dimension("mesh", 4, 1.0, 0.0),))
    assert rank_mapping(str(path), line).tolist() == [3, 2, 1, 0]


def test_old_names_work_with_a_warning():
    program = spmd(ROWS_AND_COLUMNS)
    with pytest.warns(FutureWarning, match="'places_of' is now 'rank_mapping'"):
        mapping = scaleout.places_of("transposed", TORUS)
    with pytest.warns(FutureWarning, match="argument of map_ranks 'places' is now 'mapping'"):
        moved = map_ranks(program, places=mapping)
    assert [family.members for family in moved.groups] == [f.members for f in map_ranks(program, mapping).groups]


def test_what_a_rank_did_the_rank_that_it_is_mapped_to_does():
    """Tensor-parallel rows of 8 put along the columns of 16: two to a column, over every second of its links."""
    program = map_ranks(spmd(ROWS_AND_COLUMNS), rank_mapping("transposed", TORUS))
    assert program.groups[0].members[0] == tuple(range(0, 64, 8))
    assert program.groups[1].members[0][:3] == (0, 64, 1)
    straight, turned = (simulate(each, TORUS).makespan_s for each in (spmd(ROWS_AND_COLUMNS), program))
    assert turned > straight  # rings of 8 became lines of 8


@given(jobs(max_roles=3), st.integers(0, 9))
@settings(max_examples=40)
def test_folded_and_unfolded_are_equal_anywhere_and_moving_back_changes_nothing(job, seed):
    program, topology = job
    mapping = rank_mapping(f"random:{seed}", topology)
    moved = map_ranks(program, mapping)
    assert times_of(moved, topology, False) == times_of(moved, topology, True)
    back = map_ranks(moved, np.argsort(mapping))
    assert back.role_of_rank.tolist() == program.role_of_rank.tolist()
    assert [family.members for family in back.groups] == [family.members for family in program.groups]


@given(pipelines() | exchanges())
@settings(max_examples=40)
def test_messages_go_to_where_ranks_have_gone(job):
    """On a switch it does not matter where ranks are."""
    program, topology = job
    switch = Topology("switch", (Dimension("switch", topology.num_ranks, 25e9, 1e-6),))
    moved = map_ranks(program, rank_mapping("random:5", switch))
    assert simulate(moved, switch).makespan_s == simulate(program, switch).makespan_s


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("liner", "neither a name, a list of ranks nor a file; did you mean 'linear'?"),
        ("linear:3", "nothing may follow the name"),
        ("strided", "it needs a stride, strided:8"),
        ("strided:7", "7 does not divide 128 ranks"),
        ("strided:x", "'x' is not 1 whole number"),
        ("random", "it needs a seed, random:7"),
        ("order:0,0", "name each of the dimensions 0 to 1 once"),
        ("order:0", "is not 2 whole numbers"),
        ("0,1,2", "the placement lists 3 ranks for a job of 128"),
        (",".join(["0"] * 128), "the placement lists rank 0 twice"),
        (",".join(map(str, range(1, 129))), "lists rank 128, which is not there; list ranks 0 to 127"),
    ],
)
def test_placements_that_make_no_sense_are_refused(scaleout, text, words):
    code, out, err = scaleout("run", "dlrm-128", "--placement", text)
    assert (code, out) == (2, "")
    assert words in err


# ---- The command line


def makespan(scaleout, *arguments):
    code, out, err = scaleout("run", "dlrm-128", "--schedule", "baseline", "--json", *arguments)
    assert code == 0, err
    return json.loads(out)["results"][0]["makespan_s"]


@pytest.mark.parametrize("network", ["alpha_beta", "link"])
def test_a_run_takes_what_ifs(scaleout, network):
    plain = makespan(scaleout, "--network", network)
    assert makespan(scaleout, "--network", network, "--slow", "5=1.3") > plain
    assert makespan(scaleout, "--network", network, "--degrade", "0-1=0.5", "--degrade", "8-16=1 GB/s") > plain
    assert makespan(scaleout, "--network", network, "--break", "3-4") > plain
    assert makespan(scaleout, "--network", network, "--placement", "random:1") == pytest.approx(plain)  # all to all


def test_a_collective_takes_slow_and_broken_links(scaleout):
    def direct(*arguments):
        given = ("collective", "all_to_all", "--bytes", "128MB", "--topology", "torus-8x16", "--algorithm", "direct")
        code, out, err = scaleout(*given, "--json", *arguments)
        assert code == 0, err
        return json.loads(out)["results"][0]["time_s"]

    # A row of 8 is a line now: 4 x 4 pairs for 16 others over its middle, 256 shards, 2 n: as the columns.
    assert direct("--break", "3-4") == pytest.approx((7 + 8) * 700e-9 + 2 * 128e6 / 25e9, rel=1e-6)
    assert direct("--degrade", "0-8=0.5") == pytest.approx(12 * 700e-9 + 4 * 128e6 / 25e9, rel=1e-6)
    given = ("--bytes", "8MB", "--topology", "torus-8x16", "--algorithm", "direct", "--network", "link")
    code, out, _ = scaleout("collective", "all_to_all", *given, "--break", "3-4")
    assert (code, "busiest links" in out) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--break", "0-5"], "no link joins these two; rank 0 has the links 0-1, 0-7, 0-8, 0-120"),
        (["--break", "x"], "does not name two nodes of the topology"),
        (["--degrade", "0-1"], "--degrade '0-1': write it like 3-4=0.5"),
        (["--degrade", "0-1=2"], "give a factor above 0 and up to 1"),
        (["--degrade", "0-1=0"], "give a factor above 0 and up to 1"),
        (["--degrade", "0-1=fast"], "'fast' is not a bandwidth"),
        (["--degrade", "0-1=0.5", "--degrade", "0-1=0.6"], "0-1 is given twice; give it once"),
        (["--slow", "5"], "--slow '5': write it like 5=1.3"),
        (["--slow", "5=x"], "--slow 5=x: write a rank and a factor"),
        (["--slow", "128=2"], "rank 128 is not in topology"),
        (["--slow", "5=0.5"], "rank 5 is slowed by 0.5; give how many times as long it takes, 1 or more"),
        (["--break", "0-1", "--degrade", "1-0=0.5"], "--break 0-1 and --degrade 1-0=0.5 are the same link"),
        (["--break", "0-1", "--break", "7-0"], "no way is left from rank"),
    ],
)
def test_what_ifs_that_make_no_sense_are_refused(scaleout, arguments, words):
    code, out, err = scaleout("run", "dlrm-128", *arguments)
    assert (code, out) == (2, "")
    assert words in err, err
    assert "Traceback" not in err


def test_a_group_with_a_rank_twice_is_refused(scaleout):
    code, out, err = scaleout(
        "collective", "all_reduce", "--bytes", "1MB", "--topology", "torus-8x16", "--group", "0,1,1"
    )
    assert (code, out) == (2, "")
    assert "twice; give each rank once" in err
    with pytest.raises(Exception, match="group 'odd' has rank 1 twice"):
        GroupFamily("odd", ((0, 1), (1, 2)))


def test_what_ifs_on_131072_ranks_take_seconds():
    """One slow uplink of a node: the groups on its rail are routed, all others have their closed forms."""
    topology = degrade_links(load_topology("fat-tree-131072"), {"1:8-switch-1-0": 0.5})
    mesh = Mesh(tensor=8, data=16384)
    program = spmd((mesh.groups("tensor"), mesh.groups("data")), groups=(0, 1), num_ranks=131072)
    folding = fold(program, topology)
    assert np.bincount(folding.class_of_rank).tolist() == [16384, 114688]
    assert simulate(program, topology).makespan_s > simulate(program, load_topology("fat-tree-131072")).makespan_s
