"""Kernels to their times on the GPU at hand, one JSON line each in and out; a row is written once it is measured.

A line in has `op`, `dtype` and `shape`, and the `method` if it matters: ``graph_replay``, or ``kernel_durations`` for
a call that a CUDA graph cannot hold; `timer` says how the two differ. PyTorch is imported only when a GPU is asked
for.
"""

import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TextIO, cast

from scaleout.errors import ConfigError, ScaleoutError
from scaleout.operations import Kernel, kernel

UNCAPTURED = frozenset({"embedding_bwd"})
"""Operations whose call asks the device something on the way, which a graph cannot hold."""


class Timer(Protocol):
    """What `scaleout.measure.timer` offers."""

    def environment(self) -> Mapping[str, Any]:
        """Return what the times depend on."""

    def time_kernel(self, call: Kernel, method: str) -> Mapping[str, Any]:
        """Time one call."""


def gpu_timer() -> Timer:
    """Return the timer of the GPU at hand.

    Raises
    ------
    ConfigError
        If PyTorch is not installed, or finds no GPU.
    """
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        raise ConfigError("measuring kernels needs PyTorch; install it with `pip install torch`") from None
    if not torch.cuda.is_available():
        raise ConfigError("measuring kernels needs a GPU, and PyTorch finds none; run this on the machine that has it")
    return cast(Timer, importlib.import_module("scaleout.measure.timer"))


def measure(rows: Iterable[Mapping[str, Any]], output: TextIO, *, timer: Timer) -> None:
    """Time the kernel of each row and write the row with what was found.

    Raises
    ------
    ConfigError, GraphError
        If a row is not a kernel.
    """
    for row in rows:
        if not {"op", "dtype", "shape"} <= row.keys():
            raise ConfigError(f"a kernel to measure needs the keys op, dtype and shape, not {', '.join(row)}")
        call = kernel(row["op"], dtype=row["dtype"], **row["shape"])
        method = row.get("method") or ("kernel_durations" if call.op in UNCAPTURED else "graph_replay")
        if method not in ("graph_replay", "kernel_durations"):
            raise ConfigError(f"{call.op}: unknown method {method!r}; use graph_replay or kernel_durations")
        found = timer.time_kernel(call, method)
        output.write(json.dumps({**row, **found, "method": method}) + "\n")
        output.flush()


def main() -> None:
    """Read kernels from standard input and write them with their times to standard output."""
    try:
        timer = gpu_timer()
        sys.stdout.write(json.dumps({"environment": timer.environment()}) + "\n")
        measure((json.loads(line) for line in sys.stdin if line.strip()), sys.stdout, timer=timer)
    except ScaleoutError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
