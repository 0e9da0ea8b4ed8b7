"""What experts receive and what it costs, token by token, for every way to cut a mixture of experts.

The count below routes each copy of each token by hand: tensor-parallel ranks own all tokens of their replica, or with
sequence parallelism their slice of them, and send copies to the ranks of the experts that have their own tensor index.
Experts are cut over the tensor axis, so every tensor-parallel rank must end with all rows of its experts, once.
"""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from scaleout.program.graph import COLLECTIVES
from scaleout.workloads.families import FAMILIES
from scaleout.workloads.generate import generate

ITEM_BYTES, HIDDEN, EXPERTS, TOP_K, TOKENS, LAYERS = 2, 16, 8, 2, 32, 2
MODEL = {
    "kind": "moe", "description": "a test", "source": "none", "topology": "ring-128", "device": "h200",
    "hidden": HIDDEN, "layers": LAYERS, "heads": 4, "ffn": 32, "experts": EXPERTS, "top_k": TOP_K, "sequence": TOKENS,
    "batch_per_replica": 1,
}  # fmt: skip
CUTS = [
    {"tensor_parallel": t, "sequence_parallel": s, "expert_parallel": e, "data_parallel": e * replicas}
    for t, s, e, replicas in product((1, 2, 4), (False, True), (1, 2, 4, 8), (1, 2))
]
NAMES = ["-".join(f"{key[0]}{int(value)}" for key, value in cut.items()) for cut in CUTS]


def rows_by_hand(tensor, sequence_parallel, expert_parallel):
    """Rows that a rank sends to experts and gathers over the tensor axis, by routing every copy of every token."""
    slices = tensor if sequence_parallel and expert_parallel > 1 else 1
    received = {rank: [] for rank in product(range(expert_parallel), range(tensor))}
    sent = Counter()
    for replica, index in received:
        own = range(TOKENS) if slices == 1 else range(index * TOKENS // slices, (index + 1) * TOKENS // slices)
        for number, (token, copy) in enumerate(product(own, range(TOP_K))):
            expert = number % EXPERTS  # balanced
            received[expert // (EXPERTS // expert_parallel), index].append((replica, token, copy))
            sent[replica, index] += 1
    gathered = 0
    for holder in range(expert_parallel):
        held = [row for index in range(tensor if slices > 1 else 1) for row in received[holder, index]]
        assert len(held) == len(set(held)), "an expert sees a row twice"
        assert len(held) == TOKENS * TOP_K, "routing is balanced, so each rank's experts see as many rows as it makes"
        gathered = len(held) if slices > 1 else 0
    assert len(set(sent.values())) == 1
    return sent[0, 0], gathered


def bytes_of(graph, kind, name):
    chosen = (graph.collective == COLLECTIVES.index(kind)) & np.array([name in str(each) for each in graph.names])
    return graph.bytes[chosen].sum()


@pytest.mark.parametrize("cut", CUTS, ids=NAMES)
@pytest.mark.parametrize("mode", ["training", "prefill"])
def test_a_rank_exchanges_the_rows_of_its_own_tokens(cut, mode):
    graph = generate(FAMILIES["moe"].model_validate(MODEL | cut | {"mode": mode})).graphs[0]
    sent, gathered = rows_by_hand(cut["tensor_parallel"], cut["sequence_parallel"], cut["expert_parallel"])
    passes, row_bytes = (2 if mode == "training" else 1), HIDDEN * ITEM_BYTES
    exchanged = 2 * sent * row_bytes if cut["expert_parallel"] > 1 else 0
    assert bytes_of(graph, "all_to_all", "") == LAYERS * passes * exchanged
    for kind in ("all_gather", "reduce_scatter"):  # forward one of each, and the other's gradient
        assert bytes_of(graph, kind, "dispatched") == LAYERS * passes * gathered * row_bytes
    network = sum(bytes_of(graph, kind, "feed_forward_all") for kind in COLLECTIVES)
    network += bytes_of(graph, "reduce_scatter", "feed_forward_reduce")
    whole = TOKENS * row_bytes * (cut["tensor_parallel"] > 1)
    each = 2 * passes if cut["sequence_parallel"] else passes  # a gather and a scatter, or one all-reduce
    assert network == (0 if gathered else LAYERS * each * whole)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("cut", CUTS, ids=NAMES)
def test_experts_multiply_every_row_once(cut, grouped):
    keys = {"mode": "prefill", "grouped_experts": grouped, "shared_experts": 1, "dense_layers": 1}
    program = generate(FAMILIES["moe"].model_validate(MODEL | cut | keys))
    graph, tensor = program.graphs[0], cut["tensor_parallel"]
    names = np.array([str(each) for each in graph.names])
    width = MODEL["ffn"] // tensor
    for experts, rows in (("layer_1_feed_forward_expert", TOKENS * TOP_K), ("layer_1_feed_forward_shared", TOKENS)):
        chosen = np.array([name.startswith(experts) for name in names])
        assert graph.flops[chosen].sum() == 2 * 2 * rows * HIDDEN * width
    router = graph.flops[[name.startswith("layer_1_feed_forward_router") for name in names]].sum()
    slices = tensor if cut["sequence_parallel"] and cut["expert_parallel"] > 1 else 1
    assert router == 2 * TOKENS // slices * HIDDEN * EXPERTS


@pytest.mark.parametrize("capacity", [None, 1.0])
def test_rows_by_mask_are_chosen_scaled_and_added_up(capacity):
    """Once a layer forward and once backward, as Megatron-Core 0.10 does; what is exchanged stays as it is."""
    keys = {"data_parallel": 2, "expert_parallel": 2, "capacity_factor": capacity}

    def counts(routing):
        (graph,) = generate(FAMILIES["moe"].model_validate(MODEL | keys | {"plain_routing": routing})).graphs
        return Counter(graph.operation(node) for node in range(len(graph)))

    found, had = counts("by_mask"), counts(False)
    top_k = "moe_capacity_top_k" if capacity else "moe_top_k"
    scored = {top_k + ("_fwd" if capacity else ""): LAYERS, f"{top_k}_bwd": LAYERS}
    moved = {f"moe_{what}_rows_{way}": LAYERS for what in ("select", "scale", "add") for way in ("fwd", "bwd")}
    expected = {**scored, **moved, "moe_rows_by_mask": LAYERS, "moe_probs_by_mask": LAYERS}
    assert {op: found[op] for op in expected} == expected
    assert {"moe_repeat_topk", "moe_sum_topk"}.isdisjoint(+found)
    assert all(found[op] == had[op] for op in ("gemm", "all_to_all"))


@pytest.mark.parametrize("cut", CUTS, ids=NAMES)
def test_a_rank_of_several_experts_copies_what_arrives_into_their_order(cut):
    """Rows come by sender: both ways they are copied, once more than where there is one sender or one expert."""
    graph = generate(FAMILIES["moe"].model_validate(MODEL | cut | {"mode": "prefill"})).graphs[0]
    own, gathered = rows_by_hand(cut["tensor_parallel"], cut["sequence_parallel"], cut["expert_parallel"])
    tokens = [
        graph.kernels[number].sizes["tokens"]
        for number in graph.kernel
        if number >= 0 and graph.kernels[number].op == "moe_permute_rows"
    ]
    regroups = 1 < cut["expert_parallel"] < EXPERTS
    assert sorted(tokens) == sorted(2 * LAYERS * ([own, gathered or own] if regroups else [own]))
