"""Fused operators: laws over random ones, one worked by hand, what measured runs and bad input give."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cli.operator import parse_sweep
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import first_ranks
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.config.library import find
from scaleout.errors import ConfigError
from scaleout.schedule.fusion import OPERATORS, FusedMachine, evaluate_operator, plan_operator
from scaleout.schedule.fusion.embedding import Pooling, most_work_groups, pooling_s, table_by_table_s
from scaleout.schedule.fusion.fused import ORDERS, Recipe, run, shard_order
from scaleout.schedule.fusion.machine import Link, first_come, link_of
from scaleout.schedule.fusion.persistent import TaskList, execute
from scaleout.validation.measured.compare import compare_files

MEASURED = Path(__file__).parents[3] / "shared" / "measurements" / "h200-x4" / "fused.jsonl"
US = 1e-6


def machine(device="mi210", topology="mi210-pair"):
    return FusedMachine(load_device(device), load_topology(topology))


@st.composite
def recipes(draw):
    """Fused operators that send after they compute, on ports or on links of pairs."""
    ranks = draw(st.integers(2, 4))
    size, slices = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    tasks = ranks * slices * size
    task_s = draw(st.floats(1e-6, 1e-4))
    work = TaskList(tasks, draw(st.integers(1, tasks + 2)), size, task_s, task_s, draw(st.floats(0, 0.3)))
    link = Link(draw(st.floats(1e6, 1e11)), draw(st.floats(0, 1e-5)), draw(st.booleans()), draw(st.floats(0, 1e-6)))
    return Recipe(ranks, work, link, draw(st.floats(1, 1e5)), call_s=draw(st.floats(0, 1e-5)))


# ---- Laws


@given(recipes())
def test_fused_is_no_faster_than_its_tasks_or_the_wire(recipe):
    for order in ORDERS:
        time_s = run(recipe, order).time_s
        assert time_s >= recipe.work.task_s * -(-recipe.work.tasks // recipe.work.slots) * (1 - 1e-12)
        assert time_s >= recipe.link_s * (1 - 1e-12)


@given(recipes())
def test_aware_order_is_never_later_in_its_last_remote_send(recipe):
    """Whatever calls cost: they are as many in either order."""
    last = {order: max(rank.last_sent_s for rank in run(recipe, order).ranks) for order in ORDERS}
    assert last["aware"] <= last["oblivious"] * (1 + 1e-12)


@given(recipes())
def test_every_task_runs_once_and_every_slice_arrives_after_it_was_made(recipe):
    work = recipe.work
    for order in ORDERS:
        for rank in run(recipe, order).ranks:
            assert sorted(rank.shards) == list(range(recipe.ranks))
            done = rank.execution
            assert np.all(np.diff(done.start_s.reshape(-1)[:: work.slots]) > 0)
            assert np.all(done.end_s > done.start_s)
            ends = done.end_s.reshape(work.slices, work.slice_tasks).max(axis=1)
            assert np.all(done.issued_s >= ends * (1 - 1e-12))
            assert np.all(rank.arrival_s >= done.issued_s * (1 - 1e-12))


@given(recipes())
def test_bytes_are_conserved(recipe):
    """A rank sends all of its slices but those of its own shard, whatever they are cut into."""
    whole = recipe.slice_bytes * recipe.work.slices
    assert recipe.sent_bytes == pytest.approx(whole * (recipe.ranks - 1) / recipe.ranks)
    for order in ORDERS:
        for rank in run(recipe, order).ranks:
            of = np.repeat(rank.shards, recipe.work.slices // recipe.ranks)
            assert (of != rank.rank).sum() * recipe.slice_bytes == pytest.approx(recipe.sent_bytes)


@given(st.integers(1, 5), st.integers(1, 4), st.floats(1e-6, 1e-4), st.floats(1, 1e6))
def test_one_slice_without_overhead_is_the_baseline(rounds, slots, task_s, size_bytes):
    """Two ranks, plain order: rank 0 has its only slice for rank 1 when all is computed, and only then sends it."""
    link = Link(1e9, 1e-6, pairs=False)
    tasks = 2 * rounds * slots
    recipe = Recipe(2, TaskList(tasks, slots, tasks // 2, task_s, task_s), link, size_bytes)
    kernel_s, collective_s = 2 * rounds * task_s, size_bytes / 1e9 + 1e-6
    assert run(recipe, "oblivious").time_s == pytest.approx(kernel_s + collective_s)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0.01, 3)), min_size=1, max_size=20))
def test_first_come_first_served_against_a_loop(jobs):
    ready, service = map(np.array, zip(*jobs, strict=True))
    free, expected = 0.0, np.zeros(len(jobs))
    for job in np.argsort(ready, kind="stable"):
        free = expected[job] = max(free, ready[job]) + service[job]
    assert first_come(ready, service) == pytest.approx(expected)


@given(st.integers(1, 12), st.integers(1, 7), st.integers(1, 5), st.floats(0, 0.5), st.floats(0, 2))
@settings(max_examples=60)
def test_rounds_at_once_are_a_loop_over_tasks(slices, slots, size, spread, call_s):
    """Slices no wider than a round, so that all their tasks but the last finisher's are known when they close."""
    work = TaskList(slices * slots * size, slots * size, size, 1.0, 1.0, spread)
    sent = np.arange(work.slices) % 2 == 0
    got = execute(work, sent, call_s=call_s)
    speed, free = work.speeds(), np.zeros(work.slots)
    for number in range(work.slices):
        tasks = range(number * size, (number + 1) * size)
        ends = [free[task % work.slots] + speed[task % work.slots] for task in tasks]
        for task, end in zip(tasks, ends, strict=True):
            free[task % work.slots] = end
            assert got.end_s[task] == pytest.approx(end)
        if sent[number]:
            last = max(tasks, key=lambda task: (ends[task - tasks[0]], task))
            free[last % work.slots] += call_s
        assert got.issued_s[number] == pytest.approx(max(ends) + call_s * sent[number])
    assert got.free_s == pytest.approx(free)


