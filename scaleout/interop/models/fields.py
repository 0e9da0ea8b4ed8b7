"""Keys of a file that another tool reads: each is read, known not to matter, or told of.

Nothing of a source is passed over in silence. A reader takes the keys that it understands; `Fields.finish` sorts those
that are left into what says nothing of the cost of a step, what no workload models, and what nobody here knows.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from scaleout.config.documents import LARGEST_NUMBER
from scaleout.config.units import MOST_COUNT
from scaleout.errors import ConfigError, shown

Keys = dict[str, Any]
"""Keys of a workload and their values."""

_REQUIRED = object()


@dataclass(frozen=True)
class Source:
    """What a file says: keys of a workload, what to tell of those that are none, and the longest sequence.

    `usual` are keys that no file of the form says, and what is usual where the model is run.
    """

    keys: Keys
    notes: tuple[str, ...]
    what: str  # the file is of
    longest: int | None = None
    usual: Keys = field(default_factory=dict)


@dataclass(frozen=True)
class Asked:
    """What a user says of the job beside a file: its ranks, and keys of the workload, which win."""

    ranks: int | None
    keys: Mapping[str, Any]


class Fields:
    """Keys of a file or of a section of it, and what a user is to be told of them."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = dict(values)
        self.where = where
        self.notes: list[str] = []
        self._read: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def any(self, key: str, default: Any = _REQUIRED) -> Any:
        """Read a value of any kind; `ConfigError` if the key is missing and no default is given."""
        self._read.add(key)
        if key not in self.values and default is _REQUIRED:
            raise ConfigError(f"{self.where}: key {key!r} is missing; add it")
        return self.values.get(key, default)

    def optional(self, key: str, *, most: int = MOST_COUNT) -> int | None:
        """Read a whole number; None if it is missing, null or 0."""
        value = self.any(key, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise ConfigError(f"{self.where}: {key} is {shown(value)}; give a whole number of at most {most:,}")
        return value or None

    def count(self, key: str, default: int | None = None, *, most: int = MOST_COUNT) -> int:
        """Read a whole number above zero; `ConfigError` if it is none, or missing without a default."""
        value = self.optional(key, most=most)
        if value is None and self.values.get(key) is None:
            value = default
        if value is None:
            what = f"is {shown(self.values[key])}" if key in self.values else "is missing"
            raise ConfigError(f"{self.where}: {key} {what}; give a whole number above zero")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Read a truth value; null is the default."""
        value = self.any(key, None)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}: {key} is {shown(value)}; give true or false")
        return value

    def number(self, key: str, default: float, *, most: float = LARGEST_NUMBER) -> float:
        """Read a number from 0 on; null is the default."""
        value = self.any(key, None)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise ConfigError(f"{self.where}: {key} is {shown(value)}; give a number from 0 to {most:g}")
        return float(value)

    def word(self, key: str, words: Mapping[str, Any], default: str | None = None) -> Any:
        """Read one of some words, and return what it stands for."""
        value = self.any(key, _REQUIRED if default is None else default)
        if value is None and default is not None:
            value = default
        if not isinstance(value, str) or value not in words:
            raise self.refusal(key, f"known are {', '.join(words)}; a workload has no other")
        return words[value]

    def refusal(self, key: str, why: str) -> ConfigError:
        """Return the error of a key whose value cannot be modelled: `why`, and what to do."""
        return ConfigError(f"{self.where}: {key} {shown(self.values.get(key))}: {why}")

    def must_be(self, key: str, values: Collection[Any], why: str) -> None:
        """Refuse a key with any other value; a missing one is fine."""
        if key in self.values and not _is_among(self.any(key), values):
            raise self.refusal(key, why)

    def note(self, text: str) -> None:
        """Tell the user something of the import."""
        self.notes.append(text)

    def left_out(self, reasons: Mapping[str, tuple[Collection[Any], str]]) -> None:
        """Tell of keys that cost something and that no workload models, where their value is none of those given.

        It must be of their kind: a truth value, or a number.
        """
        for key, (harmless, why) in reasons.items():
            kinds = {type(each) for each in harmless}
            if bool in kinds:
                self.flag(key, default=False)
            elif int in kinds:
                self.number(key, 0.0)
            if key in self.values and not _is_among(self.any(key), harmless):
                self.note(f"left out: {key} {shown(self.values[key])}: {why}")

    def check_kinds(self, kinds: Mapping[str, Collection[str]]) -> None:
        """Refuse keys that are not read where their value is of another kind than theirs; null is none."""
        for kind, keys in kinds.items():
            for key in sorted(self.values.keys() & keys):
                if self.values[key] is not None and not _IS_OF[kind](self.values[key]):
                    raise ConfigError(f"{self.where}: {key} is {shown(self.values[key])}; give {kind}")

    def finish(self, neutral: Collection[str]) -> None:
        """Tell of the keys that nothing has read: those known to be neutral (a * is any end), and others."""
        left = [key for key in self.values if key not in self._read]
        harmless = [key for key in left if is_neutral(key, neutral)]
        unknown = [key for key in left if key not in harmless]
        if harmless:
            self.note(f"not read, as they do not change what a step costs: {', '.join(harmless)}")
        for key in unknown:
            self.note(f"unknown: {key} {shown(self.values[key])}: what it changes in a layer, the workload lacks")


_IS_OF: Mapping[str, Callable[[Any], bool]] = {
    "true or false": lambda value: isinstance(value, bool),
    "a number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "a text": lambda value: isinstance(value, str),
}


def _is_among(value: Any, values: Collection[Any]) -> bool:
    """Whether a value is one of some; true is not 1, though Python finds them equal."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def is_neutral(key: str, neutral: Collection[str]) -> bool:
    """Whether a key is among some, whose names may end in a *, which is any end."""
    return key in neutral or any(key.startswith(each[:-1]) for each in neutral if each.endswith("*"))
