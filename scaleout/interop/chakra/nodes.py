"""Nodes of trace files to columns, without an object a node.

`fields` splits all nodes of a file at once, but for odd ones, which `wire` and `rows` read one by one. What a node is
follows from its *shape*: its type, the symbols of its attributes, and whether its time and its counts are zero. The
first node of each shape is read by `rows`, and what that says holds for the others but for their plain numbers, which
are columns from the start. Knows neither graphs nor ranks.

Symbols: N nodes of a file, or of a block of it.
"""

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import ne
from typing import Any, NamedTuple

import numpy as np

from scaleout.interop.chakra import vocabulary
from scaleout.interop.chakra.fields import Bits, Fields, all_texts, attributes, packed, split
from scaleout.interop.chakra.framing import Content, bounds
from scaleout.interop.chakra.parts import Parts, Read
from scaleout.interop.chakra.rows import NUMBERS, Row, kernel_text_of, read_row, states
from scaleout.interop.chakra.tables import NodeType
from scaleout.interop.chakra.texts import Bytes, Texts, padded
from scaleout.interop.chakra.trace_set import PROCESS_GROUPS_NODE, declared_groups
from scaleout.interop.chakra.wire import FAULTS, LAST_TYPE, Metadata, Node, metadata_of, read
from scaleout.program.graph import NONE, Bools, Ints
from scaleout.program.operations import Kernel

_ID, _NAME, _TYPE, _START, _DURATION, _ATTRIBUTE = 0x08, 0x12, 0x18, 0x30, 0x38, 0x52
"""Tags of fields: their numbers in the schema times eight, plus 0 for a varint or 2 for a length and as many bytes."""
_DEPENDENCY, _DEPENDENCIES = (0x20, 0x28), (0x22, 0x2A)
"""One of the control or data dependencies, and all of them packed."""
_SIDES, _SIDE_TEXTS = (0x42, 0x4A), (0x0A, 0x12, 0x1A)
"""Inputs and outputs, and the texts that each has."""
_TAGS = (_ID, _NAME, _TYPE, _START, _DURATION, _ATTRIBUTE, *_DEPENDENCY, *_DEPENDENCIES, *_SIDES)
_BLOCK = 1 << 15
"""Nodes that are read at a time: their columns stay in a processor's cache."""
_EXACT = 2**53
"""Microseconds up to here are floats too."""
_HAS_TIME, _HAS_COUNTS = 16, 32
"""Added to the type in a shape."""

