"""A workload as what a framework is configured with: torchtitan's TOML, Megatron-LM's arguments, DeepSpeed's JSON.

What a format cannot say is either no part of the cost of a step, or refused with the reason, or told in a note, such as
what a framework wants in code. TOML and arguments that are written are read back to the same keys, which a test holds.

Source: github.com/pytorch/torchtitan at v0.2.2, torchtitan/config/job_config.py; github.com/NVIDIA/Megatron-LM,
megatron/training/arguments.py; deepspeed.ai/docs/config-json.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from scaleout.config.documents import to_json
from scaleout.config.units import counted
from scaleout.errors import ConfigError
from scaleout.interop.models.flavors import FLAVORS, UNNAMED
from scaleout.interop.models.torchtitan import SCHEDULES
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.families import Moe, Transformer
from scaleout.workloads.families.state_space import StateSpace
from scaleout.workloads.families.transformer import Latent

_NORM = 1.0
"""At which all clip gradients, whether the step of the plan does or not: a training without it is nobody's wish."""

BASELINE = "baseline"
"""The schedule that overlaps nothing."""


@dataclass(frozen=True)
class Written:
    """A configuration, and what a user must do besides pasting it."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Format:
    """How a framework's configuration is written, and the name of the file."""

    write: Callable[[Transformer, str], Written]  # of a workload under a schedule
    file: str
    summary: str


def write_plan(name: str, workload: LayeredModel, *, schedule: str = BASELINE) -> Written:
    """Write a workload as a framework's configuration.

    Raises
    ------
    ConfigError
        If the framework cannot be told to run it so: what, and what to hold or change.
    """
    if not isinstance(workload, Transformer) or workload.kind not in ("transformer", "moe", "state_space"):
        raise ConfigError(f"a model of kind {workload.kind} is none that {name} trains; decoders are written")
    if workload.dtype != "tf32":
        return FORMATS[name].write(workload, schedule)
    written = FORMATS[name].write(workload.model_copy(update={"dtype": "fp32"}), schedule)
    return replace(written, notes=(*written.notes, "in code: torch.set_float32_matmul_precision('high'), for TF32"))


def _refuse(framework: str, faults: Iterable[tuple[bool, str]]) -> None:
    for holds, why in faults:
        if holds:
            raise ConfigError(f"{framework} {why}")


# ---- torchtitan

_TORCH_SCHEDULES = {ours: theirs for theirs, ours in SCHEDULES.items()}


def _torchtitan(w: Transformer, schedule: str) -> Written:
    p, pipelined = w.pipeline_parallel, w.pipeline_parallel > 1
    replicas = w.data_parallel * w.context_parallel
    sharded = replicas > 1 and w.zero > 0
    _refuse(
        "torchtitan",
        (
            (pipelined and w.pipeline_schedule not in _TORCH_SCHEDULES,
             f"has no pipeline schedule {w.pipeline_schedule}; hold one of {', '.join(_TORCH_SCHEDULES)}"),
            (w.recompute in ("selective", "up_projections"),
             "recomputes operations or whole layers; hold recompute none or full"),
            (w.recompute == "full" and w.recompute_layers is not None,
             "recomputes all layers or every n-th; hold recompute_layers unset"),
            (w.tensor_parallel > 1 and not w.sequence_parallel,
             "cuts sequences with tensors; hold sequence_parallel true"),
            (w.tensor_parallel == 1 and w.sequence_parallel, "cuts sequences with tensors alone"),
            (sharded and w.zero < 3 and not pipelined,
             f"shards parameters, not states alone (zero {w.zero}); hold zero 0 or 3"),
            (sharded and pipelined and w.zero == 2, "keeps or shards parameters in a pipeline; hold zero 1 or 3"),
            (not sharded and w.context_parallel > 1, "shards over the context axis; hold zero 3"),
            (w.optimizer != "adamw", "needs an optimizer"),
            (w.linear_dtype == "fp8_delayed", "scales fp8 by tensors or rows; take another linear_dtype"),
        ),
    )  # fmt: skip
    notes: list[str] = []
    shards = w.sharding // w.context_parallel if sharded else 1
    sections: dict[str, Mapping[str, Any]] = {
        "model": _flavor(w, notes),
        "training": {
            "local_batch_size": w.batch_per_replica if pipelined else w.microbatch_size,
            "global_batch_size": w.batch_per_replica * w.data_parallel,
            "seq_len": w.sequence,
            "max_norm": _NORM,
            "mixed_precision_param": "float32" if w.dtype == "fp32" else "bfloat16",
        },
        "parallelism": {
            "data_parallel_replicate_degree": w.data_parallel // shards,
            "data_parallel_shard_degree": shards,
            "fsdp_reshard_after_forward": "always" if w.zero == 3 and w.reshard_after_forward else "never",
            "tensor_parallel_degree": w.tensor_parallel,
            **({"enable_async_tensor_parallel": True} if schedule == "async-tp" else {}),
            "context_parallel_degree": w.context_parallel,
            "pipeline_parallel_degree": p,
            **(_stages(w) if pipelined else {}),
            **_spread(w),
        },
        "activation_checkpoint": _recomputed(w),
        "compile": {"enable": w.compiled, "components": ["model", "loss"]},
        "optimizer": {"name": "AdamW", "implementation": "fused" if w.optimizer_kernels == "fused" else "foreach"},
        **_float8(w),
    }
    if w.dtype == "fp16":
        notes.append("torchtitan trains in bfloat16, which costs what fp16 does")
    body = "\n".join(_section(name, values) for name, values in sections.items())
    return Written(_commented(w, notes) + body, tuple(notes))


