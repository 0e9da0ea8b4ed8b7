"""What bounds a step and its collectives: shares by hand, by a faster network, and against the step's breakdown."""

import json
import re
from dataclasses import replace
from math import fsum
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleout
from scaleout.analysis.bounds import bound_of, bound_of_step, bounds, busy_shares, dimension_names, of_memory
from scaleout.analysis.breakdown import Running
from scaleout.analysis.roots import Roots
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.dimension import Dimension
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.config.units import format_seconds
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.program.graph import GraphBuilder
from scaleout.program.operations import custom
from scaleout.program.program import GroupFamily, Program
from scaleout.simulation.run import simulate

dimensions = st.lists(
    st.builds(
        Dimension,
        st.sampled_from(["ring", "switch"]),
        st.integers(2, 6),
        st.floats(1e9, 1e12),
        st.floats(1e-9, 1e-4),
    ),
    min_size=1,
    max_size=3,
)


def test_shares_of_an_all_gather_by_hand():
    """A ring over 2 x 2 switches, 2 GB: 3 rounds of 0.5 GB, at 10 GB/s inside; outside half of it a port of 1 GB/s."""
    switches = Topology("t", (Dimension("switch", 2, 10e9, 0.0), Dimension("switch", 2, 1e9, 1e-3)))
    cost = collective_cost("all_gather", 2e9, place(switches, range(4)), "ring")
    shares = busy_shares(cost, switches, range(4))
    assert cost.serialization_s == pytest.approx(3 * 0.25)
    assert shares == pytest.approx(
        {
            "dimension 0": 3 * 0.05 / cost.time_s,
            "dimension 1": 3 * 0.25 / cost.time_s,
            "latency": cost.latency_s / cost.time_s,
        }
    )
    assert bound_of(shares) == "dimension 1"


@given(dimensions, st.floats(1.0, 1e10), st.sampled_from(["all_gather", "all_reduce", "all_to_all"]))
def test_a_faster_dimension_saves_no_more_than_its_share(found, size_bytes, kind):
    """Twice the bandwidth of a dimension saves at most half of the time that it is busy, and nothing else falls."""
    topology = Topology("t", tuple(found))
    ranks = range(topology.num_ranks)
    algorithm = "direct" if kind == "all_to_all" else "ring"
    cost = collective_cost(kind, size_bytes, place(topology, ranks), algorithm)
    shares = busy_shares(cost, topology, ranks)
    assert max(shares.values()) <= 1 + 1e-9
    for number, name in enumerate(dimension_names(topology)):
        faster = list(found)
        faster[number] = replace(faster[number], bytes_per_s=2 * faster[number].bytes_per_s)
        after = collective_cost(kind, size_bytes, place(replace(topology, dimensions=tuple(faster)), ranks), algorithm)
        assert after.time_s >= cost.time_s * (1 - shares.get(name, 0.0) / 2) * (1 - 1e-9)


def test_the_cards_of_eight_ndr_ports_are_as_busy_as_nvlink():
    """Why twice the InfiniBand brings next to nothing: 8 ports of 47 GB/s carry an eighth of what 376 GB/s do."""
    h100 = load_topology("dgx-h100-8")
    cost = collective_cost("all_gather", 1.7e9, place(h100, range(64)), "hierarchical")
    shares = busy_shares(cost, h100, range(64))
    assert shares["nvlink4"] == pytest.approx(shares["ndr"], rel=0.01)
    assert set(bound_of(shares).split(" and ")) == {"nvlink4", "ndr"}
    row = scaleout.collective("all_gather", 10**3, topology="dgx-h100-8").to_dict()["results"][0]
    assert row["bound_by"] == "latency"


