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
from scaleout.workloads.families import FAMILIES, load_workload

MODELS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "workload": tuple(FAMILIES.values()),
    "topology": (TopologyFile,),
    "link-type": (LinkType,),
    "device": (DeviceFile,),
    "study": (StudyFile,),
    "library": (LibraryFile,),
}
"""Kind of file to the models of what it may hold."""

LIKE = Key(
    "like", "text", "", "unset", "name or file of another one; this file then holds the keys that differ", ""
)  # fmt: skip
"""Read before a file is checked, and so no key of a model; of workloads, topologies and devices."""

YOURS = "yours"
"""Where an example is from that no shipped file has: what the job is, is the user's to say."""

_MADE_UP: Mapping[str, Mapping[str, str]] = {
    "workload": {
        "name": "my-model", "left_out": "the vision tower", "context_parallel": "2",
        "rank_order": "tensor, data, context, pipeline", "batch_per_replica": "32", "image_channels": "1",
        "tables[].count": "26", "column_width": "64", "microbatch_group": "8", "recompute_layers": "4",
        "shard_ranks": "8", "prefetch": "2", "prefetch_backward": "2", "positions": "2048", "logged_losses": "1",
        "imbalance": "0.52", "imbalance_seed": "1", "expert_tensor_parallel": "1", "state_size": "64",
        "state_head_size": "128", "state_groups": "1", "expand": "1", "convolution": "2", "chunk": "128",
        "channels": "16", "classes": "100",
    },
    "topology": {
        "dimensions[].file": "network.graphml", "startup_source": "measured", "changes": "{break: [3-4]}",
        "changes.degrade": "{3-4: 0.5}", "changes.break": "[3-4]", "changes.slow": "{5: 1.3}",
        "changes.source": "the cluster's log",
    },
    "device": {"kernel_models": "[measured, interpolated, analytical]"},
    "study": {
        "label": "today", "gpus": "[8, 16, 32]", "host": "[none, eager]", "clocks": "unthrottled",
        "placement": "[linear, transposed]",
        "nodes": "[2, 4, 8]", "nic_down": "3", "break": "3-4", "policy": "fastest", "injection": "400 Gb/s",
        "network": "[alpha_beta, link]", "contention": "[true, false]", "ideal": "true", "taper": "{1: [1:1, 2:1]}",
        "degrade": "{3-4: 0.5}", "slow": "{5: [1.1, 1.3]}", "algorithm": "{all_reduce: [ring, hierarchical_tree]}",
        "sample": "{count: 1000}", "sample.count": "1000", "sample.seed": "1", "goodput": "{checkpoint: 60 s}",
        "goodput.jitter": "0.02", "goodput.stragglers": "0.01", "goodput.straggler_slowdown": "1.2",
        "goodput.seed": "1", "within": "0.1",
    },
}  # fmt: skip
"""Kind of file to examples of keys that no shipped one has, and of which the key's own type says none."""

_RATHER = {"gradient_bucket": "100 MiB"}
"""Keys of which shipped files have an unusual value alone, such as a bucket of one byte."""

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
        if kind in ("workload", "topology", "device"):
            found.setdefault(LIKE, []).append(family)
    examples = _examples(kind)
    rows = []
    for key, families in found.items():
        mine = examples.get(key.name, {})
        made_up = (_MADE_UP.get(kind, {}).get(key.name) or key.example, YOURS)
        value, source = next((mine[each] for each in (*families, "") if each in mine), made_up)
        value, source = (_RATHER[key.name], YOURS) if key.name in _RATHER else (value, source)
        rows.append(Row(key, () if len(families) == len(MODELS[kind]) else tuple(families), value, source))
    return rows


def _examples(kind: str) -> dict[str, dict[str, tuple[str, str]]]:
    """Return a key's path to its first value in a shipped file of each family, and where that value is from."""
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for path in _files(kind):
        values = read_yaml(path)
        family = load_workload(path).kind if kind == "workload" else ""
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
    """Write a value in short, within others in braces and brackets as in a file of one line."""
    words = _flow(value) if isinstance(value, Mapping | list) else value_of(value)
    return words if len(words) <= _LONGEST else f"{words[: _LONGEST - 3]}..."


def _flow(value: Any) -> str:
    """Write a value as YAML in a line; of a number with its source, the number."""
    if isinstance(value, Mapping):
        if "value" in value:
            return _flow(value["value"])
        return f"{{{', '.join(f'{key}: {_flow(each)}' for key, each in value.items())}}}" if value else ""
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]" if value else ""
    return value_of(value)
