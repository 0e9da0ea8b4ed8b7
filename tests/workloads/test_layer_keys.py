"""Keys of what a layer has: windows, norms, biases, halves side by side; each costs what it says, and no other thing.

Symbols: S keys; W keys of a window; h hidden; D width of a head.
"""

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleout
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, NONE, NodeRole
from scaleout.program.operations import kernel
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import peaks

SMALL = {
    "layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocabulary": 512, "sequence": 256,
    "data_parallel": 1, "batch_per_replica": 2, "topology": "ring-1024",
}  # fmt: skip


def small(**keys):
    return load_workload("llama-3-8b", {"zero": 0, **SMALL, **keys})


def only_graph(workload):
    (graph,) = generate(workload).graphs
    return graph


def collectives(workload):
    """Kinds of collectives of the tensor axis's blocks, by phase: forward, and the rest."""
    graph = only_graph(workload)
    of = [node for node in np.flatnonzero(graph.collective != NONE) if graph.names[node].startswith("layer_")]
    return Counter((COLLECTIVES[graph.collective[node]], graph.names[node].endswith("_gradient")) for node in of)


@given(seq=st.integers(1, 300), window=st.integers(1, 400))
def test_a_window_leaves_the_pairs_that_are_seen(seq, window):
    """Token i sees min(i + 1, W) keys; the count in closed form is short of half a pair a token at the most."""
    sizes = {"batch": 1, "heads": 1, "kv_heads": 1, "seq": seq, "window": window, "head_dim": 1}
    pairs = sum(min(token + 1, window) for token in range(seq))
    flops = kernel("attention_window_fwd", dtype="bf16", **sizes).flops
    assert 4 * (pairs - seq / 2) <= flops <= 4 * pairs
    assert kernel("attention_window_bwd", dtype="bf16", **sizes).flops == 5 * flops // 2


def test_a_window_of_all_keys_is_causal_attention():
    sizes = {"batch": 2, "heads": 8, "kv_heads": 4, "seq": 512, "head_dim": 64}
    for way in ("fwd", "bwd"):
        windowed = kernel(f"attention_window_{way}", dtype="bf16", window=512, **sizes)
        causal = kernel(f"attention_gqa_{way}", dtype="bf16", causal=1, **sizes)
        assert (windowed.flops, windowed.bytes) == (causal.flops, causal.bytes)


@pytest.mark.parametrize("window", [256, 1000])
def test_a_window_that_holds_all_keys_changes_nothing(window):
    plain, windowed = (only_graph(small(**keys)) for keys in ({}, {"window": window}))
    assert plain.kernels == windowed.kernels
    assert plain.names == windowed.names


def test_windows_and_full_attention_take_turns():
    workload = small(window=64, full_attention_every=2)
    assert [workload.layer_kind(layer) for layer in range(4)] == ["dense_windowed", "dense"] * 2
    graph = only_graph(workload)
    ops = [graph.kernels[call].op for call in graph.kernel if call != NONE and "attention" in graph.kernels[call].op]
    assert ops[:4] == ["attention_window_fwd", "attention_gqa_fwd"] * 2
    assert small(window=64, full_attention_every=1).windowed is False


def test_keys_of_a_window_are_all_that_is_cached():
    workload = small(window=64, mode="decode")
    assert workload.cache_bytes("dense_windowed") * 257 == 64 * small(mode="decode").cache_bytes("dense")


@pytest.mark.parametrize(
    ("halves", "forward", "backward"),
    [("one_after_the_other", 2, 2), ("parallel", 1, 2), ("parallel_of_one_norm", 1, 1)],
)
def test_halves_side_by_side_reduce_once(halves, forward, backward):
    """Their partial sums are added before one all-reduce; backward, each norm's input has a gradient of its own."""
    found = collectives(small(tensor_parallel=4, halves=halves))
    assert found == {("all_reduce", False): 4 * forward, ("all_reduce", True): 4 * backward}


