"""Mixtures of experts on one rank: route, dispatch, compute by expert, combine.

What arrives lies by the rank that sent it: a rank of several experts copies it into their order, and back before the
combine (Megatron-Core's `sort_chunks_by_idxs`). Where ranks share experts' matrices, what arrives is gathered over them
before the GEMMs, and their partial sums are reduce-scattered before the combine.

A deduplicated dispatch sends tokens, not rows: once to each group of ranks, by an all-to-all between ranks of the same
number in their groups, and once to each rank within a group. A rank that receives forwards at once, so both run at the
same time, and the combine likewise; tokens become rows of experts where they arrive (DeepEP).

Ranks whose experts are busier than others' have graphs of their own: `Rank.load` says whose this is. All-to-alls carry
what the rank sends or receives, whichever is more.

Source: Megatron-Core's all-to-all dispatcher, arXiv:2504.14960, Fig. 3, and `by_mask` core/transformer/moe/moe_utils.py
and router.py of core_v0.10.0, without --moe-permute-fusion (0.11); Mixtral, arXiv:2401.04088 (one GEMM an expert);
DeepSeek-V3, arXiv:2412.19437, 3.2.2 and 3.3; github.com/deepseek-ai/DeepEP.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import fsum
from typing import TYPE_CHECKING

from scaleout.program.graph import NodeRole
from scaleout.workloads.generate.attention import kept_tokens
from scaleout.workloads.generate.autograd_tape import URGENT, AutogradTape
from scaleout.workloads.generate.layers import (
    GATHER_IN,
    SCATTER_OUT,
    Buffer,
    Exchange,
    activated,
    exchange,
    pointwise,
)
from scaleout.workloads.generate.linear import Linear
from scaleout.workloads.generate.units import Rank

if TYPE_CHECKING:
    from scaleout.workloads.families.moe import Moe


def mixture(tape: AutogradTape, x: int, rank: "Rank[Moe]", label: str) -> int:
    """Write the block for one rank and return the node that makes its (partial) output."""
    workload = rank.workload
    tokens_go = workload.dispatch == "deduplicated"
    shared = partial(_shared, rank=rank, label=f"{label}_shared")

    if workload.shared_experts and not workload.overlap_shared:  # their input is the router's, which keeps it
        x = shared(tape, x)
    beside = _Beside(tape, shared) if workload.overlap_shared else None
    x = _route(tape, beside.enter(x) if beside else x, rank, label=label)
    x = _in_fp8(tape, x, rank, forward=True)
    if not tokens_go:
        x = _to_rows(tape, x, rank, label=label)
    x = _shuffle(tape, x, rank, f"{label}_dispatch", returns=False)
    if beside:
        x = beside.run(x)
    x = _received(tape, x, rank, label=label)
    if beside:
        x = beside.leave(x)
    x = _shuffle(tape, x, rank, f"{label}_combine", returns=True)
    if not tokens_go:
        x = _to_tokens(tape, x, rank, label=label)
    x = _in_fp8(tape, x, rank, forward=False)
    if not workload.weighted_activation:
        tape.save_for_backward(workload.routed_rows * workload.hidden)
    return beside.end(x) if beside else x


def _by_mask(tape: AutogradTape, x: int, rank: "Rank[Moe]", what: str) -> int:
    """Choose by a mask of experts, which the host waits for."""
    workload = rank.workload
    return tape.kernel(
        f"moe_{what}_by_mask", x, tokens=workload.dispatched_tokens, experts=workload.experts, topk=workload.top_k
    )


def _to_rows(tape: AutogradTape, x: int, rank: "Rank[Moe]", *, label: str) -> int:
    """Copy each token to the rows of its experts."""
    workload, tokens, hidden = rank.workload, rank.workload.dispatched_tokens, rank.workload.hidden
    of_tokens = partial(pointwise, tape, tokens=tokens, hidden=hidden, topk=workload.top_k, makes=tokens * hidden)
    if workload.plain_routing == "by_mask":
        return of_tokens(_by_mask(tape, x, rank, "rows"), ("moe_select_rows_fwd", "moe_select_rows_bwd"))
    x = of_tokens(x, ("moe_repeat_topk", "moe_sum_topk"))
    return _permute(tape, x, rank, f"{label}_permute", rows=workload.routed_rows)


def _to_tokens(tape: AutogradTape, x: int, rank: "Rank[Moe]", *, label: str) -> int:
    """Scale the rows of each token's experts, and add them up."""
    workload, tokens, hidden = rank.workload, rank.workload.dispatched_tokens, rank.workload.hidden
    rows, routing = workload.routed_rows, workload.plain_routing
    of_tokens = partial(pointwise, tape, tokens=tokens, hidden=hidden, topk=workload.top_k, makes=rows * hidden)
    if routing == "by_mask":
        x = of_tokens(_by_mask(tape, x, rank, "probs"), ("moe_scale_rows_fwd", "moe_scale_rows_bwd"))
        return of_tokens(x, ("moe_add_rows_fwd", "moe_add_rows_bwd"))
    x = _permute(tape, x, rank, f"{label}_unpermute", rows=rows)
    if not routing:
        return of_tokens(x, ("moe_sum_topk", "moe_repeat_topk"))
    x = of_tokens(x, ("moe_weigh_fwd", "moe_weigh_bwd"))
    # the gradient of the sum is the same for all rows of a token: no copies
    return tape.kernel("moe_sum_topk", x, tokens=tokens, hidden=hidden, topk=workload.top_k)


