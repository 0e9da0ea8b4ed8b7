"""torchtitan's TOML to the keys of a workload, and a workload as torchtitan's TOML.

The model is a name and a flavor, whose sizes `flavors` has; the rest says how a step runs. Later torchtitan configures
itself in Python, by the same names.

Symbols: p ranks of a pipeline; L layers; w layers that embedding and head count as.
Source: github.com/pytorch/torchtitan at v0.2.2, torchtitan/config/job_config.py and torchtitan/distributed.
"""

import tomllib
from collections.abc import Mapping
from typing import Any

from scaleout.config.reading import nearest
from scaleout.errors import ConfigError, shown
from scaleout.interop.models.fields import Asked, Fields, Keys, Source
from scaleout.interop.models.flavors import FLAVORS, UNNAMED

SCHEDULES = {
    "GPipe": "gpipe",
    "1F1B": "1f1b",
    "Interleaved1F1B": "interleaved_1f1b",
    "ZBVZeroBubble": "zb_v",
    "DualPipeV": "dualpipe_v",
}
"""Pipeline schedule to ours."""
_LOOPED = ("interleaved_1f1b", "zb_v", "dualpipe_v")
_DTYPES = {"bfloat16": "bf16", "float32": "fp32"}
_NEUTRAL_SECTIONS = (
    "job", "profiling", "metrics", "lr_scheduler", "checkpoint", "comm", "memory_estimation", "fault_tolerance",
    "validation", "debug",
)  # fmt: skip
_NEUTRAL: Mapping[str, tuple[str, ...]] = {
    "model": ("hf_assets_path", "tokenizer_path", "print_after_conversion"),
    "training": (
        "dataset", "dataset_path", "steps", "gc_freq", "gc_debug", "dataloader", "mixed_precision_reduce", "dtype",
    ),
    "optimizer": ("lr", "beta1", "beta2", "eps", "weight_decay"),
    "parallelism": ("context_parallel_load_balancer", "pipeline_parallel_expert_parallel_overlap"),
    "activation_checkpoint": ("preserve_rng_state", "determinism_check", "debug", "visualize_memory_budget_pareto"),
    "compile": ("backend",),
}  # fmt: skip


def read(text: str, where: str, asked: Asked) -> Source:
    """Return what a TOML says.

    Raises
    ------
    ConfigError
        If it is no TOML, names a model or an option that is not known, or leaves out a degree that nothing fixes.
    """
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is no TOMLDecodeError
        raise ConfigError(f"{where}: not valid TOML ({error or 'too many levels'}); mend it") from None
    job = _Job(values, where, asked)
    keys = job.keys()
    return Source(keys, tuple(job.finish()), "torchtitan TOML")


