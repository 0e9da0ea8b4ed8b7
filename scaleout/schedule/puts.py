"""Fused operators in oblivious order: every rank makes the shards in the order of the ranks, and puts each slice.

A rank's own share comes at its own place, so ranks at different places of their groups run graphs of their own. A slice
leaves when it is made, as a one-sided put to the rank that it belongs to: its sender goes on at once, and the one that
waits is who receives it. What a rank keeps it puts to itself, which takes no time.

A put is a send along the group, of so many bytes of the collective that all puts with its tag are the whole; its
receive is a buffer of symmetric memory, there from the begin of the step, and depends on nothing. A shard has at least
one slice, so a group of p ranks sends ``p (p - 1)`` messages at the least.

Sources and ports are as in `operators.fused`, but for messages of the network card beyond their bytes, and for the
latency, which is the collective's, start-up included, as of slices in aware order.

Symbols: p ranks; M kernels that make the data; q slices of a shard, a multiple of M; n bytes.
Source: Punniyamurthy et al., Optimizing Distributed ML Communication with Fused Computation-Collective Operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from scaleout.errors import ConfigError
from scaleout.graph import ExecutionGraph, NodeKind
from scaleout.program import GroupFamily, Program
from scaleout.schedule.fused_costs import Charge
from scaleout.schedule.overlap import communication_stream
from scaleout.schedule.pairs import Pair
from scaleout.schedule.rewrite import Rewrite, divided

MOST_PUTS = 2**17
"""Most puts in all graphs together: half a minute."""


@dataclass(frozen=True)
class Place:
    """Where in a group a rank lies, and how many it has."""

    index: int
    size: int


Places = dict[tuple[Place | None, ...], list[int]]
"""Places in the groups of a role's pairs, None where a pair keeps nothing, to the ranks that lie there."""


