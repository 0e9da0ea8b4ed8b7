"""What a machine costs and draws, and the energy of a step.

Maps a topology and a device to a `Bill`: devices at the price of their node, and of every dimension the cables and
switches that its links take, at list prices of its link type; and what all devices rent for. Maps a simulated step to
its `Energy`, and with the rent to its `Rent`. Knows no discount, no building, no cooling and no support contract. See
docs/models/cost-and-goodput.md.

A link or port of a share f of its type's bandwidth costs f of a port (``ndr/4``, or two ports for twice the bandwidth).
A switch of n ranks that has more ports than one switch of the type, P, is a full fat tree of them: L levels with
``2 (P / 2)**L >= n``, n L cables and ``(2 L - 1) n`` ports. Other links are those of the dimension, a bundle as many
as its bandwidth; switches are as many as all their ports fill, so small ones share one.

Symbols: n ranks along a dimension; P ports of a switch; f share of a port.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.dimension import Dimension, edges_of
from scaleout.cluster.topology.link_type import LinkType, Part, load_link_type, sources_of
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import format_dollars
from scaleout.simulation.clocks import joules_of_ranks
from scaleout.simulation.result import Result

ESTIMATE = "estimate"
"""How the source of a number begins that is no list price and no data sheet."""


@dataclass(frozen=True)
class Row:
    """One kind of part: how many, and what each costs and draws, as far as that is public."""

    name: str
    count: float
    each_usd: float | None
    each_w: float | None
    source: str = ""

    @property
    def dollars(self) -> float | None:
        """Price of all."""
        return None if self.each_usd is None else self.count * self.each_usd

    @property
    def watts(self) -> float | None:
        """Power of all."""
        return None if self.each_w is None else self.count * self.each_w

    @property
    def estimate(self) -> bool:
        """Whether a number of it is only an estimate."""
        return ESTIMATE in self.source


@dataclass(frozen=True)
class Bill:
    """A machine at list prices; a sum is None where the price or power of a part is not public, see `unpriced`."""

    devices: Row
    network: tuple[Row, ...]
    rent_per_s: float | None = None  # of all devices; None where the device's file has none
    rent_source: str = ""
    unpriced: tuple[str, ...] = ()  # what has no public price or no known parts
    unpowered: tuple[str, ...] = ()  # what has no public power

    @property
    def parts(self) -> tuple[Row, ...]:
        """All rows."""
        return self.devices, *self.network

    @property
    def device_dollars(self) -> float | None:
        """Price of the nodes: devices, hosts, network cards, switches on the board."""
        return self.devices.dollars

    @property
    def network_dollars(self) -> float | None:
        """Price of cables and switches between nodes."""
        return None if self._unknown(self.unpriced) else math.fsum(row.dollars or 0.0 for row in self.network)

    @property
    def dollars(self) -> float | None:
        """Price of all."""
        prices = self.device_dollars, self.network_dollars
        return None if None in prices else math.fsum(price or 0.0 for price in prices)

    @property
    def device_w(self) -> float | None:
        """Power of the nodes, at their rating."""
        return self.devices.watts

    @property
    def network_w(self) -> float | None:
        """Power of cables and switches between nodes."""
        return None if self._unknown(self.unpowered) else math.fsum(row.watts or 0.0 for row in self.network)

    def _unknown(self, names: tuple[str, ...]) -> bool:
        return any(name != self.devices.name for name in names)

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        sums = ("dollars", "device_dollars", "network_dollars", "device_w", "network_w")
        return {
            **{name: getattr(self, name) for name in sums},
            "rent_dollars_per_hour": None if self.rent_per_s is None else self.rent_per_s * 3600,
            "rent_source": self.rent_source,
            "parts": [{**asdict(row), "dollars": row.dollars, "watts": row.watts} for row in self.parts],
            "unpriced": list(self.unpriced),
            "unpowered": list(self.unpowered),
        }


def bill(topology: Topology, device: Device) -> Bill:
    """Return what a machine costs and draws.

    >>> from scaleout.cluster.device.spec import load_device
    >>> from scaleout.cluster.topology.topology import load_topology
    >>> [(row.name, row.count) for row in bill(load_topology("dgx-h200-128"), load_device("h200")).network]
    [('ndr cable', 2048.0), ('ndr switch', 48.0)]
    """
    cost = device.cost
    source = "; ".join(text for key, text in device.sources.items() if key.startswith("cost."))
    node = Row(f"{device.name} with its share of the node", float(topology.num_ranks), None, None, source)
    if cost is not None:
        node = Row(node.name, node.count, cost.price_usd, cost.node_w, source)
    rows: dict[str, Row] = {}
    missing: list[str] = []
    for number, dimension in enumerate(topology.dimensions):
        if dimension.size == 1:
            continue
        if not dimension.link_type:
            missing.append(f"dimension {number} ({dimension.link or dimension.kind}), which names no link type")
            continue
        found = load_link_type(dimension.link_type)
        if found.included:
            if len(dimension.radices) > 1:  # what joins nodes is on no board
                missing.append(f"dimension {number}: what a tree of {dimension.link_name} has above a node")
            continue
        lines = topology.num_ranks // dimension.size
        for row in _rows(dimension, found, lines, missing):
            before = rows.get(row.name)
            count = row.count + (before.count if before else 0.0)
            rows[row.name] = Row(row.name, count, row.each_usd, row.each_w, row.source)
    parts = (node, *rows.values())
    return Bill(
        node,
        tuple(rows.values()),
        None if device.rent_per_s is None else device.rent_per_s * topology.num_ranks,
        device.sources.get("rent", ""),
        (*missing, *(row.name for row in parts if row.each_usd is None)),
        (*missing, *(row.name for row in parts if row.each_w is None)),
    )


def _rows(dimension: Dimension, found: LinkType, lines: int, missing: list[str]) -> list[Row]:
    """Cables and switches of all lines of a dimension."""
    cables, ports = hardware(dimension, found)
    rows = []
    if found.cable is not None and cables:
        rows.append(_row(dimension, "cable", found.cable, cables * lines))
    if found.switch is not None and ports:
        rows.append(_row(dimension, "switch", found.switch, float(math.ceil(ports * lines / found.switch.ports))))
    for part, needed in (("cable", cables), ("switch", ports)):
        if needed and getattr(found, part) is None:
            missing.append(f"{dimension.link_name} {part}")
    return rows


def _row(dimension: Dimension, part: str, found: Part, count: float) -> Row:
    sources = sources_of(dimension.link_type)
    said = "; ".join(f"{key}: {sources[name]}" for key in ("price", "power") if (name := f"{part}.{key}") in sources)
    return Row(f"{dimension.link_name} {part}", count, found.price_usd, found.power_w, said)


def hardware(dimension: Dimension, found: LinkType) -> tuple[float, float]:
    """Return the cables of a line, and the ports of its switches, in ports of the link type."""
    share = dimension.bytes_per_s / found.bytes_per_s
    n = dimension.size
    radix = found.switch.ports if found.switch is not None else math.inf
    if dimension.kind == "switch":
        levels = 1 if n <= radix else 1 + math.ceil(math.log(n / radix) / math.log(radix / 2) - 1e-12)
        return n * levels * share, n * (2 * levels - 1) * share
    edges = edges_of(dimension)
    weights = edges.bytes_per_s / found.bytes_per_s
    ends = (edges.tails >= n).astype(float) + (edges.heads >= n).astype(float)  # at switches
    return float(weights.sum()) / 2, float((weights * ends).sum()) / 2  # both directions of a link are edges


_NO_CENTS = 1e-3
"""Price of a step [$] below which that of tokens says more alone."""


@dataclass(frozen=True)
class Rent:
    """What is paid for a machine, by its rent."""

    step_dollars: float
    dollars_per_million_tokens: float | None  # None of models without tokens

    def words(self, mode: str | None) -> str:
        """Say what a step costs, and tokens: a trillion in training, a million where the mode serves.

        >>> Rent(0.08, 0.556).words("training"), Rent(0.0008, 0.556).words("decode"), Rent(0.0008, None).words(None)
        ('$0.08 a step, $556 k a trillion tokens', '$0.556 a million tokens', '$0.0008 a step')
        """
        step = f"{format_dollars(self.step_dollars)} a step"
        if self.dollars_per_million_tokens is None:
            return step
        many, name = (1e6, "trillion") if mode in (None, "training") else (1.0, "million")
        tokens = f"{format_dollars(self.dollars_per_million_tokens * many)} a {name} tokens"
        return tokens if self.step_dollars < _NO_CENTS else f"{step}, {tokens}"


def rent_of(step_s: float, rent_per_s: float | None, *, tokens_per_s: float | None = None) -> Rent | None:
    """Return what a step of a machine of a rent costs; None where the rent is not known.

    >>> rent_of(9.0, 8 * 4.0 / 3600, tokens_per_s=16_000.0)
    Rent(step_dollars=0.08, dollars_per_million_tokens=0.5555555555555556)
    """
    if rent_per_s is None:
        return None
    return Rent(step_s * rent_per_s, 1e6 * rent_per_s / tokens_per_s if tokens_per_s else None)


@dataclass(frozen=True)
class Energy:
    """Energy of a step, of all ranks."""

    device_j: float  # devices, by the power model, at most the power limit
    node_j: float | None  # hosts, fans and network cards: what the rating of the nodes has beyond the devices' limit
    network_j: float | None  # switches and transceivers, which draw the same whatever they carry

    @property
    def total_j(self) -> float:
        """All that is known."""
        return math.fsum((self.device_j, self.node_j or 0.0, self.network_j or 0.0))

    def lasting(self, step_s: float, longer_s: float, *, idle_w: float) -> float:
        """Return the joules of a step of so long that lasts longer, as all wait for the slowest: devices draw `idle_w`.

        >>> Energy(device_j=1000.0, node_j=200.0, network_j=100.0).lasting(2.0, 0.5, idle_w=80.0)
        1415.0
        """
        rest_w = math.fsum((self.node_j or 0.0, self.network_j or 0.0)) / step_s
        return self.total_j + longer_s * (idle_w + rest_w)

    def summary(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "total_j": self.total_j}


def energy(result: Result, device: Device, topology: Topology) -> Energy | None:
    """Return the energy of a simulated step; None where the device has no power model.

    A rank draws ``idle T + E``, at most ``limit T``: E of its kernels and of what it sends at full clock, see
    docs/models/clocks-and-power.md. A clock that follows power (`clocks` sustained) ends at the limit as well.
    """
    power, step_s = device.power, result.makespan_s
    if power is None:
        return None
    first_of = {id(line.graph): line for line in reversed(result.timelines)}  # classes of a role run one graph
    graphs = ((line.ranks[0], line.graph) for line in first_of.values())
    active_j = dict(zip(first_of, joules_of_ranks(result.program, graphs, power), strict=True))
    device_j = math.fsum(
        len(line.ranks) * min(power.idle_w * step_s + active_j[id(line.graph)], power.limit_w * step_s)
        for line in result.timelines
    )
    found, ranks = bill(topology, device), result.program.num_ranks
    node_w = None if device.cost is None else max(0.0, device.cost.node_w - power.limit_w) * ranks
    network_w = found.network_w
    return Energy(
        device_j,
        None if node_w is None else node_w * step_s,
        None if network_w is None else network_w * step_s,
    )