_COLUMNS = tuple(column for column in Row._fields if column not in ("kernel", "group"))
_DTYPES = {"duration_s": np.float64, "is_metadata": np.bool_}
"""Of columns that are no whole numbers."""
_MICROS = "duration_micros"
_RANK = re.compile(r"(rank[ _-]?)\d+", re.IGNORECASE)
"""What a name says of the rank whose node it is."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """Nodes of a file."""

    ids: Bits  # (N,)
    names: Ints  # (N,) numbers of `NodeReader.names`
    # of rows and of labels, (N,); and `kernel` and `group`, numbers of the reader's `kinds` and `groups`, or `NONE`
    columns: Mapping[str, Any]
    users: Ints  # (E,) which node waits, in any order, for which identifier
    needs: Bits  # (E,)
    declared: Mapping[str, list[int]]  # groups that metadata nodes list, key to ranks


class _Shape(NamedTuple):
    """What nodes of a shape are, and the plain number that a column is for each of them instead."""

    row: Row
    sources: Mapping[str, str]
    kernel: int  # of `NodeReader.kinds`, or `NONE`
    group: int  # of `NodeReader._group_texts`


class _Block(NamedTuple):
    """Nodes that follow one another in a file."""

    whole: bytes  # of the file
    begins: Ints  # (N,) bytes of the file
    ends: Ints

    def node(self, at: int) -> Node:
        """Read a node the plain way."""
        return Node(self.whole[int(self.begins[at]) : int(self.ends[at])])


class _PlainNode(NamedTuple):
    """An odd node."""

    node: Node
    row: Row
    labels: Mapping[str, int]


class NodeReader:
    """Reads files; names, kinds of kernels, groups and phases have numbers of their own, the same in all files."""

    def __init__(self, *, dtype: str) -> None:
        self.names: list[str] = []
        self.kinds: list[Kernel] = []  # kernels as our own attribute states them; nodes tell the counts of each
        self.groups: list[tuple[str, int]] = []  # key of a group, and the family that our own attribute states
        self._dtype = dtype
        self._parts = Parts()
        self._but_rank: dict[str, int] = {}
        self._name_but_rank = array("q")  # number of each name's text without the rank
        self._names, self._shapes, self._groups = Texts(), Texts(), Texts()
        self._last: tuple[list[bytes], Nodes | None] = [], None  # messages of the file before, and their nodes
        self._known_shapes: list[_Shape | None] = []  # None if no node of it can be taken over
        self._kernel_texts: dict[str, int] = {}
        self._group_texts = {"": 0}
        self._repeating: list[int] = []  # shapes in which an attribute repeats

    @property
    def phases(self) -> list[str]:
        """Phases by number."""
        return list(self._parts.phases)

    def but_rank(self, names: Ints) -> Ints:
        """Return numbers that are equal for names, (N,), that differ at most in the number of a rank."""
        return np.array(self._name_but_rank, np.int64)[names]

    def read(self, content: Content) -> tuple[Metadata, Nodes]:
        """Read a file: its metadata and its nodes.

        Raises
        ------
        TraceError
            As `wire.read` does, or as `rows` does.
        """
        starts, bodies, fault = bounds(content)
        if fault is not None:
            read(content.path)  # says what is wrong before that
            raise fault
        metadata = metadata_of(content, content.whole[bodies[0] : starts[1]])
        begins, ends = np.array(bodies[1:], np.int64), np.array(starts[2:], np.int64)
        if np.count_nonzero(begins == ends) > 1:
            read(content.path)  # says which nodes are empty
        messages = [content.whole[begin:end] for begin, end in zip(bodies[1:], starts[2:], strict=True)]
        try:
            nodes = self._patched(content.whole, begins, ends, messages)
        except FAULTS:
            read(content.path)  # says what is wrong
            raise
        self._last = messages, nodes
        return metadata, nodes

    def _patched(self, whole: bytes, begins: Ints, ends: Ints, messages: list[bytes]) -> Nodes:
        """Read a file; of nodes most of which are those of the file before, only the others."""
        before, last = self._last
        if last is not None and len(before) == len(messages) and not last.declared:
            changed = np.flatnonzero(np.fromiter(map(ne, before, messages), bool, len(messages)))
            if len(changed) < len(messages) // 2:
                return _replaced(last, changed, self._all(whole, begins[changed], ends[changed]))
        return self._all(whole, begins, ends)

    def _all(self, whole: bytes, begins: Ints, ends: Ints) -> Nodes:
        """Read nodes a block at a time."""
        blocks = [
            self._read(_Block(whole, begins[at : at + _BLOCK], ends[at : at + _BLOCK]))
            for at in range(0, max(len(begins), 1), _BLOCK)
        ]
        return blocks[0] if len(blocks) == 1 else _joined(blocks)

    def _read(self, block: _Block) -> Nodes:
        size = len(block.begins)
        origin = int(block.begins[0]) if size else 0
        data = padded(block.whole[origin : int(block.ends[-1]) if size else 0])
        fields, odd = split(data, block.begins - origin, block.ends - origin, tags=_TAGS)
        kinds = (_last(fields.of(_TYPE), size) << np.uint64(32)).view(np.int64) >> 32
        micros = _last(fields.of(_DURATION), size)
        names = self._names_of(data, fields.of(_NAME), size)
        sides, alone = fields.of(*_SIDES), fields.of(*_DEPENDENCY)
        users, needs, cut = packed(data, fields.of(*_DEPENDENCIES))
        found, unfit = attributes(data, fields.of(_ATTRIBUTE))
        said = self._parts.read(data, found, num_nodes=size)
        if sides.owner.size:
            odd[sides.owner[~all_texts(data, sides.begin, sides.begin + sides.size, tags=_SIDE_TEXTS)]] = True
        odd[np.concatenate([cut, unfit, said.odd])] = True
        odd |= (kinds < 0) | (kinds > LAST_TYPE) | (micros > _EXACT) | (names == NONE)
        shapes, plain = self._shapes_of(block, kinds, micros > 0, said, odd)
        columns = said.labels | self._columns(shapes, said.numbers | {_MICROS: micros})
        users, needs = np.concatenate([users, alone.owner]), np.concatenate([needs, alone.value])
        kept = ~odd[users]
        more_users, more_needs = [users[kept]], [needs[kept]]
        ids = _last(fields.of(_ID), size)
        for at, each in plain.items():
            self._put(columns, at, each)
            ids[at], names[at] = each.node.id, self._name_of(each.node.name)
            more_users.append(np.full(len(each.node.dependencies), at))
            more_needs.append(np.array(each.node.dependencies, np.uint64))
        return Nodes(
            ids,
            names,
            columns | {"group": self._groups_of(columns)},
            np.concatenate(more_users),
            np.concatenate(more_needs),
            self._declared(block, names, columns["is_metadata"]),
        )

    def _names_of(self, data: Bytes, fields: Fields, size: int) -> Ints:
        """Return the number of the name of each node; `NONE` if it is no text."""
        begins, sizes = np.zeros(size, np.int64), np.zeros(size, np.int64)
        begins[fields.owner], sizes[fields.owner] = fields.begin, fields.size
        numbers = self._names.numbers(data, begins, sizes)
        bad = self._learn_names()
        return np.where(np.isin(numbers, bad), NONE, numbers) if bad else numbers

    def _name_of(self, name: str) -> int:
        text = name.encode()
        (number,) = self._names.numbers(padded(text), np.array([0]), np.array([len(text)])).tolist()
        self._learn_names()
        return int(number)

    def _learn_names(self) -> list[int]:
        """Decode names that were not met before; return the numbers of those that are no text."""
        bad = []
        for number, text in enumerate(self._names.known[len(self.names) :], start=len(self.names)):
            try:
                self.names.append(text.decode())
            except UnicodeDecodeError:
                self.names.append("")
                bad.append(number)
            name = self.names[-1]
            same = _RANK.sub(r"\1*", name) if "rank" in name.lower() else name
            self._name_but_rank.append(self._but_rank.setdefault(same, len(self._but_rank)))
        return bad

    def _shapes_of(
        self, block: _Block, kinds: Ints, has_time: Bools, said: Read, odd: Bools
    ) -> tuple[Ints, dict[int, _PlainNode]]:
        """Return the shape of each node; and the odd ones, to which those are added in which an attribute repeats."""
        size = len(kinds)
        has_counts = (said.numbers["num_ops"] > 0) | (said.numbers["tensor_size"] > 0)
        heads = kinds + _HAS_TIME * has_time + _HAS_COUNTS * has_counts
        owner = np.concatenate([np.arange(size), said.owner]).astype(np.uint16)  # by which sorting is quick
        symbols = np.concatenate([heads, said.symbol])[np.argsort(owner, kind="stable")]
        counts = np.bincount(owner, minlength=size) * symbols.itemsize
        sound = np.flatnonzero(~odd)
        shapes = np.full(size, NONE)
        begins = np.cumsum(counts) - counts
        shapes[sound] = self._shapes.numbers(padded(symbols.tobytes()), begins[sound], counts[sound])
        new, first = np.unique(shapes, return_index=True)
        firsts = dict(zip(first.tolist(), new.tolist(), strict=True))
        known = len(self._known_shapes)
        for number, text in enumerate(self._shapes.known[known:], start=known):
            names = self._parts.names(np.frombuffer(text, np.int64)[1:].tolist())
            self._known_shapes.append(None)
            if len(set(names)) < len(names):
                self._repeating.append(number)
        if self._repeating:
            odd |= np.isin(shapes, self._repeating)
        plain: dict[int, _PlainNode] = {}
        odd_ones = set(np.flatnonzero(odd).tolist())
        for at in sorted(odd_ones | {at for at, number in firsts.items() if number >= known}):
            node = block.node(at)
            if at in odd_ones:
                labels = self._parts.label_values(node)
                plain[at] = _PlainNode(node, read_row(node, dtype=self._dtype), labels)
            else:
                number = firsts[at]
                self._known_shapes[number] = self._shape(node, self._shapes.known[number])
        return shapes, plain

    def _shape(self, node: Node, symbols: bytes) -> _Shape:
        row = read_row(node, dtype=self._dtype)
        plain = self._parts.plain_names(np.frombuffer(symbols, np.int64)[1:].tolist())
        numbers = NUMBERS[NodeType(node.type)]
        sources = {column: name for column, name in numbers.items() if name in plain}
        if vocabulary.DURATION in plain and numbers:
            sources["duration_s"] = vocabulary.DURATION
        elif "flops" in numbers and node.duration_micros and not states(node, vocabulary.DURATION):
            sources["duration_s"] = _MICROS
        return _Shape(row, sources, self._kind_of(node, row), self._group_text(row))

    def _kind_of(self, node: Node, row: Row) -> int:
        if row.kernel is None:
            return NONE
        number = self._kernel_texts.setdefault(kernel_text_of(node), len(self.kinds))
        if number == len(self.kinds):
            self.kinds.append(row.kernel)
        return number

    def _group_text(self, row: Row) -> int:
        return self._group_texts.setdefault(row.group, len(self._group_texts))

    def _columns(self, shapes: Ints, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of rows, and what numbers of groups are made of; of odd nodes anything."""
        present, of_node = np.unique(shapes, return_inverse=True)
        found = [(self._known_shapes[number] if number != NONE else None) or _ODD for number in present.tolist()]
        columns: dict[str, Any] = {}
        for column in _COLUMNS:
            dtype: Any = _DTYPES.get(column, np.int64)
            values = np.array([getattr(shape.row, column) for shape in found], dtype)[of_node]
            sources = [shape.sources.get(column, "") for shape in found]
            for source in sorted(set(sources) - {""}):
                those = np.array([each == source for each in sources])[of_node]
                numeric = numbers[source][those]
                if column == "duration_s":
                    numeric = numeric / 1e6 if source == _MICROS else numeric.view(np.float64)
                values[those] = numeric
            columns[column] = values
        for column in ("kernel", "group"):
            columns[column] = np.array([getattr(shape, column) for shape in found], np.int64)[of_node]
        return columns

    def _put(self, columns: Mapping[str, Any], at: int, plain: _PlainNode) -> None:
        """Write an odd node into columns."""
        for column in _COLUMNS:
            columns[column][at] = getattr(plain.row, column)
        columns["kernel"][at] = self._kind_of(plain.node, plain.row)
        columns["group"][at] = self._group_text(plain.row)
        for column, value in plain.labels.items():
            columns[column][at] = value

    def _groups_of(self, columns: Mapping[str, Any]) -> Ints:
        """Return the number of the group of each node, which its key and our own attribute tell."""
        those = np.flatnonzero((columns["group"] > 0) | (columns["family"] != NONE))
        found = self._groups.of_rows(np.stack([columns["group"][those], columns["family"][those]], axis=1))
        texts = list(self._group_texts)
        for key in self._groups.known[len(self.groups) :]:
            text, family = np.frombuffer(key, np.int64).tolist()
            self.groups.append((texts[text], family))
        numbers = np.full(len(columns["group"]), NONE)
        numbers[those] = found
        return numbers

    def _declared(self, block: _Block, names: Ints, is_metadata: Bools) -> dict[str, list[int]]:
        """Return the groups that metadata nodes list, key to ranks."""
        declared: dict[str, list[int]] = {}
        for at in np.flatnonzero(is_metadata).tolist():
            if self.names[names[at]] == PROCESS_GROUPS_NODE:
                declared.update(declared_groups(block.node(at)))
        return declared


