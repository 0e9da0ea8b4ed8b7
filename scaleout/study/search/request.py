"""What a search is for: the names and texts of a user to a checked `SearchRequest`."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from math import fsum
from typing import Any

from pydantic import create_model

from scaleout.cluster.device.host import check_host
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import counted, format_bytes
from scaleout.config.validated import Config, nearest, validate, with_new_names
from scaleout.errors import ConfigError
from scaleout.schedule import passes_of
from scaleout.simulation.contention import undisturbed
from scaleout.simulation.options import SimulationOptions
from scaleout.study.realism import options_for
from scaleout.study.search.evaluate import BASELINE, ON_BLOCKS, Estimate, peak_bytes_of, unlike_blocks
from scaleout.study.search.lower_bound import lower_bounds_of
from scaleout.study.search.space import Plan, workload_of
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.config.frameworks import FRAMEWORKS
from scaleout.workloads.config.layered import LayeredModel, layered
from scaleout.workloads.families import load_workload
from scaleout.workloads.pipeline import PIPELINES

MOST_TOKENS = 2**36
"""Tokens of a step: a thousand times those of the largest batches that are trained with."""

_ONE_RANK: Mapping[str, Any] = {
    **dict.fromkeys(("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"), 1),
    **{"microbatch": None, "pipeline_schedule": "1f1b", "virtual_stages": None, "sequence_parallel": False},
}
"""Of a replica: keys that plans choose, and that nothing else of a workload must divide."""
_STAGES = ("pipeline_parallel", "pipeline_schedule", "virtual_stages")
"""Keys that plans choose and that say how many stages there are."""


@dataclass(frozen=True)
class SearchRequest:
    """What is searched.

    Attributes
    ----------
    base : LayeredModel
        The model, and all keys that no plan chooses.
    topology : Topology
        With as many ranks as the job.
    batch : int
        Sequences in a step, over all replicas.
    memory_bytes : float
        What a rank may hold.
    top : int
        How many plans are wanted.
    fixed : mapping
        Keys of `Plan` that are not to be chosen.
    schedules : tuple of str
        Schedules besides `baseline` under which each plan is tried.
    simulations : int
        How many plans are simulated under each of them at the most.
    options : SimulationOptions
        How they are simulated; the host's calls count in the estimates of blocks, too.
    """

    base: LayeredModel
    topology: Topology
    device: Device
    batch: int
    memory_bytes: float
    top: int = 10
    fixed: Mapping[str, Any] = field(default_factory=dict)
    schedules: tuple[str, ...] = ()
    simulations: int = 8
    options: SimulationOptions = field(default_factory=SimulationOptions)

    @property
    def num_ranks(self) -> int:
        """Ranks of the job."""
        return self.topology.num_ranks

    @property
    def figures(self) -> "Figures":
        """What this process knows of the plans."""
        return _figures_of(self.base, self.block_base, self.topology, self.device, self.batch)

    def workload(self, plan: Plan) -> LayeredModel:
        """Return the workload of a plan."""
        return workload_of(plan, self.base, self.batch)

    @cached_property
    def block_base(self) -> LayeredModel:
        """The model without what blocks do not know; plans that are shown are simulated with it."""
        sets = self.base.framework is not None or unlike_blocks(self.base)  # a framework sets some for pipelines alone
        return self.base.changed(ON_BLOCKS) if sets else self.base

    def blocks(self, plan: Plan) -> LayeredModel:
        """Return the workload of a plan as blocks are timed."""
        return workload_of(plan, self.block_base, self.batch)


class Figures:
    """What several steps of a search ask of a plan, each counted once in a process.

    `passes_s` is a lower bound under `baseline`, `peak_bytes` what the fullest rank holds; `simulated` has the
    estimates of workloads that were simulated.
    """

    def __init__(
        self, base: LayeredModel, block_base: LayeredModel, topology: Topology, device: Device, batch: int
    ) -> None:
        self.lower_bounds = lower_bounds_of(topology, device)
        self.simulated: dict[Hashable, Estimate] = {}
        self.passes_s = cache(lambda plan: self.lower_bounds.passes_s(workload_of(plan, block_base, batch)))
        self.peak_bytes = cache(lambda plan: fsum(peak_bytes_of(workload_of(plan, base, batch)).values()))


_figures_of = lru_cache(maxsize=1)(Figures)


def request_of(
    name: str, topology: Topology, device: Device, *, changes: Mapping[str, Any] | None = None, **wanted: Any
) -> SearchRequest:
    """Make the request of a search from a workload by name or file.

    Parameters
    ----------
    changes : mapping, optional
        Keys of the workload to change. Those that a plan chooses are held fixed.
    **wanted
        `batch`, `memory_bytes`, `top`, `schedules`, `simulations` and `options` of `SearchRequest`, where None stands
        for the default: the workload's batch over all replicas, the device's memory. With `stated`,
        keywords of `options_for`, the options are what that makes of them. Blocks know no other network,
        placement or algorithm than the default. And `num_ranks`, which must be the topology's: a part of a topology is
        another topology.

    Raises
    ------
    ConfigError
        If the workload is not of layers in training, a key, value or schedule is wrong, or ranks do not agree.
    """
    given = dict(with_new_names(changes or {}, LayeredModel.RENAMED))
    fixed = {key: given.pop(key) for key in Plan._fields if key in given}
    checked = ("zero", *(_STAGES if given.get("stage_layers") else ()))  # other keys are checked against these
    settings = given | {key: fixed[key] for key in checked if key in fixed}
    wants = "a search is over plans of training a model of layers"
    base = layered(_load(name, settings), wants=wants)
    if base.mode != "training":
        raise ConfigError(
            f"workload {name!r} is in mode {base.mode!r}; {wants}; compare plans of {base.mode} with a study, such as "
            f"`scaleout study serving` (its file is workloads/studies/serving.yaml, to copy and edit)"
        )
    chosen = {key: value for key, value in wanted.items() if value is not None}
    num_ranks = chosen.pop("num_ranks", topology.num_ranks)
    if num_ranks != topology.num_ranks:
        raise ConfigError(
            f"--ranks {num_ranks}: topology {topology.name!r} has "
            f"{counted(topology.num_ranks, 'rank')}; give a topology of "
            f"{counted(num_ranks, 'rank')}, as the links of a part of one are not known"
        )
    chosen.setdefault("batch", base.batch_per_replica * base.data_parallel)
    if chosen["batch"] * base.sequence > MOST_TOKENS:
        raise ConfigError(
            f"a global batch of {chosen['batch']:,} sequences of {base.sequence:,} tokens is more than the "
            f"{MOST_TOKENS:,} tokens a step that are searched; give a smaller --global-batch"
        )
    chosen.setdefault("memory_bytes", device.usable_bytes)
    if (stated := chosen.pop("stated", None)) is not None:
        chosen["options"] = options_for(base, device, options=chosen.get("options"), **stated)
    _check_options(chosen.get("options", SimulationOptions()), device)
    chosen["schedules"] = tuple(each for each in dict.fromkeys(chosen.get("schedules", ())) if each != BASELINE)
    held = zero_of_framework(base) | _checked(base, fixed)
    held |= {"stage_layers": base.stage_layers} if given.get("stage_layers") else {}
    request = SearchRequest(base, topology, device, fixed=held, **chosen)
    _check_room(request)
    for schedule in request.schedules:
        passes_of(schedule)
    if request.schedules and topology.library is not None and topology.library.blocks_host:
        raise ConfigError(
            f"topology {topology.name!r} has a back end that blocks the host, so that every schedule is the baseline; "
            f"leave --schedule out, or give another topology"
        )
    return request if request.options.contention else replace(request, topology=undisturbed(topology))


def zero_of_framework(base: LayeredModel) -> dict[str, int]:
    """Return how a framework shards, as a key of plans: PyTorch's FSDP with another `zero` is none; else nothing."""
    own = base.framework is not None and "zero" in FRAMEWORKS[base.framework].applying(base.given)
    return {"zero": base.zero} if own and "zero" not in base.model_fields_set else {}


