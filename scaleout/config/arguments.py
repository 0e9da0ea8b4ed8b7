"""Arguments of the public functions, and fields of the public dataclasses, held to their type annotations.

Python does not look at annotations: a text given for a list, or NaN for a factor, would fail far from where it was
given, or not at all. `checked` has pydantic look at them, as it does at the keys of a file: numbers are finite, whole
where they count, and no text or truth value; scalars and arrays of NumPy are taken as Python's numbers and lists.
Functions that are called from within are not checked again: `scaleout` checks the names that it offers, and answers
their methods. What a value of the right type may be, such as a rank of a topology, is the functions' own to say.
"""

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import GenericAlias, NoneType, UnionType
from typing import Annotated, Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, WrapValidator, create_model
from pydantic_core import core_schema

from scaleout.config.documents import LARGEST_INTEGER
from scaleout.config.reading import nearest
from scaleout.config.validated import validate
from scaleout.errors import shown

P = ParamSpec("P")
R = TypeVar("R")

MAKERS = {
    "Device": "load_device",
    "ModelFamily": "load_workload",
    "Placement": "place",
    "Program": "generate",
    "Result": "simulate",
    "Topology": "load_topology",
}
"""What a public function takes to the one that returns it, for messages."""

_SCALARS: dict[Any, tuple[Any, str]] = {
    Any: (Any, "anything"),
    bool: (bool, "True or False"),
    float: (float, "a finite number"),
    int: (Annotated[int, Field(ge=-LARGEST_INTEGER, le=LARGEST_INTEGER)], "a whole number"),
    str: (str, "a text"),
    Path: (Path, "a path"),
    Callable: (Callable, "a function"),
}
"""Type to what pydantic checks, and its word."""


@dataclass(frozen=True)
class _InstanceOf:
    """As pydantic's, which takes 10 ms more to say how all that a class of ours holds would be written as JSON."""

    kind: type

    def __get_pydantic_core_schema__(self, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.is_instance_schema(self.kind)


class _Arguments(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that raises `ConfigError` where an argument is not of the type that it is annotated with.

    Arguments that are missing or unknown are a `TypeError`, as everywhere in Python.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            unknown = [name for name in kwargs if name not in signature.parameters]
            hint = f"; {nearest(unknown[0], signature.parameters)}" if "unexpected" in str(error) and unknown else ""
            raise TypeError(f"{function.__name__}() {error}{hint}") from None
        bound.arguments.update(_validated(function, bound.arguments))
        return function(*bound.args, **bound.kwargs)

    call.__module__ = __name__.partition(".")[0]  # where it is found under its name, which pickle asks
    return call


def check_fields(given: Any) -> None:
    """Check the fields of a dataclass as it is made, in its `__post_init__`, as `checked` does arguments."""
    values = {field.name: getattr(given, field.name) for field in fields(given)}
    for name, value in _validated(type(given), values).items():
        object.__setattr__(given, name, value)


def _validated(owner: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    model = _model(owner)
    values = {name: value for name, value in given.items() if name in model.model_fields}
    found = validate(model, values, where=f"{owner.__name__}()")
    return {name: getattr(found, name) for name in values}


@functools.cache
def _model(owner: Callable[..., Any]) -> type[_Arguments]:
    """Return the model of a function's arguments, or of a dataclass's fields; keywords of any name are not in it."""
    hints = get_type_hints(owner, include_extras=True)
    parameters = inspect.signature(owner).parameters.values()
    named = [each for each in parameters if each.kind < each.VAR_KEYWORD and each.name != "self"]
    taken: dict[str, Any] = {each.name: (_taken(hints[each.name])[0], None) for each in named}
    return create_model(owner.__name__, __base__=_Arguments, **taken)


def _taken(annotation: Any) -> tuple[Any, str]:
    """Return what pydantic is to check for an annotation, and what that is in words."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:  # such as a quantity, which says itself what it takes
        return annotation, ""
    if origin in (Union, UnionType):
        return _one_of(inner)
    if origin is np.ndarray:
        (number,) = get_args(inner[1])
        return _list_of(int if issubclass(number, np.integer) else float)
    if (origin or annotation) in _SCALARS:
        return _said(*_SCALARS[origin or annotation])
    if origin is not None:
        return _mapping_of(*inner) if issubclass(origin, Mapping) else _list_of(inner[0])
    name = annotation.__name__
    made = f", as `{MAKERS[name]}` returns" if name in MAKERS else ""
    return _said(Annotated[Any, _InstanceOf(annotation)], f"{'an' if name[0] in 'AEIOU' else 'a'} {name}{made}")


def _one_of(annotations: Iterable[Any]) -> tuple[Any, str]:
    found = dict(_taken(each) for each in annotations if each is not NoneType)  # a list and an array are one
    taken, words = functools.reduce(operator.or_, found), ", or ".join(found.values())
    if len(found) > 1:
        taken, words = _said(taken, words, union=True)
    return (taken | None if NoneType in annotations else taken), words


def _mapping_of(key: Any, value: Any) -> tuple[Any, str]:
    return _said(Annotated[GenericAlias(dict, (_taken(key)[0], _taken(value)[0])), Strict(False)], "a mapping")


@functools.cache
def _list_of(element: Any) -> tuple[Any, str]:
    return _said(Annotated[GenericAlias(tuple, (_taken(element)[0], ...)), Strict(False)], "a list")


def _said(taken: Any, words: str, *, union: bool = False) -> tuple[Any, str]:
    """Let pydantic check a type, and say in words what it must be where it is of another."""

    def validate_kind(value: Any, handler: Callable[[Any], Any]) -> Any:
        try:
            return handler(value.tolist() if hasattr(type(value), "tolist") else value)
        except ValidationError as error:
            faults = [(each["loc"][union:], each) for each in error.errors()]  # of a union without the alternative
            within: list[Any] = [{**each, "loc": where} for where, each in faults if where]
            if within:  # such as in a list, which one of the alternatives takes
                raise ValidationError.from_exception_data(error.title, within) from None
            if not (union or _is_of_kind(faults[0][1]["type"])):
                raise
            raise ValueError(f"must be {words}, not {shown(value)}") from None

    return Annotated[taken, WrapValidator(validate_kind)], words


def _is_of_kind(fault: str) -> bool:
    """Whether pydantic's name of a fault says that a value is of another type, or no finite number."""
    return fault.endswith("_type") or fault in ("is_instance_of", "finite_number")
