"""What a row becomes: something that can be predicted, a time or memory, beside what was measured on a machine.

Knows no format of rows.
"""

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
"""A GPU, as its driver calls it, to the device and the topology of a node of them."""


class Unit(NamedTuple):
    """How a quantity is written in JSON: the end of its keys, and how many of these units one of SI is."""

    name: str
    per_base: float


QUANTITIES: Mapping[str, Unit] = {"time": Unit("us", 1e6), "memory": Unit("bytes", 1.0)}
"""What can be measured: times in seconds, written in microseconds, and memory in bytes."""


@dataclass(frozen=True)
class Case:
    """Something to predict.

    Attributes
    ----------
    measured : float
        In seconds, or in bytes if `quantity` is memory.
    predict : callable
        What predicts it, in the same unit.
    quantity : str
        A key of `QUANTITIES`.
    variant : tuple of (str, int), optional
        Where a number is to be chosen, such as one of chunks: what it is chosen for, and the number in this row.
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
    measured: str = "step_us",
    schedule: str = "baseline",
    **options: Any,
) -> Case:
    """Return the case of a workload or program on as many of the machine's ranks as it has.

    `options` are those of `SimulationOptions`; by default an eager host, and clocks from rest, as measurements run.
    """
    chosen = SimulationOptions(**{"host": "eager", "clocks": "from_rest", **options})

    def predict_s() -> float:
        part = machine.of(work.num_ranks)
        return run(Job(work, part.device, part.topology, schedule, chosen)).makespan_s

    return Case(row.number(measured) * 1e-6, predict_s)


def machine_of(row: Row, *, device: str | None = None, topology: str | None = None) -> Machine:
    """Return the machine that a row names, or that its file's environment does; `device` and `topology` go first.

    Raises
    ------
    ConfigError
        If none is named, or it is not known.
    """
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
    """Build the workload of a row.

    Raises
    ------
    ConfigError
        If its keys do not fit each other; the message names the row.
    """
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
