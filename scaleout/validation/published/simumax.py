"""Published steps and memory of SimuMax's reference runs: Megatron-LM 0.14 on eight B200, one row per run.

A row names a shipped workload (`simumax-` and its model), the degrees of its axes, its layers and micro-batches. The
vocabulary is padded to a multiple of 128 for each tensor-parallel rank. Memory is the allocator's peak over all ranks.

Source: github.com/MooreThreads/SimuMax (4dcaae5), docs/b200.
"""

import re
from dataclasses import replace
from typing import Any

from scaleout.cluster.machine import Machine
from scaleout.errors import ConfigError
from scaleout.validation.measured.rows import Case, Family, NoModelError, Row, simulated
from scaleout.validation.published import shipped
from scaleout.workloads import memory
from scaleout.workloads.config.layered import LayeredModel, layered
from scaleout.workloads.families import load_workload

_RANKS = 8
_PADDED_TO = 128
_AXES = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "cp": "context_parallel", "ep": "expert_parallel"}
_MEASURED = {"real_ms": "step", "real_alloc_gib": "memory"}
_UNITS = {"real_ms": 1e-3, "real_alloc_gib": 2.0**30}


def split(row: Row) -> list[Row]:
    """Return a row for each measured number of a run."""
    return row.parts(_MEASURED, name=row.values.get("case"))


def workload_of(row: Row) -> LayeredModel:
    """Return the workload of a row; raise `NoModelError` if its model is not shipped."""
    changes: dict[str, Any] = {"layers": row.count("layer_num"), "batch_per_replica": row.count("mbc")}
    degrees = {name: int(count) for name, count in re.findall(r"([a-z]+)(\d+)", str(row.values.get("parallel", "")))}
    changes |= {key: degrees.get(name, 1) for name, key in _AXES.items()}
    replicas = changes["tensor_parallel"] * changes["pipeline_parallel"] * changes["context_parallel"]
    changes["data_parallel"] = _RANKS // replicas
    virtual_stages = row.count("vp_size")
    if virtual_stages > 1:
        changes |= {"pipeline_schedule": "interleaved_1f1b", "virtual_stages": virtual_stages}
    sequence = re.search(r"_seq(\d+)", str(row.values.get("case", "")))
    if sequence:
        changes["sequence"] = int(sequence[1])
    name = f"simumax-{row.values.get('model')}"
    vocabulary = shipped(row, name).sizes["vocabulary"]
    multiple = _PADDED_TO * changes["tensor_parallel"]
    changes["vocabulary"] = -(-vocabulary // multiple) * multiple
    changes["sequence_parallel"] = changes["tensor_parallel"] > 1
    try:
        return layered(load_workload(name, changes), wants="these are transformers")
    except ConfigError as error:
        raise NoModelError(str(error)) from None


def run(row: Row, machine: Machine) -> Case:
    """A step, or the peak memory of a rank; collectives do not overlap, and the host issues calls one by one."""
    measured = str(row.values.get("measured", "real_ms"))
    workload, value = workload_of(row), row.number(measured) * _UNITS[measured]
    if measured == "real_alloc_gib":
        return Case(value, lambda: memory.peak(workload).total_bytes, "memory")
    case = simulated(row, workload, machine, measured_us=value * 1e6, schedule="baseline", host="eager")
    others = {"SimuMax 1.2": row.number("perf_ms") * _UNITS[measured]} if "perf_ms" in row.values else {}
    return replace(case, others=others)


TABLES = {"simumax_b200": Family("SimuMax", run, lambda row: ("b200", "dgx-b200-1"), split)}
