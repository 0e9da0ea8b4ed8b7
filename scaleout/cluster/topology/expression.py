"""Topologies in one line: ``switch(8,nvlink4) x torus(4,4,ndr/4)``, innermost first, to the values of a file.

Each part is a kind of dimension with its sizes, a link type (see `link_type`), and keys: ``bandwidth=400Gb/s``,
``latency=700ns``, ``taper=2:1`` (a tree), ``global_links=4`` (a dragonfly). Values of several levels have a ``/``
between them. ``torus(4,4,...)`` is two rings; a tree and a dragonfly have a size a level, leaves first. Library and
start-up are those of the innermost link type, so that an expression and the file that says the same are equal.
"""

import math
import re
from typing import Any

from scaleout.cluster.topology.fabric import SUFFIXES
from scaleout.cluster.topology.files import TopologyFile
from scaleout.cluster.topology.kinds import KINDS
from scaleout.config.documents import number, whole
from scaleout.config.reading import nearest
from scaleout.config.validated import validate
from scaleout.errors import ConfigError, shown

_WORD = r"[A-Za-z_]+"
_START = re.compile(rf"\s*{_WORD}\s*\(")
_PART = re.compile(rf"\s*({_WORD})\s*\(([^()]*)\)\s*(?:x|$)", re.DOTALL)
_SIZES = re.compile(r"\d+(x\d+)+", re.ASCII)
_SEVERAL = {"torus": "ring", "mesh": "mesh"}
"""Kinds of which each size is a dimension, and what that is."""
_LEVELS = ("fat_tree", "leaf_spine", "dragonfly")
"""Kinds of which each size is a level."""
_KEYS = ("bandwidth", "latency", "taper", "global_links")
_MOST_BYTES = 4096
"""Of an expression."""


def is_expression(text: str) -> bool:
    """Return whether a text is an expression, rather than a name or a file."""
    return _START.match(text) is not None and not text.endswith((".yaml", ".yml", *SUFFIXES))


def read_expression(text: str) -> TopologyFile:
    """Return the values of the topology file that an expression stands for.

    Raises
    ------
    ConfigError
        If it cannot be read, or a kind, key or value in it is wrong; the message has the expression.

    >>> [entry.size for entry in read_expression("switch(8,nvlink4) x torus(4,2,ndr/4)").dimensions]
    [8, 4, 2]
    """
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{shown(text)}: has more than {_MOST_BYTES:,} bytes; write a file")
    try:
        dimensions = [entry for kind, arguments in _parts(text) for entry in _entries(kind, arguments)]
    except ConfigError as error:
        raise ConfigError(f"{shown(text)}: {error}") from None
    return validate(TopologyFile, {"dimensions": dimensions, "source": f"the expression {text}"}, where=shown(text))


def _parts(text: str) -> list[tuple[str, list[str]]]:
    """Kind and arguments of each part."""
    found, at = [], 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or (match.end() == len(text) and match[0].rstrip().endswith("x")):
            opened, closed = text.count("("), text.count(")")
            bracket = "" if opened == closed else f" ({opened} brackets open, {closed} close)"
            raise ConfigError(
                f"cannot be read from {shown(text[at:].strip() or text)} on{bracket}; write it like switch(8,nvlink4) "
                f"x switch(16,ndr), innermost first"
            )
        found.append((match[1], [each.strip(" ") for each in match[2].split(",")]))
        at = match.end()
    return found


def _entries(kind: str, arguments: list[str]) -> list[dict[str, Any]]:
    """Return the entries of `dimensions` that one part stands for."""
    names = {*KINDS, *_SEVERAL, *(name for each in KINDS.values() for name in each.names_in_files)} - {"graph"}
    if kind not in names:
        raise ConfigError(f"unknown kind of dimension {kind!r}; {nearest(kind, names)}")
    if len(arguments) > 1 and not all(arguments):
        raise ConfigError(f"{kind}: nothing stands between two commas, or beside one; leave the comma out")
    sizes: list[int] = []
    entry: dict[str, Any] = {}
    for argument in filter(None, arguments):
        key, equals, value = (part.strip(" ") for part in argument.partition("="))
        size = whole(key)
        new = {"link_type": argument} if not equals else _key(key, value)
        if size is not None and not equals:
            sizes.append(size)
        elif not equals and argument.endswith(("b/s", "B/s")):
            raise ConfigError(f"{kind}: {shown(argument)} is no link type; write bandwidth={argument} and a latency")
        elif not equals and _SIZES.fullmatch(argument):
            raise ConfigError(f"{kind}: write sizes with commas between them: {argument.replace('x', ',')}")
        elif not equals and number(argument) is not None:
            raise ConfigError(f"{kind}: {shown(argument)} is no size; give a whole number of ranks, 1 or more")
        elif entry.keys() & new.keys():
            raise ConfigError(f"{kind}: {shown(argument)} is one too many; give one {next(iter(new))}")
        else:
            entry |= new
    if not sizes:
        first, _, rest = arguments[0].partition(" ")
        comma = f"; write a comma after the size: {kind}({first},{rest.strip()})" if whole(first) and rest else ""
        raise ConfigError(f"{kind} has no size{comma or f'; give the ranks along it, such as {kind}(8,ndr)'}")
    if not entry.keys() & {"link_type", "bandwidth"}:
        raise ConfigError(
            f"{kind} has no link type; give one, such as {kind}({','.join(map(str, sizes))},ndr) (`scaleout list "
            f"link-types`), or bandwidth=400Gb/s and latency=2.7us"
        )
    return _sized(kind, sizes, entry)


def _key(key: str, value: str) -> dict[str, Any]:
    """Return the key of a file that an argument of an expression stands for."""
    if key not in _KEYS:
        raise ConfigError(f"unknown key {shown(key)}; {nearest(key, _KEYS)}")
    if key == "global_links":
        return {key: whole(value) if whole(value) is not None else value}
    if key == "taper":
        return {"oversubscription": [ratio_of(each) for each in value.split("/")]}
    parts = re.split(r"/(?!s)", value)
    return {key: parts if len(parts) > 1 else value}


def ratio_of(text: str) -> float:
    """Return the bandwidth below a switch over that above it: 2 of ``2:1``."""
    ends = [number(part.strip(" ")) or 0.0 for part in text.split(":")]
    if len(ends) != 2 or not 0 < ends[1] <= ends[0]:
        raise ConfigError(f"{shown(text)} is no taper; write ports down and up of a switch, such as 2:1")
    return ends[0] / ends[1]


def _sized(kind: str, sizes: list[int], entry: dict[str, Any]) -> list[dict[str, Any]]:
    if kind in _SEVERAL:
        return [{"kind": _SEVERAL[kind], "size": size, **entry} for size in sizes]
    if kind in _LEVELS:
        full = {} if kind == "dragonfly" else {"oversubscription": [1] * (len(sizes) - 1)}
        return [{"kind": kind, "size": math.prod(sizes), "radices": sizes, **full, **entry}]
    if len(sizes) > 1:
        raise ConfigError(f"a {kind} has one size, not {', '.join(map(str, sizes))}; write torus, fat_tree or mesh")
    return [{"kind": kind, "size": sizes[0], **entry}]
