"""One contract for all pipeline schedules, a naive oracle for their clock, and the bubbles and memory of the papers."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.errors import ConfigError, SimulationError
from scaleout.workloads.families import load_workload
from scaleout.workloads.pipeline import PIPELINES, Action, Step, named, orders
from scaleout.workloads.pipeline.blocks import blocks, connect
from scaleout.workloads.pipeline.clock import Durations, run

FORWARD, BACKWARD, INPUT, WEIGHT = Action


def chunks_of(name, free=1):
    """Model chunks of a rank: the schedule's own number, or any where that is free."""
    return PIPELINES[name].num_chunks or free


each_pipeline = pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=lambda pipeline: pipeline.name)

SIZES = {
    name: [
        (p, m, v)
        for p, m, v in itertools.product(range(1, 9), range(1, 25), range(1, 4) if pipeline.num_chunks is None else [1])
        if pipeline.check(p, m, chunks_of(name, v)) is None
    ]
    for name, pipeline in PIPELINES.items()
}
"""Small p, m and v with which each schedule can be."""

GROUPED = [
    (p, m, v, group)
    for p, m, v, group in itertools.product(range(1, 7), range(1, 19), range(2, 4), range(1, 19))
    if named("interleaved_1f1b", group).check(p, m, v) is None
]
"""Small p, m, v and L with which interleaved microbatches can go in groups of L."""

quarters = st.integers(1, 12).map(lambda number: number / 4)


@st.composite
def schedules(draw, pipeline):
    """The blocks of a schedule of any sizes, and groups of any size where it has groups."""
    if pipeline.in_groups is not None and draw(st.booleans()):
        p, m, v, group = draw(st.sampled_from(GROUPED))
    else:
        (p, m, v), group = draw(st.sampled_from(SIZES[pipeline.name])), None
    return blocks(pipeline.name, stages=p, microbatches=m, chunks=v, group=group), m


def table(draw, *shape):
    """Any seconds; exact in binary, so that sums are too."""
    number = int(np.prod(shape))
    return np.array(draw(st.lists(quarters, min_size=number, max_size=number))).reshape(shape)


def makers(layout, p, v, rank, step):
    """What a step needs by the meaning of stages alone: (rank, step) each; a gradient may be of either action."""
    action, stage = step.action, layout.stage_of(rank, step.chunk, p, v)
    gradients = (BACKWARD, INPUT)
    if action == WEIGHT:
        return [(rank, Step(INPUT, step.chunk, step.microbatch))]
    wanted = stage - 1 if action == FORWARD else stage + 1
    found = [
        (other, Step(made, chunk, step.microbatch))
        for other, chunk in itertools.product(range(p), range(v))
        if layout.path_of(chunk) == layout.path_of(step.chunk) and layout.stage_of(other, chunk, p, v) == wanted
        for made in ((FORWARD,) if action == FORWARD else gradients)
    ]
    return found if action == FORWARD else [*found, (rank, Step(FORWARD, step.chunk, step.microbatch))]


def naive_clock(found, slot_s, send_s, *, blocking):
    """Start of every slot: go round and round until nobody can start, with dictionaries only."""
    layout, p, v = found.pipeline.layout, found.num_ranks, found.num_chunks
    everyone = {(rank, step) for rank in range(p) for slot in found.orders[rank] for step in slot}
    ended, start, free, upcoming = {}, [[] for _ in range(p)], [0.0] * p, [0] * p
    stages = {(layout.path_of(c), layout.stage_of(r, c, p, v)): (r, c) for r in range(p) for c in range(v)}

    def link(rank, other, step, by):
        """Seconds between the neighbours of which the one with the lower stage gives the link its number."""
        if rank == other:
            return 0.0
        stage = layout.stage_of(rank, step.chunk, p, v) + min(by, 0)
        return send_s[stages[layout.path_of(step.chunk), stage]]

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(found.orders):
            while upcoming[rank] < len(order):
                slot = order[upcoming[rank]]
                needs = [(step, need) for step in slot for need in makers(layout, p, v, rank, step) if need in everyone]
                if any(need not in ended for _, need in needs):
                    break
                arrivals = [
                    ended[need] + link(rank, need[0], step, -1 if step.action == FORWARD else 1) for step, need in needs
                ]
                at = max([free[rank], *arrivals])
                seconds = slot_s(rank, slot)
                start[rank].append(at)
                ended |= {(rank, step): at + seconds for step in slot}
                sent = [0.0]
                for step in slot:
                    by = {FORWARD: 1, WEIGHT: 0}.get(step.action, -1)
                    stage = layout.stage_of(rank, step.chunk, p, v) + by
                    other = stages.get((layout.path_of(step.chunk), stage))
                    if by and other:
                        sent.append(link(rank, other[0], step, by))
                free[rank] = at + seconds + (max(sent) if blocking else 0.0)
                upcoming[rank] += 1
                moved = True
    assert upcoming == [len(order) for order in found.orders]
    return start


