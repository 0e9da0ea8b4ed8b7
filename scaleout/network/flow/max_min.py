"""Max-min fair sharing: flows over links to the rates that the flows get.

All flows grow together until a link is full; those through it keep their rate, and the others grow on. The rates at
which each flow has the lowest level of its links are unique, so `event_driven` may update them around a change. They do
not depend, to the last bit, on the order of flows or on whether several alike are one: sums are of shares of messages,
which are dyadic fractions and so exact, and levels are rounded to 44 bits. See docs/models/flow-network.md.

Symbols: F flows; L links; H pairs of a flow and a link that it crosses.
Source: Bertsekas and Gallager, Data Networks, 2nd edition, 6.5.2.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from scaleout.network.routes.crossing import Ways
from scaleout.network.routes.links import Floats, Ints

SAME = 1e-12
"""Relative difference below which two moments are one: what rounding leaves between equal numbers."""

ABOVE = 1 + 2.0**-43
"""What a level is multiplied by, and rounded, for the next one or the next but one of 44 bits."""

_Number = TypeVar("_Number", float, Floats)


def rounded(level: _Number) -> _Number:
    """Round to 44 bits.

    Source: Dekker, A floating-point technique for extending the available precision, Numer. Math. 18, 1971.

    >>> rounded(1 / 3) == rounded(1 - 2 / 3)
    True
    """
    wide = level * 513.0
    return wide - (wide - level)


def level_of_all(ways: Sequence[Ways], bytes_per_s: Floats, *, num_flows: int) -> float | None:
    """Return the rate of all flows if all cross a link that is among the first to be full; None if not.

    The `ways` are of flows of one message each; `bytes_per_s`, (L,), is what each link carries.
    """
    load = np.zeros(len(bytes_per_s))
    for each in ways:
        load += each.load(len(load))
    share, loaded = np.full(len(load), np.inf), load > 0
    np.divide(bytes_per_s, load, out=share, where=loaded)
    share[loaded] = rounded(share[loaded])
    level = float(share.min())
    if (share[loaded] == level).all():
        return level
    held = np.zeros(num_flows, bool)
    for each in ways:
        held[each.message] |= each.through(share == level)
    return level if held.all() else None


def max_min(flows: Ints, links: Ints, weights: Floats, *, num_flows: int, bytes_per_s: Floats) -> Floats:
    """Return the rates, (F,) in B/s, of flows that share links max-min fairly.

    Parameters
    ----------
    flows, links : (H,)
        Pairs of a flow and a link that it crosses; every flow crosses one at least.
    weights : (H,)
        What a flow sends over the link for each byte of its own.
    bytes_per_s : (L,)
        What each link carries.

    >>> flows, links = np.array([0, 0, 1, 2]), np.array([0, 1, 0, 1])  # flow 0 crosses both links, 1 and 2 one each
    >>> max_min(flows, links, np.ones(4), num_flows=3, bytes_per_s=np.array([1.0, 2.0])).tolist()
    [0.5, 0.5, 1.5]
    """
    rates = np.zeros(num_flows)
    left = bytes_per_s.astype(np.float64)
    load = np.bincount(links, weights, minlength=len(left)).astype(np.float64)
    share, loaded = np.full(len(left), np.inf), load > 0
    share[loaded] = rounded(left[loaded] / load[loaded])
    while len(flows):
        level = float(share.min())
        if (share[load > 0] == level).all():  # all links that are left fill at once
            rates[rates == 0] = level
            break
        full = (share == level)[links]
        stopped = np.zeros(num_flows, bool)
        stopped[flows[full]] = True
        rates[stopped] = level
        through = stopped[flows]
        taken = np.bincount(links[through], weights[through], minlength=len(left))
        load = load - taken
        left = np.where(taken > 0, np.maximum(left - level * taken, 0.0), left)
        again = (taken > 0) & (load > 0)
        share[taken > 0] = np.inf
        share[again] = np.maximum(rounded(left[again] / load[again]), rounded(level * ABOVE))
        flows, links, weights = flows[~through], links[~through], weights[~through]
    return rates
