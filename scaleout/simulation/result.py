"""What a simulation found: when each node of each class of ranks ran, and how collectives were carried out."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.network.flow.link_traffic import LinkTraffic, LinkUse
from scaleout.program.graph import NONE, ExecutionGraph, Floats, Ints, NodeKind, NodeRole
from scaleout.program.program import Program


class Served(NamedTuple):
    """The algorithm that serves each of N nodes."""

    number: npt.NDArray[np.int16]  # (N,) index into `names`
    names: tuple[str, ...]  # "" is that of what is no collective

    @classmethod
    def of(cls, names: Iterable[str]) -> "Served":
        """Number the names of nodes."""
        number_of: dict[str, int] = {}
        return cls(np.array([number_of.setdefault(name, len(number_of)) for name in names], np.int16), (*number_of,))


@dataclass(frozen=True, eq=False)
class Timeline:
    """What one class of ranks did."""

    graph: ExecutionGraph  # what its ranks run, N nodes
    ranks: tuple[int, ...]  # those of the class; the first is its representative
    start_s: Floats  # (N,)
    end_s: Floats  # (N,)
    duration_s: Floats  # (N,) network time included
    # (N,) how long it held its stream; shorter than its duration while its last bytes are in flight
    occupancy_s: Floats
    cause: npt.NDArray[np.int32]  # (N,) what each node waited for last: an index into the `Result`'s nodes, or `NONE`
    served: Served

    @cached_property
    def algorithm(self) -> list[str]:
        """The collective algorithm that each of N nodes used, or ""."""
        return [self.served.names[number] for number in self.served.number.tolist()]

    @cached_property
    def is_communication(self) -> npt.NDArray[np.bool_]:
        """(N,) whether a node is communication."""
        return np.asarray(self.graph.kind != NodeKind.COMPUTE)

    @cached_property
    def is_kernel(self) -> npt.NDArray[np.bool_]:
        """(N,) whether a node runs on the device: neither communication nor the host."""
        return ~self.is_communication & ~self.graph.has_role(NodeRole.HOST)


@dataclass(frozen=True, eq=False)
class Result:
    """A program on a cluster, simulated."""

    program: Program  # what ran, after scheduling
    topology: str
    network: str
    timelines: tuple[Timeline, ...]  # one for each class of ranks
    link_traffic: LinkTraffic | None = None  # what every link carried over the makespan, under the link model

    @property
    def has_puts(self) -> bool:
        """Whether ranks put parts of collectives to each other, at times of their own."""
        graphs = [line.graph for line in self.timelines]
        return any(((graph.kind == NodeKind.SEND) & (graph.collective != NONE)).any() for graph in graphs)

    @property
    def busiest_links(self) -> tuple[LinkUse, ...]:
        """The links of the highest utilisation, the busiest first, under the link model."""
        return self.link_traffic.busiest if self.link_traffic else ()

    @cached_property
    def makespan_s(self) -> float:
        """Time at which the last node ends."""
        return max((float(line.end_s.max()) for line in self.timelines if len(line.graph)), default=0.0)

    @cached_property
    def offsets(self) -> Ints:
        """(C + 1,) where each class's nodes begin among all nodes of the result."""
        return np.concatenate(([0], np.cumsum([len(line.graph) for line in self.timelines]))).astype(np.int64)

    def locate(self, node: int) -> tuple[int, int]:
        """Return the class and the index within its graph of one of the result's nodes."""
        assert node != NONE
        which = int(np.searchsorted(self.offsets, node, side="right")) - 1
        return which, node - int(self.offsets[which])
