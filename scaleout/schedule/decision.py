"""What a schedule that weighs costs decided, and its words for it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from scaleout.config.units import format_bytes, format_seconds
from scaleout.program.fastest import is_faster
from scaleout.program.graph import COLLECTIVES, NodeKind
from scaleout.program.program import Program
from scaleout.simulation.result import Result


@dataclass(frozen=True)
class Decision:
    """What was decided about things that are alike, instead of what, and why.

    Attributes
    ----------
    about, count : str, int or None
        What it is about, and how many of them there are.
    choice, time_s : str, float or None
        What was chosen, and how long that takes, as far as it was estimated or simulated.
    alternatives_s : mapping
        What else was weighed, and how long that takes.
    time_of : str
        What these times are of, such as a step or each of the things alone.
    saved_s : float or None
        What all of the things save, each isolated.
    reason : str
        Why not otherwise.
    called : str
        What the nodes are called, for the reader alone: schedules decide by roles, so decisions that differ by names
        alone are equal.

    >>> print(Decision("chunks", "halves too", 1.2e-3, {"as they were": 2e-3}))
    chunks: halves too, 1.2 ms instead of 2 ms as they were (a step)
    >>> print(Decision("layers", "forward first", 1.0, {"backward first": 1.001}, time_of="each", count=2))
    2 x layers: forward first, 1 s instead of 1 ms more backward first (each)
    """

    about: str
    choice: str
    time_s: float | None = None
    alternatives_s: Mapping[str, float] = field(default_factory=dict)
    time_of: str = "a step"
    reason: str = ""
    count: int | None = None
    saved_s: float | None = None
    called: str = field(default="", compare=False)

    def summary(self) -> dict[str, Any]:
        """Return it as plain values; what there is not is left out."""
        found = {name: value for name, value in asdict(self).items() if value not in (None, "", {})}
        if self.time_s is None:
            del found["time_of"]
        return found

    def __str__(self) -> str:
        words = f"{self.about} {self.called}".rstrip() + f": {self.choice}"
        words = words if self.count is None else f"{self.count:,} x {words}"
        why = [self.reason] if self.reason else []
        if self.time_s is not None:
            others = " or ".join(f"{self.against(other_s)} {name}" for name, other_s in self.alternatives_s.items())
            words += f", {format_seconds(self.time_s)}" + (f" instead of {others}" if others else "")
            saved = [] if self.saved_s is None else [f"all save {format_seconds(self.saved_s)}"]
            why = [self.time_of, *saved, *why]
        return f"{words} ({'; '.join(why)})" if why else words

    def against(self, other_s: float) -> str:
        """Write the time of another choice; by how much it differs, where it would be written as the chosen one is."""
        assert self.time_s is not None, "what has alternatives has a time"
        more_s = other_s - self.time_s
        if f"{other_s:.3g}" != f"{self.time_s:.3g}":
            return format_seconds(other_s)
        if not (is_faster(self.time_s, other_s) or is_faster(other_s, self.time_s)):
            return "the same"
        return f"{format_seconds(abs(more_s))} {'more' if more_s > 0 else 'less'}"


def collectives(kind: str, size_bytes: int, family: str) -> str:
    """Name collectives that are alike.

    >>> collectives("all_gather", 1_070_000_000, "data")
    'all_gather of 1020 MiB over data'
    """
    return f"{kind} of {format_bytes(size_bytes)} over {family}"


def collective_counts(program: Program) -> Counter[tuple[int, str, int]]:
    """Count collectives of one rank by family, kind and bytes, of the role that has most of each."""
    counts: Counter[tuple[int, str, int]] = Counter()
    for graph in program.graphs:
        nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
        columns = (column[nodes].tolist() for column in (graph.group, graph.collective, graph.bytes))
        found = Counter(zip(*columns, strict=True))
        counts |= Counter({(group, COLLECTIVES[kind], size): count for (group, kind, size), count in found.items()})
    return counts


@dataclass(frozen=True, eq=False)
class Planned:
    """A scheduled program and its decisions.

    `runs_as` names the simpler schedule that gives the same program, if one does. `result` is a simulated step on the
    machine that it was planned for, if one was simulated; it names its network. `whole` is what it was before
    all-to-alls were cut, if they were: a pass behind may do more with them whole.
    """

    program: Program
    decisions: tuple[Decision, ...] = ()
    result: Result | None = None
    whole: "Planned | None" = None
    runs_as: str = ""
