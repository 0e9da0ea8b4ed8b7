"""What a schedule may know of the machine beside the times that a program already has."""

from dataclasses import dataclass

from scaleout.device import Device
from scaleout.topology import Topology


@dataclass(frozen=True)
class Machine:
    """The device and the network that a program will run on."""

    device: Device
    topology: Topology
