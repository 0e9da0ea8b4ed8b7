"""Options that several verbs share, and how their text becomes values."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def json_option(command: Command) -> Command:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")(command)


def set_option(command: Command) -> Command:
    """Add ``--set key=value``."""
    return click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a key of the workload file; repeatable."
    )(command)


def parse_settings(settings: Sequence[str], *, option: str = "--set") -> dict[str, Any]:
    """Turn ``key=value`` texts into a mapping, values read as YAML reads them.

    Raises
    ------
    ConfigError
        If a text has no ``=``, or its value is not a plain one.
    """
    import yaml

    from scaleout.errors import ConfigError

    values: dict[str, Any] = {}
    for text in settings:
        key, separator, value = text.partition("=")
        key = key.strip()
        if not separator or not key:
            raise ConfigError(f"{option} {text!r}: write it as key=value")
        try:
            if key in values:
                raise ConfigError(f"{option} {text!r}: {key} is given twice; give it once")
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"{option} {text!r}: {value!r} is not a plain value; quote it") from None
    return values
