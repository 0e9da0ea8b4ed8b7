"""The keys of validated files, as their models describe them: what `scaleout show --keys` and the docs print.

A model to rows, one a key; those of a section are `section.key`, those of a list's entries `list[].key`, and those of a
mapping's values `mapping.NAME.key`. Knows nothing of any key.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from scaleout.config.units import Quantity, written
from scaleout.config.validated import WithSource

_PLAIN = {bool: "true or false", int: "whole number", float: "number", str: "text"}


@dataclass(frozen=True)
class Key:
    """A key: its path in a file, what may stand there, in which unit, what holds without it, and what it means."""

    name: str
    type: str
    unit: str  # as values are written, such as "64MiB"; empty for what has none
    default: str
    meaning: str
    example: str  # where no file has one


def keys_of(model: type[BaseModel], section: str = "") -> Iterator[Key]:
    """Return the keys of a model, each followed by those within it."""
    for field, info in model.model_fields.items():
        name = f"{section}{info.alias or field}"
        found = quantity_of(info)
        kind, inner, below = _type(info.annotation)
        if found is not None:
            kind = kind.replace("number", found.name)
        kind += " with its source" * _is_cited((*info.metadata, info.annotation))
        unit, made_up = (found.unit, found.example) if found else ("", _made_up(info))
        yield Key(name, kind, unit, default_of(info), info.description or "", made_up)
        if inner is not None and not set(inner.model_fields) <= set(model.model_fields):  # else it has the same keys
            yield from keys_of(inner, f"{name}{below}.")


def quantity_of(info: FieldInfo) -> Quantity | None:
    """Return the quantity that a key is, or that its entries are; None for a count, a word and the like."""
    return next(_quantities((*info.metadata, info.annotation)), None)


def _quantities(parts: tuple[Any, ...]) -> Iterator[Quantity]:
    for part in parts:
        if isinstance(part, Quantity):
            yield part
        elif not (isinstance(part, type) and issubclass(part, BaseModel)):
            yield from _quantities((*get_args(part), *getattr(part, "__metadata__", ())))


def _is_cited(parts: tuple[Any, ...]) -> bool:
    """Say whether a number stands in a file as {value: ..., source: ...}; not what keys within a section are."""
    return any(
        isinstance(part, WithSource)
        or (
            not (isinstance(part, type) and issubclass(part, BaseModel))
            and _is_cited((*get_args(part), *getattr(part, "__metadata__", ())))
        )
        for part in parts
    )


def default_of(info: FieldInfo) -> str:
    """Say in words what holds where a key is not given."""
    value = info.get_default(call_default_factory=True)
    return "required" if value is PydanticUndefined else value_of(value, quantity_of(info))


def choices_of(info: FieldInfo) -> list[str]:
    """Return what a key may be, or an entry of it, where that is one of a few words or a truth value."""
    return [value_of(each) for each in _choices(info.annotation)]


def _choices(annotation: Any) -> Iterator[Any]:
    if annotation is bool:
        yield from (True, False)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for each in get_args(annotation):
            yield from _choices(each)


def _made_up(info: FieldInfo) -> str:
    """Return a value that is not the default: the one that the key's model has, or of a few the first."""
    return next(
        (each for each in (*map(value_of, info.examples or ()), *choices_of(info)) if each != default_of(info)), ""
    )


def value_of(value: Any, quantity: Quantity | None = None) -> str:
    """Write a key's value as a file would hold it, numbers with their unit; what is not there is unset."""
    if value is None or value in ("", (), [], {}):
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        plain = "without limit" if math.isinf(value) else f"{value:.10g}"
        return written(value, quantity) if quantity and math.isfinite(value) else plain
    if isinstance(value, list | tuple):
        return ", ".join(_entry(each) if isinstance(each, BaseModel) else value_of(each, quantity) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {value_of(each, quantity)}" for name, each in value.items())
    return "as its keys say" if isinstance(value, BaseModel) else str(value)


def in_words(model: type[BaseModel], values: Mapping[str, Any]) -> str:
    """Write keys of a model and their values in a line, as messages do."""
    fields = model.model_fields
    return ", ".join(
        f"{key} {value_of(value, quantity_of(fields[key]) if key in fields else None)}" for key, value in values.items()
    )


def _entry(value: BaseModel) -> str:
    """Write an entry of a list as a file would hold it in a line: the keys that are given."""
    given = ((name, getattr(value, name), info) for name, info in type(value).model_fields.items())
    words = (f"{name}: {value_of(of, quantity_of(info))}" for name, of, info in given if name in value.model_fields_set)
    return f"{{{', '.join(words)}}}"


def _type(annotation: Any) -> tuple[str, type[BaseModel] | None, str]:
    """Say what may stand at a key; with the model of what is within it, and what its path adds to the key's."""
    origin, inner = get_origin(annotation), [each for each in get_args(annotation) if each is not type(None)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section", annotation, ""
    if origin is Literal:
        return ", ".join(value_of(each) for each in inner), None, ""
    if hasattr(annotation, "__metadata__"):
        return _type(annotation.__origin__)
    if origin in (tuple, list, dict):
        of, path, place = ("mapping to", ".NAME", 1) if origin is dict else ("list of", "[]", 0)
        kind, model, below = _type(inner[place])
        return f"{of} {'sections' if kind == 'section' else kind}", model, f"{path}{below}"
    if inner:  # one of several
        found = [_type(each) for each in inner]
        return " or ".join(dict.fromkeys(kind for kind, _, _ in found)), *found[0][1:]
    return _PLAIN.get(annotation, "text, number or truth value"), None, ""
