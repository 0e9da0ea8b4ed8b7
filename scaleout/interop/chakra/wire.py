"""Nodes of a trace from their bytes, without protobuf, which takes longer to import than a small trace to simulate.

A field is a varint ``number << 3 | wire type``, then a varint (wire type 0), 8 bytes (1), a length and so many bytes
(2), or 4 bytes (5). Values of attributes are decoded when they are asked for, by `attributes.get`; of all others only
names and kinds are checked. Fields of a later schema are left out.

Source: Protocol Buffers documentation, "Encoding".
"""

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from scaleout.errors import TraceError
from scaleout.interop.chakra.framing import frames, open_trace
from scaleout.interop.chakra.tables import KINDS, NodeType

_VARINT, _EIGHT_BYTES, _SIZED, _FOUR_BYTES = 0, 1, 2, 5
_WIDTHS = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_LAST_TYPE = max(NodeType)
_FAULTS = (ValueError, LookupError, struct.error)
_NODE = dict.fromkeys((1, 3, 6, 7), _VARINT) | dict.fromkeys((2, 4, 5, 8, 9, 10), _SIZED)
"""Field of a node to its wire type; repeated numbers are packed."""


def _unsigned(bits: int) -> Callable[[int], int]:
    return lambda value: value & ((1 << bits) - 1)


def _signed(bits: int) -> Callable[[int], int]:
    return lambda value: ((value + (1 << (bits - 1))) & ((1 << bits) - 1)) - (1 << (bits - 1))


def _zigzag(bits: int) -> Callable[[int], int]:
    return lambda value: ((value & ((1 << bits) - 1)) >> 1) ^ -(value & 1)


def _fixed(form: str) -> Callable[[bytes], Any]:
    return lambda value: struct.unpack(form, value)[0]


_SCALARS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "double": (_EIGHT_BYTES, _fixed("<d")),
    "float": (_FOUR_BYTES, _fixed("<f")),
    "int32": (_VARINT, _signed(32)),
    "int64": (_VARINT, _signed(64)),
    "uint32": (_VARINT, _unsigned(32)),
    "uint64": (_VARINT, _unsigned(64)),
    "sint32": (_VARINT, _zigzag(32)),
    "sint64": (_VARINT, _zigzag(64)),
    "fixed32": (_FOUR_BYTES, _fixed("<I")),
    "fixed64": (_EIGHT_BYTES, _fixed("<Q")),
    "sfixed32": (_FOUR_BYTES, _fixed("<i")),
    "sfixed64": (_EIGHT_BYTES, _fixed("<q")),
    "bool": (_VARINT, bool),
    "string": (_SIZED, lambda value: value.decode()),
    "bytes": (_SIZED, bytes),
}
"""Scalar to its wire type, and what turns a field into a value."""

_ATTRIBUTE = {1: ("name", _SIZED), 2: ("doc_string", _SIZED)} | {
    number: (kind, _SIZED if kind.endswith("_list") else _SCALARS[kind.partition("_")[0]][0])
    for number, kind in enumerate(KINDS, start=3)
}
"""Field of an attribute to its name and wire type."""


class Node:
    """What a simulator reads of a node; see `schema.Node`.

    Attributes
    ----------
    waits : tuple
        Its id, and the ids of the nodes that it depends on in ascending order.
    attributes : dict of str to [str or None, int or bytes]
        Name of each attribute to its kind and its field; of several of one name the first.
    """

    __slots__ = ("attributes", "duration_micros", "id", "name", "type", "waits")

    def __init__(self, frame: bytes) -> None:
        self.id = self.type = self.duration_micros = 0
        self.name = ""
        dependencies: set[int] = set()
        self.attributes: dict[str, list[Any]] = {}
        for number, wire_type, value in fields(frame):
            if wire_type != _NODE.get(number, wire_type) and (number not in (4, 5) or wire_type != _VARINT):
                raise ValueError
            if number == 10:
                name, *found = _attribute(value)
                self.attributes.setdefault(name, found)
            elif number == 1:
                self.id = value
            elif number == 2:
                self.name = value.decode()
            elif number == 3:
                self.type = _signed(32)(value)
            elif number in (4, 5):
                dependencies.update([value] if wire_type == _VARINT else varints(value))
            elif number == 7:
                self.duration_micros = value
        self.waits = self.id, tuple(sorted(dependencies))
        if not 0 <= self.type <= _LAST_TYPE:
            raise ValueError

    def find(self, name: str) -> tuple[str | None, Any] | None:
        """Return the kind and value of an attribute; None if there is none."""
        kind, field = self.attributes.get(name, (None, None))
        if kind is None:
            return (None, None) if name in self.attributes else None
        try:
            return kind, _plain(kind, field)
        except _FAULTS:
            raise TraceError(f"node {self.id} ({self.name!r}): attribute {name!r} is damaged; write it again") from None


