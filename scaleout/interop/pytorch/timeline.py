"""What a recorded rank's host and GPU waited for: a recording's work and calls to moments, each with what it follows.

A work follows the one before it on its stream, the call that launched it, and the works of other streams that its
stream had been told to wait for. CUDA's calls say that a stream waits for an event, but seldom which: then it is the
last work launched on another stream before the wait, if that had ended when the waiting stream went on. The host is one
thread of calls: between two of them it computes for as long as it was seen to, less the time that a full launch queue
blocked it. See docs/models/recordings.md.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from scaleout.interop.pytorch.communication import is_communication
from scaleout.interop.pytorch.kineto import NONE, Call, CallKind, Recording, Work, WorkKind, whole_of
from scaleout.interop.pytorch.recorder import Recorder
from scaleout.program.operations import Kernel

CLOCK_US = 1.0
"""Times of works and calls that differ by less are equal: GPU and host clocks are matched to about that."""
_TYPICAL = 3.0
"""A launch into a full queue that takes longer than so many median ones was blocked."""
_FULL_QUEUE = 900
"""Works that were launched and have not begun when a launch can be blocked; seen on H200 with CUDA 13: 1023."""
_TOGETHER_US = 25.0
"""A work that begins so soon after one of another stream has ended waited for it: seen on H200 are up to 15."""
UNTOLD_US = 20.0
"""A wait that nothing recorded explains is kept apart from the kernel where it is longer."""


@dataclass
class Moment:
    """A call of the host or a work of the GPU, and what it waits for.

    `lasts_us` is how long it takes from when all it follows has ended, `waits_us` the part of it before a work began,
    `launch` what it waited for last where that was the call that launched it, `recorder_us` the part of it that the
    host took to record what it did.
    """

    work: int  # index of the work; `NONE` for the host
    start_us: float
    end_us: float
    follows: list[int] = field(default_factory=list)  # earlier moments
    lasts_us: float = 0.0
    waits_us: float = 0.0
    launch: int = NONE  # earlier moment
    recorder_us: float = 0.0


@dataclass
class Timeline:
    """The moments of the steps of a rank, in order of time, and how its dependencies were found."""

    recording: Recording
    steps: tuple[int, ...]
    begin_us: float  # when the GPU could begin the first step
    ends_us: list[float]  # of each step
    moments: list[Moment]
    before: list[Work] = field(default_factory=list)  # what was launched before the recording began
    linked_waits: int = 0  # waits between streams that the recording tells
    found_waits: int = 0  # that were found by what was launched last
    timed_waits: int = 0  # that were found by a work that began as another ended
    untold_us: float = 0.0  # time that works waited for nothing that was recorded
    modelled: dict[int, Kernel] | None = None  # work to what it is, where none has a time: of a host trace alone
    host_bound_us: float = 0.0  # time that the GPU's busiest stream waited for the host


def timeline_of(recording: Recording, steps: tuple[int, ...]) -> Timeline:
    """Return the timeline of some steps of a recording, which follow each other.

    Without marked steps, step 0 is the whole recording.
    """
    chosen = set(steps)
    works = [number for number, work in enumerate(recording.works) if work.step in chosen]
    begin_us, ends_us = _bounds(recording, steps)
    calls = _calls(recording, steps, works)
    timeline = Timeline(recording, steps, begin_us, ends_us, [])
    if all(work.step in chosen or work.step == NONE for work in recording.works):
        timeline.before = [work for work in recording.works if work.step == NONE]
    _Layout(timeline, calls, _Waits(timeline, calls, set(works)).found()).lay_out(works)
    return timeline


def streams_of(timeline: Timeline) -> dict[tuple[int, int], int]:
    """Number the streams: 0 is the one that is longest busy with kernels that do not communicate."""
    busy: Counter[tuple[int, int]] = Counter()
    works = timeline.recording.works
    for moment in timeline.moments:
        if moment.work != NONE:
            work = works[moment.work]
            busy[work.stream] += 0 if is_communication(work) else int((work.end_us - work.start_us) * 1000)
    return {stream: number for number, (stream, _) in enumerate(busy.most_common())}


def _bounds(recording: Recording, steps: tuple[int, ...]) -> tuple[float, list[float]]:
    """Return when the first step could begin on the GPU, and when each ended."""
    ends: dict[int, float] = defaultdict(float)
    for work in recording.works:
        ends[work.step] = max(ends[work.step], work.end_us)
    if not recording.steps:
        starts = [work.start_us for work in recording.works[:1]] + [call.start_us for call in recording.calls[:1]]
        synced = [call.end_us for call in recording.calls if call.kind is CallKind.SYNC]
        return min(starts, default=0.0), [max([ends[0], *synced])]
    before = max((end for step, end in ends.items() if step < steps[0]), default=0.0)
    first_us = min((work.start_us for work in recording.works if work.step == steps[0]), default=before)
    begin_us = max(min(before, first_us), recording.steps[steps[0]].start_us)
    found: list[float] = []
    for step in steps:
        begun = found[-1] if found else begin_us
        found.append(max(ends[step], recording.steps[step].end_us, begun))
    return begin_us, found


@dataclass
class _HostCall:
    call: Call
    works: list[int]  # that it launched
    resumes_us: float  # when the host goes on, if it waited
    blocked_us: float = 0.0  # by a full queue


def _calls(recording: Recording, steps: tuple[int, ...], works: list[int]) -> list[_HostCall]:
    """Return the calls of some steps that launch works or wait, in order."""
    launched: dict[int, list[int]] = defaultdict(list)
    for number in works:
        if recording.works[number].call != NONE:
            launched[recording.works[number].call].append(number)
    first_us, last_us = 0.0, float("inf")
    if recording.steps:
        first_us = recording.steps[steps[0]].start_us
        last_us = recording.steps[steps[-1]].end_us
    lengths = [recording.calls[number].end_us - recording.calls[number].start_us for number in launched]
    most_us = _TYPICAL * median(lengths) if lengths else 0.0
    begun = sorted(work.start_us for work in recording.works)
    launches = sorted(recording.calls[work.call].start_us if work.call != NONE else 0.0 for work in recording.works)
    found = []
    for number, call in enumerate(recording.calls):
        own = launched.get(number, [])
        syncs = call.kind is CallKind.SYNC and first_us <= call.start_us < last_us
        if not own and not syncs:
            continue
        # a copy to or from pageable memory blocks the host until it is done
        blocking = any(
            recording.works[work].kind is WorkKind.COPY and call.end_us >= recording.works[work].end_us - CLOCK_US
            for work in own
        )
        each = _HostCall(call, own, call.end_us if syncs or blocking else call.start_us)
        waiting = bisect_right(launches, call.start_us) - bisect_right(begun, call.start_us)
        if not syncs and not blocking and waiting >= _FULL_QUEUE:
            each.blocked_us = max(0.0, call.end_us - call.start_us - most_us)
        found.append(each)
    return found


Stream = tuple[int, int]
"""A device and its stream."""


class _Waits:
    """Which works of other streams a work's stream had been told to wait for, by the calls of the host in order."""

    def __init__(self, timeline: Timeline, calls: list[_HostCall], works: set[int]) -> None:
        self._timeline, self._recording, self._works = timeline, timeline.recording, works
        self._works_of = {id(each.call): each.works for each in calls}
        self._launched: dict[Stream, list[int]] = defaultdict(list)  # works of each stream, in order of launch
        self._order: dict[int, int] = {}  # work to how many were launched before it
        self._last_launch: dict[object, int] = {}  # thread to the last work that it launched
        self._recorded: dict[object, int] = {}  # thread to that work when it last recorded an event
        self._marked: dict[int, dict[Stream, int]] = {}  # call that records an event to the last work of each stream
        self._known: dict[tuple[Stream, Stream], int] = {}  # two streams to what the first last waited for
        self._found: dict[int, list[int]] = defaultdict(list)

    def found(self) -> dict[int, list[int]]:
        """Return for each work those that it waits for."""
        next_launch = self._next_launches()
        for number, call in enumerate(self._recording.calls):
            if call.kind is CallKind.LAUNCH:
                self._launch(call)
            elif call.kind is CallKind.RECORD:
                if call.thread in self._last_launch:
                    self._recorded[call.thread] = self._last_launch[call.thread]
                self._marked[call.correlation] = {stream: some[-1] for stream, some in self._launched.items()}
            elif call.kind is CallKind.WAIT:
                self._wait(number, next_launch[number])
        return {user: [each for each in sources if each in self._works] for user, sources in self._found.items()}

    def _launch(self, call: Call) -> None:
        for work in self._works_of.get(id(call), ()):
            self._order[work] = len(self._order)
            self._launched[self._recording.works[work].stream].append(work)
            self._last_launch[call.thread] = work

    def _wait(self, number: int, user: int) -> None:
        """Add the wait of a call, before which the next launch of its thread is `user`."""
        call = self._recording.calls[number]
        told = self._recording.syncs.get(call.correlation)
        if told is not None and self._told(told, number):
            self._timeline.linked_waits += 1
            return
        source = self._source(user, self._recorded.get(call.thread, NONE)) if user != NONE else NONE
        if source != NONE:
            works = self._recording.works
            self._found[user].append(source)
            self._known[works[user].stream, works[source].stream] = self._order[source]
            self._timeline.found_waits += 1

    def _next_launches(self) -> list[int]:
        """For each call the first work that its thread launches after it."""
        calls = self._recording.calls
        found = [NONE] * len(calls)
        following: dict[object, int] = {}
        for number in range(len(calls) - 1, -1, -1):
            call = calls[number]
            found[number] = following.get(call.thread, NONE)
            if self._works_of.get(id(call)):
                following[call.thread] = self._works_of[id(call)][0]
        return found

    def _told(self, told: Mapping[str, Any], number: int) -> bool:
        """Add a wait of which the recording says the stream, and the call that recorded its event."""
        works = self._recording.works
        marked = self._marked.get(whole_of(told.get("wait_on_cuda_event_record_corr_id")), {})
        source = next((work for (_, stream), work in marked.items() if stream == told.get("wait_on_stream")), NONE)
        if source == NONE:
            return False
        for call in self._recording.calls[number + 1 :]:
            launched = self._works_of.get(id(call), ())
            user = next((work for work in launched if works[work].stream[1] == told.get("stream")), NONE)
            if user != NONE:
                self._found[user].append(source)
                return True
        return False

    def _source(self, user: int, recorded: int) -> int:
        """Return the work that a wait is for, as far as it can be told: the last launched that had ended by then."""
        works = self._recording.works
        mine, start_us = works[user].stream, works[user].start_us + CLOCK_US
        candidates = []
        for stream, some in self._launched.items():
            if stream == mine:
                continue
            last = next((work for work in reversed(some[-8:]) if works[work].end_us <= start_us), NONE)
            if last != NONE and self._order[last] > self._known.get((mine, stream), NONE):
                candidates.append(last)
        if recorded != NONE and works[recorded].stream != mine:
            preferred = [work for work in candidates if works[work].stream == works[recorded].stream]
            candidates = preferred or candidates
        return max(candidates, key=lambda work: self._order[work], default=NONE)


