"""The operation tier: into which chunks a collective is cut, from what it and the computation beside it cost.

Whole where independent computation hides it; else in chunks that this computation hides one by one; and where the group
is partitioned in chunks of what a rank has gathered after each level (the paper's Algorithm 1). What it says is only a
candidate: `finish_s` follows chunks and computation through a pipeline of two, and who schedules takes the shortest.

The paper does not say how ``comm_cost / in_cost`` becomes a whole number, nor its MAX_CHUNKS: up, so that a chunk takes
no longer than what hides it; and 8.

Source: Chen et al., Centauri, Sec. 3.2.1, Algorithm 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAX_CHUNKS = 8
"""Most chunks that a collective is evenly cut into."""


@dataclass(frozen=True)
class Costs:
    """What Algorithm 1 is asked about.

    Attributes
    ----------
    computation_s : float
        comp_cost: the computation that takes the collective's data, or makes them.
    communication_s : float
        comm_cost: the collective.
    independent_s : float
        in_cost: computation that can run beside it without any of its data.
    inter_s : float
        cost_inter: the part between nodes, where the group is partitioned.
    inter_size, intra_size : int
        Members of the sub-groups between and within nodes; both above 1 only where the group is partitioned.
    """

    computation_s: float
    communication_s: float
    independent_s: float
    inter_s: float = 0.0
    inter_size: int = 1
    intra_size: int = 1

    @property
    def group_partitioned(self) -> bool:
        """Whether there are levels."""
        return self.inter_size > 1 and self.intra_size > 1


def even(costs: Costs, *, max_chunks: int = MAX_CHUNKS) -> tuple[float, ...]:
    """Return equal chunks, each no longer than the computation that hides it (lines 3 to 7)."""
    if costs.independent_s >= costs.communication_s:
        return (1.0,)
    count = max_chunks
    if costs.independent_s > 0:
        count = math.ceil(min(costs.communication_s / costs.independent_s, max_chunks))
    return (1 / count,) * count


def granularity(costs: Costs, *, max_chunks: int = MAX_CHUNKS) -> tuple[float, ...]:
    """Return the chunks of Algorithm 1, in parts of the whole.

    >>> granularity(Costs(10.0, 4.0, 5.0))  # hidden whole
    (1.0,)
    >>> granularity(Costs(10.0, 4.0, 1.0))
    (0.25, 0.25, 0.25, 0.25)
    >>> granularity(Costs(10.0, 4.0, 3.0, inter_s=2.0, inter_size=2, intra_size=8))  # between nodes is hidden
    (0.125, 0.875)
    """
    if costs.independent_s >= costs.communication_s or not costs.group_partitioned:
        return even(costs, max_chunks=max_chunks)
    inter, intra = costs.inter_size, costs.intra_size
    world = inter * intra
    if costs.independent_s > costs.inter_s:
        return (inter / world, 1 - inter / world)
    if costs.computation_s / inter > intra * costs.inter_s:
        return (intra / world, 1 - intra / world)
    return (intra / world, (inter - 1) / world, 1 - (inter + intra - 1) / world)


def candidates(costs: Costs, *, max_chunks: int = MAX_CHUNKS) -> tuple[tuple[float, ...], ...]:
    """Return the ways to cut that are weighed, the whole first: of equally long ones the first is taken."""
    found = ((1.0,), even(costs, max_chunks=max_chunks), granularity(costs, max_chunks=max_chunks))
    return tuple(dict.fromkeys(found))


def finer(costs: Costs) -> tuple[tuple[float, ...], ...]:
    """Return the ways to cut of Algorithm 1, and equal chunks up to MAX_CHUNKS whatever runs beside them."""
    halved = tuple((1 / count,) * count for count in (2, 4, MAX_CHUNKS))
    return tuple(dict.fromkeys((*candidates(costs), *halved)))


def finish_s(
    parts: Sequence[float],
    costs: Costs,
    *,
    chunk_s: Callable[[float], float],
    produces: bool,
) -> float:
    """Return when both the collective and the computation are done.

    A taken chunk is worked on when it has arrived and what is independent is done; one that is produced is sent when it
    is made, and what is independent follows the computation.

    Parameters
    ----------
    chunk_s : callable
        Part of the collective to the seconds that it takes as a chunk; computation goes in proportion.
    """
    sent_s, computed_s = 0.0, 0.0 if produces else costs.independent_s
    for part in parts:
        computes_s = part * costs.computation_s
        if produces:
            computed_s += computes_s
            sent_s = max(sent_s, computed_s) + chunk_s(part)
        else:
            sent_s += chunk_s(part)
            computed_s = max(computed_s, sent_s) + computes_s
    return max(sent_s, computed_s + costs.independent_s) if produces else computed_s
