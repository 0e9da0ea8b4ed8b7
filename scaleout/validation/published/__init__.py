"""Published tables of runs on other machines: one module per source, whose `TABLES` are by table id.

To add a table, write its module and add a line to `SOURCES`. A module is imported when one of its tables is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from scaleout.cluster.machine import Machine
from scaleout.validation.measured.case import Case
from scaleout.validation.measured.rows import Row


@dataclass(frozen=True)
class Table:
    """How the rows of a published table become cases; fields as in `scaleout.validation.measured.compare.Family`."""

    name: str
    case: Callable[[Row, Machine], Case]
    home: Callable[[Row], tuple[str, str]]
    split: Callable[[Row], list[Row]] = lambda row: [row]


SOURCES: Mapping[str, str] = {
    "nccl_allreduce_a100_node": "nccl",
    "nccl_allreduce_v100_node": "nccl",
    "megatron_seqsel_tab5": "megatron",
    "megatron_seqsel_fig1_mem": "megatron",
    "vtrain_single": "vtrain",
    "vtrain_multi": "vtrain",
    "llm_foundry_mpt": "llm_foundry",
    "torchtitan_llama3_h100_202412_torchtitan": "torchtitan",
    "torchtitan_asyncTP_llama3_h100_2025-06_torchtitan": "torchtitan",
    "maxtext_tpu_v4": "maxtext",
    "maxtext_tpu_v5e": "maxtext",
    "simumax_b200": "simumax",
    "flux_comet_kernels": "reported",
    "deepep": "reported",
    "all_to_all_lowlat": "reported",
    "triton_distributed_e2e": "reported",
    "torchrec_dlrm_criteo1tb": "reported",
}
"""Id of a table to its module under `scaleout.validation.published`."""


@cache
def table_named(name: str) -> Table | None:
    """Return the table of an id; None if there is none."""
    if name not in SOURCES:
        return None
    found: Table = import_module(f"scaleout.validation.published.{SOURCES[name]}").TABLES[name]
    return found
