"""Collectives on a network, alone, by each algorithm: what `scaleout collective` prints, as an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from scaleout.analysis.bounds import LATENCY, bound_of, busy_shares, dimension_names
from scaleout.api.answer import Answer
from scaleout.api.inputs import changes_as_inputs
from scaleout.api.networks import Network, changes_of, load_topology, name_of
from scaleout.cluster.topology.backends import with_policy
from scaleout.cluster.topology.placement import Placement, place, place_isolated
from scaleout.cluster.topology.topology import Topology
from scaleout.cluster.topology.what_if import NetworkChanges
from scaleout.config.reading import nearest
from scaleout.config.units import (
    BYTES_PER_S,
    FEW_BYTES,
    counted,
    format_bytes,
    format_bytes_per_s,
    format_difference,
    format_seconds,
    format_share,
    parse,
)
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta import cost as closed_form
from scaleout.network.collectives import ALGORITHMS, algorithm_bandwidth, bus_bandwidth, candidates
from scaleout.network.collectives.rounds import TooManyMessagesError
from scaleout.network.flow import collective as flows
from scaleout.network.flow.link_traffic import LinkTraffic
from scaleout.network.routes.links import links_of
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Tell
from scaleout.study.provenance import Provenance, provenance
from scaleout.study.sized import network_on_gpus

if TYPE_CHECKING:
    from scaleout.report.plots.schedules import Axes

Costs = dict[str, dict[str, Any]]
"""Algorithm to its cost: ``time_s``, ``num_chunks`` and what else the network model knows."""


@dataclass(frozen=True, eq=False)
class _Request:
    """A collective over a group of a topology, by some algorithms, or by all (auto)."""

    kind: str
    topology: Topology
    members: list[int]
    algorithms: tuple[str, ...]  # empty for all
    injection_bytes_per_s: float | None
    num_chunks: int | None

    @property
    def placement(self) -> Placement:
        """The group with its siblings; the two ends of a message alone."""
        return (place_isolated if self.kind == "send" else place)(self.topology, self.members)


def _alpha_beta(request: _Request, size_bytes: int) -> Costs:
    """Return costs under the alpha-beta model: of all algorithms that can, or of those that were asked for."""
    group, num_chunks = request.placement, request.num_chunks
    costs, taken = {}, ""
    for name in request.algorithms:
        costs[name] = closed_form.collective_cost(request.kind, size_bytes, group, name, num_chunks=num_chunks)
    if not costs:
        costs = closed_form.collective_costs(request.kind, size_bytes, group, num_chunks=num_chunks)
        taken = closed_form.collective_cost(request.kind, size_bytes, group, num_chunks=num_chunks).algorithm
    return {
        name: {
            "time_s": cost.time_s,
            "num_chunks": cost.num_chunks,
            **({"protocol": cost.protocol} if cost.protocol else {}),
            **_bounds(busy_shares(cost, request.topology, request.members)),
            **({"auto": name == taken} if taken else {}),
        }
        for name, cost in costs.items()
    }


def _link(request: _Request, size_bytes: int) -> Costs:
    """Return costs of messages that share every link."""
    links = links_of(request.topology, injection_bytes_per_s=request.injection_bytes_per_s)
    costs, taken = {}, ""
    for name in request.algorithms:
        costs[name] = flows.collective_cost(
            request.kind, size_bytes, links, request.members, name, num_chunks=request.num_chunks
        )
    if not costs:
        costs = flows.collective_costs(request.kind, size_bytes, links, request.members, num_chunks=request.num_chunks)
        taken = min(costs, key=lambda name: costs[name].time_s)
    return {
        name: {
            "time_s": cost.time_s,
            "num_chunks": cost.num_chunks,
            **_bounds(_utilisation(cost.traffic, request.topology)),
            "busiest_links": [asdict(use) for use in cost.busiest_links],
            "traffic": cost.traffic,
            **({"auto": name == taken} if taken else {}),
        }
        for name, cost in costs.items()
    }


def _bounds(shares: Mapping[str, float]) -> dict[str, Any]:
    """Return what bounds a collective as columns of its row; none of one that takes no time."""
    return {"bound_by": bound_of(shares), "busy_shares": dict(shares)} if shares else {}


def _utilisation(traffic: LinkTraffic | None, topology: Topology) -> dict[str, float]:
    """Return the share of the time that the busiest link of each dimension is busy; the rest is latency."""
    names, shares = [*dimension_names(topology), "injection"], dict[str, float]()
    for port, _, _, utilisation in traffic.ports() if traffic else ():
        name = names[port.dimension]
        shares[name] = max(shares.get(name, 0.0), float(utilisation.max(initial=0.0)))
    used = {name: share for name, share in shares.items() if share}
    return used and {**used, LATENCY: max(0.0, 1.0 - max(used.values()))}


COST_MODELS = {"alpha_beta": _alpha_beta, "link": _link}
"""Network model, as in `options.NETWORKS`, to the costs of a collective."""


@dataclass(frozen=True, eq=False, repr=False)
class CollectiveAnswer(Answer):
    """Times of a collective at each size; a row of the table is an algorithm at a size, the fastest first.

    `by_size` has the rows of each size, in the order of the sizes.
    """

    kind: str
    topology: Topology
    members: list[int]
    network: str
    costs: Mapping[int, Costs]
    left_out: Mapping[str, str]  # algorithms with too many messages to route, and what is said of each
    asked: Mapping[str, Any]
    unchanged: Mapping[str, Any] | None = None  # of the largest size, without the changes of the network
    command: str = "collective"

    @property
    def num_ranks(self) -> int:
        """Ranks that take part."""
        return len(self.members)

    @property
    def title(self) -> str:
        """What was asked, and which model answered."""
        return f"{self.kind} on {self.topology.name}, ranks {self.num_ranks}: {self.model.title}"

    def _in_line(self) -> str:
        largest = self.by_size[-1][0]
        took = f"{format_bytes(largest['bytes'])} in {format_seconds(largest['time_s'])} by {largest['algorithm']}"
        return f"{self.title}; {took}"

    @property
    def inputs(self) -> Mapping[str, Any]:
        """What was asked."""
        return self.asked

    @cached_property
    def model(self) -> Provenance:
        """Which model answered: a collective alone, whatever device it runs on."""
        return provenance(self.topology, None, SimulationOptions(network=self.network))

    @property
    def models(self) -> tuple[str, ...]:
        """What answered."""
        return (self.model.models,)

    @cached_property
    def by_size(self) -> list[list[dict[str, Any]]]:
        """Rows of each size."""
        return [self._rows(size, costs) for size, costs in self.costs.items()]

    @property
    def taken(self) -> list[dict[str, Any]]:
        """Row of each size that `auto` takes; the fastest where it was not asked."""
        return [next((row for row in rows if row.get("auto")), rows[0]) for rows in self.by_size]

    def _rows(self, size_bytes: int, costs: Costs) -> list[dict[str, Any]]:
        rows = []
        for name, cost_of in sorted(costs.items(), key=lambda item: float(item[1]["time_s"])):
            time_s = cost_of["time_s"]
            rows.append(
                {
                    "collective": self.kind,
                    "algorithm": name,
                    "network": self.network,
                    "bytes": size_bytes,
                    "time_s": time_s,
                    "algorithm_bandwidth_bytes_per_s": algorithm_bandwidth(size_bytes, time_s),
                    "bus_bandwidth_bytes_per_s": bus_bandwidth(
                        self.kind, size_bytes, time_s=time_s, num_ranks=self.num_ranks
                    ),
                    **cost_of,
                }
            )
        return rows

    @property
    def refused(self) -> dict[str, list[str]]:
        """Why other algorithms of this kind are not here: each reason, and whom it keeps out."""
        if self.asked["algorithm"] != "auto":
            return {}
        group = _Request(self.kind, self.topology, self.members, (), None, None).placement
        there = {*next(iter(self.costs.values())), *self.left_out}
        found: dict[str, list[str]] = {}
        for each in ALGORITHMS.values():
            if self.kind in each.schedules and each.name not in there:
                why = each.supports(self.kind, group)
                if why is None:
                    assert group.library is not None, "it can, and no library chooses"
                    weighed = ", ".join(group.library.algorithms_for(self.kind, group.links))
                    why = f"can be asked for by --algorithm; auto weighs, for {group.library.name}, {weighed}"
                found.setdefault(why, []).append(each.name)
        return found

    @property
    def notes(self) -> Sequence[str]:
        """What was assumed or left out, and why `auto` takes what it does."""
        return (*filter(None, (self.why_auto,)), *super().notes)

    @property
    def why_auto(self) -> str:
        """Why `auto` takes an algorithm that is slower than another here, and where most so; nothing if it does not."""
        slower = [each for each in self.decisions if each.ratio < 1] if self.asked["algorithm"] == "auto" else []
        library = _Request(self.kind, self.topology, self.members, (), None, None).placement.library
        if not slower or library is None:
            return ""
        most = min(slower, key=lambda each: each.ratio)
        of = f"at {len(slower)} of {counted(len(self.costs), 'size')}, most " if len(self.costs) > 1 else ""
        shorter = format_difference(most.time_s * most.ratio, most.time_s)
        return (
            f"auto takes what {library.name}'s own cost model prefers; another algorithm is faster here, {of}at "
            f"{format_bytes(most.bytes)}: {most.runner_up} is {shorter} than {most.algorithm}"
        )

    @property
    def decisions(self) -> tuple[flows.Decision, ...]:
        """What `auto` takes at each size, and where that changes."""
        times = {
            size: {name: cost_of["time_s"] for name, cost_of in costs.items()} for size, costs in self.costs.items()
        }
        taken = {  # of no bytes, where all cost nothing, the first
            size: next((name for name, cost_of in costs.items() if cost_of.get("auto")), next(iter(costs)))
            for size, costs in self.costs.items()
        }
        return flows.decide(times, taken)

    def about(self) -> dict[str, Any]:
        """Return what holds for all rows, as plain values."""
        plain = {"topology": self.topology.name, "ranks": self.num_ranks, "model": self.model.summary()}
        plain |= {} if self.unchanged is None else {"unchanged": dict(self.unchanged)}
        return {**plain, **({"left_out": list(self.left_out)} if self.left_out else {})}

    def answer(self) -> Mapping[str, str]:
        """Return what `auto` takes at the largest size, what bounds it, and what it takes without the changes."""
        taken, before = self.taken[-1], self.unchanged
        shares = ", ".join(f"{name} {format_share(share)}" for name, share in taken.get("busy_shares", {}).items())
        facts = {
            "time": f"{format_seconds(taken['time_s'])} for {format_bytes(taken['bytes'])} by {taken['algorithm']}",
            "bus bandwidth": format_bytes_per_s(taken["bus_bandwidth_bytes_per_s"]),
            **({"bound by": f"{taken['bound_by']} (of its time: {shares})"} if shares else {}),
        }
        if before is not None:
            cost = format_difference(taken["time_s"], before["time_s"])
            facts["unchanged"] = f"{format_seconds(before['time_s'])} by {before['algorithm']}; {cost} with the changes"
        return {**facts, "model": self.model.title}

    def columns(self) -> tuple[str, ...]:
        """Return those of the terminal's table of algorithms."""
        rates = ("algorithm_bandwidth_bytes_per_s", "bus_bandwidth_bytes_per_s")
        return ("bytes", "algorithm", "auto", "protocol", "num_chunks", "time_s", *rates, "bound_by")

    def found(self) -> Mapping[str, Any]:
        """Return the results as plain values: traffic as sums by dimension and direction."""
        return {**self.about(), "results": [_plain(row) for rows in self.by_size for row in rows]}

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the bus bandwidth of each algorithm over the sizes."""
        from scaleout.report.plots.studies import plot_bandwidths  # noqa: PLC0415 - matplotlib takes half a second

        drawn = plot_bandwidths(self.to_frame(), ax)
        drawn.set_title(f"{self.kind} on {self.topology.name}", fontsize=10)
        return drawn


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    if "traffic" not in row:
        return row
    return {**row, "traffic": row["traffic"].by_port() if row["traffic"] else []}


def collective(
    kind: str,
    sizes: int | str | Sequence[int | str],
    *,
    topology: Network | None = None,
    device: str | None = None,
    gpus: int | None = None,
    network_changes: Mapping[str, Any] | NetworkChanges | None = None,
    ranks: Sequence[int] | None = None,
    algorithm: str | Sequence[str] = "auto",
    network: str = "alpha_beta",
    injection: float | str | None = None,
    num_chunks: int | None = None,
    policy: str | None = None,
    tell: Tell | None = None,
) -> CollectiveAnswer:
    """Return what a collective takes on a network, by each algorithm that can do it.

    The table has a row for each size and algorithm, the fastest first. Unless algorithms are given, its column `auto`
    marks the one that a run takes, of which alone the command prints a row where several sizes are asked.

    Parameters
    ----------
    kind : str
        Such as ``all_reduce``.
    sizes : int, str or sequence of these
        The full buffer of one rank: bytes, or a text such as ``"64MiB"``.
    topology, network_changes
        As of `load_topology`.
    device, gpus : optional
        Instead of a topology: the network that this device is sold with, of so many. Beside a topology `gpus` are as
        many of its nodes as make so many ranks.
    ranks : sequence of int, optional
        That take part; by default all. All groups that lie like this one communicate at the same time.
    algorithm : str or sequence of str
        One or several to compare, instead of all from which `auto` chooses (``auto``).
    network : str
        ``alpha_beta``, or ``link`` for messages that share every link.
    injection : float or str, optional
        What a rank can send over all its links together, under ``link``.
    num_chunks : int, optional
        Of a pipelined algorithm; by default the fastest number.
    policy : str, optional
        Which of the topology's back ends serves all-reduces.
    tell : callable, optional
        Called before each size with how many are done, of how many, and words for it.

    Raises
    ------
    ConfigError
        If a name is unknown, a size cannot be read, or no algorithm can do it on such a group.

    Examples
    --------
    >>> import scaleout
    >>> answer = scaleout.collective("all_reduce", ["1MiB", "64MiB"], topology="dgx-h200-1")
    >>> sorted(set(answer.to_frame().bytes))
    [1048576, 67108864]
    >>> taken = answer.to_frame().query("auto")
    >>> list(taken.bytes)
    [1048576, 67108864]
    """
    if network not in COST_MODELS:
        raise ConfigError(f"unknown network model {network!r}; {nearest(network, COST_MODELS)}")
    if injection is not None and network != "link":
        raise ConfigError("--injection is a limit of the link model; add --network link or leave it out")
    kind, given = kind.replace("-", "_"), changes_of(network_changes)
    wanted = [size if isinstance(size, int) else round(parse(size, FEW_BYTES)) for size in _listed(sizes)]
    if not wanted:
        raise ConfigError("give the sizes of the collective, such as '64MiB'")
    named: Network
    named, given = network_on_gpus(topology, device, gpus, given)
    cluster = load_topology(named, given)
    cluster = cluster if policy is None else with_policy(cluster, policy)
    members = list(range(cluster.num_ranks)) if ranks is None else list(ranks)
    limit = parse(injection, BYTES_PER_S) if isinstance(injection, str) else injection
    algorithms = tuple(dict.fromkeys(_names(algorithm)))
    if "auto" in algorithms and len(algorithms) > 1:
        raise ConfigError("algorithm auto chooses from all; leave out the others, or auto")
    algorithms = () if algorithms == ("auto",) else algorithms
    request = _Request(kind, cluster, members, algorithms, limit, num_chunks)
    costs = {}
    for number, size in enumerate(wanted):
        if tell is not None:
            tell(number, len(wanted), "sizes timed")
        costs[size] = COST_MODELS[network](request, size)
    able = [found.name for found in candidates(kind, request.placement)] if not algorithms else []
    if num_chunks is not None and all(row["num_chunks"] != num_chunks for row in costs[max(wanted)].values()):
        raise ConfigError(f"--chunks {num_chunks}: nothing here cuts the buffer into chunks; leave it out")
    asked = {
        "collective": kind,
        "bytes": wanted,
        "topology": name_of(named, cluster),
        **changes_as_inputs(given),
        "algorithm": (algorithms[0] if len(algorithms) == 1 else algorithms) if algorithms else "auto",
        "network": network,
        **({} if ranks is None else {"group": members}),
        **({} if limit is None else {"injection": limit}),
        **({} if num_chunks is None else {"chunks": num_chunks}),
        **({} if policy is None else {"policy": policy}),
    }
    left_out = {name: _refusal(request, network, wanted[0], name) for name in able if name not in costs[wanted[0]]}
    before = None
    if given != given.size_alone:
        before = collective(
            kind, wanted[-1:], topology=topology, network_changes=given.size_alone, ranks=ranks, algorithm=algorithm,
            network=network, injection=injection, num_chunks=num_chunks, policy=policy, tell=tell,
        ).taken[-1]  # fmt: skip
        before = {key: before[key] for key in ("bytes", "algorithm", "time_s")}
    return CollectiveAnswer(kind, cluster, members, network, costs, left_out, asked, before)


def _refusal(request: _Request, network: str, size_bytes: int, name: str) -> str:
    """Return why an algorithm is not among those of a request."""
    try:
        COST_MODELS[network](replace(request, algorithms=(name,)), size_bytes)
    except TooManyMessagesError as error:
        return str(error)
    raise AssertionError(f"{name} can do it")


def _names(algorithm: str | Sequence[str]) -> Sequence[str]:
    return [algorithm] if isinstance(algorithm, str) else algorithm


def _listed(sizes: int | str | Sequence[int | str]) -> Sequence[int | str]:
    return [sizes] if isinstance(sizes, int | str) else sizes