def _recomputed(w: Transformer) -> Mapping[str, Any]:
    if w.recompute == "none":
        return {"mode": "none"}
    if w.recompute == "full":
        return {"mode": "full", "early_stop": w.stop_recompute_early}
    return {"mode": "selective", "selective_ac_option": "op"}


def _float8(w: Transformer) -> dict[str, Mapping[str, Any]]:
    if w.linear_dtype == "same":
        return {}
    gathers = w.gather_dtype is not None
    recipe = {"recipe_name": w.linear_dtype.removeprefix("fp8_"), "enable_fsdp_float8_all_gather": gathers}
    return {"quantize.linear.float8": recipe}


def _flavor(w: Transformer, notes: list[str]) -> Mapping[str, Any]:
    converters = {} if w.linear_dtype == "same" else {"converters": ["quantize.linear.float8"]}
    for (name, flavor), keys in FLAVORS.items():
        if keys["kind"] == w.kind and _sizes_of(_of_flavor(w, keys)) == _sizes_of(w):
            return {"name": name, "flavor": flavor, **converters}
    notes.append(
        f"no flavor of torchtitan v0.2.2 has these sizes: register one of {w.layers} layers, hidden {w.hidden}, heads "
        f"{w.heads}, kv_heads {w.key_value_heads}, ffn {w.ffn}, vocabulary {w.vocabulary}, and put its name and flavor "
        f"into [model]"
    )
    return {"name": UNNAMED, "flavor": "YOUR_FLAVOR", **converters}


_OF_MODEL = (
    "kind", "hidden", "layers", "heads", "key_value_heads", "head_dim", "ffn", "window", "full_attention_every",
    "attention_sinks", "query_key_norm", "activation", "post_norms", "halves", "biased", "biases", "head_bias",
    "positions", "rotary", "vocabulary", "tied_embedding", "experts", "top_k", "expert_width", "shared_experts",
    "dense_layers", "expert_biases", "shared_gate", "attention_parameters",
)  # fmt: skip
"""What makes a model; of latent attention the parameters stand for the ranks."""


def _sizes_of(w: Transformer) -> list[Any]:
    return [getattr(w, key, None) for key in _OF_MODEL]


def _of_flavor(w: Transformer, keys: Mapping[str, Any]) -> Transformer:
    """Return a workload with a flavor's model instead of its own."""
    names = (*_OF_MODEL, "kv_heads", "head_size", "expert_ffn", "attention_biases", "latent")
    fields = type(w).model_fields
    unset = {key: fields[key].default for key in names if key in fields and not fields[key].is_required()}
    latent = {"latent": Latent(**keys["latent"])} if "latent" in keys else {}
    return w.model_copy(update={**unset, **keys, **latent})


