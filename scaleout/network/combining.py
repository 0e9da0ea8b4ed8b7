"""Combining: what switches that reduce and multicast leave of the messages that meet on a link.

Maps the messages of a `Combined` step to what its links carry: in closed form on the grid of a regular group, and link
by link for any routes. Of messages to the same member that are added up a link carries one, as of the copies of a
member's message; of a step that is both it carries one in all.

Symbols: m members along a dimension, b of them below a link; s groups that share it; M messages; H links of all routes.
"""

import numpy as np

from scaleout.collectives.step import Combined, Pattern
from scaleout.network.links import Floats, Ints, Routes
from scaleout.placement import Extent


def through_switches(pattern: Combined, extents: tuple[Extent, ...]) -> list[tuple[Floats, int]]:
    """Messages on each link along each extent if everyone sends to everyone, up and down by level; and hops.

    Up goes what b members send to ``m - b``, down what ``m - b`` send to b; a link's bandwidth is counted in ports.

    >>> from scaleout.collectives.step import Everyone
    >>> from scaleout.topology import Dimension
    >>> switch = Extent(Dimension("switch", 8, 1e9, 0.0, in_network_reduction=True), 8)
    >>> through_switches(Combined(Everyone(), reduced=True), (switch,))
    [(array([7., 1.]), 1)]
    """
    return [_through(pattern, extent) for extent in extents]


def _through(pattern: Combined, extent: Extent) -> tuple[Floats, int]:
    m, loads, hops = extent.size, [], -1
    for span, ports in extent.dimension.levels if extent.dimension.kind == "fat_tree" else [(1, 1.0)]:
        b = extent.below(span)
        if b < m:
            hops += 2
            for senders, receivers in ((b, m - b), (m - b, b)):
                messages = (1 if pattern.reduced else senders) * (1 if pattern.copied else receivers)
                loads.append(messages * (span // b) / ports)
    return np.array(loads), hops


def combined(pattern: Pattern, routes: Routes, ends: tuple[Ints, Ints], groups: Ints) -> Routes:
    """Return routes with the shares of messages that are one with another on their link set to zero.

    Parameters
    ----------
    pattern : Pattern
        Of the step; one that is not `Combined` keeps its routes as they are.
    routes : Routes
    ends : two (M,) arrays of int
        Sources and destinations, as ranks.
    groups : (M,) array of int
        The group of each message; those of different groups are never one.
    """
    if not isinstance(pattern, Combined):
        return routes
    kinds = {(True, True): groups, (True, False): ends[0], (False, True): ends[1]}
    alike = kinds.get((pattern.copied, pattern.reduced), np.arange(len(groups)))
    each = alike[routes.messages]
    first = np.unique(routes.links * (int(alike.max(initial=0)) + 1) + each, return_index=True)[1]
    shares = np.zeros_like(routes.shares)
    shares[first] = routes.shares[first]
    return routes._replace(shares=shares)