def _received(tape: AutogradTape, x: int, rank: "Rank[Moe]", *, label: str) -> int:
    """Gather what has arrived over the ranks that share experts, run these, and reduce-scatter their sums."""
    workload, arrived = rank.workload, sum(rank.workload.loads[rank.load])
    over_shards = partial(_over_axis, tape, rank=rank, axis=_shards_axis(rank), shards=workload.gathered_shards)
    x = over_shards(x, kinds=GATHER_IN, rows=arrived, name=f"{label}_dispatched")
    spread = workload.expert_parallel > 1 and workload.local_experts > 1
    regroups = spread or workload.dispatch == "deduplicated"  # rows come by the rank that sent them, or as tokens

    def permute(node: int, name: str) -> int:
        return _permute(tape, node, rank, name, rows=arrived * workload.gathered_shards)

    if regroups:
        x = permute(x, f"{label}_by_expert")
    x = (_grouped if workload.grouped_experts else _experts)(tape, x, rank, label=label)
    if regroups:
        x = permute(x, f"{label}_by_rank")
    return over_shards(x, kinds=SCATTER_OUT, rows=arrived, name=f"{label}_dispatched")


class _Beside:
    """Shared experts beside the dispatch: they read what the router does, and what they make is in the sum."""

    def __init__(self, tape: AutogradTape, shared: Callable[[AutogradTape, int], int]) -> None:
        self.tape, self.shared, self.own = tape, shared, tape.branch()
        self.input, self.gradients = 0, list[int]()

    def enter(self, x: int) -> int:
        """Note the input; backward, its two gradients are there."""
        self.input = x
        self.tape.push(lambda dx: self.tape.graph.join((dx, self.gradients.pop())))
        return x

    def run(self, dispatched: int) -> int:
        """Write them behind the dispatch, which they do not wait for."""
        made = self.shared(self.own, self.input)
        self.tape.save_for_backward(self.own.kept_bytes, 1)
        return self.tape.graph.join((dispatched, made))

    def leave(self, y: int) -> int:
        """Backward, write theirs behind the combine's gradient, which they do not wait for."""

        def behind(dy: int) -> int:
            self.gradients.append(self.own.backward(self.gradients.pop()))
            return dy

        self.tape.push(behind)
        return y

    def end(self, y: int) -> int:
        """Note the gradient of the sum."""

        def note(dy: int) -> int:
            self.gradients.append(dy)
            return dy

        self.tape.push(note)
        return y


def _in_fp8(tape: AutogradTape, x: int, rank: "Rank[Moe]", *, forward: bool) -> int:
    """Cast tokens before they are dispatched, or backward gradients before they go to experts."""
    workload = rank.workload
    if workload.dispatch_dtype == "same" or workload.expert_parallel == 1:
        return x
    elements = workload.dispatched_tokens * workload.hidden

    def cast(node: int) -> int:
        return tape.kernel("cast_to_fp8", node, name="dispatch_cast", role=NodeRole.EXCHANGE, elements=elements)

    if forward:
        return cast(x)
    tape.push(cast)
    return x


