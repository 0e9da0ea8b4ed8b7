"""Decoders with mixtures of experts."""

import math
from typing import Literal

from pydantic import Field, model_validator

from scaleout.workloads.config.parallel import Count
from scaleout.workloads.config.transformer import Transformer


class Moe(Transformer):
    """Decoder whose feed-forward networks are mixtures of experts with balanced top-k routing.

    Source: GShard, arXiv:2006.16668; Mixtral, arXiv:2401.04088; DeepSeek-V3, arXiv:2412.19437 (shared experts).
    """

    kind: Literal["moe"]  # type: ignore[assignment]
    experts: Count
    top_k: Count
    expert_ffn: Count | None = Field(default=None, description="width of an expert; ffn if unset")
    shared_experts: int = Field(default=0, ge=0, strict=True, description="experts that every token goes to")
    capacity_factor: float | None = Field(
        default=None,
        gt=0,
        description="each rank sends every expert as many rows, padded: this factor of its tokens' share, rounded up; "
        "as many as there are if unset",
    )
    grouped_experts: bool = Field(default=False, description="products of a rank's experts are one kernel")
    weighted_activation: bool = Field(
        default=False,
        description="the router's weights scale experts' activations; else their outputs, which are kept for it",
    )
    dense_layers: int = Field(default=0, ge=0, strict=True, description="first layers, which have no experts")

    @model_validator(mode="after")
    def _experts_spread(self) -> "Moe":
        if self.data_parallel % self.expert_parallel:
            raise ValueError(
                f"expert_parallel {self.expert_parallel} does not divide data_parallel {self.data_parallel}; "
                f"experts are spread over data-parallel ranks, so choose a divisor of {self.data_parallel}"
            )
        if self.experts % self.expert_parallel:
            raise ValueError(
                f"experts {self.experts} do not spread over expert_parallel {self.expert_parallel} ranks; "
                f"choose a divisor of {self.experts}"
            )
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts there are")
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers {self.dense_layers} is more than layers {self.layers}")
        if self.expert_width % self.tensor_parallel:
            raise ValueError(
                f"expert_ffn {self.expert_width} does not divide over tensor_parallel {self.tensor_parallel} ranks; "
                f"choose a divisor of {self.expert_width}"
            )
        routed = self.local_tokens * self.top_k * self.expert_parallel
        if routed % self.experts and self.capacity_factor is None:
            raise ValueError(
                f"{self.local_tokens} tokens x top_k {self.top_k} x expert_parallel {self.expert_parallel} do not "
                f"spread evenly over {self.experts} experts; choose microbatch and sequence so that they do, or give a "
                f"capacity_factor"
            )
        return self

    @property
    def expert_width(self) -> int:
        """Width of an expert's feed-forward network."""
        return self.expert_ffn or self.ffn

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert."""
        return (self.gates + 1) * self.hidden * self.expert_width

    def layer_kind(self, layer: int) -> str:
        """Name what a layer is; layers of one kind are alike."""
        return "dense" if layer < self.dense_layers else "moe"

    def feed_forward_parameters(self, layer: int) -> int:
        """Parameters of a layer's experts and of its router, or of its dense network."""
        if layer < self.dense_layers:
            return super().feed_forward_parameters(layer)
        return (self.experts + self.shared_experts) * self.expert_parameters + self.hidden * self.experts

    def active_feed_forward_parameters(self, layer: int) -> int:
        """Parameters that a token meets in a layer's feed-forward network."""
        if layer < self.dense_layers:
            return super().feed_forward_parameters(layer)
        return (self.top_k + self.shared_experts) * self.expert_parameters + self.hidden * self.experts

    @property
    def local_experts(self) -> int:
        """Experts that a rank holds."""
        return self.experts // self.expert_parallel

    @property
    def routed_rows(self) -> int:
        """Rows that a rank sends to experts: each token to each of its own, and padding up to the capacity."""
        rows = self.local_tokens * self.top_k
        return (
            rows
            if self.capacity_factor is None
            else math.ceil(rows * self.capacity_factor / self.experts) * self.experts
        )

    @property
    def tokens_per_expert(self) -> int:
        """Rows that each expert of a rank handles, routing being balanced."""
        return self.routed_rows * self.expert_parallel // self.experts
