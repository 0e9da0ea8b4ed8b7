"""Jobs and networks of so many GPUs: as many replicas, on as many nodes of a topology or of a device's own network."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from scaleout.cluster.device.spec import Device, sold_as
from scaleout.cluster.topology.nodes import Sized, of_device, sized, without_network
from scaleout.cluster.topology.topology import load_topology
from scaleout.cluster.topology.what_if import NetworkChanges
from scaleout.config.units import counted
from scaleout.errors import ConfigError, shown
from scaleout.study.provenance import devices_of
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.families import load_workload, ranks_of_replica

Named = TypeVar("Named")
"""What names a network, or is one."""


class OnGpus(NamedTuple):
    """What a job of so many GPUs is given; its topology is None for that of its workload."""

    topology: str | None
    settings: Mapping[str, Any]
    changes: NetworkChanges


def job_on_gpus(
    workload: str | ModelFamily,
    gpus: int,
    *,
    topology: object,
    device: Device | str | None,
    settings: Mapping[str, Any],
    changes: NetworkChanges,
    replicas: bool = True,
) -> OnGpus:
    """Return a job with as many nodes as make so many ranks, and as many `replicas` where no search chooses these.

    Where no topology is named, and the workload has none, or a network of another device or of one node that is too
    small, it is on that of its own device, if such a one ships.

    Raises
    ------
    ConfigError
        If workload or topology are no names, replicas or nodes do not divide the GPUs, or either is given as well.
    """
    given = "--nodes" if changes.nodes is not None else "--set data_parallel"
    if changes.nodes is not None or (replicas and "data_parallel" in settings):
        raise ConfigError(f"--gpus {gpus} and {given} both say how many ranks there are; give one of them")
    if not isinstance(workload, str):
        raise ConfigError(f"gpus {gpus} is for a workload given by name; load {workload.name} with its data_parallel")
    named = _name_of(topology, gpus)
    if replicas:
        settings = {**settings, "data_parallel": _replicas(workload, settings, gpus)}
    loaded = load_workload(workload, settings if replicas else None)
    sold, found = sold_as(_named(device) or loaded.device), None
    if named is None and not loaded.topology:
        found = _sold_with(sold, gpus)
    elif named is None:
        network = load_topology(loaded.topology)
        too_small = len(network.dimensions) < 2 and network.num_ranks < gpus
        if too_small or devices_of(network, sold):
            found = of_device(sold, gpus)
    found = found or _sized(named or loaded.topology, gpus, device=sold)
    same = named is None and found.topology == loaded.topology
    return OnGpus(None if same else found.topology, settings, replace(changes, nodes=found.nodes))


def network_on_gpus(
    topology: Named | None, device: str | None, gpus: int | None, changes: NetworkChanges
) -> tuple[Named | str, NetworkChanges]:
    """Return the network that is named, or that a device is sold with, with so many ranks, and its changes.

    Raises
    ------
    ConfigError
        If it is not said which, something of it is said twice, or there is none of so many ranks.
    """
    if topology is not None and device is not None:
        raise ConfigError("--topology and --device both name the network of a collective; give one of them")
    if topology is None and device is None:
        raise ConfigError("give --topology, or --device and --gpus: the network that a device is sold with, of so many")
    if gpus is None:
        if topology is None:
            raise ConfigError(f"--device {device} does not say how many ranks there are; give --gpus, or a --topology")
        return topology, changes
    if changes.nodes is not None:
        raise ConfigError(f"--gpus {gpus} and --nodes both say how many ranks there are; give one of them")
    named = _name_of(topology, gpus)
    found = _sold_with(sold_as(device or ""), gpus) if named is None else _sized(named, gpus, device="")
    return found.topology, replace(changes, nodes=found.nodes)


def _sold_with(device: str, gpus: int) -> Sized:
    found = of_device(device, gpus)
    if found is None:
        raise ConfigError(f"--gpus {gpus}: {without_network(device, gpus)}")
    return found


def _sized(topology: str, gpus: int, *, device: str) -> Sized:
    try:
        return sized(topology, gpus, device=device)
    except ConfigError as error:
        raise ConfigError(f"--gpus {gpus}: {error}") from None


def _named(device: Device | str | None) -> str | None:
    return device.name if isinstance(device, Device) else device


def _name_of(topology: object, gpus: int) -> str | None:
    """Return the name of a topology that is to have so many ranks."""
    if gpus < 1:
        raise ConfigError(f"gpus must be a whole number, 1 or more, not {shown(gpus)}")
    if topology is not None and not isinstance(topology, str):
        raise ConfigError(f"gpus {gpus} is for a topology given by name; what is loaded has the ranks that it has")
    return topology


def _replicas(workload: str, settings: Mapping[str, Any], gpus: int) -> int:
    model_ranks = ranks_of_replica(workload, settings)
    if gpus % model_ranks:
        raise ConfigError(
            f"--gpus {gpus}: a replica of this job takes {counted(model_ranks, 'rank')}; give a multiple, or other "
            f"degrees (--set tensor_parallel=1 --set pipeline_parallel=1)"
        )
    return gpus // model_ranks
