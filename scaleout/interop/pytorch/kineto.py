"""A Kineto trace, what `torch.profiler` exports for one rank, to its GPU work, host calls and operators.

Versions differ: categories were called `Kernel` and `Runtime` before 2021, AMD's calls begin with `hip`, times are
whole or broken microseconds, and metadata of collectives stands on kernels, on `record_param_comms`, or nowhere. What
follows knows one form. Times are microseconds since the earliest event of the file.
"""

import functools
import math
import re
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from scaleout.config.long_json import LEFT_OUT
from scaleout.config.units import SECONDS
from scaleout.errors import TraceError, shown

NONE = -1
"""In an index, for what has no such thing."""


class WorkKind(StrEnum):
    """What the GPU does."""

    KERNEL = "kernel"
    COPY = "copy"
    SET = "set"


class CallKind(StrEnum):
    """What a call of the host into CUDA or HIP does, as far as it orders work."""

    LAUNCH = "launch"  # gives the GPU something to do
    RECORD = "record"  # an event on a stream
    WAIT = "wait"  # a stream waits for an event
    SYNC = "sync"  # the host waits for the GPU


@dataclass(slots=True)
class Work:
    """A kernel, copy or memset on the GPU."""

    name: str
    kind: WorkKind
    stream: tuple[int, int]  # device and stream
    start_us: float
    end_us: float
    correlation: int
    args: Mapping[str, Any]
    call: int = NONE  # index of the call that launched it
    operator: int = NONE  # index of the operator that it is of
    step: int = NONE  # index of the step that launched it; `NONE` before the first


@dataclass(slots=True)
class Call:
    """A call of the host."""

    kind: CallKind
    name: str
    thread: tuple[str, str]
    start_us: float
    end_us: float
    correlation: int
    external: int
    operator: int = NONE


@dataclass(slots=True)
class Operator:
    """An operator or annotation of the host: a name, its inputs, and the one that called it."""

    name: str
    thread: tuple[str, str]
    start_us: float
    end_us: float
    args: Mapping[str, Any]
    parent: int = NONE

    @property
    def dims(self) -> list[Any]:
        """Sizes of each input: of a tensor a list, of a list of tensors a list of lists, of others nothing."""
        found = self.args.get("Input Dims") or self.args.get("Input dims") or []
        return found if isinstance(found, list) else []

    @property
    def dtypes(self) -> list[str]:
        """Type of each input, as PyTorch writes it."""
        found = self.args.get("Input type") or []
        return [str(each) for each in found] if isinstance(found, list) else []


@dataclass(frozen=True)
class Span:
    """A step as the host marks it."""

    name: str
    start_us: float
    end_us: float


@dataclass
class Recording:
    """What one rank did."""

    path: Path
    rank: int | None  # None where the file does not say
    world_size: int | None
    device: str
    groups: dict[str, tuple[int, ...]]  # ranks of the process groups that the file lists, by name
    works: list[Work]  # by start
    calls: list[Call]  # by start
    operators: list[Operator]
    steps: list[Span]
    syncs: dict[int, Mapping[str, Any]]  # what a synchronisation waits for, by correlation, where recorded
    start_us: float  # of the earliest event, on the clock of the rank's host
    epoch_us: float | None = None  # the same since 1970, where the file tells
    stated: dict[tuple[str, ...], tuple[int, ...] | None] = field(default_factory=dict)  # groups by how they are told
    notes: dict[str, int] = field(default_factory=dict)  # what could not be read, and how often

    def note(self, text: str, count: int = 1) -> None:
        """Count something that the reader of the report must know."""
        if count:
            self.notes[text] = self.notes.get(text, 0) + count


_WORK = {"kernel": WorkKind.KERNEL, "gpu_memcpy": WorkKind.COPY, "memcpy": WorkKind.COPY, "gpu_memset": WorkKind.SET,
         "memset": WorkKind.SET, "concurrent_kernel": WorkKind.KERNEL}  # fmt: skip
