"""Published steps of GPT in Megatron-DeepSpeed: vTrain's measurements on one node and on 8 to 64 nodes of A100.

Each row is the shipped workload `vtrain` with its own sizes and degrees of parallelism. Collectives do not overlap, as
in that version of the framework, and the host issues calls one by one. If layers do not divide evenly over the stages,
the first stages have one more.

Source: vTrain, arXiv:2312.12391; github.com/VIA-Research/vTrain, data/ground_truth_single.csv, ground_truth_multi.csv.
"""

from collections.abc import Mapping
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.errors import ConfigError
from scaleout.study.search.evaluate import evaluate
from scaleout.validation.measured.rows import Case, Family, Row, utilisation, waiting_s
from scaleout.workloads.families import load_workload

_KEYS: Mapping[str, str] = {
    "hidden": "hidden size",
    "heads": "attention heads",
    "layers": "# layers",
    "sequence": "sequence length",
    "tensor_parallel": "tensor parallelism",
    "data_parallel": "data parallelism",
    "pipeline_parallel": "pipeline parallelism",
    "microbatch": "micro batch",
}
"""Key of a workload to the key of a row."""

_NODE_RANKS = 8


def machine_of(row: Row) -> tuple[str, str]:
    """Return device and topology of a row: one node, or the cluster."""
    return "a100-80g", "dgx-a100-1" if row.count("# GPUs") <= _NODE_RANKS else "a100-vtrain-64"


def workload_changes(row: Row) -> dict[str, Any]:
    """Return what a row changes in the workload; raise `ConfigError` if its batch or GPUs do not divide."""
    changes: dict[str, Any] = {key: row.count(name) for key, name in _KEYS.items()}
    ranks = changes["tensor_parallel"] * changes["data_parallel"] * changes["pipeline_parallel"]
    if ranks != row.count("# GPUs"):
        raise ConfigError(f"{row.where}: tensor, data and pipeline parallelism make {ranks} ranks, not # GPUs")
    batch, rest = divmod(row.count("global batch"), changes["data_parallel"])
    if rest:
        raise ConfigError(f"{row.where}: global batch does not divide over data parallelism")
    layers, more = divmod(changes["layers"], changes["pipeline_parallel"])
    stages = [layers + 1] * more + [layers] * (changes["pipeline_parallel"] - more)
    return {**changes, "ffn": 4 * changes["hidden"], "batch_per_replica": batch, "stage_layers": stages if more else []}


def step(row: Row, machine: Machine) -> Case:
    """A step, whose calls the host issues one by one, and which waits for the slowest GPU."""
    workload = load_workload("vtrain", workload_changes(row))

    def predict_s() -> float:
        found = evaluate(workload, machine.of(workload.num_ranks).topology, machine.device, host="eager")
        return found.step_s + waiting_s(found.compute_s, workload.num_ranks, machine.device)

    return Case(row.number("iteration time (ms)") * 1e-3, predict_s, mfu=utilisation(workload, machine))


def _named(row: Row) -> list[Row]:
    degrees = (f"{name[0]}{row.values.get(f'{name} parallelism')}" for name in ("tensor", "data", "pipeline"))
    return [row.named(" ".join((f"h{row.values.get('hidden size')}", *degrees, f"mb{row.values.get('micro batch')}")))]


TABLES = {
    "vtrain_single": Family("vTrain, one node", step, machine_of, _named),
    "vtrain_multi": Family("vTrain, many nodes", step, machine_of, _named),
}
