"""Back ends of a machine side by side: all-reduce times over sizes and numbers of ranks.

Maps a topology to times, shape ``(B, R, S)``: B back ends, R numbers of ranks, S sizes. A topology without back ends
compares the algorithms that may serve. The ranks are the first of the topology; all congruent groups are active.

Source: Dryden et al., Aluminum, MLHPC 2018, Figs. 10 and 11.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from scaleout.cluster.topology.backends import KIND, backend, with_policy
from scaleout.cluster.topology.communication_library import Rule, Table
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import counted
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.network.collectives import candidates
from scaleout.program.fastest import MARGIN


@dataclass(frozen=True, eq=False)
class BackendComparison:
    """Times of back ends, shape (B, R, S)."""

    topology: str
    backends: tuple[str, ...]
    num_ranks: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    times_s: npt.NDArray[np.float64]
    auto: tuple[tuple[str, ...], ...]  # algorithm that `auto` takes, R by S
    auto_s: npt.NDArray[np.float64]  # its time, shape (R, S)

    @property
    def best(self) -> npt.NDArray[np.int64]:
        """Index of the fastest back end, shape (R, S)."""
        return np.asarray((self.times_s * (1 - MARGIN) <= self.times_s.min(axis=0)).argmax(axis=0), np.int64)

    @property
    def worst_auto(self) -> tuple[int, int] | None:
        """Indices of ranks and size where `auto` is slowest against the fastest; None if it is nowhere slower."""
        least_s = self.times_s.min(axis=0)
        longer = np.divide(self.auto_s, least_s, out=np.ones_like(least_s), where=least_s > 0)
        row, column = np.unravel_index(int(longer.argmax()), longer.shape)
        return (int(row), int(column)) if longer[row, column] * (1 - MARGIN) > 1 else None

    def curve(self, name: str, ranks: int) -> npt.NDArray[np.float64]:
        """Times of a back end on some ranks, shape (S,)."""
        return np.asarray(self.times_s[self.backends.index(name), self.num_ranks.index(ranks)])

    def largest_won(self, name: str, ranks: int) -> int:
        """Return the largest size at which a back end is the fastest; 0 if there is none."""
        won = np.flatnonzero(self.best[self.num_ranks.index(ranks)] == self.backends.index(name))
        return self.sizes_bytes[int(won[-1])] if len(won) else 0

    def table(self, small: str, large: str) -> Table:
        """Return the table of sizes up to which one back end is taken, and another beyond."""
        rules = [Rule(ranks, size, small) for ranks in self.num_ranks if (size := self.largest_won(small, ranks))]
        return Table((*rules, *(Rule(ranks, math.inf, large) for ranks in (*self.num_ranks, math.inf))))


def compare_backends(
    topology: Topology, *, names: Sequence[str] = (), sizes_bytes: Sequence[int] = ()
) -> BackendComparison:
    """Charge an all-reduce of every size to every back end.

    By default `names` are all back ends, or of a topology without all algorithms, and `sizes_bytes` powers of two from
    4 B to 1 GiB. `ConfigError` if the machine has no such back end, or no algorithm does it on some of the ranks.
    """
    ranks = default_ranks(topology)
    sizes = tuple(sizes_bytes) or tuple(4 << shift for shift in range(29))
    if topology.backends:
        chosen = tuple(names) or tuple(name for name, _ in topology.backends)
        for name in chosen:
            backend(topology, name)
        machines = [with_policy(topology, name) for name in chosen]
        times = [[_times(machine, count, sizes, "auto") for count in ranks] for machine in machines]
    else:
        able = {count: [found.name for found in candidates(KIND, place(topology, range(count)))] for count in ranks}
        chosen = tuple(names) or tuple(able[ranks[-1]])
        never = [math.inf] * len(sizes)  # where an algorithm cannot serve fewer ranks
        times = [
            [_times(topology, count, sizes, name) if names or name in able[count] else never for count in ranks]
            for name in chosen
        ]
    taken = [[collective_cost(KIND, size, place(topology, range(count))) for size in sizes] for count in ranks]
    auto = tuple(tuple(cost.algorithm for cost in row) for row in taken)
    auto_s = np.array([[cost.time_s for cost in row] for row in taken])
    return BackendComparison(topology.name, chosen, ranks, sizes, np.array(times), auto, auto_s)


def default_ranks(topology: Topology) -> tuple[int, ...]:
    """Return the powers of two up to the topology's ranks, from two nodes on where it has more dimensions than one."""
    first = 2 * topology.shape[0] if len(topology.shape) > 1 else 2
    first = 1 << (first - 1).bit_length()
    found = tuple(1 << bit for bit in range(first.bit_length() - 1, topology.num_ranks.bit_length()))
    if not found:
        raise ConfigError(
            f"topology {topology.name!r} has {counted(topology.num_ranks, 'rank')}; give one of two or more"
        )
    return found


def _times(topology: Topology, count: int, sizes: Sequence[int], algorithm: str) -> list[float]:
    group = place(topology, range(count))
    return [collective_cost(KIND, size, group, algorithm).time_s for size in sizes]
