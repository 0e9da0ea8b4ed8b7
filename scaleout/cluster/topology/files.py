"""Files of topologies: what stands in them, read into dimensions.

Maps the YAML file of a network, or of one that is `like` another, to validated values, and an entry of `dimensions` to
a `Dimension`. A file that is `like` another holds the keys that differ, and `nodes`, the size of the outermost
dimension; a fat tree has more at its top. Knows nothing of ranks; `topology` makes a network of it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from scaleout.cluster.topology.communication_library import Library
from scaleout.cluster.topology.dimension import Dimension, graph_dimension
from scaleout.cluster.topology.fabric import SUFFIXES, fabric_of, load_fabric
from scaleout.config import library, validated
from scaleout.config.units import BytesPerSecond, BytesPerSecondByLevel, Seconds, SecondsByLevel
from scaleout.errors import ConfigError


class LinkFile(validated.Config):
    """A link of a graph."""

    between: tuple[int | str, int | str]
    bandwidth: BytesPerSecond | None = None
    latency: Seconds | None = None


class DimensionFile(validated.Config):
    """An entry of `dimensions`."""

    kind: str
    size: int
    bandwidth: BytesPerSecondByLevel = ()
    bandwidth_per_rank: BytesPerSecond | None = None
    bandwidth_source: str
    latency: SecondsByLevel = ()
    latency_source: str
    radices: tuple[int, ...] = ()
    oversubscription: tuple[float, ...] = ()
    global_links: int = 0
    levels_source: str = ""
    link: str = ""
    switches: tuple[str, ...] = ()
    links: tuple[LinkFile, ...] = ()
    file: str = ""
    links_source: str = ""
    in_network_reduction: bool = False
    in_network_reduction_source: str = ""
    through_host: BytesPerSecond | None = None
    through_host_source: str = ""


class ChangesFile(validated.Config):
    """Links and ranks that are slower than their like."""

    degrade: dict[str, float | str] = Field(default_factory=dict)
    broken: tuple[str, ...] = Field(default=(), alias="break")
    slow: dict[int, float] = Field(default_factory=dict)
    source: str = ""


class TopologyFile(validated.Config):
    """What a topology file holds."""

    dimensions: list[DimensionFile]
    startup: Seconds = 0.0
    startup_source: str = ""
    library: str | None = None
    backends: dict[str, str] = Field(
        default_factory=dict, description="name of a way to communicate to its library's file; see `backends`"
    )
    changes: ChangesFile = ChangesFile()
    source: str


def read_topology(path: Path) -> TopologyFile:
    """Read a file, with the paths in it relative to the working folder.

    Raises
    ------
    ConfigError
        If a key, unit or value is wrong, or the file is like itself.
    """
    return validated.validate(TopologyFile, _keys(path), where=str(path))


def _keys(path: Path, *, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file's keys over those of the topology that it is `like`, if it names one."""
    if path in seen:
        raise ConfigError(f"{path}: like leads back to this file; let one of {', '.join(map(str, seen))} do without")
    values = validated.read_yaml(path)
    for entry in values.get("dimensions", []) if seen else []:
        if isinstance(entry, dict) and "file" in entry:
            entry["file"] = str((path.parent / str(entry["file"])).resolve())
    if isinstance(values.get("library"), str):
        values["library"] = str(path.parent / values["library"])
    if isinstance(values.get("backends"), dict):
        values["backends"] = {name: str(path.parent / str(file)) for name, file in values["backends"].items()}
    like, nodes = values.pop("like", None), values.pop("nodes", None)
    if like is not None:
        if not isinstance(like, str):
            raise ConfigError(f"{path}: like is {like!r}; give the name or file of a topology")
        given = str(path.parent / like) if library.is_path(like) and not Path(like).is_absolute() else like
        values = _keys(library.find("topology", given, asked_by=f"{path}: like"), seen=(*seen, path)) | values
    return values if nodes is None else _resized(values, nodes, path)


