"""Schedules and algorithms of one's own: usable by name, and refused by the contract where they break a law."""

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import scaleout
from scaleout import testing
from scaleout.errors import ConfigError, GraphError
from scaleout.network.collectives import ALGORITHMS, rounds
from scaleout.network.collectives.rounds import Ring, Round, Schedule
from scaleout.program.graph import NEUTRAL, GraphBuilder, NodeKind
from scaleout.schedule import SCHEDULES
from scaleout.schedule.decision import Planned


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """Forget what a test defines."""
    monkeypatch.setattr("scaleout.schedule.SCHEDULES", SCHEDULES)
    schedules, algorithms = dict(SCHEDULES), dict(ALGORITHMS)
    yield
    for table, before in ((SCHEDULES, schedules), (ALGORITHMS, algorithms)):
        table.clear()
        table.update(before)


def streams(program, machine):
    """Collectives on a stream of their own."""
    del machine
    return program.map_graphs(
        lambda graph: graph.with_columns(stream=np.where(graph.kind == NodeKind.COLLECTIVE, 1, 0))
    )


def ring(placement):
    """Each rank sends to the next."""
    p = placement.num_ranks
    return Schedule((Round(Ring(), 1 / p, repeat=p - 1),))


@dataclasses.dataclass(frozen=True, eq=False)
class Own:
    """A pattern of one's own, of the same messages on any grid."""

    made: object

    def messages(self, extents):
        del extents
        return self.made


def messages(sources, destinations, weights=None):
    """Messages of one share each unless told."""
    return rounds.Messages(*map(np.array, (sources, destinations, weights or (1.0,) * len(sources))))


def test_a_pattern_of_ones_own_is_timed_as_ours():
    def timed(pattern):
        scaleout.define_algorithm("mine", "all_gather")(lambda _placement: Schedule((Round(pattern, 1 / 8, repeat=7),)))
        return scaleout.collective("all_gather", "1MiB", topology="t3-ring-8", algorithm="mine").to_frame()

    assert timed(Own(messages(range(8), (1, 2, 3, 4, 5, 6, 7, 0)))).equals(timed(rounds.Shift((1,))))


def test_a_schedule_of_ones_own_runs_by_name():
    assert scaleout.define_schedule("mine", in_order=True)(streams) is streams
    answer = scaleout.run("dlrm-128", schedules=["baseline", "mine"], changes={"global_batch": 512})
    assert answer["mine"].makespan_s < answer["baseline"].makespan_s
    assert SCHEDULES["mine"].summary == "Collectives on a stream of their own"
    testing.check_schedule("mine")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda graph: graph.with_columns(flops=graph.flops * 2), "llama-small with layers 2.*does not conserve FLOPs"),
        (lambda graph: graph.with_columns(bytes=graph.bytes * 2), "does not conserve the payload"),
        (lambda graph: graph.with_columns(duration_s=graph.duration_s / 2), "rank 0: kernels take"),
    ],
)
def test_the_contract_refuses_schedules_that_lose_work(spoil, message):
    scaleout.define_schedule("wrong")(lambda program, machine: program.map_graphs(spoil))
    with pytest.raises(AssertionError, match=message):
        testing.check_schedule("wrong")


def test_the_contract_refuses_chance():
    chance = np.random.default_rng(0)

    def moody(program, machine):
        del machine
        return program.map_graphs(lambda graph: graph.with_columns(priority=chance.integers(0, 2, len(graph))))

    scaleout.define_schedule("moody")(moody)
    with pytest.raises(AssertionError, match="other graphs the second time"):
        testing.check_schedule("moody")


def test_an_algorithm_of_ones_own_is_priced_and_checked():
    scaleout.define_algorithm("mine", "all_gather")(ring)
    found = scaleout.collective("all_gather", "1MiB", topology="ring-128", algorithm="mine").to_frame()
    theirs = scaleout.collective("all_gather", "1MiB", topology="ring-128").to_frame().set_index("algorithm")
    assert "mine" in theirs.index
    assert found.time_s[0] == theirs.time_s["mine"]
    testing.check_algorithm("mine")
    over_links = scaleout.collective("all_gather", "1MiB", topology="ring-128", algorithm="mine", network="link")
    assert over_links.to_frame().time_s[0] == pytest.approx(found.time_s[0], rel=1e-9)