def test_halves_side_by_side_need_the_same_gemms():
    flops = {halves: only_graph(small(halves=halves)).flops.sum() for halves in ("one_after_the_other", "parallel")}
    assert len(set(flops.values())) == 1
    one, two = (small(halves=halves) for halves in ("parallel_of_one_norm", "parallel"))
    assert two.num_parameters - one.num_parameters == 4 * 256
    kept = [peaks(workload)[0].bytes_of["activations"] for workload in (one, two)]
    assert kept[1] - kept[0] == 4 * 2 * 512 * 256 * 2  # of each layer: the second norm's input and its output


def test_gradients_of_norms_of_heads_are_sums_over_tensor_ranks():
    """Each rank has its own heads, and all have one scale for queries and one for keys, whatever sequences do."""
    graph = only_graph(small(tensor_parallel=4, query_key_norm=True))
    at = graph.names.index("norm_gradients_all_reduce")
    assert graph.bytes[at] == 4 * 2 * 32 * 2
    assert "norm_gradients_all_reduce" not in only_graph(small(tensor_parallel=4)).names


@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        ({"attention_biases": "qkv"}, 4 * (256 + 2 * 128)),
        ({"attention_biases": "all"}, 4 * (256 + 2 * 128 + 256)),
        ({"biases": True}, 4 * (256 + 2 * 128 + 256 + 2 * 512 + 256)),
        ({"biases": True, "attention_biases": "none"}, 4 * (2 * 512 + 256)),
        ({"head_bias": True}, 512),
        ({"positions": 1024}, 1024 * 256),
        ({"attention_sinks": True}, 4 * 8),
        ({"query_key_norm": True}, 4 * 2 * 32),
        ({"post_norms": True}, 4 * 2 * 256),
        ({"activation": "geglu"}, 0),
    ],
    ids=str,
)
def test_what_a_key_adds(keys, parameters):
    """To the count, to what a rank holds, and to the gradients that two replicas reduce."""
    plain, with_it = small(data_parallel=2), small(data_parallel=2, **keys)
    assert with_it.num_parameters - plain.num_parameters == parameters
    held = [peaks(workload)[0].bytes_of["parameters"] for workload in (plain, with_it)]
    assert held[1] - held[0] == 2 * parameters
    reduced = [int(graph.bytes[graph.collective != NONE].sum()) for graph in map(only_graph, (plain, with_it))]
    assert reduced[1] - reduced[0] == 2 * parameters


def test_addends_multiply_no_token():
    """Biases, sinks and positions are no FLOPs of MFU; norms' scales are, as those of other norms."""
    plain = small()
    added = {"biases": True, "head_bias": True, "positions": 512, "attention_sinks": True}
    assert small(**added).flops_per_token == plain.flops_per_token
    assert small(query_key_norm=True).active_parameters - plain.active_parameters == 4 * 2 * 32


MOE = {"expert_parallel": 1, "experts": 4, "top_k": 2, "expert_ffn": 128, "shared_experts": 2}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("keys", "parameters"),
    [
        ({"expert_biases": True}, 4 * 4 * (2 * 128 + 256)),
        ({"router_bias": True}, 4 * 4),
        ({"shared_gate": True}, 4 * 256),
    ],
    ids=str,
)
def test_what_a_key_of_experts_adds(keys, parameters, grouped):
    plain, with_it = (
        load_workload("mixtral-8x7b", {**SMALL, **MOE, "grouped_experts": grouped, **more}) for more in ({}, keys)
    )
    assert with_it.num_parameters - plain.num_parameters == parameters
    held = [peaks(workload)[0].bytes_of["parameters"] for workload in (plain, with_it)]
    assert held[1] - held[0] == 2 * parameters


def test_queries_of_latent_attention_may_be_projected_at_once():
    latent = {"key_value_rank": 64, "plain_dim": 32, "rotary_dim": 16, "value_dim": 32}
    ranked, whole = (small(kv_heads=None, latent=latent | {"query_rank": rank}) for rank in (96, None))
    assert ranked.num_parameters - whole.num_parameters == 4 * (256 * 96 + 96 * 8 * 48 + 96 - 256 * 8 * 48)
    for workload in (ranked, whole):
        assert peaks(workload)[0].bytes_of["parameters"] == 2 * workload.num_parameters


