"""The machine that measures: its GPUs, and the rows of a job measured on them.

Imports no PyTorch: `backend` does, which `measure` has start a process on each GPU.
"""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

from scaleout.errors import ConfigError, MeasurementError
from scaleout.validation.measure.checkpoint import MeasurementLog
from scaleout.validation.measure.experiments import EXPERIMENTS, Job


def backend() -> ModuleType:
    """Return `scaleout.validation.measure.workers`, the GPUs of this machine; `ConfigError` without PyTorch."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        raise ConfigError(
            "measuring needs PyTorch; install it with `pip install 'scaleout[measure]'` on the machine with the GPUs"
        ) from None
    return importlib.import_module("scaleout.validation.measure.workers")


def check_machine(machine: ModuleType, *, gpus: int | None) -> int:
    """Return the number of GPUs to use; raise `ConfigError` if there are too few."""
    found: int = machine.gpus()
    if found == 0:
        raise ConfigError("measuring needs a GPU, and PyTorch finds none; run this on the machine that has it")
    if gpus is not None and not 1 <= gpus <= found:
        raise ConfigError(f"--gpus {gpus}: PyTorch finds {found} here; ask for 1 to {found}")
    return found if gpus is None else gpus


def able(names: Sequence[str], gpus: int, *, of_all: bool) -> list[str]:
    """Return the experiments for which there are enough GPUs; raise `ConfigError` if one is not, unless `of_all`."""
    found = [name for name in names if gpus >= EXPERIMENTS[name].least_gpus]
    lacking = next((name for name in names if name not in found), None)
    if lacking and not of_all:
        raise ConfigError(
            f"measuring {lacking} needs {EXPERIMENTS[lacking].least_gpus} GPUs or more, and there are {gpus}; run this "
            f"on a machine with more, or leave it out"
        )
    return found


def measure(job: Job, *, machine: ModuleType, log: MeasurementLog) -> Iterator[tuple[int, int]]:
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
