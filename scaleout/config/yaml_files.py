"""YAML files to plain values. Knows no keys."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scaleout.errors import ConfigError


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
    try:
        value = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give an existing file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML ({str(error).splitlines()[0]}); mend the file") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds no mapping of keys to values; see the shipped files for the form")
    for scaling in _SCALINGS.get():
        if fnmatch(path.absolute().as_posix(), f"*/{scaling.files}"):
            _scale(value, scaling, path)
    return value


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


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A safe loader that refuses a key given twice in a mapping, where YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
            seen.add(key if isinstance(key, str) else id(key_node))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping
