"""Decoders with mixtures of experts: route, dispatch, compute by expert, combine.

Each token goes to `top_k` experts. Routing is balanced: every expert gets equally many rows, or is padded up to its
capacity. GEMMs of a rank's experts are one kernel each, or one for all. Shared experts are one wider expert.

With sequence parallelism every tensor-parallel rank routes and dispatches its own tokens only. Experts are cut over the
tensor axis, so what arrives is gathered over it before their GEMMs, and their partial sums are reduce-scattered before
the combine. Without sequence parallelism, or where experts are not spread, all tensor-parallel ranks hold all tokens.

What arrives lies by the rank that sent it: a rank of several experts copies it into their order, and back before the
combine (Megatron-Core's `sort_chunks_by_idxs`).

Source: GShard, arXiv:2006.16668; Mixtral, arXiv:2401.04088 (one GEMM an expert); DeepSeekMoE, arXiv:2401.06066;
Megatron-Core's all-to-all dispatcher, arXiv:2504.14960, Fig. 3.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import fsum
from typing import Any, ClassVar

from pydantic import Field, model_validator

from scaleout.config.units import Count, CountOrZero, Positive
from scaleout.program.graph import NodeRole
from scaleout.workloads.families.layered import Degrees
from scaleout.workloads.families.transformer import Transformer
from scaleout.workloads.generate.attention import kept_tokens
from scaleout.workloads.generate.autograd_tape import AutogradTape
from scaleout.workloads.generate.layers import (
    GATHER_IN,
    SCATTER_OUT,
    SHUFFLE,
    Buffer,
    Exchange,
    activation,
    exchange,
    pointwise,
)
from scaleout.workloads.generate.linear import Linear
from scaleout.workloads.generate.units import Rank


class Moe(Transformer):
    """Decoder whose feed-forward networks are mixtures of experts with balanced top-k routing."""

    has_experts: ClassVar[bool] = True
    REFUSES: ClassVar[Mapping[str, str]] = {"halves": "is written for dense layers; leave it out"}

    experts: Count = Field(description="routed experts of a layer")
    top_k: Count = Field(description="routed experts that a token goes to")
    expert_ffn: Count | None = Field(default=None, description="width of an expert; ffn if unset")
    shared_experts: CountOrZero = Field(default=0, description="experts that every token goes to")
    capacity_factor: Positive | None = Field(
        default=None,
        description="each rank sends every expert as many rows, padded: this factor of its tokens' share, rounded up; "
        "as many as there are if unset",
    )
    grouped_experts: bool = Field(default=False, description="GEMMs of a rank's experts are one kernel")
    weighted_activation: bool = Field(
        default=False,
        description="the router's weights scale experts' activations; else their outputs, which are kept for it",
    )
    dense_layers: CountOrZero = Field(default=0, description="first layers, which have no experts")
    router_bias: bool = Field(default=False, description="each expert's score has a bias")
    expert_biases: bool = Field(default=False, description="both linear layers of each expert add a bias")
    shared_gate: bool = Field(default=False, description="a sigmoid of each token scales what shared experts make")

    @model_validator(mode="after")
    def _experts_spread(self) -> "Moe":
        if self.top_k > self.experts:
            raise ValueError(f"top_k {self.top_k} is more than the {self.experts} experts there are")
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers {self.dense_layers} is more than layers {self.layers}")
        if self.shared_gate and not self.shared_experts:
            raise ValueError("shared_gate scales what shared experts make, and there are none; give shared_experts")
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
        tokens = self.tokens_of(cut) // (cut.tensor_parallel if _dispatches_shards(cut) else 1)
        if tokens * self.top_k * cut.expert_parallel % self.experts and self.capacity_factor is None:
            return (
                f"{tokens} tokens x top_k {self.top_k} x expert_parallel {cut.expert_parallel} do not "
                f"spread evenly over {self.experts} experts; choose microbatch and sequence so that they do, or give a "
                f"capacity_factor"
            )
        return None

    def write_feed_forward(self, tape: AutogradTape, x: int, rank: Rank[Any], number: int, label: str) -> int:
        """Write the experts of a layer, or its dense network."""
        if self.feed_forward_kind(number) == "dense":
            return super().write_feed_forward(tape, x, rank, number, label)
        return mixture(tape, x, rank, label)

    def feed_forward_reads_shards(self, number: int) -> bool:
        """Whether the feed-forward block of a layer reads and makes a rank's own tokens under sequence parallelism."""
        return self.feed_forward_kind(number) == "moe" and _dispatches_shards(self)

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of the largest buffer that a layer exchanges along the tensor, context or expert axis."""
        if self.expert_parallel == 1:
            return super().exchanged_bytes
        sent = self.dispatched_tokens * self.top_k * self.hidden * self.item_bytes
        # what is sent, and what comes, which is then gathered over the tensor axis
        return max(super().exchanged_bytes, sent * (1 + self.gathered_shards))

    @property
    def expert_width(self) -> int:
        """Width of an expert's feed-forward network."""
        return self.expert_ffn or self.ffn

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert."""
        return (self.gates + 1) * self.hidden * self.expert_width

    def feed_forward_kind(self, layer: int) -> str:
        """Name what a layer's feed-forward network is: first dense ones, then experts."""
        return "dense" if layer < self.dense_layers else "moe"

    def feed_forward_parameters(self, kind: str) -> int:
        """Parameters of a layer's experts and of its router, or of its dense network, biases left out."""
        if not has_experts(kind):
            return super().feed_forward_parameters(kind)
        routed = (self.experts + self.shared_experts) * self.expert_parameters
        return routed + self.hidden * (self.experts + self.shared_gate)

    def feed_forward_addends(self, kind: str) -> int:
        """Biases of a layer's experts and of its router, or of its dense network."""
        if not has_experts(kind):
            return super().feed_forward_addends(kind)
        of_experts = self.experts * (self.gates * self.expert_width + self.hidden)
        return of_experts * self.expert_biases + self.experts * self.router_bias

    def active_parameters_of(self, part: str) -> int:
        """Parameters of a part that multiply a token: of its own experts only."""
        others = self.experts - self.top_k if has_experts(part) else 0
        return super().active_parameters_of(part) - others * self.expert_parameters

    @property
    def local_experts(self) -> int:
        """Experts that a rank holds."""
        return self.experts // self.expert_parallel

    @property
    def gathered_shards(self) -> int:
        """Tensor-parallel ranks whose dispatched tokens are gathered before the experts; 1 if each holds them all."""
        return self.tensor_parallel if _dispatches_shards(self) else 1

    @property
    def dispatched_tokens(self) -> int:
        """Tokens that a rank routes and dispatches."""
        return self.local_tokens // self.gathered_shards

    @property
    def routed_rows(self) -> int:
        """Rows that a rank sends to experts: each token to each of its own, and padding up to the capacity."""
        rows, factor = self.dispatched_tokens * self.top_k, self.capacity_factor
        return rows if factor is None else math.ceil(rows * factor / self.experts) * self.experts

    @property
    def tokens_per_expert(self) -> int:
        """Rows that each expert of a rank handles, routing being balanced."""
        return self.routed_rows * self.gathered_shards * self.expert_parallel // self.experts


