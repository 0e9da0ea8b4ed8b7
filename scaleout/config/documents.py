"""JSON files and lines to plain values, and plain values to JSON: the limits that hold for every file that is read.

A file is read as far as a limit of bytes; a value may be so deep, its whole numbers so large, its numbers finite, and
a key stands once. `yaml_files` holds YAML to the same. Knows no keys; needs nothing that takes long to import.
"""

import errno
import json
import math
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from scaleout.errors import ConfigError, shown

MOST_BYTES = 16 * 2**20
"""Of a file that is one value, and of a line of one that holds a value a line."""
MOST_VALUES = 2_000_000
"""Of such a value, about: brackets that open and commas, those in texts too."""
MOST_LEVELS = 64
"""Of lists and mappings within one another."""
MAX_RANKS = 2**20
"""More ranks than any machine has; a larger number is a slip of the pen, and would only exhaust the memory."""
LEAST_NUMBER, LARGEST_NUMBER = 1e-9, 1e15
"""The least above zero and the greatest of numbers without a unit; quantities have bounds of their own."""
LARGEST_INTEGER = 2**63 - 1
"""Of whole numbers, either way."""

_HUGE = (b"0" * 19, b"e000", b"e+000")
"""What a number that may be huge holds, digits as zeros."""
_HUGE_INTEGER = re.compile(rb"(?<![0-9.])[0-9]{19,}+(?![.eE])")
_LONG_INTEGER = b" " + b"0" * 19
_BEFORE_ALIKE = bytes.maketrans(b"123456789:,[-\t\n\r", b"000000000       ")
"""Digits as zeros, and what may stand before a number as spaces."""
_DIGITS_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_PIECE = 2**20
_WHOLE = re.compile(r"0|[1-9][0-9]{0,17}")
NUMBER = re.compile(r"[-+]?(?:(?:0|[1-9][0-9_]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
"""Without zeros before it and without colons, which YAML 1.1 takes for another base."""
_STRING = re.compile(rb'"[^"]*+"?')
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NEITHER = bytes(each for each in range(256) if each not in b'"[]{}')


def is_file(path: Path, *, named_by: str = "") -> bool:
    """Return whether there is such a file, or raise `ConfigError` if none can be looked for, as where a name is long.

    A name with a null is none. What is neither file nor folder is refused as `check_regular` does. `named_by` is the
    file and key that name it, for the message.
    """
    try:
        check_regular(path)
        return path.is_file()
    except (ValueError, FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        where = f"{named_by}: {shown(str(path))}" if named_by else shown(str(path))
        raise ConfigError(f"{where}: cannot be read ({error.strerror}); give an existing file") from None


def check_regular(path: Path) -> None:
    """Raise `OSError` if a path is a pipe, a device or a socket: nobody knows when, or whether, those end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is a pipe or a device; write what it gives to a file", str(path))


@contextmanager
def opened(path: Path, what: str) -> Iterator[BinaryIO]:
    """Open a file to read its bytes; whatever cannot be read of it is a `ConfigError`."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            yield file
    except (OSError, ValueError) as error:  # a path with a null is no value
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read ({why}); give an existing {what}") from None


def _decoded(content: bytes | bytearray, where: str, *, most_bytes: int) -> str:
    if len(content) > most_bytes:
        raise ConfigError(f"{where}: has more than {most_bytes:,} bytes; give less")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{where}: is no text in UTF-8 (byte {error.start}); mend it") from None


def read_text(path: Path, *, what: str = "file", most_bytes: int = MOST_BYTES) -> str:
    """Read a file of UTF-8, or raise `ConfigError`; a mark of the byte order at its start is left out."""
    content = bytearray()
    with opened(path, what) as file:  # piece by piece: a read of so many bytes asks for the memory of all of them
        while piece := file.read(min(_PIECE, most_bytes + 1 - len(content))):
            content += piece
    return _decoded(content, str(path), most_bytes=most_bytes)


def read_json(path: Path, *, infinite: bool = False) -> Any:
    """Read a file of JSON, or raise `ConfigError`.

    Where `infinite` numbers may stand, which JSON has not but Python writes, they are read as texts.
    """
    return parse_json(read_text(path), where=str(path), infinite=infinite)


def read_json_lines(path: Path, *, what: str = "file of JSON lines") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line of a file that holds a JSON object a line, after where it stands; empty lines are left out.

    `ConfigError` names the file and, where a line is at fault, the line.
    """
    number = 0
    with opened(path, what) as file:
        while line := file.readline(MOST_BYTES + 1):
            number += 1
            if line.isspace():
                continue
            where = f"{path}, line {number}"
            value = parse_json(_decoded(line, where, most_bytes=MOST_BYTES), where=where)
            if not isinstance(value, dict):
                raise ConfigError(f"{where}: holds {shown(value)}, not an object; give one JSON object a line")
            yield where, value


def parse_json(text: str, *, where: str, infinite: bool = False, most_bytes: int = MOST_BYTES) -> Any:
    """Read JSON, or raise `ConfigError` that says `where` it stands; `infinite` as `read_json`."""
    try:
        return decode_json(text, infinite=infinite, most_bytes=most_bytes)
    except ValueError as error:
        raise ConfigError(f"{where}: not valid JSON ({error}); mend it") from None


def decode_json(text: str, *, infinite: bool = False, most_bytes: int = MOST_BYTES) -> Any:
    """Read JSON; `ValueError` if it is none, or beyond a limit; `infinite` as `read_json`."""
    if len(text) > most_bytes:
        raise ValueError(f"more than {most_bytes:,} characters")
    check_values(text)
    check_levels(text)
    return (_WITH_INFINITE if infinite else decoder_of(text)).decode(text)


def decoder_of(text: str) -> json.JSONDecoder:
    """Return what reads a text of JSON: a fast decoder, or one that refuses huge numbers where there may be some.

    They are looked for piece by piece: a regular expression takes ten times as long.
    """
    longest = max(map(len, _HUGE))
    for begin in range(0, len(text), _PIECE):
        piece = text[begin : begin + _PIECE + longest - 1].encode("utf-8", "surrogatepass").translate(_DIGITS_ALIKE)
        if any(each in piece for each in _HUGE):
            return _CAREFUL
    return _PLAIN


def holds_huge_integers(content: bytes) -> bool:
    """Return whether whole values of JSON, `without_escapes`, hold numbers of more than 64 bits outside of strings."""
    if _LONG_INTEGER not in content.translate(_BEFORE_ALIKE):
        return False
    outside = (each for each in content.split(b'"')[::2] if len(each) >= 19)
    numbers = (number for each in outside for number in _HUGE_INTEGER.findall(each))
    return any(len(number) > 19 or int(number) > LARGEST_INTEGER for number in numbers)


def without_escapes(content: bytes) -> bytes:
    """Return JSON without escapes of quotes, so that a quote begins or ends a string."""
    return content.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in content else content


def to_json(value: object, *, indent: int | None = None) -> str:
    """Write plain values as JSON, which has no infinite numbers and no NaN: those are null."""
    try:
        return json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, allow_nan=False)


def integer(text: str) -> int:
    """Return the whole number of a text of digits; `ValueError` if it takes more than 64 bits."""
    value = int(text) if len(text) <= 20 else LARGEST_INTEGER + 1
    if abs(value) > LARGEST_INTEGER:
        raise ValueError(f"{shown(text)} takes more than 64 bits")
    return value


def finite(text: str) -> float:
    """Return the number of a text; `ValueError` if it is infinite or NaN."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is no finite number")
    return value


def whole(text: str) -> int | None:
    """Return the whole number that a text such as ``12`` is; None if it is none, as ``010`` and ``1:30``."""
    return int(text) if _WHOLE.fullmatch(text) else None


def number(text: str) -> float | None:
    """Return the finite number that a text such as ``1.5e-3`` is; None if it is none, as ``010`` and ``nan``."""
    value = float(text.replace("_", "")) if NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def not_tiny(value: float) -> float:
    """Return a number without a unit; `ValueError` if it is no 0 and so small that it can only be a slip."""
    if 0 < abs(value) < LEAST_NUMBER:
        raise ValueError(f"{value:g} is next to nothing; give 0, or at least {LEAST_NUMBER:g}")
    return value


def unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a mapping of keys and values; `ValueError` if a key stands twice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise ValueError(f"key {shown(twice)} stands twice")
    return values


_PLAIN = json.JSONDecoder(object_pairs_hook=unique, parse_constant=finite)
_CAREFUL = json.JSONDecoder(object_pairs_hook=unique, parse_constant=finite, parse_int=integer, parse_float=finite)

_WITH_INFINITE = json.JSONDecoder(object_pairs_hook=unique, parse_constant=str, parse_int=integer, parse_float=finite)


def check_values(text: str, begin: int = 0, end: int | None = None, *, most: int = MOST_VALUES) -> None:
    """Raise `ValueError` if a part of a text has more values than a file of JSON, or than `most`, may hold."""
    if (len(text) if end is None else end) - begin <= most:
        return
    if sum(text.count(mark, begin, end) for mark in ",[{") > most:
        raise ValueError(f"more than {most:,} values")


def check_levels(text: str, begin: int = 0, end: int | None = None) -> None:
    """Raise `ValueError` if brackets outside of strings are too deep: the innermost pairs go level by level."""
    if text.count("[", begin, end) + text.count("{", begin, end) <= MOST_LEVELS:
        return
    if too_deep(without_escapes(text[begin:end].encode("utf-8", "surrogatepass"))):
        raise ValueError(f"more than {MOST_LEVELS} levels of lists and objects within one another")


def too_deep(content: bytes) -> bool:
    """Return whether brackets of JSON, `without_escapes`, are more than `MOST_LEVELS` deep outside of strings."""
    left = _STRING.sub(b"", content.translate(_ALIKE, _NEITHER).replace(b'""', b""))
    for _ in range(MOST_LEVELS):
        if b"[]" not in left:
            break
        left = left.replace(b"[]", b"")
    return b"[]" in left or left.count(b"[") > MOST_LEVELS


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
