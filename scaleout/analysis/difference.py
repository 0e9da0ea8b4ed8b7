"""Two results to what takes longer in the second: the step, phases, operations, collectives, and waiting.

All times are means over ranks, in seconds; a difference is the second result's time less the first's. Compute, exposed
communication and idle time add up to the makespan, and so do their differences. Busy times count what runs at the same
time twice; phases, and operations, add up to the whole busy time, and collectives to that of communication. What is
in one result only takes no time in the other. Times that differ by rounding alone are one. Knows no files and no
programs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import fsum

from scaleout.analysis.breakdown import Busy


@dataclass(frozen=True)
class Profile:
    """Where the time of one result goes; the first four add up as those of a `Breakdown`."""

    name: str  # what ran, under which schedule
    makespan_s: float
    compute_s: float
    exposed_communication_s: float
    idle_s: float
    communication_s: float
    busy: tuple[Busy, ...]


@dataclass(frozen=True)
class Change:
    """One row: what takes `a_s` in the first result and `b_s` in the second.

    `bytes` and `group_size` are those of a collective, and 0 if not known or for anything else; `only_in` is ``A`` or
    ``B`` if the other result has none of it.
    """

    name: str
    kind: str  # `compute`, `communication`, `host` or, of rows about the step, ``""``
    bytes: int
    group_size: int
    a_count: float
    b_count: float
    a_s: float
    b_s: float
    difference_s: float
    only_in: str


@dataclass(frozen=True)
class Difference:
    """What changes from one result to another, each table by the size of the change, the largest first."""

    a: str
    b: str
    makespan: Change
    step: tuple[Change, ...]  # compute, exposed communication and idle, which add up to the makespan
    busy: tuple[Change, ...]  # all compute, communication and time of the host
    phases: tuple[Change, ...]
    operations: tuple[Change, ...]
    collectives: tuple[Change, ...]


def difference(a: Profile, b: Profile) -> Difference:
    """Say what takes longer in `b` than in `a`: ``difference_s = b_s - a_s`` of each row."""
    names = {"compute": "compute_s", "exposed communication": "exposed_communication_s", "idle": "idle_s"}
    step = [_change((name, "", 0, 0), a_s=getattr(a, key), b_s=getattr(b, key)) for name, key in names.items()]
    nothing_s = _ROUNDING * max(a.makespan_s, b.makespan_s)
    a_calls, b_calls = ([one for one in side.busy if one.kind == "communication"] for side in (a, b))
    tables = (
        _changes(a.busy, b.busy, lambda one: ("busy", one.kind, 0, 0)),
        _changes(a.busy, b.busy, lambda one: (one.phase, one.kind, 0, 0)),
        _changes(a.busy, b.busy, lambda one: (one.operation, one.kind, 0, 0)),
        _changes(a_calls, b_calls, lambda one: (one.operation, one.kind, one.bytes, one.group_size)),
    )
    makespan = _settled(_change(("makespan", "", 0, 0), a_s=a.makespan_s, b_s=b.makespan_s), nothing_s)
    return Difference(a.name, b.name, makespan, *(_sorted(rows, nothing_s) for rows in (step, *tables)))


_Key = tuple[str, str, int, int]


def _changes(a: Sequence[Busy], b: Sequence[Busy], key_of: Callable[[Busy], _Key]) -> list[Change]:
    """Add up what has the same key in each result, and compare."""
    sides = [_grouped(side, key_of) for side in (a, b)]
    rows = []
    for key in sides[0] | sides[1]:
        a_rows, b_rows = (side.get(key, []) for side in sides)
        counts = [fsum(one.count for one in rows) for rows in (a_rows, b_rows)]
        seconds = [fsum(one.busy_s for one in rows) for rows in (a_rows, b_rows)]
        only_in = "" if a_rows and b_rows else "A" if a_rows else "B"
        rows.append(_change(key, a_s=seconds[0], b_s=seconds[1], counts=(counts[0], counts[1]), only_in=only_in))
    return rows


def _grouped(busy: Sequence[Busy], key_of: Callable[[Busy], _Key]) -> dict[_Key, list[Busy]]:
    found: dict[_Key, list[Busy]] = {}
    for one in busy:
        found.setdefault(key_of(one), []).append(one)
    return found


def _change(
    key: _Key, *, a_s: float, b_s: float, counts: tuple[float, float] = (1.0, 1.0), only_in: str = ""
) -> Change:
    return Change(*key, *counts, a_s, b_s, b_s - a_s, only_in)


def _settled(row: Change, nothing_s: float) -> Change:
    """Return a row whose times are one if they differ by no more than rounding."""
    if abs(row.difference_s) > nothing_s:
        return row
    longer_s = max(row.a_s, row.b_s)
    return replace(row, a_s=longer_s, b_s=longer_s, difference_s=0.0)


_ROUNDING = 1e-12
"""Of a makespan, by how much sums of the same times differ."""


def _sorted(rows: Sequence[Change], nothing_s: float) -> tuple[Change, ...]:
    """Sort by the size of the change, then by time; ties by name, so that the order of A and B does not matter."""

    def rank(row: Change) -> tuple[float, float, tuple[str, str, int, int]]:
        return -abs(row.difference_s), -max(row.a_s, row.b_s), (row.name, row.kind, row.bytes, row.group_size)

    return tuple(sorted((_settled(row, nothing_s) for row in rows), key=rank))