@each_pipeline
@given(data=st.data())
def test_each_action_is_done_once(pipeline, data):
    """Every virtual stage takes every microbatch of its path forward once and makes each gradient once."""
    found, m = data.draw(schedules(pipeline))
    p, v = found.num_ranks, found.num_chunks
    done = Counter()
    for rank, order in enumerate(found.orders):
        for step in itertools.chain(*order):
            for part in {BACKWARD: (INPUT, WEIGHT)}.get(step.action, (step.action,)):
                path, stage = pipeline.layout.path_of(step.chunk), pipeline.layout.stage_of(rank, step.chunk, p, v)
                done[part, path, stage, step.microbatch] += 1
    paths = [{key[3] for key in done if key[1] == path} for path in range(pipeline.layout.copies)]
    assert sorted(itertools.chain(*paths)) == list(range(m))
    assert set(done) == {
        (part, path, stage, microbatch)
        for part in (FORWARD, INPUT, WEIGHT)
        for path in range(pipeline.layout.copies)
        for stage in range(pipeline.layout.num_stages(p, v))
        for microbatch in paths[path]
    }
    assert set(done.values()) == {1}


@each_pipeline
@pytest.mark.parametrize("p", [1, 2, 5])
def test_stages_lie_on_ranks_and_meet_their_neighbours(pipeline, p):
    v = chunks_of(pipeline.name, 3)
    layout, positions = pipeline.layout, list(itertools.product(range(p), range(v)))
    stages = Counter((layout.path_of(chunk), layout.stage_of(rank, chunk, p, v)) for rank, chunk in positions)
    assert stages == Counter(itertools.product(range(layout.copies), range(p * v // layout.copies)))
    for rank, chunk in positions:
        stage = layout.stage_of(rank, chunk, p, v)
        for by in (-1, 1):
            other = layout.neighbour(rank, chunk, p, v, by)
            if other is None:
                assert stage == (0 if by < 0 else layout.num_stages(p, v) - 1)
            else:
                assert layout.stage_of(*other, p, v) == stage + by
                assert layout.path_of(other[1]) == layout.path_of(chunk)


def busy_s(timeline):
    """How long each rank computes; exact in binary, as all seconds here are."""
    return [float((end_s - start_s).sum()) for start_s, end_s in zip(timeline.start_s, timeline.end_s, strict=True)]


@each_pipeline
@settings(max_examples=40)
@given(data=st.data())
def test_the_clock_is_the_naive_one(pipeline, data):
    """Any seconds for each action, chunk and link: the same starts to the last bit, and so no deadlock."""
    found, _ = data.draw(schedules(pipeline))
    p, v = found.num_ranks, found.num_chunks
    action_s, send_s = (table(data.draw, *shape) for shape in ((4, p, v), (p, v)))
    blocking = data.draw(st.booleans())

    def slot_s(rank, slot):
        return sum(action_s[step.action, rank, step.chunk] for step in slot)

    timeline = run(found, Durations(action_s, send_s=send_s), blocking=blocking)
    expected = naive_clock(found, slot_s, send_s, blocking=blocking)
    assert [starts.tolist() for starts in timeline.start_s] == expected
    busy = [sum(slot_s(rank, slot) for slot in order) for rank, order in enumerate(found.orders)]
    assert busy_s(timeline) == busy
    assert timeline.makespan_s == max(end_s[-1] for end_s in timeline.end_s)


@each_pipeline
@given(data=st.data())
def test_the_makespan_is_no_less_than_the_busiest_rank_and_the_way_of_one_microbatch(pipeline, data):
    found, _ = data.draw(schedules(pipeline))
    p, v = found.num_ranks, found.num_chunks
    action_s, send_s = table(data.draw, 4, p, v), table(data.draw, p, v)
    timeline = run(found, Durations(action_s, send_s=send_s))
    way_s = Counter()
    for rank, chunk in itertools.product(range(p), range(v)):
        after = pipeline.layout.neighbour(rank, chunk, p, v, 1)
        sent = 2 * send_s[rank, chunk] if after is not None and after[0] != rank else 0.0
        way_s[pipeline.layout.path_of(chunk)] += action_s[FORWARD, rank, chunk] + sent
        way_s[pipeline.layout.path_of(chunk)] += min(action_s[BACKWARD, rank, chunk], action_s[INPUT, rank, chunk])
    assert timeline.makespan_s >= max(busy_s(timeline))
    assert timeline.makespan_s >= max(way_s.values())


@each_pipeline
@given(data=st.data())
def test_in_flight_counts_forwards_less_backwards(pipeline, data):
    """Slot by slot with sets; of a backward in parts, either part may be what ends it."""
    found, _ = data.draw(schedules(pipeline))
    until = data.draw(st.sampled_from([INPUT, WEIGHT]))
    for order, counts in zip(found.orders, found.in_flight(until), strict=True):
        alive = set()
        for slot, count in zip(order, counts, strict=True):
            alive |= {(step.chunk, step.microbatch) for step in slot if step.action == FORWARD}
            assert count.tolist() == [sum(c == chunk for c, _ in alive) for chunk in range(found.num_chunks)]
            alive -= {(step.chunk, step.microbatch) for step in slot if step.action in (BACKWARD, until)}
        assert not alive


def bubble_s(name, p, m, v=1, *, forward, backward, weight=0.0, group=None):
    """Bubble of each rank with stages that are alike; B is the whole backward, W the weights' part of it."""
    action_s = np.array([forward, backward, backward - weight, weight])[:, None, None]
    timeline = run(blocks(name, stages=p, microbatches=m, chunks=v, group=group), Durations(action_s))
    return timeline.makespan_s - np.array(busy_s(timeline))


def peaks(name, p, m, v=1, group=None):
    """Most chunks of microbatches in flight on each rank."""
    found = blocks(name, stages=p, microbatches=m, chunks=v, group=group)
    return [counts.sum(axis=1).max() for counts in found.in_flight()]


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@given(p=st.integers(1, 8), m=st.integers(1, 24), forward=quarters, backward=quarters)
def test_bubble_of_gpipe_and_1f1b(name, p, m, forward, backward):
    """(p - 1) (F + B) on every rank, (p - 1) / (m + p - 1) of the makespan: arXiv:1811.06965, arXiv:2104.04473."""
    bubble = bubble_s(name, p, m, forward=forward, backward=backward)
    assert bubble.tolist() == [(p - 1) * (forward + backward)] * p
    share = bubble[0] / (bubble[0] + m * (forward + backward))
    assert share == pytest.approx((p - 1) / (m + p - 1))


@given(p=st.integers(1, 6), groups=st.integers(1, 4), v=st.integers(2, 4), forward=quarters, backward=quarters)
def test_bubble_and_memory_of_interleaved_1f1b(p, groups, v, forward, backward):
    """(p - 1) (F + B) / v; v p + p - 1 chunks in flight on rank 0: arXiv:2104.04473 and arXiv:2205.05198."""
    m = groups * p
    bubble = bubble_s("interleaved_1f1b", p, m, v, forward=forward, backward=backward)  # seconds of one chunk
    assert bubble.tolist() == [(p - 1) * (forward + backward)] * p
    makespan = bubble[0] + m * v * (forward + backward)
    assert bubble[0] / makespan == pytest.approx((p - 1) / (v * m + p - 1))
    assert peaks("interleaved_1f1b", p, m, v)[0] == min(v * p + p - 1, m * v)


@given(st.sampled_from(GROUPED), quarters, quarters)
def test_groups_cost_memory_and_no_bubble(sizes, forward, backward):
    """(p - 1) (F + B) / v whatever L, as arXiv:2211.05953 has it for L = m; (v - 1) L + 2 p - 1 in flight on rank 0."""
    p, m, v, group = sizes
    bubble = bubble_s("interleaved_1f1b", p, m, v, forward=forward, backward=backward, group=group)
    assert bubble.tolist() == [(p - 1) * (forward + backward)] * p
    assert peaks("interleaved_1f1b", p, m, v, group)[0] == min((v - 1) * group + 2 * p - 1, m * v)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 8, 2), (4, 8, 3), (1, 3, 2)])
