"""The process groups of a job, made as they are first asked for, and who shares which parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from scaleout.generators.sharing import Sharing
from scaleout.program import GroupFamily
from scaleout.workload.training import Training


@dataclass
class Axes:
    """Families of groups by the name of their axis, in the order in which they were asked for.

    Who shares what is known from the degrees alone; ranks are listed only when `families` is read.
    """

    workload: Training
    _makers: dict[str, Callable[[], GroupFamily]] = field(default_factory=dict)

    @property
    def families(self) -> tuple[GroupFamily, ...]:
        """The families."""
        return tuple(make() for make in self._makers.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the families."""
        return tuple(self._makers)

    def family(self, name: str) -> GroupFamily:
        """Return a family that was asked for, by its name."""
        return self._makers[name]()

    def number(self, axis: str) -> int:
        """Return the index of an axis's family in the program."""
        return self._number(axis, lambda: self.workload.mesh.groups(axis))

    def at(self, name: str, places: Sequence[Sequence[int]]) -> int:
        """Return the family of the ranks of each pipeline that stand at the same list of places of it."""
        return self._number(name, lambda: self.workload.mesh.at(name, places))

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
        parted = self.workload.zero == 3 and self.workload.overlap_parameter_gather
        within, copies = (
            self._number(f"{axis}_{part}", partial(self._part, axis, shard, which))
            for which, part in enumerate(("shard", "copy"))
        )
        return Sharing(within, shard, sharded=True, copies=copies, num_copies=degree // shard, parted=parted)

    def _part(self, axis: str, shard: int, which: int) -> GroupFamily:
        return self.workload.mesh.split(axis, shard)[which]

    def _number(self, name: str, make: Callable[[], GroupFamily]) -> int:
        self._makers.setdefault(name, make)
        return list(self._makers).index(name)