def _stages(w: Transformer) -> Mapping[str, Any]:
    """Stages of equal layers, as the plan has them; embedding and head count as none."""
    if w.stage_layers:
        raise ConfigError("torchtitan cuts stages by their number of layers; leave stage_layers out")
    return {
        "pipeline_parallel_schedule": _TORCH_SCHEDULES[w.pipeline_schedule],
        "pipeline_parallel_microbatch_size": w.microbatch_size,
        "pipeline_parallel_layers_per_stage": w.layers // w.num_stages,
        "pipeline_parallel_first_stage_less_layers": 0,
        "pipeline_parallel_last_stage_less_layers": 0,
    }


def _spread(w: Transformer) -> Mapping[str, Any]:
    if w.expert_parallel == 1:
        return {}
    shards = w.expert_shards if isinstance(w, Moe) else w.tensor_parallel
    return {"expert_parallel_degree": w.expert_parallel, "expert_tensor_parallel_degree": shards}


def _section(name: str, values: Mapping[str, Any]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {to_json(value)}\n" for key, value in values.items())


def _commented(w: Transformer, notes: Iterable[str]) -> str:
    return "".join(f"# {line}\n" for line in (_title(w), *notes))


def _title(w: Transformer) -> str:
    degrees = " x ".join(
        f"{axis} {getattr(w, f'{axis}_parallel')}"
        for axis in ("tensor", "context", "pipeline", "data", "expert")
        if getattr(w, f"{axis}_parallel") > 1
    )
    return (
        f"{w.name} on {counted(w.num_ranks, 'rank')}: {degrees or 'one rank'}, micro-batch "
        f"{w.microbatch_size}, zero {w.zero}"
    )


# ---- Megatron-LM


def _megatron(w: Transformer, schedule: str) -> Written:
    linear = _biased_everywhere(w)
    _refuse(
        "Megatron-LM",
        (
            (w.pipeline_parallel > 1 and w.pipeline_schedule not in ("1f1b", "interleaved_1f1b"),
             f"has no pipeline schedule {w.pipeline_schedule}; hold pipeline_schedule 1f1b or interleaved_1f1b"),
            (w.recompute == "operations", "recomputes attention's core or whole layers; hold recompute none or full"),
            (w.halves != "one_after_the_other" or w.post_norms or w.head_bias,
             "has no arguments for parallel halves, norms behind them or a bias of the head"),
            (not linear and w.biased == "all", "has biases in all linear layers, or of queries, keys and values"),
            (w.kind == "moe" and w.tensor_parallel > 1 and not w.sequence_parallel,
             "trains experts with tensor parallelism on parts of sequences alone; hold sequence_parallel true"),
            (w.sequence_parallel and w.tensor_parallel == 1, "cuts sequences with tensors alone"),
            (w.context_exchange == "all_gather_steps" and w.context_parallel > 1,
             "has no context_exchange all_gather_steps; take ring, all_gather or ulysses"),
            (w.linear_dtype == "fp8_rowwise", "has no fp8 of rows; take fp8_tensorwise or fp8_delayed"),
            (w.zero > 1 and w.pipeline_parallel > 1, "shards states alone in a pipeline; hold zero 0 or 1"),
            (w.optimizer != "adamw", "needs an optimizer"),
            (isinstance(w, Moe) and (w.dispatch, w.dispatch_dtype) != ("all_to_all", "same"),
             "sends rows of experts in the model's type here; hold dispatch all_to_all and dispatch_dtype same"),
        ),
    )  # fmt: skip
    notes: list[str] = []
    if w.positions and w.rotary:
        notes.append("learnt positions go with no rotary ones in Megatron-LM: the rotary ones are left out")
    if w.activation == "geglu":
        notes.append("--quick-geglu gates by a quick GELU, which costs what GELU does")
    if isinstance(w, StateSpace):
        notes.append("for pretrain_mamba.py; add --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec")
    overlaps = schedule != BASELINE
    groups = (
        _megatron_model(w, biased=linear), _megatron_experts(w), _megatron_parallelism(w),
        _megatron_sharding(w, overlaps=overlaps), _megatron_step(w),
    )  # fmt: skip
    lines = [f"    --{name} {value}".rstrip() for group in groups for name, value in group]
    comments = "".join(f"# {line}\n" for line in (_title(w), *notes))
    return Written(f"{comments}MEGATRON_ARGS=(\n" + "\n".join(lines) + "\n)\n", tuple(notes))


Arguments = list[tuple[str, Any]]
"""Names and values of arguments, a flag's being empty."""


def _flags(**given: bool) -> Arguments:
    return [(name.replace("_", "-"), "") for name, is_set in given.items() if is_set]


def _biased_everywhere(w: Transformer) -> bool:
    if isinstance(w, Moe):
        return w.biased == "all" and w.expert_biases and (w.biases or not w.dense_layers)
    return w.biased == "all" and w.biases


def _megatron_model(w: Transformer, *, biased: bool) -> Arguments:
    gates = {"swiglu": "swiglu", "geglu": "quick-geglu"}
    made: Arguments = [
        ("num-layers", w.layers), ("hidden-size", w.hidden), ("ffn-hidden-size", w.ffn),
        ("num-attention-heads", w.heads), ("seq-length", w.sequence),
        ("max-position-embeddings", w.positions or w.sequence),
        ("position-embedding-type", "learned_absolute" if w.positions else "rope" if w.rotary else "none"),
        ("normalization", "LayerNorm" if w.norm == "layer_norm" else "RMSNorm"),
        ("vocab-size", w.vocabulary), ("make-vocab-size-divisible-by", 1),
        ("attention-backend", "unfused" if w.attention == "unfused" else "flash"),
        ("hidden-dropout", 0.1 if w.dropout else 0.0), ("attention-dropout", 0.1 if w.dropout else 0.0),
    ]  # fmt: skip
    if w.key_value_heads != w.heads and w.latent is None:
        made += [("group-query-attention", ""), ("num-query-groups", w.key_value_heads)]
    if w.latent is not None:
        latent = w.latent
        made += [("multi-latent-attention", "")]
        made += [("q-lora-rank", latent.query_rank)] if latent.query_rank else []
        made += [
            ("kv-lora-rank", latent.key_value_rank), ("qk-head-dim", latent.plain_dim),
            ("qk-pos-emb-head-dim", latent.rotary_dim), ("v-head-dim", latent.value_dim), ("qk-layernorm", ""),
        ]  # fmt: skip
    elif w.head_dim * w.heads != w.hidden:
        made.append(("kv-channels", w.head_dim))
    if w.activation in gates:
        made.append((gates[w.activation], ""))
    if w.window is not None:
        made.append(("window-size", f"{w.window - 1},0"))
        made += [("window-attn-skip-freq", w.full_attention_every)] if w.full_attention_every else []
    made += [("softmax-type", "learnable")] if w.attention_sinks else []
    made += [("mtp-num-layers", w.predicted_ahead)] if w.predicted_ahead else []
    return made + _flags(
        disable_bias_linear=not biased, add_qkv_bias=w.biased == "qkv", qk_layernorm=w.query_key_norm,
        untie_embeddings_and_output_weights=not w.tied_embedding,
    )  # fmt: skip


def _megatron_experts(w: Transformer) -> Arguments:
    if isinstance(w, StateSpace):
        return [
            ("hybrid-override-pattern", w.pattern), ("mamba-state-dim", w.state_size),
            ("mamba-head-dim", w.state_head_size), ("mamba-num-groups", w.state_groups),
        ]  # fmt: skip
    if not isinstance(w, Moe):
        return []
    made: Arguments = [
        ("num-experts", w.experts), ("moe-router-topk", w.top_k), ("moe-ffn-hidden-size", w.expert_width),
        ("moe-token-dispatcher-type", "alltoall"), ("expert-model-parallel-size", w.expert_parallel),
        ("expert-tensor-parallel-size", w.expert_shards),
    ]  # fmt: skip
    if w.shared_experts:
        made.append(("moe-shared-expert-intermediate-size", w.shared_experts * w.expert_width))
    if w.dense_layers:
        made.append(("moe-layer-freq", f'"([0]*{w.dense_layers}+[1]*{w.layers - w.dense_layers})"'))
    if w.capacity_factor is not None:
        made.append(("moe-expert-capacity-factor", w.capacity_factor))
    if w.expert_groups > 1:
        made += [("moe-router-num-groups", w.expert_groups), ("moe-router-group-topk", w.groups_of_token)]
    return made + _flags(
        moe_grouped_gemm=bool(w.grouped_experts),
        moe_router_enable_expert_bias=w.router_bias,
        moe_shared_expert_gate=w.shared_gate,
        moe_shared_expert_overlap=w.overlap_shared,
        moe_pad_expert_input_to_capacity=w.capacity_factor is not None and w.pad_to_capacity,
    )


def _megatron_parallelism(w: Transformer) -> Arguments:
    made: Arguments = [
        ("tensor-model-parallel-size", w.tensor_parallel), ("pipeline-model-parallel-size", w.pipeline_parallel),
        ("context-parallel-size", w.context_parallel),
    ]  # fmt: skip
    if w.context_parallel > 1:
        made.append(("cp-comm-type", {"ring": "p2p", "ulysses": "a2a"}.get(w.context_exchange, w.context_exchange)))
    made += _flags(sequence_parallel=w.sequence_parallel)
    if w.pipeline_parallel == 1:
        return made
    if w.pipeline_schedule == "interleaved_1f1b":
        if w.stage_layers:
            raise ConfigError("Megatron-LM cuts virtual stages of equal layers; leave stage_layers out")
        made.append(("num-layers-per-virtual-pipeline-stage", w.layers // w.num_stages))
        if w.microbatch_group is not None:
            made.append(("microbatch-group-size-per-vp-stage", w.microbatch_group))
        return made + _flags(no_overlap_p2p_communication=not w.overlap_sends)
    if w.stage_layers:
        first, *middle, last = w.stage_layers
        if len(set(middle)) > 1:
            raise ConfigError(
                "Megatron-LM gives stages between the first and the last equal layers; change stage_layers"
            )
        made += [("decoder-first-pipeline-num-layers", first), ("decoder-last-pipeline-num-layers", last)]
    return made


def _megatron_sharding(w: Transformer, *, overlaps: bool) -> Arguments:
    strategies = {2: "optim_grads", 3: "optim_grads_params"}
    made: Arguments = [("use-distributed-optimizer", "")] if w.zero else []
    if w.zero in strategies:
        made += [("use-megatron-fsdp", ""), ("data-parallel-sharding-strategy", strategies[w.zero])]
    if w.replicas_of_shards > 1:
        made.append(("num-distributed-optimizer-instances", w.replicas_of_shards))
    return made + _flags(
        overlap_grad_reduce=overlaps or w.overlap_gradient_reduce or w.zero > 1,
        overlap_param_gather=bool(w.zero) and (overlaps or w.overlap_parameter_gather or w.zero > 1),
    )


def _megatron_step(w: Transformer) -> Arguments:
    made: Arguments = [
        ("micro-batch-size", w.microbatch_size), ("global-batch-size", w.batch_per_replica * w.data_parallel),
        ("clip-grad", _NORM),
    ]  # fmt: skip
    if w.recompute == "selective":
        made.append(("recompute-activations", ""))
    if w.recompute == "up_projections":
        made += [("recompute-granularity", "selective"), ("recompute-modules", "mla_up_proj")]
    if w.recompute == "full" and w.recompute_layers != 0:
        method = ("uniform", 1) if w.recompute_layers is None else ("block", w.recompute_layers)
        made += [
            ("recompute-granularity", "full"),
            *zip(("recompute-method", "recompute-num-layers"), method, strict=True),
        ]
    if w.linear_dtype != "same":
        made += [("fp8-format", "hybrid"), ("fp8-recipe", w.linear_dtype.removeprefix("fp8_"))]
    reduces_half = w.gradient_dtype in (None, "bf16") and w.dtype == "bf16"
    return made + _flags(
        bf16=w.dtype == "bf16", fp16=w.dtype == "fp16", grad_reduce_in_bf16=reduces_half,
        no_gradient_accumulation_fusion=not w.fused_accumulation, cross_entropy_loss_fusion=w.loss == "fused",
    )  # fmt: skip


# ---- DeepSpeed


def _deepspeed(w: Transformer, schedule: str) -> Written:
    pipelined = w.pipeline_parallel > 1
    _refuse(
        "DeepSpeed",
        (
            (pipelined and w.pipeline_schedule != "1f1b", f"has no pipeline schedule {w.pipeline_schedule}; hold 1f1b"),
            (pipelined and w.zero > 1, "shards states alone in a pipeline; hold zero 0 or 1"),
            (pipelined and w.tensor_parallel > 1, "cuts tensors of a pipeline by Megatron-DeepSpeed; export megatron"),
            (w.sequence_parallel, "cuts tensors without sequences (AutoTP); hold sequence_parallel false"),
            (w.tensor_parallel > 1 and w.zero > 2, "cuts tensors (AutoTP) with zero 0 to 2; hold zero at one of them"),
            (w.context_parallel > 1 and w.context_exchange != "ulysses",
             f"exchanges tokens for heads, not by {w.context_exchange}; set context_exchange to ulysses"),
            (w.shard_ranks is not None and w.zero < 3, "shards over all replicas below zero 3; leave shard_ranks out"),
            (w.linear_dtype != "same", "has no key for GEMMs in fp8; take linear_dtype same"),
        ),
    )  # fmt: skip
    numbers = int(w.gradient_bucket) // w.gradient_bytes
    zero: dict[str, Any] = {"stage": w.zero, "contiguous_gradients": True, "reduce_bucket_size": numbers}
    zero["overlap_comm"] = schedule != BASELINE or w.zero == 3
    if w.shard_ranks is not None:
        zero["mics_shard_size"] = w.shard_ranks
    config: dict[str, Any] = {
        "train_batch_size": w.batch_per_replica * w.data_parallel,
        "train_micro_batch_size_per_gpu": w.microbatch_size,
        "gradient_accumulation_steps": w.num_microbatches,
        "zero_optimization": zero,
        "gradient_clipping": _NORM,
    }
    if w.dtype != "fp32":
        config[w.dtype] = {"enabled": True}
    if w.gradient_dtype == "fp32" and w.dtype != "fp32":
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    if w.tensor_parallel > 1:
        config["tensor_parallel"] = {"autotp_size": w.tensor_parallel}
    if w.context_parallel > 1:
        config["sequence_parallel_size"] = w.context_parallel
    return Written(to_json(config, indent=2) + "\n", tuple(_in_code(w)))


def _in_code(w: Transformer) -> Iterable[str]:
    yield f"sequences of {w.sequence} tokens, the optimizer (AdamW) and its learning rate are the script's"
    if w.pipeline_parallel > 1:
        yield f"in code: PipelineModule(layers=..., num_stages={w.pipeline_parallel})"
    if w.expert_parallel > 1:
        yield f"in code: deepspeed.moe.layer.MoE(..., ep_size={w.expert_parallel})"
    if w.recompute != "none":
        first = "" if w.recompute_layers is None else f"the first {w.recompute_layers} of each stage's "
        part = f"{first}layers" if w.recompute == "full" else "parts of layers"
        yield f"in code: checkpoint {part} (recompute {w.recompute}), such as model.gradient_checkpointing_enable()"


FORMATS: Mapping[str, Format] = {
    "torchtitan": Format(_torchtitan, "plan.toml", "TOML of torchtitan v0.2"),
    "megatron": Format(_megatron, "plan.sh", "arguments of Megatron-LM"),
    "deepspeed": Format(_deepspeed, "plan.json", "JSON of DeepSpeed"),
}
"""Name of a framework to how a plan is written for it."""