_ODD = _Shape(Row(), {}, NONE, 0)
"""Stands for the shape of odd nodes."""


def _joined(blocks: Sequence[Nodes]) -> Nodes:
    """Join blocks of nodes."""
    firsts = np.cumsum([0, *(len(block.ids) for block in blocks[:-1])]).tolist()
    return Nodes(
        np.concatenate([block.ids for block in blocks]),
        np.concatenate([block.names for block in blocks]),
        {name: np.concatenate([block.columns[name] for block in blocks]) for name in blocks[0].columns},
        np.concatenate([block.users + first for block, first in zip(blocks, firsts, strict=True)]),
        np.concatenate([block.needs for block in blocks]),
        {key: ranks for block in blocks for key, ranks in block.declared.items()},
    )


def _replaced(nodes: Nodes, places: Ints, by: Nodes) -> Nodes:
    """Put nodes into the places of others."""

    def column(old: Any, new: Any) -> Any:
        if not len(places) or (old[places] == new).all():
            return old
        mixed = old.copy()
        mixed[places] = new
        return mixed

    kept = ~np.isin(nodes.users, places)
    return Nodes(
        column(nodes.ids, by.ids),
        column(nodes.names, by.names),
        {name: column(values, by.columns[name]) for name, values in nodes.columns.items()},
        np.concatenate([nodes.users[kept], places[by.users]]),
        np.concatenate([nodes.needs[kept], by.needs]),
        by.declared,
    )


def _last(fields: Fields, size: int) -> Bits:
    """Return the value of a field of each node, which is the last where it repeats, and zero where it is not."""
    values = np.zeros(size, np.uint64)
    values[fields.owner] = fields.value
    return values
