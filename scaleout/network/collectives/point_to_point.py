"""Point to point: one message from the first rank of a pair to the second.

Symbols: n bytes; alpha [s]; beta [s/B]. ``t = alpha + n beta`` on a switch.
"""

from scaleout.cluster.topology.placement import Placement
from scaleout.network.collectives.algorithm import Algorithm
from scaleout.network.collectives.rounds import Edges, Round, Schedule


def _pair(placement: Placement) -> str | None:
    count = placement.num_ranks
    return None if count <= 2 else f"needs a group of two ranks, sender and receiver, not {count}"


def _send(placement: Placement) -> Schedule:
    del placement
    return Schedule((Round(Edges((0,), (1,)), 1.0),))


ALGORITHM = Algorithm("point_to_point", "one message from one rank to another", {"send": _send}, _pair)
