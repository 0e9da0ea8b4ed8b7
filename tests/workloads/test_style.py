"""What a framework makes of layers: biases, fp8, fused kernels, losses, flat gradients, recompute that stops early."""

import pytest

from scaleout.workloads.families import Transformer
from scaleout.workloads.generate import generate
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.step import stages_of
from scaleout.workloads.memory import peak

TOKENS, HIDDEN, LAYERS, VOCABULARY = 2 * 64, 256, 2, 1024


def workload(**changes):
    values = {
        "kind": "transformer", "description": "a toy", "source": "by hand", "topology": "dgx-h200-1", "device": "h200",
        "hidden": HIDDEN, "layers": LAYERS, "heads": 4, "ffn": 4 * HIDDEN, "vocabulary": VOCABULARY, "sequence": 64,
        "batch_per_replica": 2, "data_parallel": 4,
    }  # fmt: skip
    return Transformer(**{**values, **changes})


def kernels(**changes):
    """Names of operations of the step of a rank to how often they run."""
    (graph,) = generate(workload(**changes)).graphs
    found = {}
    for node in range(len(graph)):
        found[graph.operation(node)] = found.get(graph.operation(node), 0) + 1
    return found


def flops(**changes):
    (graph,) = generate(workload(**changes)).graphs
    return graph.total_flops


@pytest.mark.parametrize(
    ("hidden", "layers", "heads", "sequence", "published"),
    [(2048, 24, 16, 2048, 1315950592), (8192, 80, 64, 2048, 64862437376), (768, 12, 12, 65536, 174070272)],
)
def test_parameters_of_mpt_with_biases_are_those_that_llm_foundry_publishes(hidden, layers, heads, sequence, published):
    """Learnt positions, one row for each place of the sequence, have no kernel of their own here."""
    mpt = workload(hidden=hidden, layers=layers, heads=heads, ffn=4 * hidden, sequence=sequence, vocabulary=50368,
                   tied_embedding=True, biases=True)  # fmt: skip
    ((stage,),) = stages_of(mpt, Axes(mpt))
    assert sum(stage.parameters.values()) + sequence * hidden == published


def test_a_bias_costs_a_sum_over_tokens_in_backward_alone():
    plain, biased = kernels(), kernels(biases=True)
    assert biased.pop("sum_all") == 4 * LAYERS
    assert plain == biased


def test_recompute_that_stops_early_leaves_out_the_second_product_of_each_layer():
    product = 2 * TOKENS * HIDDEN * 4 * HIDDEN
    assert flops(recompute="full") - flops(recompute="full", stop_recompute_early=True) == LAYERS * product
    adds = [kernels(recompute="full", stop_recompute_early=early)["add"] for early in (False, True)]
    assert adds == [6 * LAYERS, 5 * LAYERS]


@pytest.mark.parametrize("linear_dtype", ["fp8_delayed", "fp8_tensorwise", "fp8_rowwise"])
def test_products_of_layers_are_in_fp8_and_those_of_the_head_are_not(linear_dtype):
    found = kernels(linear_dtype=linear_dtype)
    op = "gemm_fp8_rowwise" if linear_dtype == "fp8_rowwise" else "gemm_fp8"
    assert (found[op], found["gemm"]) == (3 * 4 * LAYERS, 3)
    casts = sum(count for op, count in found.items() if op.startswith("cast_to_fp8"))
    assert casts == {"fp8_delayed": 1, "fp8_tensorwise": 2, "fp8_rowwise": 2}[linear_dtype] * 3 * 4 * LAYERS
    assert flops(linear_dtype=linear_dtype) == flops()


def test_compiled_layers_move_fewer_bytes_for_the_same_flops():
    given = {"activation": "swiglu", "norm": "rms_norm", "rotary": True}
    plain, fused = (generate(workload(**given, compiled=compiled)).graphs[0] for compiled in (False, True))
    assert plain.total_flops == fused.total_flops
    assert fused.bytes.sum() < plain.bytes.sum()
    assert {"rope_fwd", "swiglu_fwd", "add_fused_fwd", "add_fused_bwd"} <= set(kernels(**given, compiled=True))


def test_a_logged_loss_is_worked_out_again_in_fp32():
    plain, logged = kernels(loss="fused"), kernels(loss="fused", logged_losses=2)
    assert logged["softmax_fwd"] == logged["cast_to_fp32"] == 2
    assert plain["cross_entropy_fused_fwd"] == plain["cross_entropy_fused_bwd"] == 1