_CALLS = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "privateuse1_runtime"}
_OPERATORS = {"cpu_op", "operator", "user_annotation"}
_READ = {*_WORK, *_CALLS, *_OPERATORS, "cuda_sync"}
_ARGS = frozenset((
    "correlation", "External id", "external id", "device", "stream", "Input Dims", "Input dims", "Input type",
    "Concrete Inputs", "Record function id", "Sequence number", "Collective name", "dtype", "In msg nelems",
    "Out msg nelems", "Process Group Name", "Process Group Ranks", "Group size", "Global rank start",
    "Global rank stride", "Src Rank", "Dst Rank", "wait_on_stream", "wait_on_cuda_event_record_corr_id",
    "bytes",
))  # fmt: skip
"""Of an event's arguments, those that are read."""
MOST_EVENTS = 1_000_000
"""Of operators, calls and kernels of a file; real ones take some 500 bytes each."""
_LARGEST_US = 1e18
"""Of times: clocks count from the start of the machine, or from 1970."""
_LONGEST_US = SECONDS.largest * 1e6
"""Of what a file spans."""
_AFTER_1970_US = 1e15
"""Clocks that count from 1970 show more since 2001, those of machines that have not run for 30 years less."""
_MOST_ELEMENTS = 2**40
"""Of a tensor: a TB of bytes."""
_MOST_DIMENSIONS = 64
"""Of a tensor: PyTorch has no more."""
_MOST_CALLERS = 256
"""Operators that call one another; seen are up to 9."""
_MOST_STREAMS = 1024
_STEP = re.compile(r"ProfilerStep#[0-9]{1,18}")
_INTEGER = re.compile(r"-?[0-9]{1,18}")

_LAUNCHES = re.compile(r"Launch|Memcpy|Memset|hipMemcpyWithStream", re.IGNORECASE)
_SYNCS = re.compile(r"^(cuda|cu|hip)(Device|Stream|Event|Ctx)Synchronize")
_RECORDS = re.compile(r"^(cuda|cu|hip)EventRecord")
_WAITS = re.compile(r"^(cuda|cu|hip)StreamWaitEvent")


@functools.lru_cache(maxsize=4096)
def call_kind(name: str) -> CallKind | None:
    """Return what a call of CUDA or HIP does; None if it orders no work.

    >>> call_kind("cudaLaunchKernelExC"), call_kind("hipStreamWaitEvent"), call_kind("cudaGetDevice")
    (<CallKind.LAUNCH: 'launch'>, <CallKind.WAIT: 'wait'>, None)
    """
    for pattern, kind in (
        (_SYNCS, CallKind.SYNC), (_RECORDS, CallKind.RECORD), (_WAITS, CallKind.WAIT), (_LAUNCHES, CallKind.LAUNCH),
    ):  # fmt: skip
        if pattern.search(name):
            return kind
    return None


class Event(NamedTuple):
    """What is kept of an event of a file as it is read, which is a tenth of it."""

    category: str  # empty where all that counts is its time, or that the list is one of events
    name: str
    at_us: float  # on the file's clock; infinite where it is not read
    lasts_us: float
    process: Any
    thread: Any
    args: Mapping[str, Any]  # those of `_ARGS`


class NoEventsError(TraceError):
    """A list of JSON is one of something else, by its first element."""


_UNREAD = Event("", "", math.inf, 0.0, None, None, {})


def events_in(path: Path) -> Callable[[Any], Any]:
    """Return what makes an `Event` of each element of a file's list of events, or leaves it out.

    Of categories that are not read, what is the earliest so far is kept: the clock of a file begins there.

    Raises
    ------
    TraceError
        By what is returned, if an element is no event, lacks its time, or there are too many.
    """
    earliest, kept, begun = math.inf, 0, False

    def event_of(value: Any) -> Any:
        nonlocal earliest, kept, begun
        if not isinstance(value, dict):
            error = TraceError if begun else NoEventsError
            raise error(f"{path}: {shown(value)} is no event; give what torch.profiler exported")
        first, begun = not begun, True
        if value.get("ph") != "X":
            return _UNREAD if first and "ph" in value else LEFT_OUT
        category, at_us = str(value.get("cat", "")).lower(), _number(value, "ts", path)
        if category not in _READ:
            before, earliest = earliest, min(earliest, at_us)
            return _UNREAD._replace(at_us=at_us) if first or earliest < before else LEFT_OUT
        kept += 1
        if kept > MOST_EVENTS:
            raise TraceError(f"{path}: has more than {MOST_EVENTS:,} operators, calls and kernels; record fewer steps")
        args = value.get("args")
        return Event(
            sys.intern(category), sys.intern(str(value.get("name", ""))), at_us,
            _number(value, "dur", path, default=0.0), value.get("pid"), value.get("tid"),
            {key: each for key, each in args.items() if key in _ARGS} if isinstance(args, dict) else {},
        )  # fmt: skip

    return event_of


def is_events(content: Any) -> bool:
    """Whether what was read of a file, a list, is one of events."""
    return isinstance(content, list) and bool(content) and isinstance(content[0], Event)


