"""The clock: small sets of tasks whose start times are worked by hand, laws over random ones, and an anomaly."""

import math
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.program.graph import NONE
from scaleout.simulation.columns import Tasks
from scaleout.simulation.engine import run


def tasks_of(duration_s, stream, users, *, instance_ports=None, port_s=None, **columns):
    """Tasks from lists of lists: the users of each, and the ports of each instance and how long it holds them."""
    ports = instance_ports or [()] * len(columns["instance_size"])
    held_s = port_s or [(math.inf,) * len(held) for held in ports]
    columns = {name: column for name, column in columns.items() if column}
    columns |= {"ports": list(chain.from_iterable(ports)), "port_s": list(chain.from_iterable(held_s))}
    return Tasks.of(duration_s, users, stream=stream, port_offsets=np.cumsum([0, *map(len, ports)]), **columns)


def tasks(
    duration_s,
    *,
    stream=None,
    after=None,
    priority=None,
    occupancy_s=None,
    instance=None,
    sizes=(),
    ports=None,
    port_s=(),
):
    """Tasks on stream 0 without dependencies, unless said otherwise; `after` maps a task to those it waits for."""
    count = len(duration_s)
    after = after or {}
    users = [[task for task in range(count) if other in after.get(task, ())] for other in range(count)]
    return tasks_of(
        duration_s, stream or [0] * count, users, occupancy_s=occupancy_s, priority=priority, instance=instance,
        instance_size=sizes, instance_ports=ports, port_s=port_s,
    )  # fmt: skip


def starts(given_tasks):
    return run(given_tasks).start_s.tolist()


def test_a_stream_runs_one_task_at_a_time_in_order():
    times = run(tasks([3.0, 1.0, 2.0]))
    assert times.start_s.tolist() == [0, 3, 4]
    assert times.end_s.tolist() == [3, 4, 6]
    assert times.cause.tolist() == [NONE, 0, 1]


def test_streams_run_side_by_side():
    assert starts(tasks([3.0, 1.0, 2.0], stream=[0, 1, 1])) == [0, 0, 1]


def test_a_task_without_a_stream_waits_for_nothing_but_its_dependencies():
    assert starts(tasks([3.0, 1.0, 2.0], stream=[0, NONE, NONE], after={2: (1,)})) == [0, 0, 1]


def test_the_highest_priority_goes_first_then_the_lowest_index():
    # 0 runs alone; then 3 (priority 2), 1 and 4 (priority 1), 2.
    assert starts(tasks([1.0] * 5, after=dict.fromkeys(range(1, 5), (0,)), priority=[0, 1, 0, 2, 1])) == [0, 2, 4, 1, 3]


def test_what_is_ready_does_not_wait_for_a_higher_priority_to_come():
    # 1 is ready at 0 and runs until 5; 2, more urgent, is ready at 1 on the same stream and waits.
    times = run(tasks([1.0, 5.0, 1.0], stream=[0, 1, 1], after={2: (0,)}, priority=[0, 0, 9]))
    assert times.start_s.tolist() == [0, 0, 5]
    assert times.cause.tolist() == [NONE, NONE, 1]


def test_a_dependency_on_another_stream():
    # 2 waits for 1 until 4 while its stream idles from 3.
    times = run(tasks([3.0, 4.0, 1.0], stream=[0, 1, 0], after={2: (0, 1)}))
    assert times.start_s.tolist() == [0, 0, 4]
    assert times.cause[2] == 1


def test_a_task_is_done_after_its_stream_is_free():
    # Task 0 holds the stream for 1 and is done at 5: task 1 starts at 1, task 2, which needs it, at 5.
    times = run(tasks([5.0, 1.0, 1.0], occupancy_s=[1.0, 1.0, 1.0], after={2: (0,)}))
    assert times.start_s.tolist() == [0, 1, 5]
    assert times.end_s.tolist() == [5, 2, 6]


def test_tasks_of_no_length_run_in_order():
    assert starts(tasks([0.0, 0.0, 2.0, 0.0], after={3: (2,)})) == [0, 0, 0, 2]


