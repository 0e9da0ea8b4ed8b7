"""Models as torchtitan and Megatron describe them: a TOML, a script of arguments, and the values of a YAML file."""

TOML = """[model]
name = "deepseek_v3"
flavor = "16B"
converters = ["quantize.linear.float8"]
[training]
local_batch_size = 4
global_batch_size = 64
seq_len = 4096
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 8
[activation_checkpoint]
mode = "full"
[quantize.linear.float8]
recipe_name = "tensorwise"
"""
SCRIPT = """NODES=2
TP=${TP:-2}
ARGS=(--nnodes $NODES --nproc_per_node 8 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --swiglu
  --seq-length 2048 --vocab-size 1000 --position-embedding-type rope --bf16 --tensor-model-parallel-size $TP
  --pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3 --micro-batch-size 1 --window-size 127,0
  --global-batch-size $((8*8)) --num-experts 8 --moe-layer-freq "([0]*2+[1]*22)" --use-distributed-optimizer)
"""
BRIDGE = {
    "model": {"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 512, "vocab_size": 1000,
              "position_embedding_type": "rope", "activation_func": {"_target_": "silu"}, "gated_linear_unit": True},
    "train": {"global_batch_size": 32, "micro_batch_size": 1}, "ddp": {"overlap_grad_reduce": True},
}  # fmt: skip
