"""ASTRA-sim's own input files to validated values: network.yml, system.json, communicator groups, remote memory.

Keys that ASTRA-sim would skip silently are refused. Keys that its documentation knows and its code does not read are
accepted, and a note says so where they would have mattered. Values are checked by hand, since importing pydantic
would take half the time of a run.

Symbols: one GB/s of a network is 2**30 bytes in 1e9 ns; one of `local-mem-bw` is 1e9.
Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), inputs and behaviour as measured.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scaleout.config.documents import LARGEST_NUMBER, LEAST_NUMBER, MAX_RANKS, parse_json, read_json, read_text, whole
from scaleout.config.reading import nearest
from scaleout.errors import ConfigError, shown
from scaleout.interop.astra.network import HOPS, Network, build_network

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""Kinds of collective that ASTRA-sim times, as the keys of system.json name them."""


class SystemFile(NamedTuple):
    """system.json, but for the keys of `IGNORED`; `SYSTEM_KEYS` has the keys of its fields."""

    splits: int
    scheduling_policy: str = "LIFO"
    collective_optimization: str = "baseline"
    active_chunks: int = 1
    endpoint_delay: int = 10
    peak_perf_tflops: float = 0.0
    local_mem_bw_gb_per_s: float = 0.0
    roofline_enabled: bool = False
    replay_only: bool = False
    all_reduce: tuple[str, ...] = ()
    all_gather: tuple[str, ...] = ()
    reduce_scatter: tuple[str, ...] = ()
    all_to_all: tuple[str, ...] = ()

    def implementation(self, kind: str) -> tuple[str, ...]:
        """Return the algorithms of a kind of collective, one a dimension."""
        names: tuple[str, ...] = getattr(self, kind.replace("-", "_"))
        return names