def test_an_algorithm_defined_anew_is_priced_anew():
    def twice(placement):
        """Send everything twice."""
        return Schedule(ring(placement).rounds * 2)

    times = []
    for function in (ring, twice):
        scaleout.define_algorithm("mine", "all_gather")(function)
        times.append(
            scaleout.collective("all_gather", "1MiB", topology="ring-128", algorithm="mine").to_frame().time_s[0]
        )
    assert times[1] == pytest.approx(2 * times[0])


@pytest.mark.parametrize(
    ("repeat", "share", "message"),
    [(-2, 1.0, "data does not reach everyone"), (-1, 0.5, "sends .* buffers, and .* must be sent")],
)
def test_the_contract_refuses_algorithms_that_lose_data(repeat, share, message):
    def lossy(placement):
        p = placement.num_ranks
        return Schedule((Round(Ring(), share / p, repeat=max(1, p + repeat)),))

    scaleout.define_algorithm("lossy", "all_gather")(lossy)
    with pytest.raises(AssertionError, match=message):
        testing.check_algorithm("lossy")


@pytest.mark.parametrize(
    "made",
    [
        lambda p: (Round(Ring(), 2 / p, repeat=p - 1),),
        lambda p: (Round(Ring(), 1 / p, repeat=2 * (p - 1)),),
        lambda p: (Round(Ring(), 1 / p, repeat=p),),
        lambda p: (Round(Ring(), 1.0, repeat=p - 1),),
    ],
    ids=["shares twice as large", "twice round", "a round more", "whole buffers"],
)
def test_the_contract_refuses_bytes_in_vain_but_for_those_that_are_declared(made):
    scaleout.define_algorithm("vain", "all_gather")(lambda placement: Schedule(made(placement.num_ranks)))
    with pytest.raises(AssertionError, match=r"vain, all_gather on ranks \[0, 1\] .* more; send less, or .* surplus="):
        testing.check_algorithm("vain")

    def declared(placement):
        p = placement.num_ranks
        rounds = made(p)
        return Schedule(rounds, surplus=sum(p * each.fraction * each.repeat for each in rounds) - (p - 1))

    scaleout.define_algorithm("declared", "all_gather")(declared)
    testing.check_algorithm("declared")


@pytest.mark.parametrize("network", ["alpha_beta", "link"])
def test_rounds_whose_messages_switches_combine_go_with_others(network):
    """Found by the fuzzer: levels of a switch and ports of its members were added one by one (ValueError)."""
    combined, folded = (
        Round(rounds.Combined(rounds.Everyone(), reduced=True), 0.5),
        Round(rounds.Fold(1, back=False), 0.5, chain=1),
    )
    took = {}
    for name, made in (("combined", (combined,)), ("folded", (folded,)), ("both", (combined, folded))):
        scaleout.define_algorithm(name, "all_gather")(lambda placement, made=made: Schedule(made))
        found = scaleout.collective("all_gather", "1GB", topology="h200-node-4", algorithm=name, network=network)
        took[name] = found.by_size[0][0]["time_s"]
    assert max(took["combined"], took["folded"]) <= took["both"] <= took["combined"] + took["folded"]


