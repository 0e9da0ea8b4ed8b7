"""A collective as its members come to it, and messages as sender and receiver do.

Knows who must come and checks that they come to the same; knows nothing of how long it takes.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from scaleout.errors import SimulationError
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.network import RENDEZVOUS_BYTES
from scaleout.interop.astra.plan import Plan
from scaleout.interop.astra.progress import Unit
from scaleout.interop.astra.trace import EVERYONE, Task

Carry = Callable[[int, int, int, Callable[[], None]], None]
"""Carries a message from rank to rank, of so many bytes, and calls the last argument when it is there."""


@dataclass(eq=False)
class CollectiveInstance:
    """One collective.

    Attributes
    ----------
    number : int
        How many collectives the group had before.
    members : sequence of int
        Ranks, in the order of their positions.
    task : Task
        What the first member came to.
    came : list of (Unit, int, int)
        Units, their tasks and when they came, in this order.
    num_came : int
        Ranks in these units.
    """

    group: str
    number: int
    members: tuple[int, ...]
    task: Task
    plan: Plan
    came: list[tuple[Unit, int, int]] = field(default_factory=list)
    num_came: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all members have come."""
        return self.num_came == len(self.members)

    def join(self, unit: Unit, index: int, now_ns: int) -> None:
        """Note that ranks have come.

        Raises
        ------
        SimulationError
            If they came to another collective than those before.
        """
        task = unit.graph.tasks[index]
        wanted, found = ((each.kind, each.size_bytes, each.involved) for each in (self.task, task))
        if wanted != found:
            first = self.came[0][0].ranks[0]
            raise SimulationError(
                f"collective {self.number} of {describe_group(self.group)}: rank {first} comes with "
                f"{_words(self.task)}, but rank {unit.ranks[0]} with {_words(task)}; all members must issue the same "
                f"collectives, of the same sizes, in the same order"
            )
        self.came.append((unit, index, now_ns))
        self.num_came += len(unit.ranks)


def describe_group(group: str) -> str:
    """Name a group in a message."""
    return "all ranks" if group == EVERYONE else f"group {group!r}"


def _words(task: Task) -> str:
    dims = f", involved_dim {list(task.involved)}" if task.involved else ""
    return f"{task}, an {task.kind} of {task.size_bytes} bytes{dims}"


class Mail:
    """Messages from rank to rank, matched in order by sender, receiver, tag and size."""

    def __init__(self, clock: Clock, carry: Carry, *, rendezvous: bool) -> None:
        self._clock, self._carry, self._rendezvous = clock, carry, rendezvous
        self._came: dict[tuple[int, int, int, int], int] = defaultdict(int)
        self._leave: dict[tuple[int, int, int, int], deque[Callable[[], None]]] = defaultdict(deque)
        self._asked: dict[tuple[int, int, int, int], int] = defaultdict(int)
        self._wait: dict[tuple[int, int, int, int], deque[Callable[[], None]]] = defaultdict(deque)
        self.sent: dict[tuple[int, int, int, int], int] = defaultdict(int)
        self.received: dict[tuple[int, int, int, int], int] = defaultdict(int)

    def send(self, rank: int, task: Task, done: Callable[[], None]) -> None:
        """Send; `done` is called when the message is there."""
        key = (rank, task.peer, task.tag, task.size_bytes)
        self.sent[key] += 1

        def arrive() -> None:
            done()
            if self._wait[key]:
                self._wait[key].popleft()()
            else:
                self._came[key] += 1

        def leave() -> None:
            self._carry(rank, task.peer, task.size_bytes, arrive)

        if not self._rendezvous:
            leave()
        elif self._asked[key]:
            self._asked[key] -= 1
            self._clock.at(self._clock.now_ns, leave)
        else:
            self._leave[key].append(leave)

    def receive(self, rank: int, task: Task, done: Callable[[], None]) -> None:
        """Wait for a message; `done` is called when it has come."""
        key = (task.peer, rank, task.tag, task.size_bytes)
        self.received[key] += 1

        def ask() -> None:
            if self._leave[key]:
                self._leave[key].popleft()()
            else:
                self._asked[key] += 1

        if self._rendezvous:
            self._carry(rank, task.peer, RENDEZVOUS_BYTES, ask)
        if self._came[key]:
            self._came[key] -= 1
            self._clock.at(self._clock.now_ns, done)
        else:
            self._wait[key].append(done)

    def check(self) -> None:
        """Check that every message that was sent was received.

        Raises
        ------
        SimulationError
            If one was not.
        """
        for key in sorted(self.sent):
            source, target, tag, size_bytes = key
            lost = self.sent[key] - self.received[key]
            if lost > 0:
                raise SimulationError(
                    f"rank {source} sends {lost} message{'s' * (lost > 1)} of {size_bytes} bytes to rank {target} with "
                    f"tag {tag} that rank {target} never receives; add a receive of this source, tag and size"
                )
