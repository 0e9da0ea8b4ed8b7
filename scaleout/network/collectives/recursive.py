"""Recursive halving and doubling: in round k the ranks whose numbers differ in bit k exchange what they have.

`recursive_doubling` exchanges the whole buffer in each round of an all-reduce, ``log2(p) (alpha + n beta)`` on a
switch; `rabenseifner` is a reduce-scatter by halving, then an all-gather by doubling, each of which takes
``log2(p) alpha + (p - 1) / p n beta``. It halves from the nearest rank on, as MPICH's all-reduce, so that the largest
messages stay in a node; `halving_doubling` from the farthest on, so that they leave it. All but all-reduce need a power
of two of ranks.

Symbols: p ranks; n bytes; alpha [s]; beta [s/B].
Source: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from collections.abc import Callable

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm, power_of_two
from scaleout.network.collectives.rounds import Exchange, Fold, FoldedExchange, Round, Schedule


def _folded(
    placement: Placement,
    core: Callable[[int, int], tuple[Round, ...]],
    *,
    added: Callable[[int], float],
    surplus: Callable[[int], float] = lambda _members: 0.0,
) -> Schedule:
    """Carry out an all-reduce among a power of two of members, for all.

    Where there are ``r`` more, ``r`` members send all they have to a neighbour first, and get the sum back last. The
    members that take part, and how many of them stand for two, give the rounds (`core`), and their number what each
    adds up and all send beyond the least, as fractions of the bytes (`added`, `surplus`).
    """
    taking_part = 1 << (placement.num_ranks.bit_length() - 1)
    extra = placement.num_ranks - taking_part
    if not extra:
        return Schedule(core(taking_part, 0), added=added(taking_part), surplus=surplus(taking_part))
    rounds = (Round(Fold(extra), 1.0), *core(taking_part, extra), Round(Fold(extra, back=True), 1.0))
    return Schedule(rounds, added=1 + added(taking_part), surplus=surplus(taking_part))


def _exchanges(num_ranks: int, extra: int, fraction: Callable[[int], float]) -> tuple[Round, ...]:
    """Exchanges by one bit after another of a fraction of the bytes, where so many members stand for two."""
    bits = range(num_ranks.bit_length() - 1)
    return tuple(Round(FoldedExchange(bit, extra) if extra else Exchange(bit), fraction(bit)) for bit in bits)


def _whole(num_ranks: int, extra: int) -> tuple[Round, ...]:
    return _exchanges(num_ranks, extra, lambda bit: 1.0)


def _halving(num_ranks: int, extra: int) -> tuple[Round, ...]:
    return _exchanges(num_ranks, extra, lambda bit: 0.5 ** (bit + 1))


def _halving_and_back(num_ranks: int, extra: int) -> tuple[Round, ...]:
    rounds = _halving(num_ranks, extra)
    return rounds + rounds[::-1]


def _halving_from_the_farthest(num_ranks: int, extra: int) -> tuple[Round, ...]:
    rounds = _exchanges(num_ranks, extra, lambda bit: 2**bit / num_ranks)
    return rounds[::-1] + rounds


DOUBLING = Algorithm(
    "recursive_doubling",
    "ranks that differ in bit k exchange all they have",
    {
        "all_reduce": lambda group: _folded(
            group,
            _whole,
            added=lambda members: members.bit_length() - 1,
            surplus=lambda members: members * (members.bit_length() - 1) - 2 * (members - 1),  # whole, not halved
        ),
        "all_gather": lambda group: Schedule(_exchanges(group.num_ranks, 0, lambda bit: 2**bit / group.num_ranks)),
    },
    power_of_two,
    ("all_reduce",),
)

RABENSEIFNER = Algorithm(
    "rabenseifner",
    "recursive halving, then recursive doubling",
    {
        "all_reduce": lambda group: _folded(group, _halving_and_back, added=lambda members: 1 - 1 / members),
        "reduce_scatter": lambda group: Schedule(_halving(group.num_ranks, 0)),
        "all_gather": lambda group: Schedule(_halving(group.num_ranks, 0)[::-1]),
    },
    power_of_two,
    ("all_reduce",),
)

HALVING_DOUBLING = Algorithm(
    "halving_doubling",
    "recursive halving from the farthest rank on, then recursive doubling",
    {
        "all_reduce": lambda group: _folded(group, _halving_from_the_farthest, added=lambda members: 1 - 1 / members),
    },
    power_of_two,
    ("all_reduce",),
)
