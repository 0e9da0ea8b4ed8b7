"""Devices: a YAML file in which every number names its source, to a frozen `Device` in SI units.

A device is its peak rates, memory, caches and links, what the host spends to launch work on it, and the files of
kernel times that were measured on it; `kernel_times` turns the files into times. A device on which no kernel was
measured names a reference device; its `calibration` says, by class of kernels, how many times as efficient its kernels
are as those of the reference device, fitted to published runs or taken from a data sheet, as its source says.

Source of each number: the device file itself, beside the number; `Device.sources` keeps them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, field_validator

from scaleout.cluster.device.sections import Power, Stages, WorkGroups
from scaleout.config import library
from scaleout.config.units import Bytes, BytesPerSecond, FlopsPerSecond, Hertz, Seconds
from scaleout.config.validated import Cited, Config, Count, Text, nearest, read_yaml, sources_in, validate
from scaleout.errors import ConfigError
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, Family

CLASSES: Mapping[Family, str] = {
    Family.GEMM: "gemm",
    Family.CONVOLUTION: "gemm",
    Family.ATTENTION: "attention",
    Family.ROWS: "memory",
    Family.ELEMENTWISE: "memory",
    Family.GATHER: "memory",
}
"""Family of operations to the class in which it is calibrated: by what limits it."""


class DeviceFile(Config):
    """What a device file holds; the keys say what each number is."""

    name: Text
    vendor: Text
    peak_flops: dict[str, Cited[FlopsPerSecond]] = Field(min_length=1)
    memory_bandwidth: Cited[BytesPerSecond]
    memory: Cited[Bytes]
    l2: Cited[Bytes]
    sms: Cited[Count]
    clock: Cited[Hertz] = 0.0
    link_bandwidth: Cited[BytesPerSecond]
    kernels: tuple[Text, ...] = ()
    efficiency_from: Text | None = None
    kernel_models: tuple[Text, ...] = Field(
        default=(), description="models of kernel times in the order in which they are asked; all, if not given"
    )
    calibration: dict[str, Cited[float]] = Field(
        default_factory=dict,
        description="class of kernels, or one operation, to its efficiency in a step over the reference device's, "
        "or over its own where it was measured alone",
    )
    host_from: Text | None = None
    host_ratio: Cited[float] | None = Field(
        default=None, description="what a call costs the host over what it costs that of host_from"
    )
    host_launch: dict[str, Cited[Seconds]] = Field(default_factory=dict)
    launch_gap: Cited[Seconds] = 0.0
    stages: Stages | None = None
    power: Power | None = None
    work_groups: WorkGroups | None = None

    @field_validator("peak_flops")
    @classmethod
    def _known_dtypes(cls, value: dict[str, float]) -> dict[str, float]:
        for dtype, peak in value.items():
            if dtype not in ITEM_BYTES:
                raise ValueError(f"unknown dtype {dtype!r}; {nearest(dtype, ITEM_BYTES)}")
            if peak <= 0:
                raise ValueError(f"the peak of {dtype} must be above zero")
        return value

    @field_validator("calibration")
    @classmethod
    def _known_classes(cls, value: dict[str, float]) -> dict[str, float]:
        known = (*dict.fromkeys(CLASSES.values()), *OPERATIONS)
        for name, ratio in value.items():
            if name not in known:
                raise ValueError(f"unknown class of kernels {name!r}; {nearest(name, known)}")
            if not (ratio > 0 and math.isfinite(ratio)):
                raise ValueError(
                    f"the efficiency of {name} over the reference device's is {ratio}; give one above zero"
                )
        return value

    @field_validator("host_ratio")
    @classmethod
    def _ratio(cls, value: float | None) -> float | None:
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"the host takes {value} times as long; give a ratio above zero")
        return value

    @field_validator("memory_bandwidth")
    @classmethod
    def _positive(cls, value: float) -> float:
        if value <= 0:
            raise ValueError("the bandwidth must be above zero")
        return value


@dataclass(frozen=True)
class Device:
    """One accelerator.

    Attributes
    ----------
    name, title : str
        The shipped name or the file's stem; the vendor's name of it.
    peak_flops_per_s : mapping
        Dtype to the dense rate of GEMMs in that dtype.
    memory_bytes_per_s, memory_bytes, l2_bytes : float
        Of the device memory and of the last cache before it.
    num_sms : int
        Streaming multiprocessors, or compute units.
    link_bytes_per_s : float
        All links to other devices together, one direction.
    clock_hz : float
        Of the streaming multiprocessors at their best; 0 where the file does not say.
    kernel_files : tuple of Path
        Measured kernel times, earliest first; empty for a device known from its data sheet only. Operations of
        which no kernel of their family was measured take the efficiency of the reference device.
    efficiency_from : str
        The reference device, whose measured kernels count where this one has none of their family; itself without one.
    kernel_models : tuple of str
        The models of kernel times that are asked, in order, by their name in `kernel_times.MODELS`; empty for all.
    calibration : mapping
        Class of kernels, a value of `CLASSES`, or one operation, to its efficiency in a step over the reference
        device's, or over its own where it was measured isolated.
    host_launch_s : mapping
        A call, such as ``"gemm_forward"``, to the host time to issue it; see `host`.
    launch_gap_s : float
        Time from the end of a kernel to the start of the next on its stream, beyond that in a CUDA graph.
    stages, power, work_groups
        Sections of the file; None where it has none.
    sources : mapping
        Dotted key in the device file to the source of its number.
    """

    name: str
    title: str
    vendor: str
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    memory_bytes_per_s: float
    memory_bytes: float
    l2_bytes: float
    num_sms: int
    link_bytes_per_s: float
    clock_hz: float = 0.0
    kernel_files: tuple[Path, ...] = ()
    efficiency_from: str = ""
    kernel_models: tuple[str, ...] = ()
    calibration: Mapping[str, float] = field(default_factory=dict, hash=False)
    host_launch_s: Mapping[str, float] = field(default_factory=dict, hash=False)
    launch_gap_s: float = 0.0
    stages: Stages | None = None
    power: Power | None = None
    work_groups: WorkGroups | None = None
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    def peak(self, dtype: str) -> float:
        """Return the peak rate of GEMMs in a dtype, in FLOP/s; refuse a dtype without one."""
        if dtype not in self.peak_flops_per_s:
            raise ConfigError(
                f"device {self.name!r} states no peak rate for {dtype}; "
                f"use one of {', '.join(self.peak_flops_per_s)}, or add it to the device file"
            )
        return self.peak_flops_per_s[dtype]

    def calibrated(self, op: str) -> float:
        """Return the efficiency of an operation's kernels over the reference device's: its own, its class's, or 1."""
        return self.calibration.get(op, self.calibration.get(CLASSES[OPERATIONS[op].family], 1.0))


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
    path = library.find("device", str(name_or_path))
    values = read_yaml(path)
    given = validate(DeviceFile, values, where=str(path))
    files = tuple(path.parent / file for file in given.kernels)
    for file in files:
        if not file.is_file():
            raise ConfigError(f"{path}: kernels: {file.name!r} does not exist beside it; correct the name")
    if given.efficiency_from is not None:
        library.find("device", given.efficiency_from, named_by=f"{path}: efficiency_from")
    if not files and given.efficiency_from is None:
        raise ConfigError(
            f"{path}: no kernel was measured on the device; name a reference device whose kernels were, such "
            f"as efficiency_from: h200"
        )
    if files and given.calibration and given.efficiency_from in (None, library.name_of(path)):
        raise ConfigError(
            f"{path}: calibration: kernels were measured on the device, which has no reference device; leave "
            f"it out, or name one for the other kernels in efficiency_from"
        )
    return Device(
        name=library.name_of(path),
        title=given.name,
        vendor=given.vendor,
        peak_flops_per_s=given.peak_flops,
        memory_bytes_per_s=given.memory_bandwidth,
        memory_bytes=given.memory,
        l2_bytes=given.l2,
        num_sms=given.sms,
        link_bytes_per_s=given.link_bandwidth,
        clock_hz=given.clock,
        kernel_files=files,
        efficiency_from=given.efficiency_from or library.name_of(path),
        kernel_models=given.kernel_models,
        calibration=given.calibration,
        host_launch_s=_transferred_host(given, path) | given.host_launch,
        launch_gap_s=given.launch_gap,
        power=given.power,
        stages=given.stages,
        work_groups=given.work_groups,
        sources=sources_in(values),
    )


def _transferred_host(given: DeviceFile, path: Path) -> dict[str, float]:
    """Return the costs of the calls of the reference host, times the ratio of this host to it."""
    if (given.host_from is None) != (given.host_ratio is None):
        raise ConfigError(f"{path}: host_from and host_ratio belong together; give both or neither")
    if given.host_from is None or given.host_ratio is None:
        return {}
    transferred_s = load_device(given.host_from).host_launch_s
    if not transferred_s:
        raise ConfigError(f"{path}: host_from: {given.host_from!r} has no host_launch; name a device that has")
    return {call: given.host_ratio * seconds for call, seconds in transferred_s.items()}
