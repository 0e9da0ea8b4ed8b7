"""Answers to documents: what every command prints with ``--json`` and writes as ``summary.json``.

A document says what it is (`schema`), by which release and command it was made, from which inputs and by which models;
beside that stand the results. A quantity has one name in all documents, see `vocabulary`: what is called otherwise
within the package is renamed here.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import scaleout
from scaleout.errors import ConfigError, shown

SCHEMA = 3
"""Version of the vocabulary: a name that is taken away, or means something else, makes another."""

_STEP = {"step_s": "makespan_s", "exposed_s": "exposed_by_axis_s"}
_MEMORY = {
    "peak_bytes": "peak_memory_bytes",
    "capacity_bytes": "memory_capacity_bytes",
    "reserved_bytes": "memory_reserved_bytes",
    "bytes_of": "memory_by_kind_bytes",
    "place": "pipeline_rank",
}
_COST = {
    "device_j": "device_joules",
    "node_j": "node_joules",
    "network_j": "network_joules",
    "total_j": "joules",
    "device_w": "device_watts",
    "network_w": "network_watts",
    "each_usd": "each_dollars",
    "each_w": "each_watts",
}

NAMES: Mapping[str, Mapping[str, str]] = {
    "run": {
        **_STEP,
        **_MEMORY,
        **_COST,
        "steps": "num_steps",
        "results.ranks": "rank_ends",
        "rank_ends.ranks": "members",
        "waits.ranks": "members",
    },
    "search": {
        **_STEP,
        **_MEMORY,
        "memory_bytes": "memory_capacity_bytes",
        "fastest.memory_bytes": "memory_by_kind_bytes",
        "front.memory_bytes": "memory_by_kind_bytes",
        "overlap.exposed_s": "exposed_by_reason_s",
        "simulated": "simulations",
        "simulations.simulated": "done",
    },
    "goodput": {
        **_MEMORY,
        ".interval_s": "checkpoint_interval_s",
        "step_s": "makespan_s",
        "energy_j": "training_joules",
        "steps": "num_steps",
    },
    "buckets": {**_MEMORY, "step_s": "makespan_s", "exposed_s": "exposed_communication_s", "way": "algorithm"},
    "strategies": {**_STEP, "memory_bytes": "peak_memory_bytes"},
    "collective": {
        "left_out": "algorithms_left_out",
        "decisions": "by_size",
        "backends": "compared",
        "best": "backend",
    },
    "operator": {"timeline.slices": "sampled_slices"},
    "track": {"total_s": "time_s", "memory_bytes": "traffic_by_kind_bytes"},
    "diff": {
        "step": "makespan_parts",
        "busy": "by_kind",
        "phases": "by_phase",
        "operations": "by_operation",
        "collectives": "by_collective",
    },
    "study": {
        "failures": "failed_for",
        "fastest": "fastest_cases",
        "fastest_cases.inputs": "varied",
        "cheapest_cases.inputs": "varied",
        "version": "build",
    },
    "astra": {"physical.topology": "physical_network"},
    "show": {
        "peak_memory_bytes": "memory_by_kind_bytes",
        "contention": "resource_use",
        "version": "chakra_version",
        "work_groups": "work_group_costs",
        ".kernels": "kernels_by_name",
        ".communication": "communication_by_name",
        "process_groups.members": "of_ranks",
        "tables_of_ranks.ranks": "of_ranks",
        "protocols.collectives": "serves",
        "backends.calls": "concurrency",
    },
    "import model": {"workload": "keys"},
}
"""Command to names within the package and what each is called; a dot leads into what stands before it."""


def document(
    command: str,
    found: Mapping[str, Any],
    *,
    inputs: Mapping[str, Any],
    models: Sequence[str] = (),
    answer: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the document of an answer.

    Parameters
    ----------
    command : str
        Of the command line, such as ``run``.
    found : mapping
        The results, as plain values.
    inputs : mapping
        What was asked for, by the keys of a study's file, with all that was left to defaults.
    models : sequence of str
        What answered, as `Provenance.models` says it.
    answer : mapping, optional
        What the terminal's box says: its rows, names to words, in their order.

    >>> document("goodput", {"steps": 2.0}, inputs={"workload": "llama-3-8b"})["num_steps"]
    2.0
    """
    envelope = {
        "schema": f"scaleout/{command.replace(' ', '-')}/{SCHEMA}",
        "version": scaleout.__version__,
        "command": command,
        "inputs": {key: list(each) if isinstance(each, tuple) else each for key, each in inputs.items()},
        "models": list(models),
        **({} if answer is None else {"answer": dict(answer)}),
    }
    renamed = _renamed(found, NAMES.get(command, {}), "")
    return {**envelope, **{name: value for name, value in renamed.items() if name not in envelope}}


def check_version(found: Mapping[str, Any], *, where: str) -> None:
    """Raise `ConfigError` if a document says that it is of another version of the vocabulary, or none of ours."""
    says, kind = found.get("schema"), str(found.get("command", "")).replace(" ", "-")
    if says is not None and says != f"scaleout/{kind}/{SCHEMA}":
        raise ConfigError(
            f"{where}: its schema is {shown(says)}, of which this release reads version {SCHEMA}; run it again, or "
            f"open it with the release that wrote it ({shown(found.get('version'))})"
        )


def _renamed(value: Any, names: Mapping[str, str], within: str) -> Any:
    """Return a value with the names of objects within it, which stands under a name itself."""
    if isinstance(value, list | tuple):
        return [_renamed(each, names, within) for each in value]
    if not isinstance(value, Mapping):
        return value
    found = {}
    for old, each in value.items():
        new = names.get(f"{within}.{old}", names.get(old, old))
        if new == old or new not in value:
            found[new] = _renamed(each, names, new)
    return found
