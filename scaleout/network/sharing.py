"""Max-min fair sharing: flows over links to the rates that the flows get.

All flows grow together until a link is full; those through it keep their rate, and the others grow on. No flow can
then be faster without a slower one being slower still. The rates do not depend, to the last bit, on the order of
the flows, nor on whether several alike are given as one: sums are of shares of messages, which are halves of halves
and so exact, and only then multiplied by a rate.

Symbols: F flows; L links; H pairs of a flow and a link that it crosses.
Source: Bertsekas and Gallager, Data Networks, 2nd edition, 6.5.2.
"""

import numpy as np

from scaleout.network.links import Floats, Ints

SAME = 1e-12
"""Relative difference below which two shares, or two moments, are one: what rounding leaves between equal numbers."""


def max_min(flows: Ints, links: Ints, weights: Floats, *, num_flows: int, bytes_per_s: Floats) -> Floats:
    """Return the rates of flows that share links max-min fairly.

    Parameters
    ----------
    flows, links : (H,)
        Pairs of a flow and a link that it crosses.
    weights : (H,)
        What a flow puts on the link for each byte of its own.
    num_flows : int
        Every flow crosses a link at least.
    bytes_per_s : (L,)
        What each link carries.

    Returns
    -------
    (F,) array of bytes per second

    >>> flows, links = np.array([0, 0, 1, 2]), np.array([0, 1, 0, 1])  # flow 0 crosses both links, 1 and 2 one each
    >>> max_min(flows, links, np.ones(4), num_flows=3, bytes_per_s=np.array([1.0, 2.0])).tolist()
    [0.5, 0.5, 1.5]
    """
    rates = np.zeros(num_flows)
    left = bytes_per_s.astype(np.float64)
    count = len(left)
    while len(flows):
        load = np.bincount(links, weights, minlength=count)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(load > 0, left / load, np.inf)
        level = float(share.min())
        stopped = np.zeros(num_flows, bool)
        stopped[flows[(share <= level * (1 + SAME))[links]]] = True
        rates[stopped] = level
        through = stopped[flows]
        left = np.maximum(left - level * np.bincount(links[through], weights[through], minlength=count), 0.0)
        flows, links, weights = flows[~through], links[~through], weights[~through]
    return rates
