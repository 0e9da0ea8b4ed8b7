"""Devices: a YAML file in which every number names its source, to a frozen `Device` in SI units.

A device is its peak rates, memory, caches and links, what the host spends to launch work on it, and the files of
kernel times that were measured on it; `kernel_times` turns the files into times. A device on which no kernel was
measured names a reference device; its `calibration` says, by class of kernels, how many times as efficient its kernels
are as those of the reference device, fitted to published runs or taken from a data sheet, as its source says.

Source of each number: the device file itself, beside the number; `Device.sources` keeps them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from scaleout.cluster.device.sections import DeviceCost, Power, Reliability, Spread, Stages, WorkGroups
from scaleout.config import library
from scaleout.config.documents import is_file
from scaleout.config.units import (
    Bytes,
    BytesPerSecond,
    ComputeRate,
    Count,
    DollarsPerSecond,
    Hertz,
    Positive,
    Rate,
    Seconds,
)
from scaleout.config.validated import Cited, Config, Text, brackets_in, nearest, read_yaml, sources_in, validate
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Family

CLASSES: Mapping[Family, str] = {
    Family.GEMM: "gemm",
    Family.CONVOLUTION: "gemm",
    Family.ATTENTION: "attention",
    Family.DECODE: "memory",
    Family.ROWS: "memory",
    Family.ELEMENTWISE: "memory",
    Family.GATHER: "memory",
}
"""Family of operations to the class in which it is calibrated: by what limits it."""


class DeviceFile(Config):
    """What a device file holds; see `Device`."""

    title: Text = Field(alias="name", description="the vendor's name of the device")
    vendor: Text = Field(description="who makes it")
    peak_flops_per_s: dict[str, Cited[ComputeRate]] = Field(
        alias="peak_flops", min_length=1, description="data type to the dense rate of GEMMs in it"
    )
    memory_bytes_per_s: Cited[Rate] = Field(alias="memory_bandwidth", description="of the device memory")
    memory_bytes: Cited[Bytes] = Field(alias="memory", description="size of the device memory")
    reserved_bytes: Cited[Bytes] = Field(
        default=0.0, alias="reserved_memory", description="what the driver keeps of it, which no job can hold"
    )
    l2_bytes: Cited[Bytes] = Field(alias="l2", description="size of the last cache before the device memory")
    num_sms: Cited[Count] = Field(alias="sms", description="streaming multiprocessors, or compute units")
    clock_hz: Cited[Hertz] = Field(
        default=0.0, alias="clock", description="of the streaming multiprocessors at their best; unknown if unset"
    )
    link_bytes_per_s: Cited[BytesPerSecond] = Field(
        alias="link_bandwidth", description="all links to other devices together, one direction"
    )
    kernels: tuple[Text, ...] = Field(
        default=(),
        description="files of measured kernel times, earliest first; none for a device known from its data sheet only",
    )
    efficiency_from: Text | None = Field(
        default=None,
        description="reference device, whose measured kernels count where this one has none of their family",
    )
    kernel_models: tuple[Text, ...] = Field(
        default=(), description="models of kernel times in the order in which they are asked; all, if not given"
    )
    calibration: dict[str, Cited[Positive]] = Field(
        default_factory=dict,
        description="class of kernels, or one operation, to its efficiency in a step over the reference device's, "
        "or over its own where it was measured isolated",
    )
    host_from: Text | None = Field(default=None, description="device whose host's launch times count, times host_ratio")
    host_ratio: Cited[Positive] | None = Field(
        default=None,
        description="what a call costs the host over what it costs that of host_from, or of the device that it is like",
    )
    host_ratio_backward: Cited[Positive] | None = Field(
        default=None, description="the same of calls in backward, which another thread makes; host_ratio if unset"
    )
    host_launch_s: dict[str, Cited[Seconds]] = Field(
        default_factory=dict,
        alias="host_launch",
        description="call, such as gemm_forward, to the time that the host takes to issue it; gemm_forward_alone where "
        "one rank runs on its own",
    )
    launch_gap_s: Cited[Seconds] = Field(
        default=0.0,
        alias="launch_gap",
        description="from the end of a kernel to the start of the next on its stream, beyond that in a CUDA graph",
    )
    stages: Stages | None = Field(default=None, description="how a GEMM runs in stages of work-groups, for T3")
    power: Power | None = Field(default=None, description="what the device may draw, and what its work draws")
    cost: DeviceCost | None = Field(default=None, description="price and power as part of a node")
    rent_per_s: Cited[DollarsPerSecond] | None = Field(
        default=None, alias="rent", description="of one device with its share of the node and the network"
    )
    reliability: Reliability | None = Field(default=None, description="failures, and how much steps vary")
    spread: Spread | None = Field(default=None, description="how far off times of the device are, for error bars")
    work_groups: WorkGroups | None = Field(
        default=None, description="constants of work-groups, for gathers and fused kernels"
    )

    @field_validator("peak_flops_per_s", "calibration")
    @classmethod
    def _known_keys(cls, value: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        if info.field_name == "calibration":
            what, known = "class of kernels", (*dict.fromkeys(CLASSES.values()), *OPERATIONS)
        else:
            what, known = "dtype", tuple(ITEM_BYTES)
        for name in value:
            if name not in known:
                raise ValueError(f"unknown {what} {name!r}; {nearest(name, known)}")
        return value


@dataclass(frozen=True)
class Device:
    """One accelerator."""

    name: str  # the shipped name or the file's stem
    title: str  # the vendor's name of it
    vendor: str
    peak_flops_per_s: Mapping[str, float] = field(hash=False)  # dtype to the dense rate of GEMMs in that dtype
    memory_bytes_per_s: float  # of the device memory
    memory_bytes: float
    l2_bytes: float  # of the last cache before it
    num_sms: int  # streaming multiprocessors, or compute units
    link_bytes_per_s: float  # all links to other devices together, one direction
    reserved_bytes: float = 0.0  # of the memory, by the driver
    clock_hz: float = 0.0  # of the streaming multiprocessors at their best; 0 where the file does not say
    # Measured kernel times, earliest first; empty for a device known from its data sheet only. Operations of which no
    # kernel of their family was measured take the efficiency of the reference device.
    kernel_files: tuple[Path, ...] = ()
    # the reference device, whose measured kernels count where this one has none of their family; itself without one
    efficiency_from: str = ""
    # the models of kernel times that are asked, in order, by their name in `kernel_times.MODELS`; empty for all
    kernel_models: tuple[str, ...] = ()
    # class of kernels, a value of `CLASSES`, or one operation, to its efficiency in a step over the reference device's,
    # or over its own where it was measured isolated
    calibration: Mapping[str, float] = field(default_factory=dict, hash=False)
    # a call, such as ``"gemm_forward"``, to the host time to issue it; see `host`
    host_launch_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    # time from the end of a kernel to the start of the next on its stream, beyond that in a CUDA graph
    launch_gap_s: float = 0.0
    stages: Stages | None = None  # sections of the file; None where it has none
    power: Power | None = field(default=None, hash=False)
    cost: DeviceCost | None = None
    rent_per_s: float | None = None  # US dollars, with the share of node and network; None where no price is known
    reliability: Reliability | None = None
    spread: Spread | None = field(default=None, hash=False)
    work_groups: WorkGroups | None = None
    # key of `work_groups` that was not measured to the section with the least and with the greatest that it may be
    brackets: Mapping[str, tuple[WorkGroups, WorkGroups]] = field(default_factory=dict, hash=False, repr=False)
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)  # dotted key to source

    @property
    def usable_bytes(self) -> float:
        """What a job can hold: the memory less what the driver reserves."""
        return self.memory_bytes - self.reserved_bytes

    def peak(self, dtype: str) -> float:
        """Return the peak rate of GEMMs in a dtype, in FLOP/s; refuse a dtype without one."""
        if dtype not in self.peak_flops_per_s:
            raise ConfigError(
                f"device {self.name!r} states no peak rate for {dtype}; "
                f"use one of {', '.join(self.peak_flops_per_s)}, or add it to the device file"
            )
        return self.peak_flops_per_s[dtype]

    def calibrated(self, op: str) -> float:
        """Return the efficiency of an operation's kernels over the reference device's: its own, its class's, or 1.

        A custom operation is of no class.
        """
        of_class = self.calibration.get(CLASSES[OPERATIONS[op].family], 1.0) if op in OPERATIONS else 1.0
        return self.calibration.get(op, of_class)


def load_device(name_or_path: str | Path) -> Device:
    """Read a device by its shipped name or from a file.

    Raises
    ------
    ConfigError
        If there is no such device, or its file is not a valid one.

    Examples
    --------
    >>> load_device("h200").num_sms
    132
    """
    return _load(library.find("device", str(name_or_path)), seen=())


def sold_as(name_or_path: str) -> str:
    """Return the name of the device that one is `like`, or the one that this is like, or else its own: its networks'.

    >>> sold_as("h200")
    'h200'
    """
    path, seen = library.find("device", name_or_path), tuple[Path, ...]()
    while (like := read_yaml(path).get("like")) is not None:
        seen = library.lengthened(seen, path, key="like")
        path = library.find("device", str(like), named_by=f"{path}: like")
    return library.name_of(path)


def _load(path: Path, *, seen: tuple[Path, ...]) -> Device:
    """Read a device's file; `seen` are those that name it by `host_from`, one from another."""
    chain = library.lengthened(seen, path, key="host_from")
    name, values = library.name_of(path), _values(path)
    given = validate(DeviceFile, values, where=str(path))
    files = tuple(path.parent / file for file in given.kernels)
    for file in files:
        if not is_file(file, named_by=f"{path}: kernels"):
            raise ConfigError(
                f"{path}: kernels: {file.name!r} does not exist beside it; copy it, too, or write "
                f"`like: NAME` of the device that has it"
            )
    if given.efficiency_from:
        library.find("device", given.efficiency_from, named_by=f"{path}: efficiency_from")
    if not files and not given.efficiency_from:
        raise ConfigError(
            f"{path}: no kernel was measured on the device; name a reference device whose kernels were, such "
            f"as efficiency_from: h200"
        )
    if files and given.calibration and given.efficiency_from in (None, name):
        raise ConfigError(
            f"{path}: calibration: kernels were measured on the device, which has no reference device; leave "
            f"it out, or name one for the other kernels in efficiency_from"
        )
    numbers = {each.name: getattr(given, each.name) for each in fields(Device) if each.name in DeviceFile.model_fields}
    numbers["efficiency_from"] = given.efficiency_from or name
    numbers["host_launch_s"] = _transferred_host(given, chain) | given.host_launch_s
    brackets = {
        key: (WorkGroups.model_validate(low), WorkGroups.model_validate(high))
        for key, (low, high) in brackets_in(values.get("work_groups") or {}).items()
    }
    return Device(name=name, kernel_files=files, sources=sources_in(values), brackets=brackets, **numbers)


