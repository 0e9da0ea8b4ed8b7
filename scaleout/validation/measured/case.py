"""A row to a case: a measured time or memory, and the function that predicts it on the row's machine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.validated import nearest, validate
from scaleout.errors import ConfigError
from scaleout.program.program import Program
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, run
from scaleout.validation.measured.rows import Row
from scaleout.workloads.config import KINDS, ModelFamily


class NoModelError(Exception):
    """A row that scaleout has no model of; the message is the reason."""


MACHINES = {
    "NVIDIA H200": ("h200", "h200-node-4"),
    "NVIDIA A100": ("a100-80g", "a100-node-8"),
}
"""Name of a GPU in its driver to its device and the topology of a node."""


class Unit(NamedTuple):
    """How a quantity is written in JSON: the suffix of its keys, and the number of these units in one SI unit."""

    name: str
    per_base: float


QUANTITIES: Mapping[str, Unit] = {"time": Unit("us", 1e6), "memory": Unit("bytes", 1.0)}
"""Quantity to its unit in JSON; inside, times are in seconds and memory is in bytes."""


@dataclass(frozen=True)
class Case:
    """A measured number, in seconds or bytes (`quantity`), and what predicts it in the same unit.

    `variant` is set where a number of chunks is to be chosen: the case it is chosen for, and the number in this row.
    """

    measured: float
    predict: Callable[[], float]
    quantity: str = "time"
    variant: tuple[str, int] | None = None


def simulated(
    row: Row,
    work: ModelFamily | Program,
    machine: Machine,
    *,
    measured_us: float | None = None,
    schedule: str = "baseline",
    **options: Any,
) -> Case:
    """Return the case of a workload or program on as many of the machine's ranks as it has.

    `measured_us` is the row's `step_us` by default. `options` are those of `SimulationOptions`; by default the host is
    eager and the GPU starts cold, as in measurements.
    """
    chosen = SimulationOptions(**{"host": "eager", "clocks": "cold_start", **options})

    def predict_s() -> float:
        part = machine.of(work.num_ranks)
        return run(Job(work, part.device, part.topology, schedule, chosen)).makespan_s

    return Case((row.number("step_us") if measured_us is None else measured_us) * 1e-6, predict_s)


def machine_of(row: Row, *, device: str | None = None, topology: str | None = None) -> Machine:
    """Return the machine of `device` and `topology`, else of the row, else of its file's environment."""
    device = device or row.values.get("device") or row.machine.get("device")
    topology = topology or row.values.get("topology") or row.machine.get("topology")
    if device is None or topology is None:
        if not row.gpu:
            raise ConfigError(
                f"{row.where}: no machine is named; add the keys device and topology to the row, or give --device "
                f"and --topology"
            )
        if row.gpu not in MACHINES:
            raise ConfigError(
                f"{row.where}: unknown machine {row.gpu!r} in environment.json beside the file; "
                f"{nearest(row.gpu, MACHINES)}, or give --device and --topology"
            )
        device, topology = device or MACHINES[row.gpu][0], topology or MACHINES[row.gpu][1]
    try:
        return Machine(load_device(str(device)), load_topology(str(topology)))
    except ConfigError as error:
        raise ConfigError(f"{row.where}: {error}") from None


def workload_of(values: Mapping[str, Any], row: Row, machine: Machine) -> ModelFamily:
    """Build the workload of a row; raise `ConfigError` with the row's place if its keys are inconsistent."""
    whole = {
        "name": row.id,
        "description": "a measured run",
        "source": row.where,
        "topology": machine.topology.name,
        "device": machine.device.name,
        **values,
    }
    kind = whole.get("kind")
    if kind not in KINDS:
        raise ConfigError(f"{row.where}: kind {kind!r} is no kind of workload; {nearest(str(kind), KINDS)}")
    return validate(KINDS[kind], whole, where=row.where)
