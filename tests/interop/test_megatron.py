"""Arguments of Megatron-LM and Megatron-Bridge as workloads: scripts as they are shipped, what is told and refused."""

import pytest

from scaleout.errors import ConfigError
from scaleout.interop.models import import_model
from scaleout.interop.models.megatron_text import Several, arguments_of_script

SCRIPT = r"""
#!/bin/bash
GPUS_PER_NODE=8
NUM_NODES=2
TP=4
SEQUENCE=${SEQUENCE:-4096}   # tokens
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
DISTRIBUTED_ARGS=(--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES)
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention
    --num-query-groups 8
    --seq-length $SEQUENCE
    --max-position-embeddings 8192
    --position-embedding-type rope
    --swiglu
    --normalization RMSNorm
    --untie-embeddings-and-output-weights
    --disable-bias-linear
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --vocab-size 128256
)
# --num-layers 99
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size 64 \
    --bf16 --clip-grad 1.0 --lr 1e-4"
PARALLEL=(
    --tensor-model-parallel-size=${TP}
    --pipeline-model-parallel-size 2
    --sequence-parallel
)
PARALLEL+=(
    --use-distributed-optimizer
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} $TRAINING_ARGS ${PARALLEL[@]}
"""

BRIDGE = """
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  num_layers: 24
  hidden_size: 2048
  num_attention_heads: 16
  num_query_groups: 4
  kv_channels: 128
  ffn_hidden_size: 8192
  gated_linear_unit: true
  activation_func:
    _target_: torch.nn.functional.silu
    _call_: false
  add_bias_linear: false
  add_qkv_bias: true
  qk_layernorm: true
  normalization: RMSNorm
  position_embedding_type: rope
  share_embeddings_and_output_weights: true
  vocab_size: 1000
  make_vocab_size_divisible_by: 128
  seq_length: 2048
  tensor_model_parallel_size: 2
  hidden_dropout: 0.0
  attention_dropout: 0.0
  bf16: true
train:
  global_batch_size: 16
  micro_batch_size: 2
  train_iters: 100
ddp:
  use_distributed_optimizer: true
  overlap_grad_reduce: true
  grad_reduce_in_fp32: true
optimizer:
  optimizer: adam
  lr: 0.0003
  clip_grad: 0.0
logger:
  log_interval: 10
"""


@pytest.fixture
def imported(tmp_path):
    def read(*replacements, text=SCRIPT, name="train.sh", ranks=None, **changes):
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / name).write_text(text)
        return import_model(tmp_path / name, ranks=ranks, changes=changes)

    return read


def test_a_script_is_a_workload(imported):
    found = imported()
    workload = found.workload
    # Llama 3 8B, the vocabulary padded to 128 x 4 ranks
    assert workload.num_parameters == 8_030_261_248 + 2 * (128_512 - 128_256) * 4096
    assert (workload.tensor_parallel, workload.pipeline_parallel, workload.data_parallel) == (4, 2, 2)
    assert (workload.sequence, workload.batch_per_replica, workload.microbatch_size) == (4096, 32, 1)
    assert (workload.sequence_parallel, workload.zero, workload.framework) == (True, 1, "megatron")
    assert (workload.dtype, workload.gradient_dtype, workload.clip_gradients) == ("bf16", "fp32", True)
    assert workload.topology == "dgx-h200-2"
    assert any(
        note.startswith("not read, as they do not change what a step costs: max_position") for note in found.notes
    )


def test_ranks_of_the_user_win_over_those_of_the_script(imported):
    assert imported(ranks=64).workload.data_parallel == 8


def test_defaults_are_those_of_megatron(imported):
    """GPT with learnt positions, biases and dropout, and an embedding that the head shares."""
    lines = ("swiglu", "group-query-attention", "num-query-groups 8", "normalization RMSNorm", "disable-bias-linear")
    lines += ("position-embedding-type rope", "attention-dropout 0.0", "hidden-dropout 0.0", "ffn-hidden-size 14336")
    lines += ("untie-embeddings-and-output-weights",)
    workload = imported(*((f"    --{line}\n", "") for line in lines)).workload
    assert (workload.activation, workload.ffn, workload.kv_heads, workload.norm) == ("gelu", 16384, None, "layer_norm")
    assert (workload.biases, workload.positions, workload.rotary, workload.dropout) == (True, 8192, False, True)
    assert workload.tied_embedding
    # 12 L h^2 (1 + 13 / 12 h) + (V + s) h and the last norm (Megatron-LM, arXiv:2104.04473, equation 2)
    layers, h, vocabulary = 32, 4096, 128512  # padded to 128 x 4 ranks
    assert workload.num_parameters == 12 * layers * h**2 + 13 * layers * h + (vocabulary + 8192) * h + 2 * h


