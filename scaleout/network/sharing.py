"""Max-min fair sharing: flows over links to the rates that the flows get.

All flows grow together until a link is full; those through it keep their rate, and the others grow on. No flow can
then be faster without a slower one being slower still. The rates do not depend, to the last bit, on the order of
the flows, nor on whether several alike are given as one: sums are of shares of messages, which are halves of halves
and so exact, and only then multiplied by a rate. Nor do they depend on flows that share no link with a flow, directly
or through others: shares within rounding of each other are one level only among flows that hang together.

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
    pairs = flows, links
    count = len(left)
    while len(flows):
        load = np.bincount(links, weights, minlength=count)
        loaded = load > 0
        shares = left[loaded] / load[loaded]
        if (lowest := shares.min()) == shares.max():  # all links that are used fill at once
            rates[flows] = lowest
            break
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(loaded, left / load, np.inf)
        level: Floats = np.full(count, lowest)
        full = share <= level * (1 + SAME)
        if (share[full] != level[full]).any():
            parts = _hanging_together(*pairs, num_links=count)
            np.minimum.at(level := np.full(count, np.inf), parts, share)
            level = np.where(np.isfinite(level), level, 0.0)[parts]
            full = share <= level * (1 + SAME)
        if full[loaded].all() and (level == level[0]).all():
            rates[flows] = level[0]
            break
        pair = full[links]
        stopped = np.zeros(num_flows, bool)
        stopped[flows[pair]] = True
        rates[flows[pair]] = level[links[pair]]
        through = stopped[flows]
        taken = np.bincount(links[through], weights[through], minlength=count)
        left = np.where(taken > 0, np.maximum(left - level * taken, 0.0), left)
        flows, links, weights = flows[~through], links[~through], weights[~through]
    return rates


def _hanging_together(flows: Ints, links: Ints, *, num_links: int) -> Ints:
    """(L,) the lowest link that each link hangs together with, through flows that cross both, directly or not."""
    lowest: Ints = np.arange(num_links)
    of_flow = np.full(int(flows.max()) + 1, num_links)
    while True:
        np.minimum.at(of_flow, flows, lowest[links])
        reached = lowest.copy()
        np.minimum.at(reached, links, of_flow[flows])
        reached = reached[reached]
        if np.array_equal(reached, lowest):
            return lowest
        lowest = reached
