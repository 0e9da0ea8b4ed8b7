"""`scaleout astra --physical` and `--output`: both answers side by side, worked by hand and by law.

The network is that of `test_astra`: 27 GB/s, which at 2**30 bytes a GB is 28.99e9 B/s; latency 500 ns.
"""

import csv
import json

import hypothesis.strategies as st
import pytest
from astra_inputs import coll, comp, recv, send, times
from hypothesis import assume, given
from test_astra_oracle import job_of

from scaleout.analysis.breakdown import critical_path
from scaleout.errors import ConfigError
from scaleout.interop.astra import simulate
from scaleout.interop.astra.physical import dimension_loads, side_by_side
from scaleout.simulation.options import NETWORKS

BYTES_PER_NS = 27 * 2**30 / 1e9


def physical(answer):
    return times(answer)["physical"]


def test_units_and_kinds_of_the_network_become_ours(astra):
    found = physical(astra([[comp(0)]] * 4, "--physical", "--json", counts=[2, 2], kind="Switch"))
    dimension = found["physical_network"]["dimensions"][0]
    assert dimension["bytes_per_s"] == pytest.approx(28.991029248e9)
    assert dimension["latency_s"] == pytest.approx(1000e-9)  # rank to rank, two hops there
    assert (dimension["kind"], dimension["size"]) == ("switch", 2)


def test_a_ring_all_reduce_is_the_same_but_for_endpoints_and_reductions(astra):
    """ASTRA-sim charges 10 + 6 (599 + 10) + 18 ns, and cuts 2899 / 28.99 to 99; we take the six sends alone."""
    found = physical(astra([[coll(0, "ALL_REDUCE", 11596)]] * 4, "--physical", "--json"))
    assert found["algorithms"] == {"all_reduce": "ring"}
    assert found["networks"]["ASTRA-sim unaware"]["time_ns"] == 3682
    for network in ("alpha_beta", "link"):
        assert found["networks"][network]["time_ns"] == pytest.approx(6 * (500 + 2899 / BYTES_PER_NS), abs=1e-3)


def test_where_the_unaware_back_end_beats_the_wire_it_says_by_how_much(astra):
    """An all-to-all on a switch: a rank sends 7 / 8 of the buffer through its one port."""
    size = 8 << 20
    answer = astra([[coll(0, "ALL_TO_ALL", size)]] * 8, "--physical", "--json", algorithm="direct", kind="Switch")
    (transfer,) = physical(answer)["transfers"]
    astra_ns = 10 + 1000 + int(2**20 / BYTES_PER_NS) + 10
    assert times(answer)["time_ns"] == astra_ns
    bound_ns = 7 * 2**20 / BYTES_PER_NS
    assert transfer["bound_s"] * 1e9 == pytest.approx(bound_ns)
    assert transfer["under_bound_s"] * 1e9 == pytest.approx(bound_ns - astra_ns)
    for network in ("alpha_beta", "link"):
        assert transfer["mean_s"][network] >= transfer["bound_s"]
    _, out, _ = astra([[coll(0, "ALL_TO_ALL", size)]] * 8, "--physical", algorithm="direct", kind="Switch")
    assert (
        "ASTRA-sim unaware is faster than the links allow in 1 of 1 kinds of transfer: the all_to_all of 8 MiB" in out
    )
    assert "all_to_all by direct" in out


def test_shards_groups_messages_and_late_ranks_mean_the_same_work(astra):
    """An all-gather's bytes become the whole; waiting for rank 0 is idle time, of all but rank 0."""
    late = [comp(0, 2), coll(1, "ALL_GATHER", 2899, deps=[0], pg_name="1")]
    job = [late, [coll(0, "ALL_GATHER", 2899, pg_name="1")], [send(0, 3, 2899, tag=4)], [recv(0, 2, 2899, tag=4)]]
    found = physical(astra(job, "--physical", "--json", groups={"1": [0, 1]}))
    by_kind = {transfer["kind"]: transfer for transfer in found["transfers"]}
    assert by_kind["all_gather"]["size_bytes"] == 2 * 2899
    # Rank 0 finds the shard of rank 1, whose own is on its way.
    assert by_kind["all_gather"]["mean_s"]["ASTRA-sim unaware"] * 1e9 == pytest.approx((20 + 619) / 2)
    assert by_kind["send"]["mean_s"]["ASTRA-sim unaware"] * 1e9 == pytest.approx(599)
    assert by_kind["send"]["mean_s"]["link"] * 1e9 == pytest.approx(500 + 2899 / BYTES_PER_NS)
    assert found["networks"]["link"]["per_rank_ns"][2:] == pytest.approx([500 + 2899 / BYTES_PER_NS] * 2, abs=1e-3)
    parts = found["networks"]["ASTRA-sim unaware"]["breakdown"]
    assert parts["compute_s"] * 1e9 == pytest.approx(2000 / 4)
    assert parts["exposed_communication_s"] * 1e9 == pytest.approx((20 + 619 + 599) / 4)


