"""Which axis of parallelism the groups of a recording are of, and programs with more or fewer ranks along one.

PyTorch names few groups by their axis, so what a group carries tells it: sums of activations are tensor-parallel, sums
of gradients data-parallel, exchanges expert-parallel. Knows nothing of what kernels do.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

import numpy as np

from scaleout.config.documents import MAX_RANKS
from scaleout.config.units import counted
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, NONE, Bools, ExecutionGraph, Ints, NodeKind, NodeRole
from scaleout.program.program import GroupFamily, Program
from scaleout.study.edits.recorded import parse_change

REDUCES = tuple(COLLECTIVES.index(kind) for kind in ("all_reduce", "reduce_scatter"))
_EXCHANGE = COLLECTIVES.index("all_to_all")
_NAMED = ("data", "tensor", "expert", "context", "pipeline")
_LITTLE = 1e-3
"""Of all bytes, what tells nothing of a group's axis: losses and norms are summed along with all else."""


@dataclass(frozen=True)
class Axis:
    """An axis of a recording along which ranks shall change."""

    name: str
    where: str  # the edit, for messages
    family: int  # of the program's groups, that along the axis
    along: frozenset[int]  # of all groups that extend along it and communicate
    carries: frozenset[str]  # their axes
    old: int
    new: int

    @property
    def told(self) -> str:
        """What changes, for a note."""
        return f"{self.old} -> {counted(self.new, 'rank')} a group"


def axis_of(program: Program, name: str, text: str) -> Axis:
    """Find the groups along an axis, and how large they shall be.

    `ConfigError` if no group is of the axis, several are, or the number of ranks is not that of the groups.
    """
    where = f"--edit {name}={text}"
    change = parse_change(text, where=where)
    carried = _carried(program)
    fitting = [number for number, axes in carried.items() if name in axes]
    if len(fitting) != 1:
        told = "; ".join(_told(program.groups[number], axes) for number, axes in sorted(carried.items()))
        many = f"{len(fitting)} kinds of {name}-parallel groups" if fitting else f"no {name}-parallel group"
        raise ConfigError(f"{where}: the recording has {many} to change: {told or 'it communicates nothing'}")
    family = program.groups[fitting[0]]
    old = len(family.members[0])
    new = change.factor * old
    if change.old not in (None, old) or old == 1 or new.denominator != 1:
        raise ConfigError(
            f"{where}: the recording's {name}-parallel groups have {counted(old, 'rank')}; "
            + ("write how many more, such as 2x" if old > 1 else "nothing tells what more ranks would communicate")
        )
    if program.num_ranks // old * int(new) > MAX_RANKS:
        raise ConfigError(f"{where}: that is more than the {MAX_RANKS:,} ranks that are simulated; choose fewer")
    pairs = {frozenset(pair) for group in family.members for pair in pairwise(group)}
    along = frozenset(
        number
        for number in carried
        if any(pair <= set(group) for group in program.groups[number].members for pair in pairs)
    )
    served = frozenset[str]().union(*(carried[number] for number in along))
    return Axis(name, where, fitting[0], along, served, old, int(new))


def with_axes(program: Program) -> Program:
    """Return the program with the axis of each process-group set that serves one alone, where its name tells none."""
    carried = _carried(program)
    axes = [
        next(iter(carried[number])) if len(carried.get(number, ())) == 1 else ""
        for number in range(len(program.groups))
    ]
    families = (replace(each, axis=axis or each.axis) for each, axis in zip(program.groups, axes, strict=True))
    return replace(program, groups=tuple(families))


def _told(family: GroupFamily, axes: frozenset[str]) -> str:
    kinds = f"{'- and '.join(sorted(axes))}-parallel" if axes else "of no axis that can be told"
    return f"{counted(len(family.members), 'group')} of {counted(len(family.members[0]), 'rank')}, {kinds}"


def edit_to(program: Program, num_ranks: int) -> str:
    """Return the edit that gives a recording so many ranks, along the one axis that its groups tell; empty if none."""
    found = []
    for family, axes in _carried(program).items():
        old = len(program.groups[family].members[0])
        new = Fraction(num_ranks * old, program.num_ranks)
        one = axes - {"data"} if "expert" in axes else axes  # experts may be spread over data-parallel ranks
        name = min(one) if len(one) == 1 else ""
        if name in ("data", "tensor", "expert") and old > 1 and new.denominator == 1:
            found.append(f"--edit '{name}={old}->{new}'")
    return found[0] if len(found) == 1 else ""


def _carried(program: Program) -> dict[int, frozenset[str]]:
    """Return each process-group set that communicates, with the axes that its collectives are of."""
    sizes: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for graph in program.graphs:
        sums = activation_sums(graph)
        collectives = graph.kind == NodeKind.COLLECTIVE
        reduces = collectives & np.isin(graph.collective, REDUCES)
        for name, mask in (
            ("tensor", sums),
            ("data", reduces & ~sums),
            ("expert", collectives & (graph.collective == _EXCHANGE)),
            ("", collectives),
        ):
            for family in np.unique(graph.group[mask]).tolist():
                sizes[family][name] += int(graph.bytes[mask & (graph.group == family)].sum())
    little = _LITTLE * sum(each[""] for each in sizes.values())
    return {
        family: frozenset({program.groups[family].axis})
        if program.groups[family].axis in _NAMED
        else frozenset(name for name, size in each.items() if name and size > little)
        for family, each in sizes.items()
    }


