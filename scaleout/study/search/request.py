"""Names and texts of a user to a `SearchRequest`; and why a search found no plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import create_model

from scaleout.cluster.device.host import check_host
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import format_bytes
from scaleout.config.validated import Config, nearest, validate, with_new_names
from scaleout.errors import ConfigError
from scaleout.schedule import passes_of
from scaleout.simulation.contention import undisturbed
from scaleout.simulation.options import SimulationOptions
from scaleout.study.search.best import BASELINE, SIMULATIONS, SearchRequest
from scaleout.study.search.evaluate import check_block_keys
from scaleout.study.search.search import Answer
from scaleout.study.search.space import Plan, families
from scaleout.workloads.config import LayeredModel, layered, load_workload
from scaleout.workloads.pipeline import PIPELINES

_TRIES = 64


def request_of(
    name: str,
    topology: Topology,
    device: Device,
    *,
    num_ranks: int | None = None,
    batch: int | None = None,
    memory_bytes: float | None = None,
    top: int = 10,
    changes: Mapping[str, Any] | None = None,
    schedules: Sequence[str] = (),
    simulations: int = SIMULATIONS,
    options: SimulationOptions | None = None,
) -> SearchRequest:
    """Make the request of a search from a workload by name or file.

    Parameters
    ----------
    num_ranks : int, optional
        As many as the topology has, which it must be: a part of a topology is another topology.
    batch : int, optional
        Sequences in a step over all replicas; what the workload's file comes to if not given.
    memory_bytes : float, optional
        What a rank may hold; the device's memory if not given.
    changes : mapping, optional
        Keys of the workload to change. Those that a plan chooses are held fixed.
    schedules : sequence of str
        Schedules to try each plan under, besides `baseline`.
    simulations : int
        How many plans are simulated under each of them at the most.
    options : SimulationOptions, optional
        Host, contention, and clocks that slow kernels down; blocks know no other network, placement or algorithm.

    Raises
    ------
    ConfigError
        If the workload is not of layers in training, a key, value or schedule is wrong, or ranks do not agree.
    """
    given = dict(with_new_names(changes or {}, LayeredModel.RENAMED))
    fixed = {key: given.pop(key) for key in Plan._fields if key in given}
    asked = given | {key: fixed[key] for key in ("zero",) if key in fixed}  # others ask what it is
    wants = "a search is over plans of training a model of layers"
    base = layered(load_workload(name, asked), wants=wants)
    if base.mode != "training":
        raise ConfigError(f"workload {name!r} is in mode {base.mode!r}; {wants}")
    check_block_keys(base)
    num_ranks = topology.num_ranks if num_ranks is None else num_ranks
    if num_ranks != topology.num_ranks:
        raise ConfigError(
            f"--ranks {num_ranks}: topology {topology.name!r} has {topology.num_ranks} ranks; give a topology of "
            f"{num_ranks} ranks, as the links of a part of one are not known"
        )
    batch = base.batch_per_replica * base.data_parallel if batch is None else batch
    fixed = _checked(base, fixed)
    memory_bytes = device.memory_bytes if memory_bytes is None else memory_bytes
    others = tuple(name for name in dict.fromkeys(schedules) if name != BASELINE)
    for schedule in others:
        passes_of(schedule)
    if others and topology.library is not None and topology.library.blocks_host:
        raise ConfigError(
            f"topology {topology.name!r} has a back end that blocks the host, so that every schedule is the baseline; "
            f"leave --schedule out, or give another topology"
        )
    options = options or SimulationOptions()
    _check_options(options, device)
    topology = topology if options.contention else undisturbed(topology)
    return SearchRequest(
        base, topology, device, num_ranks, batch, memory_bytes, top, fixed, others, simulations, options
    )


def _check_options(options: SimulationOptions, device: Device) -> None:
    """Refuse what the bounds of a search do not hold under, as plans would be left out that are among the fastest."""
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


def why_none(request: SearchRequest, answer: Answer) -> str:
    """Say why no plan was found, and what would be one."""
    base, counts = request.base, answer.counts
    about = f"workload {base.name!r} on {request.num_ranks} ranks with a global batch of {request.batch}"
    held = "".join(f", {key} {value}" for key, value in request.fixed.items())
    if answer.nearest is not None:
        peak_bytes, plan = answer.nearest
        short = format_bytes(peak_bytes - request.memory_bytes)
        return (
            f"no plan of {about}{held} fits {format_bytes(request.memory_bytes)} a rank; the nearest ({plan}) holds "
            f"{format_bytes(peak_bytes)}, {short} more; give more ranks or a smaller batch"
        )
    if not counts.enumerated:
        degrees = " x ".join(f"{key} {request.fixed[key]}" for key in request.fixed if key.endswith("_parallel"))
        return (
            f"no plan of {about} has {degrees}; choose degrees whose product divides "
            f"{request.num_ranks}, and no more replicas than sequences"
        )
    sizes = {"layers": base.layers, **base.sizes}
    listed = ", ".join(f"{key} {size}" for key, size in sizes.items())
    reason = f"none of {counts.enumerated} plans of {about}{held} divides: {listed}, sequence {base.sequence}"
    other = _nearest_ranks(request)
    return f"{reason}; " + (f"the nearest number of ranks with a plan is {other}" if other else "choose other sizes")


def _nearest_ranks(request: SearchRequest) -> int | None:
    for away in range(1, _TRIES):
        for ranks in (request.num_ranks - away, request.num_ranks + away):
            if ranks > 0 and any(f.plans for f in families(request.base, ranks, request.batch, fixed=request.fixed)):
                return ranks
    return None
