"""Options, input files and traces of a run to one frozen, checked value.

Knows which options ASTRA-sim has and which of them have no effect there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from scaleout.errors import ConfigError
from scaleout.interop.astra.algorithms import Named, named
from scaleout.interop.astra.inputs import KINDS, SystemFile, read_groups, read_network, read_remote_memory, read_system
from scaleout.interop.astra.network import Network
from scaleout.interop.astra.trace import Graph, read_graphs

BACKENDS = ("unaware", "aware")
"""Without and with contention on links."""


class Options(NamedTuple):
    """The options of a run, as on the command line."""

    workload: Path  # prefix of the traces
    system: Path
    network: Path
    remote_memory: Path | None = None
    groups: Path | None = None
    num_queues: int = 1  # queues of each dimension
    compute_scale: float = 1.0  # has no effect, as in ASTRA-sim; nor has the next
    comm_scale: float = 1.0
    injection_scale: float = 1.0  # multiplies the endpoint delay
    rendezvous: bool = False
    backend: str = "unaware"


@dataclass(frozen=True, eq=False)
class Job:
    """What is simulated."""

    network: Network
    system: SystemFile
    groups: Mapping[str, tuple[int, ...]]  # key of a communicator group to its ranks
    graphs: tuple[Graph, ...]  # the distinct ones
    graph_of: tuple[int, ...]  # (R,) which of them each rank runs
    endpoint_ns: int
    num_queues: int
    rendezvous: bool
    aware: bool
    notes: tuple[str, ...]  # options and values that have no effect

    def reduction_ns(self, size_bytes: int) -> int:
        """Time to read two operands and write one: ``3 floor(m / local-mem-bw)``."""
        bytes_per_s = self.system.local_mem_bw_gb_per_s * 1e9
        return 3 * int(size_bytes / bytes_per_s * 1e9) if bytes_per_s else 0  # rounded as ASTRA-sim does

    @cached_property
    def algorithms(self) -> Mapping[str, tuple[Named, ...]]:
        """Kind of collective to the algorithm of each dimension."""
        return {
            kind: tuple(named(text, where=f"{kind}-implementation") for text in self.system.implementation(kind))
            for kind in KINDS
        }


def load(options: Options) -> Job:
    """Read and check all files of a run.

    Raises
    ------
    ConfigError, TraceError
        If an option, file or trace cannot be used.
    """
    if options.backend not in BACKENDS:
        raise ConfigError(f"--backend {options.backend!r} is not known; use {' or '.join(BACKENDS)}")
    network = read_network(options.network)
    system, notes = read_system(options.system)
    memory = read_remote_memory(options.remote_memory) if options.remote_memory is not None else None
    aware = options.backend == "aware"
    if aware and len(network.dimensions) > 1:
        raise ConfigError(
            f"{options.network}: has {len(network.dimensions)} dimensions, but the aware back end takes only one; "
            f"use --backend unaware"
        )
    if aware and network.dimensions[0].kind == "Ring" and network.dimensions[0].size == 2:
        raise ConfigError(
            f"{options.network}: a Ring of 2 ranks, on which the aware back end of ASTRA-sim aborts; use FullyConnected"
        )
    endpoint_ns = int(system.endpoint_delay * options.injection_scale)
    if endpoint_ns < 1:
        raise ConfigError(
            f"--injection-scale {options.injection_scale:g} makes the endpoint delay {endpoint_ns} ns, on which "
            f"ASTRA-sim aborts; give a larger scale"
        )
    scales = {"--compute-scale": options.compute_scale, "--comm-scale": options.comm_scale}
    idle = tuple(
        f"{name} {scale:g} has no effect, in ASTRA-sim and here" for name, scale in scales.items() if scale != 1
    )
    groups = read_groups(options.groups, num_ranks=network.num_ranks) if options.groups is not None else {}
    graphs, graph_of = read_graphs(options.workload, num_ranks=network.num_ranks, system=system, memory=memory)
    job = Job(
        network=network,
        system=system,
        groups=groups,
        graphs=graphs,
        graph_of=graph_of,
        endpoint_ns=endpoint_ns,
        num_queues=options.num_queues,
        rendezvous=options.rendezvous,
        aware=aware,
        notes=notes + idle + tuple(_dropped(system, len(network.dimensions))),
    )
    _check_algorithms(job)
    return job


def _check_algorithms(job: Job) -> None:
    dimensions = len(job.network.dimensions)
    for kind, names in job.algorithms.items():
        key = f"{kind}-implementation"
        if any(name.flat for name in names) and len(names) > 1:
            raise ConfigError(f'{key}: a "one..." algorithm spans all dimensions; make it the only one in the list')
        if len(names) > dimensions:
            raise ConfigError(f"{key} has {len(names)} entries, but the network {dimensions} dimensions; remove some")


def _dropped(system: SystemFile, dimensions: int) -> list[str]:
    """Say where an implementation list leaves out dimensions, which ASTRA-sim then drops."""
    return [
        f"{kind}-implementation has {len(names)} of {dimensions} dimensions; the others take no part, as in ASTRA-sim"
        for kind in KINDS
        if 0 < len(names := system.implementation(kind)) < dimensions and not names[0].startswith("one")
    ]
