"""ASTRA-sim's own input files to validated values: network.yml, system.json, communicator groups, remote memory.

Keys that ASTRA-sim would skip in silence are refused, but for those that its documentation knows and its code does
not read: these are accepted, and a note says so where they would have mattered. Knows what may stand in the files,
and nothing of what the values cost.

Symbols: one GB/s of a network is 2**30 bytes in 1e9 ns; one of `local-mem-bw` is 1e9.
Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), inputs and behaviour as measured.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from scaleout.config import Config, nearest, read_yaml, validate
from scaleout.errors import ConfigError

DIMENSIONS = ("Ring", "Switch", "FullyConnected")
"""Kinds of network dimension."""

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""Kinds of collective that ASTRA-sim times, as the keys of system.json name them."""

IGNORED = {
    "boost-mode": "",
    "L": "",
    "o": "",
    "g": "",
    "G": "",
    "local-reduction-delay": "",
    "trace-enabled": "",
    "track-local-mem": "",
    "local-mem-trace-filename": "",
    "intra-dimension-scheduling": "",
    "inter-dimension-scheduling": "baseline",
}
"""Keys of system.json that change no time, and the value that asks for nothing; with "" no value would matter."""


class NetworkFile(Config):
    """network.yml: one entry a dimension, dimension 0 the fastest to change with the rank."""

    topology: tuple[Literal["Ring", "Switch", "FullyConnected"], ...] = Field(min_length=1)
    npus_count: tuple[int, ...] = Field(min_length=1)
    bandwidth: tuple[float, ...] = Field(min_length=1)
    latency: tuple[float, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _entries_agree(self) -> "NetworkFile":
        lengths = {name: len(getattr(self, name)) for name in ("topology", "npus_count", "bandwidth", "latency")}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{name} has {count}" for name, count in lengths.items())
            raise ValueError(f"each dimension needs one entry in every list, but {counts}; add or remove entries")
        for name, least in (("npus_count", 2), ("latency", 0)):
            if min(getattr(self, name)) < least:
                raise ValueError(f"{name} {list(getattr(self, name))} must be at least {least} in every dimension")
        if min(self.bandwidth) <= 0:
            raise ValueError(f"bandwidth {list(self.bandwidth)} must be above 0 GB/s in every dimension")
        return self


class SystemFile(Config):
    """system.json, but for the keys of `IGNORED`."""

    scheduling_policy: Literal["LIFO", "FIFO", "EXPLICIT"] = Field("LIFO", alias="scheduling-policy")
    collective_optimization: Literal["baseline", "localBWAware"] = Field("baseline", alias="collective-optimization")
    active_chunks: int = Field(1, alias="active-chunks-per-dimension", ge=1)
    endpoint_delay: int = Field(10, alias="endpoint-delay", ge=0)
    splits: int = Field(alias="preferred-dataset-splits", ge=1)
    model_shared_bus: Literal[0, False] = Field(0, alias="model-shared-bus")
    peak_perf_tflops: float = Field(0.0, alias="peak-perf", ge=0)
    local_mem_bw_gb_per_s: float = Field(0.0, alias="local-mem-bw", ge=0)
    roofline_enabled: bool = Field(False, alias="roofline-enabled")
    replay_only: bool = Field(False, alias="replay-only")
    all_reduce: tuple[str, ...] = Field((), alias="all-reduce-implementation")
    all_gather: tuple[str, ...] = Field((), alias="all-gather-implementation")
    reduce_scatter: tuple[str, ...] = Field((), alias="reduce-scatter-implementation")
    all_to_all: tuple[str, ...] = Field((), alias="all-to-all-implementation")

    @model_validator(mode="after")
    def _values_make_sense(self) -> "SystemFile":
        if self.endpoint_delay == 0:
            raise ValueError("endpoint-delay 0 aborts every collective of ASTRA-sim; give 1 ns or more")
        if self.roofline_enabled and not (self.peak_perf_tflops > 0 and self.local_mem_bw_gb_per_s > 0):
            raise ValueError("roofline-enabled needs peak-perf (TFLOP/s) and local-mem-bw (GB/s) above 0; add them")
        return self

    def implementation(self, kind: str) -> tuple[str, ...]:
        """Return the algorithms of a kind of collective, one a dimension."""
        names: tuple[str, ...] = getattr(self, kind.replace("-", "_"))
        return names


def read_network(path: Path) -> NetworkFile:
    """Read network.yml.

    Raises
    ------
    ConfigError
        If the file cannot be read, a key is unknown or missing, or the lists disagree.
    """
    return validate(NetworkFile, read_yaml(path), where=str(path))


def read_system(path: Path) -> tuple[SystemFile, tuple[str, ...]]:
    """Read system.json.

    Returns
    -------
    system : SystemFile
    notes : tuple of str
        What the file asks for and ASTRA-sim does not do.

    Raises
    ------
    ConfigError
        If the file cannot be read, a key is unknown or missing, or a value asks for what is not offered.
    """
    values = read_json(path)
    for key, value in values.items():
        if key.endswith("-implementation-custom") or key == "per-node-custom-implementation":
            raise ConfigError(f"{path}: {key} is not supported; name an algorithm in {KINDS[0]}-implementation")
        if key == "model-shared-bus" and value not in (0, False):
            raise ConfigError(f"{path}: model-shared-bus {value} is not supported; set it to 0")
    known = [field.alias or name for name, field in SystemFile.model_fields.items()]
    unknown = [key for key in values if key not in known and key not in IGNORED]
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown[0]!r}; {nearest(unknown[0], [*known, *IGNORED])}")
    system = validate(SystemFile, {key: value for key, value in values.items() if key in known}, where=str(path))
    notes = [
        f"{path}: {key} {values[key]!r} has no effect, in ASTRA-sim and here"
        for key, idle in IGNORED.items()
        if idle and values.get(key, idle) != idle
    ]
    if system.local_mem_bw_gb_per_s == 0:
        notes.append(f"{path}: without local-mem-bw reductions cost nothing, in ASTRA-sim and here")
    return system, tuple(notes)