@pytest.mark.parametrize("network", ["alpha_beta", "link"])
def test_exposed_times_of_collectives_add_up_where_nothing_overlaps(network):
    answer = scaleout.run(
        "llama-small",
        topology="dgx-h200-2",
        changes={"tensor_parallel": 8, "data_parallel": 2, "layers": 2},
        schedules=["baseline"],
        network=network,
    )
    (outcome,) = answer.outcomes
    rows = bounds(outcome.result, outcome.topology, Roots(outcome.result))
    assert fsum(row.exposed_communication_s for row in rows) == pytest.approx(
        outcome.breakdown.exposed_communication_s, rel=1e-9
    )
    assert rows == sorted(rows, key=lambda row: (-row.exposed_communication_s, -row.busy_s))
    assert {row.axis for row in rows} == {"tensor", "data"}
    assert all(row.bound_by in ("nvlink4", "ndr", "latency") for row in rows)
    name, seconds = bound_of_step(outcome.result, outcome.breakdown.compute_s)
    parts = {"compute": outcome.breakdown.compute_s, "idle": outcome.breakdown.idle_s}
    parts |= {f"{axis} communication": each for axis, each in outcome.efficiency.exposed_s.items()}
    assert (name, seconds) == max(parts.items(), key=lambda part: part[1])


def test_a_step_is_bound_by_memory_where_most_kernels_read_more_than_they_compute(scaleout):
    """Decode reads all weights for one token each; training multiplies them by many, though its other kernels read."""
    job = ("run", "llama-3-8b", "--set", "layers=2", "--topology", "dgx-h200-1", "--set", "data_parallel=8")
    decode = (*job, "--set", "mode=decode", "--set", "tensor_parallel=1")
    assert json.loads(scaleout(*decode, "--json")[1])["results"][0]["bound_by"] == "memory bandwidth"
    box = " ".join(scaleout(*decode)[1].split("\nschedules")[0].replace("│", " ").split())
    assert re.search(r"bound by +memory bandwidth, [\d.]+% of the step \(its kernels reach [\d.]+% of it\)", box)
    assert json.loads(scaleout(*job, "--json")[1])["results"][0]["bound_by"] == "compute"


def test_what_kernels_read_and_compute_says_which_limits_them():
    """60 us of a kernel that moves bytes for 30 us at the memory's rate, 40 us of one that computes for longer."""
    h200, graph = load_device("h200"), GraphBuilder()
    peak = h200.peak("bf16")
    for reads_s, computes_s, lasts_s in ((30e-6, 1e-6, 60e-6), (10e-6, 20e-6, 40e-6)):
        size_bytes, flops = round(reads_s * h200.memory_bytes_per_s), round(computes_s * peak)
        call = custom(flops=flops, bytes=size_bytes, dtype="bf16")
        graph.add((), name="kernel", kernel=graph.kernel_index(call), flops=flops, bytes=size_bytes, duration_s=lasts_s)
    world = GroupFamily("world", (tuple(range(8)),))
    result = simulate(Program("two", (graph.build(),), np.zeros(8, np.int64), (world,)), load_topology("dgx-h200-1"))
    assert of_memory(result, h200) == pytest.approx((0.6, 0.5), rel=1e-3)
    assert bound_of_step(result, 100e-6, h200) == ("memory bandwidth", 100e-6)
    assert bound_of_step(result, 100e-6) == ("compute", 100e-6)


def test_what_kernels_hide_is_not_exposed():
    """Each moment of exposed communication is one of some row, and a row is exposed no longer than it is busy."""
    answer = scaleout.run(
        "llama-small", topology="dgx-h200-2", changes={"data_parallel": 16, "layers": 4}, schedules=["overlap"]
    )
    (outcome,) = answer.outcomes
    rows = outcome.bounds
    exposed_s = outcome.breakdown.exposed_communication_s
    assert all(0 <= row.exposed_communication_s <= row.busy_s * (1 + 1e-9) for row in rows)
    assert exposed_s * (1 - 1e-9) <= fsum(row.exposed_communication_s for row in rows)
    assert fsum(row.exposed_communication_s for row in rows) < 0.9 * fsum(row.busy_s for row in rows)
    line = outcome.result.timelines[0]
    running = Running.of(line, line.is_kernel)
    assert running.between(np.zeros(1), np.array([np.inf])) == pytest.approx(outcome.breakdown.compute_s, rel=1e-9)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=8), st.integers(0, 20), st.integers(0, 20))