def test_groups_of_as_many_as_there_are_stages_are_those_of_megatron(p, m, v):
    sizes = {"stages": p, "microbatches": m, "chunks": v}
    assert orders("interleaved_1f1b", group=p, **sizes) == orders("interleaved_1f1b", **sizes)


def test_breadth_first_by_hand():
    """Two stages, two chunks, one group of all four: a chunk takes all of them before the next has its turn."""
    drawn = [
        " ".join("FB"[step.action] + str(step.chunk) + str(step.microbatch) for (step,) in order)
        for order in orders("interleaved_1f1b", stages=2, microbatches=4, chunks=2, group=4)
    ]
    assert drawn == [
        "F00 F01 F02 F03 F10 F11 F12 B10 F13 B11 B12 B13 B00 B01 B02 B03",
        "F00 F01 F02 F03 F10 B10 F11 B11 F12 B12 F13 B13 B00 B01 B02 B03",
    ]


def dualpipe_bubble(pp, _f, b, w, fb):
    return (pp // 2 - 1) * (fb + b - 3 * w)


PUBLISHED = {
    "1f1b": (lambda pp, f, b, _w, _fb: (pp - 1) * (f + b), lambda pp: pp, 1, 1),
    "zb_h1": (lambda pp, f, b, w, _fb: (pp - 1) * (f + b - 2 * w), lambda pp: pp, 1, 1),
    "dualpipe": (dualpipe_bubble, lambda pp: pp + 1, 2, 1),
    "dualpipe_v": (dualpipe_bubble, lambda pp: pp + 1, 2, 2),
}
"""For PP stages: bubble, most activations, parameters of a rank, stages over ranks: deepseek-ai/DualPipe, README.

F, B, W are a forward, a whole backward and its weights' part, FB an overlapped pair; ZB1P is zb_h1.
"""


@pytest.mark.parametrize("name", PUBLISHED)
@settings(max_examples=40)
@given(data=st.data())
def test_published_bubbles(name, data):
    """Where W <= F <= I; otherwise something else decides. Where a pair takes less than both, by the naive clock."""
    bubble_of, activations_of, parameters, shrink = PUBLISHED[name]
    p, m, _ = data.draw(st.sampled_from([size for size in SIZES[name] if size[1] >= size[0]]))
    weight, forward, from_input = sorted(data.draw(quarters) for _ in range(3))
    backward = from_input + weight
    bubble = bubble_s(name, p, m, forward=forward, backward=backward, weight=weight)
    pp = shrink * p
    assert bubble.max() == bubble_of(pp, forward, backward, weight, forward + backward)
    pair = data.draw(st.sampled_from([backward, forward / 2 + backward]))
    seconds = dict(zip(Action, (forward, backward, from_input, weight), strict=True))
    found = blocks(name, stages=p, microbatches=m)

    def slot_s(_rank, slot):
        return pair if len(slot) == 2 else seconds[slot[0].action]

    starts = naive_clock(found, slot_s, np.zeros((p, found.num_chunks)), blocking=False)
    makespan = max(start[-1] + slot_s(rank, found.orders[rank][-1]) for rank, start in enumerate(starts))
    idle = [makespan - sum(slot_s(rank, slot) for slot in order) for rank, order in enumerate(found.orders)]
    assert max(idle) == bubble_of(pp, forward, backward, weight, pair)
    assert max(peaks(name, p, m)) == activations_of(pp)
    held = chunks_of(name)  # stages of a rank
    assert held / PIPELINES[name].layout.num_stages(p, held) == parameters / pp


@given(p=st.integers(1, 8), more=st.integers(0, 9), forward=quarters, backward=quarters, weight=quarters)
def test_bubble_of_zb_h1_whatever_is_longest(p, more, forward, backward, weight):
    """(p - 1) (F + I - min(F, I, W)) on every rank, by hand: arXiv:2401.10241 gives it for the shortest W."""
    bubble = bubble_s("zb_h1", p, p + more, forward=forward, backward=backward + weight, weight=weight)
    expected = (p - 1) * (forward + backward - min(forward, backward, weight))
    assert bubble.tolist() == [expected] * p
    assert peaks("zb_h1", p, p + more) == [p] * p


@given(p=st.integers(1, 8), more=st.integers(0, 9), seconds=quarters)
def test_zb_v_has_no_bubble_at_the_memory_of_1f1b(p, more, seconds):
    """Where F = I = W no rank waits once it has begun; 2 p chunks are in flight: arXiv:2401.10241 (ZB-V)."""
    m = 2 * p - 1 + more
    action_s = np.array([seconds, 0, seconds, seconds])[:, None, None]
    timeline = run(blocks("zb_v", stages=p, microbatches=m), Durations(action_s))
    ranks = zip(timeline.start_s, timeline.end_s, strict=True)
    assert busy_s(timeline) == [end_s[-1] - start_s[0] for start_s, end_s in ranks]
    assert [starts[0] for starts in timeline.start_s] == [rank * seconds for rank in range(p)]
    assert timeline.makespan_s == (6 * m + p - 1) * seconds
    assert peaks("zb_v", p, m) == [2 * max(peaks("1f1b", p, m))] * p


@given(data=st.data())
def test_dualpipe_v_is_half_of_dualpipe(data):
    """The lower half of its ranks at the same times, and the upper half its mirror image, if links are alike."""
    p, m, _ = data.draw(st.sampled_from(SIZES["dualpipe_v"]))
    times = table(data.draw, 4, p, 2)
    half = run(blocks("dualpipe_v", stages=p, microbatches=m), Durations(times))
    mirrored = np.concatenate([times, times[:, ::-1, ::-1]], axis=1)
    both = run(blocks("dualpipe", stages=2 * p, microbatches=2 * m), Durations(mirrored))
    for rank in range(p):
        assert both.start_s[rank].tolist() == half.start_s[rank].tolist()
        assert both.start_s[2 * p - 1 - rank].tolist() == half.start_s[rank].tolist()


def test_memory_of_gpipe_and_1f1b():
    assert peaks("gpipe", 4, 9) == [9] * 4
    assert peaks("1f1b", 4, 9) == [4, 3, 2, 1]
    assert peaks("1f1b", 4, 2) == [2, 2, 2, 1]


def test_1f1b_by_hand():
    """Two stages, three microbatches; F = 1, B = 2 on rank 0, F = 2, B = 3 on rank 1, sends of 1."""
    action_s = np.zeros((4, 2, 1))
    action_s[:2, :, 0] = [[1, 2], [2, 3]]
    found = blocks("1f1b", stages=2, microbatches=3)
    timeline = run(found, Durations(action_s, send_s=1.0))
    assert [s.tolist() for s in timeline.start_s] == [[0, 1, 8, 10, 13, 18], [2, 4, 7, 9, 12, 14]]
    assert timeline.makespan_s == 20
    assert busy_s(timeline) == [9, 15]
    held = run(found, Durations(action_s, send_s=1.0), blocking=True)
    assert [s.tolist() for s in held.start_s] == [[0, 2, 8, 10, 14, 20], [2, 4, 8, 10, 14, 16]]
    ends = {"first_s": [[-1], [0]], "last_s": [[10], [0]], "last_after_s": [[0], [4]]}
    once = run(found, Durations(action_s, send_s=1.0, begin_s=[0, 5], **ends))
    assert [s.tolist() for s in once.start_s] == [[0, 1, 11, 12, 16, 21], [5, 7, 10, 12, 15, 17]]
    assert once.makespan_s == 33
    assert busy_s(once) == [18, 15]
    assert once.kept_s.tolist() == [0, 4]


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("1f1bb", {}, "unknown pipeline_schedule '1f1bb'; did you mean '1f1b'"),
        ("1f1b", {"stages": 0}, "pipeline_parallel: must be greater than 0, not 0"),
        ("1f1b", {"chunks": 2}, "'1f1b' cuts the model of a rank into 1 virtual stages, not 2; .* interleaved_1f1b"),
        ("interleaved_1f1b", {"chunks": 1}, "one chunk, which is 1f1b; interleave 2 chunks or more"),
        ("interleaved_1f1b", {"chunks": 0}, "virtual_stages: must be greater than 0, not 0"),
        ("dualpipe", {"stages": 3}, "3 stages have no middle where the two directions meet; give an even number"),
        ("dualpipe", {"microbatches": 9}, "9 microbatches do not halve into two directions; give an even number"),
        ("dualpipe", {"microbatches": 6}, "6 microbatches are too few for 4 stages; give 8 or more"),
        ("dualpipe_v", {"microbatches": 7}, "7 microbatches are too few for 4 ranks; give 8 or more"),
        ("zb_v", {"chunks": 3}, "'zb_v' cuts the model of a rank into 2 virtual stages, not 3"),
        ("interleaved_1f1b", {"chunks": 2, "microbatches": 10}, "10 microbatches do not divide into groups of 4"),
        (
            "interleaved_1f1b",
            {"chunks": 2, "group": 3},
            "groups of 3 microbatches are not between 4 stages and 8 micro",
        ),
        ("interleaved_1f1b", {"chunks": 2, "group": 9}, "choose groups of 4 to 8"),
        ("interleaved_1f1b", {"chunks": 2, "group": 4, "microbatches": 3}, "choose microbatch .* there are 4 or more"),
        ("interleaved_1f1b", {"chunks": 2, "group": 6}, "leave 2 for the last, fewer than 4 .*; choose groups of 4, 8"),
        ("1f1b", {"group": 4}, "'1f1b' has no groups of microbatches; leave 4 out, or choose interleaved_1f1b"),
    ],
)
def test_sizes_that_cannot_be(name, sizes, message):
    keys = {
        "stages": "pipeline_parallel", "microbatches": "batch_per_replica", "chunks": "virtual_stages",
        "group": "microbatch_group",
    }  # fmt: skip
    changes = {keys[key]: value for key, value in ({"stages": 4, "microbatches": 8} | sizes).items()}
    with pytest.raises(ConfigError, match=message):
        load_workload("gpt-3", {"pipeline_schedule": name, "microbatch": 1, **changes})


