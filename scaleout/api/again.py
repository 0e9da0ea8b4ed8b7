"""What a document asked, asked again: the `inputs` of any job of the command line or of a study, with some changed."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from scaleout.api.advised import advised
from scaleout.api.collectives import CollectiveAnswer, collective
from scaleout.api.inputs import given_of, inputs_of
from scaleout.api.runs import RunAnswer, fastest, ran
from scaleout.api.traces import read_trace
from scaleout.cluster.topology.topology import load_topology
from scaleout.cluster.topology.what_if import change_network
from scaleout.config.arguments import checked
from scaleout.config.units import BYTES_PER_S, SECONDS, parse
from scaleout.errors import ConfigError, shown
from scaleout.study.comparison import compare
from scaleout.study.job import Tell
from scaleout.study.sweep.cases import Resolver, changes_of, on_gpus, stated_of

_QUANTITIES = {"bandwidth": (BYTES_PER_S, "B/s"), "latency": (SECONDS, "s")}


def run_inputs(inputs: Mapping[str, Any], tell: Tell | None = None, *, unchanged: bool = False) -> RunAnswer:
    """Simulate the job that the inputs of a document are of: of a workload, or of the traces of a folder.

    Parameters
    ----------
    inputs : mapping
        By the keys of a study's file; keys that are not of a job, as those of a search, are passed over.
    tell : callable, optional
        Called before each schedule with how many are done, of how many, and its name.
    unchanged : bool
        Whether a workload's answer also has the step without the changes of the network, and the steps of advice on
        memory, as that of `scaleout.run`.

    Raises
    ------
    ScaleoutError
        If they are of no job, or as `scaleout.run`.

    >>> run_inputs({"workload": "dlrm-128", "schedule": ["fused"]}).outcomes[0].schedule
    'fused'
    """
    given: dict[str, Any] = given_of(inputs)
    schedules = names_in(given.pop("schedule", ()))
    if "trace" in given:
        if not isinstance(given["trace"], str):
            raise ConfigError(f"inputs say trace {shown(given['trace'])}; give a folder of traces")
        edits = {key.removeprefix("edit."): str(each) for key, each in given.items() if key.startswith("edit.")}
        return read_trace(given["trace"]).edit(**edits).run(
            topology=given.get("topology"), device=given.get("device"), schedules=schedules,
            network_changes=changes_of(given), **stated_of(given), tell=tell,
        )  # fmt: skip
    if not isinstance(given.get("workload"), str):
        raise ConfigError(f"inputs say no workload, but {shown(given.get('workload'))}; give those of a job")
    given = dict(on_gpus(given))
    case = Resolver().resolve(0, given)
    if case.error:
        raise ConfigError(case.error)
    assert case.workload is not None
    assert case.topology is not None
    assert case.device is not None
    simulate = partial(
        compare, case.workload.value, device=case.device.value, options=case.options, tell=tell
    )  # fmt: skip
    found, changes, before = simulate(topology=case.topology.value, schedules=schedules), changes_of(given), None
    if unchanged and changes != changes.size_alone:
        network = change_network(load_topology(str(case.inputs["topology"])), changes.size_alone)
        before = simulate(topology=network, schedules=[fastest(found)]).outcomes[0]
    if unchanged:
        found = advised(found, given, tell)
    return RunAnswer(found, {**inputs_of({}, options=case.options), **case.inputs, "schedule": ran(found)}, before)


def collective_inputs(inputs: Mapping[str, Any]) -> CollectiveAnswer:
    """Time the collective that the inputs of a document are of; `ScaleoutError` as `scaleout.collective`."""
    given: dict[str, Any] = given_of(inputs)
    lacking = [key for key in ("bytes", "topology") if given.get(key) is None]
    if lacking:
        raise ConfigError(f"inputs say no {lacking[0]}; give those of a collective")
    known = {"group": "ranks", "chunks": "num_chunks"}
    known |= {key: key for key in ("algorithm", "network", "injection", "policy")}
    return checked(collective)(
        str(given["collective"]), given["bytes"], topology=given["topology"], network_changes=changes_of(given),
        **{name: given[key] for key, name in known.items() if given.get(key) is not None},
    )  # fmt: skip


def names_in(value: Any) -> tuple[str, ...]:
    """Return the names that an input holds: one, several or none; `ConfigError` if it holds something else."""
    found = (value,) if isinstance(value, str) else () if value is None else value
    if not (isinstance(found, list | tuple) and all(isinstance(each, str) for each in found)):
        raise ConfigError(f"inputs say {shown(value)}, not a name or a list of names; run it again")
    return tuple(found)


def scaled(inputs: Mapping[str, Any], key: str, factor: float) -> dict[str, Any]:
    """Return inputs with a bandwidth or latency multiplied, whether they change it already or not.

    >>> scaled({"bandwidth.ndr": "2x"}, "bandwidth.ndr", 0.5), scaled({"latency.0": "700 ns"}, "latency.0", 1.0)
    ({'bandwidth.ndr': '1x'}, {'latency.0': '700 ns'})
    """
    if factor == 1:
        return dict(inputs)
    now = str(inputs.get(key, "1x"))
    if now.endswith("x"):
        return {**inputs, key: f"{float(now[:-1]) * factor:.12g}x"}
    quantity, unit = _QUANTITIES[key.partition(".")[0]]
    return {**inputs, key: f"{parse(now, quantity) * factor:.12g} {unit}"}
