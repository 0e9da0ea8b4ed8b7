"""Numbers for texts that lie in the bytes of files: equal texts have one number, of whatever file they are.

Texts are hashed eight bytes at a time, looked up among those that are known, and compared with what was found: the
numbers are right whatever the hashes. Knows nothing of messages.

Symbols: S texts to number; D distinct ones.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from scaleout.program.graph import Ints

Bytes = npt.NDArray[np.uint8]
"""Bytes, with `PADDING` more behind them."""
_Words = npt.NDArray[np.uint64]

PADDING = 8
_WORD = 8
_LONGEST = 128
"""Longer texts are few, and are looked up one by one."""
_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)
_SHIFT = np.uint64(32)
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(_WORD + 1)], np.uint64)
"""Which bits of a word belong to a text that has so many bytes left."""


def padded(content: bytes) -> Bytes:
    """Return bytes from each of which a word can be read."""
    return np.frombuffer(content + bytes(PADDING), np.uint8)


def words_of(content: Bytes) -> _Words:
    """Return the word that begins at each byte, the lowest byte first."""
    return np.ndarray((len(content) - _WORD + 1,), np.dtype("<u8"), content.data, strides=(1,))


class Texts:
    """Distinct texts, numbered as they are first met."""

    def __init__(self) -> None:
        self.known: list[bytes] = []
        self._hashes = np.empty(0, np.uint64)  # ascending, and which of the following each is of
        self._order = np.empty(0, np.int64)
        self._numbers = np.empty(0, np.int64)
        self._lengths = np.empty(0, np.int64)  # bytes; where the words of each begin; and the words of all
        self._begins = np.empty(0, np.int64)
        self._words = np.empty(0, np.uint64)
        self._others: dict[bytes, int] = {}  # long ones, and those whose hash is another's

    def numbers(self, content: Bytes, starts: Ints, lengths: Ints) -> Ints:
        """Return the number of each text, (S,)."""
        if not len(starts):
            return np.empty(0, np.int64)
        hashes, read = _hashed(content, starts, lengths)
        at = np.searchsorted(self._hashes, hashes)
        is_new = self._hashes[np.minimum(at, len(self._hashes) - 1)] != hashes if len(self._hashes) else at == 0
        if is_new.any():
            new = np.flatnonzero(is_new)
            first = new[np.sort(np.unique(hashes[new], return_index=True)[1])]
            self._add(hashes[first], [content[s : s + n].tobytes() for s, n in _pairs(starts, lengths, first)])
            at = np.searchsorted(self._hashes, hashes)
        hashed = self._order[at]
        found = self._numbers[hashed]
        is_other = (self._lengths[hashed] != lengths) | (lengths > _LONGEST)
        for place, (those, words) in enumerate(read):
            at = np.minimum(self._begins[hashed[those]] + place, len(self._words) - 1)
            is_other[those] |= self._words[at] != words
        others = np.flatnonzero(is_other)
        for other, (start, length) in zip(others.tolist(), _pairs(starts, lengths, others), strict=True):
            text = content[start : start + length].tobytes()
            if text not in self._others:
                self._others[text] = len(self.known)
                self.known.append(text)
            found[other] = self._others[text]
        return found

    def of_rows(self, rows: Ints) -> Ints:
        """Return the number of each row of a matrix of whole numbers, (S,)."""
        content = np.ascontiguousarray(rows)
        size = content.itemsize * content.shape[1]
        lengths = np.full(len(content), size)
        return self.numbers(padded(content.tobytes()), np.arange(len(content)) * size, lengths)

    def _add(self, hashes: _Words, texts: list[bytes]) -> None:
        sizes = [-(-len(text) // _WORD) for text in texts]
        filled = b"".join(text.ljust(size * _WORD, b"\0") for text, size in zip(texts, sizes, strict=True))
        order = np.argsort(hashes)
        at = np.searchsorted(self._hashes, hashes[order])
        self._hashes = np.insert(self._hashes, at, hashes[order])
        self._order = np.insert(self._order, at, len(self._numbers) + order)
        self._numbers = np.concatenate([self._numbers, np.arange(len(self.known), len(self.known) + len(texts))])
        self._lengths = np.concatenate([self._lengths, [len(text) for text in texts]])
        self._begins = np.concatenate([self._begins, len(self._words) + np.cumsum(sizes) - sizes])
        self._words = np.concatenate([self._words, np.frombuffer(filled, "<u8")])
        self.known += texts


def _pairs(starts: Ints, lengths: Ints, those: Ints) -> Iterable[tuple[int, int]]:
    return zip(starts[those].tolist(), lengths[those].tolist(), strict=True)


def _hashed(content: Bytes, starts: Ints, lengths: Ints) -> tuple[_Words, list[tuple[Ints, _Words]]]:
    """Return the hash of each text, and what was read: at each place the words, and of which texts they are."""
    words = words_of(content)
    hashes = lengths.astype(np.uint64) * _FACTOR
    read: list[tuple[Ints, _Words]] = []
    those = np.flatnonzero(lengths > 0)
    while those.size and len(read) * _WORD < _LONGEST:
        done = len(read) * _WORD
        word = words[starts[those] + done] & _MASKS[np.minimum(lengths[those] - done, _WORD)]
        mixed = (hashes[those] ^ word) * _FACTOR
        hashes[those] = mixed ^ (mixed >> _SHIFT)
        read.append((those, word))
        those = those[lengths[those] > done + _WORD]
    return hashes, read
