"""YAML text to plain values, and unknown words to the nearest known ones.

Apart from `validated`, whose pydantic takes five times as long to import. Knows no keys.
"""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from scaleout.errors import ConfigError


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
    return value


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


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the known word nearest to `name`, or all of them if none is near."""
    import difflib  # noqa: PLC0415 - only for messages

    words = sorted(known)
    close = difflib.get_close_matches(name, words, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words)}"


def renamed(word: str, names: Mapping[str, str], *, what: str) -> str:
    """Return the new name of a renamed word, with a warning; any other word as it is.

    `names` are old names to new ones; `what` is what the word is, such as ``key`` or ``--clocks``.
    """
    if word not in names:
        return word
    warnings.warn(f"{what} {word!r} is now {names[word]!r}; the old name goes with the next release", FutureWarning, 2)
    return names[word]


def with_new_names(values: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """Return values under the new names of their keys, with a warning for each key that was renamed."""
    old = [key for key in values if key in names]
    for key in old:
        if names[key] in values:
            raise ValueError(f"{key!r} is the old name of {names[key]!r}; give the new one alone")
    return {renamed(key, names, what="key"): value for key, value in values.items()} if old else values