def test_an_instance_starts_when_the_last_member_has_arrived():
    # Timelines on streams 0 and 1 work for 2 and 7; the instance of 1 and 3 lasts 4 for both.
    given_tasks = tasks(
        [2.0, 4.0, 7.0, 4.0, 1.0], stream=[0, 0, 1, 1, 0], after={1: (0,), 3: (2,)}, instance=[NONE, 0, NONE, 0, NONE],
        sizes=[2], ports=[(0,)],
    )  # fmt: skip
    times = run(given_tasks)
    # At 2 both 1 and 4 are ready on stream 0; 1 has the lower index and holds the stream while it waits.
    assert times.start_s.tolist() == [0, 7, 0, 7, 11]
    assert times.cause[1] == times.cause[3] == 2


def test_two_instances_share_a_port_and_a_third_has_its_own():
    # Three timelines of one task each on streams 0, 1, 2, each its own instance; ports 0, 0 and 1.
    times = run(tasks([2.0, 3.0, 4.0], stream=[0, 1, 2], instance=[0, 1, 2], sizes=[1, 1, 1], ports=[(0,), (0,), (1,)]))
    assert times.start_s.tolist() == [0, 2, 0]
    assert times.cause.tolist() == [NONE, 0, NONE]


def test_a_port_is_held_for_the_occupancy_only():
    # Slices of one transfer: 1 on the port, 3 more in flight. The second follows at 1 and ends at 5.
    times = run(
        tasks([4.0, 4.0], occupancy_s=[1.0, 1.0], stream=[0, 1], instance=[0, 1], sizes=[1, 1], ports=[(0,), (0,)])
    )
    assert times.start_s.tolist() == [0, 1]
    assert times.end_s.tolist() == [4, 5]


def test_an_instance_needs_all_its_ports():
    # Instance 2 needs both ports: free at 2 and at 5.
    times = run(
        tasks([2.0, 5.0, 1.0], stream=[0, 1, 2], instance=[0, 1, 2], sizes=[1, 1, 1], ports=[(0,), (1,), (0, 1)])
    )
    assert times.start_s.tolist() == [0, 0, 5]
    assert times.cause[2] == 1


def test_a_port_that_is_needed_less_is_free_earlier():
    # Instance 0 lasts 5 and needs port 1 for 2 of it. Instance 1 takes port 1 then, instance 2 waits for port 0.
    held = [(np.inf, 2.0), (np.inf,), (np.inf,)]
    instances = {"instance": [0, 1, 2], "sizes": [1, 1, 1], "ports": [(0, 1), (1,), (0,)], "port_s": held}
    times = run(tasks([5.0, 1.0, 1.0], stream=[0, 1, 2], **instances))
    assert times.start_s.tolist() == [0, 2, 5]
    assert times.cause.tolist() == [NONE, 0, 0]


def test_a_port_that_another_instance_has_taken_is_not_freed_by_the_first():
    # Instance 0 ends at 1, before the 3 for which it said to need its port; instance 1 has it then, until 6.
    held = [(3.0,), (np.inf,), (np.inf,)]
    instances = {"instance": [0, 1, 2], "sizes": [1, 1, 1], "ports": [(0,)] * 3, "port_s": held}
    assert starts(tasks([1.0, 5.0, 1.0], stream=[0, 1, 2], **instances)) == [0, 1, 6]


def test_of_waiting_instances_the_most_urgent_takes_the_port():
    times = run(
        tasks(
            [2.0, 1.0, 1.0], stream=[0, 1, 2], priority=[0, 0, 1], instance=[0, 1, 2], sizes=[1, 1, 1],
            ports=[(0,), (0,), (0,)], after={1: (), 2: ()},
        )
    )  # fmt: skip
    assert times.start_s.tolist() == [1, 3, 0]


def test_who_never_starts_has_no_time():
    # The instance of 1 wants two members and one comes; 2 depends on it, and 3, behind it on the stream, waits too.
    times = run(
        tasks([1.0, 1.0, 1.0, 1.0], after={1: (0,), 2: (1,), 3: (0,)}, instance=[NONE, 0, NONE, NONE], sizes=[2])
    )
    assert times.start_s[0] == 0
    assert np.isnan(times.start_s[1:]).all()
    assert np.isnan(times.end_s[1:]).all()
    assert times.posted.tolist() == [0, 1, 0, 0]


def test_two_that_meet_in_opposite_orders_wait_for_ever():
    times = run(tasks([1.0] * 4, stream=[0, 0, 1, 1], instance=[0, 1, 1, 0], sizes=[2, 2]))
    assert np.isnan(times.start_s).all()
    assert times.posted.tolist() == [1, 0, 1, 0]


