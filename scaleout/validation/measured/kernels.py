"""Rows of kernels and collectives to something to predict: isolated, concurrent, or fused into one operator.

A kernel that is in the device's table is predicted from the other sizes that were measured. A row of kernels that run
concurrently with a collective holds the time of a call of both, isolated and overlapped: two runs. The isolated times
are given, the overlapped ones predicted. A row of a fused operator holds one time for each order of its work, and its
baseline's. See docs/models/contention.md and docs/models/fused-operators.md.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np

from scaleout.cluster.device.kernel_times import time_without_itself
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import place, place_isolated
from scaleout.cluster.topology.topology import Topology
from scaleout.config.documents import whole
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError, GraphError, shown
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.network.collectives import KINDS
from scaleout.program.graph import NONE
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Kernel, kernel
from scaleout.schedule.fusion import OPERATORS, FusedMachine, plan_operator
from scaleout.schedule.fusion.embedding import most_work_groups
from scaleout.schedule.fusion.fused import run
from scaleout.simulation.columns import NOTHING_SHARED, Tasks
from scaleout.simulation.contention import Contention, contention_of
from scaleout.simulation.engine import run as run_tasks
from scaleout.validation.measured.rows import Case, NoModelError, Row

_NAMES = {"send_recv": "send"}
"""Other names of collectives."""


def isolated_kernel(row: Row, machine: Machine) -> Case:
    """A kernel, predicted without the measurement of its own sizes."""
    op = str(row.values["op"])
    if op not in OPERATIONS:
        raise NoModelError(f"no operation {op!r}; {nearest(op, OPERATIONS)}")
    sizes = {name: row.values[name] for name in OPERATIONS[op].parameters if name in row.values}
    for name, size in sizes.items():
        if not isinstance(size, int) or (isinstance(size, bool) and name != "causal"):
            raise ConfigError(f"{row.where}: {name} is {shown(size)}; give a whole number")
    dtype = row.word("dtype", tuple(ITEM_BYTES))
    try:
        called = kernel(op, dtype=dtype, **sizes)
    except (ConfigError, GraphError) as error:
        raise ConfigError(f"{row.where}: {error}") from None

    def predict_s() -> float:
        found = time_without_itself(machine.device, called)
        if found is None:
            raise NoModelError(f"fewer than three sizes of {op} in {called.dtype} were measured")
        return found.seconds

    return Case(row.number("us") * 1e-6, predict_s)


def collective(row: Row, machine: Machine) -> Case:
    """A collective over the first ranks of a node, while its sibling groups run the same one.

    `bytes` is the whole tensor on a rank. Collectives launched one after another take at least what the host spends on
    a launch; those in a CUDA graph do not. A row may name the `protocol` of the library that was forced.
    """
    given = row.word("collective", (*KINDS, *_NAMES))
    kind, ranks, size_bytes = _NAMES.get(given, given), row.ranks("ranks"), row.number("bytes")
    if ranks > machine.topology.num_ranks:
        raise ConfigError(
            f"{row.where}: {ranks} ranks are more than the {machine.topology.num_ranks} of topology "
            f"{machine.topology.name!r}; give a larger one (--topology)"
        )
    graph = "graph" in row.source or "graph" in str(row.values.get("note", ""))

    def predict_s() -> float:
        topology = _forced(machine.topology, str(row.values.get("protocol", "")))
        group = place_isolated(topology, list(range(ranks))) if kind == "send" else place(topology, range(ranks))
        cost_s = collective_cost(kind, size_bytes, group).time_s
        if graph:
            return cost_s
        return max(cost_s - topology.startup_s, machine.device.host_launch_s.get("collective_loop", 0.0))

    return Case(row.number("us") * 1e-6, predict_s)


def _forced(topology: Topology, protocol: str) -> Topology:
    """Return the topology with only the forced protocol of its library; unchanged if there is no such protocol."""
    library = topology.library
    only = tuple(each for each in library.protocols if each.name == protocol) if library else ()
    return replace(topology, library=replace(library, protocols=only)) if library and only else topology


_TIMES = {"baseline_us": "", "fused_us": "aware", "fused_oblivious_us": "oblivious"}
"""Measured time to the order of the fused operator; none for the baseline."""

_DTYPES = ("fp32", "fp16", "bf16")


def split_fused(row: Row) -> list[Row]:
    """Return a row for each time that a row of a fused operator holds."""
    return row.parts({key: key.removesuffix("_us") for key in _TIMES})


def fused(row: Row, machine: Machine) -> Case:
    """One time of a fused operator, or of its bulk-synchronous baseline.

    `persistent_programs` is the grid of fused and pooling kernels alike; work-groups that exceed what the GPU holds
    wait.
    """
    if row.name not in OPERATORS:
        raise NoModelError(f"no model of a fused operator {row.name!r}")
    part = machine.of(row.ranks())
    on = FusedMachine(part.device, part.topology)
    settings = _settings_of(row, on)
    order = _TIMES[row.values["measured"]]
    try:
        plan = plan_operator(row.name, settings, on)
    except ConfigError as reason:
        raise NoModelError(str(reason)) from None

    def predict_s() -> float:
        return run(plan.recipes[order], order).time_s if order else fsum(plan.baseline_s.values())

    return Case(row.number(row.values["measured"]) * 1e-6, predict_s)


def _settings_of(row: Row, on: FusedMachine) -> dict[str, Any]:
    dtype = row.word("dtype", _DTYPES)
    if row.name != "embedding_all_to_all":
        return {"dtype": dtype, **{key: row.count(key) for key in ("MK" if row.name == "gemv_all_reduce" else "MNK")}}
    return {
        "batch": row.count("batch"),
        "tables": row.count("tables_per_gpu"),
        "dim": row.count("dim"),
        "pooling": row.count("pooling"),
        "work_groups": min(row.count("persistent_programs"), most_work_groups(on.device)),
        "dtype": dtype,
    }


PARTS = ("compute", "collective")
"""What a row of concurrent calls has times of."""
_ROUNDS = 12
"""Calls of the longer of the two loops."""

_MOST_CALLS = 50_000
"""Of both loops together, which take some 5 s."""

_NUMBER = "([1-9][0-9]{0,9})"
_FORMS = {
    "gemm_M_N_K": f"gemm_{_NUMBER}_{_NUMBER}_{_NUMBER}",
    "elementwise_add_SIZEM": f"elementwise_add_{_NUMBER}M",
    "embedding_bag_TABLESxBATCHxPOOLINGxDIM": f"embedding_bag_{_NUMBER}x{_NUMBER}x{_NUMBER}x{_NUMBER}",
}
"""Names of calls, and what they are written as."""


def split_concurrent(row: Row) -> list[Row]:
    """Return a row for the kernel and one for the collective."""
    return [row.derived(part, part=part) for part in PARTS]


def concurrent(row: Row, machine: Machine) -> Case:
    """The time of a call of a kernel, or of a collective, while the other is called repeatedly.

    The links between devices carry one collective; it uses `NCCL_MAX_CTAS` channels, or the library's if those are
    fewer.
    """
    part = row.word("part", PARTS)
    contention = contention_of(machine.device, machine.topology)
    if contention is None:
        raise NoModelError(
            f"the library of topology {machine.topology.name!r} does not say what it takes from a device"
        )
    calls = _kernels(str(row.values.get("compute", "")))
    isolated_s = {key: row.number(f"{key}_alone_us") * 1e-6 for key in PARTS}
    channels = _channels(row, contention)

    def predict_s() -> float:
        return loops(contention, calls, isolated_s, channels=channels)[part]

    return Case(row.number(f"{part}_together_us") * 1e-6, predict_s)


def loops(
    contention: Contention, calls: tuple[Kernel, ...], isolated_s: Mapping[str, float], *, channels: int
) -> dict[str, float]:
    """Return the mean time of a call of kernels, and of a collective, in two loops that run concurrently, in seconds.

    The mean is taken over the calls that end while both loops run, without the first.
    """
    longest_s = _ROUNDS * max(isolated_s.values())
    slices = {"compute": len(calls), "collective": 1}
    counts = {key: max(4, math.ceil(longest_s / seconds)) * slices[key] for key, seconds in isolated_s.items()}
    size, first, others = sum(counts.values()), counts["compute"], counts["collective"]
    if size > _MOST_CALLS:
        raise NoModelError(f"its loops are of {shown(size)} calls, and at most {_MOST_CALLS:,} are simulated")
    which, other, on_device = np.arange(size), np.arange(others), np.zeros(size, np.int64)
    sharing = replace(
        NOTHING_SHARED,
        kernels=[(call, isolated_s["compute"] / len(calls)) for call in calls],
        kernel_instance=which[:first], kernel_device=on_device[:first], kernel_kind=which[:first] % len(calls),
        kernel_issue_s=np.zeros(first),
        transfer_instance=which[first:], lasts_s=np.full(others, isolated_s["collective"]),
        channels=np.full(others, channels), races=np.zeros(others, bool), communicator=np.full(others, NONE),
        pair_offsets=np.arange(others + 1), pair_device=on_device[first:], pair_posted=np.zeros(others, bool),
        waiting=which[first:], waiting_pair=other,
    )  # fmt: skip
    tasks = Tasks.of([math.nan] * size, stream=which >= first, instance=which, instance_size=np.ones(size))
    end_s = run_tasks(tasks, sharing, contention).end_s
    both_s = min(end_s[first - 1], end_s[-1])
    ends_s = {"compute": end_s[:first][slices["compute"] - 1 :: slices["compute"]], "collective": end_s[first:]}
    return {key: float(np.mean(np.diff(part[part <= both_s]))) for key, part in ends_s.items()}


def _channels(row: Row, contention: Contention) -> int:
    most = str(row.values.get("nccl_max_ctas", "default"))
    if most != "default" and not whole(most):
        raise ConfigError(f"{row.where}: nccl_max_ctas is {most!r}; give a whole number above zero, or default")
    return min(contention.resource_use.num_sms, int(most) if most != "default" else contention.resource_use.num_sms)


def _kernels(name: str) -> tuple[Kernel, ...]:
    """Return the kernels of one call, by its name; an addition of 256M reads and writes as many two-byte elements."""
    found = {form: re.fullmatch(pattern, name) for form, pattern in _FORMS.items()}
    match [[int(number) for number in each.groups()] for each in found.values() if each]:
        case [[rows, columns, depth]]:
            return (kernel("gemm", dtype="bf16", M=rows, N=columns, K=depth),)
        case [[millions]]:
            return (kernel("clone", dtype="bf16", elements=millions * 2**20),)
        case [[tables, batch, pooling, dim]] if tables <= _MOST_CALLS:
            one = kernel(
                "embedding_bag_fwd", dtype="fp32", batch=batch, tables=1, pooling=pooling, dim=dim, rows=200_000
            )
            return (one,) * tables
    raise NoModelError(f"a kernel named {shown(name)} is not known; {nearest(name, _FORMS)}")