def activation_sums(graph: ExecutionGraph) -> Bools:
    """(N,) which reductions sum activations: by their tensors, or as large as one before a step's backward."""
    reduces = (graph.kind == NodeKind.COLLECTIVE) & np.isin(graph.collective, REDUCES)
    tokens = np.array([bool(call.sizes.get("token_bytes")) for call in graph.kernels] + [False])[graph.kernel]
    backward = np.cumsum(graph.has_role(NodeRole.BACKWARD))
    since = np.maximum.accumulate(np.where(graph.has_role(NodeRole.OPTIMIZER), backward, 0)) if len(graph) else backward
    early = reduces & graph.has_role(NodeRole.FORWARD) & (backward == since)
    return np.asarray(reduces & ((tokens & (graph.kernel != NONE)) | np.isin(graph.bytes, graph.bytes[early])))


def grown(program: Program, axis: Axis) -> tuple[Program, frozenset[int]]:
    """Return the program with as many ranks along the axis as it shall have, and the groups that changed their size.

    Ranks keep their order. A rank at coordinate c runs what that at coordinate c modulo the old degree ran.
    """
    family = program.groups[axis.family]
    stride = family.members[0][1] - family.members[0][0]
    mesh = _Mesh(stride, axis.old, axis.new)
    regular = all(
        tuple(np.diff(group)) == (stride,) * (axis.old - 1) and mesh.coordinate(group[0]) == 0
        for group in family.members
    )
    if stride < 1 or not regular or len(family.group_of_rank) != program.num_ranks:
        raise ConfigError(
            f"{axis.where}: the recording's {axis.name}-parallel groups are not evenly spaced over all "
            f"{counted(program.num_ranks, 'rank')}, so where more would lie is not told"
        )
    ranks = np.arange(program.num_ranks // axis.old * axis.new)
    source = mesh.source(ranks)
    resized = set()
    families = []
    for number, each in enumerate(program.groups):
        members: dict[tuple[int, ...], None] = {}
        for group in each.members:
            images = mesh.images(group)
            if images is None:
                raise ConfigError(
                    f"{axis.where}: a group of ranks {', '.join(map(str, group[:8]))} lies along a part of the axis, "
                    f"so what it would be with {axis.new} is not told"
                )
            members |= dict.fromkeys(images)
        if any(len({mesh.coordinate(rank) for rank in group}) > 1 for group in each.members):
            resized.add(number)
        families.append(replace(each, members=tuple(members)))
    changed = replace(
        program,
        role_of_rank=program.role_of_rank[source],
        groups=tuple(families),
        peers=None if program.peers is None else mesh.peers(program.peers, ranks, axis.where),
    )
    return changed, frozenset(resized)


@dataclass(frozen=True)
class _Mesh:
    """Ranks numbered along an axis: those of a group lie a stride apart."""

    stride: int
    old: int
    new: int

    def coordinate(self, rank: int) -> int:
        return rank // self.stride % self.old

    def source(self, ranks: Ints) -> Ints:
        """Return the recorded rank of which each new one is a clone."""
        block, offset = ranks // (self.stride * self.new), ranks % self.stride
        return block * self.stride * self.old + ranks // self.stride % self.new % self.old * self.stride + offset

    def at(self, rank: int, coordinate: int) -> int:
        """Return the new number of a recorded rank's image at a coordinate."""
        return rank // (self.stride * self.old) * self.stride * self.new + coordinate * self.stride + rank % self.stride

    def images(self, group: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Return the new groups that a recorded one stands for; None if it lies along a part of the axis."""
        by_coordinate: Mapping[int, list[int]] = defaultdict(list)
        for rank in group:
            by_coordinate[self.coordinate(rank)].append(self.at(rank, 0))
        if len(by_coordinate) == 1:
            first = self.coordinate(group[0])
            return [
                tuple(self.at(rank, coordinate) for rank in group) for coordinate in range(first, self.new, self.old)
            ]
        if len(by_coordinate) < self.old or len({tuple(sorted(each)) for each in by_coordinate.values()}) > 1:
            return None
        whole = [self.at(rank, each) for rank in group if self.coordinate(rank) == 0 for each in range(self.new)]
        return [tuple(sorted(whole))]

    def peers(self, peers: Ints, ranks: Ints, where: str) -> Ints:
        """Return whom each new rank's messages name: the rank's peers, at its own coordinate."""
        found = np.full((len(ranks), peers.shape[1]), NONE, np.int64)
        for rank, source in zip(ranks.tolist(), self.source(ranks).tolist(), strict=True):
            for index, peer in enumerate(peers[source].tolist()):
                if peer == NONE:
                    continue
                if self.coordinate(peer) != self.coordinate(source):
                    raise ConfigError(f"{where}: ranks {source} and {peer} send messages along the axis itself")
                found[rank, index] = self.at(peer, rank // self.stride % self.new)
        return found
