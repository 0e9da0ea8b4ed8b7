"""What an operator runs on: a device that says how work-groups run, the ranks of a topology, and how they are linked.

On direct links (NVLink, Infinity Fabric) threads store into peers' memory; over a network a work-group issues PUTs.
"""

from dataclasses import dataclass
from functools import cached_property

from scaleout.cluster.device.sections import WorkGroups
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import Placement, place
from scaleout.errors import ConfigError
from scaleout.schedule.fusion.link import Link, link_of
from scaleout.simulation.cost_model import CostModel

LINKS = ("nvlink", "infinity_fabric")
"""Kinds of links over which a GPU stores into another's memory."""


def groups_of(device: Device) -> WorkGroups:
    """Return how a device runs work-groups; a ConfigError says that its file does not."""
    if device.work_groups is None:
        raise ConfigError(
            f"device {device.name!r} does not say how its kernels run as work-groups; add work_groups to its file, as "
            f"traces/h200/device.yaml has it, or take --device h200 or mi210"
        )
    return device.work_groups


@dataclass(frozen=True)
class FusedMachine(Machine):
    """A machine for a fused operator, in which all ranks take part."""

    @cached_property
    def placement(self) -> Placement:
        """All ranks, as one group."""
        return place(self.topology, range(self.topology.num_ranks))

    @property
    def ranks(self) -> int:
        """Their number."""
        return self.topology.num_ranks

    @property
    def stores(self) -> bool:
        """Whether threads store into each other's memory; else work-groups issue PUTs."""
        return all(dimension.link in LINKS for dimension in self.topology.dimensions)

    @cached_property
    def link(self) -> Link:
        """What carries a slice; by PUT it is two messages, the data and their flag."""
        return link_of(self.placement, gap_s=0.0 if self.stores else 2 * groups_of(self.device).message_gap_s)

    @property
    def call_s(self) -> float:
        """What the last finisher of a slice spends on sending it."""
        return 0.0 if self.stores else groups_of(self.device).put_call_s

    @property
    def flag_s(self) -> float:
        """A round of flags at the end of a phase; by PUT each slice brings its own."""
        return groups_of(self.device).flag_s if self.stores else 0.0

    @cached_property
    def cost_model(self) -> CostModel:
        """What kernels of the device's libraries and collectives cost here."""
        return CostModel(self)

    def collective_s(self, kind: str, size_bytes: float) -> float:
        """Time of a collective of all ranks."""
        return self.cost_model.collective(kind, size_bytes, (self.placement,)).time_s