class _Layout:
    """Puts the moments of host and GPU in order, with what each follows and how long it takes after that."""

    def __init__(self, timeline: Timeline, calls: list[_HostCall], waits: Mapping[int, list[int]]) -> None:
        self._timeline, self._calls, self._waits = timeline, calls, waits
        self._host = _Host(timeline, calls)
        self._launch_of = {work: number for number, each in enumerate(calls) for work in each.works}
        self._of_work: dict[int, int] = {}  # work to its moment
        self._last_of: dict[Stream, int] = {}  # stream to its last moment
        self._ended = _Ended()
        self._busiest: Stream = (NONE, NONE)
        self._last_end_us = timeline.begin_us  # of the busiest stream

    def lay_out(self, works: list[int]) -> None:
        """Add the moments of some works and of the calls to the timeline."""
        recording, calls = self._timeline.recording, self._calls
        busy: Counter[Stream] = Counter()
        for number in works:
            work = recording.works[number]
            busy[work.stream] += int((work.end_us - work.start_us) * 1000)
        if busy:
            self._busiest = busy.most_common(1)[0][0]
        events: list[tuple[float, int, int]] = [(each.call.start_us, 0, number) for number, each in enumerate(calls)]
        events += [(recording.works[number].start_us, 1, number) for number in works]
        pending: list[int] = []  # calls that wait and have not resumed
        for start_us, is_work, number in sorted(events):
            while pending and calls[pending[0]].resumes_us <= start_us:
                self._host.resume(pending.pop(0), self._of_work, self._last_of)
            if is_work:
                self._run(number)
                continue
            self._host.reach(number)
            if calls[number].resumes_us > calls[number].call.start_us:
                pending.append(number)
        for number in pending:
            self._host.resume(number, self._of_work, self._last_of)
        if recording.steps:
            self._host.finish(recording.steps[self._timeline.steps[-1]].end_us)

    def _run(self, number: int) -> None:
        """Add the moment of a work."""
        timeline, moments = self._timeline, self._timeline.moments
        work = timeline.recording.works[number]
        follows = [self._last_of[work.stream]] if work.stream in self._last_of else []
        launch = self._host.moment_of.get(self._launch_of.get(number, NONE), NONE)
        follows += [launch] if launch != NONE else []
        follows += [self._of_work[source] for source in self._waits.get(number, ()) if source in self._of_work]
        ready_us = max((moments[each].end_us for each in follows), default=timeline.begin_us)
        launched = launch != NONE and moments[launch].end_us == ready_us
        if work.stream == self._busiest:
            if launched:
                reached_us = max(self._last_end_us, timeline.begin_us)
                timeline.host_bound_us += max(0.0, work.start_us - reached_us)
            self._last_end_us = work.end_us
        other = self._ended.before(work.start_us)
        if other != NONE and moments[other].end_us > ready_us:
            gap_us = CLOCK_US if self._in_one_graph(moments[other], work) else _TOGETHER_US
            if work.start_us - ready_us > gap_us and self._waited(moments[other], work):
                follows.append(other)
                ready_us, launched = moments[other].end_us, False
                timeline.timed_waits += 1
        moment = Moment(number, work.start_us, work.end_us, sorted(set(follows)))
        moment.waits_us = max(0.0, work.start_us - max(ready_us, timeline.begin_us))
        moment.lasts_us = work.end_us - work.start_us + moment.waits_us
        moment.launch = launch if launched else NONE
        if moment.waits_us > UNTOLD_US:
            timeline.untold_us += moment.waits_us
        self._of_work[number] = self._last_of[work.stream] = len(moments)
        moments.append(moment)
        self._ended.add(work.end_us, len(moments) - 1)

    def _in_one_graph(self, other: Moment, work: Work) -> bool:
        """Whether one call launched both, as it does the kernels of a CUDA graph."""
        return work.call != NONE and self._timeline.recording.works[other.work].call == work.call

    def _waited(self, other: Moment, work: Work) -> bool:
        """Whether a work waited for another that ended last before it.

        Branches of a CUDA graph wait for each other by no call: where one begins as another ends it waited for that.
        The busiest stream waits for communication; kernels beside it hold up its own for their blocks alone. A side
        stream waits for what ended at once before, or for blocks beside a kernel of the busiest.
        """
        tight, before = work.start_us - other.end_us <= _TOGETHER_US, self._timeline.recording.works[other.work]
        if self._in_one_graph(other, work):
            return tight
        if work.stream == self._busiest:
            return tight and is_communication(before)
        return tight or before.stream == self._busiest


