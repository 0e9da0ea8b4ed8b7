"""What a schedule that weighs costs decided, and its words for it."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from scaleout.config.units import format_bytes
from scaleout.program.graph import COLLECTIVES, NodeKind
from scaleout.program.program import Program
from scaleout.simulation.result import Result


@dataclass(frozen=True)
class Decision:
    """What was decided for things that are alike: `what` says how many of what, `reason` why not otherwise.

    `before_s` and `after_s` are estimates without the choice and with it. `called` is what the nodes are called,
    for the reader alone: schedules decide by roles, so decisions that differ by names alone are equal.
    """

    what: str
    choice: str
    before_s: float
    after_s: float
    reason: str = ""
    called: str = field(default="", compare=False)

    def __str__(self) -> str:
        instead = f" instead of {self.before_s * 1e3:.4g}" if self.after_s < self.before_s else ""
        reason = f" ({self.reason})" if self.reason else ""
        what = f"{self.what} {self.called}" if self.called else self.what
        return f"{what}: {self.choice}, {self.after_s * 1e3:.4g} ms{instead}{reason}"


def collectives(count: int, kind: str, size_bytes: int, family: str) -> str:
    """Name collectives that are alike.

    >>> collectives(2, "all_gather", 1_070_000_000, "data")
    '2 x all_gather of 1020 MiB over data'
    """
    return f"{count} x {kind} of {format_bytes(size_bytes)} over {family}"


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

    `result` is a simulated step on the machine that it was planned for, if one was simulated; it names its network.
    `whole` is what it was before all-to-alls were cut, if they were: a pass behind may do more with them whole.
    """

    program: Program
    decisions: tuple[Decision, ...] = ()
    result: Result | None = None
    whole: "Planned | None" = None
