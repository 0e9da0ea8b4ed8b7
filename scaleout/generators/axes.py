"""The process groups of a job, made as they are first asked for, and who shares which parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from scaleout.generators.tape import Sharing
from scaleout.program import GroupFamily
from scaleout.workload.training import Training


@dataclass
class Axes:
    """Families of groups by the name of their axis, in the order in which they were asked for."""

    workload: Training
    families: list[GroupFamily] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, axis: str) -> int:
        """Return the index of an axis's family in the program."""
        if axis not in self._numbers:
            self._add(axis, self.workload.mesh.groups(axis))
        return self._numbers[axis]

    def at(self, name: str, places: Sequence[Sequence[int]]) -> int:
        """Return the family of the ranks of each pipeline that stand at the same list of places of it."""
        if name not in self._numbers:
            self._add(name, self.workload.mesh.at(name, places))
        return self._numbers[name]

    def dense(self) -> Sharing:
        """Say who shares the parameters that are no expert's."""
        return self._sharing("replica" if self.workload.context_parallel > 1 else "data", self.workload.sharding)

    def experts(self) -> Sharing:
        """Say who shares the parameters of experts: ranks that hold the same ones."""
        axis = "expert_replica" if self.workload.context_parallel > 1 else "expert_data"
        return self._sharing(axis, self.workload.mesh.degree(axis) if self.workload.zero else 1)

    def _sharing(self, axis: str, shard: int) -> Sharing:
        degree = self.workload.mesh.degree(axis)
        if degree == 1 or shard in (1, degree):
            return Sharing(self.number(axis) if degree > 1 else 0, degree, sharded=shard > 1)
        if f"{axis}_shard" not in self._numbers:
            for family in self.workload.mesh.split(axis, shard):
                self._add(family.name, family)
        within, copies = self._numbers[f"{axis}_shard"], self._numbers[f"{axis}_copy"]
        return Sharing(within, shard, sharded=True, copies=copies, num_copies=degree // shard)

    def _add(self, name: str, family: GroupFamily) -> None:
        self._numbers[name] = len(self.families)
        self.families.append(family)
