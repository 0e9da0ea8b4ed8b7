"""A job as a command line names it, and with `--gpus`: so many replicas, on as many nodes of its topology."""

from collections.abc import Mapping
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
    """Return a job with so many GPUs, see `study.sized.job_on_gpus`.

    Raises
    ------
    ConfigError
        If it is of a trace, replicas or nodes do not divide the GPUs, or either is given as well.
    """
    from scaleout.study.sized import job_on_gpus

    if job.workload is None:
        raise ConfigError(
            f"--gpus {gpus} is for a workload, which has replicas; a trace or a plan has the ranks that it has. For a "
            f"plan on {gpus} give --gpus to `scaleout search`"
        )
    found = job_on_gpus(
        job.workload, gpus, topology=job.topology, device=job.device, settings=job.settings, changes=job.changes,
        replicas=replicas,
    )  # fmt: skip
    return job._replace(topology=found.topology, settings=found.settings, changes=found.changes)
