"""Decoders with mixtures of experts: route, dispatch, compute by expert, combine.

Each token goes to `top_k` experts. Routing is balanced: every expert gets equally many rows, or is padded up to its
capacity. GEMMs of a rank's experts are one kernel each, or one for all. Shared experts are one wider expert.

Source: GShard, arXiv:2006.16668; Mixtral, arXiv:2401.04088 (one GEMM an expert); DeepSeekMoE, arXiv:2401.06066.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import Field, model_validator

from scaleout.program.graph import NONE, NodeRole
from scaleout.workloads.families.family import Count
from scaleout.workloads.families.layered import Degrees
from scaleout.workloads.families.transformer import Transformer
from scaleout.workloads.generate import transformer as blocks
from scaleout.workloads.generate.autograd_tape import AutogradTape, Bucket
from scaleout.workloads.generate.layers import SHUFFLE, activation, exchange, pointwise
from scaleout.workloads.generate.linear import grouped_linear, linear
from scaleout.workloads.generate.units import Rank


class Moe(Transformer):
    """Decoder whose feed-forward networks are mixtures of experts with balanced top-k routing."""

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
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts there are")
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers {self.dense_layers} is more than layers {self.layers}")
        return self

    def refused_experts(self, cut: Degrees) -> str | None:
        """Say why experts cannot be spread over so many ranks, or None if they can."""
        if cut.data_parallel % cut.expert_parallel:
            return (
                f"expert_parallel {cut.expert_parallel} does not divide data_parallel {cut.data_parallel}; "
                f"experts are spread over data-parallel ranks, so choose a divisor of {cut.data_parallel}"
            )
        if self.experts % cut.expert_parallel:
            return (
                f"experts {self.experts} do not spread over expert_parallel {cut.expert_parallel} ranks; "
                f"choose a divisor of {self.experts}"
            )
        if self.expert_width % cut.tensor_parallel:
            return (
                f"expert_ffn {self.expert_width} does not divide over tensor_parallel {cut.tensor_parallel} ranks; "
                f"choose a divisor of {self.expert_width}"
            )
        tokens = self.tokens_of(cut)
        if tokens * self.top_k * cut.expert_parallel % self.experts and self.capacity_factor is None:
            return (
                f"{tokens} tokens x top_k {self.top_k} x expert_parallel {cut.expert_parallel} do not "
                f"spread evenly over {self.experts} experts; choose microbatch and sequence so that they do, or give a "
                f"capacity_factor"
            )
        return None

    def write_feed_forward(self, tape: AutogradTape, x: int, rank: Rank[Any], number: int, label: str) -> int:
        """Write the experts of a layer, or its dense network."""
        if self.layer_kind(number) == "dense":
            return super().write_feed_forward(tape, x, rank, number, label)
        group = rank.axes.number("expert") if self.expert_parallel > 1 else NONE
        kept_tokens = blocks.kept_tokens(rank)
        experts = Experts(group=group, router=rank.dense, weights=rank.experts, kept_tokens=kept_tokens)
        return mixture(tape, x, self, experts, label)

    @property
    def has_experts(self) -> bool:
        """Whether some parameters are experts', which the expert axis spreads."""
        return True

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of the largest buffer that a layer exchanges along the tensor, context or expert axis."""
        if self.expert_parallel == 1:
            return super().exchanged_bytes
        sent = self.local_tokens * self.top_k * self.hidden * self.item_bytes
        return max(super().exchanged_bytes, 2 * sent)  # what is sent, and what comes

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

    def feed_forward_parameters(self, kind: str) -> int:
        """Parameters of a layer's experts and of its router, or of its dense network."""
        if kind == "dense":
            return super().feed_forward_parameters(kind)
        return (self.experts + self.shared_experts) * self.expert_parameters + self.hidden * self.experts

    def active_parameters_of(self, part: str) -> int:
        """Parameters of a part that multiply a token: of its own experts only."""
        others = self.experts - self.top_k if part == "moe" else 0
        return super().active_parameters_of(part) - others * self.expert_parameters

    @property
    def local_experts(self) -> int:
        """Experts that a rank holds."""
        return self.experts // self.expert_parallel

    @property
    def routed_rows(self) -> int:
        """Rows that a rank sends to experts: each token to each of its own, and padding up to the capacity."""
        rows, factor = self.local_tokens * self.top_k, self.capacity_factor
        return rows if factor is None else math.ceil(rows * factor / self.experts) * self.experts

    @property
    def tokens_per_expert(self) -> int:
        """Rows that each expert of a rank handles, routing being balanced."""
        return self.routed_rows * self.expert_parallel // self.experts


@dataclass(frozen=True)
class Experts:
    """Where experts communicate and learn: the expert axis's family, and the buckets of router and experts."""

    group: int
    router: Bucket
    weights: Bucket
    kept_tokens: int


