"""Published throughput of Llama 3.1 under torchtitan: FSDP, tensor, pipeline and context parallelism, fp8, async TP.

A row gives tokens/s/GPU; a step takes ``batch x sequence / (tokens/s/GPU x tensor x pipeline x context)`` seconds, with
the batch of a data-parallel rank. The table's caption and the row's own words name what was switched on. Pipelines have
as many micro-batches as ranks, torchtitan's default; sequences have 8192 tokens unless a row says otherwise.

Source: github.com/pytorch/torchtitan, benchmarks/, and its code of 2024-12-26 (9dec370): parallelize_llama.py,
pipeline_llama.py, train_configs/.
"""

import re
from collections.abc import Mapping
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.validation.measured.rows import Case, Family, NoModelError, Row, simulated

_MODELS: Mapping[str, Mapping[str, int]] = {
    "8b": {"hidden": 4096, "layers": 32, "heads": 32, "ffn": 14336},
    "70b": {"hidden": 8192, "layers": 80, "heads": 64, "ffn": 28672},
    "405b": {"hidden": 16384, "layers": 126, "heads": 128, "ffn": 53248},
}

_MODEL = re.compile(r"Llama ?3(?:\.1)? (\d+[bB])")

_LLAMA: Mapping[str, Any] = {
    "kind": "transformer",
    "kv_heads": 8,
    "activation": "swiglu",
    "rotary": True,
    "vocabulary": 128256,
    "attention": "flash2",
    "framework": "fsdp2",
    "separate_projections": True,
    "gradient_dtype": "fp32",
    "clip_gradients": True,
    "optimizer_kernels": "fused",
}
"""What torchtitan does in every row. Its optimizer was PyTorch's `foreach`; it is timed as the fused one."""


def _number(text: str, pattern: str, default: int = 1) -> int:
    found = re.search(pattern, text)
    return int(found.group(1)) if found else default


def _plan(row: Row) -> dict[str, Any]:
    caption, own = str(row.values.get("_table", "")), str(row.values.get("Parallelism", ""))
    tensor = _number(caption, r"TP\s*=?\s*(\d+)")
    pipeline = _number(caption, r"PP\s*=?\s*(\d+)")
    context = _number(own, r"CP (\d+)")
    gpus = _number(caption, r"(\d+) (?:GPUs|H100s)")
    return {
        "tensor_parallel": tensor,
        "sequence_parallel": tensor > 1,
        "pipeline_parallel": pipeline,
        "context_parallel": context,
        "data_parallel": gpus // (tensor * pipeline * context),
        **({"zero": 1} if pipeline > 1 else {}),
    }


def _pipeline(values: Mapping[str, Any], row: Row) -> dict[str, Any]:
    """Return a pipeline's schedule, micro-batch and layers of each stage; the first stage has the fewest."""
    ranks, batch = values["pipeline_parallel"], values["batch_per_replica"]
    if ranks == 1:
        return {}
    interleaved = "Interleaved" in str(row.values.get("Schedule", ""))
    stages = ranks * (2 if interleaved else 1)
    each, more = divmod(values["layers"], stages)
    layers = [each + (1 if 0 < stage <= more else 0) for stage in range(stages)]
    return {
        "pipeline_schedule": "interleaved_1f1b" if interleaved else "1f1b",
        "microbatch": batch // ranks,
        "stage_layers": layers,
    }


def workload_values(row: Row, *, compiled: bool, linear_dtype: str) -> dict[str, Any]:
    """Return the keys of the workload of a row."""
    caption = str(row.values.get("_table", ""))
    model = _MODEL.search(caption)
    if model is None or model.group(1).lower() not in _MODELS:
        raise NoModelError(f"no model is known of {caption!r}")
    values = {
        **_LLAMA,
        **_MODELS[model.group(1).lower()],
        **_plan(row),
        "sequence": row.count("Sequence Length") if "Sequence Length" in row.values else 8192,
        "batch_per_replica": _number(caption, r"[Ll]ocal batch size (\d+)"),
        "recompute": "full" if re.search(r"[Ff]ull (?:activation|AC)", caption) else "operations",
        "compiled": compiled,
        "norm": "rms_norm" if compiled else "rms_norm_unfused",
        "linear_dtype": linear_dtype,
        "gather_dtype": "fp8_e4m3" if linear_dtype == "fp8_tensorwise" else None,
    }
    return {**values, **_pipeline(values, row)}


def _case(row: Row, machine: Machine, tokens_per_s: float, schedule: str, **options: Any) -> Case:
    values = workload_values(row, **options)
    others = values["tensor_parallel"] * values["pipeline_parallel"] * values["context_parallel"]
    seconds = values["batch_per_replica"] * values["sequence"] / (tokens_per_s * others)
    return simulated(row, values, machine, measured_us=seconds * 1e6, schedule=schedule, host="none")


def step(row: Row, machine: Machine) -> Case:
    """A step with what the row or its caption names: compilation, fp8, asynchronous tensor parallelism."""
    words = " ".join(str(row.values.get(key, "")) for key in ("_table", "Techniques"))
    options = {
        "compiled": "compile" in words,
        "linear_dtype": "fp8_tensorwise" if "Float8" in words else "same",
    }
    schedule = "overlap+async-tp" if "AsyncTP" in words else "overlap+blocking-tp"
    return _case(row, machine, row.number("TPS/GPU"), schedule, **options)


_QUANTIZATIONS = {
    "None (bfloat16)": "same",
    "float8 tensorwise": "fp8_tensorwise",
    "float8 rowwise": "fp8_rowwise",
}
_WAYS = {"Vanilla TP tokens/sec": "overlap+blocking-tp", "Async TP tokens/sec": "overlap+async-tp"}
"""Measured column to its schedule."""


def _ways(row: Row) -> list[Row]:
    ways = row.parts({key: key.split()[0].lower() for key in _WAYS})
    return [way.named(_name(row, str(way.values.get("measured", "")))) for way in ways]


def _name(row: Row, *more: str) -> str:
    kept = (str(value) for key, value in row.values.items() if key not in ("_table", "TPS/GPU", "Memory(GiB)") and
            "TP " not in key)  # fmt: skip
    model = _MODEL.search(str(row.values.get("_table", "")))
    return " ".join((model.group(1) if model else "", *kept, *more))


def _named(row: Row) -> list[Row]:
    return [row.named(_name(row))]


def with_or_without(row: Row, machine: Machine) -> Case:
    """A step of compiled layers, with or without async TP."""
    way = row.word("measured", tuple(_WAYS))
    linear_dtype = _QUANTIZATIONS[row.word("Quantization", tuple(_QUANTIZATIONS))]
    return _case(row, machine, row.number(way), _WAYS[way], compiled=True, linear_dtype=linear_dtype)


def _home(row: Row) -> tuple[str, str]:
    return "h100-96g-500w", "grand-teton-64"


TABLES = {
    "torchtitan_llama3_h100_202412_torchtitan": Family("torchtitan", step, _home, _named),
    "torchtitan_asyncTP_llama3_h100_2025-06_torchtitan": Family("torchtitan async TP", with_or_without, _home, _ways),
}
