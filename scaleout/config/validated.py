"""Values of a YAML file to validated, frozen ones, or to a message of what is wrong with the file.

A number can be given with its source: ``{value: 4.8 TB/s, source: "NVIDIA H200 datasheet"}``. Knows no key's meaning.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import core_schema

from scaleout.config.reading import nearest, renamed, with_new_names
from scaleout.config.yaml_files import read_yaml
from scaleout.errors import ConfigError, shown

__all__ = ["Config", "Model", "nearest", "read_yaml", "renamed", "validate", "with_new_names"]


class Config(BaseModel):
    """Base of every validated file: unknown keys are refused, values are frozen.

    `RENAMED` maps a key's old name to its new one; for one release a file may still hold the old one, with a warning.
    `DESCRIBED` is as what `scaleout show --keys` describes its keys, if it does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)  # a run needs few of the files there are
    RENAMED: ClassVar[Mapping[str, str]] = {}
    DESCRIBED: ClassVar[str] = ""

    @model_validator(mode="before")
    @classmethod
    def _with_new_names(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        return with_new_names(values, cls.RENAMED)


Model = TypeVar("Model", bound=BaseModel)
_MOST_FAULTS = 20
_MOST_LISTED = 24
_CONTAINERS = {
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "mapping of keys to values"),
    **dict.fromkeys(("list_type", "tuple_type"), "list"),
}
"""Types of pydantic's faults to what must stand there."""


def validate(model: type[Model], values: Mapping[str, Any], *, where: str) -> Model:
    """Build a model from plain values, or say which key is wrong and what would be right.

    `where` is the file or option that the values are from. The `ConfigError` has every fault found, one a line.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        found = error.errors(include_url=False)
        faults = [_describe(model, dict(fault)) for fault in found[:_MOST_FAULTS]]
        faults += [f"and {len(found) - _MOST_FAULTS} more"] if len(found) > _MOST_FAULTS else []
        raise ConfigError(f"{where}: " + "\n  ".join(faults)) from None


def _describe(model: type[BaseModel], fault: dict[str, Any]) -> str:
    of_key = fault["loc"][-1:] == ("[key]",)
    path = "key of " * of_key + ".".join(str(part) for part in fault["loc"][: -2 if of_key else None])
    if fault["type"] == "extra_forbidden":
        known, described = _keys_at(model, fault["loc"][:-1]), getattr(model, "DESCRIBED", "")
        hint = nearest(str(fault["loc"][-1]), known)
        if described and len(known) > _MOST_LISTED and hint.startswith("known: "):
            hint = f"none of its {len(known)} keys is near it; `scaleout show --keys {described}` says of what each is"
        return f"unknown key {shown(path)}; {hint}"
    if fault["type"] == "missing":
        return f"key {path!r} is missing; add it"
    if fault["type"] in _CONTAINERS:
        given = "null" if fault["input"] is None else shown(fault["input"])
        return f"{path}: must be a {_CONTAINERS[fault['type']]}, not {given}"
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{path}: {message}" if path else message
    if fault["type"] == "less_than_equal":
        most = fault["ctx"]["le"]
        said = f"{most:,}" if isinstance(most, int) else f"{most:g}"
        return f"{path}: {shown(fault['input'])} is too many or too much; give at most {said}"
    return f"{path}: {_in_our_words(message)}, not {shown(fault['input'])}"


def _in_our_words(message: str) -> str:
    """Say pydantic's message of a value in the words of all others.

    >>> _in_our_words("Input should be a valid integer, got a number with a fractional part")
    'must be a whole number'
    """
    message = message.partition(", got ")[0].partition(", unable ")[0]
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours)
    return message


_WORDS = {
    "Input should": "must",
    "String should": "must",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "a text",
    "a valid boolean": "true or false",
}


def _keys_at(model: type[BaseModel], location: tuple[str | int, ...]) -> list[str]:
    """Keys that a (nested) model knows at a location of pydantic's error."""
    candidates = [model]
    for part in location:
        inner = [
            annotation
            for candidate in candidates
            if str(part) in candidate.model_fields
            for annotation in _models_in(candidate.model_fields[str(part)].annotation)
        ]
        candidates = inner or candidates
    return [field.alias or name for candidate in candidates for name, field in candidate.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)]


Value = TypeVar("Value")
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class WithSource:
    """A number with its source, as ``{value: ..., source: ...}``; only the value is kept.

    One that was not measured may say `between` which two values it is, see `brackets_in`.
    """

    def __get_pydantic_core_schema__(self, number: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        value = handler(number)
        fields = {
            "value": core_schema.typed_dict_field(value),
            "source": core_schema.typed_dict_field(core_schema.str_schema(strip_whitespace=True, min_length=1)),
            "between": core_schema.typed_dict_field(
                core_schema.list_schema(value, min_length=2, max_length=2), required=False
            ),
        }
        cited = core_schema.no_info_after_validator_function(
            _value_between,
            core_schema.typed_dict_schema(fields, extra_behavior="forbid"),
            serialization=core_schema.simple_ser_schema("any"),
        )
        return core_schema.no_info_before_validator_function(_with_its_source, cited)


def _with_its_source(given: Any) -> Any:
    if isinstance(given, Mapping):
        return given
    wanted = "null" if given is None else shown(given)
    raise ValueError(f"must be {{value: ..., source: ...}}, a number with where it is from, not {wanted}")


def _value_between(given: dict[str, Any]) -> Any:
    low, high = given.get("between", (given["value"], given["value"]))
    if not low <= given["value"] <= high:
        raise ValueError(f"value {given['value']} is not between {low} and {high}; give the smaller one first")
    return given["value"]


def brackets_in(values: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return, for each number of a section that says `between` which two it is, the section with either in its place.

    >>> brackets_in({"call": {"value": 2, "source": "assumed", "between": [1, 4]}, "size": 3})["call"][1]
    {'call': {'value': 4, 'source': 'assumed'}, 'size': 3}
    """
    found = {}
    for key, given in values.items():
        if isinstance(given, Mapping) and "between" in given:
            low, high = ({**values, key: {"value": end, "source": given["source"]}} for end in given["between"])
            found[key] = (low, high)
    return found


Cited = Annotated[Value, WithSource()]
"""A number of a file with its source; see `sources_in`."""


def sources_in(values: Mapping[str, Any], section: str = "") -> dict[str, str]:
    """Return the source of each number that has one, by its key; in a section by ``section.key``."""
    found: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and "source" in value:
            found[f"{section}{key}"] = value["source"].strip()
        elif isinstance(value, Mapping):
            found |= sources_in(value, section or f"{key}.")
    return found
