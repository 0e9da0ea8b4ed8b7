"""Processes that measure the rows of a job, one process per GPU; each row is written as soon as it is measured.

Rows of one GPU are distributed over the GPUs; rows of several GPUs are measured by all of them jointly. A row that
fails, for example out of memory, is written as failed. A process that ends stops the others; the rows until then are
kept.
"""

import importlib
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from scaleout.config.checkpoint import Row
from scaleout.config.workers import end_with_parent
from scaleout.errors import MeasurementError
from scaleout.validation.measure.checkpoint import MeasurementLog
from scaleout.validation.measure.experiments import EXPERIMENTS, Job
from scaleout.validation.measure.session import Session


def gpus() -> int:
    """Number of GPUs that PyTorch finds."""
    return int(torch.cuda.device_count())


def environment() -> Mapping[str, Any]:
    """Return the facts that the times depend on: GPU, clocks, driver, and versions of the software."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": torch.cuda.get_device_name(0),
        "gpus": torch.cuda.device_count(),
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "sms": properties.multi_processor_count,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": ".".join(str(part) for part in torch.cuda.nccl.version()),
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        **_driver(),
    }


def _driver() -> Mapping[str, str]:
    """Return driver, clocks and power limit as nvidia-smi reports them; nothing without nvidia-smi."""
    names = {
        "driver": "driver_version",
        "clock": "clocks.max.sm",
        "memory_clock": "clocks.max.mem",
        "power_limit": "power.limit",
    }
    command = ["nvidia-smi", f"--query-gpu={','.join(names.values())}", "--format=csv,noheader", "--id=0"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(names, (part.strip() for part in answer.split(",")), strict=False))


def launch(job: Job) -> Iterator[None]:
    """Start the processes of a job and wait for them, yielding regularly; `MeasurementError` if one ends early.

    The processes end with the wait, such as by an interrupt.
    """
    _clear(job)
    context = torch.multiprocessing.spawn(work, (job,), job.gpus, join=False)
    try:
        while not context.join(timeout=0.5):
            yield
    except (torch.multiprocessing.ProcessRaisedException, torch.multiprocessing.ProcessExitedException) as error:
        raise MeasurementError(str(error).strip().splitlines()[-1]) from None
    finally:
        for process in context.processes:
            process.kill()
    _clear(job)


def _clear(job: Job) -> None:
    for file in (Path(job.folder) / ".rendezvous", *Path(job.folder).glob(".nccl.*.log")):
        file.unlink(missing_ok=True)


def work(rank: int, job: Job) -> None:
    """Measure a job's rows as one of its processes."""
    end_with_parent()
    experiment = EXPERIMENTS[job.experiment]
    warnings.simplefilter("ignore")  # of PyTorch, about what measuring does on purpose
    torch.cuda.set_device(rank)
    if job.experiment == "collectives":  # it says what NCCL chose; a line for every call would slow steps down
        nccl_log = Path(job.folder) / f".nccl.{rank}.log"
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="TUNING", NCCL_DEBUG_FILE=str(nccl_log))
    session = Session(rank, job.gpus, job.repeats, job.folder)
    log = MeasurementLog(Path(job.folder), job.experiment)
    module = importlib.import_module(f"scaleout.validation.measure.{experiment.module}")
    if not experiment.collective:
        for row in job.rows[rank :: job.gpus]:
            log.begin(row, rank)
            log.end(row, [_found(module, row, session)], rank)
        return
    session.join()
    for row in job.rows:
        if rank == 0:
            log.begin(row, rank)
        found = session.exchange(_found(module, row, session))
        if rank == 0:
            log.end(row, _joined(module, found), rank)
    session.leave()


def _found(module: Any, row: Row, session: Session) -> Any:
    try:
        return module.measure(row, session)
    except Exception as error:  # any error belongs to this row; the next row is measured
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    finally:
        torch.cuda.empty_cache()


def _joined(module: Any, found: list[Any]) -> list[Mapping[str, Any]]:
    """Join the results of the processes that took part in a row."""
    found = [each for each in found if each is not None]
    failed = [each for each in found if "error" in each]
    joined = failed[0] if failed else module.join(found)
    return joined if isinstance(joined, list) else [joined]
