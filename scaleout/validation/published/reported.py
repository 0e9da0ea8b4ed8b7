"""Published tables without a model, each with the reason; they count against coverage.

Source: github.com/bytedance/flux, deepseek-ai/DeepEP, ByteDance-Seed/Triton-distributed and
facebookresearch/dlrm (torchrec_dlrm), as named in the tables.
"""

from collections.abc import Mapping

from scaleout.cluster.machine import Machine
from scaleout.validation.measured.case import Case, NoModelError
from scaleout.validation.measured.rows import Row
from scaleout.validation.published import Table

_REASONS: Mapping[str, tuple[str, str]] = {
    "flux_comet_kernels": ("FLUX and Comet", "no device and no network of L20 or H800 is described"),
    "deepep": ("DeepEP", "no model of messages that kernels send over the network card themselves"),
    "all_to_all_lowlat": ("low-latency all-to-all", "no model of messages that kernels send over the network card"),
    "triton_distributed_e2e": ("Triton-distributed", "the row does not say the sizes of its model or of its GEMM"),
    "torchrec_dlrm_criteo1tb": (
        "TorchRec DLRM",
        "no model of its cross network, nor of the host and input that most of a small step waits for",
    ),
}
"""Table to its family, and to why there is no prediction."""


def _no_model(row: Row, machine: Machine) -> Case:
    raise NoModelError(_REASONS[row.source][1])


TABLES = {
    table: Table(family, _no_model, lambda row: ("h100", "h100-pod-64")) for table, (family, _) in _REASONS.items()
}