def read_kineto(content: Any, path: Path) -> Recording:
    """Read a Kineto trace from the JSON value that it is, with events as `events_in` keeps them.

    Parameters
    ----------
    content : object
        A mapping with `traceEvents`, or the list of events alone.
    path : Path
        Of the file, for messages.

    Raises
    ------
    TraceError
        If it holds no list of events, or an event ends too late or before it begins.
    """
    facts: Mapping[str, Any] = content if isinstance(content, dict) else {}
    events = facts.get("traceEvents") if facts else content
    if not isinstance(events, list):
        raise TraceError(f"{path}: has no list of traceEvents; give what torch.profiler exported")
    origin = min((event.at_us for event in events if event.at_us < math.inf), default=0.0)
    info = facts.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    recording = Recording(
        path, _rank(info.get("rank")), _rank(info.get("world_size")), _device(facts),
        listed_groups(info.get("pg_config"), "pg_size"), [], [], [],
        [], {}, origin, _since_1970(facts, origin),
    )  # fmt: skip
    externals: dict[int, int] = {}
    for event in events:
        if event.category:
            _take(recording, event, event.at_us - origin, externals)
    recording.works.sort(key=lambda work: (work.start_us, work.end_us))
    recording.calls.sort(key=lambda call: call.start_us)
    recording.steps.sort(key=lambda step: step.start_us)
    streams = len({work.stream for work in recording.works})
    if streams > _MOST_STREAMS:
        raise TraceError(f"{path}: has kernels on {streams:,} streams; at most {_MOST_STREAMS:,} are read")
    _nest(recording.operators, path)
    _link(recording, externals)
    return recording


def _take(recording: Recording, event: Event, start_us: float, externals: dict[int, int]) -> None:
    """Add one event with a duration to what was read."""
    category, name, args = event.category, event.name, event.args
    end_us = start_us + event.lasts_us
    if event.lasts_us < 0 or end_us > _LONGEST_US:
        raise TraceError(
            f"{recording.path}: event {shown(name)} begins {start_us:.6g} us after the first and lasts "
            f"{event.lasts_us:.6g} us; a recording spans at most {_LONGEST_US:g} us, mend the file"
        )
    thread = (sys.intern(str(event.process)), sys.intern(str(event.thread)))
    if category in _WORK:
        stream = (whole_of(args.get("device", event.process)), whole_of(args.get("stream", event.thread)))
        work = Work(name, _WORK[category], stream, start_us, end_us, whole_of(args.get("correlation")), args)
        recording.works.append(work)
    elif category in _CALLS:
        kind = call_kind(name)
        if kind is not None:
            external = whole_of(args.get("External id", args.get("external id")))
            call = Call(kind, name, thread, start_us, end_us, whole_of(args.get("correlation")), external)
            recording.calls.append(call)
    elif category == "cuda_sync":
        recording.syncs[whole_of(args.get("correlation"))] = args
    elif _STEP.fullmatch(name):
        recording.steps.append(Span(name, start_us, end_us))
    else:
        external = whole_of(args.get("External id", args.get("external id")))
        if external > 0:
            externals.setdefault(external, len(recording.operators))
        recording.operators.append(Operator(name, thread, start_us, end_us, args))


def _number(event: Mapping[str, Any], key: str, path: Path, *, default: float | None = None) -> float:
    value = event.get(key, default)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if type(value) in (int, float) and abs(value) < _LARGEST_US:
        return float(value)
    name = shown(event.get("name"))
    raise TraceError(f"{path}: event {name} has {key} {shown(event.get(key))}, which is no number of us; mend the file")


