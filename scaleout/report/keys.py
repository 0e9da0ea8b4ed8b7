"""The keys of all kinds of files, with an example of each from a shipped file and where that is from."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from scaleout.cluster.device.spec import DeviceFile
from scaleout.cluster.topology.communication_library import LibraryFile
from scaleout.cluster.topology.files import TopologyFile
from scaleout.cluster.topology.link_type import LinkType
from scaleout.config import library
from scaleout.config.keys import Key, keys_of, value_of
from scaleout.config.yaml_files import read_yaml
from scaleout.study.sweep.study import StudyFile
from scaleout.workloads.families import FAMILIES

MODELS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "workload": tuple(FAMILIES.values()),
    "topology": (TopologyFile,),
    "link-type": (LinkType,),
    "device": (DeviceFile,),
    "study": (StudyFile,),
    "library": (LibraryFile,),
}
"""Kind of file to the models of what it may hold."""

_LONGEST = 60


@dataclass(frozen=True)
class Row:
    """A key, the families of models that have it (empty for all, or where there are none), and an example."""

    key: Key
    families: tuple[str, ...]
    example: str
    source: str

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self.key), "families": list(self.families), "example": self.example, "source": self.source}


def rows_of(kind: str) -> list[Row]:
    """Return the keys of a kind of file, in the order in which models state them; of each name and meaning one."""
    found: dict[Key, list[str]] = {}
    for model in MODELS[kind]:
        family = next((name for name, each in FAMILIES.items() if each is model), "")
        for key in keys_of(model):
            found.setdefault(key, []).append(family)
    examples = _examples(kind)
    rows = []
    for key, families in found.items():
        mine = examples.get(key.name, {})
        value, source = next((mine[each] for each in (*families, "") if each in mine), (key.example, ""))
        rows.append(Row(key, () if len(families) == len(MODELS[kind]) else tuple(families), value, source))
    return rows


def _examples(kind: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Return a key's path to its first value in a shipped file of each family, and where that value is from."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for path in _files(kind):
        values = read_yaml(path)
        family = str(values.get("kind", "")) if kind == "workload" else ""
        for name, value, source in _values(values, ""):
            if value in ("", "unset"):
                continue
            said = f"{library.name_of(path)}: {source}" if source else library.name_of(path)
            found.setdefault(name, {}).setdefault(family, (value, said))
    return found


def _files(kind: str) -> list[Path]:
    if kind == "library":
        return sorted(library.folder("topology").rglob("nccl/*.yaml"))
    plain = kind.replace("-", " ")
    return [library.find(plain, name) for name in library.names(plain)]


def _values(values: Mapping[str, Any], section: str) -> Iterator[tuple[str, str, str]]:
    """Walk a file: the path of each key, as `Key.name` has it, its value in short, and its own source."""
    for key, value in values.items():
        name = f"{section}{key}"
        if isinstance(value, Mapping) and "value" in value:
            yield name, f"{{value: {_short(value['value'])}, source: ...}}", str(value.get("source", ""))
            continue
        yield name, _short(value), ""
        if isinstance(value, Mapping):
            yield from _values(value, f"{name}.")
        inner = {".NAME": value.values()} if isinstance(value, Mapping) else {"[]": value}
        for below, entries in inner.items():
            for each in entries if isinstance(value, Mapping | list) else ():
                if isinstance(each, Mapping):
                    yield from _values(each, f"{name}{below}.")


def _short(value: Any) -> str:
    """Write a value in short; what holds more keys has an example of each."""
    if isinstance(value, Mapping) or (isinstance(value, list) and any(isinstance(each, Mapping) for each in value)):
        plain = isinstance(value, Mapping) and not any(isinstance(each, Mapping | list) for each in value.values())
        words = value_of(value) if plain else ""
    else:
        words = value_of(value)
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."