class _Job:
    """The sections of a TOML, each of whose keys is read or told of."""

    def __init__(self, values: Mapping[str, Any], where: str, asked: Asked) -> None:
        self.where, self.asked, self.values = where, asked, values
        self.sections = {
            name: Fields(self._section(values, name), f"{where}: [{name}]")
            for name in ("model", "training", "optimizer", "parallelism", "activation_checkpoint", "compile")
        }

    def _section(self, values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        found = values.get(name, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{self.where}: {name} is {shown(found)}; it is a section, such as [{name}]")
        return found

    def keys(self) -> Keys:
        """Return the keys of a workload."""
        model = self._model()
        keys = {
            **model, "framework": "fsdp2", "separate_projections": True, "gradient_dtype": "fp32",
            **self._training(), **self._parallelism(model["layers"]), **self._recompute(), **self._compile(),
        }  # fmt: skip
        return {key: value for key, value in (keys | self._batch(keys)).items() if value is not None}

    def _model(self) -> Keys:
        model = self.sections["model"]
        name, flavor = model.any("name", "llama3"), model.any("flavor", "debugmodel")
        names = {each for each, _ in FLAVORS}
        if name == UNNAMED:
            raise model.refusal(
                "name",
                "stands for a model that torchtitan lacks, whose sizes this file does not tell; run the workload that "
                "the plan was written from, or import the model's config.json, with the plan's degrees (--set)",
            )
        if not isinstance(name, str) or name not in names:
            raise model.refusal("name", f"not one of the models that are known; {nearest(str(name), names)}")
        flavors = [each for own, each in FLAVORS if own == name]
        if flavor not in flavors:
            raise model.refusal("flavor", f"no flavor of {name} that is known; known: {', '.join(flavors)}")
        return {**FLAVORS[name, flavor], **self._converted(model)}

    def _converted(self, model: Fields) -> Keys:
        """Read what converts layers: GEMMs in fp8."""
        wanted = model.any("converters", [])
        known = "quantize.linear.float8"
        if not isinstance(wanted, list) or any(each != known for each in wanted):
            raise model.refusal("converters", f"of them {known} is known; leave the others out")
        if not wanted:
            return {}
        quantize = self.values.get("quantize", {})
        options = quantize.get("linear", {}).get("float8", {}) if isinstance(quantize, dict) else {}
        float8 = Fields(options, f"{self.where}: [quantize.linear.float8]")
        recipe = float8.word("recipe_name", {"tensorwise": "fp8_tensorwise", "rowwise": "fp8_rowwise"}, "tensorwise")
        gathers = float8.flag("enable_fsdp_float8_all_gather", default=False)
        float8.finish(("precompute_float8_dynamic_scale_for_fsdp", "filter_fqns", "emulate"))
        model.notes += float8.notes
        return {"linear_dtype": recipe} | ({"gather_dtype": "fp8_e4m3"} if gathers else {})

    def _training(self) -> Keys:
        training, optimizer = self.sections["training"], self.sections["optimizer"]
        training.must_be("enable_cpu_offload", (False,), "states on the host are not modelled; set it to false")
        optimizer.word("name", {"AdamW": 1, "Adam": 1}, "AdamW")
        optimizer.left_out({"early_step_in_backward": ((False,), "here the optimizer steps behind backward")})
        kernels = {"fused": "fused", "foreach": "unfused", "for-loop": "unfused"}
        return {
            "sequence": training.count("seq_len", 2048),
            "dtype": training.word("mixed_precision_param", _DTYPES, "bfloat16"),
            "clip_gradients": training.number("max_norm", 1.0) > 0,
            "optimizer_kernels": optimizer.word("implementation", kernels, "fused"),
        }

    def _parallelism(self, layers: int) -> Keys:
        p = self.sections["parallelism"]
        tensor, pipeline, context, expert = (
            p.count(f"{axis}_parallel_degree", 1) for axis in ("tensor", "pipeline", "context", "expert")
        )
        p.left_out({"expert_parallel_comm_backend": (("standard",), "rows of experts go by all-to-all")})
        cut = p.count("expert_tensor_parallel_degree", 1)
        replicas, shards = p.count("data_parallel_replicate_degree", 1), self._shards(p, tensor * pipeline * context)
        p.left_out(
            {
                "enable_async_tensor_parallel": ((False,), "it is a schedule: scaleout run --schedule async-tp"),
                "disable_loss_parallel": ((False,), "the loss is of logits that are cut over the tensor axis"),
            }
        )
        rotates = p.word(
            "context_parallel_rotate_method", {"allgather": "all_gather_steps", "alltoall": "ring"}, "allgather"
        )
        return {
            "tensor_parallel": tensor,
            "sequence_parallel": tensor > 1,
            "pipeline_parallel": pipeline,
            "context_parallel": context,
            "context_exchange": rotates,
            "expert_parallel": expert,
            "expert_tensor_parallel": cut if expert > 1 and cut != tensor else None,
            "data_parallel": replicas * shards,
            **self._sharding(p, replicas, shards * context, pipelined=pipeline > 1),
            **self._pipeline(p, pipeline, layers),
        }

    def _shards(self, p: Fields, others: int) -> int:
        """Read the ranks that shard; -1 is all that are left of the job's."""
        found = p.any("data_parallel_shard_degree", -1)
        if found != -1:
            return p.count("data_parallel_shard_degree", 1)
        replicas = p.count("data_parallel_replicate_degree", 1)
        ranks = self.asked.ranks
        if ranks is None:
            raise ConfigError(
                f"{p.where}: data_parallel_shard_degree -1 takes the ranks that are left, and the file does not say "
                f"how many there are; give --topology, or a degree"
            )
        if ranks % (others * replicas):
            raise ConfigError(
                f"{p.where}: {ranks} ranks do not divide by {others * replicas} (tensor, pipeline and context "
                f"parallelism and replicas); give a topology of a multiple"
            )
        return ranks // (others * replicas)

    def _sharding(self, p: Fields, replicas: int, shards: int, *, pipelined: bool) -> Keys:
        """FSDP shards parameters; in a pipeline it keeps them whole and reduces once, which is what ZeRO-1 does."""
        policy = p.word(
            "fsdp_reshard_after_forward", {each: each for each in ("default", "always", "never")}, "default"
        )
        if shards == 1:
            return {"zero": 0}
        keeps = policy == "never" or (policy == "default" and pipelined)
        some = {"shard_ranks": shards} if replicas > 1 else {}
        if keeps and pipelined:
            p.note("FSDP in a pipeline, which keeps parameters and reduces gradients once, is zero 1")
            return {"zero": 1, **some}
        return {"zero": 3, "reshard_after_forward": not keeps, **some}

    def _pipeline(self, p: Fields, pipeline: int, layers: int) -> Keys:
        if p.any("module_fqns_per_model_part", None) or p.any("pipeline_parallel_schedule_csv", ""):
            raise ConfigError(f"{p.where}: stages and schedules written out are not read; leave them out")
        schedule = p.word("pipeline_parallel_schedule", SCHEDULES, "1F1B")
        first, last = (int(p.number(f"pipeline_parallel_{end}_stage_less_layers", 1)) for end in ("first", "last"))
        each = p.optional("pipeline_parallel_layers_per_stage")
        if pipeline == 1:
            return {}
        chunks = 2 if schedule in _LOOPED else 1
        if each is not None:
            stages = -(-(layers + first + last) // each)
            if stages % pipeline:
                raise p.refusal(
                    "pipeline_parallel_layers_per_stage",
                    f"makes {stages} stages, which do not divide over {pipeline} ranks",
                )
            chunks = stages // pipeline
        counts = _layers_of_stages(pipeline * chunks, layers, first, last)
        return {
            "pipeline_schedule": schedule,
            "virtual_stages": chunks if schedule == "interleaved_1f1b" else None,
            "stage_layers": None if len(set(counts)) == 1 else counts,
        }

    def _batch(self, keys: Keys) -> Keys:
        """Sequences of a replica: those of a local batch, times the batches whose gradients are added up."""
        training, p = self.sections["training"], self.sections["parallelism"]
        local, replicas = training.count("local_batch_size", 8), keys["data_parallel"]
        total = training.any("global_batch_size", -1)
        total = local * replicas if total == -1 else training.count("global_batch_size")
        if total % (local * replicas):
            raise training.refusal("global_batch_size", f"no multiple of {replicas} replicas' batches of {local}")
        microbatch = p.count("pipeline_parallel_microbatch_size", 1)
        if keys["pipeline_parallel"] == 1:
            return {"batch_per_replica": total // replicas, "microbatch": local}
        if total != local * replicas:
            training.note("the pipeline runs once over all sequences of a replica, and not once for each local batch")
        return {"batch_per_replica": total // replicas, "microbatch": microbatch}

    def _recompute(self) -> Keys:
        c = self.sections["activation_checkpoint"]
        mode, option = c.any("mode", "selective"), c.any("selective_ac_option", "2")
        if "recompute" in self.asked.keys or mode == "none":
            return {}
        if mode == "full":
            return {"recompute": "full", "stop_recompute_early": c.flag("early_stop", default=False)}
        if mode == "selective" and option == "op":
            return {"recompute": "operations"}
        raise ConfigError(
            f"{c.where}: mode {shown(mode)} with selective_ac_option {shown(option)} is not modelled; choose none, "
            f"full or selective with 'op', or say what to take instead: --set recompute=none, operations or full"
        )

    def _compile(self) -> Keys:
        c = self.sections["compile"]
        parts = c.any("components", ["model", "loss"])
        parts = parts if isinstance(parts, list) and c.flag("enable", default=False) else []
        layers = {"compiled": True, "norm": "rms_norm"} if "model" in parts else {"norm": "rms_norm_unfused"}
        return layers | ({"loss": "fused"} if "loss" in parts else {})

    def finish(self) -> list[str]:
        """Tell of what was not read."""
        notes: list[str] = []
        for name, fields in self.sections.items():
            fields.finish(_NEUTRAL[name])
            notes += [f"[{name}] {note}" for note in fields.notes]
        others = [name for name in self.values if name not in (*self.sections, "quantize")]
        neutral = [name for name in others if name in _NEUTRAL_SECTIONS]
        if neutral:
            notes.append(f"sections not read, as they do not change what a step costs: {', '.join(neutral)}")
        notes += [
            f"unknown: section {name}: what it changes, the workload lacks" for name in others if name not in neutral
        ]
        if "quantize" in self.values and not self.sections["model"].values.get("converters"):
            notes.append("[quantize] not read: model.converters names no converter")
        return notes


def _layers_of_stages(stages: int, layers: int, first: int, last: int) -> list[int]:
    """Layers of each stage: embedding and head count as some, and the first stages take what is left over."""
    each, more = divmod(layers + first + last, stages)
    counts = [each + (number < more) for number in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts
