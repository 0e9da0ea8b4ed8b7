"""Traces from their bytes, without protobuf, which takes longer to import than a small trace to simulate.

A field is a varint ``number << 3 | wire type``, then a varint (wire type 0), 8 bytes (1), a length and so many bytes
(2), or 4 bytes (5). What protobuf refuses is refused, and groups of fields, as no tool writes. Fields of a later schema
are left out.

Source: Protocol Buffers documentation, "Encoding".
"""

import os
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from scaleout.interop.chakra.framing import GIVE_TRACE, WRITE_AGAIN, Content, frames, read_content
from scaleout.interop.chakra.tables import KINDS, NodeType

VARINT, EIGHT_BYTES, SIZED, FOUR_BYTES = 0, 1, 2, 5
_WIDTHS = {EIGHT_BYTES: 8, FOUR_BYTES: 4}
LAST_TYPE = max(NodeType)
FAULTS = (ValueError, LookupError, struct.error)
"""What bytes that are no message raise."""
_NODE = dict.fromkeys((1, 3, 6, 7), VARINT) | dict.fromkeys((2, 4, 5, 8, 9, 10), SIZED)
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
    "double": (EIGHT_BYTES, _fixed("<d")),
    "float": (FOUR_BYTES, _fixed("<f")),
    "int32": (VARINT, _signed(32)),
    "int64": (VARINT, _signed(64)),
    "uint32": (VARINT, _unsigned(32)),
    "uint64": (VARINT, _unsigned(64)),
    "sint32": (VARINT, _zigzag(32)),
    "sint64": (VARINT, _zigzag(64)),
    "fixed32": (FOUR_BYTES, _fixed("<I")),
    "fixed64": (EIGHT_BYTES, _fixed("<Q")),
    "sfixed32": (FOUR_BYTES, _fixed("<i")),
    "sfixed64": (EIGHT_BYTES, _fixed("<q")),
    "bool": (VARINT, bool),
    "string": (SIZED, lambda value: value.decode()),
    "bytes": (SIZED, bytes),
}
"""Scalar to its wire type, and what turns a field into a value."""

_ATTRIBUTE = {1: ("name", SIZED), 2: ("doc_string", SIZED)} | {
    number: (kind, SIZED if kind.endswith("_list") else _SCALARS[kind.partition("_")[0]][0])
    for number, kind in enumerate(KINDS, start=3)
}
"""Field of an attribute to its name and wire type."""
ATTRIBUTE_WIRES = {number: wire_type for number, (_, wire_type) in _ATTRIBUTE.items() if number > 2}
"""Field of an attribute's value to its wire type."""


class SchemaError(ValueError):
    """A message is of another schema."""


Attributes = dict[str, tuple[str | None, Any]]
"""Name of each attribute to its kind and value, or to None and None; of several of one name the first."""


class Metadata:
    """The first message of a file."""

    def __init__(self, frame: bytes = b"") -> None:
        self.version = ""
        self.attributes: Attributes = {}
        self.has_later_fields = False
        for number, wire_type, value in fields(frame):
            if number > 2:
                self.has_later_fields = True
            elif wire_type != SIZED:
                raise SchemaError
            elif number == 1:
                self.version = value.decode()
            else:
                name, kind, found = attribute_of(value)
                self.attributes.setdefault(name, (kind, found))

    def __str__(self) -> str:
        return "the metadata"


class Node:
    """What is read of a node; `schema.Node` has all."""

    __slots__ = ("attributes", "dependencies", "duration_micros", "id", "inputs", "name", "type", "waits")

    def __init__(self, frame: bytes) -> None:
        self.id = self.type = self.duration_micros = 0
        self.name = self.inputs = ""
        self.dependencies: list[int] = []
        self.attributes: Attributes = {}
        for number, wire_type, value in fields(frame):
            if wire_type != _NODE.get(number, wire_type) and (number not in (4, 5) or wire_type != VARINT):
                raise SchemaError("its fields are not of the types of a Chakra Node, as in a schema older than 0.0.4")
            if number == 10:
                name, kind, found = attribute_of(value)
                self.attributes.setdefault(name, (kind, found))
            elif number == 1:
                self.id = value
            elif number == 2:
                self.name = value.decode()
            elif number == 3:
                self.type = _SCALARS["int32"][1](value)
            elif number in (4, 5):
                self.dependencies += [value] if wire_type == VARINT else varints(value)
            elif number == 7:
                self.duration_micros = value
            elif number in (8, 9):
                texts = {part: text.decode() for part, of, text in fields(value) if part <= 3 and of == SIZED}
                self.inputs = texts.get(1, self.inputs) if number == 8 else self.inputs
        self.waits = self.id, tuple(sorted(set(self.dependencies)))
        """Its id, and the ids of the nodes that it depends on in ascending order."""
        if not 0 <= self.type <= LAST_TYPE:
            raise SchemaError(f"its type is {self.type}, but types go from 0 to {LAST_TYPE:d}")

    def __str__(self) -> str:
        return f"node {self.id} ({self.name!r})"


