"""`scaleout list`: the names that other verbs take, each with what it is, for how many ranks, and on what."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli import completion
from scaleout.cli.options import json_option
from scaleout.cli.printing import say_json
from scaleout.errors import ConfigError

if TYPE_CHECKING:
    from scaleout.cluster.topology.topology import Topology

Entry = dict[str, Any]
"""A `name`, its `description`, and where it has them `ranks`, `device` and other columns."""


_ALSO = {
    **dict.fromkeys(("model", "models", "workload"), "workloads"),
    **dict.fromkeys(("device", "gpu", "gpus"), "devices"),
    **dict.fromkeys(("network", "networks", "topology"), "topologies"),
}
"""Other words for kinds."""


_NEAR = 0.6
"""How alike, at least, is the name of whatever kind that a word may mean; `nonsense` and `send` are at 0.5."""


@completion.one_of
def _names(ctx: click.Context, _: str) -> Iterable[str]:
    """Complete the names of a kind."""
    kind = _ALSO.get(ctx.params["kind"], ctx.params["kind"])
    return (entry["name"] for entry in KINDS[kind]()) if kind in KINDS else ()


@click.command(name="list")
@click.argument("kind", required=False, metavar="[KIND]", shell_complete=completion.one_of(lambda *_: KINDS))
@click.argument("word", required=False, shell_complete=_names)
@json_option
def list_names(kind: str | None, word: str | None, as_json: bool) -> None:
    """List the names that other verbs take, with what each is; by default of all kinds.

    KIND is workloads, topologies, link-types, devices, studies, schedules, strategies, frameworks, pipelines,
    collectives, algorithms (of collectives) or operators. A WORD leaves those that have it in their line; it may stand
    alone.

    Examples: scaleout list workloads; scaleout list workloads mixtral; scaleout list h200.
    """
    import difflib

    from scaleout.config.reading import nearest

    kind = _ALSO.get(kind or "", kind)
    if kind is not None and kind not in KINDS:
        if word is not None:
            raise ConfigError(f"list {kind}: no such kind; {nearest(kind, KINDS)}")
        kind, word = None, kind
    found = {each: _having(word, KINDS[each]()) for each in (KINDS if kind is None else (kind,))}
    if word is not None and not any(found.values()):
        names = [entry["name"] for each in ((kind,) if kind else KINDS) for entry in KINDS[each]()]
        near = difflib.get_close_matches(word[:100], [*names, *(() if kind else KINDS)], n=1, cutoff=_NEAR)
        hint = nearest(word, near or names if kind else near or KINDS)
        raise ConfigError(f"no {kind or 'kind and no name'} has {word!r}; {hint}")
    if as_json:
        from scaleout.report.documents import document

        say_json(document("list", {"listed": found}, inputs={"kind": kind, "word": word}))
        return
    from scaleout.cli.console import print_table

    for each, entries in found.items():
        if entries:
            columns = list(dict.fromkeys(column for entry in entries for column in entry))
            rows = [[_cell(entry.get(column, "")) for column in columns] for entry in entries]
            print_table(each, columns, rows, left=len(columns))


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _having(word: str | None, entries: Iterable[Entry]) -> list[Entry]:
    """Keep the entries that have a word, in any case of letters."""
    sought = (word or "").lower()
    return [entry for entry in entries if sought in " ".join(map(str, entry.values())).lower()]


def _workloads() -> Iterable[Entry]:
    from scaleout.config import library
    from scaleout.workloads.families import load_workload

    for name in library.names("workload"):
        found = load_workload(name)
        about = {"kind": found.kind, "ranks": found.num_ranks, "device": found.device, "topology": found.topology}
        yield {"name": name, **about, "description": found.description}


def _topologies() -> Iterable[Entry]:
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.config import library

    for name in library.names("topology"):
        found = load_topology(name)
        yield {"name": name, "ranks": found.num_ranks, "description": _dimensions(found)}


def _dimensions(found: "Topology") -> str:
    """Say of which dimensions a topology is, innermost first, and what serves its collectives."""
    sizes = (f"{each.kind}({each.size}{f', {each.link}' if each.link else ''})" for each in found.dimensions)
    return " x ".join(sizes) + (f"; {found.library.name}" if found.library else "")


def _link_types() -> Iterable[Entry]:
    from scaleout.cluster.topology.link_type import load_link_type
    from scaleout.config import library
    from scaleout.config.units import format_bytes_per_s, format_seconds

    for name in library.names("link type"):
        found = load_link_type(name)
        speed = f"{format_bytes_per_s(found.bytes_per_s)} each way, {format_seconds(found.latency_s)}"
        yield {"name": name, "description": f"{found.link}: {speed}" if found.link else speed}


def _devices() -> Iterable[Entry]:
    from scaleout.cluster.device.kernel_times.measured import table_of
    from scaleout.cluster.device.spec import load_device
    from scaleout.config import library
    from scaleout.config.units import counted, format_bytes, format_bytes_per_s

    for name in library.names("device"):
        found = load_device(name)
        memory = f"{format_bytes(found.memory_bytes)} at {format_bytes_per_s(found.memory_bytes_per_s)}"
        measured = {op for op, _ in table_of(found).rows} if found.kernel_files else set[str]()
        others = "alike ones" if found.efficiency_from == found.name else found.efficiency_from
        known = f"of {counted(len(measured), 'operation')} measured, others " if measured else ""
        kernels = f"kernels {known}estimated from {others}"
        yield {"name": name, "description": f"{found.title}; {memory}; {kernels}"}


def _studies() -> Iterable[Entry]:
    from scaleout.config import library
    from scaleout.study.sweep.study import load_study

    for name in library.names("study"):
        found = load_study(name)
        yield {"name": name, "cases": found.size, "description": found.title}


def _collectives() -> Iterable[Entry]:
    from scaleout.network import collectives

    for kind in collectives.KINDS:
        able = [each.name for each in collectives.ALGORITHMS.values() if kind in each.schedules]
        yield {"name": kind, "description": f"algorithms {', '.join(able)}"}


def _algorithms() -> Iterable[Entry]:
    from scaleout.network import collectives

    for name, each in collectives.ALGORITHMS.items():
        yield {"name": name, "NCCL": each.nccl, "description": each.summary, "collectives": ", ".join(each.schedules)}


def _schedules() -> Iterable[Entry]:
    from scaleout.schedule import SCHEDULES

    return ({"name": name, "description": each.summary} for name, each in SCHEDULES.items())


def _strategies() -> Iterable[Entry]:
    from scaleout.study.strategies import STRATEGIES

    return ({"name": name, "description": each.description, "source": each.source} for name, each in STRATEGIES.items())


def _frameworks() -> Iterable[Entry]:
    from scaleout.workloads.config.frameworks import FRAMEWORKS

    return ({"name": name, "description": each.summary, "source": each.source} for name, each in FRAMEWORKS.items())


def _pipelines() -> Iterable[Entry]:
    from scaleout.workloads.pipeline import PIPELINES

    return ({"name": each.name, "description": each.description, "source": each.source} for each in PIPELINES.values())


def _operators() -> Iterable[Entry]:
    from scaleout.schedule.fusion import OPERATORS

    for name, each in OPERATORS.items():
        yield {"name": name, "description": each.summary, "keys": ", ".join(each.settings.model_fields)}


KINDS: Mapping[str, Callable[[], Iterable[Entry]]] = {
    "workloads": _workloads,
    "topologies": _topologies,
    "link-types": _link_types,
    "devices": _devices,
    "studies": _studies,
    "schedules": _schedules,
    "strategies": _strategies,
    "frameworks": _frameworks,
    "pipelines": _pipelines,
    "collectives": _collectives,
    "algorithms": _algorithms,
    "operators": _operators,
}
"""What is listed, and how."""