# ---- By hand


def test_two_ranks_by_hand():
    """Two ranks as in Fig. 6: two work-groups, four tasks of 10 us a shard, slices of two, 15 us on the link.

    Aware: the slices for rank 1 are complete at 10 and 21 us, and leave after a call of 1 us that the second work-group
    makes both times; on the link from 11 to 26 and to 41 us, there 2 us later. The own shard is complete at 42 us.
    Oblivious: rank 0 makes its own shard first; slices for rank 1 leave at 31 and 42 us, on the link until 46 and 61.
    """
    work = TaskList(8, 2, 2, 10 * US, 10 * US)
    recipe = Recipe(2, work, Link(1e9, 2 * US, pairs=False), 15_000, call_s=1 * US)
    aware, oblivious = run(recipe, "aware"), run(recipe, "oblivious")
    assert [(rank.rank, rank.shards) for rank in aware.ranks] == [(0, (1, 0))]
    assert aware.ranks[0].execution.issued_s == pytest.approx([11 * US, 22 * US, 32 * US, 42 * US])
    assert aware.ranks[0].arrival_s == pytest.approx([28 * US, 43 * US, 32 * US, 42 * US])
    assert aware.time_s == pytest.approx(43 * US)
    assert oblivious.ranks[0].arrival_s == pytest.approx([10 * US, 20 * US, 48 * US, 63 * US])
    assert [rank.done_s for rank in oblivious.ranks] == pytest.approx([43 * US, 63 * US])
    assert oblivious.skew == pytest.approx(63 / 43 - 1)
    assert shard_order(2, 4, "aware") == (3, 0, 1, 2)


def test_tasks_that_wait_for_their_rows_by_hand():
    """All-gather first: two ranks, one work-group, two tasks of 10 us a shard; a slice takes 15 us, so they come at 17
    and 32 us. Own rows until 20 us, then 20 to 30 and 32 to 42."""
    recipe = Recipe(2, TaskList(4, 1, 1, 10 * US, 10 * US), Link(1e9, 2 * US, pairs=False), 15_000, consumes=True)
    timeline = run(recipe, "aware").ranks[0]
    assert timeline.shards == (0, 1)
    assert timeline.execution.end_s == pytest.approx([10 * US, 20 * US, 30 * US, 42 * US])
    assert run(recipe, "oblivious").time_s == pytest.approx(62 * US)  # rank 1 waits until 17 us for rank 0's rows


