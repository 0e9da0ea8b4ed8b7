"""What is in flight: collectives and messages that share the links, and when each of them is done.

A member starts a step of its collective when its messages of the step before have left and those to it have arrived.
A message holds all links of its route at one rate (cut-through); it has left when its last byte has, and arrived
when the latency of its route has passed as well. At any time the messages in flight share the links max-min fairly;
rates change when a message starts or ends. Messages that are alike are one flow (see `demand`).

There are two ways to the same bits: batch by batch (`batched`), and message by message in a compiled loop
(`event_driven`), to which the traffic is handed over where members drift apart and there is much of it.

Knows nothing of graphs, streams or of what waits for a collective: whoever begins one asks to `advance`.
"""

import math
import sys
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any, Protocol

from scaleout.network.flow.batched import BatchedFlows
from scaleout.network.flow.flows import Demand
from scaleout.network.routes.links import Floats, Links

_WORTH_S, _LOADED_S = 0.5, 0.002
"""Time wasted batch by batch for which the compiled loop is loaded, about what that takes; and once it is."""


class _Loop(Protocol):
    """What runs chains: see `BatchedFlows` and `EventDrivenFlows`."""

    @property
    def link_bytes(self) -> Floats: ...

    def begin(
        self, name: int, chain: Demand, size_bytes: float, *, start_s: float, after_s: float, latencies: bool
    ) -> None: ...

    def set_speeds(self, speeds: Mapping[int, float], now_s: float) -> None: ...

    def next_s(self) -> float: ...

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]: ...


class Traffic:
    """The links and all that is in flight.

    Parameters
    ----------
    links : Links
    compiled : bool, optional
        Whether to go message by message; by default where it is worth it.
    """

    def __init__(self, links: Links, *, compiled: bool | None = None) -> None:
        self.links = links
        self._chains: dict[int, list[int]] = {}
        self._batched: BatchedFlows | None = BatchedFlows(links)
        self._loop: _Loop = self._batched
        worth_s = _LOADED_S if "scaleout.network.flow.event_driven" in sys.modules else _WORTH_S
        self._worth_s = {None: worth_s, True: -1.0, False: math.inf}[compiled]
        self._log: list[tuple[float, Callable[[_Loop], None]]] = []
        """What was asked of the loop, and when."""
        self._reached_s = -math.inf

    @property
    def link_bytes(self) -> Floats:
        """(L,) what each link has been given to carry so far; of links that are alike, the one that stands for them."""
        return self._loop.link_bytes

    def begin(
        self,
        name: int,
        demand: Demand,
        size_bytes: float,
        *,
        now_s: float,
        before_s: float = 0.0,
        after_s: float = 0.0,
        latencies: bool = True,
    ) -> None:
        """Let a collective begin.

        Parameters
        ----------
        name : int
            What `advance` shall call it.
        size_bytes : float
            Above zero.
        now_s : float
            Not before any time that was advanced to.
        before_s, after_s : float
            Time before its first message starts, and after its last message has arrived.
        latencies : bool
            Whether routes have latency; a slice of a larger transfer pays it once, in `after_s`.
        """
        self._chains[name] = [len(demand.chains), len(demand.chains)]
        for chain in demand.chains:
            asked: dict[str, Any] = {"name": name, "chain": chain, "size_bytes": size_bytes, "latencies": latencies}
            asked |= {"start_s": now_s + before_s, "after_s": after_s}
            self._do(now_s, methodcaller("begin", **asked))

    def set_speeds(self, speeds: Mapping[int, float], now_s: float) -> None:
        """Set the speeds, above zero and at most 1, of some collectives in flight from now on.

        A message gets so many times its fair rate: what it leaves of it is used by no other. Latencies last as many
        times less. So a collective alone on the links takes ``1 / speed`` times as long, all of it.
        """
        self._do(now_s, methodcaller("set_speeds", dict(speeds), now_s))

    def next_s(self) -> float:
        """Return the time of the next event; infinite if nothing is in flight."""
        return self._loop.next_s()

    def _do(self, now_s: float, ask: Callable[[_Loop], None]) -> None:
        ask(self._loop)
        if self._batched is not None:
            self._log.append((now_s, ask))

    def advance(self, until_s: float = math.inf) -> tuple[float, list[int], list[int]]:
        """Advance until something has been sent or is done, but not beyond a time.

        Returns
        -------
        float, list of int, list of int
            The time, the collectives that have sent all, and those that are done. If there are none until then,
            `until_s`: infinite if nothing is in flight.
        """
        while True:
            if self._batched is not None and self._batched.wasted_s > self._worth_s:
                self._go_one_by_one()
            now_s, chains_sent, chains_done = self._loop.advance(until_s)
            sent = [name for name in chains_sent if self._last_chain(name, 0)]
            done = [name for name in chains_done if self._last_chain(name, 1)]
            if now_s < math.inf:
                self._reached_s = now_s
            if sent or done or now_s == until_s:
                return now_s, sent, done

    def _last_chain(self, name: int, which: int) -> bool:
        """Count one chain of a collective as sent (0) or done (1); return whether it was the last."""
        self._chains[name][which] -= 1
        return self._chains[name][which] == 0

    def _go_one_by_one(self) -> None:
        """Let the compiled loop begin all that has begun, and catch up: the same bits, so the same state."""
        from scaleout.network.flow.event_driven import EventDrivenFlows  # noqa: PLC0415 - numba takes a while to import

        self._loop = loop = EventDrivenFlows(self.links)
        for asked_s, ask in self._log:
            while any(loop.advance(asked_s)[1:]):
                pass
            ask(loop)
        while any(loop.advance(self._reached_s)[1:]):
            pass
        self._batched = None
        self._log.clear()
