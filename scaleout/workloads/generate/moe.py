"""The mixture-of-experts feed-forward block: route, dispatch, compute by expert, combine.

Each token goes to `top_k` experts of which a rank holds some; routing is balanced, so every expert gets equally
many rows, or is padded up to its capacity. An expert's matrices may be cut over the tensor axis as a dense block's
are; products of a rank's experts are one kernel each, or one for all. Shared experts, which every token meets, are one
wider expert of the rank's own tokens.

Source: GShard, arXiv:2006.16668; one GEMM an expert, as in Mixtral's reference implementation; DeepSeekMoE,
arXiv:2401.06066 (shared experts).
"""

from dataclasses import dataclass
from functools import partial

from scaleout.workloads.config import Moe
from scaleout.workloads.generate.autograd_tape import AutogradTape, Bucket
from scaleout.workloads.generate.layers import SHUFFLE, activation, exchange, pointwise
from scaleout.workloads.generate.linear import grouped_linear, linear


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
        pointwise, tape, forward="moe_permute_rows", backward="moe_permute_rows", makes=rows * hidden, tokens=rows,
        hidden=hidden,
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
    y = tape.graph.join(
        [
            _expert(of_expert, x, workload, experts.weights, label=f"{label}_expert_{index}")
            for index, of_expert in enumerate(tapes)
        ]
    )
    tape.save_for_backward(sum(of_expert.kept_bytes for of_expert in tapes), 1)
    return y


def _grouped(tape: AutogradTape, x: int, workload: Moe, experts: Experts, *, label: str) -> int:
    """Run a rank's experts, their products in one kernel."""
    width = workload.expert_width // workload.tensor_parallel
    groups, rows = workload.local_experts, workload.tokens_per_expert
    of = partial(grouped_linear, tape, groups=groups, tokens=rows, bucket=experts.weights)
    x = of(x, inputs=workload.hidden, outputs=workload.gates * width, name=f"{label}_experts_1")
    x = activation(tape, x, workload.activation, elements=groups * rows * width)
    return of(x, inputs=width, outputs=workload.hidden, name=f"{label}_experts_2")


def _expert(tape: AutogradTape, x: int, workload: Moe, weights: Bucket, *, label: str) -> int:
    width = workload.expert_width // workload.tensor_parallel
    return _two_products(tape, x, workload, weights, rows=workload.tokens_per_expert, width=width, label=label)


def _shared(tape: AutogradTape, x: int, workload: Moe, experts: Experts, *, label: str) -> int:
    """Run the experts that every token meets; their output is added where the others' is."""
    width = workload.shared_experts * workload.expert_width // workload.tensor_parallel
    rows = workload.local_tokens
    label = f"{label}_shared"  # their input is the router's, which keeps it
    return _two_products(tape, x, workload, experts.router, rows=rows, width=width, label=label, kept_tokens=0)


def _two_products(
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
