"""Gradient buckets: step time over bucket sizes and ways to reduce, and the best of them.

Small buckets start early and pay latency; large ones reach the bandwidth, and the last is exposed for longer. A way to
reduce is an algorithm of all-reduce, or a policy over the machine's back ends.

Source of the question: Li et al., PyTorch Distributed, VLDB 2020, Sec. 5 (bucket sizes of DDP).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scaleout.cluster.topology.backends import KIND
from scaleout.cluster.topology.topology import Topology
from scaleout.config.validated import nearest, validate
from scaleout.errors import ConfigError
from scaleout.network.collectives import ALGORITHMS
from scaleout.program.fastest import ranked
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, Tell, run
from scaleout.workloads.config.family import ModelFamily

AUTO = "auto"
"""What a run does by default: what the machine's library, or nothing, prefers."""


@dataclass(frozen=True)
class Bucketed:
    """One step, its compute, all its communication, and what of it is exposed; idle is the rest of the step.

    `way` is an algorithm, a policy or `AUTO`.
    """

    way: str
    bucket_bytes: int
    step_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    idle_s: float


def sweep_buckets(
    job: Job, *, sizes_bytes: Sequence[int], ways: Sequence[str] = (AUTO,), tell: Tell = lambda *_told: None
) -> tuple[Bucketed, ...]:
    """Simulate a job with buckets of each size, reduced in each way.

    A bucket is reduced as soon as it holds so many bytes; 1 for one reduction a buffer of parameters. Ways are `AUTO`,
    algorithms, or, where the topology has back ends, policies. `ConfigError` if there are no gradients to reduce, a
    bucket holds nothing, or a way is none of these.
    """
    base = job.work
    if not isinstance(base, ModelFamily) or base.data_parallel == 1:
        raise ConfigError("buckets are of gradients that data-parallel ranks reduce; set data_parallel above 1")
    if getattr(base, "mode", "training") != "training":
        raise ConfigError(f"buckets are of training, and {base.name} serves; leave out its mode")
    if not all(sizes_bytes):
        raise ConfigError("a bucket of 0 B holds nothing; give sizes of 1 B and more")
    rows = list[Bucketed]()
    for way in ways:
        options = _reduced(job.topology, way, job.options)
        for size in sizes_bytes:
            tell(len(rows), len(ways) * len(sizes_bytes), "sizes simulated")
            outcome = run(replace(job, work=with_buckets(base, size), options=options))
            parts = outcome.breakdown
            times_s = parts.compute_s, parts.communication_s, parts.exposed_communication_s, parts.idle_s
            rows.append(Bucketed(way, size, outcome.makespan_s, *times_s))
    return tuple(rows)


def with_buckets(base: ModelFamily, size_bytes: int) -> ModelFamily:
    """Return a workload with gradient buckets of another size."""
    keys = {**base.model_dump(exclude_unset=True), "gradient_bucket": float(size_bytes)}
    return validate(type(base), keys, where=f"buckets of {size_bytes} B")


def best(rows: Sequence[Bucketed]) -> Bucketed:
    """Return the shortest step; of equal ones that of the smallest buckets."""
    return ranked(rows, key=lambda row: row.step_s, order=lambda row: row.bucket_bytes)[0]


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