LATENT = {"query_rank": 96, "key_value_rank": 64, "plain_dim": 32, "rotary_dim": 16, "value_dim": 32}


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("llama-3-8b", {"full_attention_every": 2}, "full_attention_every is of layers between those with a window"),
        ("llama-3-8b", {"window": 64, "attention": "triton"}, "attention triton is written for all keys"),
        ("llama-3-8b", {"window": 64, "context_parallel": 2}, "context_parallel 2 balances attention to all keys"),
        ("llama-3-8b", {"positions": 100}, "sequence 256 has more tokens than there are positions (100); give fewer"),
        ("llama-3-8b", {"latent": LATENT, "query_key_norm": True}, "query_key_norm is of plain heads, and latent"),
        ("llama-3-8b", {"latent": LATENT, "window": 64}, "window is of plain heads, and latent attention has none"),
        ("llama-3-8b", {"post_norms": True, "halves": "parallel"}, "post_norms normalises each half of a layer"),
        ("mixtral-8x7b", {**MOE, "halves": "parallel"}, "halves parallel is written for dense layers; leave it out"),
        ("mixtral-8x7b", {**MOE, "shared_experts": 0, "shared_gate": True}, "shared_gate scales what shared experts"),
        ("mamba-2-hybrid-8b", {"layers": 56, "window": 64}, "window 64 is written for layers of attention and a"),
        ("dit-xl-2", {"positions": 5}, "positions 5 is of decoders; leave it out"),
    ],
)  # fmt: skip
def test_refusals(name, keys, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_workload(name, ({} if name == "dit-xl-2" else SMALL) | {"expert_parallel": 1} | keys)


def test_flash_attention_2_and_a_fused_rotation_are_kernels_of_their_own():
    """Grouped heads stay grouped, and nothing else of a step changes."""
    keys = {"layers": 1, "data_parallel": 1, "batch_per_replica": 1}
    usual, chosen = (
        generate(load_workload("llama-3-8b", {**keys, **more})).graphs[0].kernels
        for more in ({}, {"attention": "flash2", "rotary": "fused"})
    )
    same = {
        "attention_gqa_fwd": "attention_fa2_fwd", "attention_gqa_bwd": "attention_fa2_bwd",
        "rope_fwd_unfused": "rope_fwd", "rope_bwd": "rope_fwd",
    }  # fmt: skip
    assert {(same.get(call.op, call.op), call.shape) for call in usual} == {(call.op, call.shape) for call in chosen}
    with pytest.raises(ConfigError, match="attention flash2 is written for all keys"):
        load_workload("llama-3-8b", {"window": 64, "attention": "flash2"})


def kept(**keys):
    """Bytes that one micro-batch of a model without embedding and head keeps for backward."""
    found = peaks(small(layers=1, vocabulary=0, recompute="none", **keys))[0].bytes_of
    return found["activations"]


def test_outputs_of_modules_that_are_recomputed_are_not_kept():
    """Norm: the inputs of QKV, of the feed-forward and of no head; activation: the input of the second GEMM."""
    tokens, hidden, ffn = 2 * 256, 256, 512
    assert kept() - kept(recompute_modules=["norm"]) == 2 * (2 * tokens * hidden)
    assert kept() - kept(recompute_modules=["activation"]) == 2 * tokens * ffn
    assert kept() - kept(recompute_modules=["norm", "activation"]) == 2 * tokens * (2 * hidden + ffn)


@pytest.mark.parametrize(("linear_dtype", "item_bytes"), [("fp8_delayed", 1.0), ("fp8_blockwise", 1 + 4 / 128)])
def test_inputs_of_gemms_and_activations_are_kept_in_fp8(linear_dtype, item_bytes):
    """QKV, output projection, both GEMMs of the feed-forward, and both halves of SwiGLU; not what attention reads."""
    tokens, hidden, ffn = 2 * 256, 256, 512
    elements = tokens * (hidden + hidden + hidden + ffn + 2 * ffn)
    saved = kept(linear_dtype=linear_dtype) - kept(linear_dtype=linear_dtype, kept_dtype="fp8_e4m3")
    assert saved == pytest.approx((2 - item_bytes) * elements)


@pytest.mark.parametrize("halves", ["one_after_the_other", "parallel", "parallel_of_one_norm"])
@pytest.mark.parametrize("modules", [["norm"], ["activation"], ["norm", "activation"]])
def test_recomputed_modules_run_once_more_before_what_reads_them(halves, modules):
    plain, again = (only_graph(small(halves=halves, recompute_modules=found)) for found in ((), modules))
    names = [name for name in again.names if name.endswith("_again")]
    norms = 4 * (1 if halves == "parallel_of_one_norm" else 2) + 1  # of the layers' blocks, and the last
    assert len(names) == norms * ("norm" in modules) + 4 * ("activation" in modules)
    assert len(again) == len(plain) + len(names)
    others = Counter(name for name in again.names if not name.endswith("_again"))
    assert others == Counter(plain.names)
    if "activation" in modules:  # the second GEMM's gradient of weights reads it
        order = list(again.names)
        last = max(at for at, name in enumerate(order) if name.startswith("swiglu") and name.endswith("_again"))
        assert last < max(at for at, name in enumerate(order) if "_2_weight_gradient" in name)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"kept_dtype": "fp8_e4m3"}, "kept_dtype fp8_e4m3 is what fp8 GEMMs read; give linear_dtype"),
        ({"recompute": "full", "recompute_modules": ["norm"]}, "recompute full keeps no outputs of modules"),
        (
            {"recompute_modules": ["norm"], "tensor_parallel": 2, "sequence_parallel": True, "keep_gathered": True},
            "set keep_gathered to false",
        ),
    ],
)
def test_what_is_kept_must_be_of_one_mind(keys, message):
    with pytest.raises(ConfigError, match=message):
        small(**keys)


