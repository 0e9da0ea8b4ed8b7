"""How a step is simulated: one value that every way from names to numbers takes.

Knows no program and no cluster: a placement is checked against the topology's ranks, a policy against its back ends,
an eager host against the device's file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from scaleout.cluster.device.host import HOSTS
from scaleout.config.arguments import check_fields
from scaleout.config.reading import nearest, renamed
from scaleout.errors import ConfigError
from scaleout.network.collectives import check_kind

NETWORKS = ("alpha_beta", "link")
"""Network models that can be asked for."""

CLOCKS = ("unthrottled", "sustained", "cold_start")
"""How kernels are clocked; see `simulation.clocks`."""

RENAMED_CLOCKS = {"alone": "unthrottled", "from_rest": "cold_start"}
"""Old names of clocks, which work for one release, with a warning."""


@dataclass(frozen=True)
class SimulationOptions:
    """Everything about a simulation that is neither the job, the cluster nor the schedule.

    Attributes
    ----------
    network : str
        The network model, a name in `NETWORKS`. Under ``alpha_beta`` a collective has its closed-form cost and holds
        the topology's dimensions that its group spans; under ``link`` all messages in flight share single links.
    algorithms : kind of collective to the algorithm for it; kinds that are not named take the fastest
    placement : which rank of the topology each rank of the job is, see `what_if.rank_mapping`
    injection_bytes_per_s : what a rank can send over all its links together; only the link model knows it (optional)
    contention : bool
        Whether kernels, collectives and messages that run at the same time take SMs and memory from each other, where
        the topology's communication library says how much.
    host : str
        How the host issues a step, a name in `host.HOSTS`: everything at once (``none``), call by call (``eager``),
        each call when the device is done with the one before (``blocking``), or call by call with a check of each
        collective over its ranks (``checking``).
    clocks : how kernels are clocked, a name in `CLOCKS`; it matters where the device's file says what it may draw
    policy : str, optional
        Which of the topology's back ends reduces gradients, see `backends`. One that blocks the host leaves nothing
        to overlap: every schedule is then the baseline.

    Raises
    ------
    ConfigError
        If a name is unknown, or `injection_bytes_per_s` is given without the link model.
    """

    network: str = "alpha_beta"
    algorithms: Mapping[str, str] = field(default_factory=dict)
    placement: str | Sequence[int] = "linear"
    injection_bytes_per_s: float | None = None
    contention: bool = True
    host: str = "none"
    clocks: str = "unthrottled"
    policy: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        check_network(self.network, self.algorithms, injection_bytes_per_s=self.injection_bytes_per_s)
        if self.host not in HOSTS:
            raise ConfigError(f"unknown host {self.host!r}; {nearest(self.host, HOSTS)}")
        object.__setattr__(self, "clocks", renamed(self.clocks, RENAMED_CLOCKS, what="clocks"))
        check_clocks(self.clocks)


def check_network(network: str, algorithms: Mapping[str, str], *, injection_bytes_per_s: float | None = None) -> None:
    """Check a network model and the kinds of collectives and the injection limit that go with it."""
    if network not in NETWORKS:
        raise ConfigError(f"unknown network model {network!r}; {nearest(network, NETWORKS)}")
    for kind in algorithms:
        check_kind(kind)
    if injection_bytes_per_s is not None and network != "link":
        raise ConfigError(
            f"a limit to what a rank sends over all its links is one of the link model, and this is {network}; choose "
            f"the network model link (--network link), or leave the limit out (--injection)"
        )


def check_clocks(clocks: str) -> None:
    """Check the name of how kernels are clocked."""
    if clocks not in CLOCKS:
        raise ConfigError(f"unknown clocks {clocks!r}; {nearest(clocks, CLOCKS)}")


_ASKED_BESIDE = ("schedules", "changes", "topology", "device", "network_changes", "ideal", "tell")
"""Arguments of questions of a step that are no options."""


def changed(options: SimulationOptions, given: Mapping[str, Any]) -> SimulationOptions:
    """Return options with some attributes given by name; None stands for none given, and `TypeError` names the nearest.

    >>> changed(SimulationOptions(), {"netwrok": "link"})
    Traceback (most recent call last):
    TypeError: unexpected keyword argument 'netwrok'; did you mean 'network'?
    """
    known = {each.name for each in fields(SimulationOptions)}
    for name in given.keys() - known:
        raise TypeError(f"unexpected keyword argument {name!r}; {nearest(name, (*known, *_ASKED_BESIDE))}")
    return replace(options, **{name: value for name, value in given.items() if value is not None})
