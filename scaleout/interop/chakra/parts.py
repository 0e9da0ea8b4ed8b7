"""Attributes of nodes to *symbols*, plain numbers and labels; each distinct part of them is decoded once.

A plain number is an attribute of an integer kind, or our own duration: it becomes a column, and its symbol says only
that it is there and its kind. A label says nothing of the others, so its symbol says only that it is there. The symbol
of any other attribute that is read stands for its value too. Attributes that nobody reads have none.

Symbols: N nodes; A attributes of them.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from scaleout.errors import ScaleoutError
from scaleout.interop.chakra import vocabulary
from scaleout.interop.chakra.attributes import INTEGER_KINDS
from scaleout.interop.chakra.fields import Attributes, Bits, all_ascii, all_texts
from scaleout.interop.chakra.rows import COUNTS, LABELS, NUMBERS, READ
from scaleout.interop.chakra.tables import KINDS
from scaleout.interop.chakra.texts import Bytes, Texts
from scaleout.interop.chakra.wire import FAULTS, Node, attribute_of, encoded, varint
from scaleout.program.graph import Ints

_BAD, _UNREAD = -1, 0
"""Symbols of attributes that are none, and that nobody reads."""
_WHOLE, _TEXT, _TEXTS = -2, -3, -4
"""Instead of the symbol of a head: the value has to be looked at, or only whether it is text, or texts."""
_FIRST = 16
"""Symbols of labels are below; above, those of heads are odd, and those of whole attributes even."""

_LABELS = tuple(LABELS)
_DOUBLE = "double_val"
_LISTED = (0x0A,)
"""Tag of each text of a list."""
PLAIN = tuple(
    dict.fromkeys(
        [*(name for numbers in NUMBERS.values() for name in numbers.values()), vocabulary.DURATION]
        + [name for name, label in LABELS.items() if label.lowest is not None]
    )
)
"""Attributes that are plain numbers where their kind is one of integers, or of the duration a double."""


def _converted(kind: str) -> Callable[[Bits], Ints]:
    """Return what makes whole numbers of bits; those above 2**63 - 1 come out below zero."""
    shift = np.uint64(32 if "32" in kind else 0)
    if kind == _DOUBLE:
        return lambda bits: bits.view(np.int64)
    if kind.startswith("sint"):
        one = np.uint64(1)
        return lambda bits: ((bits << shift) >> (shift + one)).view(np.int64) ^ -(bits & one).view(np.int64)
    if kind.startswith(("int", "sfixed")):
        return lambda bits: (bits << shift).view(np.int64) >> np.int64(shift)
    return lambda bits: ((bits << shift) >> shift).view(np.int64)


_CONVERTED = {KINDS.index(kind): _converted(kind) for kind in (_DOUBLE, *sorted(INTEGER_KINDS))}
_MAY_OVERFLOW = [KINDS.index(kind) for kind in ("uint64_val", "fixed64_val")]


class Read(NamedTuple):
    """What the attributes of N nodes say."""

    owner: Ints  # (A,) which node an attribute is of, and its symbol; of those that are read only
    symbol: Ints
    numbers: dict[str, Ints]  # plain numbers, (N,), zero where a node has none; of the duration the bits
    labels: dict[str, Ints]  # columns, (N,)
    odd: Ints  # nodes to read the plain way


class Parts:
    """Parts of attributes, decoded when they are first met."""

    def __init__(self) -> None:
        self.phases: dict[str, int] = {"": 0}
        self._heads = Texts()
        self._head_symbol, self._head_kind, self._head_number = array("q"), array("q"), array("q")
        self._wholes = Texts()
        self._whole_symbol, self._whole_label = array("q"), array("q")

    def read(self, content: Bytes, found: Attributes, *, num_nodes: int) -> Read:
        """Read attributes of some nodes."""
        head = self._heads.numbers(content, found.begin, found.head)
        for text in self._heads.known[len(self._head_symbol) :]:
            self._learn_head(text)
        symbol, number = np.array(self._head_symbol)[head], np.array(self._head_number)[head]
        end = found.begin + found.size
        begin = end - found.value.astype(np.int64)  # of a value in bytes
        for form, is_plain in ((_TEXT, all_ascii), (_TEXTS, partial(all_texts, tags=_LISTED))):
            those = np.flatnonzero(symbol == form)
            if those.size:
                symbol[those] = np.where(is_plain(content, begin[those], end[those]), _UNREAD, _WHOLE)
        wholes = np.flatnonzero(symbol == _WHOLE)
        whole = self._wholes.numbers(content, found.begin[wholes], found.size[wholes])
        for text in self._wholes.known[len(self._whole_symbol) :]:
            self._learn_whole(text)
        symbol[wholes] = np.array(self._whole_symbol)[whole]
        labels = {label.column: np.full(num_nodes, int(label.neutral or 0)) for label in LABELS.values()}
        of_label = np.array(self._whole_label)[whole]
        for index, label in enumerate(LABELS.values(), start=1):
            those = np.flatnonzero(symbol[wholes] == index)
            labels[label.column][found.owner[wholes[those]]] = of_label[those]
        numbers, odd = self._numbers(found, number, np.array(self._head_kind)[head], num_nodes=num_nodes)
        for name, label in LABELS.items():
            if label.lowest is not None:
                those = np.flatnonzero(number == PLAIN.index(name))
                labels[label.column][found.owner[those]] = np.maximum(numbers[name][found.owner[those]], label.lowest)
        bad = found.owner[symbol == _BAD]
        used = np.flatnonzero(symbol > _UNREAD)
        return Read(found.owner[used], symbol[used], numbers, labels, np.concatenate([odd, bad]))

    def names(self, symbols: Sequence[int]) -> list[str]:
        """Return the attributes that symbols stand for."""
        return [
            _LABELS[symbol - 1]
            if symbol < _FIRST
            else _split_head(self._heads.known[(symbol - _FIRST) // 2])[0]
            if symbol % 2
            else attribute_of(self._wholes.known[(symbol - _FIRST) // 2])[0]
            for symbol in symbols
        ]

    def plain_names(self, symbols: Sequence[int]) -> list[str]:
        """Return the plain numbers among the attributes that symbols stand for."""
        return self.names([symbol for symbol in symbols if symbol >= _FIRST and symbol % 2])

    def label_values(self, node: Node) -> dict[str, int]:
        """Return the labels of a node that is read the plain way."""
        values = {label.column: label.read(node) for label in LABELS.values()}
        return values | {"phase": self.phases.setdefault(values["phase"], len(self.phases))}

    def _numbers(self, found: Attributes, number: Ints, kind: Ints, *, num_nodes: int) -> tuple[dict[str, Ints], Ints]:
        """Return plain numbers, (N,), and nodes of which one may not be."""
        odd = [found.owner[:0]]
        numbers = {name: np.zeros(num_nodes, np.int64) for name in PLAIN}
        for index in np.unique(number[number >= 0]).tolist():
            those = np.flatnonzero(number == index)
            for each in np.unique(kind[those]).tolist():
                mine = those[kind[those] == each]
                values = _CONVERTED[each](found.value[mine])
                numbers[PLAIN[index]][found.owner[mine]] = values
                if PLAIN[index] == vocabulary.DURATION:
                    times_s = values.view(np.float64)
                    odd.append(found.owner[mine[~((times_s >= 0) & (times_s < np.inf))]])
                elif PLAIN[index] in COUNTS or each in _MAY_OVERFLOW:
                    odd.append(found.owner[mine[values < 0]])
        return numbers, np.concatenate(odd)

    def _learn_head(self, head: bytes) -> None:
        symbol, kind, number = _BAD, "", -1
        try:
            name, kind = _split_head(head)
        except FAULTS:
            name = ""
        else:
            if name in PLAIN and kind in ((_DOUBLE,) if name == vocabulary.DURATION else INTEGER_KINDS):
                number = PLAIN.index(name)
                symbol = _LABELS.index(name) + 1 if name in LABELS else 2 * len(self._head_symbol) + _FIRST + 1
            elif name in READ or name in LABELS or kind.endswith("_list"):
                symbol = _WHOLE
            else:
                symbol = _TEXT if kind == "string_val" else _UNREAD
            if symbol == _WHOLE and kind == "string_list" and name not in READ and name not in LABELS:
                symbol = _TEXTS
        self._head_symbol.append(symbol)
        self._head_kind.append(KINDS.index(kind) if kind else -1)
        self._head_number.append(number)

    def _learn_whole(self, whole: bytes) -> None:
        symbol, label = _UNREAD, 0
        try:
            name, _, _ = attribute_of(whole)
            if name in LABELS:
                values = self.label_values(Node(b"\x52" + encoded(len(whole)) + whole))
                symbol, label = _LABELS.index(name) + 1, values[LABELS[name].column]
            elif name in READ:
                symbol = 2 * len(self._whole_symbol) + _FIRST
        except (*FAULTS, ScaleoutError):
            symbol = _BAD
        self._whole_symbol.append(symbol)
        self._whole_label.append(label)


def _split_head(head: bytes) -> tuple[str, str]:
    """Return name and kind of an attribute from the bytes before its value; no kind if there is no value."""
    end = 2 + head[1]
    return head[2:end].decode(), KINDS[(varint(head, end)[0] >> 3) - 3] if end < len(head) else ""
