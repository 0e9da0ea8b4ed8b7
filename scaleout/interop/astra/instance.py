"""Collective instances as their members arrive, and messages as sender and receiver post them.

Checks that all members issue the same collective; knows nothing of how long it takes.
"""

from collections import Counter
from dataclasses import dataclass, field

from scaleout.errors import SimulationError
from scaleout.interop.astra.clock import Clock, Signals
from scaleout.interop.astra.members import Carry, Deliver
from scaleout.interop.astra.network import RENDEZVOUS_BYTES
from scaleout.interop.astra.plan import Plan
from scaleout.interop.astra.progress import Unit
from scaleout.interop.astra.trace import EVERYONE, Task


@dataclass(eq=False)
class CollectiveInstance:
    """One collective."""

    group: str
    number: int  # how many collectives the group had before
    members: tuple[int, ...]  # ranks, in the order of their positions
    task: Task  # of the first member
    plan: Plan
    # units, their tasks and times of arrival [ns], in this order, of `num_arrived` ranks
    arrived: list[tuple[Unit, int, int]] = field(default_factory=list)
    num_arrived: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all members have arrived."""
        return self.num_arrived == len(self.members)

    def register(self, unit: Unit, index: int, now_ns: int) -> None:
        """Register the arrival of a unit, whose collective must be that of the members before it."""
        task = unit.graph.tasks[index]
        wanted, found = ((each.kind, each.size_bytes, each.involved) for each in (self.task, task))
        if wanted != found:
            first = self.arrived[0][0].ranks[0]
            raise SimulationError(
                f"collective {self.number} of {describe_group(self.group)}: rank {first} issues "
                f"{_words(self.task)}, but rank {unit.ranks[0]} {_words(task)}; all members must issue the same "
                f"collectives, of the same sizes, in the same order"
            )
        self.arrived.append((unit, index, now_ns))
        self.num_arrived += len(unit.ranks)


def describe_group(group: str) -> str:
    """Name a group in a message."""
    return "all ranks" if group == EVERYONE else f"group {group!r}"


def _words(task: Task) -> str:
    dims = f", involved_dim {list(task.involved)}" if task.involved else ""
    return f"{task}, an {task.kind} of {task.size_bytes} bytes{dims}"


class Mail:
    """Messages from rank to rank, matched in order by sender, receiver, tag and size."""

    def __init__(self, clock: Clock, carry: Carry, *, rendezvous: bool) -> None:
        self._carry, self._rendezvous = carry, rendezvous
        self._arrivals, self._requests = Signals(clock), Signals(clock)
        self.sent: Counter[tuple[int, int, int, int]] = Counter()
        self.received: Counter[tuple[int, int, int, int]] = Counter()

    def send(self, rank: int, task: Task, done: Deliver) -> None:
        """Send; `done` is called when the message has arrived."""
        key = (rank, task.peer, task.tag, task.size_bytes)
        self.sent[key] += 1

        def arrive() -> None:
            done()
            self._arrivals.signal(key)

        def leave() -> None:
            self._carry(rank, task.peer, task.size_bytes, arrive)

        if self._rendezvous:
            self._requests.wait(key, leave)
        else:
            leave()

    def receive(self, rank: int, task: Task, done: Deliver) -> None:
        """Receive; `done` is called when the message has arrived."""
        key = (task.peer, rank, task.tag, task.size_bytes)
        self.received[key] += 1
        if self._rendezvous:
            self._carry(rank, task.peer, RENDEZVOUS_BYTES, lambda: self._requests.signal(key))
        self._arrivals.wait(key, done)

    def check(self) -> None:
        """Check that every message that was sent was received."""
        for key in sorted(self.sent):
            source, target, tag, size_bytes = key
            lost = self.sent[key] - self.received[key]
            if lost > 0:
                raise SimulationError(
                    f"rank {source} sends {lost} message{'s' * (lost > 1)} of {size_bytes} bytes to rank {target} with "
                    f"tag {tag} that rank {target} never receives; add a receive of this source, tag and size"
                )
