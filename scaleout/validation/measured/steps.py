"""Rows of whole steps to workloads and programs: layers, pipelines, DLRMs, overlapped GEMMs, described runs.

Transformer layers are those of Megatron-LM without embedding and head. A GEMM that overlaps with its collective is cut
along its rows, either by the framework (`chunked`) or by PyTorch's asynchronous tensor parallelism; see
docs/models/async-tp.md.

Symbols: p ranks, and parts of a GEMM. Source: PyTorch 2.11, torch.distributed._symmetric_memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import fsum
from typing import Any

import numpy as np

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.host import HOSTS
from scaleout.cluster.device.kernel_times import kernel_time, kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import MOST_WRITTEN, SECONDS, parse
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.program.graph import GraphBuilder, NodeRole
from scaleout.program.operations import ITEM_BYTES, Kernel, kernel
from scaleout.program.program import GroupFamily, Program
from scaleout.simulation.options import CLOCKS, NETWORKS, RENAMED_CLOCKS
from scaleout.simulation.run import simulate
from scaleout.validation.measured.restated import restate
from scaleout.validation.measured.rows import Case, NoModelError, Row, simulated
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate.autograd_tape import AutogradTape, Bucket, Cursor, Gradients
from scaleout.workloads.generate.axes import GradientSync
from scaleout.workloads.generate.layers import SHUFFLE, Buffer, activation, exchange, pointwise
from scaleout.workloads.generate.linear import Linear

_DTYPES = ("bf16", "fp16", "fp32")


def one_role(name: str, graph: GraphBuilder, ranks: int) -> Program:
    """Return the program of which every rank runs one graph, in one group of all."""
    world = GroupFamily("world", (tuple(range(ranks)),))
    return Program(name, (graph.build(),), np.zeros(ranks, np.int64), (world,))


def experts(row: Row, machine: Machine) -> Case:
    """A layer's forward pass, or forward and backward; experts are balanced, one a rank.

    Each token is repeated for its experts, sent to them, and summed when it returns, chunk by chunk.
    """
    ranks, chunks, tokens = row.ranks(), row.count("chunks", most=MOST_WRITTEN), row.count("tokens")
    hidden, ffn, top_k = row.count("hidden"), row.count("ffn"), row.count("topk")
    dtype = row.word("dtype", _DTYPES)
    if tokens % chunks:
        raise NoModelError(f"{tokens} tokens do not divide over {chunks} chunks")
    gradients = Gradients(float("inf"), ITEM_BYTES[dtype]) if row.name.endswith("backward") else None
    graph = GraphBuilder("experts_forward", NodeRole.FORWARD)
    tapes = [AutogradTape(Cursor(graph), dtype, gradients) for _ in range(chunks)]
    size_bytes = tokens // chunks * top_k * hidden * ITEM_BYTES[dtype]
    bucket = Bucket("experts", GradientSync(0, 1))
    before: tuple[int, ...] = ()
    for tape in tapes:
        rows = tokens // chunks * top_k
        of_tokens = partial(pointwise, tape, tokens=tokens // chunks, hidden=hidden, topk=top_k)
        x = graph.join(before, name="chunk") if before else graph.add((), name="tokens", duration_s=0.0)
        x = of_tokens(x, ("moe_repeat_topk", "moe_sum_topk"))
        x = exchange(tape, x, SHUFFLE, Buffer(size_bytes, 0), name="dispatch")
        x = Linear(name="expert_1", tokens=rows, inputs=hidden, outputs=ffn, bucket=bucket).write(tape, x)
        x = activation(tape, x, "gelu", elements=rows * ffn)
        x = Linear(name="expert_2", tokens=rows, inputs=ffn, outputs=hidden, bucket=bucket).write(tape, x)
        x = exchange(tape, x, SHUFFLE, Buffer(size_bytes, 0), name="combine")
        before = (of_tokens(x, ("moe_sum_topk", "moe_repeat_topk")),)
    if chunks > 1:
        before = (graph.compute(kernel("clone", dtype=dtype, elements=tokens * hidden), after=before, name="join"),)
    if gradients is not None:
        graph.enter("experts_backward", NodeRole.BACKWARD)
        node = before[0]
        for number, tape in enumerate(reversed(tapes)):
            gradients.accumulates = dtype if number else ""
            node = tape.backward(node)
    return simulated(row, one_role(row.id, graph, ranks), machine)


def chunked(row: Row, machine: Machine) -> Case:
    """A GEMM cut along its rows; the collective of each part starts after the part, on a stream of its own.

    The output of a part is a rank's whole buffer; for an all-gather it is the rank's shard. The parts take no less time
    in total than the whole GEMM, because each shape is interpolated from other measurements.
    """
    ranks, chunks, dtype = row.ranks(), row.count("chunks", most=MOST_WRITTEN), row.word("dtype", _DTYPES)
    kind = row.word("collective", ("all_reduce", "reduce_scatter", "all_gather", "all_to_all"))
    sizes = {"M": row.count("M") // chunks, "N": row.count("N"), "K": row.count("K")}
    gemm, whole = (kernel("gemm", dtype=dtype, **{**sizes, "M": rows}) for rows in (sizes["M"], row.count("M")))
    (part_s, whole_s), _ = kernel_times(machine.device, (gemm, whole), full_clock=True)
    lasts_s = kernel_time(machine.device, gemm).seconds * max(1.0, float(whole_s) / chunks / float(part_s))
    payload_bytes = sizes["M"] * sizes["N"] * ITEM_BYTES[dtype] * (ranks if kind == "all_gather" else 1)
    graph = GraphBuilder("chunks_loop", NodeRole.LOOP)
    for _ in range(chunks):
        part = graph.compute(gemm, duration_s=lasts_s)
        graph.collective(kind, payload_bytes, group=0, after=(part,))
    program = one_role(row.id, graph, ranks)
    case = f"{row.count('M')} x {sizes['N']} x {sizes['K']}, {kind} over {ranks}"
    return replace(simulated(row, program, machine, schedule="overlap"), variant=(case, chunks))


def gather_then_gemm(row: Row, machine: Machine) -> Case:
    """An all-gather of the rows of a GEMM, then the GEMM."""
    ranks, dtype = row.ranks(), row.word("dtype", _DTYPES)
    sizes = {key: row.count(key) for key in "MNK"}
    graph = GraphBuilder("gemm_loop", NodeRole.LOOP)
    gathered = graph.collective("all_gather", sizes["M"] * sizes["K"] * ITEM_BYTES[dtype], group=0)
    graph.compute(kernel("gemm", dtype=dtype, **sizes), after=(gathered,))
    return simulated(row, one_role(row.id, graph, ranks), machine)


_ONE_GRADIENT = "1 B"
"""Size of a bucket that every gradient fills by itself."""


def layers(row: Row, **options: Any) -> dict[str, Any]:
    """Return the keys of a workload of plain layers."""
    hidden = row.count("hidden")
    return {
        "kind": "transformer",
        "dtype": row.word("dtype", ("bf16", "fp16", "fp32")) if "dtype" in row.values else "bf16",
        "hidden": hidden,
        "heads": row.count("heads") if "heads" in row.values else max(hidden // 128, 1),
        "layers": row.count("layers"),
        "ffn": 4 * hidden,
        "sequence": row.count("seq"),
        "optimizer": "none",
        "master_weights": False,
        "layout_copies": True,
        "layers_only": True,
        **options,
    }


def _of_layers(row: Row, machine: Machine, *, schedule: str = "baseline", **options: Any) -> Case:
    values = layers(row, batch_per_replica=row.count("batch"), **options)
    return simulated(row, values, machine, schedule=schedule)


def tensor_parallel(row: Row, machine: Machine) -> Case:
    """Forward, or forward and backward, of layers: tensor-parallel, also in sequence (`tp_sp`), or whole (`dp`)."""
    mode = row.word("mode", ("dp", "tp", "tp_sp"))
    return _of_layers(
        row,
        machine,
        tensor_parallel=1 if mode == "dp" else row.ranks(),
        sequence_parallel=mode == "tp_sp",
        mode="training" if row.name.endswith("backward") else "prefill",
    )


_DATA_PARALLEL: Mapping[str, Mapping[str, Any]] = {
    "dp_compute_only": {"data_parallel": 1},
    "dp_serial_allreduce_per_parameter": {"gradient_bucket": _ONE_GRADIENT},
    "dp_ddp_overlap": {"schedule": "overlap", "copied_buckets": True},
    "fsdp2_fully_shard": {"schedule": "overlap", "framework": "fsdp2", "layers_only": False},
}
"""Name of a data-parallel step to the keys of its workload, and its schedule.

