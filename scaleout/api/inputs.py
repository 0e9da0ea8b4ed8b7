"""What a job was asked with, as plain values by the keys of a study's file; what was left to defaults is filled in."""

from collections.abc import Mapping, Sequence
from typing import Any

from scaleout.cluster.topology.what_if import NetworkChanges
from scaleout.errors import ConfigError, shown
from scaleout.simulation.options import SimulationOptions
from scaleout.study.sweep.grid import Value, value_of

_KEYS = {"injection_bytes_per_s": "injection", "broken": "break"}
"""Attribute to the key of a study's file, where that is called otherwise."""


def inputs_of(
    names: Mapping[str, Any],
    *,
    settings: Mapping[str, Any] | None = None,
    changes: NetworkChanges | None = None,
    options: SimulationOptions | None = None,
    schedules: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the inputs of a job.

    Parameters
    ----------
    names : mapping
        Workload, topology and device, or a trace; what has a `name` of its own is called so.
    settings : mapping, optional
        Keys of the workload that were changed.
    changes, options, schedules
        Of the network, of the simulation, and those that were compared; left out where there are none.

    >>> inputs_of({"workload": "dlrm-128"}, settings={"global_batch": 64}, schedules=["fused"])
    {'workload': 'dlrm-128', 'set.global_batch': 64, 'schedule': ['fused']}
    """
    found = {key: getattr(value, "name", value) for key, value in names.items() if value is not None}
    found |= {f"set.{key}": value for key, value in (settings or {}).items()}
    found |= changes_as_inputs(changes or NetworkChanges())
    for name, value in vars(options).items() if options is not None else ():
        if isinstance(value, Mapping):  # kinds of collectives to algorithms
            found |= {f"algorithm.{kind}": each for kind, each in value.items()}
        elif value is not None:
            found[_KEYS.get(name, name)] = value
    return {**found, **({"schedule": list(schedules)} if schedules else {})}


def changes_as_inputs(changes: NetworkChanges) -> dict[str, Any]:
    """Return changes of a network as inputs, such as ``bandwidth.ndr``."""
    found: dict[str, Any] = {}
    for name, value in vars(changes).items():
        if not value:
            continue
        if isinstance(value, tuple) and isinstance(value[0], tuple):
            found |= {f"{name}.{what}": to for what, to in value}
        else:
            found[_KEYS.get(name, name)] = value
    return found


def stated_as_inputs(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a simulation that are given, as keywords of `options_for`, as inputs."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name == "algorithms":
            found |= {f"algorithm.{kind}": each for kind, each in (value or {}).items()}
        elif name == "injection_bytes_per_s" and value is not None:
            found["injection"] = f"{value!r} B/s"
        elif value is not None:
            found[name] = value
    return found


def given_of(inputs: Mapping[str, Any]) -> dict[str, Value]:
    """Return the inputs of a document as those of a case; `ConfigError` if one is a mapping, or no value at all."""
    found: dict[str, Value] = {}
    for key, each in inputs.items():
        try:
            found[key] = value_of(each)
        except ValueError as error:
            raise ConfigError(f"inputs say {shown(key)}: {error}") from None
    return found
