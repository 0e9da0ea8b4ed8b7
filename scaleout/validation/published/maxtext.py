"""Published throughput of decoders under MaxText on TPU v4 and v5e: slices of a torus, and several over a network.

A row gives TFLOP/s per chip, counted as ``6 P + 6 L h d s`` FLOPs per token: P parameters with the embedding, and
causal attention of L layers and h heads of size d over s tokens. A step takes ``tokens per chip x FLOPs per token /
rate`` seconds. Parameters are sharded over the chips of a slice; slices are replicas. The largest model has tensor
parallelism over 16 chips. Layers are scanned, recomputed in backward and compiled; replicas reduce gradients after
backward.

Source: github.com/AI-Hypercomputer/maxtext at 76bd53b0f (2023-12-15, the tables' first version):
configs/v4, configs/v5e, configs/base.yml, train.py (calculate_training_tflops).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.validation.measured.rows import Case, Family, NoModelError, Row, simulated

_SEQUENCE, _VOCABULARY, _HEAD = 2048, 32768, 256


@dataclass(frozen=True)
class _Model:
    """Sizes of a model, sequences per chip, and tensor-parallel ranks."""

    hidden: int
    heads: int
    ffn: int
    layers: int
    batch: int
    tensor: int = 1

    @property
    def flops_per_token(self) -> float:
        """FLOPs per token as MaxText counts them."""
        layer = 4 * self.hidden * self.heads * _HEAD + 2 * self.hidden * self.ffn
        parameters = self.layers * layer + _VOCABULARY * self.hidden
        return 6.0 * parameters + 6.0 * self.layers * self.heads * _HEAD * _SEQUENCE


MODELS: Mapping[str, _Model] = {
    "22B": _Model(6144, 24, 24576, 48, batch=16),
    "52B": _Model(12288, 32, 49152, 32, batch=10),
    "16B": _Model(5120, 32, 32768, 32, batch=6),
    "32B": _Model(10240, 32, 32768, 32, batch=4),
    "64B": _Model(10240, 32, 32768, 64, batch=2),
    "128B": _Model(10240, 64, 65536, 64, batch=1, tensor=16),
}
_CHIPS: Mapping[str, tuple[str, int]] = {
    "v4-128": ("tpu-v4", 64),
    "v4-384": ("tpu-v4", 192),
    "v5e-256": ("tpu-v5e", 256),
}
"""Slice to its device and chips; names of v4 count cores."""


def _slices(row: Row) -> tuple[int, str]:
    found = re.fullmatch(r"(\d+)x (\S+)", str(row.values.get("Hardware", "")))
    if found is None or found.group(2) not in _CHIPS:
        raise NoModelError(f"no slices are known of {row.values.get('Hardware')!r}")
    return int(found.group(1)), found.group(2)


def machine_of(row: Row) -> tuple[str, str]:
    """Return device and topology of a row."""
    _, name = _slices(row)
    return _CHIPS[name][0], f"tpu-{name}"


def split(row: Row) -> list[Row]:
    """Return a row for each model of a row."""
    rates = {key.removesuffix("TFLOP/sec/chip").strip(): key for key in row.values if key.endswith("TFLOP/sec/chip")}
    own = str(row.values.get("_model", "")).removesuffix(" model")
    names = {model or own: key for model, key in rates.items()}
    return [
        row.derived(model, name=f"{model} {row.values.get('Hardware')}", size=model, rate=key)
        for model, key in names.items()
    ] or [row]


def workload_values(model: _Model, slices: int, chips: int) -> dict[str, Any]:
    """Return the keys of the workload of a model on some slices."""
    return {
        "kind": "transformer",
        "framework": "maxtext",
        "hidden": model.hidden,
        "heads": model.heads,
        "head_size": _HEAD,
        "ffn": model.ffn,
        "layers": model.layers,
        "norm": "rms_norm",
        "rotary": True,
        "vocabulary": _VOCABULARY,
        "tied_embedding": True,
        "sequence": _SEQUENCE,
        "batch_per_replica": model.batch * model.tensor,
        "tensor_parallel": model.tensor,
        "data_parallel": slices * chips // model.tensor,
        "shard_ranks": chips // model.tensor,
    }


def step(row: Row, machine: Machine) -> Case:
    """A step of one model."""
    model = MODELS[row.word("size", tuple(MODELS))]
    slices, name = _slices(row)
    values = workload_values(model, slices, _CHIPS[name][1])
    flops = model.batch * _SEQUENCE * model.flops_per_token
    measured_us = flops / (row.number(str(row.values["rate"])) * 1e12) * 1e6
    return simulated(row, values, machine, measured_us=measured_us, schedule="overlap+async-tp", host="none")


TABLES = {table: Family("MaxText", step, machine_of, split) for table in ("maxtext_tpu_v4", "maxtext_tpu_v5e")}
