"""JSON files of any length, read as they come: the elements of their long lists one by one, so that few are held.

A recording of a rank is one JSON value of 100 MB and more, most of it events that nobody asks for. Here the value at
the top is walked, and the lists that are known to be long, element by element; every element, and what stands beside
the lists, is held to the limits of `documents`. Elements that are objects are decoded many at a time by orjson, which
takes a third of the time of `json` but keeps one of two keys that are alike; what it cannot read, or read less of than
was there, `json` reads again, one by one, to say what is wrong. Knows no keys.
"""

import codecs
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from scaleout.config.documents import (
    MOST_BYTES,
    MOST_LEVELS,
    check_levels,
    check_values,
    decoder_of,
    holds_huge_integers,
    too_deep,
    unique,
    without_escapes,
)
from scaleout.errors import shown

MOST_VALUES = 1_000_000
"""Of an element, or of a value beside the lists: as more of it is read, it is decoded again, three times in all."""
_PIECE = 2**20
_MOST_KEYS = 10_000
_PLAIN = json.JSONDecoder()
_SPACES = re.compile(r"[ \t\n\r]*")
_BETWEEN = re.compile(r"\}[ \t\n\r]*(?=,[ \t\n\r]*\{)")
_TOGETHER = 2**14
"""Characters that are decoded at a time; more would keep the collector of garbage busy with elements that live on."""
_NEAR = 2**12
"""Of a piece, in how many of its last characters the end of an element is looked for."""

Read = Callable[[int], bytes]
"""Gives up to so many bytes, and none at the end."""
Take = Callable[[Any], Any]
"""Gives what is kept of an element of a list: the element, something else, or `LEFT_OUT`."""
LEFT_OUT = object()


def read_long_json(read: Read, takes: Mapping[str, Take]) -> Any:
    """Read JSON, keeping of the elements of its long lists what is asked for.

    Parameters
    ----------
    read : callable
        Gives the bytes of the file.
    takes : mapping
        Key of the mapping at the top, under which a long list may stand, to what says what is kept of its elements;
        empty for a list at the top.

    Raises
    ------
    ValueError
        If it is no JSON in UTF-8, or an element, or what stands beside the lists, is beyond a limit of `documents`.
    """
    text = _Text(read)
    begins = text.next()
    if begins == "[" and "" in takes:
        value: Any = _elements(text, takes[""])
    elif begins == "{":
        value = unique(_pairs(text, takes))
    else:
        value = text.value()
    if text.next():
        raise ValueError(f"something follows its end at character {text.passed:,}")
    return value