@lru_cache(maxsize=65536)
def _attribute(message: bytes) -> tuple[str, str | None, Any]:
    """Return the name of an attribute, and kind and field of its value."""
    name, kind, found = "", None, None
    for number, wire_type, value in fields(message):
        field, expected = _ATTRIBUTE.get(number, ("", wire_type))
        if wire_type != expected:
            raise ValueError
        if number == 1:
            name = value.decode()
        elif number > 2 and field:
            # Of messages of one kind, as lists are, the later one adds to the earlier.
            found = found + value if field == kind and field.endswith("_list") else value
            kind = field
    return name, kind, found


def _plain(kind: str, field: Any) -> Any:
    scalar, _, form = kind.partition("_")
    expected, plain = _SCALARS[scalar]
    if form == "val":
        return plain(field)
    values: list[Any] = []
    for number, wire_type, value in fields(field):
        if number == 1 and wire_type == expected:
            values.append(plain(value))
        elif number == 1 and wire_type == _SIZED:
            width = _WIDTHS.get(expected)
            parts = [value[at : at + width] for at in range(0, len(value), width)] if width else varints(value)
            values += map(plain, parts)
    return values


def fields(message: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield number, wire type and value of each field: an int of a varint, else bytes.

    Raises
    ------
    ValueError, LookupError
        If these are not the bytes of a message.
    """
    at, end = 0, len(message)
    while at < end:
        key, value, at = message[at], 0, at + 1
        if key > 0x7F:
            key, at = varint(message, at - 1)
        wire_type = key & 7
        if wire_type in (_VARINT, _SIZED):
            value, at = message[at], at + 1
            if value > 0x7F:
                value, at = varint(message, at - 1)
            if wire_type == _VARINT:
                yield key >> 3, wire_type, value
                continue
        else:
            value = _WIDTHS[wire_type]
        start, at = at, at + value
        if at > end or key < 8:
            raise ValueError
        yield key >> 3, wire_type, message[start:at]


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Decode the varint at a byte: seven bits a byte, the lowest first; return it and where it ends."""
    value = shift = 0
    while (byte := message[at]) > 0x7F:
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise ValueError
    return (value | byte << shift) & 0xFFFF_FFFF_FFFF_FFFF, at + 1


def varints(packed: bytes) -> list[int]:
    """Decode numbers that are packed."""
    values, at = [], 0
    while at < len(packed):
        value, at = varint(packed, at)
        values.append(value)
    return values


def read(path: Path, known: dict[bytes, Node]) -> list[Node]:
    """Read the nodes of a trace; each frame that is not `known` is decoded and added.

    Raises
    ------
    TraceError
        If the file cannot be read, is empty, cut short or damaged, or is not a Chakra trace.
    """
    source = open_trace(path)
    found = frames(source)
    nodes = []
    try:
        _, metadata = next(found)
        if any(number > 2 or wire_type != _SIZED for number, wire_type, _ in fields(metadata)):
            _check(path)
        for _, frame in found:
            if frame not in known:
                known[frame] = Node(frame)
            nodes.append(known[frame])
        if b"" in known and nodes.count(known[b""]) > 1:
            raise ValueError
    except (TraceError, *_FAULTS):
        source.file.close()
        _check(path)
        raise TraceError(f"{path}: holds a group of fields, as no tool writes; write it again") from None
    return nodes


def _check(path: Path) -> None:
    """Let protobuf say what is wrong with a trace."""
    from scaleout.interop.chakra.files import read as read_messages  # noqa: PLC0415 - only where something is odd

    read_messages(path)
