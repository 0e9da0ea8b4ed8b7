"""Kernels beside collectives: hand-computed times, laws, and what 4 H200 measured."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import jobs

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.host import issue
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.communication_library import ResourceUse
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.network.flow.instances import LinkNetwork
from scaleout.network.routes.links import links_of
from scaleout.network.routes.symmetry import Symmetry
from scaleout.program.graph import NONE, GraphBuilder, NodeKind
from scaleout.program.operations import kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.schedule import apply_schedule
from scaleout.simulation.columns import Sharing, Tasks
from scaleout.simulation.contention import Contention, contention_of
from scaleout.simulation.engine import run
from scaleout.simulation.fold import fold
from scaleout.simulation.folded_program import FoldedProgram, instances_of
from scaleout.simulation.run import simulate
from scaleout.simulation.shared_devices import SharedDevices
from scaleout.simulation.tasks import tasks_of
from scaleout.validation.measured.compare import compare_files
from scaleout.validation.measured.kernels import loops
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

H200 = load_device("h200")


def resource_use(*values):
    """What a collective takes from the device, its values in the order of the fields."""
    return ResourceUse.model_construct(**dict(zip(ResourceUse.model_fields, values)))  # noqa: B905 - the rest by default


HALF = Contention(H200, resource_use(66, 66, 1.2e12, 1e9, 1.5, 1.0))
"""Takes half of the SMs. Links never fill, so that a collective takes 1.5 times as long as alone, or up to 2.5."""
MEASURED = Path(__file__).parents[3] / "shared" / "measurements" / "h200-x4" / "contention.jsonl"
PRODUCT = kernel("gemm", dtype="bf16", M=8192, N=4096, K=1024)
ADDITION = kernel("add", dtype="bf16", elements=1 << 28)


def transfer(instance, devices, lasts_s, *, channels=66, posted=(), races=False, communicator=NONE, waiting=None):
    """A transfer between devices, and the tasks that wait for the others, on which of them."""
    return instance, lasts_s, channels, races, communicator, devices, posted, waiting or {}


def sharing_of(kernels=(), transfers=()):
    """What shares devices: a row for each kernel, as in its columns, and transfers."""
    instance, device, named, isolated_s, issue_s = zip(*kernels, strict=True) if kernels else ((),) * 5
    pairs = [(device, device in posted) for *_, devices, posted, _ in transfers for device in devices]
    begins = np.cumsum([0, *(len(devices) for *_, devices, _, _ in transfers)])
    waiting = [
        (task, begin + devices.index(device))
        for begin, (*_, devices, _, tasks) in zip(begins, transfers, strict=False)
        for task, device in tasks.items()
    ]
    whole = lambda values: np.array(list(values), np.int64)  # noqa: E731
    return Sharing(
        kernels=list(zip(named, isolated_s, strict=True)),
        kernel_instance=whole(instance),
        kernel_device=whole(device),
        kernel_kind=np.arange(len(kernels)),
        kernel_issue_s=np.array(issue_s, np.float64),
        transfer_instance=whole(row[0] for row in transfers),
        lasts_s=np.array([row[1] for row in transfers], np.float64),
        channels=whole(row[2] for row in transfers),
        races=np.array([row[3] for row in transfers], bool),
        communicator=whole(row[4] for row in transfers),
        pair_offsets=begins,
        pair_device=whole(device for device, _ in pairs),
        pair_posted=np.array([posted for _, posted in pairs], bool),
        waiting=whole(task for task, _ in waiting),
        waiting_pair=whole(pair for _, pair in waiting),
    )


def step(shared, until_s=float("inf")):
    """Advance until something ends, but not beyond a time; return the time, and what ends."""
    while (now_s := shared.next_s()) <= until_s:
        if done := shared.advance(now_s, []):
            return now_s, done
    return until_s, []


def ends(shared, *begins, come=()):
    """Times at which kernels and transfers end that begin at given times; or at which one of their tasks came first."""
    starts, arrivals = [(at, 1, instance) for at, instance in begins], [(at, 0, pair) for at, pair in come]
    found, waiting = {}, sorted([*starts, *arrivals])
    while waiting or len(found) < len(begins):
        now, done = step(shared, waiting[0][0] if waiting else float("inf"))
        found |= dict.fromkeys(done, now)
        if waiting and not done:
            at, begin, what = waiting.pop(0)
            if begin:
                shared.start(what, at)
            else:
                shared.arrive(*what, at)
    return found


def test_a_collective_waits_for_the_kernel_that_fills_the_device_then_both_slow_down():
    """Kernel 0 runs 0 to 4. The collective of 3 s begins at 1, waits until 4, and goes at 1 / 1.5 beside kernel 1."""
    sharing = sharing_of([(0, 0, None, 4.0, 0), (1, 0, None, 2.0, 0)], [transfer(2, (0,), 3.0)])
    # Kernel 1 takes twice its 2 s on half of the SMs: from 4 to 8. Until then 4 / 1.5 s of the collective are done.
    expected = {0: 4.0, 1: 8.0, 2: 8.0 + 3.0 - 4.0 / 1.5}
    assert ends(SharedDevices(HALF, sharing), (0.0, 0), (1.0, 2), (4.0, 1)) == pytest.approx(expected)


def test_a_kernel_that_begins_beside_a_collective_is_fast_once_that_has_ended():
    shared = SharedDevices(HALF, sharing_of([(1, 1, None, 4.0, 0)], [transfer(0, (0, 1), 3.0)]))
    # The collective goes at 1 / 1.5 from 1 on: it ends at 1 + 2 * 1.5. The kernel has done 1.5 of its 4 s by then.
    assert ends(shared, (0.0, 0), (1.0, 1)) == pytest.approx({0: 4.0, 1: 4.0 + 2.5})


def test_devices_that_do_not_communicate_are_left_alone():
    shared = SharedDevices(HALF, sharing_of([(1, 1, None, 4.0, 0)], [transfer(0, (0,), 3.0)]))
    assert ends(shared, (0.0, 0), (0.0, 1)) == {0: 3.0, 1: 4.0}


def test_who_waits_for_others_holds_its_sms_already():
    """Device 0 comes at 1 behind kernel 0, which ends at 2; kernel 1 there goes at half speed though nothing moves.

    Device 1 comes at 5, and the bytes move from then on for 1 s at 1 / 1.5: kernel 1 has done 1.5 of its 4 s at 5 and
    the rest, at half speed until 6.5 and then alone, takes until 6.5 + 4 - 2.25.
    """
    kernels = [(0, 0, None, 2.0, 0), (1, 0, None, 4.0, 0)]
    shared = SharedDevices(HALF, sharing_of(kernels, [transfer(2, (0, 1), 1.0, waiting={10: 0, 11: 1})]))
    come = ((1.0, (2, 10)), (5.0, (2, 11)))
    found = ends(shared, (0.0, 0), (2.0, 1), (5.0, 2), come=come)
    assert found == pytest.approx({0: 2.0, 2: 6.5, 1: 6.5 + 4.0 - 2.25})


def test_a_collective_that_waits_for_an_event_races_the_kernel_that_is_in_the_queue():
    """Kernel 1 and the collective of 1 s follow kernel 0 at 4; half of the SMs are held beside kernel 1 from then on.

    Where kernel 1 won it ends at 6, and the bytes move until 7.5, when 1.75 of its 2 s are done where it did not. One
    that was issued less than 1 s before the event lets the collective go first: it takes 1.5 s, in which the kernel
    does 0.75 of its 2 s. A transfer that does not race goes first as well, and each where no host issues calls.
    """
    queue = replace(HALF, resource_use=HALF.resource_use.model_copy(update={"queue_s": 1.0}))
    for issue_s, races, expected in ((3.0, True, (7.75, 7.5)), (3.5, True, (6.75, 5.5)), (3.0, False, (6.75, 5.5)),
                                    (0.0, True, (6.75, 5.5))):  # fmt: skip
        kernels = [(0, 0, None, 4.0, 0), (1, 0, None, 2.0, issue_s)]
        shared = SharedDevices(queue, sharing_of(kernels, [transfer(2, (0,), 1.0, races=races, waiting={10: 0})]))
        shared.start(0, 0.0)
        now, done = step(shared)
        assert (now, done) == (4.0, [0])
        follow(shared, now, kernel=1, transfer=2, task=10)
        found = {}
        while len(found) < 2:
            now, done = step(shared)
            found |= dict.fromkeys(done, now)
        assert (found[1], found[2]) == pytest.approx(expected)


def follow(shared, now, *, kernel, transfer, task):
    """Let a kernel and a transfer begin, both of which waited for what has ended."""
    shared.arrive(transfer, task, now)
    shared.start(transfer, now)
    shared.start(kernel, now)


def test_ranks_race_once_and_lag_from_there_on():
    """As above, and at 7.75 kernel 3 and another collective follow: where kernel 1 won, kernel 3 runs already.

    So kernel 3 is not slowed down, and the bytes move when it has ended, from 9.75 on.
    """
    queue = replace(HALF, resource_use=HALF.resource_use.model_copy(update={"queue_s": 1.0}))
    kernels = [(0, 0, None, 4.0, 0.5), (1, 0, None, 2.0, 1.0), (3, 0, None, 2.0, 1.5)]
    transfers = [transfer(number, (0,), 1.0, races=True, waiting={task: 0}) for number, task in ((2, 10), (4, 11))]
    shared = SharedDevices(queue, sharing_of(kernels, transfers))
    shared.start(0, 0.0)
    follow(shared, step(shared)[0], kernel=1, transfer=2, task=10)
    assert step(shared) == (pytest.approx(7.5), [2])
    now, done = step(shared)
    assert done == [1]
    follow(shared, now, kernel=3, transfer=4, task=11)
    assert step(shared) == (pytest.approx(9.75), [3])
    assert step(shared) == (pytest.approx(10.75), [4])


def test_a_transfer_behind_a_product_gets_the_sms_that_wait_for_late_blocks():
    """24 SMs are held until 1.5: the product's other blocks end at 8 and the late ones at 8.5, see below.

    A transfer that came behind it moves its bytes from 8 to 9, and takes nothing from it.
    """
    transfers = [transfer(0, (0,), 1.5, channels=24), transfer(2, (0,), 1.0, channels=24, waiting={10: 0})]
    sharing = sharing_of([(1, 0, PRODUCT, 8.0, 0)], transfers)
    shared = SharedDevices(Contention(H200, resource_use(24, 16, 1e12, 19, 1.0, 0.0)), sharing)
    found = ends(shared, (0.0, 0), (0.0, 1), (2.0, 2), come=((2.0, (2, 10)),))
    assert found == pytest.approx({0: 1.5, 1: 8.5, 2: 9.0})


def test_a_product_of_few_waves_loses_one_to_a_short_collective():
    """1024 tiles of 1 s on 132 SMs take 8 s. With 24 held until h, 108 floor(T) + 24 floor(T - h) are done at T.

    With h = 0.5 there are 864 + 24 * 7 = 1032 at 8. With 1.5 only 1008 at 8, and 1032 at 8.5, the last 24 on the SMs
    that were held; with 2.5 still 1008 at 8.5, and 1116 at 9. Held throughout it is 1024 / 108 rounded up.
    """
    some = Contention(H200, resource_use(24, 16, 1e12, 19, 1.3, 1.6))
    for held_s, expected_s in ((0.0, 8.0), (0.5, 8.0), (1.5, 8.5), (2.5, 9.0), (9.0, 10.0), (9.9, 10.0), (11.0, 11.0)):
        others_s = 8.0 if held_s == 1.5 else expected_s
        assert some.freed_s(PRODUCT, 8.0, num_sms=24, held_s=held_s) == pytest.approx((expected_s, others_s))
    assert some.freed_s(ADDITION, 8.0, num_sms=24, held_s=1.0) is None
    assert some.freed_s(None, 8.0, num_sms=24, held_s=1.0) is None


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 60), st.floats(0, 20), st.floats(0, 20))
def test_holding_sms_longer_never_helps(rows, columns, held, one_s, other_s):
    product = kernel("gemm", dtype="bf16", M=128 * rows, N=128 * columns, K=1024)
    times = [HALF.freed_s(product, 8.0, num_sms=held, held_s=held_s) for held_s in sorted((one_s, other_s))]
    if times[0] is not None:
        assert 8.0 * (1 - 1e-9) <= times[0][0] <= times[1][0] * (1 + 1e-9)
        assert all(others_s <= whole_s for whole_s, others_s in times)


def test_a_message_posted_long_before_waits_for_no_kernel():
    for posted, end_s in (((), 4.0 + 3.0), ((0,), 1.0 + 3.0 * 1.5)):
        shared = SharedDevices(HALF, sharing_of([(0, 0, None, 4.0, 0)], [transfer(1, (0,), 3.0, posted=posted)]))
        assert ends(shared, (0.0, 0), (1.0, 1))[1] == pytest.approx(end_s)


def test_a_receive_that_waits_slows_down_the_kernels_of_its_rank():
    """Rank 1 posts a receive behind its first kernel; rank 0 sends after 4 s. Kernels are twice as slow meanwhile."""
    graphs = []
    for sends in (True, False):
        graph = GraphBuilder("step")
        first = graph.add((), name="work", duration_s=4.0 if sends else 1.0)
        graph.add((first,), name="m", kind=NodeKind.SEND if sends else NodeKind.RECV, bytes=8, group=0, peer=1, tag=1)
        if not sends:
            graph.add((first,), name="more", duration_s=3.0)
        graphs.append(graph.build())
    program = Program("p", tuple(graphs), np.arange(2), (GroupFamily("pair", ((0, 1),)),))
    timeline = simulate(program, load_topology("mi210-pair"), contention=HALF).timelines[1]
    assert timeline.end_s[2] == pytest.approx(1.0 + 3.0 + 1.5, rel=1e-3)


def test_messages_of_a_communicator_hold_sms_once():
    """Two of 66 channels that wait: a kernel of 2 s keeps half of the SMs, or a tenth beside two communicators."""
    for communicators, end_s in (((7, 7), 4.0), ((7, 8), 2.0 * 132 / 13)):
        transfers = [
            transfer(number, (0, 1), 1.0, communicator=communicator, waiting={10 + number: 0})
            for number, communicator in enumerate(communicators)
        ]
        shared = SharedDevices(HALF, sharing_of([(2, 0, None, 2.0, 0)], transfers))
        come = tuple((0.0, (number, 10 + number)) for number in (0, 1))
        assert ends(shared, (0.0, 2), come=come)[2] == pytest.approx(end_s)


@pytest.mark.parametrize("degree", [2, 4])
def test_a_ring_of_context_parallelism_slows_only_what_runs_beside_its_messages(degree):
    """Two layers of Llama 3 70B, 8192 tokens a rank, whose ring's steps are one message at a time.

    Keys and values, 33.6 MB, take 111 us alone. Attention moves 302 MB in 1.78 ms, 3.5% of what the memory can, so a
    channel is ``1.3 + 1.6 * 0.035 = 1.36`` times as slow, and 16 of them, of which 19 fill the links, reach
    ``(1 + (19 / 16)**3)**(-1 / 3) = 0.72`` of them alone and 0.58 so: 138 us. Meanwhile attention on 116 SMs goes at
    1 / 1.133, and loses 16 us.
    """
    plan = {"tensor_parallel": 1, "sequence_parallel": False, "data_parallel": 1, "context_parallel": degree}
    job = load_workload("llama-3-70b", plan | {"layers": 2, "sequence": 8192 * degree})
    whole = load_topology("dgx-h200-1")
    topology = replace(whole, dimensions=(replace(whole.dimensions[0], size=degree),))
    contention = contention_of(H200, topology)
    program = apply_schedule(time_kernels(generate(job), H200), "baseline")
    free = simulate(program, topology)
    shared = simulate(program, topology, contention=contention)
    assert simulate(program, topology, contention=contention, unfold=True).makespan_s == shared.makespan_s
    line, graph, alone_s = shared.timelines[0], shared.timelines[0].graph, free.timelines[0].duration_s
    sends = graph.kind == NodeKind.SEND
    kernels = np.flatnonzero(graph.kind == NodeKind.COMPUTE)
    beside = (line.start_s[:, None] < line.end_s[sends]) & (line.end_s[:, None] > line.start_s[sends])
    apart = kernels[~beside[kernels].any(axis=1)]
    assert line.duration_s[apart] == pytest.approx(alone_s[apart], rel=1e-12)
    lost_s = line.duration_s - alone_s
    assert lost_s[graph.names.index("attention_gqa_fwd")] == pytest.approx(138e-6 * (1 - 116 / 132), rel=0.05)
    most_s = line.duration_s[sends].sum() * (1 - 116 / 132)
    assert 0 < shared.makespan_s - free.makespan_s <= lost_s[kernels].sum() * (1 + 1e-9) <= most_s


def test_what_a_kernel_suffers_depends_on_what_it_needs():
    """A product's 1024 tiles take 8 waves of 132 SMs; of 116, 1024 / 116 + 1; two channels cost it a wave as well.

    Measured on H200 beside a receive that waits, 2 and 16 SMs: products 1.14 and 1.22 (M=4096, N=8192, K=2048; as many
    tiles), 1.16 and 1.27 (M=2048, N=12288, K=3072; 768 tiles), additions not at all.
    """

    def slowed(one, num_sms, taken_bytes_per_s=0.0):
        (found,) = HALF.slowed(one, num_sms=num_sms, taken_bytes_per_s=np.array([taken_bytes_per_s]))
        return found

    assert slowed(PRODUCT, num_sms=16) == pytest.approx((1024 / 116 + 1) / 8, rel=0.02)
    assert slowed(PRODUCT, num_sms=2) == pytest.approx((1024 / 130 + 1) / 8, rel=0.02)
    assert slowed(ADDITION, num_sms=16) == 1.0
    quarter = 0.88 * H200.memory_bytes_per_s / 4
    assert slowed(ADDITION, num_sms=16, taken_bytes_per_s=quarter) == pytest.approx(4 / 3, rel=1e-3)
    assert slowed(None, 66) == 2.0
    busy_s = ADDITION.bytes / H200.memory_bytes_per_s
    assert HALF.slows(ADDITION, [2 * busy_s], channels=1) == pytest.approx([2.0])
    assert HALF.taken(33) == pytest.approx(HALF.taken(66) / 2)


def test_channels_that_the_links_hold_up_suffer_less():
    """Of 19 channels to fill the links four are as slow as the memory makes them, and 76 are as fast as the links."""
    some = Contention(H200, resource_use(24, 16, 1e12, 19, 2.0, 0.0))
    assert some.slows(None, [1.0], channels=4) == pytest.approx([2.0], rel=0.01)
    assert some.slows(None, [1.0], channels=76) == pytest.approx([1.0], abs=0.05)
    assert [1.0] < some.slows(None, [1.0], channels=24) < some.slows(None, [1.0], channels=16) < [2.0]


@given(jobs(max_roles=2))
@settings(max_examples=40)
def test_folded_and_alone_devices_are_shared_alike_and_nothing_is_faster(case):
    program, topology = case
    for schedule in ("baseline", "overlap"):
        scheduled = apply_schedule(program, schedule)
        free = simulate(scheduled, topology)
        shared = simulate(scheduled, topology, contention=HALF)
        unfolded = simulate(scheduled, topology, contention=HALF, unfold=True)
        assert shared.makespan_s == unfolded.makespan_s
        for line, alone in zip(shared.timelines, free.timelines, strict=True):
            whole = (line.graph.slices == 1) | (line.graph.kind == NodeKind.COMPUTE)
            assert (line.duration_s[whole] >= alone.duration_s[whole] * (1 - 1e-9) - 1e-15).all()
        if schedule == "baseline":  # nothing runs at the same time
            assert shared.makespan_s == free.makespan_s


@pytest.mark.parametrize("host", ["none", "eager"])
@pytest.mark.parametrize(("axis", "schedule"), [("tensor_parallel", "overlap"), ("data_parallel", "overlap"),
                                                ("context_parallel", "baseline"),
                                                ("pipeline_parallel", "baseline")])  # fmt: skip
def test_contention_under_links_is_that_of_alpha_beta_where_collectives_do_not_share_links(axis, schedule, host):
    """On a switch both networks agree to rounding, with contention as without it."""
    degrees = {"tensor_parallel": 1, "data_parallel": 1, "layers": 4, axis: 4}
    topology = load_topology("h200-node-4")
    timed = issue(time_kernels(generate(load_workload("llama-3-8b", degrees)), H200), H200, host=host)
    scheduled = apply_schedule(timed, schedule)
    for contention in (None, contention_of(H200, topology)):
        found = [
            simulate(scheduled, topology, network=network, contention=contention) for network in ("alpha_beta", "link")
        ]
        assert found[0].makespan_s == pytest.approx(found[1].makespan_s, rel=1e-9)
        for closed, routed in zip(found[0].timelines, found[1].timelines, strict=True):
            assert closed.end_s == pytest.approx(routed.end_s, rel=1e-9)
    assert found[1].makespan_s > simulate(scheduled, topology, network="link").makespan_s * 1.001


@given(jobs(max_roles=2))
@settings(max_examples=20)
def test_contention_under_links_folds_and_costs_nothing_to_what_runs_alone(case):
    program, topology = case
    for schedule in ("baseline", "overlap"):
        scheduled = apply_schedule(program, schedule)
        shared = simulate(scheduled, topology, network="link", contention=HALF)
        unfolded = simulate(scheduled, topology, network="link", contention=HALF, unfold=True)
        assert shared.makespan_s == unfolded.makespan_s
        if schedule == "baseline":
            assert shared.makespan_s == simulate(scheduled, topology, network="link").makespan_s


def test_two_collectives_share_a_link_and_a_kernel_slows_one_of_them():
    """Two groups' transfers of 1 s each over one link, alone 2 s; the first goes at 1 / 1.5 beside a kernel.

    It has done 2 / 3 s of the 1 s when the other ends at 2 s, and its last third takes half a second at 1 / 1.5.
    """
    topology = Topology("t", (Dimension("switch", 2, 1e9, 0.0),))
    links = LinkNetwork(links_of(topology), {NONE: Symmetry()})
    transfers = []
    for instance, device in ((1, 0), (2, 5)):
        links.register_message(instance, 1e9, source=0, destination=1)
        links.pace([instance])
        transfers.append(transfer(instance, (device,), np.inf, waiting={instance: device}))
    # The kernel arrives first and fills its device, unless the transfer is the first in the order of streams.
    tasks = Tasks.of([np.nan] * 3, stream=[2, 0, 1], instance=[0, 1, 2], instance_size=[1] * 3)
    times = run(tasks, sharing_of([(0, 0, None, 100.0, 0)], transfers), HALF, links)
    assert times.end_s[2] == pytest.approx(2.0)
    assert times.end_s[1] == pytest.approx(2.5)
    assert times.end_s[0] == pytest.approx(100 + 2.5 / 2)  # half of its SMs are held for 2.5 s


def test_a_short_collective_runs_once_behind_each_kernel():
    """It waits for a kernel's end and then takes 1.5 s beside the next, which does half its work meanwhile: 4.75 s."""
    found = loops(HALF, (None,), {"compute": 4.0, "collective": 1.0}, channels=66)
    assert found["compute"] == pytest.approx(4.75, rel=0.03)
    assert found["collective"] == pytest.approx(4.75, rel=0.05)