def test_names_of_ours_and_none_are_refused():
    with pytest.raises(ConfigError, match="schedule 'overlap' is one of scaleout's; take another name"):
        scaleout.define_schedule("overlap")
    with pytest.raises(ConfigError, match="collective algorithm 'ring' is one of scaleout's"):
        scaleout.define_algorithm("ring", "all_gather")
    with pytest.raises(ConfigError, match="'My Pass' is no name of a schedule"):
        scaleout.define_schedule("My Pass")
    with pytest.raises(ConfigError, match="unknown collective 'all_gathr'; did you mean 'all_gather'"):
        scaleout.define_algorithm("mine", "all_gathr")
    with pytest.raises(ConfigError, match="unknown collective algorithm 'rng'; did you mean 'ring'"):
        testing.check_algorithm("rng")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (None, "None is no function"),
        (lambda: 0, "takes program and machine, in this order"),
        (lambda program, machine: None, "returned an object of type NoneType; return Program or Planned"),
    ],
)
def test_a_schedule_that_is_none_is_refused(function, words):
    def use():
        scaleout.define_schedule("wrong")(function)
        SCHEDULES["wrong"].home("program", "machine")

    with pytest.raises(ConfigError, match=words):
        use()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda program: Planned(None), "the program of what it planned is None; give a program"),
        (lambda program: Planned(program, None), "the decision of what it planned is None"),
        (lambda program: Planned(program, ("x",)), "the decision of what it planned is 'x'"),
        (lambda program: Planned(program, result=5), "the result of what it planned is 5"),
        (lambda program: Planned(program, whole=program), "the whole of what it planned is "),
        (lambda program: dataclasses.replace(program, graphs=None), "None stands for the program's graphs"),
        (lambda program: dataclasses.replace(program, groups=5), "5 stands for the program's groups"),
        (lambda program: dataclasses.replace(program, groups=(5,)), "5 stands for groups of the program"),
        (lambda program: dataclasses.replace(program, role_of_rank=None), "None stands for the roles of ranks"),
        (
            lambda program: dataclasses.replace(program, role_of_rank=np.full(128, 7)),
            "a rank has role 7 or 7; of graphs",
        ),
        (lambda program: dataclasses.replace(program, peers=np.ones(3)), "stands for the peers of ranks"),
    ],
)
def test_nonsense_that_a_schedule_makes_is_told(spoil, words):
    scaleout.define_schedule("wrong", decides=True)(lambda program, machine: spoil(program))
    found = scaleout.run("dlrm-128", schedules=["baseline", "wrong"], changes={"global_batch": 512})
    assert [outcome.schedule for outcome in found.outcomes] == ["baseline"]
    assert re.search(words, str(found.to_dict()["failures"]))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (5, "5 is no function"),
        (lambda: 0, "takes placement, in this order"),
        (lambda placement: [], "returned an object of type list; return Schedule"),
    ],
)
def test_an_algorithm_that_is_none_is_refused(function, words):
    def use():
        scaleout.define_algorithm("wrong", "all_reduce")(function)
        ALGORITHMS["wrong"].schedules["all_reduce"]("placement")

    with pytest.raises(ConfigError, match=words):
        use()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (Schedule(()), r"its rounds are \(\); return a tuple of one or more"),
        (Schedule((5,)), "round 0 on a group of shape .*: 5 is no Round"),
        (Schedule((Round(None, 0.5),)), "has None for a pattern"),
        (Schedule((Round(Ring(), float("nan")),)), "sends no part of the buffer; give a fraction from 1e-09 to 1"),
        (Schedule((Round(Ring(), -1.0),)), "sends no part of the buffer"),
        (Schedule((Round(Ring(), 0.5, repeat=0),)), "has no whole number of repeats"),
        (Schedule((Round(Ring(), 0.5, repeat=2.5),)), "has no whole number of repeats"),
        (Schedule((Round(Ring(), 0.5, dimensions=(5,)),)), "runs over dimensions that are not there; give some of 0"),
        (Schedule((Round(Ring(), 0.5, dimensions=[0]),)), "holds a list, an array or a mapping; give tuples"),
        (Schedule((Round(rounds.Shift(None), 0.5),)), "shifts by no distances within the group"),
        (Schedule((Round(rounds.Edges(0, 1), 0.5),)), "has no messages between two"),
        (Schedule((Round(rounds.Shift((0,)), 0.5),)), "shifts by no distances within the group"),
        (Schedule((Round(rounds.Shift((1, 1)), 0.5),)), "shifts by no distances within the group"),
        (Schedule((Round(rounds.Exchange(3), 0.5),)), "exchanges over no bit of the numbers of 8 of 8 members"),
        (Schedule((Round(rounds.FoldedExchange(0, 3), 0.5),)), "exchanges over no bit of the numbers of 5 of 8"),
        (Schedule((Round(rounds.Fold(5), 0.5),)), "folds no pairs of 8 members"),
        (Schedule((Round(rounds.Edges((0, 1), (1,)), 0.5),)), "has no messages between two of members 0 to 7 each"),
        (Schedule((Round(rounds.Edges((0,), (8,)), 0.5),)), "has no messages between two of members 0 to 7 each"),
        (Schedule((Round(rounds.Combined(rounds.Edges((1,), (1,))), 0.5),)), "has no messages between two"),
        (Schedule((Round(Ring(), 0.5),), pipelined=np.ones(2)), "pipelined is array.*; give True or False"),
        (Schedule((Round(Ring(), 0.5),), added=float("nan")), "added is nan; give buffers from 0"),
        (Schedule((Round(Ring(), 0.5),), surplus=-1.0), "surplus is -1.0; give buffers that all members send, from 0"),
        (Schedule((Round(Ring(), 0.5),), surplus=float("inf")), "surplus is inf; give buffers"),
        (Schedule((Round(Ring(), 0.5),), added="1"), "added is '1'; give buffers from 0"),
        (Schedule((Round(Own(None), 0.5),)), "whose messages are no `Messages` of arrays"),
        (Schedule((Round(Own(rounds.Messages([0], [1], [1.0])), 0.5),)), "whose messages are no `Messages` of arrays"),
        (
            Schedule((Round(rounds.Combined(Own(messages((0,), (8,)))), 0.5),)),
            "no messages between two of members 0 to 7",
        ),
        (Schedule((Round(Own(messages((0,), (-1,))), 0.5),)), "has no messages between two of members 0 to 7 each"),
        (Schedule((Round(Own(messages((0.0,), (1.0,))), 0.5),)), "has no messages between two of members 0 to 7 each"),
        (Schedule((Round(Own(messages((0, 1), (1,))), 0.5),)), "has no messages between two of members 0 to 7 each"),
        (Schedule((Round(Own(messages((0,), (1,), (np.nan,))), 0.5),)), "of no share above 0 and up to 1"),
        (Schedule((Round(Own(messages((), ())), 0.5),)), "has no messages between two of members 0 to 7 each"),
    ],
)
def test_rounds_that_no_collective_has_are_refused(made, words):
    """Of no bytes they would take no time, of NaN they would never end."""
    scaleout.define_algorithm("wrong", "all_gather")(lambda placement: made)
    for network in ("alpha_beta", "link"):
        with pytest.raises(ConfigError, match=words):
            scaleout.collective("all_gather", "1MiB", topology="t3-ring-8", algorithm="wrong", network=network)


