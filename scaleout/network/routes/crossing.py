"""The links that messages cross, kept compact and listed on demand, and routes along short lines in closed form.

Maps messages and the rows of a `RouteTable` to pairs of a message and a link, or to their sum over the messages on each
link, which does not need the pairs: messages that take the same route along a line are counted first.

Symbols: M messages; N of them in a part; T rows of h links each; H pairs of a message and a link; L links.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.dimension import Dimension
from scaleout.cluster.topology.kinds.kind import Floats, Ints
from scaleout.network.routes.routing import Flags

MOST_KEPT = 100
"""Ranks along a dimension up to which the routes of all pairs, less than its cube of links, are kept."""


class Rows(NamedTuple):
    """Routes with equally many links."""

    links: Ints  # (h, T) from that of the first port at the lowest rank of the line
    shares: Floats  # (h, T), or (1, 1) if all are the same


class Part(NamedTuple):
    """Links of messages: one each, or rows of equally many."""

    message: Ints  # (N,)
    first: Ints  # (N,) the link, or what to add to those of the row
    rows: Rows | None = None
    row: Ints | None = None  # (N,)
    share: Floats | None = None  # (N,) of one link each; 1 if not given

    @property
    def num_rows(self) -> int:
        """Links for each entry."""
        return 1 if self.rows is None else len(self.rows.links)

    @property
    def num_pairs(self) -> int:
        """Pairs of a message and a link."""
        return len(self.message) * self.num_rows

    def spell(self, messages: Ints, links: Ints, shares: Floats) -> None:
        """Write the links, the message of each and its share, all (h, N)."""
        messages[:] = self.message
        if self.rows is None or self.row is None:
            links[:] = self.first
            shares[:] = 1.0 if self.share is None else self.share
            return
        np.take(self.rows.links, self.row, axis=1, out=links, mode="clip")
        links += self.first
        shares[:] = self.rows.shares if len(self.rows.shares) == 1 else self.rows.shares[:, self.row]

    @property
    def in_order(self) -> "Part":
        """The same, by message."""
        if (np.diff(self.message) >= 0).all():
            return self
        order = np.argsort(self.message, kind="stable")
        row = None if self.row is None else self.row[order]
        share = None if self.share is None else self.share[order]
        return Part(self.message[order], self.first[order], self.rows, row, share)

    @property
    def ways(self) -> "Ways":
        """The links of all messages; of those on the same way once, where they are many."""
        if self.rows is None or self.row is None:
            return Ways(self.message, self.first[None], 1.0 if self.share is None else self.share[None])
        first, row, codes, counts = self.first, self.row, None, None
        lowest, num_rows = first.min(), self.rows.links.shape[1]
        if (first.max() - lowest + 1) * num_rows <= len(first):
            codes = (first - lowest) * num_rows + row
            counts = np.bincount(codes)
            found = np.flatnonzero(counts)
            first, row, counts = found // num_rows + lowest, found % num_rows, counts[found]
            codes = np.searchsorted(found, codes)
        shares = float(self.rows.shares[0, 0]) if self.rows.shares.size == 1 else self.rows.shares[:, row]
        return Ways(self.message, self.rows.links[:, row] + first, shares, counts, codes)


class Ways(NamedTuple):
    """K ways over h links each, and the messages that take them."""

    message: Ints  # (N,)
    links: Ints  # (h, K)
    shares: Floats | float  # (h, K), or that of all
    counts: Ints | None = None
    """(K,) messages on each way; one if not given, and then the messages are in the order of the ways."""
    which: Ints | None = None  # (N,) the way of each message

    def load(self, num_links: int) -> Floats:
        """(L,) messages on each link."""
        if self.counts is None and isinstance(self.shares, float):
            return np.asarray(np.bincount(self.links.ravel(), minlength=num_links) * self.shares)
        weights = self.shares if self.counts is None else self.shares * self.counts
        each = np.broadcast_to(weights, self.links.shape)
        return np.asarray(np.bincount(self.links.ravel(), each.ravel(), minlength=num_links), np.float64)

    def through(self, full: Flags) -> Flags:
        """(N,) whether each message crosses a link that is full."""
        crosses: Flags = np.asarray(full[self.links].any(axis=0))
        return crosses if self.which is None else crosses[self.which]


@dataclass(frozen=True, eq=False)
class Crossing:
    """The links that messages cross."""

    parts: tuple[Part, ...]
    num_messages: int

    @classmethod
    def of(cls, messages: Ints, links: Ints, shares: Floats, num_messages: int) -> "Crossing":
        """Return the crossing that (H,) pairs of a message and a link, and the shares there, spell out."""
        return cls((Part(messages, links, share=shares),), num_messages)

    @property
    def num_pairs(self) -> int:
        """Pairs of a message and a link."""
        return sum(part.num_pairs for part in self.parts)

    @cached_property
    def _in_order(self) -> list[Part]:
        return [part.in_order for part in self.parts]

    def between(self, begin: int, end: int) -> "Crossing":
        """The links that some messages cross, which are counted from the first of them."""
        if (begin, end) == (0, self.num_messages):
            return self
        parts = []
        for message, first, rows, row, share in self._in_order:
            at, to = message.searchsorted((begin, end)).tolist()
            if at < to:
                of_row = None if row is None else row[at:to]
                of_share = None if share is None else share[at:to]
                parts.append(Part(message[at:to] - begin, first[at:to], rows, of_row, of_share))
        return Crossing(tuple(parts), end - begin)

    def by_message(self) -> tuple[Ints, Ints, Floats]:
        """Return (M + 1,) where the links of each message begin, and (H,) links and shares."""
        counts = [np.bincount(part.message, minlength=self.num_messages) * part.num_rows for part in self.parts]
        begins = np.concatenate(([0], np.cumsum(sum(counts, np.zeros(self.num_messages, np.int64)))))
        links, shares = np.empty(begins[-1], np.int64), np.empty(begins[-1])
        at = begins[:-1].copy()
        for part, count in zip(self._in_order, counts, strict=True):
            where = at[part.message] + np.arange(part.num_rows)[:, None]
            if part.rows is None:  # a message may have several
                where += np.arange(len(part.message)) - part.message.searchsorted(part.message)
            messages, crossed, share = np.empty_like(where), np.empty_like(where), np.empty(where.shape)
            part.spell(messages, crossed, share)
            links[where], shares[where] = crossed, share
            at += count
        return begins, links, shares

    @cached_property
    def pairs(self) -> tuple[Ints, Ints, Floats]:
        """(H,) messages, links and shares, in no order that counts, written to their place at once."""
        if len(self.parts) == 1 and self.parts[0].rows is None and self.parts[0].share is not None:
            return self.parts[0].message, self.parts[0].first, self.parts[0].share
        ends = np.cumsum([0, *(part.num_pairs for part in self.parts)]).tolist()
        messages, links, shares = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int64), np.empty(ends[-1])
        for part, begin, end in zip(self.parts, ends, ends[1:], strict=False):
            shape = (1 if part.rows is None else len(part.rows.links)), len(part.message)
            part.spell(*(column[begin:end].reshape(shape) for column in (messages, links, shares)))
        return messages, links, shares

    @property
    def ways(self) -> list[Ways]:
        """The ways of all parts."""
        return [part.ways for part in self.parts if len(part.message)]


@dataclass(frozen=True, eq=False)
class RouteTable:
    """The routes between all ranks of a line, by pair ``source * n + destination``."""

    rows: tuple[Rows, ...]  # those with no link, to oneself, first
    kind: npt.NDArray[np.uint8]  # (n * n,) which of the rows
    row: Ints  # (n * n,) and which row there
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

    From one port of a rank to the next it is `num_ranks` links, from one coordinate to the next `weight` ranks.
    """
    n = dimension.size
    if n > MOST_KEPT:
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
