"""Published tables of runs on others' machines: one module a source, each with its `TABLES`.

`SOURCES` is the one list. To add a table: a module with a `TABLES` of its own, from the table's id to what its rows
are, and a line here. A module is imported when one of its tables is asked for.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module

from scaleout.validation.published.table import Table

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
    """Return what the rows of a table are; None if there is no such table."""
    if name not in SOURCES:
        return None
    found: Table = import_module(f"scaleout.validation.published.{SOURCES[name]}").TABLES[name]
    return found