_GATHERS = ("moe_permute_rows", "moe_permute_rows")
_PLAIN = {
    "permute": ("moe_permute_rows", "moe_permute_rows_bwd"),
    "unpermute": ("moe_scatter_rows", "moe_permute_rows"),
    "expert": ("moe_regroup_rows", "moe_regroup_rows"),
    "rank": ("moe_regroup_rows", "moe_regroup_rows"),
}
"""What an order is for (the end of its name) to the kernels of `plain_routing`, forward and backward."""


def _permute(tape: AutogradTape, x: int, rank: "Rank[Moe]", name: str, *, rows: int) -> int:
    """Copy rows into another order."""
    hidden = rank.workload.hidden
    kernels = _PLAIN[name.rpartition("_")[2]] if rank.workload.plain_routing else _GATHERS
    return pointwise(
        tape, x, kernels, name=name, makes=rows * hidden, role=NodeRole.EXCHANGE, tokens=max(rows, 1), hidden=hidden
    )


def _shuffle(tape: AutogradTape, x: int, rank: "Rank[Moe]", name: str, *, returns: bool) -> int:
    """All-to-alls over the expert axis, to experts or (`returns`) back; backward, of gradients the other way."""
    workload = rank.workload
    if workload.expert_parallel == 1:
        return x
    plain, sent = workload.hidden * workload.item_bytes, workload.dispatched_bytes
    here, gradient = (plain, sent) if returns else (sent, plain)
    if workload.dispatch == "deduplicated":
        calls = [(rank.axes.expert_family(axis, size), count) for axis, size, count in workload.dispatched_copies]
    else:
        rows = max(workload.routed_rows, sum(workload.loads[rank.load]))
        calls = [(rank.axes.number("expert"), rows)]

    def exchanged(node: int, row_bytes: int, suffix: str) -> int:
        return tape.graph.join(
            tape.graph.collective(
                "all_to_all", count * row_bytes, group=group, after=(node,), name=f"{name}_all_to_all{suffix}",
                priority=URGENT, role=NodeRole.EXCHANGE,
            )
            for group, count in calls
        )  # fmt: skip

    makes = max(count for _, count in calls) * gradient / workload.item_bytes
    tape.push(lambda dy: exchanged(dy, gradient, "_gradient"), makes=makes)
    return exchanged(x, here, "")


def _shards_axis(rank: "Rank[Moe]") -> str:
    """Return the axis of the ranks that share experts' matrices."""
    return "tensor" if rank.workload.expert_tensor_parallel is None else "expert_tensor"


def _over_axis(
    tape: AutogradTape, x: int, rank: "Rank[Moe]", axis: str, *, kinds: Exchange, shards: int, rows: int, name: str
) -> int:
    """Gather rows of the ranks of an axis or reduce-scatter their sums, where each has rows of its own."""
    if shards == 1:
        return x
    workload = rank.workload
    size_bytes = rows * shards * workload.hidden * workload.item_bytes
    return exchange(tape, x, kinds, Buffer(size_bytes, rank.axes.number(axis), shards), name=name)


def _shared(tape: AutogradTape, x: int, rank: "Rank[Moe]", *, label: str) -> int:
    """Run the shared experts on the tokens of all tensor-parallel ranks."""
    workload, tokens = rank.workload, rank.workload.dispatched_tokens
    width = workload.shared_experts * workload.expert_width // workload.tensor_parallel
    first = Linear(
        name=f"{label}_1", tokens=workload.local_tokens, inputs=workload.hidden,
        outputs=(width,) * workload.gates, bucket=rank.dense, kept_tokens=0,
    )  # fmt: skip
    over_tensor = partial(_over_axis, tape, rank=rank, axis="tensor", shards=workload.token_shards)
    x = over_tensor(x, kinds=GATHER_IN, rows=tokens, name=label)
    x = _two_gemms(tape, x, workload, first)
    x = over_tensor(x, kinds=SCATTER_OUT, rows=tokens, name=label)
    return _gated(tape, x, rank, label=label) if workload.shared_gate else x