def test_ranks_call_their_collectives_in_the_order_that_astra_sim_chose(astra):
    """Rank 0 has both from the start, rank 1 the second only after computing; which first is ASTRA-sim's to say."""
    job = [
        [comp(0, 5), coll(1, "ALL_REDUCE", 11596, deps=[0]), coll(2, "ALL_TO_ALL", 11596)],
        [coll(1, "ALL_TO_ALL", 11596), coll(2, "ALL_REDUCE", 11596, deps=[1])],
    ]
    found = physical(astra(job, "--physical", "--json"))
    assert {transfer["kind"] for transfer in found["transfers"]} == {"all_reduce", "all_to_all"}


def test_output_has_tables_and_a_timeline(astra, tmp_path):
    job = [[comp(0, 5), coll(1, "ALL_REDUCE", 11596, deps=[0])]] * 4
    folder = tmp_path / "out"
    code, out, err = astra(job, "--output", str(folder), "--physical")
    assert (code, err) == (0, ""), err
    assert "timeline.json" in out
    assert "transfers.csv" in out
    events = json.loads((folder / "timeline.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X" and event["cat"] != "phase"]
    names = {event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert names == {f"{network}: ranks 0-3" for network in ("ASTRA-sim unaware", "alpha_beta", "link")}
    assert [(event["ts"], event["dur"]) for event in slices[:2]] == [(0.0, 5.0), (5.0, pytest.approx(3.682))]
    ranks = list(csv.DictReader((folder / "ranks.csv").read_text().splitlines()))
    assert len(ranks) == 3 * 4
    first = [ranks[0][name] for name in ("compute_ns", "exposed_communication_ns", "idle_ns")]
    assert first == ["5000.0", "3682.0", "0.0"]
    (dimension,) = csv.DictReader((folder / "dimensions.csv").read_text().splitlines())
    assert dimension["link_bytes"] == str(6 * 2899)


def test_output_alone_tells_astra_sims_run(astra, tmp_path):
    code, out, _ = astra([[comp(0, 5)]] * 2, "--output", str(tmp_path / "out"), "--json")
    assert code == 0
    assert "physical" not in json.loads(out)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [row["schedule"] for row in summary["results"]] == ["ASTRA-sim unaware"]


def test_an_output_that_is_a_file_is_refused(astra, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = astra([[comp(0, 5)]] * 2, "--output", str(tmp_path / "file" / "out"))
    assert code == 2
    assert "cannot be written" in err


@given(data=st.data())
def test_astra_sims_answer_is_told_exactly_and_nothing_of_ours_beats_the_wire(data):
    """Its finishing times survive; breakdowns and critical path add up to them; our times are over every bound."""
    job = job_of(data.draw, data.draw(st.sampled_from([1, 2])))[2]
    try:
        outcome = simulate(job)
    except ConfigError as error:
        assume("messages of 0 bytes" not in str(error))
        raise
    compared = side_by_side(outcome, name="job", networks=NETWORKS)
    dimension_loads(outcome)
    first, *ours = compared.comparison.outcomes
    facts = compared.summary()["networks"]
    assert facts[first.schedule]["per_rank_ns"] == pytest.approx(list(outcome.per_rank_ns), abs=0.01)
    parts = first.breakdown
    whole_s = parts.compute_s + parts.exposed_communication_s + parts.idle_s
    assert whole_s == pytest.approx(outcome.time_ns * 1e-9)
    path = critical_path(first.result)
    assert sum(segment.end_s - segment.start_s for segment in path) == pytest.approx(outcome.time_ns * 1e-9)
    for transfer in compared.transfers:
        for each in ours:
            assert transfer.mean_s[each.schedule] >= transfer.bound_s * (1 - 1e-9)
