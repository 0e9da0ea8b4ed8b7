"""Texts that hold arguments of Megatron-LM to names and values: shell scripts, and YAML of Megatron-LM or its Bridge.

A script is read, not run: variables that it assigns once are put in their places, comments are left out, and every
option that stands anywhere in it counts. Which options mean what, `megatron` knows.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scaleout.config.documents import number, whole
from scaleout.config.yaml_files import read_yaml
from scaleout.errors import ConfigError, shown

_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))#.*$")
_ASSIGNMENTS = re.compile(r"(?m)^[ \t]*(?:(?:export[ \t]+)?[A-Za-z_]\w*=[^\s();]+(?:[ \t;]+|$))+$")
"""A line of nothing else: `TP=4; PP=2`."""
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=([^\s();]+)")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^{}]*))?\}|\$(\w+)")
_PRODUCT = re.compile(r"\$\(\(\s*(\d+)\s*\*\s*(\d+)\s*\)\)")
_OPTION = re.compile(r"--([A-Za-z][\w-]*)(?:=(.+))?")
_BRANCH = re.compile(r"(?m)^\s*(?:if|case)\s")
_ENDS = re.compile(r"--|\$\{?\w+\[|[|&;<>]|2>|\w+\+?=$")
"""What follows a flag: another option, a list, or the end of a command."""
_LONGEST_VALUE = 200
"""Characters of a variable's value that is put in its place."""
MOST_BYTES = 2**18
"""Of a script."""
_MOST_ROUNDS = 8
"""Of variables within variables."""

SECTIONS = ("model", "train", "ddp", "optimizer", "mixed_precision", "comm_overlap", "dist")
"""Of Megatron-Bridge's configuration, those that say what a step costs; of one key the first section's counts."""

_WORDS = ("optimizer", "mixed_precision")
"""Sections that may be a word instead, as arguments of Megatron-LM are."""


class Several(NamedTuple):
    """Values of an option that stands more than once."""

    values: tuple[Any, ...]


def arguments_of_script(text: str) -> tuple[dict[str, Any], list[str]]:
    """Return options and their values, a flag's being true, and what a user is to be told."""
    plain = _with_values(_COMMENT.sub("", text).replace("\\\n", "\n"))
    found: dict[str, Any] = {}
    for name, value in _options(plain):
        known = found.get(name, value)
        several = known.values if isinstance(known, Several) else (known,)
        found[name] = known if value in several else Several((*several, value))
    notes = ["the script's branches are not run: the options of all of them count"] if _BRANCH.search(plain) else []
    return found, notes


def _options(text: str) -> Iterator[tuple[str, Any]]:
    """Yield options with the word behind each, if it stands in the same line and is none that ends a list.

    A number behind the word is of it as well: ``1 000`` is a text, not 1.
    """
    for line in re.sub(r"[\"'()]", " ", text).split("\n"):
        words = line.split()
        for word, following, more in zip(words, [*words[1:], "--"], [*words[2:], "--", "--"], strict=False):
            option = _OPTION.fullmatch(word)
            if option is None:
                continue
            value = option[2] or ("" if _ENDS.match(following) else following)
            value += f" {more}" if value and not option[2] and more[:1].isdigit() and more.isdigit() else ""
            yield option[1].replace("-", "_"), _typed(value)


def _typed(value: str) -> Any:
    """Return a number, or a text as it is; nothing is a flag that is set."""
    if not value:
        return True
    if (found := whole(value)) is not None:
        return found
    return value if (real := number(value)) is None else real


def _with_values(text: str) -> str:
    """Put variables that are assigned once in their places, and multiply what is multiplied."""
    values: dict[str, str | None] = {}
    for name, given in _ASSIGNED.findall("\n".join(_ASSIGNMENTS.findall(text))):
        own = _VARIABLE.fullmatch(value := given.strip("\"'"))
        value = own[2] if own and own[1] == name and own[2] is not None else value  # a default for the environment's
        values[name] = value if values.get(name, value) == value else None

    def put(match: re.Match[str]) -> str:
        value = values.get(match[1] or match[3], match[2])
        return match[0] if value is None or len(value) > _LONGEST_VALUE else value

    for _ in range(_MOST_ROUNDS):
        text, before = _PRODUCT.sub(lambda m: str(int(m[1][:18]) * int(m[2][:18])), _VARIABLE.sub(put, text)), text
        if text == before or len(text) > 2 * 10**6:
            break
    return text


def arguments_of_yaml(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a YAML file, those of its sections as if they stood on top, and what a user is to be told."""
    values = read_yaml(path)
    if "kind" in values:
        raise ConfigError(f"{path}: is a workload already (it has a kind); give it to `scaleout run` or search")
    found: dict[str, Any] = {}
    for section in SECTIONS:
        inner = values.get(section)
        if isinstance(inner, Mapping):
            found = {**_plain(inner), **found}
        elif section in _WORDS and isinstance(inner, str):
            found[section] = inner
        elif inner is not None:
            raise ConfigError(f"{path}: {section} is {shown(inner)}; it is a section, whose keys stand below it")
    left = [key for key, value in values.items() if isinstance(value, Mapping) and key not in SECTIONS]
    top = {key: value for key, value in _plain(values).items() if key not in (*SECTIONS, *left)}
    notes = [f"sections not read, as they do not change what a step costs: {', '.join(map(str, left))}"] if left else []
    return {**top, **found}, notes


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a section with its keys in one spelling, without the names of Python's classes."""
    return {str(key).replace("-", "_"): value for key, value in values.items() if not str(key).startswith("_")}
