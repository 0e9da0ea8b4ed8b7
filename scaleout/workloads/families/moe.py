"""Decoders with mixtures of experts: what a router sends where, and what experts hold.

Each token goes to `top_k` experts. Every expert gets equally many rows, or as `imbalance` says, or is cut off at, or
padded up to, its capacity. GEMMs of a rank's experts are one kernel each, or one for all. Shared experts are one wider
expert.

With sequence parallelism every tensor-parallel rank routes and dispatches its own tokens only. Without, or where
experts are not spread, all tensor-parallel ranks hold all tokens. Experts are cut over the tensor axis, or over ranks
of their own (`expert_tensor_parallel`).

Source: GShard, arXiv:2006.16668; DeepSeekMoE, arXiv:2401.06066; DeepSeek-V3, arXiv:2412.19437, 2.1.2 (groups) and 3.3
(dispatch in fp8); MoE Parallel Folding, arXiv:2504.14960.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from scaleout.config.units import Count, CountOrZero, NotNegative, Positive, RankCount, counted
from scaleout.program.graph import Ints
from scaleout.program.operations import ITEM_BYTES
from scaleout.workloads.config.layered import Degrees
from scaleout.workloads.families.routing import distinct, rows_of_experts
from scaleout.workloads.families.transformer import Transformer
from scaleout.workloads.generate import experts as blocks
from scaleout.workloads.generate.autograd_tape import AutogradTape
from scaleout.workloads.generate.units import Rank

SCALED = 128
"""Elements of a row in fp8 that share a scale in fp32: DeepSeek-V3, arXiv:2412.19437, 3.3.2."""


class Moe(Transformer):
    """Decoder whose feed-forward networks are mixtures of experts with top-k routing."""

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
    pad_to_capacity: bool = Field(
        default=True, description="capacity_factor: pad experts with fewer rows; false: only drop rows beyond it"
    )
    imbalance: NotNegative = Field(
        default=0.0,
        description="by how much the busiest expert's rows exceed the mean, over the mean: MaxVio of arXiv:2408.15664, "
        "where trained models have 0.52 to 0.72 with an auxiliary loss and 0.04 without one; others' rows are drawn",
    )
    imbalance_seed: CountOrZero = Field(default=0, description="imbalance: seed of the draw")
    expert_tensor_parallel: RankCount | None = Field(
        default=None,
        description="ranks that share an expert's matrices. Experts then lie over all ranks of a stage by themselves, "
        "as in Megatron-Core's parallel folding; if unset they are cut as all else and lie within data",
    )
    expert_groups: Count = Field(
        default=1, description="groups that experts are in, as many to each (node-limited routing)"
    )
    groups_per_token: Count | None = Field(
        default=None, description="expert_groups: groups that a token's experts are of; all if unset"
    )
    dispatch: Literal["all_to_all", "deduplicated"] = Field(
        default="all_to_all",
        description="a row for each of a token's experts; or (deduplicated) a token once to each group of experts and "
        "from there once to each rank, both at the same time, as by DeepEP",
    )
    dispatch_dtype: Literal["same", "fp8_e4m3"] = Field(
        default="same",
        description="of what is sent to experts, forward, and of gradients of what they made, backward; of fp8 with a "
        "scale in fp32 for each 128 elements; what comes back is in the model's type",
    )
    overlap_shared: bool = Field(
        default=False, description="shared experts run beside the dispatch, and backward beside the combine's"
    )
    grouped_experts: bool | Literal["batched"] = Field(
        default=False,
        description="GEMMs of a rank's experts are one kernel, which adds weights' gradients to what is there; "
        "batched: torch.bmm, whose results are new",
    )
    plain_routing: bool | Literal["by_mask"] = Field(
        default=False,
        description="routing by plain tensor operations: ids of experts are sorted, rows written by index into zeros, "
        "scaled and added up one after the other, and copied between the orders of ranks and experts; by_mask: rows "
        "are chosen and added up by an index from a mask, whose length the host reads back, twice a layer "
        "(Megatron-Core 0.10); else each order is one gather",
    )
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
        for key, does in (("shared_gate", "scales"), ("overlap_shared", "hides time behind")):
            if getattr(self, key) and not self.shared_experts:
                raise ValueError(f"{key} {does} what shared experts make, and there are none; give shared_experts")
        if not self.pad_to_capacity and self.capacity_factor is None:
            raise ValueError("pad_to_capacity is of a capacity_factor, and there is none; give one, or leave it out")
        if 1 + self.imbalance > self.experts:
            raise ValueError(
                f"imbalance {self.imbalance:g} is more than {self.experts - 1}, where one of {self.experts} experts "
                f"gets all rows; give less"
            )
        if self.plain_routing and self.dispatch == "deduplicated":
            raise ValueError("plain_routing sorts rows, and dispatch deduplicated sends tokens; leave one of them out")
        self._check_groups()
        return self

    def _check_groups(self) -> None:
        groups, chosen = self.expert_groups, self.groups_of_token
        if self.experts % groups or chosen > groups:
            raise ValueError(
                f"{self.experts} experts in expert_groups {groups}, of which a token has groups_per_token {chosen}; "
                f"choose a divisor of {self.experts}, and at most as many for a token"
            )
        if self.top_k > self.experts // groups * chosen:
            raise ValueError(
                f"top_k {self.top_k} is more than the {self.experts // groups * chosen} experts of groups_per_token "
                f"{chosen} of expert_groups {groups}; choose more groups for a token"
            )

    def refused_experts(self, cut: Degrees) -> str | None:
        """Say why experts cannot be spread over so many ranks, or None if they can."""
        folded = self.expert_tensor_parallel
        ranks, per = cut.data_parallel, cut.expert_parallel
        if folded is not None:
            ranks, per = cut.tensor_parallel * cut.context_parallel * ranks, folded * per
        if ranks % per:
            if folded is None:
                return (
                    f"expert_parallel {per} does not divide data_parallel {ranks}; "
                    f"experts are spread over data-parallel ranks, so choose a divisor of {ranks}"
                )
            return (
                f"expert_tensor_parallel {folded} x expert_parallel {cut.expert_parallel} does not divide the {ranks} "
                f"ranks of a stage; choose a divisor of {ranks}"
            )
        if self.experts % cut.expert_parallel:
            return (
                f"experts {self.experts} do not spread over expert_parallel {cut.expert_parallel} ranks; "
                f"choose a divisor of {self.experts}"
            )
        shards, key = (cut.tensor_parallel, "tensor") if folded is None else (folded, "expert_tensor")
        if self.expert_width % shards:
            return (
                f"expert_ffn {self.expert_width} does not divide over {key}_parallel {shards} ranks; "
                f"choose a divisor of {self.expert_width}"
            )
        return self._refused_dispatch(cut) or self._refused_rows(cut)

    def _refused_dispatch(self, cut: Degrees) -> str | None:
        if self.expert_tensor_parallel is not None and cut.tensor_parallel > 1 and not cut.sequence_parallel:
            return (
                f"expert_tensor_parallel {self.expert_tensor_parallel} needs ranks with tokens of their own, and "
                f"tensor_parallel {cut.tensor_parallel} ranks have the same; set sequence_parallel to true"
            )
        if self.dispatch == "all_to_all":
            return None
        if self.imbalance or self.capacity_factor is not None:
            key = "imbalance" if self.imbalance else "capacity_factor"
            return f"dispatch deduplicated is of tokens that all go, to experts in balance; leave {key} out"
        if self._gathered_shards(cut) > 1:
            return (
                "dispatch deduplicated is of experts that no other ranks share, and what arrives would be gathered "
                "over tensor-parallel ranks; set expert_tensor_parallel to 1"
            )
        if cut.expert_parallel % self.expert_groups:
            return (
                f"expert_parallel {cut.expert_parallel} ranks do not divide over expert_groups {self.expert_groups}; "
                f"choose a divisor of {cut.expert_parallel}"
            )
        return None

    def _refused_rows(self, cut: Degrees) -> str | None:
        shards = cut.tensor_parallel if self._dispatches_shards(cut) else 1
        tokens = self.tokens_of(cut) // shards
        if self.imbalance or self.capacity_factor is not None:
            return None
        sent = self.top_k * cut.expert_parallel
        if tokens * sent % self.experts:
            choice = "choose microbatch and sequence so that they do"
            if self.mode == "decode":  # a token of each sequence
                evenly = self.experts // math.gcd(self.experts, sent) * shards
                key = "batch_per_replica" if self.microbatch is None else "microbatch"
                choice = f"choose {key} {-(-cut.microbatch_size // evenly) * evenly} or another multiple of {evenly}"
            return (
                f"{counted(tokens, 'token')} x top_k {self.top_k} x expert_parallel {cut.expert_parallel} do not "
                f"spread evenly over {self.experts} experts; {choice}, or give a capacity_factor"
            )
        return None

    def _dispatches_shards(self, cut: Degrees) -> bool:
        """Whether each tensor-parallel rank dispatches its own tokens only."""
        spread = self.expert_tensor_parallel is not None or cut.expert_parallel > 1
        return cut.sequence_parallel and cut.tensor_parallel > 1 and spread

    def _gathered_shards(self, cut: Degrees) -> int:
        if self.expert_tensor_parallel is not None:
            return self.expert_tensor_parallel
        return cut.tensor_parallel if self._dispatches_shards(cut) else 1

    def write_feed_forward(self, tape: AutogradTape, x: int, rank: Rank[Any], number: int, label: str) -> int:
        """Write the experts of a layer, or its dense network."""
        if self.feed_forward_kind(number) == "dense":
            return super().write_feed_forward(tape, x, rank, number, label)
        return blocks.mixture(tape, x, rank, label)

    def feed_forward_reads_shards(self, number: int) -> bool:
        """Whether the feed-forward block of a layer reads and makes a rank's own tokens under sequence parallelism."""
        return has_experts(self.feed_forward_kind(number)) and self.token_shards > 1

    @property
    def exchanged_bytes(self) -> int:
        """Bytes of the largest buffer that a layer exchanges along the tensor, context or expert axis."""
        if self.expert_parallel == 1 and self.gathered_shards == 1:
            return super().exchanged_bytes
        # what is sent, and what comes, which is then gathered over the ranks that share an expert
        sent = self.routed_rows + max(map(sum, self.loads)) * self.gathered_shards
        return max(super().exchanged_bytes, sent * self.hidden * self.item_bytes)

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
    def folded_experts(self) -> int | None:
        """Ranks that share an expert's matrices, if experts have a layout of their own."""
        return self.expert_tensor_parallel

    @property
    def groups_of_token(self) -> int:
        """Groups that a token's experts are of."""
        return self.groups_per_token or self.expert_groups

    @property
    def expert_shards(self) -> int:
        """Ranks that share an expert's matrices."""
        return self.expert_tensor_parallel or self.tensor_parallel

    @property
    def token_shards(self) -> int:
        """Tensor-parallel ranks that dispatch tokens of their own; 1 if each dispatches all."""
        return self.tensor_parallel if self._dispatches_shards(self) else 1

    @property
    def gathered_shards(self) -> int:
        """Ranks whose dispatched rows are gathered before the experts that they share; 1 if each gets all of them."""
        return self._gathered_shards(self)

    @property
    def dispatched_tokens(self) -> int:
        """Tokens that a rank routes and dispatches."""
        return self.local_tokens // self.token_shards

    @property
    def rows_to_experts(self) -> tuple[int, ...]:
        """Rows that a rank sends to each expert (E,): its tokens', without what is beyond a capacity, or padded."""
        rows, factor = self.dispatched_tokens * self.top_k, self.capacity_factor
        found = rows_of_experts(rows, self.experts, self.imbalance, self.imbalance_seed)
        if factor is None:
            return found
        capacity = math.ceil(rows * factor / self.experts)
        return (capacity,) * self.experts if self.pad_to_capacity else tuple(min(count, capacity) for count in found)

    @property
    def routed_rows(self) -> int:
        """Rows that a rank sends to experts: each token to each of its own, and padding up to the capacity."""
        return sum(self.rows_to_experts)

    @property
    def loads(self) -> tuple[tuple[int, ...], ...]:
        """Rows that arrive for each of a rank's experts, for all ranks that differ, the busiest first."""
        return tuple(sorted({*self._loads_of_ranks}, key=lambda load: (-sum(load), load)))

    @property
    def load_of_rank(self) -> Ints:
        """Which of `loads` each rank has, shape (R,)."""
        numbers = {load: number for number, load in enumerate(self.loads)}
        of_expert_rank = np.array([numbers[load] for load in self._loads_of_ranks], np.int64)
        return of_expert_rank[self.mesh.coordinates("expert")]

    @property
    def _loads_of_ranks(self) -> list[tuple[int, ...]]:
        """The load of each expert-parallel rank."""
        held, senders = self.local_experts, self.expert_parallel
        if not self.imbalance:
            return [(self.routed_rows * senders // self.experts,) * held] * senders
        rows = [senders * count for count in self.rows_to_experts]
        return [tuple(rows[first : first + held]) for first in range(0, self.experts, held)]

    @property
    def tokens_per_expert(self) -> int:
        """Rows that each expert of a rank handles in the mean."""
        return self.routed_rows * self.gathered_shards * self.expert_parallel // self.experts

    @property
    def dispatched_copies(self) -> tuple[tuple[str, int, int], ...]:
        """Axis, ranks and tokens sent of each all-to-all of a deduplicated dispatch: across groups, and within them."""
        groups, chosen, ranks = self.expert_groups, self.groups_of_token, self.expert_parallel
        within, experts, tokens = ranks // groups, self.experts // groups * chosen, self.dispatched_tokens
        found = []
        if groups > 1:
            found.append(("expert_copy", groups, round(tokens * distinct(chosen, experts, self.top_k))))
        if within > 1:
            axis = "expert_shard" if groups > 1 else "expert"
            found.append((axis, within, round(tokens * distinct(chosen * within, experts, self.top_k))))
        return tuple(found)

    @property
    def dispatched_bytes(self) -> int:
        """Bytes of a token's row as it is dispatched."""
        if self.dispatch_dtype == "same":
            return self.hidden * self.item_bytes
        return self.hidden + -(-self.hidden // SCALED) * ITEM_BYTES["fp32"]


def has_experts(kind: str) -> bool:
    """Whether layers of a kind have experts."""
    return kind.startswith("moe")
