"""Published tables of runs on other machines: one module per source, whose `TABLES` are by table id.

To add a table, write its module and add a line to `SOURCES`. A module is imported when one of its tables is read.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from scaleout.errors import ConfigError
from scaleout.validation.measured.rows import Family, NoModelError, Row, no_model
from scaleout.workloads.config.layered import LayeredModel, layered
from scaleout.workloads.families import load_workload


def _without_model(name: str, reason: str) -> Family:
    return Family(name, no_model(reason), lambda row: ("h100", "h100-pod-64"))


SOURCES: Mapping[str, str | Family] = {
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
    "ultrascale": "ultrascale",
    "megatron_bridge": "megatron_bridge",
    "flux_comet_kernels": _without_model("FLUX and Comet", "no device and no network of L20 or H800 is described"),
    "deepep": _without_model("DeepEP", "no model of messages that kernels send over the network card themselves"),
    "all_to_all_lowlat": _without_model(
        "low-latency all-to-all", "no model of messages that kernels send over the network card"
    ),
    "triton_distributed_e2e": _without_model(
        "Triton-distributed", "the row does not say the sizes of its model or of its GEMM"
    ),
    "torchrec_dlrm_criteo1tb": _without_model(
        "TorchRec DLRM",
        "no model of its cross network, nor of the host and input that most of a small step waits for",
    ),
}
"""Id of a table to its module in this package, or to its family where there is no model.

Sources of the latter: github.com/bytedance/flux, deepseek-ai/DeepEP, ByteDance-Seed/Triton-distributed and
facebookresearch/dlrm (torchrec_dlrm), as named in the tables.
"""


@cache
def table_named(name: str) -> Family | None:
    """Return the table of an id; None if there is none."""
    source = SOURCES.get(name)
    if not isinstance(source, str):
        return source
    found: Family = import_module(f"{__name__}.{source}").TABLES[name]
    return found


def shipped(row: Row, name: str, changes: Mapping[str, Any] | None = None) -> LayeredModel:
    """Return a shipped workload, changed; `NoModelError` names the row's model if there is none."""
    try:
        return layered(load_workload(name, changes), wants="these are transformers")
    except ConfigError:
        raise NoModelError(f"no workload of model {row.values.get('model')!r}") from None