def test_flat_gradients_are_put_together_cast_and_scaled_once_a_unit():
    found = kernels(zero=3, flat_gradients=True, gradient_dtype="fp32")
    units = LAYERS + 2  # the embedding, and the head
    assert [found[op] for op in ("clone", "cast_to_fp32", "mul_scalar")] == [units] * 3
    assert "cast_to_fp32" not in kernels(zero=3, flat_gradients=True)
    assert kernels(flat_gradients=True) == kernels()


def test_an_optimizer_of_single_operations_moves_more():
    (fused,), (single,) = (generate(workload(optimizer_kernels=kind)).graphs for kind in ("fused", "unfused"))
    (parameters,) = {dict(kernel.shape)["parameters"] for kernel in fused.kernels if kernel.op == "adamw_fused"}
    assert single.bytes.sum() - fused.bytes.sum() == (20 - 7) * 4 * parameters


def test_recompute_of_operations_leaves_out_attention_and_every_other_product():
    """Of SwiGLU layers: keys' projection, the output projection and the gate again, of separate matrices or not."""
    llama = {"activation": "swiglu", "kv_heads": 2}
    again = 2 * TOKENS * HIDDEN * (HIDDEN // 2 + HIDDEN + 4 * HIDDEN)
    for separate in (False, True):
        keys = {**llama, "separate_projections": separate}
        assert flops(**keys, recompute="operations") - flops(**keys) == LAYERS * again
    assert kernels(**llama, recompute="operations")["attention_gqa_fwd"] == LAYERS


def test_separate_projections_are_as_many_products_whose_gradients_are_added_up():
    llama = {"activation": "swiglu"}
    together, apart = kernels(**llama), kernels(**llama, separate_projections=True)
    assert apart["gemm"] - together["gemm"] == 3 * (2 + 1) * LAYERS
    assert apart["add"] - together["add"] == (2 + 1) * LAYERS
    assert flops(**llama) == flops(**llama, separate_projections=True)


def test_parameters_gathered_in_fp8_are_half_the_bytes_and_not_cast_again():
    given = {"zero": 3, "linear_dtype": "fp8_tensorwise"}
    (plain,), (small,) = (generate(workload(**given, gather_dtype=dtype)).graphs for dtype in (None, "fp8_e4m3"))
    gathered = [
        sum(int(graph.bytes[node]) for node, name in enumerate(graph.names) if name == "parameters_all_gather")
        for graph in (plain, small)
    ]
    layers = LAYERS * (12 * HIDDEN**2 + 4 * HIDDEN)
    assert gathered[0] - gathered[1] == 2 * layers  # forward and backward, of two bytes one
    assert sum("weight_cast" in name for name in plain.names) == 2 * 4 * LAYERS
    assert not any("weight_cast" in name for name in small.names)


def test_context_in_steps_merges_what_each_rank_of_keys_gives():
    found = kernels(context_parallel=4, data_parallel=1, context_exchange="all_gather_steps")
    assert (found["attention_fwd"], found["merge_partials_fwd"], found["merge_partials_bwd"]) == (
        4 * LAYERS, 3 * LAYERS, 3 * LAYERS,
    )  # fmt: skip


def test_copies_of_shards_are_summed_once_after_backward():
    given = {"data_parallel": 8, "zero": 3, "shard_ranks": 4, "gradient_dtype": "fp32"}
    sizes = []
    for late in (False, True):
        (graph,) = generate(workload(**given, replicas_at_end=late)).graphs
        sizes.append([int(graph.bytes[node]) for node, name in enumerate(graph.names) if "all_reduce" in name])
    assert [len(found) for found in sizes] == [LAYERS + 2, 1]  # one a layer, of the embedding and of the head
    assert sum(sizes[0]) == sum(sizes[1])


def test_plain_pytorch_copies_heads_and_rotates_and_loses_in_fp32():
    llama = {"rotary": True, "kv_heads": 2, "activation": "swiglu"}
    fused, plain = kernels(**llama), kernels(**llama, framework="pytorch")
    assert (plain["rope_fp32_fwd"], plain["rope_fp32_bwd"]) == (2 * LAYERS, 2 * LAYERS)  # of queries and of keys
    assert (plain["heads_repeat"], plain["heads_sum"]) == (2 * LAYERS, 2 * LAYERS)  # of keys and of values
    assert plain["attention_fwd"] == fused["attention_gqa_fwd"] == LAYERS
    assert plain["cast_to_fp32"] == 2  # logits, and their gradient back
    assert flops(**llama) == flops(**llama, framework="pytorch")


def test_repeated_heads_are_of_whole_sequences():
    with pytest.raises(ValueError, match="context_parallel 2 cuts; leave one of them out"):
        workload(kv_heads=2, repeat_heads=True, context_parallel=2)


@pytest.mark.parametrize(("hidden", "products"), [(4 * 108, 6 * LAYERS), (4 * 112, 0)])
def test_products_of_unaligned_heads_leave_the_matrix_units(hidden, products):
    given = {"hidden": hidden, "attention": "unfused", "unaligned_heads": "vector_units"}
    (graph,) = generate(workload(**given)).graphs
    calls = [graph.kernels[kernel] for kernel in graph.kernel.tolist() if kernel >= 0]
    slow = [call for call in calls if call.op == "gemm" and call.dtype == "fp32"]
    assert len(slow) == products
    assert all(108 in call.sizes.values() for call in slow)  # no GEMM with weights
    assert flops(**given) == flops(**given | {"unaligned_heads": "matrix_units"})


def test_flash_attention_has_no_products_of_unaligned_heads():
    with pytest.raises(ValueError, match="of products that attention flash has not; set attention to unfused"):
        workload(unaligned_heads="vector_units")


def test_a_fused_softmax_reads_what_a_causal_mask_leaves():
    """Of 64 x 64 scores a head one half is read and all are written; backward, halves of two. A full mask reads all."""
    given = {"attention": "unfused", "hidden": 256, "heads": 4, "sequence": 64, "microbatch": 1, "dropout": False}

    def moved(**changes):
        (graph,) = generate(workload(**given, **changes)).graphs
        calls = [graph.kernels[kernel] for kernel in graph.kernel.tolist() if kernel >= 0]
        return {call.op: call.bytes for call in calls if call.op.startswith("softmax")}

    scores = 2 * 4 * 64 * 64
    assert moved() == {"softmax_causal_fwd": 3 * scores // 2, "softmax_causal_bwd": 2 * scores}
    assert moved(causal=False) == {"softmax_fwd": 2 * scores, "softmax_bwd": 3 * scores}


@pytest.mark.parametrize(("heads", "by_one_kernel"), [(4, True), (2, True), (6, True), (3, False), (1, False)])
def test_a_fused_softmax_takes_multiples_of_four_heads_and_sequences(heads, by_one_kernel):
    """Two sequences a micro-batch; else a cast, a scale, a mask, the softmax and a cast back, forward and backward."""
    found = kernels(attention="unfused", hidden=192, heads=heads, microbatch=2)
    softmax = "softmax_causal" if by_one_kernel else "softmax"
    assert found[f"{softmax}_fwd"] == found[f"{softmax}_bwd"] == LAYERS
    assert found.get("mul_scalar", 0) == (0 if by_one_kernel else 4 * LAYERS)


def test_decode_writes_keys_and_values_into_the_cache():
    """A kernel a layer for both, or one each where projections are modules of their own: batch 2, two heads of 64."""
    given = {"mode": "decode", "kv_heads": 2, "data_parallel": 1}
    for separate, widths in ((False, [256]), (True, [128, 128])):
        (graph,) = generate(workload(**given, separate_projections=separate)).graphs
        calls = [graph.kernels[kernel] for kernel in graph.kernel.tolist() if kernel >= 0]
        writes = [call for call in calls if call.op == "cache_write"]
        assert [dict(call.shape) for call in writes] == [{"tokens": 2, "hidden": width} for width in widths] * LAYERS
        assert sum(call.bytes for call in writes) == LAYERS * 2 * 2 * 2 * 2 * 128  # read and written, of 2 bytes
    assert "cache_write" not in kernels()


def test_plain_sgd_keeps_nothing_and_moves_three_numbers_a_parameter():
    """Parameter and gradient read, parameter written, in the model's type or as fp32 masters, all it keeps."""
    plain = {"optimizer": "sgd", "master_weights": False, "data_parallel": 1}
    for keys, item, kept in ((plain, 2, 0), (plain | {"master_weights": True}, 4, 4)):
        job = workload(**keys)
        (graph,) = generate(job).graphs
        (update,) = (kernel for kernel in graph.kernels if kernel.op == "sgd")
        parameters = job.num_parameters
        assert (dict(update.shape), update.bytes) == ({"parameters": parameters}, 3 * item * parameters)
        assert peak(job).bytes_of["optimizer_states"] == kept * parameters
    assert kernels(**plain)["sgd"] == 1
