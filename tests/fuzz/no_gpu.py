"""scaleout's command line on a machine with two GPUs that are none: `python no_gpu.py measure kernels ...`.

Processes, rows, locks and files are the real ones; PyTorch, and the module that times kernels, are stand-ins. A kernel
takes a tenth of a second to measure, and always the same time.
"""

import multiprocessing
import sys
import time
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

GPUS = 2


class EndedError(Exception):
    """As PyTorch says that a process has ended."""


class Spawned:
    """What PyTorch's `spawn` returns."""

    def __init__(self, work, arguments, count):
        context = multiprocessing.get_context("fork")  # so that they have the stand-ins, too
        self.processes = [context.Process(target=work, args=(rank, *arguments)) for rank in range(count)]
        for process in self.processes:
            process.start()

    def join(self, timeout):
        until = time.monotonic() + timeout
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
        for rank, process in enumerate(self.processes):
            if process.exitcode:
                raise EndedError(f"process {rank} terminated with exit code {process.exitcode}")
        return all(process.exitcode == 0 for process in self.processes)


def measured(row, _session):
    """Time a kernel."""
    time.sleep(0.1)
    return {"us": 1.0 + sum(row["shape"].values()) / 1e3, "us_min": 1.0}


def stand_in():
    """Put stand-ins in the places of PyTorch and of what times kernels."""
    torch, timer = MagicMock(), ModuleType("timer")
    torch.__version__ = "2.9"
    torch.version.cuda = "13.0"
    torch.backends.cudnn.version.return_value = 91000
    torch.cuda.nccl.version.return_value = (2, 28, 9)
    torch.cuda.device_count.return_value = GPUS
    torch.cuda.get_device_name.return_value = "Toy 9000"
    torch.cuda.get_device_properties.return_value = SimpleNamespace(
        total_memory=16 * 2**30, L2_cache_size=2**22, multi_processor_count=10
    )
    torch.multiprocessing.spawn = lambda work, arguments, count, join: Spawned(work, arguments, count)
    torch.multiprocessing.ProcessRaisedException = torch.multiprocessing.ProcessExitedException = EndedError
    timer.measure = measured
    sys.modules |= {"torch": torch, "torch.distributed": torch.distributed}
    sys.modules["scaleout.validation.measure.timer"] = timer


if __name__ == "__main__":
    stand_in()
    from scaleout.cli import main

    main()
