"""Rows of kernels beside collectives: two loops that share the devices, and how long a call of either takes there.

A row holds what a call takes alone and beside the other, of both, so it is two runs. What they take alone is given, as
it is `kernels` and `collectives` that predict it: what is predicted here is how much longer they take together. Both
loops go on for as long, and a mean is taken over the calls that end while both go, but the first.

Calls are named with their sizes. Tables are looked up one after the other. An addition of 256M is one of as many
two-byte elements that are read and written once: 1 GiB in its time alone is the 4.2 TB/s of a long stream. The links
between devices carry one collective; of `NCCL_MAX_CTAS` the least of it and of the library's channels are used.

Source: `measurements/h200-x4/contention.jsonl` for the form of rows.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scaleout.cluster.machine import Machine
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.program.operations import Kernel, kernel
from scaleout.simulation.contention import Contention, contention_of
from scaleout.simulation.engine import Tasks, run
from scaleout.simulation.shared_devices import SharedDevices
from scaleout.validation.measured.case import Case, NoModelError
from scaleout.validation.measured.rows import Row

PARTS = ("compute", "collective")
"""What a row has times of."""
_ROUNDS = 12
"""Calls of the longer of the two in a loop."""

_FORMS = ("gemm_M_N_K", "elementwise_add_SIZE", "embedding_bag_TABLESxBATCHxPOOLINGxDIM")


def split(row: Row) -> list[Row]:
    """Give the kernel and the collective of a row a row of their own each."""
    return [replace(row, id=f"{row.id}:{part}", values={**row.values, "part": part}) for part in PARTS]


def beside(row: Row, machine: Machine) -> Case:
    """A call's time while the other one is made over and over."""
    part = row.word("part", PARTS)
    contention = contention_of(machine.device, machine.topology)
    if contention is None:
        raise NoModelError(
            f"the library of topology {machine.topology.name!r} does not say what it takes from a device"
        )
    calls = _kernels(str(row.values.get("compute", "")))
    alone_s = {key: row.number(f"{key}_alone_us") * 1e-6 for key in PARTS}
    channels = _channels(row, contention)

    def predict_s() -> float:
        return loops(contention, calls, alone_s, channels=channels)[part]

    return Case(row.number(f"{part}_together_us") * 1e-6, predict_s)


def loops(
    contention: Contention, calls: tuple[Kernel, ...], alone_s: Mapping[str, float], *, channels: int
) -> dict[str, float]:
    """Return the mean time of a call of kernels, and of a collective, while both are made over and over, in seconds."""
    shared = SharedDevices(contention)
    longest_s = _ROUNDS * max(alone_s.values())
    pieces = {"compute": len(calls), "collective": 1}
    counts = {key: max(4, math.ceil(longest_s / seconds)) * pieces[key] for key, seconds in alone_s.items()}
    size, first = sum(counts.values()), counts["compute"]
    for task in range(size):
        if task < first:
            shared.register_kernel(task, 0, calls[task % len(calls)], alone_s["compute"] / len(calls))
        else:
            shared.register_transfer(task, (0,), alone_s["collective"], channels=channels, device_of={task: 0})
    unknown = [math.nan] * size
    stream = [int(task >= first) for task in range(size)]
    tasks = Tasks(
        unknown, unknown, stream, [0] * size, [[]] * size, [0] * size, range(size), [1] * size, [()] * size
    )  # fmt: skip
    end_s = run(tasks, (shared,)).end_s
    both_s = min(end_s[first - 1], end_s[-1])
    ends_s = {"compute": end_s[:first][pieces["compute"] - 1 :: pieces["compute"]], "collective": end_s[first:]}
    return {key: float(np.mean(np.diff(part[part <= both_s]))) for key, part in ends_s.items()}


def _channels(row: Row, contention: Contention) -> int:
    most = str(row.values.get("nccl_max_ctas", "default"))
    if most != "default" and not (most.isdecimal() and int(most)):
        raise ConfigError(f"{row.where}: nccl_max_ctas is {most!r}; give a whole number above zero, or default")
    return min(contention.resource_use.num_sms, int(most) if most != "default" else contention.resource_use.num_sms)


def _kernels(name: str) -> tuple[Kernel, ...]:
    """Return the kernels of one call, by its name."""
    kind, _, sizes = re.sub(r"_(?=\d)", " ", name, count=1).partition(" ")
    numbers = [int(found) for found in re.findall(r"\d+", sizes)]
    match kind, numbers:
        case "gemm", [rows, columns, depth]:
            return (kernel("gemm", dtype="bf16", M=rows, N=columns, K=depth),)
        case "elementwise_add", [millions]:
            return (kernel("clone", dtype="bf16", elements=millions * 2**20),)
        case "embedding_bag", [tables, batch, pooling, dim]:
            one = kernel(
                "embedding_bag_fwd", dtype="fp32", batch=batch, tables=1, pooling=pooling, dim=dim, rows=200_000
            )
            return (one,) * tables
    raise NoModelError(f"a kernel named {name!r} is not known; {nearest(name, _FORMS)}")
