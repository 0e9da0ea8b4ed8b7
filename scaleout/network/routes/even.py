"""Tables of the routes between all ranks of a line, in closed form, for dimensions of few ranks.

Maps pairs of coordinates to the links between them. With the table, the links of all messages that cross equally many
are a copy of rows. Knows neither other dimensions nor broken links.

Symbols: n ranks along a dimension; M messages; T pairs of ranks with h links each; H links of all messages.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.dimension import Dimension
from scaleout.cluster.topology.kinds.kind import Floats, Ints

_FEW = 100
"""Ranks along a dimension up to which the routes of all pairs, less than its cube of links, are kept."""


class Rows(NamedTuple):
    """Routes with equally many links."""

    links: Ints
    """(h, T) from that of the first port at the lowest rank of the line."""
    shares: Floats
    """(h, T), or (1, 1) if all are the same."""


@dataclass(frozen=True, eq=False)
class RouteTable:
    """The routes between all ranks of a line, by pair ``source * n + destination``.

    Attributes
    ----------
    rows : tuple of Rows
        Those with no link, to oneself, first.
    kind : (n * n,) array of int
        Which of the rows, and
    row : (n * n,) array of int
        which row there.
    latency_s : (n * n,) array of float
    """

    rows: tuple[Rows, ...]
    kind: npt.NDArray[np.uint8]
    row: Ints
    latency_s: Floats

    def chosen(self, pairs: Ints) -> list[tuple[Rows, Ints]]:
        """Return, for all messages whose routes have equally many links, the rows and the messages, in their order."""
        kind = self.kind[pairs]
        if len(kind) and (kind == kind[0]).all():
            return [(self.rows[kind[0]], np.arange(len(kind)))] if kind[0] else []
        order = np.argsort(kind, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(kind, minlength=len(self.rows)))[:-1])
        return [(rows, part) for rows, part in zip(self.rows[1:], parts[1:], strict=True) if len(part)]


@lru_cache(maxsize=64)
def route_table(dimension: Dimension, *, num_ranks: int, weight: int) -> RouteTable | None:
    """Return the routes between all ranks of a line, if they are few and in closed form.

    Parameters
    ----------
    dimension : Dimension
    num_ranks : int
        From one port of a rank to the next, in links.
    weight : int
        From one coordinate along the line to the next, in ranks.
    """
    n = dimension.size
    if n > _FEW:
        return None
    pairs = np.flatnonzero(np.arange(n * n) % (n + 1))
    found = dimension.structure.routes(dimension, (pairs // n, pairs % n))
    if found is None:
        return None
    local, hops = found
    latency_s = np.zeros(n * n)
    latency_s[pairs] = dimension.latency_of(hops)
    message = pairs[local.message]
    order = np.argsort(message, kind="stable")
    counts = np.bincount(message, minlength=n * n)
    begins = np.cumsum(counts) - counts
    rows, row = [Rows(np.zeros((0, n), np.int64), np.ones((1, 1)))], np.zeros(n * n, np.int64)
    lengths, kind = np.unique(np.append(counts, 0), return_inverse=True)
    for length in lengths[1:].tolist():
        alike = np.flatnonzero(counts == length)
        row[alike] = np.arange(len(alike))
        taken = order[begins[alike] + np.arange(length)[:, None]]
        shares = local.share[taken]
        if (shares == shares[0, 0]).all():
            shares = shares[:1, :1]
        rows.append(Rows((local.port * num_ranks + local.coordinate * weight)[taken], shares))
    return RouteTable(tuple(rows), kind.reshape(-1)[:-1].astype(np.uint8), row, latency_s)