FSDP2's host was measured by unit, the whole network one of them; it holds nothing, and the last norm stands for it.
"""


def data_parallel(row: Row, machine: Machine) -> Case:
    """Forward and backward of whole layers; gradients are reduced per parameter, in DDP's buckets, or by FSDP."""
    if row.name not in _DATA_PARALLEL:
        raise NoModelError(f"no model of a step {row.name!r}")
    options = {"data_parallel": row.ranks(), **_DATA_PARALLEL[row.name]}
    if "bucket_mb" in row.values:
        options["gradient_bucket"] = row.number("bucket_mb") * 2**20
    return _of_layers(row, machine, **options)


_HYBRID: Mapping[str, Mapping[str, Any]] = {
    "tp_only": {"data_parallel": 1},
    "serial_grad_allreduce_adamw": {"optimizer": "adamw", "gradient_bucket": _ONE_GRADIENT},
    "ddp_overlap_adamw": {"optimizer": "adamw", "schedule": "overlap", "copied_buckets": True},
}


def hybrid(row: Row, machine: Machine) -> Case:
    """Two tensor-parallel ranks by two data-parallel ranks; or one part of that step in isolation."""
    variant = row.word("variant", (*_HYBRID, "adamw_only"))
    if variant == "adamw_only":
        graph = GraphBuilder("optimizer_loop", NodeRole.LOOP)
        parameters = row.count("parameters_per_gpu")
        graph.compute(kernel("adamw_fused", dtype=row.word("dtype", ("bf16", "fp32")), parameters=parameters))
        return simulated(row, one_role(row.id, graph, 1), machine)
    return _of_layers(row, machine, **{"tensor_parallel": 2, "data_parallel": 2, **_HYBRID[variant]})


