"""Link types: what a port or link is, by a name such as `ndr`: its numbers with sources, its price and its power.

Maps a file of `topologies/links` to a `LinkType`. A dimension that names one takes its link, bandwidth and latency from
it, and a topology that names no library that of its innermost one. ``ndr/4`` is a port split in four.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field

from scaleout.config import library
from scaleout.config.documents import whole
from scaleout.config.units import BytesPerSecond, Count, Dollars, Failures, Seconds, Watts
from scaleout.config.validated import Cited, Config, read_yaml, sources_in, validate
from scaleout.errors import ConfigError, shown

_MOST_PARTS = 64
"""Into which a port is split."""


class Part(Config):
    """A part of a network: what it costs and draws, as far as that is public."""

    price_usd: Cited[Dollars] | None = Field(default=None, alias="price", description="list price")
    power_w: Cited[Watts] | None = Field(default=None, alias="power", description="rated power")


class SwitchPart(Part):
    """A switch, without what is plugged in."""

    ports: Cited[Count] = Field(description="links that it joins")


class LinkType(Config):
    """A link type."""

    link: str = Field(default="", description="kind of link, by which libraries know it")
    bytes_per_s: Cited[BytesPerSecond] = Field(alias="bandwidth", description="of a port of a rank, one direction")
    latency_s: Cited[Seconds] = Field(alias="latency", description="of a message, beyond its bytes")
    library: str = Field(
        default="",
        description="communication library of topologies whose innermost dimension is of it and that name none",
    )
    cable: Part | None = Field(default=None, description="a link, with the transceivers at both ends")
    switch: SwitchPart | None = Field(default=None, description="a switch, without what is plugged in")
    failures_per_s: Cited[Failures] = Field(
        default=0.0,
        alias="failures",
        description="failures of a rank's port, with its card and its share of cables and switches",
    )
    included: str = Field(default="", description="in what price its parts are, where they are not sold apart")


def load_link_type(name_or_file: str, *, named_by: str = "") -> LinkType:
    """Read a shipped link type by its name, or the user's by its path.

    Raises
    ------
    ConfigError
        If there is none of the name, or its file is not a valid one.

    >>> load_link_type("ndr").bytes_per_s
    50000000000.0
    """
    return _load(library.find("link type", name_or_file, named_by=named_by))[0]


def sources_of(name_or_file: str) -> Mapping[str, str]:
    """Return the source of each number of a link type, by its dotted key."""
    return _load(library.find("link type", name_or_file))[1]


@cache
def _load(path: Path) -> tuple[LinkType, dict[str, str]]:
    values = read_yaml(path)
    return validate(LinkType, values, where=str(path)), sources_in(values)


def split_of(text: str) -> tuple[str, int]:
    """Return the name of a link type, and into how many links its port is split: ``ndr/4``."""
    name, slash, parts = text.rpartition("/") if not text.endswith((".yaml", ".yml")) else (text, "", "")
    count = whole(parts) if slash else 1
    if not slash:
        return text, 1
    if count is None or not 1 <= count <= _MOST_PARTS:
        raise ConfigError(
            f"link type {shown(text)}: {shown(parts)} is no number of links into which a port is split; give 1 to "
            f"{_MOST_PARTS}, such as ndr/4"
        )
    return name, count


def defaults_of(text: str, folder: Path) -> dict[str, Any]:
    """Return the keys of a topology file's dimension that a link type gives where the dimension does not."""
    name, count = split_of(text)
    if library.is_path(name) and not Path(name).is_absolute():
        name = str(folder / name)
    found, sources = load_link_type(name, named_by="link_type"), sources_of(name)
    split = f", a port split in {count}" if count > 1 else ""
    return {
        "link_type": name,
        "link": found.link,
        "bandwidth": (found.bytes_per_s / count,),
        "bandwidth_source": sources["bandwidth"] + split,
        "latency": (found.latency_s,),
        "latency_source": sources["latency"],
    }
