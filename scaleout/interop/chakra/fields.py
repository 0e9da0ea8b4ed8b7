"""Fields of many messages at once: the bytes of a file to columns, a step for the first field of each, and so on.

A step reads the next field of all messages that have one. What writers of protobuf write is read here: tags of one
byte, and attributes of a name and a value. A message of any other form is said to be *odd*, for `wire` to read.

Symbols: M messages; F fields of all of them.
Source: Protocol Buffers documentation, "Encoding".
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.interop.chakra.texts import Bytes, words_of
from scaleout.interop.chakra.wire import ATTRIBUTE_WIRES, EIGHT_BYTES, FOUR_BYTES, SIZED
from scaleout.program.graph import Bools, Ints

Bits = npt.NDArray[np.uint64]

_MOST_FIELDS = 256
"""Messages of more fields are odd: a step that few take part in costs as much as one of many."""
_MOST_BYTES = np.uint64(1 << 32)
_TEXT = 0x0A  # the tag of a text that is field 1
_MORE = 0x7F
"""Bytes above have another behind them in a varint."""
_LAST = np.uint64(0x8080_8080_8080_8080)
_ENDS = np.array([0x80 << 8 * place for place in range(8)], np.uint64)
_SEVENS = ((0x7F00_7F00_7F00_7F00, 1), (0x3FFF_0000_3FFF_0000, 2), (0x0FFF_FFFF_0000_0000, 4))
"""Which bits of a word to move by how many, in turn, so that its sevens lie side by side."""
_WIRES = np.full(256, -1)
_WIRES[list(ATTRIBUTE_WIRES)] = list(ATTRIBUTE_WIRES.values())


class Fields(NamedTuple):
    """Fields in the order in which messages have them; columns are (F,)."""

    owner: Ints  # which message
    tag: npt.NDArray[np.uint8]
    begin: Ints  # where the bytes of a sized field begin
    value: Bits  # of a varint, or the size of a sized field

    def of(self, *tags: int) -> "Fields":
        """Return the fields of some tags."""
        wanted = self.tag == tags[0]
        for tag in tags[1:]:
            wanted |= self.tag == tag
        return Fields(*(column[wanted] for column in self))

    @property
    def size(self) -> Ints:
        """Bytes of each sized field."""
        return self.value.astype(np.int64)


def varints(content: Bytes, at: Ints) -> tuple[Bits, Ints]:
    """Return the varint at each place, and how many bytes it takes; more than ten are none."""
    words = words_of(content)
    word = words[at]
    ends = ~word & _LAST
    end = ends & (~ends + np.uint64(1))
    size = np.searchsorted(_ENDS, end) + 1
    value = word & ((end << np.uint64(1)) - np.uint64(1)) & ~_LAST
    for bits, shift in _SEVENS:
        upper = np.uint64(bits)
        value = (value & ~upper) | ((value & upper) >> np.uint64(shift))
    long = np.flatnonzero(end == 0)
    if long.size:
        ninth, tenth = (words[np.minimum(at[long] + place, len(words) - 1)] & np.uint64(0xFF) for place in (8, 9))
        value[long] |= (ninth & np.uint64(_MORE)) << np.uint64(56)
        size[long] = np.where(ninth <= _MORE, 9, np.where(tenth <= _MORE, 10, 11))
        value[long] |= np.where(ninth <= _MORE, 0, tenth).astype(np.uint64) << np.uint64(63)
    return value, size


def split(content: Bytes, begins: Ints, ends: Ints, *, tags: Collection[int]) -> tuple[Fields, Bools]:
    """Split messages into fields of some tags; return also which messages are odd, (M,)."""
    is_known = np.zeros(256, bool)
    is_known[list(tags)] = True
    odd = np.zeros(len(begins), bool)
    owner = np.flatnonzero(begins < ends)
    at, end = begins[owner], ends[owner]
    steps: list[Fields] = []
    while owner.size:
        tag = content[at]
        value, stop = content[at + 1].astype(np.uint64), at + 2
        more = np.flatnonzero(value > _MORE)
        if more.size:
            value[more], size = varints(content, at[more] + 1)
            stop[more] += size - 1
        begin = stop
        stop = begin + np.where(tag & 7 == SIZED, np.minimum(value, _MOST_BYTES), 0).astype(np.int64)
        fits = is_known[tag] & (stop <= end) & (len(steps) < _MOST_FIELDS)
        if not fits.all():
            odd[owner[~fits]] = True
            owner, tag, begin = owner[fits], tag[fits], begin[fits]
            value, stop, end = value[fits], stop[fits], end[fits]
        steps.append(Fields(owner, tag, begin, value))
        goes_on = stop < end
        if goes_on.all():
            at = stop
        else:
            owner, at, end = owner[goes_on], stop[goes_on], end[goes_on]
    if not steps:
        none = np.empty(0, np.int64)
        return Fields(none, none.astype(np.uint8), none, none.astype(np.uint64)), odd
    return Fields(*map(np.concatenate, zip(*steps, strict=True))), odd


def packed(content: Bytes, fields: Fields) -> tuple[Ints, Bits, Ints]:
    """Return the numbers that fields hold packed, and of which message each is; and the messages that are odd."""
    sizes = fields.size
    offsets = np.cumsum(sizes) - sizes
    place = np.repeat(fields.begin - offsets, sizes) + np.arange(int(sizes.sum()))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    is_last = content[place] <= _MORE
    filled = np.flatnonzero(sizes)
    cut = filled[~is_last[offsets[filled] + sizes[filled] - 1]]
    begins = np.concatenate([[True], is_last[:-1]])[: len(place)]
    begins[offsets[filled]] = True
    value, size = varints(content, place[begins])
    owner = fields.owner[owner[begins]]
    return owner, value, np.concatenate([fields.owner[cut], owner[size > 10]])


def all_ascii(content: Bytes, begins: Ints, ends: Ints) -> Bools:
    """Return which spans are text in ASCII."""
    above = np.concatenate([[0], np.cumsum(content > _MORE, dtype=np.int32)])
    return np.asarray(above[begins] == above[ends])


def all_texts(content: Bytes, begins: Ints, ends: Ints, *, tags: Collection[int]) -> Bools:
    """Return which messages hold texts in ASCII of some tags, and nothing else."""
    fields, odd = split(content, begins, ends, tags=tags)
    odd[fields.owner[~all_ascii(content, fields.begin, fields.begin + fields.size)]] = True
    return ~odd


class Attributes(NamedTuple):
    """Attributes of nodes in the order in which nodes have them; columns are (A,)."""

    owner: Ints
    begin: Ints  # of the message
    head: Ints  # bytes before the value: the name and the tag of the value, if it has any
    size: Ints  # all bytes
    value: Bits  # of a number its bits, else how many bytes it takes


def attributes(content: Bytes, fields: Fields) -> tuple[Attributes, Ints]:
    """Find name and value of attributes; return also the nodes that are odd."""
    owner, begin, size = fields.owner, fields.begin, fields.size
    end = begin + size
    name_size = content[begin + 1].astype(np.int64)
    at = np.minimum(begin + 2 + name_size, end)
    fits = (size >= 2) & (content[begin] == _TEXT) & (name_size <= _MORE) & (begin + 2 + name_size <= end)
    tag = content[at].astype(np.int64)
    is_long = tag > _MORE
    tag = np.where(is_long, (tag & _MORE) | (content[at + 1].astype(np.int64) << 7), tag)
    has_value, wire, value_at = at < end, tag & 7, np.minimum(at + 1 + is_long, end)
    value, value_size = varints(content, value_at)
    for kind, width in ((EIGHT_BYTES, 8), (FOUR_BYTES, 4)):
        fixed = np.flatnonzero(has_value & (wire == kind))
        value[fixed], value_size[fixed] = words_of(content)[value_at[fixed]], width
    stop = value_at + value_size + np.where(wire == SIZED, np.minimum(value, _MOST_BYTES), 0).astype(np.int64)
    # a tag of two bytes that one could hold is odd too
    is_value = (_WIRES[np.minimum(tag >> 3, 255)] == wire) & (is_long == (tag > _MORE)) & (value_size <= 10)
    fits &= ~has_value | (is_value & (stop == end))
    found = Attributes(owner, begin, np.where(has_value, value_at - begin, size), size, value)
    if fits.all():
        return found, owner[:0]
    return Attributes(*(column[fits] for column in found)), owner[~fits]
