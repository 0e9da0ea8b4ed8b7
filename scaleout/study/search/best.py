"""Evaluated plans: the best so far, what became of the others, and the checkpoint log from which a search resumes.

The log has one line per evaluated plan. Its first line identifies the search by all that changes an estimate; memory
limit, `top` and fixed keys do not, so a narrower or wider search of the same job resumes too. Simulations under a
schedule count for the same limit only.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import scaleout
from scaleout.errors import ConfigError
from scaleout.study.search.evaluate import BASELINE, Estimate
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.space import Plan

SLACK = 1.25
"""Plans slower than the fastest by more than this factor are not looked at for their memory."""

ROUNDING = 1 - 1e-9
"""Factor on a lower bound, so that rounding never lifts it above the time that it bounds."""

FILE = "plans.jsonl"
"""Name of the log in an output directory."""

Choice = tuple[Plan, str]
"""A plan and a schedule."""


@dataclass(frozen=True)
class EvaluatedPlan:
    """A plan and its estimate under a schedule."""

    plan: Plan
    estimate: Estimate
    schedule: str = BASELINE

    @property
    def key(self) -> tuple[Any, ...]:
        """Order: fastest first, of equals the one that holds least, then the schedule, then the plan itself."""
        simple = self.schedule != BASELINE, self.schedule
        return self.estimate.step_s, self.estimate.peak_bytes, simple, tuple(map(str, self.plan))

    @property
    def choice(self) -> Choice:
        """What was chosen."""
        return self.plan, self.schedule


@dataclass
class Counts:
    """Plans by what became of them.

    Attributes
    ----------
    enumerated : int
        All plans.
    indivisible : int
        Whose sizes do not divide.
    bounded : int
        That cannot be among those wanted, by their lower bounds.
    too_large : int
        That do not fit the memory.
    """

    enumerated: int = 0
    indivisible: int = 0
    bounded: int = 0
    too_large: int = 0
    evaluated: int = 0

    def add(self, other: "Counts") -> None:
        """Add others."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)


@dataclass
class Best:
    """The plans that are kept so far."""

    top: int
    fastest: list[EvaluatedPlan] = field(default_factory=list)
    front: list[EvaluatedPlan] = field(default_factory=list)

    @property
    def last_s(self) -> float:
        """Seconds of the last of the fastest, above which no plan is among them."""
        return self.fastest[-1].estimate.step_s if len(self.fastest) == self.top else float("inf")

    def may_have(self, bound_s: float) -> bool:
        """Whether a plan that takes no less may be among the fastest."""
        return bound_s * ROUNDING <= self.last_s

    def limit(self) -> float:
        """Seconds above which no plan is wanted."""
        if len(self.fastest) < self.top:
            return float("inf")
        return max(self.last_s, SLACK * self.fastest[0].estimate.step_s)

    def wants(self, bound_s: float, peak_bytes: float) -> bool:
        """Whether a plan that takes no less may be kept."""
        if self.may_have(bound_s):
            return True
        if bound_s * ROUNDING > self.limit():
            return False
        return not any(
            found.estimate.step_s < bound_s * ROUNDING and found.estimate.peak_bytes <= peak_bytes
            for found in self.front
        )

    def add(self, found: Iterable[EvaluatedPlan]) -> None:
        """Keep those that are among the best."""
        new = list(found)
        self.fastest = sorted([*self.fastest, *new], key=lambda each: each.key)[: self.top]
        front: list[EvaluatedPlan] = []
        for each in sorted([*self.front, *new], key=lambda each: each.key):
            if not front or each.estimate.peak_bytes < front[-1].estimate.peak_bytes:
                front.append(each)
        self.front = front

    @property
    def near(self) -> list[EvaluatedPlan]:
        """The front, as far as it is complete."""
        last_s = SLACK * self.fastest[0].estimate.step_s if self.fastest else 0.0
        return [found for found in self.front if found.estimate.step_s <= last_s]


@dataclass(frozen=True)
class Execution:
    """How a search runs.

    Attributes
    ----------
    pool : Executor
        Of as many processes as there are workers.
    known : mapping
        Estimates of what was evaluated before.
    keep : function
        Called with every plan as soon as it has been evaluated.
    tell : function
        Called now and then with steps done, all steps, how many plans have been evaluated, and the best so far.
    """

    pool: Executor
    workers: int
    known: Mapping[Choice, Estimate]
    keep: Callable[[EvaluatedPlan], None]
    tell: Callable[[int, int, int, Best], None]


class CheckpointLog:
    """The log of a search in a directory, which is made if need be.

    Raises
    ------
    ConfigError
        If the directory holds the log of another search, or cannot be written.
    """

    def __init__(self, directory: Path, request: SearchRequest) -> None:
        self.path, self.memory_bytes = directory / FILE, request.memory_bytes
        self.known: dict[Choice, Estimate] = {}
        header = {"request": _fingerprint(request), "workload": request.base.name, "ranks": request.num_ranks}
        try:
            directory.mkdir(parents=True, exist_ok=True)
            whole = self._read(header) if self.path.exists() else b""
            self._file = self.path.open("r+b" if self.path.exists() else "wb")
            self._file.truncate(len(whole))  # a line that was not written to its end
            self._file.seek(len(whole))
            if not whole:
                self._write(header)
        except OSError as error:
            raise ConfigError(f"output {str(self.path)!r} cannot be written ({error.strerror}); give another") from None

    def _read(self, header: dict[str, object]) -> bytes:
        """Read the lines that are whole, and return them."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        try:
            rows = [json.loads(line) for line in whole]
            same = not rows or rows[0] == header
            if same:
                self.known = {
                    (Plan(**row["plan"]), row["schedule"]): Estimate(**row["estimate"])
                    for row in rows[1:]
                    if row["schedule"] == BASELINE or row["memory_bytes"] == self.memory_bytes
                }
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{self.path}: is not the log of a search; remove it, or give another --output") from None
        if not same:
            raise ConfigError(
                f"{self.path}: holds plans of another search (workload {rows[0].get('workload')!r} on "
                f"{rows[0].get('ranks')} ranks, or other settings); remove it, or give another --output"
            )
        return b"".join(whole)

    def add(self, found: EvaluatedPlan) -> None:
        """Write down a plan under a schedule, unless it stands there already."""
        if found.choice not in self.known:
            about = {"schedule": found.schedule, "memory_bytes": self.memory_bytes}
            self._write({"plan": found.plan._asdict(), **about, "estimate": asdict(found.estimate)})

    def _write(self, row: dict[str, object]) -> None:
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _fingerprint(request: SearchRequest) -> str:
    """Return a hash of all that an estimate depends on besides the plan."""
    kept = request.base.model_dump(exclude={*Plan._fields, "batch_per_replica", "description", "source"})
    device = request.device
    measured = [hashlib.sha256(path.read_bytes()).hexdigest() for path in device.kernel_files]
    peaks = (sorted(device.peak_flops_per_s.items()), device.memory_bytes_per_s, device.l2_bytes, device.num_sms)
    about: tuple[Any, ...] = (
        scaleout.__version__, kept, request.topology, peaks, measured, request.num_ranks, request.batch
    )  # fmt: skip
    host_and_clocks = request.options.host, request.options.clocks
    if host_and_clocks != ("none", "unthrottled"):  # files from before the choice are of the same search
        about += host_and_clocks
    return hashlib.sha256(repr(about).encode()).hexdigest()
