"""The process groups of a job, made as they are first asked for, and how each group synchronises gradients.

Where shards have replicas (hybrid sharding), gradients are reduce-scattered among the shards, then all-reduced over the
replicas, or reduce-scattered again, after which each replica steps a part of its shard and gathers the others' parts.

Source: ZeRO, arXiv:1910.02054; FSDP, arXiv:2304.11277 (hybrid sharding); Centauri, ASPLOS 2024, Fig. 3.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

from scaleout.program.mesh import Mesh, counts_for
from scaleout.program.program import GroupFamily
from scaleout.workloads.config.layered import LayeredModel


class Call(NamedTuple):
    """A collective of gradients or parameters: its kind, its bytes, and the family of its group."""

    kind: str
    size_bytes: int
    group: int


@dataclass(frozen=True)
class GradientSync:
    """How the gradients of some parameters are synchronised: the group that reduces them, and its replicas."""

    group: int  # index of the group's family in the program
    degree: int  # ranks of the group
    sharded: bool = False  # each rank of the group keeps a shard of the reduced gradients, instead of all
    replicas: int = 0  # family of the groups that hold the same shard
    num_replicas: int = 1
    partitioned: bool = False  # each replica of a shard steps a part of it, instead of all
    whole: bool = False  # gradients are reduced for all of the group, whatever part of them a rank keeps

    @property
    def shards(self) -> int:
        """Parts into which the group divides what is sharded."""
        return self.degree if self.sharded else 1

    @property
    def owners(self) -> int:
        """Parts that are stepped by one rank each, or by one rank of each replica."""
        return self.shards * (self.num_replicas if self.partitioned else 1)

    def reduces(self, size_bytes: int) -> Iterator[Call]:
        """Yield what reduces gradients within the group."""
        if size_bytes and self.degree > 1:
            yield Call("reduce_scatter" if self.sharded and not self.whole else "all_reduce", size_bytes, self.group)

    def sums_replicas(self, size_bytes: int) -> Iterator[Call]:
        """Yield what sums gradients, of so many bytes before they are sharded, over the replicas of shards."""
        if size_bytes and self.num_replicas > 1:
            yield Call(
                "reduce_scatter" if self.partitioned else "all_reduce", -(-size_bytes // self.degree), self.replicas
            )

    def gathers(self, size_bytes: int, *, zero: int) -> Iterator[Call]:
        """Yield what gathers parameters that others have stepped, where no layer does it itself (`zero` 3)."""
        if size_bytes and self.partitioned:
            yield Call("all_gather", -(-size_bytes // self.degree), self.replicas)
        elif size_bytes and zero < 3 and self.shards > 1:
            yield Call("all_gather", size_bytes, self.group)


@dataclass
class Axes:
    """Families of groups by the name of their axis, in the order in which they were asked for.

    Who shares what is known from the degrees alone; ranks are listed only when `families` is read.
    """

    workload: LayeredModel
    _makers: dict[str, tuple[int, str, Callable[[], GroupFamily]]] = field(default_factory=dict)

    @property
    def families(self) -> tuple[GroupFamily, ...]:
        """The families."""
        return tuple(make() for *_, make in self._makers.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the families."""
        return tuple(self._makers)

    def family(self, name: str) -> GroupFamily:
        """Return a family that was asked for, by its name."""
        return self._makers[name][2]()

    def axis_of(self, name: str) -> str:
        """Return the axis that a family of that name counts for, which is its `GroupFamily.axis`."""
        return self._makers[name][1] if name in self._makers else counts_for(name)

    def number(self, axis: str) -> int:
        """Return the index of an axis's family in the program."""
        if axis in self._makers:
            return self._makers[axis][0]
        return self._number(axis, axis, partial(self._mesh.groups, axis))

    def expert_family(self, name: str, size: int) -> int:
        """Return a family along the expert axis: `expert`, or its cut into groups of neighbours or across those.

        `expert_shard` is of groups of `size` neighbours, `expert_copy` of `size` ranks, one of each such group.
        """
        if name == "expert":
            return self.number("expert")
        mesh = self.workload.mesh
        within = size if name == "expert_shard" else mesh.degree("expert") // size
        return self._number(name, "expert", lambda: mesh.split("expert", within)[name != "expert_shard"])

    def at(self, name: str, pipeline_ranks: Sequence[Sequence[int]]) -> int:
        """Return the family that has, of each pipeline, a group for each list of pipeline ranks."""
        return self._number(name, "pipeline", partial(self._mesh.at, name, pipeline_ranks))

    def dense(self) -> GradientSync:
        """Say who shares the parameters that are no expert's."""
        return self._sharing("replica" if self.workload.context_parallel > 1 else "data", self.workload.sharding)

    def experts(self) -> GradientSync:
        """Say who shares the parameters of experts: ranks that hold the same ones; of a model without, as `dense`."""
        if not self.workload.has_experts:
            return self.dense()
        axis = "expert_replica" if self.workload.context_parallel > 1 else "expert_data"
        return self._sharing(axis, self._mesh.degree(axis) if self.workload.zero else 1)

    @cached_property
    def _mesh(self) -> Mesh:
        return self.workload.mesh

    @cached_property
    def site(self) -> tuple[Mesh, int]:
        """What decides where the families' groups lie: the mesh, and over how many ranks states are sharded."""
        return self._mesh, self.workload.sharding

    @cached_property
    def sharing(self) -> Mapping[str, GradientSync]:
        """How the gradients of each bucket are synchronised, by its name."""
        return {"dense": self.dense(), "experts": self.experts()}

    def _sharing(self, axis: str, shard: int) -> GradientSync:
        mesh = self._mesh  # makers of families refer to it alone: without cycles all is freed at once
        degree = mesh.degree(axis)
        if degree == 1 or shard in (1, degree):
            whole = self.workload.all_reduced_gradients and self.workload.zero == 1
            return GradientSync(self.number(axis) if degree > 1 else 0, degree, sharded=shard > 1, whole=whole)
        partitioned = self.workload.zero == 3 and self.workload.overlap_parameter_gather
        within = self._number(f"{axis}_shard", axis, lambda: mesh.split(axis, shard)[0])
        replicas = self._number(f"{axis}_copy", axis, lambda: mesh.split(axis, shard)[1])
        return GradientSync(
            within, shard, sharded=True, replicas=replicas, num_replicas=degree // shard, partitioned=partitioned
        )

    def _number(self, name: str, axis: str, make: Callable[[], GroupFamily]) -> int:
        return self._makers.setdefault(name, (len(self._makers), counts_for(axis), make))[0]
