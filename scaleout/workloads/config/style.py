"""How layers become kernels: in which precision GEMMs are made, and what a compiler fuses.

GEMMs in fp8 need their operands cast in both layouts that their two GEMMs read. Scales are those of earlier steps
(`fp8_delayed`), of the whole tensor (`fp8_tensorwise`: its maximum first), or of each row (`fp8_rowwise`).

Source: Micikevicius et al., FP8 formats for deep learning, arXiv:2209.05433; NVIDIA Transformer Engine (delayed);
github.com/pytorch/ao, torchao/float8/README.md (tensorwise, rowwise); DeepSeek-V3, arXiv:2412.19437, 3.3.2 (blockwise).
"""

from collections.abc import Mapping
from dataclasses import dataclass

FP8 = "fp8_e4m3"

CASTS: Mapping[str, tuple[str, ...]] = {
    "same": (),
    "fp8_delayed": ("cast_to_fp8_twice",),
    "fp8_tensorwise": ("sum_all", "cast_to_fp8", "cast_to_fp8"),
    "fp8_rowwise": ("sum_all", "cast_to_fp8", "sum_all", "cast_to_fp8"),
    "fp8_blockwise": ("cast_to_fp8_twice",),
}
"""Precision and scaling of GEMMs to the kernels that cast one operand for both of its GEMMs."""


@dataclass(frozen=True)
class Style:
    """How the layers of a tape become kernels; the keys of a workload say more."""

    linear_dtype: str = "same"  # a name in `CASTS`
    compiled: bool = False
    separate: bool = False  # whether matrices that read the same input are GEMMs of their own
    packed: bool = False  # whether views of one output are copied, and what is made of their gradients put together
    casts_weights: bool = True  # weights are cast for each GEMM; not where they are gathered as GEMMs read them
    holds_fp8: bool = False  # weights of GEMMs in fp8 are held as these read them
    kept_item_bytes: float | None = None  # of inputs of GEMMs and activations that are kept; the layers' own if None
    recomputed: tuple[str, ...] = ()  # modules whose outputs are not kept

    def gemm(self, dtype: str) -> tuple[str, str]:
        """Return the operation and the data type of a GEMM with weights, of layers in a data type."""
        if self.linear_dtype == "same":
            return "gemm", dtype
        return {"fp8_rowwise": "gemm_fp8_rowwise", "fp8_blockwise": "gemm_fp8_blockwise"}.get(
            self.linear_dtype, "gemm_fp8"
        ), FP8

    @property
    def gathers_fp8(self) -> bool:
        """Whether operands are cast before they are gathered, which one scale for the whole tensor allows."""
        return self.linear_dtype in ("fp8_tensorwise", "fp8_delayed")


BLOCK = 128
"""Elements of a row of one scale, in fp32 (`fp8_blockwise`)."""


def kept_fp8_bytes(linear_dtype: str) -> float:
    """Return the bytes of an element that is kept as GEMMs of a precision read it, with its part of a scale."""
    return 1 + 4 / BLOCK if linear_dtype == "fp8_blockwise" else 1.0


PLAIN = Style()
