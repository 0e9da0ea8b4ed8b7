"""Nodes of many files, each distinct one looked at once: most of a trace is taken over without being decoded.

A node's fields can be decoded apart, since those that are written one after another are merged. Its identifier, name
and dependencies differ between most nodes and are read here; what is left, its *content*, is often equal and is decoded
once. So are *labels*, attributes that say nothing of the others; an attribute that is another number in most nodes, as
a time that was recorded, is read apart from both. Bytes that equal the last file's are passed over at
once. What is wrong with a file is said by `wire.read`. Knows neither graphs nor groups.
"""

import math
import os
import struct
from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from scaleout.interop.chakra.framing import MAX_LENGTH_BYTES, frames, read_content
from scaleout.interop.chakra.wire import (
    FAULTS,
    Metadata,
    Node,
    attribute_of,
    metadata_of,
    read,
    varint,
    varints,
    written_plainly,
)

Content = TypeVar("Content")

_ID, _NAME, _TYPE, _ATTRIBUTE = 0x08, 0x12, 0x18, 0x52
"""Tags of fields: their numbers in the schema times eight, plus 0 for a varint or 2 for a length and as many bytes."""
_DEPENDENCY, _DEPENDENCIES = (0x20, 0x28), (0x22, 0x2A)
"""One of the control or data dependencies, and all of them packed."""
_ATTRIBUTE_NAME = 0x0A
_DOUBLE, _DOUBLE_BYTES = 0x19, 8
_HEAD = (_ID, _NAME, *_DEPENDENCY, *_DEPENDENCIES)
_START = 0x30
_UNREAD, _LABEL = -1, -2
"""Codes of attributes that nobody reads, and of the first label; those of labels count down, those of contents up."""

_Codes = tuple[tuple[int, ...], tuple[int, ...]]
"""Codes of fields, of the content and of labels."""


