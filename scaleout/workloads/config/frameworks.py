"""Frameworks of training: which keys of a step follow from the framework that runs it.

`framework: NAME` in a workload lays the values of that preset beneath the keys that are given, in the same file, in
one that is `like` it, or by `--set`; these win. Over the keys of a file below it wins itself: `--set framework=fsdp2`
shards parameters, whatever `zero` the file has. A preset says what a framework does with its usual options, not what a
model is (biases, norms, attention), nor what a job chooses (degrees of parallelism, recompute, `zero` where a framework
has all stages).

What these frameworks do and no key says, and so is left out: the host's hooks and Python (option `--host`); DeepSpeed's
prefetch, counted in parameters, small parameters that stage 3 does not shard, and stage 0, which reduces behind all of
backward and copies gradients into buckets and back; FSDP 1's limit of two gathers in flight and memory of freed shards;
Megatron-LM's single fused kernels (`compiled` fuses all) and its overlapped tensor parallelism (a schedule:
`async-tp`); the shapes that nanotron sends ahead of each message; XLA's order of collectives in MaxText.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from scaleout.config.reading import nearest, with_new_names
from scaleout.workloads.config.family import ModelFamily

Keys = Mapping[str, Any]


def _is(key: str, value: Any) -> Callable[[Keys], bool]:
    return lambda keys: bool(keys.get(key) == value)


def _several(key: str) -> Callable[[Keys], bool]:
    return lambda keys: bool(keys.get(key, 1) != 1)


def _has_replicas(keys: Keys) -> bool:
    """Whether a shard has replicas: the ranks that shard are given, and fewer than there are."""
    shards, data, context = keys.get("shard_ranks"), keys.get("data_parallel", 1), keys.get("context_parallel", 1)
    return isinstance(shards, int) and isinstance(data, int) and isinstance(context, int) and shards < data * context


@dataclass(frozen=True)
class Setting:
    """What a framework does, as the value of a key.

    `when` is from the other keys to whether it does so; their defaults are left out but for `dtype`, `zero` and
    `pipeline_schedule`.
    """

    key: str
    value: Any  # as the validated key holds it
    source: str  # documentation, source file, paper or measurement that says so
    when: Callable[[Keys], bool] = lambda _keys: True


@dataclass(frozen=True)
class Framework:
    """A preset, of a framework in the version that `source` names; of several settings for one key the last holds."""

    summary: str
    source: str
    settings: tuple[Setting, ...]
    issued_whole: bool = False  # whether a step is one compiled program, which the host starts once

    def applying(self, keys: Keys) -> dict[str, Setting]:
        """Return the settings that apply beside keys that are given, by key; those of given keys are among them."""
        known: dict[str, Any] = {"dtype": "bf16", "zero": 0, "pipeline_schedule": "1f1b"}
        found: dict[str, Setting] = {}
        for setting in self.settings:
            if setting.when({**known, **keys}):
                found[setting.key] = setting
                known[setting.key] = setting.value
        return found

    def values(self, keys: Keys) -> dict[str, Any]:
        """Return the values beside keys that are given, which win."""
        return {key: setting.value for key, setting in self.applying(keys).items() if key not in keys}


_MEGATRON = (
    Setting(
        "sequence_parallel", True, "Megatron Core, user guide, tensor parallelism: --sequence-parallel goes with it",
        _several("tensor_parallel"),
    ),
    Setting("keep_gathered", False, "arXiv:2205.05198, 4.2.2: backward gathers again; core/tensor_parallel/layers.py"),
    Setting(
        "gradient_dtype", "fp32", "training/arguments.py: bf16 accumulates and reduces in fp32", _is("dtype", "bf16")
    ),
    Setting("fused_accumulation", True, "training/arguments.py: --no-gradient-accumulation-fusion switches it off"),
    Setting(
        "placeholder_gradients", True, "TransformerEngine, module/base.py, get_dummy_wgrad",
        _is("fused_accumulation", True),
    ),
    Setting(
        "gradient_bucket", 1e12,
        "core/distributed/distributed_data_parallel.py: one bucket unless --overlap-grad-reduce",
    ),
    Setting("overlap_gradient_reduce", False, "training/arguments.py: --overlap-grad-reduce is off by default"),
    Setting("overlap_parameter_gather", False, "training/arguments.py: --overlap-param-gather is off by default"),
    Setting(
        "buffer_passes", ("clear", "check", "scale", "copy"),
        "core/distributed/param_and_grad_buffer.py, core/optimizer/distrib_optimizer.py",
    ),
    Setting("loss", "vocabulary_parallel", "core/tensor_parallel/cross_entropy.py; fused by an option alone"),
    Setting("clip_gradients", True, "training/arguments.py: --clip-grad 1.0 by default"),
    Setting("optimizer_kernels", "fused", "core/optimizer: FusedAdam of TransformerEngine or Apex"),
    Setting("stop_recompute_early", False, "core/tensor_parallel/random.py: a layer's forward is run whole again"),
    Setting(
        "overlap_sends", False, "training/arguments.py: overlap_p2p_comm is off but in the interleaved schedule",
        lambda keys: keys["pipeline_schedule"] != "interleaved_1f1b",
    ),
)  # fmt: skip

_AUTOGRAD = (
    Setting("dropped_gradients", True, "torch.optim.Optimizer.zero_grad, documentation: set_to_none by default"),
    Setting("transient_memory", True, "autograd frees a tensor with the last call that reads it"),
)

_PYTORCH = (
    *_AUTOGRAD,
    Setting("reshard_after_forward", True, "FULL_SHARD, or fully_shard's default but for the root module"),
    Setting("stop_recompute_early", True, "torch.utils.checkpoint from 2.1 on, not reentrant: early_stop by default"),
    Setting("optimizer_kernels", "unfused", "torch.optim.AdamW, documentation: foreach is the default on GPUs"),
)

_PLAIN_PYTORCH = (
    *_AUTOGRAD,
    Setting("separate_projections", True, "torch.nn.Linear: a GEMM a module; llama/model.py: wq, wk, wv, w1, w3"),
    Setting("rotary_fp32", True, "github.com/meta-llama/llama, llama/model.py, apply_rotary_emb; torchtitan likewise"),
    Setting(
        "repeat_heads", True, "the same file, repeat_kv; torchtitan likewise",
        lambda keys: keys.get("context_parallel", 1) == 1 and not keys.get("latent"),
    ),
    Setting("loss", "fp32", "torchtitan, components/loss.py: logits in fp32"),
    Setting(
        "plain_routing", True, "PyTorch's operators: argsort, indexing, index_copy, products, sums",
        lambda keys: keys.get("dispatch", "all_to_all") == "all_to_all",
    ),
    Setting("grouped_experts", "batched", "torch.bmm, for experts of as many rows each"),
    Setting("master_weights", False, "torch.optim.AdamW, documentation: steps the parameters that it is given"),
    Setting(
        "moment_dtype", "bf16", "the same: moments are of the parameters' type; of fp16 as many bytes",
        lambda keys: keys["dtype"] in ("bf16", "fp16"),
    ),
    Setting("optimizer_kernels", "unfused", "torch.optim.AdamW, documentation: foreach is the default on GPUs"),
    Setting("stop_recompute_early", True, "torch.utils.checkpoint from 2.1 on, not reentrant: early_stop by default"),
    Setting(
        "copied_buckets", True, "DistributedDataParallel, documentation: gradient_as_bucket_view False by default",
        lambda keys: keys.get("data_parallel", 1) > 1 and keys["zero"] == 0,
    ),
)  # fmt: skip

_FSDP1 = (
    Setting("zero", 3, "torch.distributed.fsdp, documentation: ShardingStrategy.FULL_SHARD is the default"),
    *_PYTORCH,
    Setting("prefetch", 1, "documentation: BackwardPrefetch.BACKWARD_PRE, and gathers that the host issues ahead"),
    Setting(
        "flat_gradients", True, "arXiv:2304.11277, 4: a flat parameter a unit; fsdp/_runtime_utils.py casts and scales"
    ),
)

_FSDP2 = (
    Setting("zero", 3, "torch.distributed.fsdp.fully_shard, documentation"),
    *_PYTORCH,
    Setting("prefetch", 1, "fully_shard, documentation: the next module's gather is issued beside this one's kernels"),
    Setting("gather_dtype", None, "MixedPrecisionPolicy.param_dtype; gathers in fp8 are an option of torchao"),
    Setting("flat_gradients", False, "fully_shard, documentation: parameters are sharded each along its first axis"),
    Setting("layout_copies", True, "_fsdp_collectives.py copies in and out; steps measured on four H200"),
    Setting("context_exchange", "all_gather_steps", "torch.distributed.tensor.experimental: rotate method allgather"),
    Setting(
        "messages", "as_made", "torch.distributed.pipelining; steps measured on four H200",
        _is("pipeline_schedule", "interleaved_1f1b"),
    ),
)  # fmt: skip

_DEEPSPEED = (
    Setting("gradient_bucket", 1e9, "runtime/zero/config.py: reduce_bucket_size, 5e8 elements"),
    Setting("gradient_bucket", 2e9, "the same, of elements of 4 bytes", _is("dtype", "fp32")),
    Setting(
        "gradient_dtype", "fp32", "runtime/engine.py, get_data_types: bf16 without ZeRO is accumulated in fp32",
        lambda keys: keys["dtype"] == "bf16" and keys["zero"] == 0,
    ),
    Setting(
        "gradient_bucket", 2e9, "runtime/engine.py: MEMORY_OPT_ALLREDUCE_SIZE, 5e8 elements in fp32",
        lambda keys: keys["dtype"] == "bf16" and keys["zero"] == 0,
    ),
    Setting(
        "all_reduced_gradients", True, "runtime/bf16_optimizer.py, if accumulated in fp32; runtime/pipe/engine.py, "
        "_bf16_reduce_grads",
        lambda keys: keys["dtype"] == "bf16" and keys["zero"] == 1 and keys.get("gradient_dtype") == "fp32",
    ),
    Setting("flat_gradients", True, "runtime/zero/config.py: contiguous_gradients, copied as they are made"),
    Setting("overlap_gradient_reduce", False, "runtime/zero/config.py: overlap_comm is off but in stage 3"),
    Setting("overlap_parameter_gather", False, "runtime/zero/stage_1_and_2.py: all-gather at the end of the step"),
    Setting("reshard_after_forward", True, "runtime/zero/partitioned_param_coordinator.py releases behind each use"),
    Setting("prefetch", 1, "runtime/zero/config.py: stage3_prefetch_bucket_size ahead, here a layer"),
    Setting("context_exchange", "ulysses", "arXiv:2309.14509; deepspeed/sequence/layer.py"),
    Setting("optimizer_kernels", "fused", "ops/adam/fused_adam.py, the default for Adam and AdamW"),
    Setting("clip_gradients", False, "documentation: gradient_clipping 0 by default"),
    Setting("stop_recompute_early", False, "runtime/activation_checkpointing: a layer's forward is run whole again"),
    Setting("overlap_sends", False, "runtime/pipe/p2p.py: sends and receives that are waited for"),
)  # fmt: skip

_DEEPSPEED_2021 = (
    *(each for each in _DEEPSPEED if each.key not in ("prefetch", "flat_gradients", "all_reduced_gradients")),
    Setting(
        "shard_lists", True,
        "runtime/zero/partition_parameters.py, _allgather_param, _allgather_params and _reduce_scatter_gradient: a "
        "parameter at a time, torch.distributed.all_gather and reduce_scatter of lists, whose tensors PyTorch copies "
        "one by one; runtime/zero/stage3.py, _post_step: those that stay whole in one list",
    ),
    Setting("prefetch", 0, "the same: torch.cuda.synchronize before each gather, so that nothing runs beside it"),
)  # fmt: skip

_MAXTEXT = (
    Setting("zero", 3, "configs/base.yml: ici_fsdp_parallelism takes what chips are left"),
    Setting("replicas_at_end", True, "configs/base.yml: layers are scanned, gradients of all one array", _has_replicas),
    Setting("gradient_dtype", "fp32", "configs/base.yml: weight_dtype float32, which gradients have as well"),
    Setting(
        "sequence_parallel", True, "configs/base.yml: activations between layers are cut over the tensor axis",
        _several("tensor_parallel"),
    ),
    Setting("recompute", "full", "configs/base.yml: remat_policy full"),
    Setting("stop_recompute_early", True, "XLA leaves out what nothing reads"),
    Setting("compiled", True, "jax.jit; XLA fuses element-wise operations"),
    Setting("loss", "fused", "XLA, as above"),
    Setting("optimizer_kernels", "fused", "XLA, as above"),
    Setting("clip_gradients", True, "configs/base.yml: gradient_clipping_threshold 1.0"),
    Setting("context_exchange", "all_gather", "configs/base.yml: context_parallel_strategy all_gather"),
)  # fmt: skip

_NANOTRON = (
    Setting(
        "sequence_parallel", True, "examples/config_tiny_llama.yaml: tp_mode REDUCE_SCATTER",
        _several("tensor_parallel"),
    ),
    Setting("keep_gathered", False, "config/parallelism_config.py: tp_recompute_allgather by default"),
    Setting(
        "overlap_exchanges", True,
        "scripts/scaling_benchmarks.py: tp_linear_async_communication; parallel/tensor_parallel/functional.py",
    ),
    Setting("gradient_dtype", "fp32", "examples: accumulate_grad_in_fp32; optim/gradient_accumulator.py"),
    Setting("fused_accumulation", False, "optim/gradient_accumulator.py adds gradients after they are made"),
    Setting("gradient_bucket", 25 * 2.0**20, "config/config.py: ddp_bucket_cap_mb 25"),
    Setting(
        "overlap_gradient_reduce", True, "parallel/pipeline_parallel/engine.py: DDP reduces in the last backward",
        _several("pipeline_parallel"),
    ),
    Setting("overlap_parameter_gather", False, "optim/zero.py: all-gather at the end of the step"),
    Setting("overlap_sends", False, "parallel/pipeline_parallel/p2p.py: send_tensors waits for its messages"),
    Setting("loss", "vocabulary_parallel", "parallel/tensor_parallel/functional.py, sharded_cross_entropy in fp32"),
    Setting(
        "packed_projections", True,
        "models/llama.py, CausalSelfAttention: permute, cat and permute of heads before FlashAttention's rotation; "
        "GLUActivation splits one output",
    ),
    Setting("context_exchange", "ring", "nn/ring_attention.py"),
    Setting("stop_recompute_early", False, "utils.py: torch.utils.checkpoint, reentrant"),
    Setting("optimizer_kernels", "fused", "examples: torch_adam_is_fused"),
    Setting("clip_gradients", True, "examples: clip_grad 1.0"),
)  # fmt: skip

FRAMEWORKS: dict[str, Framework] = {
    "megatron": Framework(
        "Megatron-LM: sequence parallel, GEMMs that accumulate in fp32, one gradient bucket",
        "github.com/NVIDIA/Megatron-LM, Megatron Core 0.14",
        _MEGATRON,
    ),
    "pytorch": Framework(
        "PyTorch's operators as layers are written, eagerly: rotation and loss in fp32, repeated heads, plain routing",
        "PyTorch 2, documentation; github.com/meta-llama/llama; github.com/pytorch/torchtitan",
        _PLAIN_PYTORCH,
    ),
    "fsdp1": Framework(
        "PyTorch's FullyShardedDataParallel: flat parameters, a unit a layer", "PyTorch 2, arXiv:2304.11277", _FSDP1
    ),
    "fsdp2": Framework(
        "PyTorch's fully_shard: parameters sharded one by one, copied in and out of buffers",
        "PyTorch 2.6 and later, documentation of torch.distributed.fsdp.fully_shard",
        _FSDP2,
    ),
    "deepspeed": Framework(
        "DeepSpeed: ZeRO as `zero` says, buckets of 5e8 gradients, Ulysses",
        "github.com/deepspeedai/DeepSpeed",
        _DEEPSPEED,
    ),
    "deepspeed-2021": Framework(
        "DeepSpeed until September 2021: ZeRO-3 gathers a parameter at a time, through a list, with nothing beside it",
        "github.com/deepspeedai/DeepSpeed, 5ca86ae4e (April 2021) to e2fdd254e (September 2021)",
        _DEEPSPEED_2021,
    ),
    "maxtext": Framework(
        "MaxText: FSDP within a slice, scanned layers computed again, compiled by XLA",
        "github.com/AI-Hypercomputer/maxtext at 76bd53b0f",
        _MAXTEXT,
        issued_whole=True,
    ),
    "nanotron": Framework(
        "nanotron: sequence parallel, DDP in buckets of 25 MiB, gradients accumulated in fp32",
        "github.com/huggingface/nanotron",
        _NANOTRON,
    ),
}
"""Name to preset."""


class WithFramework(ModelFamily):
    """Keys of a job that a framework runs: those that it sets count as not given (`model_fields_set`)."""

    framework: str | None = Field(
        default=None,
        description="a name in `scaleout list frameworks`, which sets what its steps do, such as fsdp2 (PyTorch's "
        "FSDP: sharding, kernels, order of calls), pytorch (DDP) or megatron; keys beside it win",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _beneath_given_keys(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        name = values.get("framework") if isinstance(values, Mapping) else None
        if name is None:
            return handler(values)
        if not isinstance(name, str) or name not in FRAMEWORKS:
            raise ValueError(f"unknown framework {name!r}; {nearest(str(name), FRAMEWORKS)}")
        given = with_new_names(values, cls.RENAMED)
        sets = FRAMEWORKS[name].values(given)
        found = handler({**{key: value for key, value in sets.items() if key in cls.model_fields}, **given})
        object.__setattr__(found, "__pydantic_fields_set__", found.model_fields_set - sets.keys())
        return found

    @property
    def issued_whole(self) -> bool:
        """Whether the framework compiles a step."""
        return self.framework is not None and FRAMEWORKS[self.framework].issued_whole

    def changed(self, changes: Keys) -> Self:
        """Return a copy with other keys, not validated; what the framework sets follows them."""
        found = self.model_copy(update=changes)
        if found.framework is None:
            return found
        framework, fields = FRAMEWORKS[found.framework], type(self).model_fields
        given = {key: value for key, value in found.__dict__.items() if key in found.model_fields_set}
        follows = {each.key: fields[each.key].default for each in framework.settings if each.key in fields}
        follows |= {key: value for key, value in framework.values(given).items() if key in fields}
        copy = found.model_copy(update={key: value for key, value in follows.items() if key not in given})
        object.__setattr__(copy, "__pydantic_fields_set__", found.model_fields_set)
        return copy

    @property
    def given(self) -> dict[str, Any]:
        """Keys that the file and the options give, without those that the framework sets."""
        return self.model_dump(exclude_unset=True)
