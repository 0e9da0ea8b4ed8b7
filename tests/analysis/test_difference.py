"""Differences: none of a result with itself, the sign turns with the order, and rows add up to the whole."""

from dataclasses import asdict, replace
from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import jobs, pipelines

from scaleout.analysis.breakdown import Busy, breakdown, busy_times, by_operation, by_phase
from scaleout.analysis.difference import Profile, difference
from scaleout.schedule import apply_schedule
from scaleout.simulation.run import simulate

results = st.one_of(
    st.builds(
        lambda job, name: simulate(apply_schedule(job[0], name), job[1]), jobs(), st.sampled_from(["baseline", "fused"])
    ),
    st.builds(lambda job: simulate(*job), pipelines()),
)


def profile_of(result):
    parts = asdict(breakdown(result))
    del parts["kernel_time_sources"]
    return Profile(name="x", busy=tuple(busy_times(result)), **parts)


profiles = results.map(profile_of)


def all_rows(found):
    return [found.makespan, *found.step, *found.busy, *found.phases, *found.operations, *found.collectives]


@given(result=results)
def test_busy_times_add_up_to_phases_and_operations(result):
    found = busy_times(result)
    for rows, key in ((by_phase(result), "phase"), (by_operation(result), "operation")):
        for row in rows:
            mine = [
                each
                for each in found
                if getattr(each, key) == row.name and (each.kind == "communication") == row.communication
            ]
            assert fsum(each.busy_s for each in mine) == pytest.approx(row.busy_s, rel=1e-9, abs=1e-15)
            assert fsum(each.count for each in mine) == pytest.approx(row.count)


@given(job=jobs(max_roles=2), slow=st.dictionaries(st.integers(0, 7), st.sampled_from([1.25, 1.5])))
def test_busy_times_are_those_of_all_nodes_one_by_one(job, slow):
    """Of ranks whose kernels differ in times, in groups of any sizes."""
    program, topology = job
    slow = tuple((rank, factor) for rank, factor in slow.items() if rank < topology.num_ranks)
    result = simulate(program, replace(topology, slow_ranks=slow))
    found = {}
    for line in result.timelines:
        graph, share = line.graph, len(line.ranks) / program.num_ranks
        for node in range(len(graph)):
            named = (graph.phases[graph.phase[node]], graph.operation(node))
            size = len(program.groups[graph.group[node]].of(line.ranks[0])) if line.is_communication[node] else 0
            key = (*named, int(graph.bytes[node]) if size else 0, size)
            count, busy_s = found.get(key, (0.0, 0.0))
            found[key] = count + share, busy_s + share * line.duration_s[node]
    rows = {
        (row.phase, row.operation, row.bytes, row.group_size): (row.count, row.busy_s) for row in busy_times(result)
    }
    assert rows == found


@given(a=profiles)
def test_a_result_does_not_differ_from_itself(a):
    assert all(row.difference_s == 0 and not row.only_in for row in all_rows(difference(a, a)))


def test_what_sums_round_off_is_no_difference():
    """The idle time of dlrm-128 at two batches is the same work, summed after other work."""
    a = Profile("a", 0.0546, 0.0218, 0.0325, 0.0002855, 0.0325, ())
    b = replace(a, name="b", makespan_s=0.106, compute_s=0.0421, idle_s=0.0002855 - 6.94e-18)
    idle = next(row for row in difference(a, b).step if row.name == "idle")
    assert (idle.a_s, idle.b_s, idle.difference_s) == (0.0002855, 0.0002855, 0.0)
    later = replace(b, idle_s=0.0002855 + 1e-9)
    assert next(row for row in difference(a, later).step if row.name == "idle").difference_s == pytest.approx(1e-9)


@given(a=profiles, b=profiles)
def test_the_order_turns_the_sign(a, b):
    other = {"A": "B", "B": "A", "": ""}
    turned = [
        replace(
            row,
            a_s=row.b_s,
            b_s=row.a_s,
            a_count=row.b_count,
            b_count=row.a_count,
            difference_s=-row.difference_s,
            only_in=other[row.only_in],
        )
        for row in all_rows(difference(b, a))
    ]
    assert all_rows(difference(a, b)) == turned


@given(a=profiles, b=profiles)
def test_rows_add_up_to_the_whole(a, b):
    found = difference(a, b)
    largest = max(row.a_s + row.b_s for row in (found.makespan, *found.busy))

    def total(rows):
        return fsum(row.difference_s for row in rows)

    def near(seconds):
        return pytest.approx(seconds, rel=1e-9, abs=1e-9 * largest)

    assert total(found.step) == near(found.makespan.difference_s)
    assert total(found.phases) == near(total(found.busy))
    assert total(found.operations) == near(total(found.busy))
    assert total(found.collectives) == near(total(row for row in found.busy if row.kind == "communication"))


def test_by_hand():
    def profile(name, *busy):
        return Profile(name, 10.0, 4.0, 5.0, 1.0, 6.0, tuple(busy))

    kernel = Busy("forward", "gemm", "compute", 0, 0, 2.0, 4.0)
    reduce = Busy("backward", "all_reduce", "communication", 100, 8, 1.0, 6.0)
    a = profile("a", kernel, reduce)
    b = profile("b", replace(kernel, busy_s=5.0), replace(reduce, bytes=200, busy_s=8.0), replace(kernel, phase="more"))
    found = difference(a, b)
    assert [(row.name, row.difference_s, row.only_in) for row in found.phases] == [
        ("more", 4.0, "B"),
        ("backward", 2.0, ""),
        ("forward", 1.0, ""),
    ]
    assert [(row.name, row.a_s, row.b_s, row.a_count, row.b_count) for row in found.operations] == [
        ("gemm", 4.0, 9.0, 2.0, 4.0),
        ("all_reduce", 6.0, 8.0, 1.0, 1.0),
    ]
    assert [(row.bytes, row.group_size, row.difference_s, row.only_in) for row in found.collectives] == [
        (200, 8, 8.0, "B"),
        (100, 8, -6.0, "A"),
    ]
