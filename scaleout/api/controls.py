"""What can be changed of a job in a browser, and what choosing a value makes of its inputs.

A change is a choice of prepared values, so that no text from a browser reaches the simulator.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scaleout.api.again import names_in, scaled
from scaleout.api.inputs import given_of
from scaleout.api.networks import load_topology
from scaleout.api.traces import read_trace
from scaleout.cluster.topology.topology import Topology
from scaleout.cluster.topology.what_if import names_of
from scaleout.errors import ScaleoutError
from scaleout.report.pages.view import Control
from scaleout.schedule import SCHEDULES
from scaleout.simulation.options import NETWORKS
from scaleout.study.sweep.cases import Resolver, changes_of, on_gpus
from scaleout.workloads.families import load_workload

Inputs = Mapping[str, Any]

_FACTORS = (0.125, 0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0)
_BATCHES = (0.25, 0.5, 1.0, 2.0, 4.0)
_BATCH_KEYS = ("batch_per_replica", "global_batch")


@dataclass(frozen=True)
class Offered:
    """A control, and what choosing one of its values makes of the inputs."""

    control: Control
    change: Callable[[Inputs, Any], dict[str, Any]]


def offered_of(inputs: Inputs) -> list[Offered]:
    """Return what can be changed of a job: bandwidths, latencies, batch, schedule and network model."""
    found = list[Offered]()
    topology = network_of(inputs)
    for kind in ("bandwidth", "latency"):
        for key, label in _dimensions(inputs, kind, topology) if topology is not None else ():
            found.append(_factors(key, f"{kind} of {label}", str(inputs.get(key, "1x"))))
    found += _batches(inputs)
    if "collective" not in inputs:
        now = names_in(inputs.get("schedule"))
        choices = [now, *((name,) for name in SCHEDULES if (name,) != now)]
        labels = [", ".join(now) or "the workload's", *(name for name in SCHEDULES if (name,) != now)]
        found.append(_choice("schedule", choices, labels, lambda of, to: {**of, "schedule": list(to)}))
    network = str(inputs.get("network", NETWORKS[0]))
    if topology is not None and network in NETWORKS:
        models = [network, *(name for name in NETWORKS if name != network)]
        found.append(_choice("network model", models, models, lambda of, to: {**of, "network": to}))
    return found


def _setting(key: str) -> Callable[[Inputs, Any], dict[str, Any]]:
    return lambda of, value: {**of, key: value}


def _choice(name: str, values: Sequence[Any], labels: Sequence[str], change: Callable[..., dict[str, Any]]) -> Offered:
    return Offered(Control(name, name, tuple(values), tuple(labels), 0, slider=False), change)


def _factors(name: str, label: str, now: str) -> Offered:
    """Return what multiplies a bandwidth or latency that the inputs have changed to `now`, which its labels say."""
    factor_now = float(now[:-1]) if now.endswith("x") else 1.0
    of = "" if now.endswith("x") else f" of {now}"
    labels = tuple(f"{factor * factor_now:.4g}x{of}" for factor in _FACTORS)
    control = Control(name, label, _FACTORS, labels, _FACTORS.index(1.0))
    return Offered(control, lambda inputs, factor: scaled(inputs, name, factor))


def network_of(inputs: Inputs) -> Topology | None:
    """Return the network of a job with its changes; None where the inputs name none that is known here."""
    try:
        given = on_gpus(given_of(inputs))
        name = given.get("topology")
        if name is None and isinstance(workload := given.get("workload"), str):
            name = load_workload(workload).topology
        return load_topology(name, changes_of(given)) if isinstance(name, str) else None
    except ScaleoutError:
        return None


def _dimensions(inputs: Inputs, kind: str, topology: Topology) -> list[tuple[str, str]]:
    """Return the key of the inputs that changes each dimension, and what it is called."""
    given = {key.partition(".")[2]: key for key in inputs if key.startswith(f"{kind}.")}
    if "all" in given:
        return [(given["all"], "all dimensions")]
    found = dict[str, str]()
    for names, dimension in zip(names_of(topology), topology.dimensions, strict=True):
        if dimension.size > 1:
            key = next((given[name] for name in names if name in given), f"{kind}.{names[0]}")
            found.setdefault(key, f"dimension {names[0]} ({names[1] if len(names) > 1 else dimension.kind})")
    return list(found.items())


def _batches(inputs: Inputs) -> list[Offered]:
    """Return how the batch can be changed; not at all where what the inputs name is not here, which `again` tells."""
    try:
        if "trace" in inputs:
            return _batches_of_trace(inputs)
        is_named = isinstance(inputs.get("workload"), str)
        workload = Resolver().workload(given_of(inputs)).value if is_named else None
    except ScaleoutError:
        return []
    for name in _BATCH_KEYS:
        now = getattr(workload, name, None)
        if now:
            sizes = tuple(dict.fromkeys(round(now * factor) for factor in _BATCHES if now * factor >= 1))
            control = Control(
                f"set.{name}", name.replace("_", " "), sizes, tuple(f"{n:,}" for n in sizes), sizes.index(now)
            )
            return [Offered(control, _setting(f"set.{name}"))]
    return []


def _batches_of_trace(inputs: Inputs) -> list[Offered]:
    if any(key.startswith("edit.") for key in inputs) or not read_trace(str(inputs["trace"])).is_recording:
        return []
    labels = tuple(f"{factor:g}x" for factor in _BATCHES)
    control = Control("batch", "batch", _BATCHES, labels, _BATCHES.index(1.0))
    return [Offered(control, lambda of, to: {**of, "edit.batch": f"{to:g}x"})]
