"""Bytes and rows of mixtures of experts against naive counts, over random ways to cut, route and dispatch them.

The count goes rank by rank: what each sends to each expert is looked up at the rank that holds that expert, by
arithmetic of its own. What a router gives each expert is the router's, whose laws are tested by themselves.
"""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scaleout.program.graph import COLLECTIVES
from scaleout.workloads.families import FAMILIES
from scaleout.workloads.families.routing import distinct, rows_of_experts
from scaleout.workloads.generate import generate

HIDDEN, TOKENS, LAYERS, FFN = 256, 64, 2, 64
MODEL = {
    "kind": "moe", "description": "a test", "source": "none", "topology": "ring-128", "device": "h200",
    "hidden": HIDDEN, "layers": LAYERS, "heads": 4, "ffn": FFN, "sequence": TOKENS, "batch_per_replica": 1,
}  # fmt: skip
FP8_ROW, PLAIN_ROW = HIDDEN + 4 * HIDDEN // 128, 2 * HIDDEN


@st.composite
def cuts(draw):
    """Degrees, routing and dispatch, as keys of a workload that may be refused."""
    tensor, context, etp = (draw(st.sampled_from((1, 2, 4))) for _ in range(3))
    keys = {
        "tensor_parallel": tensor, "context_parallel": min(context, 2),
        "sequence_parallel": draw(st.booleans()), "expert_parallel": draw(st.sampled_from((1, 2, 4, 8))),
        "data_parallel": draw(st.sampled_from((1, 2, 4, 8))), "experts": draw(st.sampled_from((8, 16))),
        "top_k": draw(st.integers(1, 4)), "mode": draw(st.sampled_from(("training", "prefill"))),
        "dispatch_dtype": draw(st.sampled_from(("same", "fp8_e4m3"))), "shared_experts": draw(st.integers(0, 1)),
        "grouped_experts": draw(st.sampled_from((False, True, "batched"))),
        "plain_routing": draw(st.sampled_from((False, True, "by_mask"))),
    }  # fmt: skip
    if draw(st.booleans()):
        keys["expert_tensor_parallel"] = etp
    if draw(st.booleans()):
        keys |= {
            "capacity_factor": draw(st.sampled_from((0.5, 1.0, 1.25, 2.0))),
            "pad_to_capacity": draw(st.booleans()),
        }
    if draw(st.booleans()):
        keys |= {"imbalance": draw(st.sampled_from((0.04, 0.72, 3.0))), "imbalance_seed": draw(st.integers(0, 9))}
    if keys["shared_experts"] and draw(st.booleans()):
        keys["overlap_shared"] = True
    return keys


def workload_of(keys):
    """Validate keys, or leave the example out if they are refused."""
    try:
        return FAMILIES["moe"].model_validate(MODEL | keys)
    except ValueError:
        assume(False)