def _load(name: str, settings: Mapping[str, Any]) -> ModelFamily:
    """Load a workload with the degrees of its file, or where these do not divide what is set, with those of one rank.

    Plans have neither; the error is of the former.
    """
    try:
        return load_workload(name, settings)
    except ConfigError as error:
        try:
            return load_workload(name, {**settings, **_ONE_RANK})
        except ConfigError:
            raise error from None


def _check_room(request: SearchRequest) -> None:
    """Refuse a memory that cannot hold the parameters, wherever they lie, before plans are looked at."""
    needed_bytes = request.base.num_parameters * request.base.item_bytes
    if needed_bytes > request.memory_bytes * request.num_ranks:
        raise ConfigError(
            f"no plan fits: the parameters of workload {request.base.name!r} take "
            f"{format_bytes(needed_bytes, like=request.memory_bytes)}, and {counted(request.num_ranks, 'rank')} of "
            f"{format_bytes(request.memory_bytes)} each do not hold them; give more ranks or more --memory"
        )


def _check_options(options: SimulationOptions, device: Device) -> None:
    """Refuse what the lower bounds of a search do not hold under, as some of the fastest plans would be left out."""
    only = SimulationOptions(host=options.host, clocks=options.clocks, contention=options.contention)
    if options != only:
        raise ConfigError(
            "a search weighs blocks of plans on the alpha-beta network, ranks in order and each collective by its "
            "fastest algorithm; leave the other options out, and give them to `scaleout run` with the plan"
        )
    if options.clocks == "cold_start":
        raise ConfigError(
            "a search is of steps that go on, and clocks cold_start are those of a few steps; take clocks sustained "
            "or unthrottled"
        )
    check_host(device, options.host)


def _checked(base: LayeredModel, fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Check the values that keys of plans are held at, each for itself."""
    keys: dict[str, Any] = {key: (info.annotation, info) for key, info in type(base).model_fields.items()}
    model = create_model("Keys", __base__=Config, **{key: keys[key] for key in Plan._fields})
    values = validate(model, fixed, where="--set")
    name = getattr(values, "pipeline_schedule")  # noqa: B009 - the model is made here
    if name not in PIPELINES:
        raise ConfigError(f"--set: unknown pipeline_schedule {name!r}; {nearest(name, PIPELINES)}")
    return {key: getattr(values, key) for key in fixed}