def in_shards(pair: Pair, graph: ExecutionGraph, group_sizes: Sequence[int]) -> Pair | None:
    """Return a pair with the slices of one shard, or None if there is nothing to put: too few ranks or bytes.

    Pairs that keep nothing (all-reduces) stay as they are: all ranks are alike there.
    """
    if not pair.kept:
        return pair
    size, makers = group_sizes[graph.group[pair.collective]], len(pair.kernels)
    if size < 2:
        return None
    each = -(-pair.slices // ((size - 1) * makers)) * makers
    return replace(pair, slices=each) if graph.bytes[pair.collective] >= size * each else None


def places_of_roles(program: Program, pairs: Sequence[Sequence[Pair]]) -> list[Places]:
    """Return, for each role, where in the groups of its pairs its ranks lie, and which ranks.

    Raises
    ------
    ConfigError
        If they would send too many puts.
    """
    where = [_places(family) for family in program.groups]
    ranks_of: list[Places] = [{} for _ in program.graphs]
    puts = 0
    for rank, role in enumerate(program.role_of_rank.tolist()):
        groups = [int(program.graphs[role].group[pair.collective]) for pair in pairs[role]]
        place = tuple(
            where[group][rank] if pair.kept else None for group, pair in zip(groups, pairs[role], strict=True)
        )
        if place not in ranks_of[role]:
            puts += sum(at.size * pair.slices for at, pair in zip(place, pairs[role], strict=True) if at)
        ranks_of[role].setdefault(place, []).append(rank)
    if puts > MOST_PUTS:
        raise ConfigError(
            f"in oblivious order every rank sends every other one slices of its own, {puts} in all, more than "
            f"{MOST_PUTS}; take fewer ranks, or the schedule fused"
        )
    return ranks_of


def _places(family: GroupFamily) -> dict[int, Place]:
    return {rank: Place(index, len(group)) for group in family.members for index, rank in enumerate(group)}


def first_tag(program: Program) -> int:
    """Return a tag from which on none is taken."""
    return 1 + max((int(graph.tag.max()) for graph in program.graphs if len(graph)), default=0)


@dataclass(frozen=True)
class Exchange:
    """A collective as puts, from the place of a rank: p shards of q slices.

    Attributes
    ----------
    pair : Pair
    place : Place
    tag : int
        Of all its messages.
    """

    pair: Pair
    place: Place
    tag: int

    def cuts(self, maker: int, makers: int) -> tuple[list[float], list[str], list[tuple[int, int]]]:
        """Return where a kernel is cut, what its parts are called, and the shard and slice that each is."""
        own, size = self.place.index, self.place.size
        each = self.pair.slices // makers
        edges, names, parts = [0.0], list[str](), list[tuple[int, int]]()
        for shard in range(size):
            pieces = 1 if shard == own else each
            for piece in range(pieces):
                edges.append((shard + (piece + 1) / pieces) / size)
                names.append("kept" if shard == own else f"shard_{shard}_{maker * each + piece}")
                parts.append((shard, maker * each + piece))
        return edges, names, parts

    def send(self, new: Rewrite, shard: int, piece: int, after: Sequence[int]) -> None:
        """Write the put of a slice, or to oneself of a maker's whole part."""
        self._message(new, NodeKind.SEND, shard, shard * self.pair.slices + piece, after)

    def receive(self, new: Rewrite, source: int, piece: int) -> int:
        """Write the arrival of a slice from a rank of the group."""
        return self._message(new, NodeKind.RECV, source, self.place.index * self.pair.slices + piece, ())

    def own_pieces(self) -> int:
        """Return the slices of its own shard that a rank puts at once: all of a kernel."""
        return self.pair.slices // (len(self.pair.kernels) if self.pair.produces else 1)

    def _message(self, new: Rewrite, kind: NodeKind, other: int, first: int, after: Sequence[int]) -> int:
        own, size = self.place.index, self.place.size
        node, graph = self.pair.collective, new.graph
        group, whole = int(graph.group[node]), size * self.pair.slices
        last = first + (self.own_pieces() if other == own else 1)
        return new.add(
            node,
            after,
            name=f"{graph.names[node]}_{'to' if kind == NodeKind.SEND else 'from'}_{other}_{first % self.pair.slices}",
            kind=int(kind),
            peer=(other - own) % size,
            tag=self.tag,
            bytes=divided(int(graph.bytes[node]), [first / whole, last / whole])[0],
            pieces=whole,
            stream=communication_stream(group),
            issue_s=0.0,
        )


def produce(new: Rewrite, node: int, exchange: Exchange, cost: Charge) -> list[int]:
    """Write a kernel's slices with their puts; after the last kernel, return what comes in, else nothing."""
    pair, own = exchange.pair, exchange.place.index
    maker, makers = pair.kernels.index(node), len(pair.kernels)
    edges, names, parts = exchange.cuts(maker, makers)
    sent = [index for index, (shard, _) in enumerate(parts) if shard != own]
    needs = [new.needs(node)] * len(names)
    made = new.add_kernel(node, edges, needs, names, slower=cost.slower, calls=sent, call_s=cost.call_s)
    for part, (shard, piece) in zip(made, parts, strict=True):
        exchange.send(new, shard, piece, [part])
    new.done[node] = made[-1]
    if node != pair.kernels[-1]:
        return []
    each = exchange.own_pieces()
    return [
        exchange.receive(new, source, piece)
        for source in range(exchange.place.size)
        for piece in range(0, pair.slices, each if source == own else 1)
    ]


def scatter(new: Rewrite, exchange: Exchange) -> list[int]:
    """Write the puts of data that are there, to all in turn, and return what comes in, in the order of the ranks."""
    node, own, size = exchange.pair.collective, exchange.place.index, exchange.place.size
    needs = new.needs(node)
    for piece in range(exchange.pair.slices):
        for shard in range(size):
            if shard != own or piece == 0:
                exchange.send(new, shard, piece, needs)
    return [
        exchange.receive(new, source, piece)
        for source in range(size)
        for piece in range(1 if source == own else exchange.pair.slices)
    ]


def consume(new: Rewrite, node: int, exchange: Exchange, cost: Charge) -> int:
    """Write a kernel's slices, each when it is there, in the order of the ranks."""
    edges, names, _ = exchange.cuts(0, 1)
    others = [new.done[old] for old in new.graph.dependencies_of(node).tolist() if old != exchange.pair.collective]
    after = [[*others, arrived] for arrived in new.sliced[exchange.pair.collective]]
    return new.add_kernel(node, edges, after, names, slower=cost.slower)[-1]