def step(action, microbatch=0, chunk=0):
    return (Step(action, chunk, microbatch),)


@pytest.mark.parametrize(
    ("given_orders", "error", "message"),
    [
        (
            [[step(FORWARD, 0), step(BACKWARD, 0), step(FORWARD, 1), step(BACKWARD, 1)],
             [step(FORWARD, 1), step(FORWARD, 0), step(BACKWARD, 0), step(BACKWARD, 1)]],
            SimulationError,
            "1f1b cannot finish: rank 0 waits for rank 1 before the backward of microbatch 0 on chunk 0; "
            "rank 1 waits for rank 0 before the forward of microbatch 1 on chunk 0; change the orders",
        ),
        (
            [[step(BACKWARD), step(FORWARD)]],
            SimulationError,
            "rank 0 waits for ever: the backward of microbatch 0 on chunk 0 needs a step that the rank itself runs",
        ),
        (
            [[step(FORWARD) + step(BACKWARD)]],
            SimulationError,
            "needs a step that the rank itself runs later, or beside it; change the order",
        ),
        (
            [[step(BACKWARD)], [step(FORWARD), step(BACKWARD)]],
            SimulationError,
            "rank 0 waits for ever: the backward of microbatch 0 on chunk 0 needs a step that nobody runs",
        ),
        ([[step(FORWARD), step(FORWARD)]], ConfigError, "rank 0 .* runs the forward of microbatch 0 on chunk 0 twice"),
        (
            [[step(FORWARD), step(BACKWARD), step(INPUT)]],
            ConfigError,
            "runs the backward of microbatch 0 on chunk 0 twice",
        ),
        ([[step(FORWARD), step(BACKWARD)], []], ConfigError, "rank 1 of the pipeline has no slots"),
    ],
)  # fmt: skip
def test_orders_that_cannot_be(given_orders, error, message):
    with pytest.raises(error, match=message):
        connect(PIPELINES["1f1b"], [tuple(order) for order in given_orders], num_chunks=1)