def has_experts(kind: str) -> bool:
    """Whether layers of a kind have experts."""
    return kind.startswith("moe")


def _dispatches_shards(cut: Degrees) -> bool:
    """Whether each tensor-parallel rank dispatches its own tokens only."""
    return cut.sequence_parallel and cut.tensor_parallel > 1 and cut.expert_parallel > 1


def mixture(tape: AutogradTape, x: int, rank: Rank[Moe], label: str) -> int:
    """Write the block for one rank and return the node that makes its (partial) output."""
    workload = rank.workload
    tokens, hidden, rows = workload.dispatched_tokens, workload.hidden, workload.routed_rows
    of_tokens = partial(pointwise, tape, tokens=tokens, hidden=hidden, topk=workload.top_k)
    permute = partial(
        pointwise, tape, kernels=("moe_permute_rows", "moe_permute_rows"), role=NodeRole.EXCHANGE, hidden=hidden
    )

    def shuffle(node: int, name: str) -> int:
        if workload.expert_parallel == 1:
            return node
        buffer = Buffer(rows * hidden * workload.item_bytes, rank.axes.number("expert"))
        return exchange(tape, node, SHUFFLE, buffer, name=name)

    if workload.shared_experts:  # their input is the router's, which keeps it
        x = _shared(tape, x, rank, label=f"{label}_shared")
    x = _route(tape, x, rank, label=label)
    x = of_tokens(x, ("moe_repeat_topk", "moe_sum_topk"), makes=tokens * hidden)
    x = permute(x, name=f"{label}_permute", makes=rows * hidden, tokens=rows)
    x = shuffle(x, f"{label}_dispatch")
    x = _over_tensor_axis(tape, x, rank, GATHER_IN, rows=rows, name=f"{label}_dispatched")
    received = rows * workload.gathered_shards
    regroups = workload.expert_parallel > 1 and workload.local_experts > 1
    if regroups:  # rows come by the rank that sent them
        x = permute(x, name=f"{label}_by_expert", makes=received * hidden, tokens=received)
    x = (_grouped if workload.grouped_experts else _experts)(tape, x, rank, label=label)
    if regroups:
        x = permute(x, name=f"{label}_by_rank", makes=received * hidden, tokens=received)
    x = _over_tensor_axis(tape, x, rank, SCATTER_OUT, rows=rows, name=f"{label}_dispatched")
    x = shuffle(x, f"{label}_combine")
    x = permute(x, name=f"{label}_unpermute", makes=rows * hidden, tokens=rows)
    x = of_tokens(x, ("moe_sum_topk", "moe_repeat_topk"), makes=rows * hidden)
    if not workload.weighted_activation:
        tape.save_for_backward(rows * hidden)
    return x