@lru_cache(maxsize=4096)
def attribute_of(message: bytes) -> tuple[str, str | None, Any]:
    """Return the name of an attribute, and the kind and the value that it has."""
    name, kind = "", None
    value: Any = None
    for number, wire_type, found in fields(message):
        field, expected = _ATTRIBUTE.get(number, ("", None))
        if wire_type != expected:
            continue
        if number <= 2:
            text = found.decode()
            name = text if number == 1 else name
            continue
        scalar, _, form = field.partition("_")
        if form == "val":
            value = _SCALARS[scalar][1](found)
        else:  # of two lists of one kind the later one adds to the earlier
            value = (value if field == kind else []) + _listed(scalar, found)
        kind = field
    return name, kind, value


def _listed(scalar: str, message: bytes) -> list[Any]:
    expected, plain = _SCALARS[scalar]
    width = _WIDTHS.get(expected)
    values: list[Any] = []
    for number, wire_type, value in fields(message):
        if number == 1 and wire_type == expected:
            values.append(plain(value))
        elif number == 1 and wire_type == SIZED:
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
        if key < 8:
            raise ValueError
        wire_type = key & 7
        if wire_type in (VARINT, SIZED):
            value, at = message[at], at + 1
            if value > 0x7F:
                value, at = varint(message, at - 1)
            if wire_type == VARINT:
                yield key >> 3, wire_type, value
                continue
        else:
            value = _WIDTHS[wire_type]
        start, at = at, at + value
        if at > end:
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


def encoded(value: int) -> bytes:
    """Encode a varint."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def read(path: str | os.PathLike[str], known: dict[bytes, Node] | None = None) -> tuple[Metadata, list[Node]]:
    """Read a whole trace.

    Parameters
    ----------
    path : str or path
        A ``.et`` file, plain or gzip.
    known : dict, optional
        Frames to nodes; a frame that is not in it is decoded and added.

    Raises
    ------
    TraceError
        If the file cannot be read, is empty, cut short or damaged, or is not a Chakra trace.
    """
    content = read_content(Path(path))
    found = frames(content)
    metadata = metadata_of(content, next(found)[1])
    known = {} if known is None else known
    nodes = []
    num_empty = 0
    for index, (offset, frame) in enumerate(found, start=1):
        try:
            if frame not in known:
                known[frame] = Node(frame)
        except SchemaError as error:
            raise content.fault(index, offset, text=str(error), remedy=GIVE_TRACE) from None
        except FAULTS:
            raise content.fault(index, offset, text="it is no Chakra Node", remedy=WRITE_AGAIN) from None
        nodes.append(known[frame])
        num_empty += not frame
        if num_empty > 1:
            # One may be node 0 without a name or type; more are the zeros that a lost block of a disk reads as.
            text = "it is the second empty node, but ids must differ: the file may be filled with zeros"
            raise content.fault(index, offset, text=text, remedy=WRITE_AGAIN)
    return metadata, nodes


def metadata_of(content: Content, frame: bytes) -> Metadata:
    """Decode the first frame of a trace, or raise `TraceError`."""
    try:
        metadata = Metadata(frame)
        # A later schema may add fields. A known number with another type is another schema, and so is a message of
        # which nothing is known. No trace is all text: the tags of id, name and type are control characters.
        is_unknown = not (metadata.version or metadata.attributes)
        is_other = metadata.has_later_fields and (is_unknown or content.is_text)
    except SchemaError:
        is_other = True
    except FAULTS:
        raise content.fault(0, 0, text="it is no Chakra GlobalMetadata", remedy=WRITE_AGAIN) from None
    if is_other:
        text = "its fields are not those of a Chakra GlobalMetadata"
        raise content.fault(0, 0, text=text, remedy=WRITE_AGAIN)
    return metadata
