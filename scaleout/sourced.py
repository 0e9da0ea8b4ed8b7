"""Numbers of files that stand beside their source: ``{value: 4.8 TB/s, source: "NVIDIA H200 datasheet"}``."""

from typing import Annotated, Generic, TypeVar

from pydantic import Field, StringConstraints

from scaleout.config import Config

Value = TypeVar("Value")
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Count = Annotated[int, Field(ge=1)]


class Sourced(Config, Generic[Value]):
    """A number and where it comes from."""

    value: Value
    source: Text