def whole_of(value: object) -> int:
    """Return a whole number; `NONE` for what is none."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return value if is_whole else NONE  # type: ignore[return-value]


def shape_of(sizes: object) -> tuple[int, ...] | None:
    """Return the shape of a tensor that a file tells; None if these are no sizes, or more than any memory holds.

    >>> shape_of([2, 3]), shape_of([2, "3"]), shape_of([10**9, 10**9])
    ((2, 3), None, None)
    """
    if not isinstance(sizes, list) or len(sizes) > _MOST_DIMENSIONS:
        return None
    if any(type(size) is not int or size < 0 for size in sizes):
        return None
    return tuple(sizes) if math.prod(sizes) <= _MOST_ELEMENTS else None


def _rank(value: object) -> int | None:
    found = whole_of(value)
    return found if found >= 0 else None


def _since_1970(facts: Mapping[str, Any], origin_us: float) -> float | None:
    """Return a moment of the file since 1970; newer files count from a base, older ones from then or from boot."""
    found = origin_us + max(whole_of(facts.get("baseTimeNanoseconds", 0)), 0) / 1e3
    return found if found > _AFTER_1970_US else None


def _device(facts: Mapping[str, Any]) -> str:
    listed = facts.get("deviceProperties")
    names = [str(each.get("name", "")) for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return next((name for name in names if name), "")


def listed_groups(listed: object, size_key: str) -> dict[str, tuple[int, ...]]:
    """Return the process groups that a file lists with their ranks, by name."""
    groups = {}
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, dict) and isinstance(each.get("ranks"), list):
            ranks = tuple(whole_of(rank) for rank in each["ranks"])
            size = whole_of(each.get(size_key))
            if ranks and NONE not in ranks and size in (NONE, len(ranks)):
                groups[str(each.get("pg_name"))] = ranks
    return groups


def _nest(operators: Sequence[Operator], path: Path) -> None:
    """Find the operator that called each: of those of its thread that run when it begins, the last to begin."""
    by_thread: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, operator in enumerate(operators):
        by_thread[operator.thread].append(number)
    for numbers in by_thread.values():
        numbers.sort(key=lambda number: (operators[number].start_us, -operators[number].end_us))
        running: list[int] = []
        for number in numbers:
            while running and operators[running[-1]].end_us <= operators[number].start_us:
                running.pop()
            operators[number].parent = running[-1] if running else NONE
            running.append(number)
            if len(running) > _MOST_CALLERS:
                raise TraceError(
                    f"{path}: operator {shown(operators[number].name)} begins while {_MOST_CALLERS:,} others of its "
                    f"thread run; at most as many are read, mend the file"
                )


def _link(recording: Recording, externals: Mapping[int, int]) -> None:
    """Link work to the calls that launched it, calls to operators, and both to steps."""
    launches: dict[int, int] = {}
    innermost = _Innermost(recording.operators)
    for number, call in enumerate(recording.calls):
        if call.kind is CallKind.LAUNCH and call.correlation != NONE:
            launches.setdefault(call.correlation, number)
        found = innermost.at(call.thread, call.start_us)
        call.operator = found if found != NONE else externals.get(call.external, NONE)
    for work in recording.works:
        work.call = launches.get(work.correlation, NONE) if work.correlation != NONE else NONE
        external = whole_of(work.args.get("External id", work.args.get("external id")))
        work.operator = recording.calls[work.call].operator if work.call != NONE else NONE
        if work.operator == NONE and external > 0 and work.call == NONE:
            work.operator = externals.get(external, NONE)
    _place_in_steps(recording)


def _place_in_steps(recording: Recording) -> None:
    """Say of each work which step launched it; what has no launch goes with what ran then."""
    if not recording.steps:
        for work in recording.works:
            work.step = 0
        return
    starts = [step.start_us for step in recording.steps]
    begun: dict[int, float] = {}  # step to when the GPU began it
    for work in recording.works:
        if work.call != NONE:
            work.step = bisect_right(starts, recording.calls[work.call].start_us) - 1
            begun.setdefault(work.step, work.start_us)
    known = sorted((since_us, step) for step, since_us in begun.items() if step != NONE)
    times = [since_us for since_us, _ in known]
    latest = list(accumulate((step for _, step in known), max))
    for work in recording.works:
        if work.call == NONE:
            at = bisect_right(times, work.start_us) - 1
            work.step = latest[at] if at >= 0 else NONE


class _Innermost:
    """Which operator of a thread is the innermost at a moment."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self._operators = operators
        self._numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
        for number, operator in enumerate(operators):
            self._numbers[operator.thread].append(number)
        self._starts = {}
        for thread, numbers in self._numbers.items():
            numbers.sort(key=lambda number: (operators[number].start_us, -operators[number].end_us))
            self._starts[thread] = [operators[number].start_us for number in numbers]

    def at(self, thread: tuple[str, str], moment_us: float) -> int:
        """Return its index, or `NONE`."""
        if thread not in self._starts:
            return NONE
        at = bisect_right(self._starts[thread], moment_us) - 1
        number = self._numbers[thread][at] if at >= 0 else NONE
        while number != NONE and self._operators[number].end_us < moment_us:
            number = self._operators[number].parent
        return number


def ancestors(operators: Sequence[Operator], number: int) -> Iterable[Operator]:
    """Yield an operator and those that called it, innermost first."""
    while number != NONE:
        yield operators[number]
        number = operators[number].parent