def test_keys_of_megatron_bridge(imported):
    workload = imported(text=BRIDGE, name="run_config.yaml").workload
    assert (workload.layers, workload.activation, workload.biased) == (24, "swiglu", "qkv")
    assert (workload.query_key_norm, workload.tied_embedding, workload.vocabulary) == (True, True, 1024)
    assert (workload.tensor_parallel, workload.data_parallel, workload.microbatch_size) == (2, 4, 2)
    assert (workload.zero, workload.overlap_gradient_reduce, workload.clip_gradients) == (1, True, False)
    assert workload.gradient_bucket == 160e6


def test_experts_and_latent_attention(imported):
    more = """    --multi-latent-attention
    --q-lora-rank 1536
    --num-experts 16
    --moe-router-topk 4
    --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 4096
    --moe-layer-freq "([0]*3+[1]*29)"
    --moe-grouped-gemm
    --moe-router-enable-expert-bias
    --expert-model-parallel-size 2
    --swiglu
"""
    without = ("    --group-query-attention\n    --num-query-groups 8\n", "")
    workload = imported(("    --swiglu\n", more), without).workload
    assert (workload.kind, workload.experts, workload.top_k, workload.expert_width) == ("moe", 16, 4, 2048)
    assert (workload.shared_experts, workload.dense_layers, workload.grouped_experts) == (2, 3, True)
    assert (workload.router_bias, workload.expert_parallel) == (True, 2)
    assert (workload.latent.query_rank, workload.latent.key_value_rank) == (1536, 512)


def test_experts_that_lie_by_themselves_and_in_groups(imported):
    more = """    --num-experts 16
    --moe-router-topk 4
    --moe-router-num-groups 4
    --moe-router-group-topk 2
    --moe-expert-capacity-factor 1.5
    --moe-shared-expert-intermediate-size 14336
    --moe-shared-expert-overlap
    --expert-model-parallel-size 4
    --expert-tensor-parallel-size 1
    --mtp-num-layers 1
    --sequence-parallel
    --swiglu
"""
    workload = imported(("    --swiglu\n", more)).workload
    assert (workload.expert_tensor_parallel, workload.expert_parallel, workload.expert_shards) == (1, 4, 1)
    assert (workload.expert_groups, workload.groups_of_token, workload.pad_to_capacity) == (4, 2, False)
    assert (workload.overlap_shared, workload.predicted_ahead) == (True, 1)


