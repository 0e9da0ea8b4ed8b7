"""Gradient buckets: step time over bucket sizes and ways to reduce, and the best of them.

Small buckets start early and pay latency; large ones reach the bandwidth, and the last is exposed for longer. A way to
reduce is an algorithm of all-reduce, or a policy over the machine's back ends.

Source of the question: Li et al., PyTorch Distributed, VLDB 2020, Sec. 5 (bucket sizes of DDP).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.topology.backends import KIND
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError
from scaleout.network.collectives import ALGORITHMS
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, run
from scaleout.workloads.config import load_workload

AUTO = "auto"
"""The way that a run takes: what the machine's library, or nothing, prefers."""


@dataclass(frozen=True)
class Bucketed:
    """One step.

    Attributes
    ----------
    way : str
        Algorithm of all-reduce, policy, or ``"auto"``.
    step_s, communication_s, exposed_s : float
        The step, all its communication, and what nothing hides.
    """

    way: str
    bucket_bytes: int
    step_s: float
    communication_s: float
    exposed_s: float


def sweep_buckets(
    workload: str,
    *,
    sizes_bytes: Sequence[int],
    ways: Sequence[str] = (AUTO,),
    topology: Topology | str | None = None,
    device: Device | str | None = None,
    changes: Mapping[str, Any] | None = None,
    schedule: str = "overlap",
    options: SimulationOptions | None = None,
) -> tuple[Bucketed, ...]:
    """Simulate a workload with buckets of each size, reduced in each way.

    Parameters
    ----------
    workload : str
        Name or file.
    sizes_bytes : sequence of int
        A bucket is reduced as soon as it holds so much; 1 for one reduction a buffer of parameters.
    ways : sequence of str
        `AUTO`, algorithms, or, where the topology has back ends, policies.
    topology, device : optional
        By default the workload's.
    changes : mapping, optional
        Keys of the workload's file to change.
    schedule : str
        Of each step.
    options : SimulationOptions, optional
        How each step is simulated, besides the way.

    Raises
    ------
    ConfigError
        If the job has no gradients to reduce, or a way is neither an algorithm nor a policy.
    """
    base = load_workload(workload, changes)
    if base.data_parallel == 1:
        raise ConfigError("buckets are of gradients that data-parallel ranks reduce; set data_parallel above 1")
    if changes and "gradient_bucket" in changes:
        raise ConfigError("the sweep sets gradient_bucket; leave it out, and give the sizes")
    found = load_device(base.device if device is None else device) if not isinstance(device, Device) else device
    network = base.topology if topology is None else topology
    network = load_topology(network) if isinstance(network, str) else network
    rows = []
    for way in ways:
        reduced = _reduced(network, way, options or SimulationOptions())
        for size in sizes_bytes:
            sized = load_workload(workload, {**(changes or {}), "gradient_bucket": f"{size} B"})
            outcome = run(Job(sized, found, network, schedule, reduced))
            parts = outcome.breakdown
            rows.append(Bucketed(way, size, outcome.makespan_s, parts.communication_s, parts.exposed_communication_s))
    return tuple(rows)


def best(rows: Sequence[Bucketed]) -> Bucketed:
    """Return the shortest step; of equal ones that of the smallest buckets."""
    return min(rows, key=lambda row: (row.step_s, row.bucket_bytes))


def _reduced(topology: Topology, way: str, options: SimulationOptions) -> SimulationOptions:
    """Return the options with a way to reduce: an algorithm, or a policy over the topology's back ends."""
    if way == AUTO:
        return options
    if way in ALGORITHMS and KIND in ALGORITHMS[way].schedules:
        return replace(options, algorithms={**options.algorithms, KIND: way})
    if not topology.backends:
        able = [AUTO, *(name for name, algorithm in ALGORITHMS.items() if KIND in algorithm.schedules)]
        raise ConfigError(f"no algorithm of {KIND} is called {way!r}; {nearest(way, able)}")
    return replace(options, policy=way)
