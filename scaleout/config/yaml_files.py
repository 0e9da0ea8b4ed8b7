"""YAML files and values to plain values, within the limits of `documents`. Knows no keys.

Of YAML's words and numbers only those are read as such that JSON has as well, with the signs and points of YAML:
everything else is a string, in files and in options alike.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scaleout.config.documents import MOST_LEVELS, NUMBER, finite, integer, read_text
from scaleout.errors import ConfigError, shown

MOST_BYTES = 4 * 2**20
MOST_VALUES = 200_000
"""Of a document, those that an alias repeats counted again."""

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {
    "": None,
    "~": None,
    **{
        form: value
        for word, value in (("null", None), ("true", True), ("false", False))
        for form in (word, word.capitalize(), word.upper())
    },
}
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")


class _Scaling(NamedTuple):
    """A number of files, by pattern and key, and its factor."""

    files: str
    key: str
    factor: float
    read: list[Path]  # files in which it was found


_SCALINGS: ContextVar[tuple[_Scaling, ...]] = ContextVar("scalings", default=())
_NUMBER = re.compile(r"\s*([0-9.]+(?:[eE][-+]?[0-9]+)?)(\s*[^0-9.].*)?")


@contextmanager
def scaled(files: str, key: str, factor: float) -> Iterator[None]:
    """Multiply a number of all files read within, where their path ends as the pattern `files`.

    `key` is its way into the file, such as ``dimensions.0.bandwidth``. What-if studies vary inputs so, one within
    another, whichever code reads them. `ConfigError` if no file that was read within has that number.

    >>> from scaleout.cluster.device.spec import load_device
    >>> with scaled("traces/mi210/device.yaml", "memory_bandwidth", 0.5):
    ...     load_device("mi210").memory_bytes_per_s
    800000000000.0
    """
    scaling = _Scaling(files, key, factor, [])
    token = _SCALINGS.set((*_SCALINGS.get(), scaling))
    try:
        yield
    finally:
        _SCALINGS.reset(token)
    if not scaling.read:
        raise ConfigError(f"no file like {files} with the number {key!r} was read; name one that the study reads")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping, or raise `ConfigError`."""
    value = _parse(read_text(path, most_bytes=MOST_BYTES), where=str(path))
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds no mapping of keys to values; see the shipped files for the form")
    for scaling in _SCALINGS.get():
        if fnmatch(path.absolute().as_posix(), f"*/{scaling.files}"):
            _scale(value, scaling, path)
    return value


def parse_value(text: str, *, where: str) -> Any:
    """Read a value as it may stand in a file, or raise `ConfigError` that says `where` it stands."""
    return _parse(text, where=where)


def _scale(value: Any, scaling: _Scaling, path: Path) -> None:
    """Multiply the number in a file's values, in place, if it has it."""
    *way, last = (int(part) if part.isdecimal() else part for part in scaling.key.split("."))
    try:
        for part in way:
            value = value[part]
        if isinstance(value[last], dict):  # a number with its source
            value, last = value[last], "value"
        value[last] = _times(value[last], scaling.factor)
    except (KeyError, IndexError, TypeError, ValueError):
        return
    scaling.read.append(path)


def _times(number: Any, factor: float) -> Any:
    """Multiply a number, or a text of a number and its unit; a count stays a whole number."""
    if isinstance(number, str):
        found = _NUMBER.fullmatch(number)
        if found is None:
            raise ValueError(number)
        return f"{float(found[1]) * factor!r}{found[2] or ''}"
    return max(1, round(number * factor)) if isinstance(number, int) else number * factor


class _YamlError(Exception):
    """What is wrong, and where."""

    def __init__(self, what: str, mark: Any) -> None:
        super().__init__(f"{what}, line {mark.line + 1}" if mark else what)


def _parse(text: str, *, where: str) -> Any:
    parser = None
    try:
        parser = _Parser(text)
        return _Reader(parser).document()
    except _YamlError as fault:
        raise ConfigError(f"{where}: not valid YAML ({fault}); mend it") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = f"{error.problem}, line {mark.line + 1}" if mark else str(error.problem)
        raise ConfigError(f"{where}: not valid YAML ({problem}); mend it") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: not valid YAML ({str(error).splitlines()[0]}); mend it") from None
    finally:
        if parser is not None:
            parser.dispose()


class _Reader:
    """The events of a document to its value.

    PyYAML's own constructors take what YAML 1.1 takes, dates and `yes` among them, raise whatever Python raises, and
    compose deep files on the stack of C.
    """

    def __init__(self, parser: Any) -> None:
        self._next = parser.get_event
        self._anchors: dict[str, tuple[Any, int]] = {}  # value, and values within it
        self._left = MOST_VALUES

    def document(self) -> Any:
        """Return the value of the only document; None if there is none."""
        self._next()  # the start of the stream
        if isinstance(self._next(), yaml.StreamEndEvent):
            return None
        value = self._value(self._next(), 0)
        self._next()  # the end of the document
        if not isinstance(further := self._next(), yaml.StreamEndEvent):
            raise _YamlError("a second document", further.start_mark)
        return value

    def _value(self, event: Any, level: int) -> Any:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        if event.tag not in (None, "!"):
            raise _YamlError(f"tag {shown(event.tag)}, of which none is read", event.start_mark)
        left = self._left
        self._left -= 1
        if left <= 0:
            raise _YamlError(f"more than {MOST_VALUES:,} values", event.start_mark)
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event)
        elif level == MOST_LEVELS:
            raise _YamlError(f"more than {MOST_LEVELS} levels within one another", event.start_mark)
        else:
            value = (self._list if isinstance(event, yaml.SequenceStartEvent) else self._mapping)(event, level + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = value, left - self._left
        return value

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise _YamlError(f"alias {shown(event.anchor)} of nothing that stands whole before it", event.start_mark)
        value, values = self._anchors[event.anchor]
        self._left -= values
        if self._left < 0:
            raise _YamlError(f"more than {MOST_VALUES:,} values, by its aliases", event.start_mark)
        return value

    def _list(self, event: Any, level: int) -> list[Any]:
        found = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            found.append(self._value(event, level))
        return found

    def _mapping(self, start: Any, level: int) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        merged: list[Any] = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise _YamlError("a key that is no plain value", event.start_mark)
            key, value = self._value(event, level), self._value(self._next(), level)
            if key == "<<" and event.implicit[0]:
                merged += value if isinstance(value, list) else [value]
            elif key in found:
                raise _YamlError(f"key {shown(key)} stands twice", event.start_mark)
            else:
                found[key] = value
        for other in merged:
            if not isinstance(other, dict):
                raise _YamlError("<< that merges what is no mapping", start.start_mark)
            found = other | found
        return found


def _scalar(event: Any) -> Any:
    """Return the value of a scalar; words and numbers are those of JSON, so `yes`, 010, 1:30 and dates are strings."""
    text: str = event.value
    if not event.implicit[0]:  # in quotes, or a block
        return text
    if text in _WORDS:
        return _WORDS[text]
    try:
        if _INTEGER.fullmatch(text):
            return integer(text.replace("_", ""))
        if NUMBER.fullmatch(text) or text.lower().lstrip("+-") in (".nan", ".inf"):
            return finite(text.lower().replace("_", "").replace(".n", "n").replace(".i", "i"))
    except ValueError as error:
        raise _YamlError(str(error), event.start_mark) from None
    return text