def read_groups(path: Path, *, num_ranks: int) -> dict[str, tuple[int, ...]]:
    """Read communicator groups: ``{"1": [0, 1], "2": [2, 3]}``.

    Raises
    ------
    ConfigError
        If the file cannot be read, a key is no number above 0, or a rank is unknown or named twice.
    """
    groups = read_json(path)
    for key, ranks in groups.items():
        if not key.isdecimal() or int(key) == 0:
            raise ConfigError(f'{path}: group {key!r} must be a whole number above 0, as a string, such as "1"')
        if not isinstance(ranks, list) or not ranks or not all(type(rank) is int for rank in ranks):
            raise ConfigError(f"{path}: group {key!r} must be a list of ranks, such as [0, 1], not {ranks!r}")
        strange = [rank for rank in ranks if not 0 <= rank < num_ranks]
        if strange:
            raise ConfigError(f"{path}: group {key!r} has rank {strange[0]}, but ranks go from 0 to {num_ranks - 1}")
        if len(set(ranks)) != len(ranks):
            raise ConfigError(f"{path}: group {key!r} has a rank twice; name each rank once")
    return {key: tuple(ranks) for key, ranks in groups.items()}


def check_remote_memory(path: Path) -> None:
    """Check the file of the remote memory, of which no supported node makes use.

    Raises
    ------
    ConfigError
        If the file cannot be read or names no type of memory.
    """
    if "memory-type" not in read_json(path):
        raise ConfigError(f'{path}: key \'memory-type\' is missing; write {{"memory-type": "NO_MEMORY_EXPANSION"}}')


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Raises
    ------
    ConfigError
        If the file cannot be read, is not JSON, holds something else, or has a key twice.
    """
    try:
        value = json.loads(path.read_bytes(), object_pairs_hook=_unique)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give an existing file") from None
    except ValueError as error:
        raise ConfigError(f"{path}: not valid JSON ({error}); mend the file") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds no JSON object of keys to values; mend the file")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")
    return values
