"""Workload to the work of its parts: kernels and collectives of the embedding, each kind of layer, and the head.

Stages are sums of parts; see `workloads.generate.profile`. Nothing here has a time.
"""

import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from scaleout.cluster.device.host import Call, calls_of
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind
from scaleout.program.operations import Kernel
from scaleout.workloads.families.layered import LayeredModel
from scaleout.workloads.generate.profile import MadeGradient, StageProfile, profiles_of


@dataclass(frozen=True)
class Collective:
    """One collective, or the message of a ring: kind, bytes, and the name of the family of its groups."""

    kind: str
    size_bytes: int
    family: str


@dataclass(frozen=True, eq=False)
class Work:
    """What a rank does in one action of a part.

    Attributes
    ----------
    kernels : mapping
        Kernel to how often it runs.
    collectives : mapping
        Collective to how often it runs.
    graph : ExecutionGraph or None
        Where there is more than kernels, who waits for whom.
    families : tuple of str
        Names that the graph's groups stand for.
    calls : mapping
        Call of the host to how often it makes it.
    """

    kernels: dict[Kernel, int]
    collectives: dict[Collective, int]
    graph: ExecutionGraph | None = None
    families: tuple[str, ...] = ()
    calls: dict[Call, int] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: ExecutionGraph, families: tuple[str, ...]) -> "Work":
        """Count what a graph holds."""
        used = graph.kernel[graph.kernel != NONE]
        counts = np.bincount(used, minlength=len(graph.kernels)).tolist()
        kernels = {kernel: count for kernel, count in zip(graph.kernels, counts, strict=True) if count}
        nodes = np.flatnonzero(graph.kind == NodeKind.COLLECTIVE)
        columns = zip(*(getattr(graph, name)[nodes].tolist() for name in ("collective", "bytes", "group")), strict=True)
        collectives = Counter(Collective(COLLECTIVES[kind], size, families[group]) for kind, size, group in columns)
        alone = len(nodes) == 0 and not (graph.kind > NodeKind.COLLECTIVE).any()
        calls = {call: len(nodes) for call, nodes in calls_of(graph).items()}
        return cls(kernels, dict(collectives), None if alone else graph, families, calls)

    @property
    def has_messages(self) -> bool:
        """Whether it sends messages."""
        return self.graph is not None and bool((self.graph.kind > NodeKind.COLLECTIVE).any())

    @property
    def flops(self) -> int:
        """FLOPs of all kernels."""
        return sum(count * kernel.flops for kernel, count in self.kernels.items())


NOTHING = Work({}, {})
"""No work at all."""


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a model on one rank, for one micro-batch.

    Attributes
    ----------
    works : tuple of Work
        What each `Action` does; nothing for backward in two parts where that was not asked for.
    gradients : tuple of MadeGradient
        In the order in which they are made, neither added up nor reduced.
    parameters : mapping
        Name of a bucket to the parameters that the part holds.
    partial_parameters : int
        Those of them of which each tensor-parallel rank makes a part of the gradient.
    """

    works: tuple[Work, ...]
    gradients: tuple[MadeGradient, ...] = ()
    parameters: dict[str, int] = field(default_factory=dict)
    partial_parameters: int = 0


def parts_of(workload: LayeredModel, kinds: Iterable[str], *, split: bool) -> dict[str, Part]:
    """Return the parts of a workload of some kinds, with backward in two parts as well if wanted (`split`)."""
    profile_of = profiles_of(workload, backward=workload.mode == "training")
    return {kind: _part(profile_of(kind), split) for kind in kinds}


@functools.lru_cache(maxsize=65536)
def _part(profile: StageProfile, split: bool) -> Part:
    """Count the work of a profile."""

    def count(graph: ExecutionGraph) -> Work:
        return Work.of(graph, profile.families)

    works, parameters = [count(profile.forward), NOTHING, NOTHING, NOTHING], profile.tape.parameters
    if profile.tape.gradients is None:
        return Part(tuple(works), parameters=parameters)
    whole, made = profile.backward
    works[1] = count(whole)
    if split:
        works[2:] = map(count, profile.split_backward)
    return Part(tuple(works), made, parameters, sum(profile.tape.partial.values()))
