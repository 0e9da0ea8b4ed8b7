"""Files of topologies: the YAML of a network to validated values, and an entry of `dimensions` to a `Dimension`.

A file that is `like` another holds the keys that differ, and `nodes`, the size of the outermost dimension. Knows
nothing of ranks; `topology` makes a network of it.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from scaleout.cluster.topology.communication_library import Library, load_library
from scaleout.cluster.topology.dimension import Dimension
from scaleout.cluster.topology.kinds import find_kind
from scaleout.cluster.topology.link_type import defaults_of, load_link_type
from scaleout.config import library, validated
from scaleout.config.documents import MAX_RANKS, is_file
from scaleout.config.units import (
    BytesPerSecond,
    BytesPerSecondByLevel,
    Number,
    Rank,
    RankCount,
    Seconds,
    SecondsByLevel,
    Slowdown,
)  # fmt: skip
from scaleout.errors import ConfigError


class LinkFile(validated.Config):
    """A link of a graph."""

    between: tuple[Rank | str, Rank | str] = Field(
        description="both ends: ranks of the dimension, or names of switches"
    )
    bandwidth: BytesPerSecond | None = Field(default=None, description="of this link; the dimension's if unset")
    latency: Seconds | None = Field(default=None, description="of this link; the dimension's if unset")


class DimensionFile(validated.Config):
    """An entry of `dimensions`."""

    kind: str = Field(
        description="how ranks are joined: ring, mesh, switch, fully_connected, fat_tree, dragonfly or graph"
    )
    size: RankCount = Field(description="ranks along the dimension")
    bandwidth: BytesPerSecondByLevel = Field(
        default=(), description="of a link, one direction; of a fat tree also one value a level"
    )
    bandwidth_per_rank: BytesPerSecond | None = Field(
        default=None, description="of all links of a rank together, instead of bandwidth"
    )
    bandwidth_source: str = Field(default="", description="where bandwidth is from")
    latency: SecondsByLevel = Field(
        default=(), description="of a message over a link; of a fat tree also one value a level"
    )
    latency_source: str = Field(default="", description="where latency is from")
    radices: tuple[RankCount, ...] = Field(
        default=(),
        description="of a fat tree: children of a switch at each level, innermost first; of a "
        "dragonfly: ranks of a router, routers of a group, groups",
    )
    oversubscription: tuple[Slowdown, ...] = Field(
        default=(), description="of a fat tree: bandwidth below over bandwidth above the switches of each level"
    )
    global_links: Annotated[int, Field(strict=True, ge=0, le=MAX_RANKS)] = Field(
        default=0, description="of a dragonfly: links between groups of a router"
    )
    levels_source: str = Field(default="", description="where radices and oversubscription are from")
    link: str = Field(default="", description="kind of link, by which libraries know it")
    link_type: str = Field(default="", description="gives link, bandwidth and latency where they are not given")
    switches: tuple[str, ...] = Field(default=(), description="of a graph: names of its switches")
    links: tuple[LinkFile, ...] = Field(default=(), description="of a graph: its links")
    file: str = Field(default="", description="of a graph: a GraphML or edge list file instead of links")
    links_source: str = Field(default="", description="where the graph is from")
    in_network_reduction: bool = Field(
        default=False, description="whether the switch adds up what ranks send (SHARP, NVLS)"
    )
    in_network_reduction_source: str = Field(default="", description="where that is from")
    through_host: BytesPerSecond | None = Field(
        default=None,
        description="bandwidth of a node's ranks together where messages pass the host; without limit if unset",
    )
    through_host_source: str = Field(default="", description="where that is from")


class ChangesFile(validated.Config):
    """Links and ranks that are slower than their like."""

    degrade: dict[str, Number | str] = Field(
        default_factory=dict, description="link to the share of its bandwidth, or the rate, that is left"
    )
    broken: tuple[str, ...] = Field(default=(), alias="break", description="links that are broken")
    slow: dict[Rank, Number] = Field(
        default_factory=dict, description="rank to how many times as long its kernels take"
    )
    source: str = Field(default="", description="where the changes are from")


class TopologyFile(validated.Config):
    """What a topology file holds."""

    dimensions: list[DimensionFile] = Field(description="dimensions of the network, innermost first")
    nodes: RankCount | None = Field(default=None, description="another size of the outermost dimension")
    startup: Seconds | None = Field(default=None, description="of a collective, instead of what its library says")
    startup_source: str = Field(default="", description="where startup is from")
    library: str | None = Field(
        default=None, description="file of the communication library, beside this one; none for no costs of protocols"
    )
    library_reason: str = Field(default="", description="why that library, or none")
    backends: dict[str, str] = Field(
        default_factory=dict, description="name of a way to communicate to its library's file; see `backends`"
    )
    changes: ChangesFile = Field(default=ChangesFile(), description="links and ranks that are slower than their like")
    source: str = Field(default="", description="where the topology is from")


def read_topology(path: Path) -> TopologyFile:
    """Read a file, with the paths in it relative to the working folder; refuse wrong keys, units and values."""
    return validated.validate(TopologyFile, _keys(path), where=str(path))


def _keys(path: Path, *, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file's keys over those of the topology that it is `like`, if it names one."""
    chain = library.lengthened(seen, path, key="like")
    values = validated.read_yaml(path)
    entries = values.get("dimensions")
    for entry in entries if seen and isinstance(entries, list) else []:
        if isinstance(entry, dict) and "file" in entry:
            entry["file"] = str((path.parent / str(entry["file"])).resolve())
    if isinstance(values.get("library"), str) and values["library"] != "none":
        values["library"] = _beside(path, values["library"])
    if isinstance(values.get("backends"), dict):
        values["backends"] = {name: _beside(path, str(file)) for name, file in values["backends"].items()}
    like = library.pop_like(values, "topology", path)
    if like is None:
        library.check_kind(values, "topology", where=str(path))
        return values
    given = str(path.parent / like) if library.is_path(like) and not Path(like).is_absolute() else like
    inherited = _keys(library.find("topology", given, named_by=f"{path}: like"), seen=chain)
    if "library" in values:
        inherited.pop("library_reason", None)
    if "dimensions" in values:  # which say their size themselves
        inherited.pop("nodes", None)
    return inherited | values