class _Text:
    """What is left of a file, of which pieces are read when they are needed."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._before = "", 0, 0
        self._alone_to = 0  # up to where elements are decoded one by one
        self._ended = False
        self._json: json.JSONDecoder | None = None

    @property
    def passed(self) -> int:
        """How many characters were read."""
        return self._before + self._at

    def _more(self) -> None:
        data = self._read(max(_PIECE, (len(self._text) - self._at) // 2))
        self._text = self._text[self._at :] + self._decoder.decode(data, final=not data)
        self._before, self._at, self._ended = self._before + self._at, 0, not data
        self._json = None

    def next(self) -> str:
        """Return the next character that is no space, and pass over what precedes it; empty at the end."""
        while True:
            found = _SPACES.match(self._text, self._at)
            assert found is not None
            self._at = at = found.end()
            if at < len(self._text) or self._ended:
                return self._text[at : at + 1]
            self._more()

    def take(self, expected: str) -> str:
        """Return the next character, which is one of those expected, and pass over it."""
        found = self.next()
        if not found or found not in expected:
            wanted = " or ".join(map(repr, expected))
            raise ValueError(f"{wanted} is expected at character {self.passed:,}, not {shown(found)}")
        self._at += 1
        return found

    def objects(self) -> list[Any]:
        """Return elements of a list, the first of which begins here, and pass over them; none if that is not sure.

        They end where an object is followed by another, if what precedes is a list of whole values.
        """
        if self.passed < self._alone_to:
            return []
        if len(self._text) - self._at < _TOGETHER and not self._ended:
            self._more()
        end = self._at + _TOGETHER
        ends = [found.end() for found in _BETWEEN.finditer(self._text, max(self._at, end - _NEAR), end)]
        elements = _decoded(self._text[self._at : ends[-1]]) if ends else []
        if elements:
            self._at = ends[-1]
        else:
            self._alone_to = self._before + (ends[-1] if ends else len(self._text))
        return elements

    def value(self) -> Any:
        """Return the value that begins here, and pass over it."""
        self.next()
        cut = False
        while True:
            self._json = self._json or decoder_of(self._text)
            try:
                if cut:
                    _PLAIN.raw_decode(self._text, self._at)  # whether it is whole now, in half the time
                value, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._ended:
                    raise ValueError(f"{error.msg} at character {self._before + error.pos:,}") from None
            except RecursionError:
                raise ValueError(f"more than {MOST_LEVELS} levels of lists and objects within one another") from None
            else:
                if end + 2 < len(self._text) or self._ended:  # else a number may be cut behind its '.', 'e' or 'e-'
                    check_values(self._text, self._at, end, most=MOST_VALUES)
                    check_levels(self._text, self._at, end)
                    if "\\ud" in self._text[self._at : end].lower():
                        _check_text(value, at=self.passed)
                    self._at = end
                    return value
            if len(self._text) - self._at > MOST_BYTES:
                raise ValueError(f"a value of more than {MOST_BYTES:,} characters begins at character {self.passed:,}")
            check_values(self._text, self._at, most=MOST_VALUES)
            self._more()
            cut = True


def _check_text(value: Any, *, at: int) -> None:
    """Refuse half a surrogate pair, which no file of ours can hold; orjson refuses it as well."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError(f"half of a surrogate pair in the value at character {at:,}, which is no text") from None


def _decoded(text: str) -> list[Any]:
    """Decode elements of a list, a piece at most; none if they are beyond a limit, no JSON, or a key stands twice.

    Of two keys that are alike one is written again, so there are fewer quotes.
    """
    content = text.encode()
    plain = without_escapes(content)
    if holds_huge_integers(plain):
        return []
    try:
        elements: list[Any] = orjson.loads(b"[%b]" % content)
        written = without_escapes(orjson.dumps(elements))
    except (ValueError, TypeError):  # no JSON; levels
        return []
    return elements if written.count(b'"') == plain.count(b'"') and not too_deep(written[1:-1]) else []


def _elements(text: _Text, take: Take) -> list[Any]:
    text.take("[")
    kept: list[Any] = []
    if text.next() == "]":
        text.take("]")
        return kept
    while True:
        for element in text.objects() or (text.value(),):
            value = take(element)
            if value is not LEFT_OUT:
                kept.append(value)
        if text.take(",]") == "]":
            return kept


def _pairs(text: _Text, takes: Mapping[str, Take]) -> list[tuple[str, Any]]:
    text.take("{")
    pairs: list[tuple[str, Any]] = []
    beside = 0
    if text.next() == "}":
        text.take("}")
        return pairs
    while True:
        begin = text.passed
        if text.next() != '"':
            raise ValueError(f"a key in quotes is expected at character {text.passed:,}, not {shown(text.next())}")
        key = text.value()
        text.take(":")
        if text.next() == "[" and key in takes:
            pairs.append((key, _elements(text, takes[key])))
        else:
            pairs.append((key, text.value()))
            beside += text.passed - begin
        if beside > MOST_BYTES or len(pairs) > _MOST_KEYS:
            raise ValueError(
                f"more than {MOST_BYTES:,} characters or {_MOST_KEYS:,} keys beside {' and '.join(filter(None, takes))}"
            )
        if text.take(",}") == "}":
            return pairs