@pytest.mark.parametrize("pipeline", [1, 2])
def test_some_layers_of_a_stage_are_recomputed(pipeline):
    """With none of a stage's as with recompute none, with all as full; between, as much more work a layer each."""
    keys = {"pipeline_parallel": pipeline, "microbatch": 1, "batch_per_replica": 4}
    stage = 4 // pipeline

    def found(**how):
        workload = small(**keys, **how)
        return generate(workload).total_flops, [peak.bytes_of for peak in peaks(workload)]

    none, full = found(recompute="none"), found(recompute="full")
    some = [found(recompute="full", recompute_layers=number) for number in range(stage + 1)]
    assert (some[0], some[-1]) == (none, full)
    assert found(recompute="full", recompute_layers=stage + 3) == full
    assert found(recompute="none", recompute_layers=1) == none
    work = [flops for flops, _ in some]
    assert np.diff(work) == pytest.approx((full[0] - none[0]) / stage, rel=1e-12)
    for rank in range(pipeline):
        held = [peak[rank]["activations"] for _, peak in some]
        assert held == sorted(held, reverse=True)
        assert held[0] > held[-1]


def test_the_first_layers_of_a_stage_are_the_recomputed_ones():
    graph = only_graph(small(recompute="full", recompute_layers=1))
    again = {graph.layer[node] for node in np.flatnonzero(graph.role == NodeRole.RECOMPUTE)}
    assert again == {0}


def test_layers_are_not_recomputed_in_part_where_lists_are_gathered():
    with pytest.raises(ConfigError, match="recompute_layers is not written for gathers of lists of tensors"):
        small(recompute="full", recompute_layers=2, shard_lists=True, zero=3)


def test_keys_of_gathers_have_no_effect_where_parameters_are_whole():
    """They are told in a note, but where they are the file's own of a job that shards."""
    given = {"prefetch": 5, "reshard_after_forward": False}
    assert load_workload("llama-3-8b", given).without_effect == ("reshard_after_forward", "prefetch")
    assert load_workload("llama-3-8b", {**given, "zero": 3}).without_effect == ()
    assert load_workload("llama-3-8b").without_effect == ()
    answer = scaleout.run("llama-3-8b", changes={**given, "layers": 1}, schedules=["baseline"], topology="dgx-h200-1")
    assert any("prefetch: no effect, as keys of zero 3; this job has zero 1" in note for note in answer.notes)
