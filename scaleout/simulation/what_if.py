"""What if a rank were slow, or the ranks lay elsewhere: programs to programs that say so.

Slow and broken links are changes of the topology, see `topology.degrade_links` and `topology.break_links`.

Symbols: R ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from scaleout.cluster.topology.topology import LEAST_FACTOR, Topology
from scaleout.config.documents import is_file, read_text, whole
from scaleout.config.reading import nearest, renamed
from scaleout.config.units import counted
from scaleout.errors import ConfigError, shown
from scaleout.program.graph import NONE, ExecutionGraph, Ints, NodeKind
from scaleout.program.program import Program

PLACEMENTS = ("linear", "transposed", "order", "strided", "random")
"""Names of rank placements: ``order:1,0``, ``strided:8`` and ``random:7`` (a seed) take what follows the colon."""


def slow_ranks(program: Program, factors: Mapping[int, float]) -> Program:
    """Return a timed program with ranks whose kernels take so many times as long; each has a role of its own.

    Raises
    ------
    ConfigError
        If a rank is not in the program or a factor is not from 1e-9 to 1e9.
    """
    graphs, roles = list(program.graphs), program.role_of_rank.copy()
    known: dict[tuple[int, float], int] = {}
    for rank, factor in sorted(factors.items()):
        if not 0 <= rank < program.num_ranks:
            raise ConfigError(f"slow rank {rank} is not in the job; give ranks 0 to {program.num_ranks - 1}")
        if not LEAST_FACTOR <= factor <= 1 / LEAST_FACTOR:
            raise ConfigError(f"rank {rank} is slowed by {factor}; give a factor from 1e-9 to 1e9, such as 1.3")
        key = (int(roles[rank]), factor)
        if key not in known:
            known[key] = len(graphs)
            graphs.append(_slowed(graphs[key[0]], factor))
        roles[rank] = known[key]
    if not known:
        return program
    used, roles = np.unique(roles, return_inverse=True)  # a role whose ranks are all slow is no more
    return replace(program, graphs=tuple(graphs[role] for role in used), role_of_rank=roles.reshape(-1))


def map_ranks(
    program: Program, mapping: Sequence[int] | Ints = (), *, places: Sequence[int] | Ints | None = None
) -> Program:
    """Return the program with its ranks elsewhere: what rank r did, rank ``mapping[r]`` does; see `rank_mapping`.

    `places` is an old name of `mapping`.

    Raises
    ------
    ConfigError
        If `mapping`, (R,), is no permutation of the ranks.
    """
    if places is not None:
        renamed("places", {"places": "mapping"}, what="argument of map_ranks")
        mapping = places
    at = np.asarray(mapping, np.int64)
    _check_permutation(at, program.num_ranks)
    roles = np.empty_like(program.role_of_rank)
    roles[at] = program.role_of_rank
    groups = tuple(
        replace(family, members=tuple(tuple(at[list(members)].tolist()) for members in family.members))
        for family in program.groups
    )
    if program.peers is None:
        moved = tuple(_with_peers_at(graph, at) for graph in program.graphs)
        return replace(program, graphs=moved, role_of_rank=roles, groups=groups)
    peers = np.empty_like(program.peers)
    peers[at] = np.where(program.peers == NONE, NONE, at[program.peers])
    return replace(program, role_of_rank=roles, groups=groups, peers=peers)


def rank_mapping(placement: str, topology: Topology) -> Ints:
    """Return which rank of a topology each rank of a job is.

    Parameters
    ----------
    placement : str
        ``linear``: rank r is rank r. ``transposed``: ranks fill the last dimension first. ``order:1,0,2``: they fill
        dimension 1 first, then 0. ``strided:8``: 8 ranks from one to the next, then from the start plus one.
        ``random:7``: any order, of seed 7. The topology's ranks themselves, ``3,2,1,0``; or a file that lists them.

    Raises
    ------
    ConfigError
        If the text is none of these, or does not name each rank once.

    >>> from scaleout.cluster.topology.topology import Dimension
    >>> torus = Topology("t", (Dimension("ring", 2, 1.0, 0.0), Dimension("ring", 3, 1.0, 0.0)))
    >>> rank_mapping("transposed", torus).tolist()
    [0, 2, 4, 1, 3, 5]
    """
    name, _, argument = placement.partition(":")
    count = topology.num_ranks
    if name in PLACEMENTS:
        if (name in ("linear", "transposed")) != (not argument):
            raise ConfigError(f"placement {placement!r}: {_needs(name)}")
        if name == "linear":
            return np.arange(count)
        if name == "random":
            return np.random.default_rng(_numbers(placement, argument, 1)[0]).permutation(count)
        if name == "strided":
            (stride,) = _numbers(placement, argument, 1)
            if stride < 1 or count % stride:
                raise ConfigError(f"placement {placement!r}: {stride} does not divide {count} ranks; give a divisor")
            return np.arange(count).reshape(-1, stride).T.ravel()
        dimensions = len(topology.dimensions)
        order = _numbers(placement, argument, dimensions) if argument else list(range(dimensions))[::-1]
        if sorted(order) != list(range(dimensions)):
            raise ConfigError(f"placement {placement!r}: name each of the dimensions 0 to {dimensions - 1} once")
        grid = np.arange(count).reshape(topology.shape, order="F")
        return grid.transpose(order).ravel(order="F")
    return _listed(placement, count)


def _needs(name: str) -> str:
    needs = {"order": "dimensions in order, order:1,0", "strided": "a stride, strided:8", "random": "a seed, random:7"}
    return f"it needs {needs[name]}" if name in needs else "nothing may follow the name"


def _numbers(placement: str, text: str, count: int) -> list[int]:
    found = [whole(part.strip(" ")) for part in text.split(",")]
    numbers = [each for each in found if each is not None]
    if not len(found) == len(numbers) == count:
        raise ConfigError(f"placement {placement!r}: {text!r} is not {count} whole number{'s' * (count > 1)}")
    return numbers


def _listed(placement: str, count: int) -> Ints:
    """Read the ranks of a topology from a list or a file."""
    text = placement
    if not set(text) <= set("0123456789, "):
        path = Path(placement)
        if not is_file(path):
            raise ConfigError(
                f"placement {placement!r} is neither a name, a list of ranks nor a file; "
                f"{nearest(placement.partition(':')[0], PLACEMENTS)}"
            )
        text = read_text(path, what="file of ranks")
    words = text.replace(",", " ").split()
    ranks = [whole(word) for word in words]
    if None in ranks:
        wrong = shown(words[ranks.index(None)])
        raise ConfigError(f"{placement}: {wrong} is no rank; list the topology's rank of each, such as 0,2,1,3")
    mapping = np.array(ranks, np.int64)
    _check_permutation(mapping, count)
    return mapping


def _check_permutation(mapping: Ints, count: int) -> None:
    if len(mapping) != count:
        raise ConfigError(
            f"the placement lists {counted(len(mapping), 'rank')} for a job of {count}; list one for each"
        )
    found, times = np.unique(mapping, return_counts=True)
    if times.max(initial=0) > 1:
        raise ConfigError(f"the placement lists rank {found[times.argmax()]} twice; list each rank once")
    if count and (found[0] < 0 or found[-1] >= count):
        raise ConfigError(f"the placement lists rank {found[-1]}, which is not there; list ranks 0 to {count - 1}")


def _slowed(graph: ExecutionGraph, factor: float) -> ExecutionGraph:
    compute = graph.kind == NodeKind.COMPUTE
    return graph.with_columns(duration_s=np.where(compute, graph.duration_s * factor, graph.duration_s))


def _with_peers_at(graph: ExecutionGraph, mapping: Ints) -> ExecutionGraph:
    """Rename the ranks that messages name; those that the program lacks are refused later."""
    named = (graph.kind > NodeKind.COLLECTIVE) & (graph.group == NONE)
    named &= (graph.peer >= 0) & (graph.peer < len(mapping))
    if not named.any():
        return graph
    peer = graph.peer.copy()
    peer[named] = mapping[graph.peer[named]]
    return graph.with_columns(peer=peer)