def test_ranks_that_send_to_one_at_the_same_time_share_its_port():
    """Three ranks, plain order: ranks 1 and 2 send their slice for rank 0 at once; 10 us each through its port."""
    recipe = Recipe(3, TaskList(3, 1, 1, 10 * US, 10 * US), Link(1e9, 0.0, pairs=False), 10_000)
    of = {rank.rank: rank.arrival_s[0] for rank in run(recipe, "oblivious").ranks}
    assert sorted(of.values()) == pytest.approx([10 * US, 20 * US, 30 * US])
    apart = replace(recipe, link=replace(recipe.link, pairs=True))
    of = {rank.rank: rank.arrival_s[0] for rank in run(apart, "oblivious").ranks}
    assert sorted(of.values()) == pytest.approx([10 * US, 20 * US, 20 * US])


def test_two_phases_by_hand():
    """An all-reduce: after the first phase and its flags, 5 us to add up, 8 KB to the other rank, flags again."""
    work = TaskList(2, 2, 1, 10 * US, 10 * US)
    one = Recipe(2, work, Link(1e9, 2 * US, pairs=True), 6_000, flag_s=3 * US)
    assert run(one, "aware").time_s == pytest.approx((10 + 6 + 2 + 3) * US)
    two = replace(one, reduce_s=5 * US, shared_bytes=8_000)
    assert run(two, "aware").time_s == pytest.approx((21 + 5 + 8 + 2 + 3) * US)
    assert two.link_s == pytest.approx(14 * US)


# ---- Work-groups and links


def test_more_work_groups_share_the_memory():
    """Alone a bag waits for its rows, 70 of 230 ns; 2112 at once move 154.7 MB, which takes 35.4 us at 4.37 TB/s."""
    h200 = load_device("h200")
    bag = Pooling(70, 256, "fp32")
    assert pooling_s(h200, bag, 1) == pytest.approx(16.1 * US, rel=1e-3)
    assert most_work_groups(h200) == 2112
    assert pooling_s(h200, bag, 2112) == pytest.approx((16.1**3 + 35.43**3) ** (1 / 3) * US, rel=1e-3)


def test_crowding_rises_with_what_is_written_locally():
    mi210 = load_device("mi210")
    bag = Pooling(70, 256, "fp32")
    times = [pooling_s(mi210, replace(bag, written=part), 728) for part in (0.0, 0.25, 1.0)]
    assert times == sorted(times)
    assert times[2] > 1.2 * times[0]
    assert pooling_s(mi210, replace(bag, written=1.0), 624) == pooling_s(mi210, bag, 624)


def test_small_tables_wait_for_the_host():
    """256 bags of 21.4 us in flight take less than the 40 us that the host spends on a table's call."""
    mi210 = load_device("mi210")
    assert table_by_table_s(mi210, Pooling(70, 256, "fp32"), bags=256, tables=64) == pytest.approx(64 * 40 * US)
    assert table_by_table_s(mi210, Pooling(70, 256, "fp32"), bags=2048, tables=64) > 64 * 100 * US


def test_wires_of_topologies():
    """Pairs of MI210 have 40 GB/s each; a port of NVSwitch has 376. On a ring of four the farthest is two hops away,
    and a quarter of the buffer each way over 1 + 2/2 hops of two links: 3/4 n at 3/4 of a link's rate twice."""
    pair = link_of(place(load_topology("mi210-node"), range(4)))
    assert (pair.bytes_per_s, pair.pairs) == (pytest.approx(40e9), True)
    port = link_of(place(load_topology("h200-node-4"), range(4)))
    assert (port.bytes_per_s, port.pairs, port.latency_s) == (pytest.approx(376e9), False, pytest.approx(0.6 * US))
    ring = link_of(place(Topology("ring", (Dimension("ring", 4, 1e9, 1e-6),)), range(4)))
    assert (ring.bytes_per_s, ring.pairs, ring.latency_s) == (pytest.approx(1.5e9), False, pytest.approx(2 * US))
    assert pair.busy_s(12e9, 3) == pytest.approx(0.1)


