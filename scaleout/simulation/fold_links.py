"""Folding over shared links: ranks stand for each other only where the links that their messages cross are alike too.

Maps a program that is folded without regard to links to one whose classes the links allow, and to what says which links
and members are alike: the rotations of `routes.symmetry`, which need no list of messages, or the partition of
`routes.refinement` where they leave too many ranks apart. Members of a group start a collective together and are done
together, so they may send alike although what they do otherwise differs: each rank is a member of its own in every
process-group set, and one more at the ends of its messages. Programs whose messages name ranks by their numbers are
not folded.

Symbols: R ranks; F flows; H pairs of a flow and a link.
"""

from collections.abc import Sequence

import numpy as np

from scaleout.cluster.topology.peers import relative_peers_of_program, roles_that_name_ranks
from scaleout.network.collectives.rounds import TooManyMessagesError
from scaleout.network.flow.demand import NOTHING_ALIKE, Alike, Group, demand_of, messages_of
from scaleout.network.flow.flows import Demand, Flows
from scaleout.network.routes.links import Links
from scaleout.network.routes.refinement import Ends, FlowsOfKind, Network, Partition, is_equitable, refine
from scaleout.network.routes.symmetry import Pairs, Symmetry, symmetry
from scaleout.program.graph import NONE, Ints
from scaleout.simulation.fold import Folding, fold
from scaleout.simulation.folded_program import FoldedProgram, instances_of

# When it pays, from `python -m cProfile -m scaleout.cli run llama-3-8b --set tensor_parallel=8 --set data_parallel=128
# --topology torus-32x32 --network link --degrade 0-1=0.5`: 27,504 pairs of a flow and a link, a million tasks apart.
_PAIRS_A_TASK = 100  # that a round of refinement passes, at 15 ns each, while the core simulates a task, 1.5 us
_LEAST_ROUNDS = 20  # that take as long as laying out what is refined, 0.2 us a pair
_WORTH_TASKS = 20_000  # simulated in 0.03 s; to list what is sent takes as long, where rotations fold already

_NO_LINKS = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)

Collective = tuple[int, str, str, tuple[Group, ...]]
"""Process-group set, kind, algorithm and groups."""


def fold_on_links(folded: FoldedProgram, links: Links, *, unfold: bool) -> tuple[FoldedProgram, dict[int, Alike]]:
    """Fold no further than the links allow; with `unfold`, or where messages name ranks by numbers, not at all.

    Returns the program, and for each process-group set, and `NONE` for messages, what is alike.
    """
    sets = (NONE, *folded.folding.families)
    if unfold or any(roles_that_name_ranks(folded.program)):
        return _with(folded, fold(folded.program, folded.topology, unfold=True)), dict.fromkeys(sets, NOTHING_ALIKE)
    collectives = _collectives(folded)
    found = _symmetry(folded, collectives)
    orbits = found.representatives(np.arange(folded.program.num_ranks))
    folding = fold(folded.program, folded.topology, orbits=orbits)
    if len(folding.representative) > len(np.unique(orbits)):  # groups that are alike name their members otherwise
        folding, found = fold(folded.program, folded.topology, unfold=True), NOTHING_ALIKE
    tasks = folded.offsets[-1] / len(folded.graphs)
    apart = int(tasks * (len(folding.representative) - len(folded.folding.representative)))
    refined = _refined(folded, links, collectives, apart) if apart >= (_WORTH_TASKS if found.digits else 1) else None
    if refined is not None and len(refined[0].representative) < len(folding.representative):
        return _with(folded, refined[0]), refined[1]
    return _with(folded, folding), dict.fromkeys(sets, found)


def _with(folded: FoldedProgram, folding: Folding) -> FoldedProgram:
    return FoldedProgram(folded.program, folded.topology, folded.algorithms, folding)


def _collectives(folded: FoldedProgram) -> list[Collective]:
    """Return the collectives that send anything, those of a group and an algorithm once."""
    found: dict[tuple[int, int, str, str], Collective] = {}
    instances = instances_of(folded)
    firsts, _ = folded.kinds_of(instances, "collective", "slices")
    for instance in map(instances.__getitem__, np.sort(firsts).tolist()):
        kind, algorithm = folded.request_of(instance)[0], folded.cost_of(instance).algorithm
        key = (instance.family, instance.group_class, kind, algorithm)
        if algorithm and key not in found:
            found[key] = instance.family, kind, algorithm, folded.groups_of(instance)
    return list(found.values())


def _messages(folded: FoldedProgram) -> list[Pairs]:
    """Senders and receivers of the program's messages."""
    found = []
    for ends in relative_peers_of_program(folded.program).values():
        having = np.flatnonzero(ends != NONE)
        found.append((having, ends[having]))
    return found


