"""Transfers that share links: their chains batch by batch, or message by message in a compiled loop.

A member starts a round of its collective when its messages of the round before have left and those to it have arrived.
A message holds all links of its route at one rate; rates change when a message starts or ends.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import methodcaller
from typing import Protocol

from scaleout.network.flow.batched import BatchedFlows
from scaleout.network.flow.flows import Demand
from scaleout.network.routes.links import Floats, Links

_WORTH_S, _LOADED_S = 0.5, 0.002
"""Time wasted batch by batch for which the compiled loop is loaded, about what that takes; and once it is."""

BY_MESSAGE, BY_BATCH = -1.0, math.inf
"""Such times with which it goes message by message from the start, or never."""


@dataclass(frozen=True)
class Transfer:
    """What a collective or a message sends: a demand, of more than zero bytes.

    Attributes
    ----------
    before_s, after_s : time before its first message starts, and after its last message has arrived
    latencies : bool
        Whether routes have latency; a slice of a larger transfer pays it once, in `after_s`.
    inflation : float
        Bytes that keep bare links busy as long as a protocol does, for each byte that it sends; `size_bytes` has it.
    """

    demand: Demand
    size_bytes: float
    before_s: float = 0.0
    after_s: float = 0.0
    latencies: bool = True
    inflation: float = 1.0


class _Loop(Protocol):
    """What runs chains: see `batched.BatchedFlows` and `event_driven.EventDrivenFlows`."""

    @property
    def link_bytes(self) -> Floats: ...

    def start(
        self, name: int, chain: Demand, size_bytes: float, *, start_s: float, after_s: float, latencies: bool
    ) -> None: ...

    def set_speeds(self, speeds: Mapping[int, float], now_s: float) -> None: ...

    def advance(self, until_s: float) -> tuple[float, list[int], list[int]]: ...


class SharedTraffic:
    """The links and the transfers that share them, message by message once batches have wasted `worth_s`."""

    def __init__(self, links: Links, worth_s: float | None = None) -> None:
        self.links = links
        self._chains: dict[int, list[int]] = {}
        self._batched: BatchedFlows | None = BatchedFlows(links)
        self._loop: _Loop = self._batched
        default_s = _LOADED_S if "scaleout.network.flow.event_driven" in sys.modules else _WORTH_S
        self._worth_s = default_s if worth_s is None else worth_s
        self._log: list[tuple[float | None, Callable[[_Loop], None]]] = []
        """What the loop was called for, and how far it had been advanced since the call before, if it had."""
        self._reached_s: float | None = None

    @property
    def link_bytes(self) -> Floats:
        """(L,) what each link has been given to carry so far; of links that are alike, the one that stands for them."""
        return self._loop.link_bytes

    def start(self, name: int, transfer: Transfer, start_s: float) -> None:
        """Start a transfer, which `advance` shall call by a name.

        If it shall have started before now, what has happened since is for `advance`.
        """
        chains = transfer.demand.chains
        self._chains[name] = [len(chains), len(chains)]
        for chain in chains:
            self._do(
                methodcaller(
                    "start", name, chain, transfer.size_bytes, start_s=start_s + transfer.before_s,
                    after_s=transfer.after_s, latencies=transfer.latencies,
                )
            )  # fmt: skip

    def set_speeds(self, speeds: Mapping[int, float], now_s: float) -> None:
        """Set the speeds, above zero and at most 1, of some collectives in flight from now on.

        A message gets so many times its fair rate, of which no other uses the rest; latencies are divided by it.
        """
        self._do(methodcaller("set_speeds", dict(speeds), now_s))

    def _do(self, call: Callable[[_Loop], None]) -> None:
        call(self._loop)
        if self._batched is not None:
            self._log.append((self._reached_s, call))
            self._reached_s = None

    def advance(self, until_s: float = math.inf) -> tuple[float, list[int], list[int]]:
        """Advance until something has been sent or is done, but not beyond a time.

        Returns the time, the collectives that have sent all, and those that are done; if there are none until then,
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
        """Let the compiled loop start all that has started, and catch up: the same bits, so the same state."""
        from scaleout.network.flow.event_driven import EventDrivenFlows  # noqa: PLC0415 - numba takes a while to import

        self._loop = loop = EventDrivenFlows(self.links)
        for reached_s, call in [*self._log, (self._reached_s, lambda _: None)]:
            while reached_s is not None and any(loop.advance(reached_s)[1:]):
                pass
            call(loop)
        self._batched = None
        self._log.clear()