_Reader = Callable[[Any], Any]
"""A value of a file to the value of a field; a `ValueError` says what it must be instead."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _integer(minimum: int, most: float = LARGEST_NUMBER) -> _Reader:
    def read(value: Any) -> int:
        if not _is_number(value) or value != int(value) or value < minimum:
            raise ValueError(f"must be a whole number of at least {minimum}")
        if value > most:
            raise ValueError(f"must be at most {most:,.0f}")
        return int(value)

    return read


def _number(minimum: float = 0.0, *, above: bool = False) -> _Reader:
    def read(value: Any) -> float:
        if not _is_number(value) or value < minimum or (above and value == minimum):
            raise ValueError(f"must be a number {'above' if above else 'of at least'} {minimum:g}")
        if value > LARGEST_NUMBER or ((above or value > 0) and value < LEAST_NUMBER):
            raise ValueError(f"must be from {LEAST_NUMBER:g} to {LARGEST_NUMBER:g}")
        return float(value)

    return read


def _one_of(*known: str) -> _Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in known:
            raise ValueError(f"must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")
        return str(value)

    return read


def _flag(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError("must be 0 or 1")
    return bool(value)


def _name(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a name")  # noqa: TRY004 - all that a file gets wrong is one kind
    return value


def _list_of(item: _Reader, *, minimum: int = 0) -> _Reader:
    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) < minimum:
            raise ValueError(f"must be a list{' with an entry for each dimension' * bool(minimum)}")
        return tuple(map(item, value))

    return read


NETWORK_KEYS: Mapping[str, tuple[str, _Reader]] = {
    "topology": ("topology", _list_of(_one_of(*HOPS), minimum=1)),
    "npus_count": ("npus_count", _list_of(_integer(2, MAX_RANKS), minimum=1)),
    "bandwidth": ("bandwidth", _list_of(_number(above=True), minimum=1)),
    "latency": ("latency", _list_of(_number(), minimum=1)),
}
SYSTEM_KEYS: Mapping[str, tuple[str, _Reader]] = {
    "preferred-dataset-splits": ("splits", _integer(1, 10_000)),
    "scheduling-policy": ("scheduling_policy", _one_of("LIFO", "FIFO", "EXPLICIT")),
    "collective-optimization": ("collective_optimization", _one_of("baseline", "localBWAware")),
    "active-chunks-per-dimension": ("active_chunks", _integer(1)),
    "endpoint-delay": ("endpoint_delay", _integer(0)),
    "peak-perf": ("peak_perf_tflops", _number()),
    "local-mem-bw": ("local_mem_bw_gb_per_s", _number()),
    "roofline-enabled": ("roofline_enabled", _flag),
    "replay-only": ("replay_only", _flag),
    **{f"{kind}-implementation": (kind.replace("-", "_"), _list_of(_name)) for kind in KINDS},
}
"""Key of a file to the field that it fills, and what reads its value."""
IGNORED: Mapping[str, tuple[str, _Reader]] = {
    **{key: ("", _number()) for key in ("L", "o", "g", "G", "local-reduction-delay")},
    **dict.fromkeys(("boost-mode", "trace-enabled", "track-local-mem"), ("", _flag)),
    **dict.fromkeys(("local-mem-trace-filename", "intra-dimension-scheduling"), ("", _name)),
    "inter-dimension-scheduling": ("baseline", _name),
}
"""Key of system.json that changes no time to the value that has no effect, "" where none would, and what reads it."""

# A line of network.yml in the form of ASTRA-sim's own, of which JSON reads each item as YAML does, but for a bare name.
_ITEM = rf'(?:"\w+"|{"|".join(HOPS)}|(?:0|[1-9]\d{{0,15}})(?:\.\d{{1,15}})?)'
_LIST = re.compile(rf"({'|'.join(NETWORK_KEYS)}): +\[ *({_ITEM}(?: *, *{_ITEM})*) *\](?: +#.*| *)", re.ASCII)


def _fields(
    keys: Mapping[str, tuple[str, _Reader]], values: Mapping[str, Any], *, where: str, needed: Iterable[str]
) -> dict[str, Any]:
    """Read all values, or say everything that is wrong with them, one a line."""
    fields, faults = {}, []
    for key, value in values.items():
        if key not in keys:
            faults.append(f"unknown key {key!r}; {nearest(str(key), keys)}")
            continue
        field, read = keys[key]
        try:
            fields[field] = read(value)
        except (ValueError, OverflowError) as error:
            faults.append(f"{key}: {error}, not {shown(value)}")
    faults += [f"key {key!r} is missing; add it" for key in needed if key not in values]
    if faults:
        raise ConfigError(f"{where}: " + "\n  ".join(faults))
    return fields


def plain_lists(path: Path) -> dict[str, list[Any]]:
    """Read lines such as ``npus_count: [ 8, 16 ]  # ranks`` as YAML does; nothing if the file has others.

    The import of YAML would be a quarter of a run.
    """
    text = read_text(path)
    found = [_LIST.fullmatch(line) for line in text.split("\n") if line and not line.startswith("#")]
    lists = {match[1]: match[2].split(",") for match in found if match}
    if len(lists) < len(found) or not (text.isascii() and text.replace("\n", "").isprintable()):
        return {}  # another line, a key that stands twice, or characters of which YAML refuses some
    return {
        key: [item if item in HOPS else parse_json(item, where=str(path)) for item in map(str.strip, items)]
        for key, items in lists.items()
    }


def read_network(path: Path) -> Network:
    """Read network.yml: one entry a dimension, dimension 0 the fastest to change with the rank."""
    lists = plain_lists(path)
    if not lists:
        from scaleout.config.yaml_files import read_yaml  # noqa: PLC0415 - a quarter of a run, as `plain_lists` says

        lists = read_yaml(path)
    lists = _fields(NETWORK_KEYS, lists, where=str(path), needed=NETWORK_KEYS)
    if len(set(map(len, lists.values()))) > 1:
        counts = ", ".join(f"{key} has {len(lists[key])}" for key in NETWORK_KEYS)
        raise ConfigError(f"{path}: each dimension needs one entry in every list, but {counts}; add or remove entries")
    return build_network(**lists)


def read_system(path: Path) -> tuple[SystemFile, tuple[str, ...]]:
    """Read system.json, and notes on values that have no effect."""
    values = read_object(path)
    for key, value in values.items():
        if key.endswith("-implementation-custom") or key == "per-node-custom-implementation":
            raise ConfigError(f"{path}: {key} is not supported; name an algorithm in {KINDS[0]}-implementation")
        if key == "model-shared-bus" and value not in (0, False):
            raise ConfigError(f"{path}: model-shared-bus {shown(value)} is not supported; set it to 0")
    read = {key: value for key, value in values.items() if key != "model-shared-bus"}
    ignored = {key: (key, reader) for key, (_, reader) in IGNORED.items()}
    fields = _fields({**SYSTEM_KEYS, **ignored}, read, where=str(path), needed=["preferred-dataset-splits"])
    system = SystemFile(**{name: value for name, value in fields.items() if name not in IGNORED})
    if system.endpoint_delay == 0:
        raise ConfigError(f"{path}: endpoint-delay 0 aborts every collective of ASTRA-sim; give 1 ns or more")
    if system.roofline_enabled and not (system.peak_perf_tflops > 0 and system.local_mem_bw_gb_per_s > 0):
        raise ConfigError(f"{path}: roofline-enabled needs peak-perf (TFLOP/s) and local-mem-bw (GB/s); add them")
    notes = [
        f"{path}: {key} {values[key]!r} has no effect, in ASTRA-sim and here"
        for key, (idle, _) in IGNORED.items()
        if idle and values.get(key, idle) != idle
    ]
    if system.local_mem_bw_gb_per_s == 0:
        notes.append(f"{path}: without local-mem-bw reductions cost nothing, in ASTRA-sim and here")
    return system, tuple(notes)


def read_groups(path: Path, *, num_ranks: int) -> dict[str, tuple[int, ...]]:
    """Read communicator groups: ``{"1": [0, 1], "2": [2, 3]}``."""
    groups = read_object(path)
    for key, ranks in groups.items():
        if not whole(key):
            raise ConfigError(f'{path}: group {key!r} must be a whole number above 0, as a string, such as "1"')
        if not isinstance(ranks, list) or not ranks or not all(type(rank) is int for rank in ranks):
            raise ConfigError(f"{path}: group {key!r} must be a list of ranks, such as [0, 1], not {shown(ranks)}")
        strange = [rank for rank in ranks if not 0 <= rank < num_ranks]
        if strange:
            raise ConfigError(f"{path}: group {key!r} has rank {strange[0]}, but ranks go from 0 to {num_ranks - 1}")
        if len(set(ranks)) != len(ranks):
            raise ConfigError(f"{path}: group {key!r} has a rank twice; name each rank once")
    return {key: tuple(ranks) for key, ranks in groups.items()}


class RemoteMemoryFile(NamedTuple):
    """The file of the remote memory, as far as accesses are timed: each rank has a memory of its own."""

    latency_ns: int
    bytes_per_ns: float

    def access_ns(self, size_bytes: int) -> int:
        """Time of one access: ``latency + floor(m / bandwidth)``."""
        return self.latency_ns + int(size_bytes / self.bytes_per_ns)


MEMORY_KEYS: Mapping[str, tuple[str, _Reader]] = {
    "memory-type": (
        "kind",
        _one_of("NO_MEMORY_EXPANSION", "PER_NPU_MEMORY_EXPANSION", "PER_NODE_MEMORY_EXPANSION", "MEMORY_POOL"),
    ),
    "remote-mem-latency": ("latency_ns", _integer(0)),
    "remote-mem-bw": ("bytes_per_ns", _number(above=True)),
    "num-nodes": ("num_nodes", _integer(1)),
    "num-npus-per-node": ("ranks_per_node", _integer(1)),
}


def read_remote_memory(path: Path) -> RemoteMemoryFile | None:
    """Read the file of the remote memory; None where ranks have none, or share it, which is not offered."""
    values = read_object(path)
    own = values.get("memory-type") == "PER_NPU_MEMORY_EXPANSION"
    needed = ["memory-type", *(["remote-mem-bw"] if own else [])]
    fields = _fields(MEMORY_KEYS, values, where=str(path), needed=needed)
    return RemoteMemoryFile(fields.get("latency_ns", 0), fields["bytes_per_ns"]) if own else None


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds one object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds no JSON object of keys to values; mend the file")
    return value
