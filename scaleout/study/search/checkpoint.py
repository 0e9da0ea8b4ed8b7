"""What a search has computed: in memory, and in the checkpoint log of a directory, from which a search resumes.

The log has one line per evaluated plan, and one for each step of the search: what bounding some families, or opening
them, gave. Its first line identifies the search by all that changes an estimate; memory limit, `top` and fixed keys do
not, so a narrower or wider search of the same job takes its estimates too. Simulations under a schedule count for the
same limit only, steps for the same request.
"""

import hashlib
import math
import warnings
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import scaleout
from scaleout.cluster.device.spec import load_device
from scaleout.config.checkpoint import append, as_line, drop_incomplete_line, locked, read_log
from scaleout.config.writing import write_bytes
from scaleout.errors import ConfigError
from scaleout.study.search.best import Choice, EvaluatedPlan
from scaleout.study.search.evaluate import BASELINE, Estimate
from scaleout.study.search.request import SearchRequest
from scaleout.study.search.space import Plan

FILE = "plans.jsonl"
"""Name of the log in an output directory."""

_FORMAT = 3
"""Of the lines; logs of another one are refused."""


class Memory:
    """Estimates of plans, and what steps of a search gave, as plain values by name; for as long as a search runs."""

    def __init__(self) -> None:
        self.estimates: dict[Choice, Estimate] = {}
        self.steps: dict[str, Any] = {}

    def add(self, found: EvaluatedPlan) -> None:
        """Remember a plan under a schedule."""
        self.estimates.setdefault(found.choice, found.estimate)

    def add_step(self, name: str, value: Any) -> None:
        """Remember what a step gave."""
        self.steps.setdefault(name, value)


class PlanLog(Memory):
    """The log of a search in a directory, which is made if need be, and is nobody else's while this is open.

    Raises
    ------
    ConfigError
        If the directory holds the log of another search, another process searches there, or it cannot be written.
    """

    def __init__(self, directory: Path, request: SearchRequest) -> None:
        super().__init__()
        self.path, self._memory_bytes, self._of = directory / FILE, request.memory_bytes, _wanted(request)
        header = {
            "request": _fingerprint(request),
            "workload": request.base.name,
            "ranks": request.num_ranks,
            "format": _FORMAT,
        }
        with ExitStack() as stack:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(directory, FILE))
                if not self.path.exists() or not self.path.stat().st_size:
                    write_bytes(self.path, as_line(header))
                self._read(header)
                drop_incomplete_line(self.path)
            except OSError as error:
                raise ConfigError(
                    f"output {str(self.path)!r} cannot be written ({error.strerror}); give another"
                ) from None
            self._held = stack.pop_all()

    def _read(self, header: dict[str, object]) -> None:
        rows = read_log(self.path, checked=True)
        first = rows.pop(1, {})
        if "request" not in first:
            raise ConfigError(f"{self.path}: is not the log of a search; remove it, or give another --output")
        if first != header:
            raise ConfigError(
                f"{self.path}: holds plans of another search (workload {first.get('workload')!r} on "
                f"{first.get('ranks')} ranks, or other settings); remove it, or give another --output"
            )
        for number, row in rows.items():
            try:
                self._take(row)
            except (ValueError, KeyError, TypeError, AttributeError):
                warnings.warn(f"{self.path}, line {number}: damaged (no estimate of a plan); left out", stacklevel=2)

    def _take(self, row: dict[str, Any]) -> None:
        if "step" in row:
            if row["of"] == self._of:
                super().add_step(row["step"], row["value"])
            return
        plan, estimate = Plan(**row["plan"]), Estimate(**row["estimate"])
        times = [value for value in vars(estimate).values() if not isinstance(value, dict)]
        held = [*estimate.exposed_s.values(), *estimate.memory_bytes.values()]
        if not all(map(math.isfinite, (*times, *held))) or estimate.step_s <= 0:
            raise ValueError
        if row["schedule"] == BASELINE or row["memory_bytes"] == self._memory_bytes:
            super().add(EvaluatedPlan(plan, estimate, row["schedule"]))

    def add(self, found: EvaluatedPlan) -> None:
        """Write down a plan under a schedule, unless it stands there already."""
        if found.choice not in self.estimates:
            about = {"schedule": found.schedule, "memory_bytes": self._memory_bytes}
            append(self.path, [{"plan": found.plan._asdict(), **about, "estimate": asdict(found.estimate)}])
            super().add(found)

    def add_step(self, name: str, value: Any) -> None:
        """Write down what a step gave, unless it stands there already."""
        if name not in self.steps:
            append(self.path, [{"step": name, "of": self._of, "value": value}])
            super().add_step(name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()


def _wanted(request: SearchRequest) -> str:
    """Return a hash of what a search is for, besides what its estimates depend on."""
    fixed = sorted(request.fixed.items())
    about = (request.memory_bytes, request.top, fixed, request.schedules, request.simulations)
    return hashlib.sha256(repr(about).encode()).hexdigest()[:16]


def _fingerprint(request: SearchRequest) -> str:
    """Return a hash of all that an estimate depends on besides the plan."""
    kept = request.base.model_dump(exclude={*Plan._fields, "batch_per_replica", "description", "source"})
    device = request.device
    devices = [device, *([load_device(device.efficiency_from)] if device.efficiency_from else [])]
    about = (
        scaleout.__version__, kept, request.topology, [replace(each, kernel_files=()) for each in devices],
        [hashlib.sha256(path.read_bytes()).hexdigest() for each in devices for path in each.kernel_files],
        request.num_ranks, request.batch, request.options,
    )  # fmt: skip
    return hashlib.sha256(repr(about).encode()).hexdigest()
