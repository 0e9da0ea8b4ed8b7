"""Families of models, one file each: the keys of its workload files, and what it writes on the autograd tape.

`load_workload` reads a workload file: a model, its parallelism and the options of a run, of the family that the key
`kind` tells. All sizes must divide exactly: what does not divide is refused with a message that says which key, and no
value is ever rounded. A file may be `like` another, by name or file, and then holds only the keys that differ.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict

from scaleout.config.library import check_kind, find, is_path, lengthened, pop_like
from scaleout.config.units import RankCount
from scaleout.config.validated import Config, nearest, read_yaml, validate, with_new_names
from scaleout.errors import ConfigError
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.config.frameworks import FRAMEWORKS
from scaleout.workloads.families.convolutional import Convolutional
from scaleout.workloads.families.diffusion import DiffusionTransformer
from scaleout.workloads.families.dlrm import Dlrm
from scaleout.workloads.families.moe import Moe
from scaleout.workloads.families.state_space import StateSpace
from scaleout.workloads.families.transformer import Transformer

__all__ = ["FAMILIES", "Convolutional", "Dlrm", "Moe", "Transformer", "load_workload", "workload_of"]

FAMILIES: dict[str, type[ModelFamily]] = {
    "convolutional": Convolutional,
    "dlrm": Dlrm,
    "transformer": Transformer,
    "moe": Moe,
    "state_space": StateSpace,
    "diffusion_transformer": DiffusionTransformer,
}
"""Value of `kind` to the family."""

_RENAMED = {old: new for family in FAMILIES.values() for old, new in family.RENAMED.items()}
"""Old names of keys to new ones, of all families."""

_SHARDS: tuple[str, ...] = ("framework", "zero", "shard_ranks", "replicas_at_end", "overlap_parameter_gather")
"""Keys of how training shards; a framework of training sets them."""

_PASSES: tuple[str, ...] = ("microbatch", "pipeline_schedule", "virtual_stages", "microbatch_group")
"""Keys of how training cuts a step into forward and backward passes."""

RANKS = "{ranks}"
"""In the name of a workload's topology: the number of its ranks."""


def load_workload(name_or_file: str | Path, changes: Mapping[str, Any] | None = None) -> ModelFamily:
    """Read a workload by name or file, with some of its keys changed.

    Parameters
    ----------
    name_or_file : str or Path
        A name that `scaleout list workloads` prints, or a path.
    changes : mapping, optional
        Keys of the file and the values to put in their place.

    Raises
    ------
    ConfigError
        If there is no such workload, a key is unknown, or sizes do not divide.
    """
    path = find("workload", str(name_or_file))
    read = _over(_read(path), _with_new_names("--set", changes or {}))
    workload = workload_of({"name": path.stem} | read.keys, path, where=f"workload {name_or_file}")
    named = {"topology": workload.topology.replace(RANKS, str(workload.num_ranks))}
    return workload.model_copy(update=named).served_without(read.of_training)


class _Replica(Config):
    """Degrees of a replica, of all keys of a workload."""

    model_config = ConfigDict(extra="ignore")

    tensor_parallel: RankCount = 1
    pipeline_parallel: RankCount = 1
    context_parallel: RankCount = 1


def ranks_of_replica(name_or_file: str, changes: Mapping[str, Any]) -> int:
    """Return how many ranks a replica of a changed workload takes; what depends on how many there are is not checked.

    `ConfigError` if there is no such workload, or a degree is none.
    """
    keys = _over(_read(find("workload", name_or_file)), _with_new_names("--set", changes)).keys
    found = validate(_Replica, keys, where=f"workload {name_or_file}")
    return found.tensor_parallel * found.pipeline_parallel * found.context_parallel


def workload_of(values: Mapping[str, Any], path: Path, *, where: str) -> ModelFamily:
    """Return the workload of keys and values that stem from a file; a ConfigError says what is wrong with them."""
    kind = values.get("kind")
    if kind is None:
        check_kind(values, "workload", where=str(path))
        told = f"{path}: key 'kind' is missing; add one of {', '.join(FAMILIES)}"
        is_model = path.suffix == ".json"
        raise ConfigError(
            told + is_model * f"; of a model's config.json `scaleout import model {path}` makes a workload"
        )
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(f"{path}: kind {kind!r} is no kind of workload; {nearest(str(kind), FAMILIES)}")
    return validate(FAMILIES[kind], values, where=where)


class _Read(NamedTuple):
    """Keys of a workload, and those of training that its mode has left out."""

    keys: dict[str, Any]
    of_training: Mapping[str, Any] = {}


def _read(path: Path, *, seen: tuple[Path, ...] = ()) -> _Read:
    """Read a file's keys over those of the workload that it is `like`, if it names one."""
    chain = lengthened(seen, path, key="like")
    values = _with_new_names(str(path), read_yaml(path))
    values |= {key: _beside(path, values[key]) for key in ("topology", "device", "like") if key in values}
    like = pop_like(values, "workload", path)
    if like is None:
        return _Read(values)
    below = _read(find("workload", like, named_by=f"{path}: like"), seen=chain)
    return _over(
        below, {"description": f"{like} with other values: {', '.join(map(str, values))}", "source": ""} | values
    )


def _over(read: _Read, above: Mapping[str, Any]) -> _Read:
    """Lay keys over others; a framework that they bring in decides anew what it sets, whatever stood below.

    A mode of serving leaves out how training shards and cuts its step: nobody gathers parameters for each token, nor
    reads the weights anew for each micro-batch that a trainer's memory allowed. Decode leaves out sequence parallelism
    as well, by which a trainer saves memory: servers all-reduce one token.
    """
    below, mode, trains = read.keys, above.get("mode"), read.keys.get("mode", "training") == "training"
    leaves = (*_SHARDS, *_PASSES, *_other_stages(below, above)) if trains and mode in ("prefill", "decode") else ()
    leaves += ("sequence_parallel",) if mode == "decode" != below.get("mode") else ()
    plain = {key: Transformer.model_fields[key].default for key in leaves}
    left = {key: below[key] for key in leaves if below.get(key, plain[key]) not in (plain[key], None)}
    left = {key: value for key, value in left.items() if key not in above}
    below = {key: value for key, value in below.items() if key not in leaves}
    name = above.get("framework")
    if isinstance(name, str) and name in FRAMEWORKS and name != below.get("framework"):
        decides = {setting.key for setting in FRAMEWORKS[name].settings}
        below = {key: value for key, value in below.items() if key not in decides}
    return _Read({**below, **above}, {**read.of_training, **left})


def _other_stages(below: Mapping[str, Any], above: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the key of stages of unequal layers if a plain pipeline has another number of stages."""
    written, stages = below.get("stage_layers"), {**below, **above}.get("pipeline_parallel", 1)
    return ("stage_layers",) if isinstance(written, list | tuple) and len(written) != stages else ()


def _with_new_names(where: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename keys before they are laid over others', so that an old name from above wins over a new one from below."""
    try:
        return dict(with_new_names(values, _RENAMED))
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def _beside(path: Path, name: Any) -> Any:
    """Read a relative path in a workload file as relative to that file; a name stays a name."""
    is_relative = isinstance(name, str) and is_path(name) and not Path(name).is_absolute()
    return str(path.parent / name) if is_relative else name
