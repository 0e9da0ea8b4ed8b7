"""Published throughput of Megatron-Bridge's recipes: dense models on H100, with the plan that a row states.

A row gives tokens/s/GPU; a step takes ``batch x sequence / (tokens/s/GPU x GPUs)`` seconds. Its model and its system
stand in the row or in its section. Gradients are reduced and parameters gathered beside the passes, tensor parallelism
goes through userbuffers (`async-tp`), fp8 has scales of the whole tensor (current scaling), nothing is made again.
Rows that have more are passed over, and say what; no number of any is used.

Source: github.com/NVIDIA-NeMo/Megatron-Bridge (067f987df), docs/performance-summary.md and its archive,
src/megatron/bridge/perf_recipes/llama/h100/llama3.py and llama31.py (fp8_cs, userbuffers, no graphs in pre-training).
"""

import re
from collections.abc import Mapping
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.validation.measured.rows import Case, Family, NoModelError, Row, simulated

_SHAPES: Mapping[str, tuple[int, int, int, int, int]] = {
    "LLAMA3_8B": (4096, 32, 32, 8, 14336),
    "LLAMA3_70B": (8192, 80, 64, 8, 28672),
    "LLAMA3.1_405B": (16384, 126, 128, 8, 53248),
}
"""Model to hidden size, layers, heads, heads of keys and values, and width: arXiv:2407.21783, Table 3."""

_PRECISIONS = {"BF16": "same", "FP8": "fp8_tensorwise", "FP8-CS": "fp8_tensorwise"}
_DEGREES = {"TP": "tensor_parallel", "PP": "pipeline_parallel", "CP": "context_parallel"}
_NODE = 8
_LARGEST = 128  # nodes of the largest topology of H100 that is shipped

_COMMON: Mapping[str, Any] = {
    "kind": "transformer", "activation": "swiglu", "norm": "rms_norm", "rotary": True, "vocabulary": 128256,
    "attention": "flash", "compiled": True, "loss": "fused", "fused_accumulation": True, "clip_gradients": True,
    "zero": 1, "recompute": "none", "keep_gathered": False, "overlap_parameter_gather": True,
}  # fmt: skip
"""What recipes of dense models have in common: fused kernels of TransformerEngine and the distributed optimizer."""


def _of(row: Row, key: str) -> str:
    """Return what a row or its section says of its model or its system."""
    section = str(row.values.get("_section", ""))
    return str(row.values.get(key) or (re.findall(rf"{key}: ([^/]+)", section) or [""])[0]).strip()


def _check(row: Row) -> None:
    """Raise `NoModelError` with the first thing that cannot be expressed."""
    model, system, precision = _of(row, "Model"), _of(row, "System"), str(row.values.get("Precision", ""))
    tuned = re.search(r"(SFT|LoRA) Performance", str(row.values.get("_section", "")))
    several = [key for key in ("TP", "PP", "Tokens / sec / GPU") if isinstance(row.values.get(key), str)]
    for reason, missing in (
        (f"no GEMMs in {precision} were measured", precision in ("MXFP8", "NVFP4", "FP8-MX")),
        (f"no device or no topology of so many nodes of {system}", system != "DGX-H100"),
        (f"{model} has experts, whose recipes' dispatch and recompute the row does not say", model not in _SHAPES),
        ("the row does not say its precision", precision not in _PRECISIONS),
        (f"{tuned[1] if tuned else ''} packs sequences, whose lengths the row does not say", tuned is not None),
        ("Megatron-FSDP's buckets and buffers have no model", row.values.get("FSDP") not in (None, 0)),
        (f"the row has two values of {', '.join(several)}", bool(several)),
    ):
        if missing:
            raise NoModelError(reason)


def workload_values(row: Row) -> dict[str, Any]:
    """Return the keys of the workload of a row; raise `NoModelError` if it cannot be expressed."""
    _check(row)
    names = ("hidden", "layers", "heads", "kv_heads", "ffn")
    shape = dict(zip(names, _SHAPES[_of(row, "Model")], strict=True))
    degrees = {key: row.count(name) for name, key in _DEGREES.items()}
    ranks, held = row.ranks("#-GPUs"), degrees["tensor_parallel"] * degrees["pipeline_parallel"]
    replicas = ranks // (held * degrees["context_parallel"])
    values = {
        **_COMMON, **shape, **degrees, "sequence_parallel": degrees["tensor_parallel"] > 1,
        "data_parallel": replicas, "microbatch": row.count("MBS"), "batch_per_replica": row.count("GBS") // replicas,
        "sequence": row.count("Sequence Length"), "linear_dtype": _PRECISIONS[str(row.values["Precision"])],
    }  # fmt: skip
    if degrees["pipeline_parallel"] > 1 and isinstance(row.values.get("VP"), int):
        stages = degrees["pipeline_parallel"] * row.count("VP")
        each, more = divmod(shape["layers"], stages)
        values |= {
            "pipeline_schedule": "interleaved_1f1b", "virtual_stages": row.count("VP"), "overlap_gradient_reduce": True,
            # embedding and head stand for a layer each where layers do not divide: account_for_embedding_in_pipeline
            **({"stage_layers": [each + (0 < stage < stages - 1) for stage in range(stages)]} if more else {}),
        }  # fmt: skip
    return values


def step(row: Row, machine: Machine) -> Case:
    """A step of many, issued call by call: no recipe of a dense model on H100 has CUDA graphs."""
    values = workload_values(row)
    seconds = row.count("GBS") * values["sequence"] / (row.number("Tokens / sec / GPU") * row.ranks("#-GPUs"))
    return simulated(
        row, values, machine, measured_us=seconds * 1e6, schedule="overlap+async-tp", host="eager", clocks="sustained",
        slowest=True,
    )  # fmt: skip


def _home(row: Row) -> tuple[str, str]:
    ranks = row.values.get("#-GPUs")
    nodes = -(-ranks // _NODE) if isinstance(ranks, int) else 1
    return "h100", f"dgx-h100-{min(1 << (nodes - 1).bit_length(), _LARGEST)}"


def _named(row: Row) -> list[Row]:
    return [row.named(f"{_of(row, 'Model')} on {row.values.get('#-GPUs')} {_of(row, 'System')}")]


TABLES = {"megatron_bridge": Family("Megatron-Bridge", step, _home, _named)}