def test_seconds_in_which_anything_runs(spans, first, length):
    """Counted second by second."""
    start_s, lasts_s = np.array(spans, float).reshape(-1, 2).T
    line = SimpleNamespace(start_s=start_s, end_s=start_s + lasts_s)
    found = Running.of(line, np.ones(len(spans), bool)).between(np.array([first]), np.array([first + length]))
    busy = {second for start, lasts in spans for second in range(start, start + lasts)}
    assert found == pytest.approx([len(busy & set(range(first, first + length)))])


def test_dimensions_that_are_nearly_as_busy_bound_as_well():
    assert bound_of({"nvlink4": 0.88, "ndr": 0.8, "latency": 0.1}) == "nvlink4 and ndr"
    assert bound_of({"nvlink4": 0.88, "ndr": 0.7, "latency": 0.1}) == "nvlink4"


def test_a_pipeline_that_mostly_waits_is_bound_by_its_bubble():
    changes = {"tensor_parallel": 1, "pipeline_parallel": 8, "data_parallel": 1, "batch_per_replica": 1, "layers": 8}
    answer = scaleout.run("llama-small", topology="dgx-h200-1", changes=changes, schedules=["baseline"], ideal=True)
    assert answer.to_dict()["results"][0]["bound_by"] == "bubble"


def test_no_collective_is_exposed_for_longer_than_the_step(scaleout):
    """Slices of one call that run at the same time were counted one by one: 16.6 of 1.60 ms."""
    serve = ("--set=mode=decode", "--set=tensor_parallel=8", "--set=data_parallel=1", "--set=batch_per_replica=64")
    _, out, _ = scaleout("run", "llama-3-70b", *serve, "--topology=dgx-h200-1", "--schedule=fused", "--json")
    (row,) = json.loads(out)["results"]
    exposed_s = [each["exposed_communication_s"] for each in row["bounds"]]
    assert max(exposed_s) <= row["exposed_communication_s"] * (1 + 1e-9)
    assert sum(exposed_s) == pytest.approx(row["exposed_communication_s"])


@pytest.mark.parametrize("slow", [None, 0, 5])
def test_what_waits_for_a_slow_rank_is_not_bound_by_a_link(scaleout, slow):
    """The slow rank hides its collectives, and the others, which have nothing left to do, stand bound by NVLink."""
    job = ("run", "llama-small", "--topology=dgx-h100-2", "--schedule=overlap", "--no-contention", "--set=zero=3",
           "--set=tensor_parallel=1", "--set=data_parallel=16", "--set=layers=8")  # fmt: skip
    changes = () if slow is None else ("--slow", f"{slow}=2")
    (row,), (faster,) = (
        json.loads(scaleout(*job, *changes, *more, "--json")[1])["results"]
        for more in ((), ("--bandwidth", "nvlink=2x", "--bandwidth", "infiniband=2x"))
    )
    waits_s = fsum(each["waits_s"] for each in row["bounds"])
    box = " ".join(scaleout(*job, *changes)[1].split("\nschedules")[0].replace("│", " ").split())
    if slow is None:
        assert waits_s == 0
        assert "waits for" not in box
        return
    assert all(each["waits_for"] == [slow] for each in row["bounds"] if each["waits_s"])
    assert all(each["waits_for_s"] == pytest.approx(each["waits_s"]) for each in row["bounds"])
    assert all(0 <= each["waits_s"] <= each["exposed_communication_s"] for each in row["bounds"])
    assert waits_s > 0.5 * row["exposed_communication_s"]
    shorter_s = row["makespan_s"] - faster["makespan_s"]
    assert shorter_s <= row["exposed_communication_s"] - waits_s
    assert re.search(rf"exposed [^;]+; [\d.]+ ms of it waits for rank {slow} ", box)
    assert re.search(rf"exposed longest \([\d.]+ ms\): all_gather over data, which waits for rank {slow} ", box)