# ---- Operators


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    ("device", "topology"), [("h200", "h200-node-4"), ("mi210", "mi210-node"), ("mi210", "mi210-pair")]
)
def test_every_operator_on_every_kind_of_link(name, device, topology):
    changes = {"batch": 256, "tables": 8} if name.startswith("embedding") else {"M": 4096}
    found = evaluate_operator(name, changes, machine(device, topology))
    plain = found.plain()
    ways = ("baseline_s", "fused_aware_s", "fused_oblivious_s", "kernel_split_s")
    assert plain["ideal_s"] <= min(plain[way] for way in ways) * (1 + 1e-12)
    assert plain["baseline_s"] == pytest.approx(sum(plain["baseline_parts_s"].values()))
    assert plain["kernel_split_s"] > 0
    assert plain["saving"] == pytest.approx(1 - plain["fused_aware_s"] / plain["baseline_s"])


def test_all_to_all_sends_what_leaves_a_rank():
    """Half of 1024 x 16 vectors of 1 KiB to the other of two ranks; three quarters of M x N to three others, twice."""
    plan = plan_operator("embedding_all_to_all", {"batch": 1024, "tables": 16}, machine())
    assert plan.recipes["aware"].sent_bytes == 1024 * 16 * 1024 / 2
    plan = plan_operator("gemm_all_to_all", {"M": 8192, "N": 2048, "topk": 2}, machine("h200", "h200-node-4"))
    assert plan.recipes["aware"].sent_bytes == pytest.approx(2 * 8192 * 2048 * 2 * 3 / 4)