_RATES = frozenset({"peak_flops", "memory_bandwidth", "l2", "sms", "clock"})
"""Keys of a device on which the times of its kernels depend."""


def _values(path: Path, *, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file's keys over those of the device that it is `like`, if it names one; kernels lie beside their file.

    A device of other rates than the one that it is `like` has its efficiency and not its kernels.
    """
    chain, values = library.lengthened(seen, path, key="like"), read_yaml(path)
    like = library.pop_like(values, "device", path)
    if seen and isinstance(values.get("kernels"), list):
        values["kernels"] = [str((path.parent / str(file)).absolute()) for file in values["kernels"]]
    if like is None:
        library.check_kind(values, "device", where=str(path))
        return values
    base = library.find("device", like, named_by=f"{path}: like")
    found = _values(base, seen=chain)
    if found.get("kernels") and _RATES & values.keys() and "kernels" not in values:
        # kernels of that device are not this one's: it takes their efficiency, as one of a data sheet does
        shipped = base == library.folder("device") / like / base.name
        found |= {"kernels": [], "efficiency_from": like if shipped else str(base)}
    if "host_ratio" in values:  # of the host of that device, whose costs stand below its name
        found = {key: value for key, value in found.items() if not key.startswith("host_")} | {"host_from": str(base)}
    for key in ("peak_flops", "spread"):
        theirs, own = found.get(key), values.get(key)
        if isinstance(theirs, dict) and isinstance(own, dict):
            values[key] = theirs | own  # a dtype, or a number, at a time
    return found | values


def _transferred_host(given: DeviceFile, chain: tuple[Path, ...]) -> dict[str, float]:
    """Return the costs of the calls of the reference host, times the ratio of this host to it."""
    path = chain[-1]
    if (given.host_from is None) != (given.host_ratio is None):
        raise ConfigError(f"{path}: host_from and host_ratio belong together; give both or neither")
    if given.host_ratio is None and given.host_ratio_backward is not None:
        raise ConfigError(f"{path}: host_ratio_backward is beside host_ratio; give that, too")
    if given.host_from is None or given.host_ratio is None:
        return {}
    reference = library.find("device", given.host_from, named_by=f"{path}: host_from")
    transferred_s = _load(reference, seen=chain).host_launch_s
    if not transferred_s:
        raise ConfigError(f"{path}: host_from: {given.host_from!r} has no host_launch; name a device that has")
    ratios = {False: given.host_ratio, True: given.host_ratio_backward or given.host_ratio}
    return {call: ratios["_backward" in call] * seconds for call, seconds in transferred_s.items()}