class _Ended:
    """Which moment of the GPU ended last before another began.

    Within `_TOGETHER_US` the one waited for the other: for an event, or for its blocks on the GPU. Later it waited for
    blocks of a kernel that still ran, and that began then.
    """

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._moments: list[int] = []

    def add(self, end_us: float, moment: int) -> None:
        at = bisect_right(self._ends, end_us)
        self._ends.insert(at, end_us)
        self._moments.insert(at, moment)

    def before(self, start_us: float) -> int:
        """Return the moment that ended last before another begins, or `NONE`."""
        at = bisect_right(self._ends, start_us + CLOCK_US) - 1
        return self._moments[at] if at >= 0 else NONE


class _Host:
    """The host's moments: one for each call that launches or waits, after the one before it."""

    def __init__(self, timeline: Timeline, calls: list[_HostCall]) -> None:
        self._timeline, self._calls = timeline, calls
        self.moment_of: dict[int, int] = {}  # call to its moment
        self._last = NONE  # moment
        recording = timeline.recording
        self._recorder = Recorder(recording)
        self._threads: list[tuple[str, str]] = []  # of the last call
        begun_us = recording.steps[timeline.steps[0]].start_us if recording.steps else timeline.begin_us
        self._since_us = begun_us  # when the host last went on
        self._ahead_us = max(0.0, timeline.begin_us - begun_us)  # by how much the host is ahead of the GPU at first

    def reach(self, number: int) -> None:
        """Add the moment at which the host makes a call."""
        each = self._calls[number]
        spent_us = max(0.0, each.call.start_us - self._since_us)
        lasts_us = max(0.0, spent_us - self._ahead_us)
        share = self._recorder.share([each.call.thread, *self._threads], self._since_us, each.call.start_us)
        self._ahead_us = max(0.0, self._ahead_us - spent_us)
        self._since_us = max(self._since_us, each.call.start_us + each.blocked_us)
        self._threads = [each.call.thread]
        self._add(number, each.call.start_us, lasts_us, [], recorder_us=share * lasts_us)

    def resume(self, number: int, of_work: dict[int, int], last_of: dict[tuple[int, int], int]) -> None:
        """Add the moment at which the host goes on after it waited for the GPU."""
        each, moments = self._calls[number], self._timeline.moments
        if each.works:
            follows = [of_work[work] for work in each.works if work in of_work]
        else:
            done = [moment for moment in last_of.values() if moments[moment].end_us <= each.resumes_us + CLOCK_US]
            whole = "Stream" not in each.call.name and "Event" not in each.call.name
            follows = done if whole else [max(done, key=lambda moment: moments[moment].end_us)] if done else []
        ready_us = max((moments[moment].end_us for moment in follows), default=each.call.start_us)
        ready_us = max(ready_us, each.call.start_us, self._timeline.begin_us)
        self._since_us = max(self._since_us, each.resumes_us)
        self._ahead_us = max(0.0, self._timeline.begin_us - each.resumes_us)
        self._add(number, each.resumes_us, max(0.0, each.resumes_us - ready_us), follows)

    def finish(self, end_us: float) -> None:
        """Add what the host still does after its last call."""
        if end_us > self._since_us:
            lasts_us = max(0.0, end_us - self._since_us - self._ahead_us)
            share = self._recorder.share(self._threads, self._since_us, end_us)
            self._add(NONE, end_us, lasts_us, [], recorder_us=share * lasts_us)

    def _add(
        self, number: int, at_us: float, lasts_us: float, follows: Iterable[int], *, recorder_us: float = 0.0
    ) -> None:
        moments = self._timeline.moments
        after = sorted({*follows, *([self._last] if self._last != NONE else [])})
        self._last = self.moment_of[number] = len(moments)
        moments.append(Moment(NONE, at_us, at_us, after, lasts_us, recorder_us=recorder_us))