def test_collectives_wait_for_the_root_and_no_sum_for_one_of_several(scaleout):
    """Ranks that waited for rank 5 themselves stood as those waited for, and for what was for rank 5 directly, too."""
    job = ("run", "llama-3-8b", "--topology=dgx-h200-4", "--schedule=overlap", "--slow=5=1.3", "--set=layers=8",
           "--set=tensor_parallel=8", "--set=data_parallel=4")  # fmt: skip
    (row,) = json.loads(scaleout(*job, "--json")[1])["results"]
    over_data = [each for each in row["bounds"] if each["axis"] == "data" and each["waits_s"]]
    assert over_data
    assert all(each["waits_for"] == [5] for each in over_data)
    assert all(each["waits_for_s"] <= each["waits_s"] * (1 + 1e-9) for each in row["bounds"])
    sums = (fsum(each[key] for each in row["bounds"]) for key in ("waits_s", "waits_for_s"))
    in_all, of_rank = map(format_seconds, sums)
    box = " ".join(scaleout(*job)[1].split("\nschedules")[0].replace("│", " ").split())
    assert in_all != of_rank
    assert f"; {in_all} of it waits for other ranks, {of_rank} of that for rank 5 " in box


def test_collectives_wait_for_the_slowest_of_two(scaleout):
    """Those that queue behind one that waited were told as waiting for whichever rank came last in order."""
    job = ("run", "llama-small", "--topology=dgx-h100-2", "--schedule=overlap", "--no-contention", "--set=zero=3",
           "--set=tensor_parallel=1", "--set=data_parallel=16", "--set=layers=8")  # fmt: skip
    (row,) = json.loads(scaleout(*job, "--slow=5=2", "--slow=9=1.9", "--json")[1])["results"]
    assert [each["waits_for"] for each in row["bounds"] if each["waits_s"]] == [[5]] * 4


@pytest.mark.parametrize("degraded", [0, 8])
def test_the_end_of_a_collective_over_a_slow_link_is_waited_for_as_that_of_all_its_members(scaleout, degraded):
    """Ranks 0 and 8 share the link's collective; with a straggler elsewhere the box named rank 8 in both cases."""
    job = ("run", "llama-3-8b", "--topology=dgx-h200-2", "--network=link", "--schedule=overlap", "--set=layers=8",
           "--set=tensor_parallel=8", "--set=data_parallel=2", "--slow=5=1.3",
           f"--degrade=1:{degraded}-switch=0.5")  # fmt: skip
    (row,) = json.loads(scaleout(*job, "--json")[1])["results"]
    ends = [each for each in row["waits"] if each["until"] == "the end of the step"]
    most = max(ends, key=lambda each: each["idle_s"])
    assert most["waits_for"] == [0, 8]
    assert not any(set(each["members"]) & set(each["waits_for"]) for each in row["waits"])


@pytest.mark.parametrize(("schedule", "network"), [("overlap", "link"), ("centauri", "alpha_beta")])
def test_what_rounding_leaves_is_no_wait(schedule, network):
    """Jobs drawn at random: a difference of times in the last digit was a wait for which no rank could be named."""
    found = scaleout.run(
        "llama-3-8b",
        schedules=[schedule],
        changes={"context_parallel": 8, "context_exchange": "ring", "tensor_parallel": 1, "data_parallel": 1}
        | {"batch_per_replica": 1, "microbatch": 1, "layers": 2, "sequence": 1024, "hidden": 1024, "zero": 3}
        | {"shard_ranks": 2, "pipeline_parallel": 1},
        topology="switch(2,nvlink5) x ring(4,nvlink5)",
        device="t3-gpu",
        network=network,
        host="none",
        contention=False,
    )
    rows = found.to_dict()["results"][0]["bounds"]
    assert rows
    assert all(row["waits_s"] == row["waits_for_s"] == 0 for row in rows if not row["waits_for"])