def pipeline(row: Row, machine: Machine) -> Case:
    """A pipeline of equal stages; PyTorch's interleaved schedule sends each message as soon as it is computed."""
    microbatch = row.count("microbatch")
    schedule = row.word("schedule", ("gpipe", "1f1b", "interleaved_1f1b"))
    virtual_stages = row.count("virtual")
    values = layers(
        row,
        pipeline_parallel=row.count("stages"),
        pipeline_schedule=schedule,
        batch_per_replica=microbatch * row.count("microbatches"),
        microbatch=microbatch,
        messages="as_made" if virtual_stages > 1 else "at_need",
        **({"virtual_stages": virtual_stages} if virtual_stages > 1 else {}),
    )
    return simulated(row, values, machine, schedule="overlap", clocks="sustained")


def pipeline_stage(row: Row, machine: Machine) -> Case:
    """One isolated stage: the time of a micro-batch whose gradients are accumulated on those of another."""
    microbatch = row.count("microbatch")

    def of(microbatches: int) -> Case:
        values = layers(row, batch_per_replica=microbatches * microbatch, microbatch=microbatch)
        return simulated(row, values, machine, measured_us=row.number("forward_backward_us"), clocks="sustained")

    one, two = of(1), of(2)
    return Case(one.measured, lambda: two.predict() - one.predict())


def dlrm(row: Row, machine: Machine) -> Case:
    """A DLRM's forward pass, or its step with one all-reduce a parameter and sparse gradients of its tables."""
    values = {
        "kind": "dlrm",
        "dtype": row.word("dtype", ("fp32",)),
        "data_parallel": row.ranks(),
        "global_batch": row.count("batch"),
        "tables_per_rank": row.count("tables_per_gpu"),
        "rows_per_table": 200_000,
        "embedding_dim": row.count("dim"),
        "pooling": row.count("pooling"),
        "dense_features": 256,
        "mlp_width": row.count("mlp"),
        "bottom_layers": 3,
        "top_layers": row.count("top_layers"),
        "interaction": "dot",
        "optimizer": "none",
        "gradient_bucket": _ONE_GRADIENT,
        "mode": "training" if "backward" in row.name else "forward",
    }
    return simulated(row, values, machine)


