"""Checkpoint log of a search: one line per evaluated plan, so that an interrupted search resumes.

The first line identifies the search by all that changes an estimate; memory limit, `top` and fixed keys do not, so a
narrower or wider search of the same job resumes too. Simulations under a schedule count for the same limit only.
"""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import scaleout
from scaleout.errors import ConfigError
from scaleout.study.search.best import BASELINE, Choice, EvaluatedPlan, SearchRequest
from scaleout.study.search.evaluate import Estimate
from scaleout.study.search.space import Plan

FILE = "plans.jsonl"
"""Name of the log in an output directory."""


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
        header = {"question": fingerprint(request), "workload": request.base.name, "ranks": request.num_ranks}
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

    def __enter__(self) -> "CheckpointLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def fingerprint(request: SearchRequest) -> str:
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