def coordinates(rank, keys):
    """Return a rank's expert-parallel number, its number among those that share an expert, and its expert group's."""
    t, c, e = keys["tensor_parallel"], keys["context_parallel"], keys["expert_parallel"]
    etp = keys.get("expert_tensor_parallel")
    if etp is None:  # tensor, context, then experts within data
        data = rank // (t * c)
        return data % e, rank % t, (rank % (t * c), data // e)
    return rank // etp % e, rank % etp, (rank % etp, rank // (etp * e))


def naive(workload, keys):
    """Return (rank) rows sent, rows received and rows after the gather, by following every row to its expert."""
    ranks, held = range(workload.num_ranks), keys["experts"] // keys["expert_parallel"]
    at = {coordinates(rank, keys)[2] + (coordinates(rank, keys)[0],): rank for rank in ranks}
    rows = workload.rows_to_experts
    sent, received = Counter(), Counter()
    for rank, (expert, count) in itertools.product(ranks, enumerate(rows)):
        holder = at[(*coordinates(rank, keys)[2], expert // held)]
        sent[rank] += count
        received[holder] += count
    sharing = {}
    for rank in ranks:
        number, index, group = coordinates(rank, keys)
        rest = group[1] if "expert_tensor_parallel" in keys else (group[0] // keys["tensor_parallel"], group[1])
        sharing.setdefault((number, rest), []).append((index, rank))
    shards = workload.gathered_shards
    gathered = {}
    for members in sharing.values():
        assert len({index for index, _ in members}) == len(members)
        for _, rank in members:
            gathered[rank] = sum(received[other] for _, other in members) if shards > 1 else received[rank]
    return sent, received, gathered


def total(graph, kind, words):
    named = np.array([all(word in str(name) for word in words) for name in graph.names])
    return int(graph.bytes[(graph.collective == COLLECTIVES.index(kind)) & named].sum())


@settings(max_examples=300, deadline=None)
@given(keys=cuts())
def test_a_rank_exchanges_what_a_naive_count_says(keys):
    workload = workload_of(keys)
    if not workload.imbalance:
        assume(workload.dispatched_tokens * workload.top_k % workload.experts == 0)
    program = generate(workload)
    sent, received, gathered = naive(workload, keys)
    trains = keys["mode"] == "training"
    there = FP8_ROW if keys["dispatch_dtype"] != "same" else PLAIN_ROW
    for rank in range(workload.num_ranks):
        graph = program.graphs[program.role_of_rank[rank]]
        most = max(sent[rank], received[rank]) * (keys["expert_parallel"] > 1) * LAYERS
        assert total(graph, "all_to_all", ("dispatch_all_to_all",)) == most * (there + PLAIN_ROW * trains)
        assert total(graph, "all_to_all", ("combine_all_to_all",)) == most * (PLAIN_ROW + there * trains)
        over_shards = gathered[rank] * (workload.gathered_shards > 1) * LAYERS * PLAIN_ROW * (1 + trains)
        for kind in ("all_gather", "reduce_scatter"):
            assert total(graph, kind, ("_dispatched_",)) == over_shards
        names = np.array([str(name) for name in graph.names])
        of_experts = np.array(["_feed_forward_expert" in name and "bias" not in name for name in names])
        flops = 2 * 2 * gathered[rank] * HIDDEN * (FFN // workload.expert_shards) * LAYERS * (1 + 2 * trains)
        slack = flops * 0.02 + 6 * 2 * workload.experts * HIDDEN * FFN * LAYERS * workload.gathered_shards
        even = not workload.imbalance
        assert graph.flops[of_experts].sum() == pytest.approx(flops, abs=0 if even else slack)


@settings(max_examples=100, deadline=None)
@given(keys=cuts())
def test_experts_gradients_are_summed_over_the_ranks_that_hold_the_same_ones(keys):
    workload = workload_of(keys)
    mesh = workload.mesh
    for axis, distinguishes in (("expert", False), ("expert_replica", True)):
        seen = []
        for group in mesh.groups(axis).members:
            places = [coordinates(rank, keys) for rank in group]
            assert len({place[0] for place in places}) == (1 if distinguishes else len(group))
            assert len({place[1] for place in places}) == 1
            seen += group
        assert sorted(seen) == list(range(workload.num_ranks))
    shares = mesh.groups("expert_tensor").members
    assert all(len({coordinates(rank, keys)[1] for rank in group}) == workload.expert_shards for group in shares)
    assert all(len({coordinates(rank, keys)[0] for rank in group}) == 1 for group in shares)


@given(rows=st.integers(0, 5000), experts=st.integers(1, 64), violation=st.floats(0, 8), seed=st.integers(0, 99))
def test_rows_add_up_and_the_busiest_has_what_is_asked_for(rows, experts, violation, seed):
    found = rows_of_experts(rows, experts, violation, seed)
    assert sum(found) == rows
    assert min(found) >= 0
    assert max(found) == pytest.approx(min(1 + violation, experts) * rows / experts, abs=1)
    assert found == rows_of_experts(rows, experts, violation, seed)


@pytest.mark.parametrize(
    ("places", "experts", "chosen"), [(2, 4, 2), (4, 8, 3), (4, 8, 8), (5, 10, 2), (8, 8, 3), (1, 6, 2)]
)
def test_distinct_places_are_those_of_every_choice(places, experts, chosen):
    choices = [*itertools.combinations(range(experts), chosen)]
    held = experts // places
    mean = Fraction(sum(len({expert // held for expert in choice}) for choice in choices), len(choices))
    assert distinct(places, experts, chosen) == pytest.approx(float(mean), rel=1e-12)


@pytest.mark.parametrize("groups_per_token", [1, 2, 4])
@pytest.mark.parametrize("expert_parallel", [4, 8])
def test_deduplicated_tokens_go_once_to_each_group_and_rank(groups_per_token, expert_parallel):
    """Every choice of groups and of experts within them, one by one."""
    experts, groups, top_k = 8, 4, 2
    keys = {
        "experts": experts, "top_k": top_k, "expert_parallel": expert_parallel, "data_parallel": expert_parallel,
        "expert_groups": groups, "groups_per_token": groups_per_token, "dispatch": "deduplicated",
        "dispatch_dtype": "fp8_e4m3", "context_parallel": 1, "tensor_parallel": 1,
    }  # fmt: skip
    to_groups, to_ranks, choices = 0, 0, 0
    for chosen in itertools.combinations(range(groups), groups_per_token):
        of = [expert for expert in range(experts) if expert // (experts // groups) in chosen]
        for some in itertools.combinations(of, top_k):
            choices += 1
            to_groups += len({expert // (experts // groups) for expert in some})
            to_ranks += len({expert // (experts // expert_parallel) for expert in some})
    graph = generate(FAMILIES["moe"].model_validate(MODEL | keys)).graphs[0]
    copies = [round(TOKENS * to_groups / choices)]
    if expert_parallel > groups:
        copies.append(round(TOKENS * to_ranks / choices))
    assert total(graph, "all_to_all", ("",)) == 2 * LAYERS * sum(copies) * (FP8_ROW + PLAIN_ROW)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"imbalance": 9.0}, "imbalance 9 is more than 7, where one of 8 experts gets all rows; give less"),
        ({"expert_groups": 3}, "8 experts in expert_groups 3"),
        ({"expert_groups": 4, "groups_per_token": 5}, "groups_per_token 5"),
        ({"expert_groups": 4, "groups_per_token": 1, "top_k": 3}, "top_k 3 is more than the 2 experts"),
        ({"pad_to_capacity": False}, "pad_to_capacity is of a capacity_factor, and there is none"),
        ({"overlap_shared": True}, "overlap_shared hides time behind what shared experts make, and there are none"),
        ({"dispatch": "deduplicated", "imbalance": 0.5}, "leave imbalance out"),
        ({"dispatch": "deduplicated", "plain_routing": True}, "plain_routing sorts rows"),
        ({"expert_tensor_parallel": 3}, "expert_tensor_parallel 3 x expert_parallel 1 does not divide the 8 ranks"),
        ({"expert_tensor_parallel": 1, "tensor_parallel": 2}, "set sequence_parallel to true"),
        ({"expert_tensor_parallel": 2, "dispatch": "deduplicated"}, "set expert_tensor_parallel to 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(keys, message):
    model = MODEL | {"experts": 8, "top_k": 2, "data_parallel": 8 // keys.get("tensor_parallel", 1)} | keys
    with pytest.raises(ValueError, match=message):
        FAMILIES["moe"].model_validate(model)