def test_a_long_collective_runs_beside_several_kernels():
    """66 s of kernels that take twice as long, and a collective that takes 1.5 times 10 s, behind a kernel's end."""
    found = loops(HALF, (None,), {"compute": 1.0, "collective": 10.0}, channels=66)
    assert found["compute"] == pytest.approx(2.0, rel=0.07)
    assert found["collective"] == pytest.approx(16.0, abs=1.1)


@pytest.mark.skipif(not MEASURED.exists(), reason="needs the shared measurements of 4 H200")
def test_what_was_measured():
    """141 rows: kernels, and collectives beside all but look-ups, whose kernels came late from the host."""
    rows = [json.loads(line)["compute"] for line in MEASURED.read_text().splitlines()]
    errors = {"compute": [], "collective": []}
    for row in compare_files([MEASURED]).rows:
        _, number, part = row.id.split(":")
        if part == "compute" or not rows[int(number) - 1].startswith("embedding"):
            errors[part].append(abs(row.error))
    assert len(errors["compute"]) == len(rows) == 141
    assert np.mean(errors["compute"]) < 0.05
    assert np.mean(errors["collective"]) < 0.10


@given(
    st.lists(st.integers(NONE, 1), min_size=1, max_size=12),
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=12, max_size=12), min_size=1, max_size=3),
)
def test_each_kernel_has_a_kind_of_its_call_and_time(calls, times):
    """Graphs share their columns but for the times, which need not be in one order in all of them."""
    builder = GraphBuilder()
    assert [builder.kernel_index(each) for each in (PRODUCT, ADDITION)] == [0, 1]
    for call in calls:
        builder.add((), name="", kernel=call, duration_s=times[0][0])
    built = builder.build()
    graphs = tuple(built.with_columns(duration_s=np.array(row[: len(calls)])) for row in times)
    program = Program("kinds", graphs, np.arange(len(graphs)), ())
    topology = Topology("t", (Dimension("switch", len(graphs), 1e9, 0.0),))
    folded = FoldedProgram(program, topology, {}, fold(program, topology, unfold=True))
    sharing = tasks_of(folded, instances_of(folded), None, HALF.resource_use)[1]
    named = [sharing.kernels[kind] for kind in sharing.kernel_kind.tolist()]
    nodes = [(call, seconds) for row in times for call, seconds in zip(calls, row, strict=False) if seconds]
    assert named == [((PRODUCT, ADDITION, None)[call], seconds) for call, seconds in nodes]
