"""What can be measured: experiments, the keys that identify their rows, and the modules that measure a row.

`measure` starts the processes through a `Backend` and follows them. This module imports no PyTorch; `backend` does.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from scaleout.errors import ConfigError, MeasurementError
from scaleout.validation.measure.checkpoint import CheckpointLog, Row

__all__ = ["EXPERIMENTS", "Backend", "Experiment", "Job", "Row", "backend", "check_machine", "measure"]


class Experiment(NamedTuple):
    """One kind of rows.

    Attributes
    ----------
    module : str
        The module of this package that measures a row; it needs PyTorch.
    keys : tuple of str
        The keys that identify a row.
    collective : bool
        Whether all GPUs measure each row jointly, or each GPU measures its own rows.
    least_gpus : int
        Fewest GPUs that can measure a row.
    method : str
        For the file's line of provenance.
    """

    module: str
    keys: tuple[str, ...]
    collective: bool
    least_gpus: int
    method: str


EXPERIMENTS: Mapping[str, Experiment] = {
    "kernels": Experiment(
        "timer",
        ("op", "dtype", "shape", "method"),
        False,
        1,
        "graph_replay: CUDA-graph replays that rotate through several sets of data, more than the L2 cache holds; "
        "kernel_durations: durations of the device kernels of one call, added up, over the same data",
    ),
    "collectives": Experiment(
        "communicator",
        ("collective", "ranks", "bytes", "algorithm", "protocol"),
        True,
        2,
        "CUDA graphs of up to 20 calls, replayed back to back; of each repeat the slowest rank; groups of fewer ranks "
        "than there are GPUs run side by side; bytes is the full tensor on a rank",
    ),
    "host": Experiment(
        "host", ("step",), True, 1, "time of the host among the calls of whole layers of tiny tensors; mean over ranks"
    ),
    "contention": Experiment(
        "concurrent",
        ("gpus", "compute", "collective", "bytes", "nccl_max_ctas"),
        True,
        2,
        "a kernel and a collective in two streams, each as CUDA graphs of calls back to back; each is timed while the "
        "other runs throughout",
    ),
    "steps": Experiment(
        "steps",
        (
            "name", "gpus", "hidden", "layers", "seq", "batch", "mode", "bucket_mb", "ffn", "tokens", "topk", "chunks",
            "M", "N", "K", "collective", "tables_per_gpu", "dim", "pooling", "top_layers", "mlp", "dtype",
        ),
        True,
        1,
        "whole steps as PyTorch runs them call by call, after warm-up; of each repeat the slowest rank",
    ),
    "fused": Experiment(
        "fused",
        ("op", "gpus", "batch", "tables_per_gpu", "dim", "pooling", "persistent_programs", "M", "N", "K", "dtype"),
        True,
        2,
        "Triton kernels that store into peers' memory, and their bulk-synchronous baseline, in CUDA graphs, replayed "
        "back to back; of each repeat the slowest rank; max_abs_diff compares the results of both",
    ),
}  # fmt: skip
"""Name of an experiment to what it is, in the order in which `all` runs them."""


@dataclass(frozen=True)
class Job:
    """Rows of one experiment to measure."""

    experiment: str
    rows: tuple[Row, ...]
    folder: str
    gpus: int
    repeats: int


class Backend(Protocol):
    """What `scaleout.validation.measure.workers` offers."""

    def gpus(self) -> int:
        """Number of GPUs."""

    def environment(self) -> Mapping[str, Any]:
        """Return the facts that the times depend on: GPU, clocks, driver, software."""

    def launch(self, job: Job) -> Iterator[None]:
        """Measure the rows of a job, yielding regularly."""


def backend() -> Backend:
    """Return the GPUs of this machine.

    Raises
    ------
    ConfigError
        If PyTorch is not installed.
    """
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        raise ConfigError(
            "measuring needs PyTorch; install it with `pip install 'scaleout[measure]'` on the machine with the GPUs"
        ) from None
    return cast(Backend, importlib.import_module("scaleout.validation.measure.workers"))


def check_machine(machine: Backend, names: Sequence[str], *, gpus: int | None) -> int:
    """Return the number of GPUs to use for some experiments; raise `ConfigError` if there are too few."""
    found = machine.gpus()
    if found == 0:
        raise ConfigError("measuring needs a GPU, and PyTorch finds none; run this on the machine that has it")
    if gpus is not None and not 1 <= gpus <= found:
        raise ConfigError(f"--gpus {gpus}: PyTorch finds {found} here; ask for 1 to {found}")
    wanted = found if gpus is None else gpus
    for name in names:
        if wanted < EXPERIMENTS[name].least_gpus:
            raise ConfigError(
                f"measuring {name} needs {EXPERIMENTS[name].least_gpus} GPUs or more, and there are {wanted}; "
                f"run this on a machine with more, or leave it out"
            )
    return wanted


def measure(job: Job, *, machine: Backend, log: CheckpointLog) -> Iterator[tuple[int, int]]:
    """Measure a job's rows; yield the numbers of measured and of failed rows, regularly.

    Raises
    ------
    MeasurementError
        If a process ends early; the rows until then are kept.
    """
    before = log.counts()
    try:
        for _ in machine.launch(job):
            yield _since(before, log)
    except MeasurementError as error:
        measured, failed = _since(before, log)
        raise MeasurementError(
            f"measuring {job.experiment} ended early: {error}. {measured} rows were measured and {failed} failed; they "
            f"are kept in {Path(job.folder)}. Run the same command to go on: the row that was under way is left out"
        ) from None
    yield _since(before, log)


def _since(before: tuple[int, int], log: CheckpointLog) -> tuple[int, int]:
    measured, failed = log.counts()
    return measured - before[0], failed - before[1]