def test_hybrids_of_state_space_layers(imported):
    text = """--num-layers 4 --hidden-size 1024 --hybrid-override-pattern M-M* --num-attention-heads 8
    --seq-length 2048 --vocab-size 1024 --position-embedding-type none --disable-bias-linear --bf16"""
    workload = imported(text=text).workload
    assert (workload.kind, workload.pattern, workload.state_groups) == ("state_space", "M-M*", 8)


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ("--recompute-activations", {"recompute": "selective"}),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1", {"recompute": "full"}),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
            {"recompute": "full", "recompute_layers": 3},
        ),
        ("--num-layers-per-virtual-pipeline-stage 4", {"pipeline_schedule": "interleaved_1f1b", "chunks": 4}),
        ("--decoder-first-pipeline-num-layers 15", {"layers_of_stage": (15, 17)}),
        ("--fp8-format hybrid", {"linear_dtype": "fp8_delayed"}),
        ("--fp8-format hybrid --fp8-recipe tensorwise", {"linear_dtype": "fp8_tensorwise"}),
        ("--grad-reduce-in-bf16", {"gradient_dtype": "bf16"}),
        ("--no-gradient-accumulation-fusion", {"fused_accumulation": False}),
        ("--cross-entropy-loss-fusion", {"loss": "fused"}),
        ("--attention-backend unfused", {"attention": "unfused"}),
        ("--context-parallel-size 2 --cp-comm-type a2a", {"context_exchange": "ulysses", "data_parallel": 1}),
        ("--qk-layernorm", {"query_key_norm": True}),
        ("--window-size 127,0 --window-attn-skip-freq 2", {"window": 128, "full_attention_every": 2}),
        ("--softmax-type learnable", {"attention_sinks": True}),
        ("--overlap-grad-reduce --overlap-param-gather", {"overlap_parameter_gather": True}),
        ("--add-qkv-bias", {"attention_biases": "qkv"}),
    ],
)
def test_options_of_a_step(imported, more, keys):
    workload = imported(("    --swiglu\n", f"    --swiglu\n    {more}\n")).workload
    assert {key: getattr(workload, key) for key in keys} == keys


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("--frobnicate 3", "unknown: frobnicate 3: what it changes in a layer, the workload lacks"),
        ("--tp-comm-overlap", "left out: tp_comm_overlap True: it is a schedule"),
        ("--squared-relu", "squared ReLU is taken as GELU"),
        ("--log-interval 1\nif true; then\n  --log-interval 2\nfi", "the script's branches are not run"),
    ],
)
def test_what_is_ignored_is_told(imported, more, told):
    swap = ("    --swiglu\n", f"    {'' if 'relu' in more else '--swiglu'}\n    {more}\n")
    assert any(told in note for note in imported(swap).notes)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("--num-layers 32", "--no-layers", "num_layers is missing, so no model is described; give a script with all"),
        ("--hidden-size 4096", "--hidden-size $WIDTH", r"hidden_size is '\$WIDTH'; give a whole number"),
        ("--hidden-size 4096", "--hidden-size 4096\n    --hidden-size 5120", "--hidden-size stands more than once"),
        ("    --vocab-size 128256\n", "", "vocab_size is missing, and tokenizers are not read; add it, or give --set"),
        ("model-parallel-size=${TP}", "model-parallel-size 3", "16 ranks do not divide by tensor x pipeline x context"),
        ("--global-batch-size 64", "--global-batch-size 63", "global_batch_size 63: no multiple of 2 replicas'"),
        ("--swiglu", "--swiglu --experimental-attention-variant dsa", "no workload has such attention"),
        ("--swiglu", "--swiglu --encoder-num-layers 3", "models of encoder and decoder are not written"),
        ("--swiglu", "--swiglu --fp8-format hybrid --fp8-recipe mxfp8", "fp8_recipe 'mxfp8': GEMMs are written for"),
        ("--swiglu", "--swiglu --recompute-granularity full --recompute-num-layers 3", "with method None of 3"),
        ("--swiglu", "--swiglu --recompute-granularity full --recompute-method block", "method block needs it"),
        ("--swiglu", "--swiglu --num-experts 8 --moe-layer-freq 2", "layers without experts come first or nowhere"),
        ("--swiglu", "--swiglu --num-layers-per-virtual-pipeline-stage 5", "does not divide the 16 layers of a rank"),
        ("--swiglu", "--swiglu --decoder-first-pipeline-num-layers 33", "-1 layers besides the first and last stage"),
        ("--swiglu", "--swiglu --optimizer muon", "optimizer 'muon': steps are those of Adam; take it"),
        ("--normalization RMSNorm", "--normalization Other", "normalization 'Other': known are LayerNorm, RMSNorm"),
    ],
)  # fmt: skip
def test_what_no_workload_can_have_is_refused(imported, old, new, message):
    with pytest.raises(ConfigError, match=message):
        imported((old, new))


def test_a_workload_is_none_of_megatrons_files(imported):
    with pytest.raises(ConfigError, match="is a workload already"):
        imported(text="kind: transformer\n", name="a.yaml")


def test_sections_may_have_any_name(imported):
    found = imported(text=f"{BRIDGE}5: {{a: 1}}\n", name="run_config.yaml")
    assert "sections not read, as they do not change what a step costs: logger, 5" in found.notes


def test_values_stand_in_the_same_line_and_end_at_lists():
    text = "--flag\nA=1 --one $A --two=2 --three ${A} | tee --four x\nB=(\n--five\n)\n--six ${B[@]} --seven a --seven b"
    found, told = arguments_of_script(text)
    flags = dict.fromkeys(("flag", "five", "six"), True)
    assert found == flags | {"one": "$A", "two": 2, "three": "${A}", "four": "x", "seven": Several(("a", "b"))}
    assert told == []


@pytest.mark.parametrize("line", ["TP=4; PP=2", "TP=4;PP=2;", "export TP=4 PP=2", "export TP=4; export PP=2"])
def test_several_variables_may_stand_in_a_line(line):
    found, _ = arguments_of_script(f"{line}\nrun --tensor-model-parallel-size $TP --num-layers ${{PP}}")
    assert found == {"tensor_model_parallel_size": 4, "num_layers": 2}


def test_variables_within_variables_end():
    found, _ = arguments_of_script("A=$B\nB=$A\n--num-layers $A --size $((2*$C))\nC=21\n")
    assert found["size"] == 42
    assert str(found["num_layers"]).startswith("$")
