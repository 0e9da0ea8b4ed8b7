"""Direct algorithms: each rank sends to every other itself, at once or one after another.

`direct` sends all at once, ``alpha + (p - 1) / p n beta`` for a round on a switch; that a rank must also issue
``p - 1`` messages is not charged. `pairwise` has a round for each distance, ``(p - 1) (alpha + n / p * beta)``.
`dimension_wise` has an all-to-all along each dimension, in chunks, so that the dimensions work at the same time.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005 (pairwise); ASTRA-sim's multi-dimensional all-to-all.
"""

import itertools

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, several_dimensions, then
from scaleout.network.collectives.rounds import Edges, Everyone, Round, Schedule, Shift


def _shards(placement: Placement) -> Schedule:
    return Schedule((Round(Everyone(), 1 / placement.num_ranks),))


def _broadcast(placement: Placement) -> Schedule:
    return Schedule((Round(Edges.from_root(placement.num_ranks), 1.0),))


def _reduce(placement: Placement) -> Schedule:
    return Schedule((Round(Edges.from_root(placement.num_ranks).reversed(), 1.0),))


def _scatter(placement: Placement) -> Schedule:
    p = placement.num_ranks
    return Schedule((Round(Edges.from_root(p), 1 / p),))


def _gather(placement: Placement) -> Schedule:
    p = placement.num_ranks
    return Schedule((Round(Edges.from_root(p).reversed(), 1 / p),))


def _pairwise(placement: Placement) -> Schedule:
    p = placement.num_ranks
    shape = placement.shape if placement.regular else (p,)
    offsets = itertools.product(*(range(size) for size in shape))
    return Schedule(tuple(Round(Shift(offset), 1 / p) for offset in offsets if any(offset)))


def _dimension_wise(placement: Placement) -> Schedule:
    rounds = tuple(Round(Everyone(), 1 / m, dimensions=(number,)) for number, m in enumerate(placement.shape))
    p = placement.num_ranks
    surplus = sum(p * (m - 1) / m for m in placement.shape) - (p - 1)
    return Schedule(rounds, pipelined=True, surplus=surplus)


ALGORITHM = Algorithm(
    "direct",
    "each rank sends to every other at once",
    {
        "all_reduce": then(_shards, _shards),
        "reduce_scatter": _shards,
        "all_gather": _shards,
        "all_to_all": _shards,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "gather": _gather,
        "scatter": _scatter,
    },
)

PAIRWISE = Algorithm(
    "pairwise", "one partner after another, all ranks over the same distance", {"all_to_all": _pairwise}
)

DIMENSION_WISE = Algorithm(
    "dimension_wise",
    "an all-to-all along each dimension, one after another, in chunks",
    {"all_to_all": _dimension_wise},
    several_dimensions,
)
