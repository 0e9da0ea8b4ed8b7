"""Models from where people have them, to workload files: HuggingFace, torchtitan, Megatron-LM and Megatron-Bridge.

A source says what a model is, some also how it is run. What it does not say is chosen, and told; what a workload cannot
have is refused; what is ignored is named. `plans` writes the other way: a workload as a framework's configuration.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from scaleout.config.documents import is_file, read_json, read_text
from scaleout.config.keys import value_of
from scaleout.errors import ConfigError, printable, shown
from scaleout.interop.models import huggingface, megatron, torchtitan
from scaleout.interop.models.fields import Asked, Keys, Source
from scaleout.interop.models.megatron_text import MOST_BYTES, arguments_of_script, arguments_of_yaml
from scaleout.workloads.config.layered import LayeredModel, layered
from scaleout.workloads.families import workload_of

USUAL_SEQUENCE = 4096
_CHOSEN: Mapping[str, Any] = {"device": "h200", "batch_per_replica": 1, "dtype": "bf16"}
_FIRST = ("kind", "framework", "description", "source", "left_out", "topology", "device", "schedules")


@dataclass(frozen=True)
class Imported:
    """A workload made of a file, and what the user is to be told of it."""

    workload: LayeredModel
    keys: Mapping[str, Any]  # as they stand in a workload file
    notes: tuple[str, ...]
    chosen: Mapping[str, Any]  # of the keys those that neither the file nor the user says

    @property
    def text(self) -> str:
        """The workload file, with the notes as comments."""
        comments = "".join(f"# {printable(note)}\n" for note in self.notes)
        return comments + yaml.safe_dump(dict(self.keys), sort_keys=False, width=120, allow_unicode=True)


def import_model(path: Path, *, ranks: int | None = None, changes: Mapping[str, Any] | None = None) -> Imported:
    """Make a workload of a file.

    Parameters
    ----------
    path : Path
        A `config.json` of HuggingFace or the folder that holds one, a TOML of torchtitan, or a script or YAML of
        Megatron-LM or Megatron-Bridge.
    ranks : int, optional
        Ranks of the job; degrees that the source leaves open follow from it. 8 if it says nothing of them.
    changes : mapping, optional
        Keys of the workload and their values, which win over those of the source.

    Raises
    ------
    ConfigError
        If the file is of no known form or architecture, or has what no workload can have.
    """
    file, read = _form(path)
    given = dict(changes or {})
    source = read(file, Asked(ranks, given))
    notes, keys = list(source.notes), dict(source.keys)
    chosen = {key: value for key, value in _chosen(source, keys, ranks).items() if key not in {**keys, **given}}
    if chosen:
        bounded = "sequence" in chosen and source.longest is not None and source.longest <= USUAL_SEQUENCE
        told = ", ".join(
            f"{key} {value_of(value)}" for key, value in chosen.items() if not (bounded and key == "sequence")
        )
        notes.append(f"chosen, as no key of the {source.what} says it: {told}; --set changes it")
        if bounded:
            notes.append(f"sequence {source.longest}, the longest that the file says the model takes; --set changes it")
    whose = file.absolute().parent.name if file.stem == "config" else file.name
    keys |= {"description": f"{source.what} of {whose}", "source": str(file), **chosen, **given}
    keys |= _capacity(keys, notes)
    keys = {key: keys[key] for key in (*_FIRST, *keys) if key in keys}
    workload = workload_of({"name": file.stem} | keys, file, where=str(file))
    return Imported(layered(workload, wants="an imported model is one"), keys, tuple(notes), chosen)


def _chosen(source: Source, keys: Keys, ranks: int | None) -> Keys:
    """Return what is chosen where neither the source nor the user says it."""
    model_ranks = math.prod(keys.get(f"{axis}_parallel", 1) for axis in ("tensor", "pipeline", "context"))
    replicas = ranks if ranks is not None else max(8, model_ranks)
    if replicas % model_ranks:
        raise ConfigError(
            f"{replicas} ranks do not divide into replicas of {model_ranks} (tensor, pipeline and context parallelism "
            f"of {source.what}); give a topology of a multiple of {model_ranks}"
        )
    sequence = min(USUAL_SEQUENCE, source.longest or USUAL_SEQUENCE)
    data = keys.get("data_parallel", replicas // model_ranks)
    topology = f"dgx-h200-{max(1, data * model_ranks // 8)}"
    return {**_CHOSEN, "topology": topology, "data_parallel": data, "sequence": sequence, **source.usual}


def _capacity(keys: Mapping[str, Any], notes: list[str]) -> Keys:
    """Pad what experts get where the tokens of a micro-batch do not spread evenly over them."""
    if keys["kind"] != "moe" or "capacity_factor" in keys:
        return {}
    degrees = (keys.get(f"{axis}_parallel", 1) for axis in ("context", "tensor", "expert"))
    model = (keys["sequence"], keys.get("top_k"), keys.get("experts"))
    given = (keys.get("microbatch", keys["batch_per_replica"]), *model, *degrees)
    sizes = [size for size in given if isinstance(size, int) and size > 0]
    if len(sizes) < len(given):
        return {}  # which the workload's own checks refuse
    batch, sequence, top_k, experts, context, tensor, expert = sizes
    if sequence * batch // context * top_k % (experts * tensor * expert) == 0:
        return {}
    notes.append("chosen: capacity_factor 1.0, as tokens do not spread evenly over the experts, which are padded")
    return {"capacity_factor": 1.0}


def _huggingface(file: Path, _asked: Asked) -> Source:
    values = read_json(file, infinite=True)
    if not isinstance(values, dict):
        raise ConfigError(f"{file}: holds {shown(values)}, not an object; give a model's config.json")
    keys, notes, longest = huggingface.read(values, str(file))
    usual = {"grouped_experts": True} if keys["kind"] == "moe" else {}  # one kernel, as vLLM, SGLang and Megatron-Core
    return Source(keys, tuple(notes), f"HuggingFace {values['model_type']} config", longest, usual)


def _torchtitan(file: Path, asked: Asked) -> Source:
    return torchtitan.read(read_text(file), str(file), asked)


def _script(file: Path, asked: Asked) -> Source:
    values, told = arguments_of_script(read_text(file, most_bytes=MOST_BYTES))
    return megatron.read(values, told, str(file), asked)


def _yaml(file: Path, asked: Asked) -> Source:
    values, told = arguments_of_yaml(file)
    return megatron.read(values, told, str(file), asked)


_Reader = Callable[[Path, Asked], Source]

_FORMS: Mapping[str, _Reader] = {
    ".json": _huggingface,
    ".toml": _torchtitan,
    **dict.fromkeys((".sh", ".txt", ".args", ".slurm", ".sbatch"), _script),
    **dict.fromkeys((".yaml", ".yml"), _yaml),
}
"""End of a file's name to what reads it."""


def _form(path: Path) -> tuple[Path, _Reader]:
    """Return the file of a path, and what reads it."""
    file = path / "config.json" if path.is_dir() else path
    if not is_file(file):
        raise ConfigError(f"{file}: no such file; give a model's config.json, or the folder that holds it")
    if file.suffix not in _FORMS:
        raise ConfigError(f"{file}: files that end in {file.suffix!r} are not read; give one in {', '.join(_FORMS)}")
    return file, _FORMS[file.suffix]