def _symmetry(folded: FoldedProgram, collectives: Sequence[Collective]) -> Symmetry:
    """Find the moves of all ranks that keep their roles, groups and messages."""
    sets = [
        pairs
        for _, kind, algorithm, groups in collectives
        for pairs in messages_of(folded.topology, groups, kind, algorithm)
    ]
    return symmetry(
        folded.topology,
        [family.group_of_rank for family in folded.folding.families.values()],
        messages=sets + _messages(folded),
        roles=folded.program.role_of_rank,
    )


def _refined(
    folded: FoldedProgram, links: Links, collectives: Sequence[Collective], apart: int
) -> tuple[Folding, dict[int, Alike]] | None:
    """Part the classes of ranks until the links of each are alike as well; None if that costs more than it may save.

    That is the `apart` tasks of ranks that are not folded without it.
    """
    try:
        demands = [demand_of(links, NOTHING_ALIKE, groups, *which) for _, *which, groups in collectives]
    except TooManyMessagesError:
        return None
    messages = _messages(folded)
    num_pairs = sum(len(senders) for senders, _ in messages)
    num_pairs += sum(flows.crossing.num_pairs for demand in demands for flows in _distinct(demand))
    most = _PAIRS_A_TASK * apart // max(1, num_pairs)
    if most < _LEAST_ROUNDS or not num_pairs:
        return None
    network = _network(folded, links, list(zip(collectives, demands, strict=True)), messages)
    members = _members(folded.folding)
    while (found := refine(network, members, most)) is not None:
        as_member, of_links, of_flows = found[0].reshape(-1, folded.program.num_ranks), *found[1:]
        labels = np.stack([as_member[0], *_of_rank(folded.folding, of_flows)])
        folding = fold(folded.program, folded.topology, orbits=np.unique(labels, axis=1, return_inverse=True)[1])
        members = _members(folding)
        if len(np.unique(np.stack((found[0], members)), axis=1).T) == len(np.unique(found[0])):
            if not is_equitable(network, found):
                return None
            sets = (NONE, *folding.families)
            return folding, {each: Partition.of(row, of_links) for each, row in zip(sets, as_member, strict=True)}
    return None


def _distinct(demand: Demand) -> list[Flows]:
    """Return the rounds of a collective that differ."""
    return list({id(flows): flows for flows in demand.rounds}.values())


def _network(
    folded: FoldedProgram, links: Links, sent: Sequence[tuple[Collective, Demand]], messages: Sequence[Pairs]
) -> Network:
    """Return all that members of groups and ranks send, one by one, after a flow for each group, which ties it."""
    parts = []
    first = {each: number * folded.program.num_ranks for number, each in enumerate(folded.folding.families, start=1)}
    for number, begin in first.items():
        groups = folded.program.groups[number].members
        parts.append(FlowsOfKind(np.zeros(len(groups)), _of_groups(groups, begin), _NO_LINKS))
    for (number, _, _, groups), demand in sent:
        ranks = first[number] + np.unique(np.concatenate(groups))
        for flows in _distinct(demand):
            ends = _of_groups(groups, first[number])
            if not demand.steady:  # which is one flow for each group
                ends = _of_messages(ranks[flows.sources], ranks[flows.destinations])
            parts.append(FlowsOfKind(flows.latency_s, ends, flows.pairs))
    for senders, receivers in messages:
        routes = links.routes(senders, receivers)
        parts.append(FlowsOfKind(routes.latency_s, _of_messages(senders, receivers), routes[:3]))
    return Network.of(links.bytes_per_s(np.arange(len(links))), parts)


def _members(folding: Folding) -> Ints:
    """Number ranks by their classes, and then, for each process-group set, by the classes of their groups."""
    of_groups = np.concatenate([np.zeros(0, np.int64), *(each.class_of_group for each in folding.families.values())])
    columns = [folding.class_of_rank, *_of_rank(folding, of_groups)]
    width = len(folding.class_of_rank) + 1
    return np.concatenate([number * width + column for number, column in enumerate(columns)])


def _of_rank(folding: Folding, of_groups: Ints) -> list[Ints]:
    """(R,) number of each rank's group, for each process-group set, from the numbers of the groups of all sets."""
    columns, begin = [], 0
    for family in folding.families.values():
        numbers = of_groups[begin : begin + len(family.class_of_group)]
        columns.append(np.append(numbers, NONE)[family.group_of_rank])  # those of no group find the last
        begin += len(numbers)
    return columns


def _of_messages(senders: Ints, receivers: Ints) -> Ends:
    number = np.arange(len(senders))
    return np.tile(number, 2), np.concatenate((senders, receivers)), np.repeat((0, 1), len(number))


def _of_groups(groups: Sequence[Group], begin: int) -> Ends:
    numbers = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return numbers, begin + np.concatenate(groups), np.zeros_like(numbers)
