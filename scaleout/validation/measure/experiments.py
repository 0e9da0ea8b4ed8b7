"""What can be measured: experiments, the keys that identify their rows, and the modules that measure a row.

`measure` starts the processes of the `backend` and follows them. This module imports no PyTorch; `backend` does.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from scaleout.errors import ConfigError, MeasurementError
from scaleout.validation.measure.checkpoint import CheckpointLog, Row


class Experiment(NamedTuple):
    """One kind of rows, identified by `keys`; `module` of this package measures them and needs PyTorch.

    If it is `collective`, all GPUs measure each row jointly; else each GPU measures its own rows. `method` is for the
    file's line of provenance.
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


def backend() -> ModuleType:
    """Return `scaleout.validation.measure.workers`, the GPUs of this machine; `ConfigError` without PyTorch."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        raise ConfigError(
            "measuring needs PyTorch; install it with `pip install 'scaleout[measure]'` on the machine with the GPUs"
        ) from None
    return importlib.import_module("scaleout.validation.measure.workers")


def check_machine(machine: ModuleType, names: Sequence[str], *, gpus: int | None) -> int:
    """Return the number of GPUs to use for some experiments; raise `ConfigError` if there are too few."""
    found: int = machine.gpus()
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


def measure(job: Job, *, machine: ModuleType, log: CheckpointLog) -> Iterator[tuple[int, int]]:
    """Measure a job's rows; yield the numbers of measured and of failed rows, regularly.

    `MeasurementError` if a process ends early; the rows until then are kept.
    """
    before = log.counts()

    def since() -> tuple[int, int]:
        measured, failed = log.counts()
        return measured - before[0], failed - before[1]

    try:
        for _ in machine.launch(job):
            yield since()
    except MeasurementError as error:
        measured, failed = since()
        raise MeasurementError(
            f"measuring {job.experiment} ended early: {error}. {measured} rows were measured and {failed} failed; they "
            f"are kept in {Path(job.folder)}. Run the same command to go on: the row that was under way is left out"
        ) from None
    yield since()