def _beside(path: Path, file: str) -> str:
    """Return the file that one names: beside it, in the folder above, or where the shipped ones lie.

    The folder above is that of rows whose topologies lie in a folder of their own; a copy of a shipped topology names
    shipped files.
    """
    beside = path.parent / file
    sought = (beside, path.parent.parent / file, library.folder("topology") / file)
    return str(next((found for found in sought if is_file(found, named_by=str(path))), beside))


def read_dimension(number: int, entry: DimensionFile, path: Path) -> Dimension:
    """Return the dimension that an entry of a file describes."""
    try:
        entry = _with_link_type(entry, path.parent)
        kind = find_kind(entry.kind, in_file=True)
        found = Dimension(
            kind.name,
            entry.size,
            link=entry.link,
            link_type=entry.link_type,
            in_network_reduction=entry.in_network_reduction,
            through_host_bytes_per_s=math.inf if entry.through_host is None else entry.through_host,
            **kind.read(entry, path.parent),
        )
        return found if entry.bandwidth_per_rank is None else found.sharing(entry.bandwidth_per_rank)
    except ConfigError as error:
        raise ConfigError(f"dimensions.{number}: {error}") from None


def _with_link_type(entry: DimensionFile, folder: Path) -> DimensionFile:
    """Fill in what the link type of an entry gives, and the entry does not."""
    if not entry.link_type:
        return entry
    given = entry.model_fields_set - {"link_type"} | ({"bandwidth"} if entry.bandwidth_per_rank is not None else set())
    defaults = {key: value for key, value in defaults_of(entry.link_type, folder).items() if key not in given}
    for key in ("bandwidth", "latency"):  # a source is that of its number
        if key in given:
            defaults.pop(f"{key}_source", None)
    if "latency" in defaults:
        defaults["latency"] = find_kind(entry.kind, in_file=True).latencies(defaults["latency"], entry.radices)
    return entry.model_copy(update=defaults)


def library_of(values: TopologyFile, dimensions: Sequence[Dimension]) -> Library | None:
    """Return the library of a topology, by default that of its innermost link type; None for bare links."""
    first = load_link_type(dimensions[0].link_type) if dimensions and dimensions[0].link_type else None
    if values.library is None and first is not None and first.library:
        return load_library(library.folder("topology") / first.library)
    return None if values.library in (None, "none") else load_library(Path(values.library))


_SOURCED = ("bandwidth", "latency", "levels", "links", "in_network_reduction", "through_host")
"""What a file may say the source of."""


def join_sources(values: TopologyFile, found: Sequence[Library], folder: Path) -> str:
    """Return what a file says of where its numbers come from, a line each."""
    lines = [values.source]
    for number, entry in enumerate(_with_link_type(each, folder) for each in values.dimensions):
        said = {what: getattr(entry, f"{what}_source") for what in _SOURCED}
        if any(said.values()):
            lines.append(f"dimension {number}: " + "; ".join(f"{what}: {text}" for what, text in said.items() if text))
    if values.startup_source:
        lines.append(f"startup: {values.startup_source}")
    lines += dict.fromkeys(f"{each.name}: {each.source}" for each in found)
    if values.changes.source:
        lines.append(f"changes: {values.changes.source}")
    return "\n".join(filter(None, lines))