def test_nothing_to_do():
    assert len(run(tasks([])).start_s) == 0


def test_more_resources_can_be_slower():
    """A Graham anomaly: with a stream of its own, task 1 makes everybody later.

    Kernels 0 and 1 of length 1 make data for transfers 2 (short, from kernel 0) and 3 (long, from kernel 1), which
    share a port; 4 computes for long on what 2 brings. On one stream, kernel 0 goes first, and 2 with it: 4 starts
    at 2 and ends at 12. With two streams both transfers are ready at 1, and the urgent-looking one, 3, goes first.
    """
    durations = [1.0, 1.0, 1.0, 10.0, 10.0]
    after = {2: (0,), 3: (1,), 4: (2,)}
    one = run(tasks(durations, stream=[0, 0, 1, 1, 0], after=after, priority=[0, 0, 0, 1, 0]))
    two = run(tasks(durations, stream=[0, 2, 1, 1, 0], after=after, priority=[0, 0, 0, 1, 0]))
    assert one.start_s.tolist() == [0, 1, 1, 2, 2]
    assert one.end_s.max() == 12
    assert two.start_s.tolist() == [0, 0, 11, 1, 12]
    assert two.end_s.max() == 22


@st.composite
def random_tasks(draw):
    """Any tasks with dependencies on earlier ones, on a few streams, some of them instances of one on a port."""
    count = draw(st.integers(1, 12))

    def each(strategy):
        return draw(st.lists(strategy, min_size=count, max_size=count))

    duration = each(st.integers(0, 8).map(float))
    occupancy = [draw(st.sampled_from([time, time / 2])) for time in duration]
    meets = each(st.booleans())
    instance = (np.cumsum(meets) - 1).tolist()
    return tasks(
        duration,
        occupancy_s=occupancy,
        stream=each(st.integers(0, 2)),
        priority=each(st.integers(0, 1)),
        after={task: draw(st.sets(st.integers(0, task - 1), max_size=2)) for task in range(1, count)},
        instance=[number if met else NONE for number, met in zip(instance, meets, strict=True)],
        sizes=[1] * sum(meets),
        ports=[draw(st.sampled_from([(), (0,), (1,), (0, 1)])) for met in meets if met],
    )


@given(random_tasks())
def test_laws_of_the_clock(given_tasks):
    times = run(given_tasks)
    again = run(given_tasks)
    assert times.start_s.tolist() == again.start_s.tolist()
    assert times.cause.tolist() == again.cause.tolist()
    assert not np.isnan(times.start_s).any()
    start, end = times.start_s, times.end_s
    release = start + np.array(given_tasks.occupancy_s)
    causes = np.repeat(np.arange(len(start)), np.diff(given_tasks.user_offsets))
    assert (start[given_tasks.users] >= end[causes]).all()
    holders = {}
    for task in range(len(start)):
        holders.setdefault(("stream", given_tasks.stream[task]), []).append((start[task], release[task]))
        instance = given_tasks.instance[task]
        if instance != NONE:
            for port in given_tasks.ports[slice(*given_tasks.port_offsets[instance : instance + 2])].tolist():
                holders.setdefault(("port", port), []).append((start[task], release[task]))
    for held in holders.values():
        held.sort()
        assert all(after[0] >= before[1] for before, after in pairwise(held))
    # Whoever starts after zero starts at the moment at which its cause ended or let go.
    for task, cause in enumerate(times.cause.tolist()):
        if cause == NONE:
            assert start[task] == 0
        else:
            assert start[task] in (end[cause], release[cause])
    assert end.max() <= sum(given_tasks.duration_s)


@pytest.mark.parametrize("seed", range(3))
def test_a_thousand_tasks_twice_give_the_same_bits(seed):
    random = np.random.default_rng(seed)
    count = 1000
    given_tasks = tasks(
        random.random(count).tolist(),
        stream=random.integers(0, 5, count).tolist(),
        priority=random.integers(0, 3, count).tolist(),
        after={task: set(random.integers(0, task, 2).tolist()) for task in range(1, count)},
    )
    first, second = run(given_tasks), run(given_tasks)
    assert first.start_s.tobytes() == second.start_s.tobytes()
    assert first.cause.tobytes() == second.cause.tobytes()
