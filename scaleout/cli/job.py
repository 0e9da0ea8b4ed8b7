"""A job as a command line names it, and with `--gpus`: so many replicas, on as many nodes of its topology."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaleout.api.runs import RunAnswer
    from scaleout.cli.options import Stated
    from scaleout.cluster.device.spec import Device
    from scaleout.cluster.topology.topology import Topology
    from scaleout.cluster.topology.what_if import NetworkChanges
    from scaleout.simulation.options import SimulationOptions
    from scaleout.study.job import Tell
    from scaleout.workloads.config.family import ModelFamily


class NamedJob(NamedTuple):
    """A workload and the machine that it runs on, by name or file as a command line gives them.

    `settings` are keys of the workload to change, `changes` those of the network.
    """

    workload: str | None
    topology: str | None
    device: str | None
    settings: Mapping[str, Any]
    changes: "NetworkChanges"

    def run(self, schedules: "Sequence[str]", options: Mapping[str, Any], tell: "Tell | None" = None) -> "RunAnswer":
        """Simulate it under several schedules; `tell` is called before each."""
        from scaleout.api.runs import run

        assert self.workload is not None
        return run(
            self.workload, topology=self.topology, device=self.device, schedules=schedules, changes=self.settings,
            network_changes=self.changes, tell=tell, **options,
        )  # fmt: skip

    def inputs(
        self, workload: "ModelFamily", options: "SimulationOptions", schedules: "Sequence[str]" = ()
    ) -> dict[str, Any]:
        """Return what was asked, with what the workload's file says where the command line does not."""
        from scaleout.api.inputs import inputs_of

        named = {"topology": self.topology or workload.topology, "device": self.device or workload.device}
        return inputs_of(
            {"workload": self.workload, **named}, settings=self.settings, changes=self.changes, options=options,
            schedules=schedules,
        )  # fmt: skip

    def given(self, options: "Stated") -> dict[str, Any]:
        """Return what the line gives alone, by the keys of a study's file."""
        from scaleout.api.inputs import inputs_of, stated_as_inputs

        named = {"workload": self.workload, "topology": self.topology, "device": self.device}
        return {**inputs_of(named, settings=self.settings, changes=self.changes), **stated_as_inputs(options)}

    def load(self) -> "tuple[ModelFamily, Topology, Device]":
        """Load the workload, and the topology and device that it names where the command line names none."""
        from scaleout.cluster.device.spec import load_device
        from scaleout.workloads.families import load_workload

        assert self.workload is not None
        workload = load_workload(self.workload, self.settings)
        topology = self.load_topology(workload.topology)
        return workload, topology, load_device(self.device or workload.device)

    def load_topology(self, default: str) -> "Topology":
        """Load the topology, with its changes."""
        from scaleout.cluster.topology.topology import load_topology
        from scaleout.cluster.topology.what_if import change_network

        return change_network(load_topology(self.topology or default), self.changes)


def on_gpus(job: NamedJob, gpus: int, *, replicas: bool = True) -> NamedJob:
    """Return a job with as many nodes as make so many ranks, and as many `replicas` where no search chooses these.

    Raises
    ------
    ConfigError
        If it is of a trace, replicas or nodes do not divide the GPUs, or either is given as well.
    """
    from scaleout.workloads.families import load_workload

    given = "--nodes" if job.changes.nodes is not None else "--set data_parallel"
    if job.changes.nodes is not None or (replicas and "data_parallel" in job.settings):
        raise ConfigError(f"--gpus {gpus} and {given} both say how many ranks there are; give one of them")
    if job.workload is None:
        raise ConfigError(
            f"--gpus {gpus} is for a workload, which has replicas; a trace or a plan has the ranks that it has. For a "
            f"plan on {gpus} give --gpus to `scaleout search`"
        )
    if not replicas:
        return _on_network(job, load_workload(job.workload), gpus)
    settings = {**job.settings, "data_parallel": _replicas(job.workload, job.settings, gpus)}
    return _on_network(job._replace(settings=settings), load_workload(job.workload, settings), gpus)


def network_on_gpus(
    topology: str | None, device: str | None, gpus: int | None, changes: "NetworkChanges"
) -> "tuple[str, NetworkChanges]":
    """Return the network that is named, or that a device is sold with, with so many ranks, and its changes.

    Raises
    ------
    ConfigError
        If it is not said which, something of it is said twice, or there is none of so many ranks.
    """
    from scaleout.cluster.device.spec import sold_as
    from scaleout.cluster.topology.nodes import of_device, sized

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
    if device is None:
        assert topology is not None
        try:
            found = sized(topology, gpus, device="")
        except ConfigError as error:
            raise ConfigError(f"--gpus {gpus}: {error}") from None
    elif (own := of_device(sold_as(device), gpus)) is not None:
        found = own
    else:
        raise ConfigError(f"--gpus {gpus}: no network that {device} is sold with has so many ranks; give --topology")
    return found.topology, replace(changes, nodes=found.nodes)


def _replicas(workload: str, settings: Mapping[str, Any], gpus: int) -> int:
    from scaleout.config.units import counted
    from scaleout.workloads.families import ranks_of_replica

    model_ranks = ranks_of_replica(workload, settings)
    if gpus % model_ranks:
        raise ConfigError(
            f"--gpus {gpus}: a replica of this job takes {counted(model_ranks, 'rank')}; give a multiple, or other "
            f"degrees (--set tensor_parallel=1 --set pipeline_parallel=1)"
        )
    return gpus // model_ranks


def _on_network(job: NamedJob, workload: "ModelFamily", gpus: int) -> NamedJob:
    """Return a job on the topology that it names with so many ranks.

    Where it names none, and the workload's is a network of another device or of one node that is too small, on that of
    its own device, if such a one ships.
    """
    from scaleout.cluster.device.spec import sold_as
    from scaleout.cluster.topology.nodes import of_device, sized
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.study.provenance import devices_of

    device, found = sold_as(job.device or workload.device), None
    if job.topology is None:
        network = load_topology(workload.topology)
        too_small = len(network.dimensions) < 2 and network.num_ranks < gpus
        if too_small or devices_of(network, device):
            found = of_device(device, gpus)
    try:
        found = found or sized(job.topology or workload.topology, gpus, device=device)
    except ConfigError as error:
        raise ConfigError(f"--gpus {gpus}: {error}") from None
    same = job.topology is None and found.topology == workload.topology
    return job._replace(topology=None if same else found.topology, changes=replace(job.changes, nodes=found.nodes))