def _resized(values: Mapping[str, Any], nodes: Any, path: Path) -> dict[str, Any]:
    """Give the outermost dimension another size."""
    dimensions = values.get("dimensions")
    if not (isinstance(dimensions, list) and dimensions and isinstance(dimensions[-1], dict)):
        raise ConfigError(f"{path}: nodes is the size of the outermost of 'dimensions', and there is none; add one")
    last = {**dimensions[-1], "size": nodes}
    if last.get("kind") == "fat_tree" and isinstance(last.get("radices"), list) and isinstance(nodes, int):
        below = math.prod(last["radices"][:-1])
        if nodes % below:
            raise ConfigError(f"{path}: {nodes} nodes are no multiple of the {below} below a switch of the top level")
        last["radices"] = [*last["radices"][:-1], nodes // below]
    elif last.get("radices") or last.get("kind") == "graph":
        raise ConfigError(f"{path}: nodes cannot resize a dimension of levels or links; give the dimensions in full")
    return {**values, "dimensions": [*dimensions[:-1], last]}


def read_dimension(number: int, entry: DimensionFile, path: Path) -> Dimension:
    """Return the dimension that an entry of a file describes."""
    try:
        _check_sources(entry)
        found = _graph(entry, path) if entry.kind == "graph" else _even(entry)
        return replace(
            found,
            in_network_reduction=entry.in_network_reduction,
            through_host_bytes_per_s=math.inf if entry.through_host is None else entry.through_host,
        )
    except ConfigError as error:
        raise ConfigError(f"dimensions.{number}: {error}") from None


def _check_sources(entry: DimensionFile) -> None:
    if entry.in_network_reduction and not entry.in_network_reduction_source:
        raise ConfigError("key 'in_network_reduction_source' is missing; say where it is written that they can")
    if entry.through_host is not None and not entry.through_host_source:
        raise ConfigError("key 'through_host_source' is missing; say where it is written what the host carries")
    if entry.through_host is None and entry.through_host_source:
        raise ConfigError("key 'through_host' is missing, and 'through_host_source' is there; give both, or neither")


def _even(entry: DimensionFile) -> Dimension:
    """Read a dimension whose kind says what is linked to what."""
    if entry.switches or entry.links or entry.file:
        raise ConfigError(f"a {entry.kind} has links of its own; leave out 'switches', 'links' and 'file'")
    if not entry.latency:
        raise ConfigError("key 'latency' is missing; add it")
    bytes_per_s, *others = _bandwidths(entry)
    return Dimension(
        _kind(entry),
        entry.size,
        bytes_per_s,
        entry.latency[0],
        entry.radices,
        entry.oversubscription,
        level_latency_s=entry.latency if len(entry.latency) > 1 else (),
        global_links=entry.global_links,
        level_bytes_per_s=tuple(others),
        link=entry.link,
    )


def _kind(entry: DimensionFile) -> str:
    """Kind of a dimension; a leaf-spine network is a fat tree of two levels."""
    if entry.kind != "leaf_spine":
        return entry.kind
    if len(entry.radices) != 2:
        raise ConfigError(
            f"a leaf_spine has radices {list(entry.radices)}; give two: ranks a leaf switch, and leaf switches"
        )
    return "fat_tree"


def _bandwidths(entry: DimensionFile) -> tuple[float, ...]:
    if (not entry.bandwidth) == (entry.bandwidth_per_rank is None):
        raise ConfigError("give either 'bandwidth' (of a link or port) or 'bandwidth_per_rank'")
    if entry.bandwidth_per_rank is None:
        return entry.bandwidth
    return (entry.bandwidth_per_rank / _links_of_a_rank(entry.kind, entry.size),)


def _graph(entry: DimensionFile, path: Path) -> Dimension:
    """Read the links of a graph, listed or in a file beside this one; what a link leaves out is the dimension's."""
    if bool(entry.links) == bool(entry.file):
        raise ConfigError("a graph needs either 'links' (between, bandwidth, latency) or 'file', with the same in it")
    if entry.radices or entry.oversubscription or entry.global_links or entry.bandwidth_per_rank is not None:
        raise ConfigError("a graph's links say all; leave out 'radices', 'oversubscription', 'bandwidth_per_rank'")
    if entry.file:
        if not entry.file.endswith(SUFFIXES):
            raise ConfigError(f"file {entry.file!r} is neither {' nor '.join(SUFFIXES)}; convert it with networkx")
        fabric = load_fabric(path.parent / entry.file)
    else:
        fabric = fabric_of(entry.size, entry.switches, [_link(link, entry) for link in entry.links])
    if fabric.num_ranks != entry.size:
        raise ConfigError(f"the graph in {entry.file!r} has {fabric.num_ranks} ranks, and the size is {entry.size}")
    return graph_dimension(fabric, link=entry.link)


def _link(link: LinkFile, entry: DimensionFile) -> tuple[int | str, int | str, float, float]:
    a, b = link.between
    values = []
    for key in ("bandwidth", "latency"):
        own, shared = getattr(link, key), getattr(entry, key)
        if own is None and len(shared) != 1:
            raise ConfigError(f"link {a}-{b} has no {key!r}; give it to the link, or one to the whole dimension")
        values.append(shared[0] if own is None else own)
    return a, b, values[0], values[1]


def _links_of_a_rank(kind: str, size: int) -> int:
    """Links over which a rank sends: what its total bandwidth is divided by."""
    if kind in ("ring", "mesh") and size > 1:
        return min(2, size - 1)
    return size - 1 if kind == "fully_connected" and size > 1 else 1


def join_sources(values: TopologyFile, found: Sequence[Library]) -> str:
    """Return what a file says of where its numbers come from, a line each."""
    lines = [values.source]
    for number, entry in enumerate(values.dimensions):
        lines.append(f"dimension {number}: bandwidth: {entry.bandwidth_source}; latency: {entry.latency_source}")
        for what in ("levels", "links", "in_network_reduction", "through_host"):
            if source := getattr(entry, f"{what}_source"):
                lines[-1] += f"; {what}: {source}"
    if values.startup_source:
        lines.append(f"startup: {values.startup_source}")
    lines += dict.fromkeys(f"{each.name}: {each.source}" for each in found)
    if values.changes.source:
        lines.append(f"changes: {values.changes.source}")
    return "\n".join(lines)