def test_splitting_into_kernels_overlaps_but_pays_for_each():
    found = evaluate_operator("gemm_all_to_all", {"K": 8192}, machine("h200", "h200-node-4"))
    kernel_s, collective_s = found.plan.part_s(found.chunks)
    longer = max(kernel_s, collective_s)
    assert found.split_s == pytest.approx(kernel_s + collective_s + (found.chunks - 1) * longer)
    assert found.split_s < found.baseline_s


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("embedding_all_to_all", {"slice_size": 7}, "slices of 7 work-groups do not divide the 262144"),
        ("embedding_all_to_all", {"work_groups": 833}, "the GPU holds 832 of this kernel, not 833"),
        ("embedding_all_to_all", {"work_groups": 10, "occupancy": 0.5}, "say the same"),
        ("embedding_all_to_all", {"batch": 0}, "batch: .* greater than 0"),
        ("embedding_all_to_all", {"batch": 7}, "batch 7 does not divide over 2 ranks"),
        ("embedding_all_to_all", {"tabels": 7}, "did you mean 'tables'"),
        ("gemm_all_to_all", {"M": 33}, "M 33 does not divide over 2 ranks"),
        ("embedding_all_to_all", {"batch": 2**20, "tables": 64}, "are more than 33554432 in all"),
        ("gemm_all2all", {}, "did you mean 'gemm_all_to_all'"),
    ],
)
def test_bad_settings_are_named(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        evaluate_operator(name, changes, machine())


def test_a_group_without_peers_and_a_device_without_work_groups_are_named():
    alone = Topology("alone", (Dimension("switch", 1, 1e9, 1e-6),))
    with pytest.raises(ConfigError, match="needs peers"):
        evaluate_operator("embedding_all_to_all", {}, FusedMachine(load_device("mi210"), alone))
    with pytest.raises(ConfigError, match="does not say how its kernels run as work-groups"):
        evaluate_operator("embedding_all_to_all", {}, machine("v100"))


# ---- Measured


def test_measured_operators_are_met(tmp_path):
    """Four H200, 67 rows: times within 10% in the median, the saving within 4 points in the mean."""
    if not MEASURED.is_file():
        pytest.skip("../shared/measurements/h200-x4/fused.jsonl is not there")
    lines = MEASURED.read_text().splitlines()
    file = tmp_path / "fused.jsonl"
    few = [line for line in lines if json.loads(line).get("tables_per_gpu", 0) < 128]
    file.write_text("\n".join(few))
    (tmp_path / "environment.json").write_text('{"gpu": "NVIDIA H200"}')
    found = compare_files([file])
    assert found.accuracy.coverage == 1
    assert found.accuracy.median_absolute_error < 0.05
    assert all(family.median_absolute_error < 0.05 for family in found.families.values())
    times = {row.id: (row.measured, row.predicted) for row in found.rows}
    gaps = []
    for line in {name.split(":")[1] for name in times}:
        fused, baseline = times[f"fused:{line}:fused"], times[f"fused:{line}:baseline"]
        gaps.append(abs(fused[0] / baseline[0] - fused[1] / baseline[1]))
    assert np.mean(gaps) < 0.04


def test_independent_kernels_differ_in_the_latency_of_a_row_alone():
    """Two H200, kernels of one or two warps by another hand: with the latency of a row from their own pooling kernel at
    4 work-groups an SM, one number a width, all other times follow: fused, in both orders, and at other residencies."""
    lines = find("device", "h200").with_name("fused.jsonl").read_text().splitlines()[1:]
    rows = [row for row in map(json.loads, lines) if row["op"] == "embedding_all_to_all" and row["tables_per_gpu"] < 64]
    on = FusedMachine(load_device("h200"), first_ranks(load_topology("h200-node-4"), 2))
    errors = []
    for width in (128, 256):
        of = [row for row in rows if row["dim"] == width]
        one = max((row for row in of if row["persistent_programs"] == 528), key=lambda row: row["batch"])
        bag_s = (one["pool_us"] * US - 3 * US) / (one["batch"] * one["tables_per_gpu"] / 528)
        share_s = 528 * Pooling(70, width, "fp32").memory_bytes / (0.91 * 4.8e12)
        latency_s = (bag_s**3 - share_s**3) ** (1 / 3) / 70
        for row in of:
            keys = {
                "batch": row["batch"],
                "tables": row["tables_per_gpu"],
                "dim": width,
                "row_latency": f"{latency_s} s",
            }
            plan = plan_operator("embedding_all_to_all", {**keys, "work_groups": row["persistent_programs"]}, on)
            times = [run(plan.recipes[order], order).time_s for order in ORDERS]
            measured = np.array([row["fused_us"], row["fused_oblivious_us"], row["baseline_us"]]) * US
            errors.append(np.abs(np.array([*times, sum(plan.baseline_s.values())]) / measured - 1))
    assert np.all(np.median(errors, axis=0) < 0.05)
    assert np.max(errors) < 0.12


# ---- The command line


def test_the_ideal_names_its_parts_and_a_faster_way_is_in_the_box(scaleout):
    """A whole GEMM takes longer than its eight parts, and a ring's collective longer than its links: neither is ideal.

    Split into kernels this one is faster than fused, whose GEMM is slower.
    """
    shape = ("--topology", "dgx-h200-1", "--set", "M=8192", "--set", "N=8192", "--set", "K=3584")
    found = json.loads(scaleout("operator", "gemm_reduce_scatter", *shape, "--json")[1])
    parts = found["ideal_parts_s"]
    assert found["ideal_s"] == max(parts.values()) == parts["fastest kernels"] < found["baseline_parts_s"]["kernel"]
    assert parts["links"] < found["baseline_parts_s"]["collective"]
    out = scaleout("operator", "gemm_reduce_scatter", *shape)[1]
    assert re.search(r"faster +split into 8 kernels: 767 us, 1.44x", out.split("ways to compute it")[0])
    assert re.search(r"ideal: the longer of its parts hides the other +686 us .*\n +fastest kernels +686 us", out)
    assert "faster" not in scaleout("operator", "gemm_all_to_all", "--set", "M=4096")[1].split("ways to compute it")[0]


def test_operator_prints_times_and_json_a_timeline(scaleout):
    settings = ("--set", "batch=256", "--set", "tables=16", "--set", "slice_size=16")
    code, out, _ = scaleout("operator", "embedding_all_to_all", *settings)
    assert code == 0
    for words in (
        "bulk-synchronous",
        "timeline",
        "last slice sent",
        "communication-aware",
        "oblivious",
        "split into",
        "ideal",
        "skew",
    ):
        assert words in out
    code, out, _ = scaleout("operator", "embedding_all_to_all", *settings, "--json")
    found = json.loads(out)
    assert {"baseline_s", "fused_aware_s", "fused_oblivious_s", "ideal_s", "kernel_split_s"} <= found.keys()
    assert [(row["order"], row["rank"]) for row in found["timeline"]] == [
        ("aware", 0), *(("oblivious", rank) for rank in range(4)),
    ]  # fmt: skip
    slices = found["timeline"][0]["sampled_slices"]
    assert len(slices) == 64
    assert [row["shard"] for row in slices] == sorted([1, 2, 3, 0] * 16, key=[1, 2, 3, 0].index)
    assert all(row["arrival_s"] >= row["issued_s"] for row in slices)


def test_operator_writes_pictures(scaleout, tmp_path):
    base = ("operator", "gemm_all_to_all", "--device", "mi210", "--topology", "mi210-pair", "--set", "M=2048")
    assert scaleout(*base, "--output", tmp_path / "one")[0] == 0
    assert scaleout(*base, "--sweep", "slice_size=1:8", "--output", tmp_path / "sweep")[0] == 0
    for name in ("one/timelines.png", "sweep/sweep.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())["sweep"]
    assert [row["slice_size"] for row in rows] == [1, 2, 4, 8]


def test_a_sweep_is_a_range_of_doublings_or_a_list():
    assert parse_sweep("slice_size=1:64") == ("slice_size", [1, 2, 4, 8, 16, 32, 64])
    assert parse_sweep("occupancy=0.25,1") == ("occupancy", [0.25, 1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sweep", "slice_size=8:2"], ["a range goes from a smaller"]),
        (["--sweep", "slice_size"], ["write it as key=values"]),
        (["--set", "slice_size=7"], ["slices of 7", "do not divide"]),
        (["--set", "work_groups=4224"], ["the GPU holds 2112"]),
        (["--set", "batch=0"], ["batch", "greater than 0"]),
        (["--topology", "mi210-nod"], ["mi210-node"]),
        (["--device", "h100"], ["does not say how its kernels run as work-groups"]),
    ],
)
def test_bad_input_of_the_verb_ends_in_one_message(scaleout, arguments, words):
    code, out, err = scaleout("operator", "embedding_all_to_all", *arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert all(word in err for word in words)


def test_rows_of_products_without_their_sizes_are_refused(tmp_path):
    row = {"gpus": 4, "op": "gemm_all_to_all", "tokens": 8192, "hidden": 4096, "dtype": "bf16", "fused_us": 900}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ConfigError, match="key 'M' is missing"):
        compare_files([path], device="h200", topology="h200-node-4")


def test_a_sweep_without_values_is_refused():
    for text in ("slice_size=", "slice_size=1,,2", "=1:2", "slice_size"):
        with pytest.raises(ConfigError, match="write it as key=values"):
            parse_sweep(text)


def test_what_was_not_measured_is_bracketed(scaleout):
    """Puts over a network card were measured on no H200: their costs are between two values, and both are simulated."""

    def summary(topology):
        _, out, _ = scaleout(
            "operator", "embedding_all_to_all", "--topology", topology, "--set", "batch=1024", "--json"
        )
        return json.loads(out)

    found = summary("dgx-h200-2")
    between = found["fused_aware_between_s"]
    assert set(between) == {"put_call", "message_gap"}
    for low, high in between.values():
        assert low <= found["fused_aware_s"] <= high
    stores = summary("h200-node-4")  # threads store into memory of peers, which was measured
    assert stores["fused_aware_between_s"] == {}


@pytest.mark.parametrize(
    ("between", "words"),
    [
        ("[3 us, 4 us]", "is not between"),
        ("[1 us]", "at least 2 items"),
        ("1 us", "be a list"),
        ("[x, 4 us]", "x"),
    ],
)
def test_a_bracket_that_is_none_is_refused(tmp_path, between, words):
    text = (
        find("device", "mi210")
        .read_text()
        .replace("put_call: {value: 2 us,", f"put_call: {{value: 2 us, between: {between},")
    )
    path = tmp_path / "device.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words):
        load_device(path)


def test_the_box_says_what_the_keys_are_that_were_not_set(scaleout):
    asked = ("operator", "embedding_all_to_all", "--set", "tables=64", "--set", "batch=512")
    found = json.loads(scaleout(*asked, "--json")[1])
    assert found["settings"] == {"tables": 64, "batch": 512}
    assert found["defaults"].items() >= {"dim": 256, "pooling": 70, "dtype": "fp32"}.items()
    assert not found["settings"].keys() & found["defaults"].keys()
    _, out, _ = scaleout(*asked)
    assert "set         tables 64, batch 512" in out
    assert "dim 256, pooling 70, dtype fp32" in out
    given = [word for key, each in found["defaults"].items() for word in ("--set", f"{key}={each}")]
    assert json.loads(scaleout(*asked, *given, "--json")[1])["fused_aware_s"] == found["fused_aware_s"]
    swept = ("operator", "embedding_all_to_all", "--sweep", "tables=64,128")
    assert "tables" not in json.loads(scaleout(*swept, "--json")[1])["defaults"]
