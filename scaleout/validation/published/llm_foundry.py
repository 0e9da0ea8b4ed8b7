"""Published throughput of MPT models under FSDP: llm-foundry's training benchmarks on H100 and A100.

A row gives tokens/s/GPU; a step takes ``micro-batch x accumulation x sequence / (tokens/s/GPU)`` seconds. The models
are MPT's (parameter counts agree to the last digit). All rows ran FlashAttention in Triton, the fused cross entropy,
Composer's two loss metrics on every micro-batch, its unfused AdamW, and FSDP1, which gathers and reduces for every
micro-batch; `MP Mode` DEFAULT reduces gradients in fp32, PURE in bf16. PyTorch 2.1 stops recompute early; 1.13 (A100 40
GB) does not. The network of the H100 rows is not published; the usual one is assumed.

Source: github.com/mosaicml/llm-foundry, scripts/train/benchmarking (README.md, submit_benchmarks.py at b2a43a147) and
scripts/train/yamls/pretrain; github.com/mosaicml/composer v0.17.0.
"""

from collections.abc import Mapping
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.validation.measured.rows import Case, Family, NoModelError, Row, simulated

_SIZES: Mapping[str, tuple[int, int, int]] = {
    "125m": (768, 12, 12),
    "350m": (1024, 24, 16),
    "760m": (1536, 24, 12),
    "1b": (2048, 24, 16),
    "3b": (2560, 32, 20),
    "7b": (4096, 32, 32),
    "13b": (5120, 40, 40),
    "30b": (7168, 48, 56),
    "70b": (8192, 80, 64),
}
"""Model to its hidden size, layers and heads."""

_MACHINES = {
    "h100_80gb": ("h100", "h100-pod-64"),
    "a100_80gb": ("a100-80g", "a100-roce-16"),
    "a100_40gb": ("a100-40g", "a100-roce-16"),
}
_PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {},
    "amp_bf16": {},
    "amp_fp8": {"linear_dtype": "fp8_delayed"},
}
_MODES: Mapping[str, Mapping[str, Any]] = {"DEFAULT": {"gradient_dtype": "fp32"}, "PURE": {}}
_SHARDINGS: Mapping[str, Mapping[str, Any]] = {"FULL_SHARD": {}, "SHARD_GRAD_OP": {"reshard_after_forward": False}}
_YES_NO = ("True", "False")

_SOFTWARE: Mapping[str, Any] = {
    "framework": "fsdp1",
    "attention": "triton",
    "loss": "fused",
    "logged_losses": 2,
    "clip_gradients": True,
}
"""What llm-foundry does in every row."""


def machine_of(row: Row) -> tuple[str, str]:
    """Return device and topology of a row."""
    return _MACHINES[row.word("GPU", tuple(_MACHINES))]


def workload_values(row: Row) -> dict[str, Any]:
    """Return the keys of the workload of a row."""
    hidden, layers, heads = _SIZES[row.word("Model", tuple(_SIZES))]
    microbatch = row.count("MicroBatchSize")
    checkpoints = row.word("Activation Checkpointing", _YES_NO) == "True"
    return {
        "kind": "transformer",
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
        "ffn": 4 * hidden,
        "biases": True,
        "vocabulary": 50368,
        "tied_embedding": True,
        "sequence": row.count("SeqLen (T)"),
        "microbatch": microbatch,
        "batch_per_replica": microbatch * row.count("GradAccum"),
        "data_parallel": row.count("# GPUs"),
        "recompute": "full" if checkpoints else "none",
        **({"stop_recompute_early": False} if row.values["GPU"] == "a100_40gb" else {}),
        **_SOFTWARE,
        **_PRECISIONS[row.word("Precision", tuple(_PRECISIONS))],
        **_MODES[row.word("MP Mode", tuple(_MODES))],
        **_SHARDINGS[row.word("Sharding Strategy", tuple(_SHARDINGS))],
    }


def step(row: Row, machine: Machine) -> Case:
    """A step: all micro-batches, gradient clipping and the optimizer, at the pace of the slowest GPU."""
    if row.values.get("Activation CPUOffload", "False") != "False":
        raise NoModelError("activations that are offloaded to the host have no model")
    values = workload_values(row)
    tokens = values["batch_per_replica"] * row.count("SeqLen (T)")
    measured_us = tokens / row.number("Throughput (T/s/GPU)") * 1e6
    return simulated(
        row, values, machine, measured_us=measured_us, schedule="overlap", slowest=True, host="none", clocks="sustained"
    )


def _named(row: Row) -> list[Row]:
    names = (str(row.values.get(key, "")) for key in ("Model", "SeqLen (T)", "# GPUs", "GPU", "Precision"))
    return [row.named(" ".join(names))]


TABLES = {"llm_foundry_mpt": Family("llm-foundry", step, machine_of, _named)}
