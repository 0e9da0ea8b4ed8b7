"""What is known of a device, as options of a simulation: a job and what a user says of it to `SimulationOptions`.

The engine, validation and the papers' figures state their options. Questions of users start from what a step of the job
meets on the device: its host, where the framework issues calls one by one and the device's file has their costs;
sustained clocks, where the file says what the device may draw; contention, where the library says what it takes.
`ideal` leaves all of it out. What is given by name wins. See docs/decisions/037-realistic-by-default.md.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scaleout.cluster.device.host import unknown_costs
from scaleout.cluster.device.spec import Device
from scaleout.errors import ConfigError, shown
from scaleout.simulation.options import SimulationOptions, changed
from scaleout.workloads.config.family import ModelFamily

IDEAL: Mapping[str, Any] = {"host": "none", "clocks": "unthrottled", "contention": False}
"""What `ideal` stands for."""


def known_of(work: ModelFamily, device: Device) -> dict[str, Any]:
    """Return the options that are not ideal, as far as the device's file and the workload say."""
    eager = not work.issued_whole and not unknown_costs(device)
    return {
        "host": "eager" if eager else "none",
        "clocks": "unthrottled" if device.power is None else "sustained",
        "contention": True,
    }


def options_for(
    work: ModelFamily, device: Device, *, options: SimulationOptions | None = None, ideal: bool = False, **given: Any
) -> SimulationOptions:
    """Return how a job is simulated: with what is known of the device, or `ideal`, and with what is given.

    Parameters
    ----------
    options : SimulationOptions, optional
        All that is given, as a whole: nothing is added to it.
    **given
        Attributes of `SimulationOptions` by name; None stands for none given.

    Raises
    ------
    ConfigError
        If a name or value is wrong, or contradicts `ideal`.
    """
    stated = stated_options(options, ideal=ideal, **given)
    if options is not None or ideal:
        return stated
    known = {name: value for name, value in known_of(work, device).items() if given.get(name) is None}
    return replace(stated, **known)


def stated_options(options: SimulationOptions | None = None, *, ideal: bool = False, **given: Any) -> SimulationOptions:
    """Return what is given, or `ideal`, without what is known of a device; `ConfigError` as `options_for`."""
    if not isinstance(ideal, bool):
        raise ConfigError(f"ideal must be true or false, not {shown(ideal)}")
    wanted = {name: value for name, value in given.items() if value is not None}
    found = changed(options or SimulationOptions(), wanted)
    if not ideal:
        return found
    stated = IDEAL if options is not None else wanted
    contrary = [name for name, value in IDEAL.items() if name in stated and getattr(found, name) != value]
    if contrary:
        raise ConfigError(
            f"ideal leaves out host, clocks and contention, and {contrary[0]} is {getattr(found, contrary[0])!r} "
            f"beside it; leave out one of the two"
        )
    return replace(found, **IDEAL)


def as_stated(options: SimulationOptions, work: ModelFamily, device: Device) -> dict[str, Any]:
    """Return what is to be given by name, so that `options_for` makes these options; nothing where it does by itself.

    Knows host, clocks and contention alone.
    """
    known = known_of(work, device)
    found = {name: getattr(options, name) for name in IDEAL}
    if found == known:
        return {}
    return {"ideal": True} if found == IDEAL else {name: each for name, each in found.items() if each != known[name]}