def _gated(tape: AutogradTape, x: int, rank: "Rank[Moe]", *, label: str) -> int:
    """Scale what the shared experts made by a number for each token: a GEMM of one column, and a product."""
    tokens, hidden = rank.workload.dispatched_tokens, rank.workload.hidden
    gate = Linear(
        name=f"{label}_gate", tokens=tokens, inputs=hidden, outputs=1, bucket=rank.dense, kept_tokens=0,
        partial=rank.workload.token_shards > 1,
    )  # fmt: skip
    x = gate.write(tape, x)
    tape.save_for_backward(tokens * hidden)
    return pointwise(
        tape, x, ("mul_scalar", "add"), name="shared_gate", makes=tokens * hidden, elements=tokens * hidden
    )


def _route(tape: AutogradTape, x: int, rank: "Rank[Moe]", *, label: str) -> int:
    """Score the experts of each token and choose; backward, the gradient of the scores and of the router's weight."""
    workload, tokens = rank.workload, rank.workload.dispatched_tokens
    shards = workload.token_shards > 1
    router = Linear(
        name=f"{label}_router", tokens=tokens, inputs=workload.hidden, outputs=workload.experts, bucket=rank.dense,
        kept_tokens=tokens if shards else kept_tokens(rank), partial=shards, bias=workload.router_bias,
    )  # fmt: skip
    x = router.write(tape, x)
    tape.save_for_backward(tokens * workload.experts)
    kernels = ("moe_top_k", "moe_top_k_bwd")
    if workload.plain_routing == "by_mask" and workload.capacity_factor is not None:
        kernels = ("moe_capacity_top_k_fwd", "moe_capacity_top_k_bwd")
    x = pointwise(tape, x, kernels, tokens=tokens, experts=workload.experts, topk=workload.top_k)
    return tape.kernel("moe_sort", x, tokens=tokens * workload.top_k) if workload.plain_routing is True else x


def _first(rank: "Rank[Moe]", name: str, rows: int, groups: int = 0) -> Linear:
    """Return the first GEMM of an expert that gets so many rows, or of groups of them."""
    workload = rank.workload
    width = workload.expert_width // workload.expert_shards
    return Linear(
        name=name, tokens=max(rows * workload.gathered_shards, 1), inputs=workload.hidden,
        outputs=(width,) * workload.gates, bucket=rank.experts, groups=groups, bias=workload.expert_biases,
        accumulates=workload.grouped_experts != "batched",
        arrives_in_fp8="input" if workload.dispatch_dtype != "same" and workload.expert_parallel > 1 else "",
    )  # fmt: skip


def _experts(tape: AutogradTape, x: int, rank: "Rank[Moe]", *, label: str) -> int:
    """Run a rank's experts, each on its share of the rows."""
    workload, loads = rank.workload, rank.workload.loads[rank.load]
    tapes = [tape.branch() for _ in loads]
    tape.push(lambda dy: tape.graph.join([of_expert.backward(dy) for of_expert in reversed(tapes)]))
    firsts = [_first(rank, f"{label}_expert_{index}_1", rows) for index, rows in enumerate(loads)]
    y = tape.graph.join([_two_gemms(each, x, workload, first) for each, first in zip(tapes, firsts, strict=True)])
    tape.save_for_backward(fsum(of_expert.kept_bytes for of_expert in tapes), 1)
    return y


def _grouped(tape: AutogradTape, x: int, rank: "Rank[Moe]", *, label: str) -> int:
    """Run a rank's experts, their GEMMs in one kernel; of unequal groups, as many of their mean."""
    loads = rank.workload.loads[rank.load]
    first = _first(rank, f"{label}_experts_1", -(-sum(loads) // len(loads)), len(loads))
    return _two_gemms(tape, x, rank.workload, first)


def _two_gemms(tape: AutogradTape, x: int, workload: "Moe", first: Linear) -> int:
    """Write a GEMM whose name ends in 1, the activation, and the GEMM back to the hidden width."""
    assert not isinstance(first.outputs, int)
    width = first.outputs[0]
    name = f"{first.name.removesuffix('1')}2"
    arrives = "gradient" if first.arrives_in_fp8 else ""
    kept = 0 if "activation" in workload.recompute_modules else None
    second = replace(first, name=name, inputs=width, outputs=workload.hidden, kept_tokens=kept, arrives_in_fp8=arrives)
    elements = max(first.groups, 1) * first.tokens * width
    return activated(tape, first.write(tape, x), workload.activation, elements=elements, layer=second.write)