@dataclass
class NodeReader(Generic[Content]):
    """Reads files, and decodes each distinct content and label of all of them once."""

    # a node without its dependencies and labels to anything; of those that differ only in id and name the first
    decode: Callable[[Node], Content]
    reads: Collection[str]  # the attributes that `decode` reads
    # attributes that are read apart, each with what reads it; first the one that differs most between nodes
    labels: Mapping[str, Callable[[Node], Any]] = field(default_factory=dict)
    apart: str = ""  # an attribute whose double is read apart where it is one >= 0; `decode` is given 0 then
    values_apart: "array[float]" = field(default_factory=lambda: array("d"))  # D, NaN where it was not read apart
    ids: "array[int]" = field(default_factory=lambda: array("Q"))  # of each distinct node, D of them, as are the names
    names: list[str] = field(default_factory=list)
    dependency_offsets: "array[int]" = field(default_factory=lambda: array("q", [0]))  # D + 1
    dependencies: "array[int]" = field(default_factory=lambda: array("Q"))  # ids in ascending order
    # of each distinct node, which of `contents` and of the distinct sets of labels
    content_of: "array[int]" = field(default_factory=lambda: array("q"))
    labels_of: "array[int]" = field(default_factory=lambda: array("q"))
    contents: list[Content] = field(default_factory=list)  # what `decode` returned
    _numbers: dict[bytes, int] = field(default_factory=dict)
    _texts: dict[bytes, str] = field(default_factory=dict)
    _codes: dict[bytes, int] = field(default_factory=dict)
    _parts: list[bytes] = field(default_factory=list)
    _values: list[tuple[str, Any]] = field(default_factory=list)
    _runs: dict[bytes, _Codes] = field(default_factory=dict)
    _contents: dict[tuple[int, ...], int] = field(default_factory=dict)
    _label_sets: dict[tuple[int, ...], int] = field(default_factory=dict)
    _apart: float = math.nan  # of the node that is being read
    _last: tuple[bytes, list[int], list[int]] = (b"", [], [])
    """Content of the last file, where its nodes begin, and their numbers."""

    def read(self, path: str | os.PathLike[str]) -> tuple[Metadata, list[int]]:
        """Read a file: its metadata, and the number of each of its nodes among the distinct ones.

        Raises
        ------
        TraceError
            As `wire.read` does, or as `decode` and `labels` do.
        """
        content = read_content(Path(path))
        metadata = metadata_of(content, next(frames(content))[1])
        try:
            self._scan(content.whole)
        except FAULTS:
            read(path)  # says what is wrong
            raise
        return metadata, self._last[2]

    def node(self, number: int) -> Node:
        """Return a distinct node as a whole."""
        return Node(next(islice(self._numbers, number, None)))

    def forget(self) -> None:
        """Drop the bytes of nodes and attributes, which only reading more files needs."""
        self._numbers.clear()
        self._last = b"", [], []
        attribute_of.cache_clear()

    def values(self, label: str, neutral: Any) -> list[Any]:
        """Return the value of a label in each distinct set of labels; the first of a name counts."""
        known = {_LABEL - index: value for index, (name, value) in enumerate(self._values) if name == label}
        return [next((known[code] for code in codes if code in known), neutral) for codes in self._label_sets]

    @cached_property
    def _marker(self) -> bytes:
        """How the name of the first label is written, behind the tag and the length of its attribute."""
        label = next(iter(self.labels), "").encode()
        return bytes([_ATTRIBUTE_NAME, len(label)]) + label if label else b""

    @cached_property
    def _number(self) -> bytes:
        """How the attribute that is read apart is written, up to its value."""
        name = self.apart.encode()
        return bytes([_ATTRIBUTE, len(name) + 11, _ATTRIBUTE_NAME, len(name)]) + name + bytes([_DOUBLE])

    def _scan(self, content: bytes) -> None:
        """Split a file into nodes. Spans of nodes that are those of the last file are taken over, ever longer ones."""
        last, begins, known = self._last
        size, at = varint(content, 0)
        at, end, span, place, empty = at + size, len(content), 1, 0, 0
        starts: list[int] = []
        numbers: list[int] = []
        while at < end:
            until = min(place + span, len(known))
            if place < until and content.startswith(last[begins[place] : begins[until]], at):
                moved = at - begins[place]
                starts += [begin + moved for begin in begins[place:until]] if moved else begins[place:until]
                numbers += known[place:until]
                at, place, span = begins[until] + moved, until, 2 * span
                continue
            if span > 1:
                span = 1
                continue
            size, body = content[at], at + 1
            if size > 0x7F:
                size, body = varint(content, at)
            if body + size > end or body > at + MAX_LENGTH_BYTES:
                raise ValueError
            frame = content[body : body + size]
            number = self._numbers.get(frame)
            empty += not frame
            if empty > 1:
                raise ValueError
            if number is None:
                number = self._numbers[frame] = self._take_apart(frame)
            numbers.append(number)
            starts.append(at)
            at = body + size
            place += 1
        if numbers.count(self._numbers.get(b"", -1)) > 1:
            raise ValueError
        self._last = content, [*starts, end], numbers

    def _take_apart(self, frame: bytes) -> int:
        """Read a node that was not met before, and return its number."""
        self._apart = math.nan
        try:
            node_id, name, waits, (content, labels) = self._fields(frame)
        except (ValueError, IndexError):  # such as fields of a later schema, or in another order
            Node(frame)  # raises if it is none
            node_id, name, waits, (content, labels) = self._fields(written_plainly(frame))
        text = self._texts.setdefault(name, name.decode())
        if content not in self._contents:
            node = Node(b"".join([self._parts[code] for code in content]))
            node.id, node.name = node_id, text
            self._contents[content] = len(self.contents)
            self.contents.append(self.decode(node))
        self.values_apart.append(self._apart)
        self.ids.append(node_id)
        self.names.append(text)
        self.dependencies.extend(waits)
        self.dependency_offsets.append(len(self.dependencies))
        self.content_of.append(self._contents[content])
        self.labels_of.append(self._label_sets.setdefault(labels, len(self._label_sets)))
        return len(self.ids) - 1

    def _fields(self, frame: bytes) -> tuple[int, bytes, list[int], _Codes]:
        """Split a node into its id, name, dependencies, and the codes of its other fields, which follow these."""
        node_id, name, at, end = 0, b"", 0, len(frame)
        waits: list[int] = []
        kind = b""  # the last of its types counts, as protobuf merges
        while at < end and (tag := frame[at]) < _START:
            value, stop = frame[at + 1], at + 2
            if value > 0x7F:
                value, stop = varint(frame, at + 1)
            if tag == _ID:
                node_id = value
            elif tag == _NAME:
                name = frame[stop : stop + value]
                stop += value
            elif tag in _DEPENDENCIES:
                waits += varints(frame[stop : stop + value])
                stop += value
            elif tag in _DEPENDENCY:
                waits.append(value)
            elif tag == _TYPE:
                kind = frame[at:stop]
            else:
                raise ValueError
            at = stop
        if at > end:
            raise ValueError
        content, labels = self._rest(frame[at:], (node_id, name))
        if kind:
            code = self._codes.get(kind)
            content = (self._code(kind, (node_id, name)) if code is None else code, *content)
        return node_id, name, sorted(set(waits)) if len(waits) > 1 else waits, (content, labels)

    def _rest(self, fields: bytes, first: tuple[int, bytes]) -> _Codes:
        """Return the codes of the fields of a node, and read a number apart."""
        at = fields.find(self._number) if self.apart else -1
        end = at + len(self._number) + _DOUBLE_BYTES
        if at < 0 or end > len(fields) or self.apart.encode() in fields[:at]:  # the first of a name counts
            return self._around_label(fields, first)
        (value,) = struct.unpack_from("<d", fields, end - _DOUBLE_BYTES)
        if not 0 <= value < math.inf:
            return self._around_label(fields, first)
        try:
            before, of_before = self._run(fields[:at], first)
            codes_of = self._around_label if self._marker in fields else self._run
            behind, of_behind = codes_of(fields[end:], first)
        except (ValueError, IndexError):  # its name stands in a text
            return self._around_label(fields, first)
        self._apart = value
        number, _ = self._run(self._number + bytes(_DOUBLE_BYTES), first)
        return before + number + behind, of_before + of_behind

    def _run(self, run: bytes, first: tuple[int, bytes]) -> _Codes:
        """Return the codes of some fields that follow each other."""
        codes = self._runs.get(run)
        if codes is None:
            codes = self._runs[run] = self._walk(run, first)
        return codes

    def _around_label(self, fields: bytes, first: tuple[int, bytes]) -> _Codes:
        """Return the codes of the fields of a node; before and behind the first label they are often known."""
        at = fields.find(self._marker) - 2
        if at < 0:
            return self._walk(fields, first)
        content: tuple[int, ...] = ()
        labels: tuple[int, ...] = ()
        for run in (fields[:at], fields[at : at + 2 + fields[at + 1]], fields[at + 2 + fields[at + 1] :]):
            try:
                codes = self._run(run, first)
            except (ValueError, IndexError):  # the name of the label stands in a text
                return self._walk(fields, first)
            content += codes[0]
            labels += codes[1]
        return content, labels

    def _walk(self, fields: bytes, first: tuple[int, bytes]) -> _Codes:
        """Return the codes of a run of fields one by one; `first` is the id and name of their node, for messages."""
        at, end = 0, len(fields)
        content: list[int] = []
        labels: list[int] = []
        while at < end:
            tag, value, stop = fields[at], fields[at + 1], at + 2
            if value > 0x7F:
                value, stop = varint(fields, at + 1)
            if tag & 7 == 2:
                stop += value
            if tag & 0x85 or stop > end or tag in _HEAD:  # a number above 15, or a wire type that is neither 0 nor 2
                raise ValueError
            if tag != _START:
                code = self._codes.get(fields[at:stop])
                if code is None:
                    code = self._code(fields[at:stop], first)
                if code >= 0:
                    content.append(code)
                elif code <= _LABEL:
                    labels.append(code)
            at = stop
        return tuple(content), tuple(labels)

    def _code(self, part: bytes, first: tuple[int, bytes]) -> int:
        """Give a field that was not met before its code."""
        node = Node(part)
        name = next(iter(node.attributes), "")
        if name in self.labels:
            node.id, node.name = first[0], first[1].decode()
            self._codes[part] = _LABEL - len(self._values)
            self._values.append((name, self.labels[name](node)))
        elif node.attributes and name not in self.reads:
            self._codes[part] = _UNREAD
        else:
            self._codes[part] = len(self._parts)
            self._parts.append(part)
        return self._codes[part]