@pytest.mark.parametrize("found", [5, "", []])
def test_a_condition_gives_a_reason_or_none(found):
    scaleout.define_algorithm("wrong", "all_gather", condition=lambda placement: found)(ring)
    with pytest.raises(ConfigError, match=r"its condition returned .*; return the reason why it cannot, or None"):
        scaleout.collective("all_gather", "1MiB", topology="t3-ring-8", algorithm="wrong")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda graph: None, "None stands for a graph of the program"),
        (lambda graph: graph.with_columns(stream=np.zeros(3)), r"column stream has shape \(3,\) for"),
        (lambda graph: graph.with_columns(stream="x"), r"column stream has shape \(\) for"),
        (lambda graph: graph.with_columns(collective=np.full(len(graph), 99)), "has collective 99; give one of"),
        (lambda graph: graph.with_columns(kernel=np.full(len(graph), -2)), "has kernel -2; give one of"),
    ],
)
def test_graphs_that_are_none_are_refused(spoil, words):
    scaleout.define_schedule("wrong")(lambda program, machine: program.map_graphs(spoil))
    with pytest.raises(GraphError, match=words):
        scaleout.run("dlrm-128", schedules=["wrong"])


def test_the_page_of_graphs_and_rounds_has_every_column_and_pattern():
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "graphs-and-rounds.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`[^|]+`) \|", page, re.MULTILINE))))
    patterns = {
        f"{name}({', '.join(_argument(each) for each in dataclasses.fields(found))})"
        for name, found in vars(rounds).items()
        if inspect.isclass(found) and dataclasses.is_dataclass(found) and callable(getattr(found, "messages", None))
    }
    assert rows == {"names", *NEUTRAL} | patterns
    for found in (Round, Schedule):
        assert f"{found.__name__}({', '.join(map(_argument, dataclasses.fields(found)))})" in " ".join(page.split())


def _argument(field):
    default = "" if field.default is dataclasses.MISSING else f"={field.default}"
    return field.name + default


def test_a_column_that_a_graph_lacks_is_named():
    with pytest.raises(GraphError, match="a graph has no column 'streem'; did you mean 'stream'"):
        GraphBuilder("step").build().with_columns(streem=1)


@pytest.mark.parametrize("role", [7, -1])
def test_a_program_in_which_a_rank_has_no_graph_is_not_simulated(role):
    job = scaleout.generate(scaleout.load_workload("dlrm-128"))
    program = scaleout.time_kernels(job, scaleout.load_device("h200"))
    partial = dataclasses.replace(program, role_of_rank=np.full(128, role))
    with pytest.raises(scaleout.GraphError, match=f"a rank has role {role} or {role}; of graphs there are 1"):
        scaleout.simulate(partial, scaleout.load_topology("torus-8x16"))
