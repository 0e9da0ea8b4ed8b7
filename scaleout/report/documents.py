"""Answers to documents: what every command prints with ``--json`` and writes as ``summary.json``.

A document says what it is (`schema`), by which release and command it was made, from which inputs and by which models;
beside that stand the results. A quantity has one name in all documents, see `vocabulary`: what is called otherwise
within the package is renamed here, and stands under its old name as well for one release.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import scaleout

SCHEMA = 1
"""Version of the vocabulary: a name that is taken away, or means something else, makes another."""

_STEP = {"step_s": "makespan_s", "exposed_s": "exposed_by_axis_s"}
_MEMORY = {
    "peak_bytes": "peak_memory_bytes",
    "capacity_bytes": "memory_capacity_bytes",
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

RENAMED: Mapping[str, Mapping[str, str]] = {
    "run": {
        **_STEP,
        **_MEMORY,
        **_COST,
        "steps": "num_steps",
        "results.ranks": "rank_ends",
        "rank_ends.ranks": "members",
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
        ".interval_s": "checkpoint_interval_s",
        "step_s": "makespan_s",
        "energy_j": "training_joules",
        "steps": "num_steps",
    },
    "buckets": {"step_s": "makespan_s", "exposed_s": "exposed_communication_s", "way": "algorithm"},
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
    "show": {"peak_memory_bytes": "memory_by_kind_bytes", "contention": "resource_use", "version": "chakra_version"},
    "import model": {"workload": "keys"},
}
"""Command to names within the package, or old ones, and what each is called; a dot leads into what stands before it."""


def document(
    command: str,
    found: Mapping[str, Any],
    *,
    inputs: Mapping[str, Any],
    models: Sequence[str] = (),
    old_names: bool = True,
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
    old_names : bool
        Whether what was renamed stands under its old name as well.

    >>> document("goodput", {"steps": 2.0}, inputs={"workload": "llama-3-8b"})["num_steps"]
    2.0
    """
    envelope = {
        "schema": f"scaleout/{command.replace(' ', '-')}/{SCHEMA}",
        "version": scaleout.__version__,
        "command": command,
        "inputs": {key: list(each) if isinstance(each, tuple) else each for key, each in inputs.items()},
        "models": list(models),
    }
    renamed = dict(_entries(found, RENAMED.get(command, {}), "", old_names=old_names))
    return {**envelope, **{name: value for name, value in renamed.items() if name not in envelope}}


def _entries(
    value: Mapping[str, Any], names: Mapping[str, str], within: str, *, old_names: bool
) -> Iterator[tuple[str, Any]]:
    """Yield each thing of an object under its name, and under its old one."""
    for old, each in value.items():
        new = names.get(f"{within}.{old}", names.get(old, old))
        found = _renamed(each, names, new, old_names=old_names)
        if new == old or new not in value:
            yield new, found
        if new != old and old_names:
            yield old, found


def _renamed(value: Any, names: Mapping[str, str], within: str, *, old_names: bool) -> Any:
    if isinstance(value, list | tuple):
        return [_renamed(each, names, within, old_names=old_names) for each in value]
    if isinstance(value, Mapping):
        return dict(_entries(value, names, within, old_names=old_names))
    return value