def embedding_exchange(row: Row, machine: Machine) -> Case:
    """Pooling of a rank's tables for the whole batch, the all-to-all, and the permutation into sample order."""
    ranks, batch, tables, dim = row.ranks(), *(row.count(key) for key in ("batch", "tables_per_gpu", "dim"))
    graph = GraphBuilder("embedding_loop", NodeRole.LOOP)
    pool = kernel(
        "embedding_bag_fwd", dtype="fp32", batch=batch, tables=tables, dim=dim, pooling=row.count("pooling"),
        rows=200_000,
    )  # fmt: skip
    sent = graph.collective("all_to_all", batch * tables * dim * 4, group=0, after=(graph.compute(pool),))
    order = kernel("permute_for_all_to_all", dtype="fp32", batch=batch // ranks, tables=tables * ranks, dim=dim)
    graph.compute(order, after=(sent,))
    return simulated(row, one_role(row.id, graph, ranks), machine)


_KEYS = (
    "id", "name", "note", "workload", "changes", "topology", "device", "schedule", "host", "network", "clocks",
    "measured", "measured_us", "group", "source", "assumptions", "published_metric", "published_value", "tier",
)  # fmt: skip
"""Keys of a described run; the last line's, but for the measured time and the group, are notes."""


def described(row: Row, machine: Machine) -> Case:
    """A run that the row describes itself, in a file of any name.

    {"workload": "llama-3-8b", "changes": {"data_parallel": 8}, "topology": "dgx-h200-1", "device": "h200",
     "schedule": "overlap", "host": "eager", "measured_us": 812345.0}

    `workload` is a name, a file, or an object with the keys of a workload's file; files lie beside that of the row, or
    where scaleout runs; `measured`, such as "812 ms", may replace `measured_us`; `changes`, `schedule` (baseline),
    `host` (none), `clocks` (unthrottled) and `network` (alpha_beta) may be left out. Errors are summed up by `group`.
    A row with a `source` is a run on others' GPUs, whose step waits for the slowest of them.
    What its source is known to say otherwise is restated, see `restated`.
    A job of a published run that cannot be expressed counts against coverage.
    """
    for key in row.values:
        if key not in _KEYS:
            raise ConfigError(f"{row.where}: unknown key {key!r}; {nearest(key, _KEYS)}")
    if not isinstance(row.values.get("changes", {}), Mapping):
        raise ConfigError(f"{row.where}: changes is {row.values['changes']!r}; give an object of a workload's keys")
    _options(row)  # whatever is restated of it
    row, machine, note = restate(row, machine)
    options = _options(row)
    work, measured_us = _workload(row), _measured_s(row) * 1e6
    case = simulated(row, work, machine, measured_us=measured_us, slowest="source" in row.values, **options)
    return replace(case, note=note)


def _options(row: Row) -> dict[str, str]:
    """Return how a described run is simulated."""
    known = {"host": HOSTS, "network": NETWORKS, "clocks": (*CLOCKS, *RENAMED_CLOCKS)}
    given = {key: row.word(key, words) for key, words in known.items() if key in row.values}
    schedule = row.values.get("schedule", "baseline")
    return {"schedule": schedule, "host": "none", "network": NETWORKS[0], "clocks": CLOCKS[0], **given}


def _measured_s(row: Row) -> float:
    if "measured" not in row.values:
        return row.number("measured_us") * 1e-6
    if "measured_us" in row.values:
        raise ConfigError(f"{row.where}: measured and measured_us both say what was measured; leave one of them out")
    try:
        seconds = parse(row.values["measured"], SECONDS)
    except ConfigError as error:
        raise ConfigError(f"{row.where}: measured: {error}") from None
    if not seconds > 0:
        raise ConfigError(f"{row.where}: measured is {row.values['measured']!r}; give a time above zero")
    return seconds


def _workload(row: Row) -> ModelFamily | Mapping[str, Any]:
    given, changes = row.values["workload"], row.values.get("changes", {})
    if isinstance(given, Mapping):
        return {**given, **changes}
    try:
        return load_workload(str(given), changes)
    except ConfigError as error:
        raise ConfigError(f"{row.where}: {error}") from None


_COPIES = 1
"""Stream of copies and barriers, which run concurrently with the GEMMs."""


class _Parts:
    """A graph that is written part by part: GEMMs on the compute stream, copies and barriers on another one."""

    def __init__(self, topology: Topology) -> None:
        self.graph = GraphBuilder("parts_loop", NodeRole.LOOP)
        self._link = topology.dimensions[0]
        self._startup_s = topology.startup_s

    def barrier(self, *after: int) -> int:
        return self.graph.add(after, name="barrier", duration_s=self._startup_s, stream=_COPIES)

    def fetch(self, size_bytes: float, *after: int) -> int:
        lasts_s = self._link.latency_s + size_bytes / self._link.bytes_per_s
        return self.graph.add(after, name="peer_copy", duration_s=lasts_s, stream=_COPIES)

    def call(self, called: Kernel, *after: int) -> int:
        return self.graph.compute(called, after=after)


def _gather(parts: _Parts, gemm: Kernel, shard: Kernel, out: Kernel, ranks: int) -> None:
    ready = parts.barrier(parts.call(shard, parts.barrier()))
    done = [parts.call(gemm, ready)]
    for index in range(1, ranks):
        fetched = parts.fetch(shard.bytes / 2, done[max(index - 2, 0)] if index > 1 else ready)
        done.append(parts.call(gemm, fetched))
    parts.barrier(parts.call(shard, done[-1]))


def _scatter(parts: _Parts, gemm: Kernel, shard: Kernel, out: Kernel, ranks: int) -> None:
    ready = parts.barrier()
    free = [ready, ready]
    fetched = []
    for index in range(1, ranks):
        made = parts.barrier(parts.call(gemm, free[index % 2]))
        fetched.append(parts.fetch(out.bytes / 2, made))
        free[index % 2] = parts.barrier(fetched[-1])
    own = parts.call(gemm, free[ranks % 2])
    sizes = out.sizes
    rows = {"tokens": sizes["elements"] // gemm.sizes["N"], "hidden": gemm.sizes["N"], "topk": ranks}
    parts.call(kernel("moe_sum_topk", dtype=out.dtype, **rows), parts.barrier(own, *fetched))


_OPERATORS: Mapping[str, tuple[Callable[[_Parts, Kernel, Kernel, Kernel, int], None], tuple[str, ...]]] = {
    "fused_all_gather_matmul": (_gather, ("gemm", "peer_copy")),
    "fused_matmul_reduce_scatter": (_scatter, ("gemm", "peer_copy", "barrier", "barrier")),
}
"""Operator to what writes its graph, and to what the host calls for each part."""


def async_tp(row: Row, machine: Machine) -> Case:
    """A GEMM fused with its all-gather or reduce-scatter over symmetric memory; sizes are those of the whole GEMM.

    The GEMM has as many parts as there are ranks; copy engines, which use no SM, move each part. A call takes the
    longer of the device's time and the host's in a loop of calls. Multicast and copies between hosts are not modelled.
    """
    operator = row.name.removeprefix("async_tp_")
    if operator not in _OPERATORS:
        raise NoModelError(f"no model of an operator {operator!r}")
    ranks, dtype = row.ranks(), row.word("dtype", tuple(ITEM_BYTES))
    sizes = {key: row.count(key) for key in "MNK"}
    if sizes["M"] % ranks:
        raise ConfigError(f"{row.where}: {sizes['M']} rows do not divide over {ranks} ranks")
    sizes["M"] //= ranks
    gemm = kernel("gemm", dtype=dtype, **sizes)
    shard = kernel("copy_d2d", dtype=dtype, elements=sizes["M"] * sizes["K"])
    out = kernel("copy_d2d", dtype=dtype, elements=sizes["M"] * sizes["N"])
    parts = _Parts(machine.topology)
    write, _ = _OPERATORS[operator]
    write(parts, gemm, shard, out, ranks)
    program = one_role(row.id, parts.graph, ranks)

    def predict_s() -> float:
        timed = time_kernels(program, machine.device)
        device_s = simulate(timed, machine.of(ranks).topology).makespan_s
        return max(device_s, _host_s(operator, ranks, machine.device))

    return Case(row.number("step_us") * 1e-6, predict_s)


def _host_s(operator: str, ranks: int, device: Device) -> float:
    """Return the host's time for one call of an operator in a loop."""
    needed = [f"{call}_loop" for call in (operator, *_OPERATORS[operator][1])]
    missing = [call for call in needed if call not in device.host_launch_s]
    if missing:
        raise NoModelError(f"device {device.name!r} does not say what its host spends on {', '.join(missing)}")
    once_s, *part_s = (device.host_launch_s[call] for call in needed)
    return once_s + ranks * fsum(part_s)