def mixture(tape: AutogradTape, x: int, workload: Moe, experts: Experts, label: str) -> int:
    """Write the block for one rank and return the node that makes its (partial) output."""
    tokens, hidden = workload.local_tokens, workload.hidden
    rows = workload.routed_rows
    size_bytes = rows * hidden * workload.item_bytes

    if workload.shared_experts:
        x = _shared(tape, x, workload, experts, label=label)
    x = _route(tape, x, workload, experts, label=label)
    x = pointwise(
        tape, x, "moe_repeat_topk", "moe_sum_topk", makes=tokens * hidden, tokens=tokens, hidden=hidden,
        topk=workload.top_k,
    )  # fmt: skip
    permute = partial(
        pointwise, tape, forward="moe_permute_rows", backward="moe_permute_rows", makes=rows * hidden,
        role=NodeRole.EXCHANGE, tokens=rows, hidden=hidden,
    )  # fmt: skip
    x = permute(x, name=f"{label}_permute")
    if workload.expert_parallel > 1:
        x = exchange(tape, x, SHUFFLE, size_bytes, group=experts.group, name=f"{label}_dispatch")
    x = (_grouped if workload.grouped_experts else _experts)(tape, x, workload, experts, label=label)
    if workload.expert_parallel > 1:
        x = exchange(tape, x, SHUFFLE, size_bytes, group=experts.group, name=f"{label}_combine")
    x = permute(x, name=f"{label}_unpermute")
    x = pointwise(
        tape, x, "moe_sum_topk", "moe_repeat_topk", makes=rows * hidden, tokens=tokens, hidden=hidden,
        topk=workload.top_k,
    )  # fmt: skip
    if not workload.weighted_activation:
        tape.save_for_backward(rows * hidden)
    return x


def _route(tape: AutogradTape, x: int, workload: Moe, experts: Experts, *, label: str) -> int:
    """Score the experts of each token and choose; backward, the gradient of the scores and of the router's weight."""
    tokens = workload.local_tokens
    x = linear(
        tape, x, tokens=tokens, inputs=workload.hidden, outputs=workload.experts,
        bucket=experts.router, name=f"{label}_router", kept_tokens=experts.kept_tokens,
    )  # fmt: skip
    tape.save_for_backward(tokens * workload.experts)
    return pointwise(
        tape, x, "moe_top_k", "moe_top_k_bwd", tokens=tokens, experts=workload.experts, topk=workload.top_k
    )


def _experts(tape: AutogradTape, x: int, workload: Moe, experts: Experts, *, label: str) -> int:
    """Run a rank's experts, each on its share of the rows."""
    tapes = [tape.branch() for _ in range(workload.local_experts)]
    tape.push(lambda dy: tape.graph.join([of_expert.backward(dy) for of_expert in reversed(tapes)]))
    of = partial(
        _two_gemms, x=x, workload=workload, weights=experts.weights, rows=workload.tokens_per_expert,
        width=workload.expert_width // workload.tensor_parallel,
    )  # fmt: skip
    y = tape.graph.join([of(each, label=f"{label}_expert_{index}") for index, each in enumerate(tapes)])
    tape.save_for_backward(sum(of_expert.kept_bytes for of_expert in tapes), 1)
    return y


def _grouped(tape: AutogradTape, x: int, workload: Moe, experts: Experts, *, label: str) -> int:
    """Run a rank's experts, their GEMMs in one kernel."""
    width = workload.expert_width // workload.tensor_parallel
    groups, rows = workload.local_experts, workload.tokens_per_expert
    of = partial(grouped_linear, tape, groups=groups, tokens=rows, bucket=experts.weights)
    x = of(x, inputs=workload.hidden, outputs=workload.gates * width, name=f"{label}_experts_1")
    x = activation(tape, x, workload.activation, elements=groups * rows * width)
    return of(x, inputs=width, outputs=workload.hidden, name=f"{label}_experts_2")


def _shared(tape: AutogradTape, x: int, workload: Moe, experts: Experts, *, label: str) -> int:
    """Run the experts that every token meets; their output is added where the others' is."""
    width = workload.shared_experts * workload.expert_width // workload.tensor_parallel
    rows = workload.local_tokens
    label = f"{label}_shared"  # their input is the router's, which keeps it
    return _two_gemms(tape, x, workload, experts.router, rows=rows, width=width, label=label, kept_tokens=0)


def _two_gemms(
    tape: AutogradTape,
    x: int,
    workload: Moe,
    weights: Bucket,
    *,
    rows: int,
    width: int,
    label: str,
    kept_tokens: int | None = None,
) -> int:
    of = partial(linear, tape, tokens=rows, bucket=weights)
    x = of(x, inputs=workload.hidden, outputs=workload.gates * width, name=f"{label}_1", kept_tokens=kept_tokens)
    x = activation(tape, x, workload.activation, elements=rows * width)
    return of(x, inputs=width, outputs=workload.hidden, name=f"{label}_2")