def _over_tensor_axis(tape: AutogradTape, x: int, rank: Rank[Moe], kinds: Exchange, *, rows: int, name: str) -> int:
    """Gather rows of all tensor-parallel ranks or reduce-scatter their sums, where each dispatches its own tokens."""
    workload, shards = rank.workload, rank.workload.gathered_shards
    if shards == 1:
        return x
    size_bytes = rows * shards * workload.hidden * workload.item_bytes
    return exchange(tape, x, kinds, Buffer(size_bytes, rank.axes.number("tensor"), shards), name=name)


def _shared(tape: AutogradTape, x: int, rank: Rank[Moe], *, label: str) -> int:
    """Run the shared experts on the tokens of all tensor-parallel ranks."""
    workload, tokens = rank.workload, rank.workload.dispatched_tokens
    width = workload.shared_experts * workload.expert_width // workload.tensor_parallel
    first = Linear(
        name=f"{label}_1", tokens=workload.local_tokens, inputs=workload.hidden, outputs=workload.gates * width,
        bucket=rank.dense, kept_tokens=0,
    )  # fmt: skip
    x = _over_tensor_axis(tape, x, rank, GATHER_IN, rows=tokens, name=label)
    x = _two_gemms(tape, x, workload, first)
    x = _over_tensor_axis(tape, x, rank, SCATTER_OUT, rows=tokens, name=label)
    return _gated(tape, x, rank, label=label) if workload.shared_gate else x


def _gated(tape: AutogradTape, x: int, rank: Rank[Moe], *, label: str) -> int:
    """Scale what the shared experts made by a number for each token: a GEMM of one column, and a product."""
    tokens, hidden = rank.workload.dispatched_tokens, rank.workload.hidden
    gate = Linear(
        name=f"{label}_gate", tokens=tokens, inputs=hidden, outputs=1, bucket=rank.dense, kept_tokens=0,
        partial=rank.workload.gathered_shards > 1,
    )  # fmt: skip
    x = gate.write(tape, x)
    tape.save_for_backward(tokens * hidden)
    return pointwise(
        tape, x, ("mul_scalar", "add"), name="shared_gate", makes=tokens * hidden, elements=tokens * hidden
    )


def _route(tape: AutogradTape, x: int, rank: Rank[Moe], *, label: str) -> int:
    """Score the experts of each token and choose; backward, the gradient of the scores and of the router's weight."""
    workload, tokens = rank.workload, rank.workload.dispatched_tokens
    shards = workload.gathered_shards > 1
    router = Linear(
        name=f"{label}_router", tokens=tokens, inputs=workload.hidden, outputs=workload.experts, bucket=rank.dense,
        kept_tokens=tokens if shards else kept_tokens(rank), partial=shards, bias=workload.router_bias,
    )  # fmt: skip
    x = router.write(tape, x)
    tape.save_for_backward(tokens * workload.experts)
    kernels = ("moe_top_k", "moe_top_k_bwd")
    return pointwise(tape, x, kernels, tokens=tokens, experts=workload.experts, topk=workload.top_k)


def _first(rank: Rank[Moe], name: str, groups: int = 0) -> Linear:
    """Return the first GEMM of an expert, or of groups of them."""
    workload = rank.workload
    width = workload.expert_width // workload.tensor_parallel
    return Linear(
        name=name, tokens=workload.tokens_per_expert, inputs=workload.hidden, outputs=workload.gates * width,
        bucket=rank.experts, groups=groups, bias=workload.expert_biases,
    )  # fmt: skip


def _experts(tape: AutogradTape, x: int, rank: Rank[Moe], *, label: str) -> int:
    """Run a rank's experts, each on its share of the rows."""
    workload = rank.workload
    tapes = [tape.branch() for _ in range(workload.local_experts)]
    tape.push(lambda dy: tape.graph.join([of_expert.backward(dy) for of_expert in reversed(tapes)]))
    firsts = [_first(rank, f"{label}_expert_{index}_1") for index in range(len(tapes))]
    y = tape.graph.join([_two_gemms(each, x, workload, first) for each, first in zip(tapes, firsts, strict=True)])
    tape.save_for_backward(fsum(of_expert.kept_bytes for of_expert in tapes), 1)
    return y


def _grouped(tape: AutogradTape, x: int, rank: Rank[Moe], *, label: str) -> int:
    """Run a rank's experts, their GEMMs in one kernel."""
    return _two_gemms(tape, x, rank.workload, _first(rank, f"{label}_experts_1", rank.workload.local_experts))


def _two_gemms(tape: AutogradTape, x: int, workload: Moe, first: Linear) -> int:
    """Write a GEMM whose name ends in 1, the activation, and the GEMM back to the hidden width."""
    assert isinstance(first.outputs, int)
    width = first.outputs // workload.gates
    name = f"{first.name.removesuffix('1')}2"
    second = replace(first, name=name, inputs=width, outputs=workload.hidden, kept_tokens=None)
    elements = max(first.groups, 1) * first.tokens * width
    return second.write(tape, activation(tape, first.write(tape, x), workload.activation, elements=elements))
