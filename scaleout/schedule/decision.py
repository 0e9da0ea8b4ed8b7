"""What a schedule that weighs costs decided, and its words for it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import fsum
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
    chunks: halves too, 1.2 ms, rather than as they were, 2 ms (a step)
    >>> print(Decision("layers", "forward first", 1.0, {"backward first": 1.001}, time_of="each", count=2))
    2 x layers: forward first, 1 s, rather than backward first, 1 ms more (each)
    >>> print(Decision("layers", "forward first", 5e-3, {"backward first": 4e-3}, reason="a step would be no shorter"))
    layers: forward first, 5 ms, though backward first takes 4 ms (a step; a step would be no shorter)
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
            words += f", {format_seconds(self.time_s)}"
            for name, other_s in self.alternatives_s.items():
                faster = is_faster(other_s, self.time_s)
                words += f", though {name} takes " if faster else f", rather than {name}, "
                words += self.against(other_s)
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


def told_once(decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Return decisions, those that have the same words as one about all of them: of sizes that are written alike.

    >>> alike = [Decision("all_gather of 625 MiB", "whole", each, count=1) for each in (1.8501e-3, 1.8502e-3)]
    >>> [str(each) for each in told_once(alike)]
    ['2 x all_gather of 625 MiB: whole, 1.85 ms (a step)']
    """
    found: dict[str, Decision] = {}
    for each in decisions:
        if each.count is None:
            found[str(len(found))] = each
            continue
        words = str(replace(each, count=None, saved_s=None))
        before = found.get(words)
        found[words] = each if before is None else _added(before, each)
    return tuple(found.values())


def _added(one: Decision, other: Decision) -> Decision:
    saved = [each.saved_s for each in (one, other) if each.saved_s is not None]
    counts = [each.count or 0 for each in (one, other)]
    return replace(one, count=sum(counts), saved_s=fsum(saved) if saved else None)


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
