"""What an operator runs on: a device that says how work-groups run, the ranks of a topology, and how they are linked.

On direct links (NVLink, Infinity Fabric) threads store into peers' memory; over a network a work-group issues PUTs. A
link, or the port of a rank, serves slices in the order of arrival: ``f_i = max(r_i, f_{i-1}) + b / rate + gap``; the
latency is paid once. Fully connected ranks have a link for each pair; else a slice passes a port out and a port in, cut
through, at the rate of an all-to-all of the same placement. Symbols: r ready, f finish [s]; b bytes of a slice.
"""

from dataclasses import dataclass
from functools import cached_property
from math import fsum

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.sections import WorkGroups
from scaleout.cluster.device.spec import Device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.dimension import ports_of
from scaleout.cluster.topology.placement import Placement, place
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.load import load_of
from scaleout.network.collectives import schedule
from scaleout.simulation.cost_model import CostModel

Floats = npt.NDArray[np.float64]

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
class Link:
    """What carries slices between ranks."""

    bytes_per_s: float  # of a link between two ranks, or of a rank's port
    latency_s: float  # from the last byte sent to its arrival
    pairs: bool  # whether each two ranks have a link of their own
    gap_s: float = 0.0  # that a slice occupies its link beyond its bytes: messages of the network card

    def busy_s(self, sent_bytes: float, peers: int) -> float:
        """Lower bound of the links: the time of the bytes which a rank sends, spread evenly over its peers."""
        return sent_bytes / self.bytes_per_s / (peers if self.pairs else 1)

    def arrive(self, issued_s: Floats, size_bytes: float) -> Floats:
        """Return when slices arrive that one link or port carries, in the order of `issued_s`, shape (S,)."""
        service = np.full(len(issued_s), size_bytes / self.bytes_per_s + self.gap_s)
        return np.asarray(first_come(issued_s, service) + self.latency_s)


def first_come(ready_s: Floats, service_s: Floats) -> Floats:
    """Return when a server that takes jobs first come, first served has finished each, shape (S,)."""
    order = np.argsort(ready_s, kind="stable")
    done = np.cumsum(service_s[order])
    finish = np.empty_like(done)
    finish[order] = done + np.maximum.accumulate(ready_s[order] - (done - service_s[order]))
    return finish


def link_of(placement: Placement, *, gap_s: float = 0.0) -> Link:
    """Return what carries the slices of a group of two ranks or more."""
    everyone = schedule("all_to_all", placement, algorithm="direct")
    loads = [(step.repeat, load_of(step, placement)) for chain in everyone.chains for step in chain]
    latency_s = max(load.latency_s for _, load in loads)
    seconds_per_byte = fsum(repeat * load.busiest_s_per_byte for repeat, load in loads)  # of the whole buffer
    ranks = placement.num_ranks
    ports = [port.role for extent in placement.extents for port in ports_of(extent.dimension)]
    pairs = len(placement.extents) == 1 and set(ports) == {"pair"} and placement.regular
    sent = (1 if pairs else ranks - 1) / ranks
    return Link(sent / seconds_per_byte, latency_s, pairs, gap_s)


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
