"""Which back end serves a collective: a table of sizes, or runs of a benchmark.

Maps a number of ranks and a size to the name of a back end. A `Table` says so outright. `Learned` compares what
benchmarks of each back end took: those of the number of ranks that is nearest, at the size between their sizes, on
logarithmic axes. Knows no machine and no cost.

Symbols: p ranks; n bytes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.errors import ConfigError


@dataclass(frozen=True)
class Rule:
    """One line of a table: on so many ranks and fewer, up to so many bytes, a back end."""

    num_ranks: float
    size_bytes: float
    backend: str


@dataclass(frozen=True)
class Table:
    """Rules; of those that fit the one of the fewest ranks holds, and of these that of the smallest size."""

    rules: tuple[Rule, ...]

    def choose(self, num_ranks: int, size_bytes: float) -> str:
        """Return the back end for a collective.

        Raises
        ------
        ConfigError
            If no rule fits.
        """
        fitting = [rule for rule in self.rules if num_ranks <= rule.num_ranks and size_bytes <= rule.size_bytes]
        if not fitting:
            raise ConfigError(
                f"the table has no back end for {size_bytes:.0f} B on {num_ranks} ranks; end it with a rule without "
                f"ranks and size"
            )
        return min(fitting, key=lambda rule: (rule.num_ranks, rule.size_bytes)).backend

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the back ends in the table."""
        return tuple(dict.fromkeys(rule.backend for rule in self.rules))


@dataclass(frozen=True)
class Curve:
    """What a back end took on some ranks: seconds at sizes in ascending order."""

    backend: str
    num_ranks: int
    sizes_bytes: tuple[float, ...]
    seconds: tuple[float, ...]

    def time_s(self, size_bytes: float) -> float:
        """Time at a size: between two on logarithmic axes, beyond the last in proportion, below the first the same."""
        sizes, seconds = np.log(self.sizes_bytes), np.log(self.seconds)
        found = float(np.exp(np.interp(math.log(max(size_bytes, 1.0)), sizes, seconds)))
        return found * max(1.0, size_bytes / self.sizes_bytes[-1])


@dataclass(frozen=True)
class Learned:
    """Benchmarks of back ends: `curves` of each on the same numbers of ranks."""

    curves: tuple[Curve, ...]

    def __hash__(self) -> int:
        return hash((len(self.curves), self.curves[0]))

    def choose(self, num_ranks: int, size_bytes: float) -> str:
        """Return the back end that was fastest where the benchmarks are nearest."""
        nearest = min(self.ranks, key=lambda ranks: (abs(math.log(ranks / num_ranks)), ranks))
        of = [curve for curve in self.curves if curve.num_ranks == nearest]
        return min(of, key=lambda curve: curve.time_s(size_bytes)).backend

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of ranks that were run."""
        return tuple(sorted({curve.num_ranks for curve in self.curves}))

    @property
    def backends(self) -> tuple[str, ...]:
        """Names of the back ends that were run."""
        return tuple(dict.fromkeys(curve.backend for curve in self.curves))


Selection = Table | Learned


def learned(curves: Sequence[Curve]) -> Learned:
    """Return what curves teach, if they can be compared.

    Raises
    ------
    ConfigError
        If there are none, or a back end lacks a number of ranks or a size that another one has.
    """
    if not curves:
        raise ConfigError("no benchmark to learn from; give a file of nccl-tests for each back end")
    names = tuple(dict.fromkeys(curve.backend for curve in curves))
    for ranks in sorted({curve.num_ranks for curve in curves}):
        of = {curve.backend: curve for curve in curves if curve.num_ranks == ranks}
        for name in names:
            if name not in of:
                raise ConfigError(
                    f"the benchmark of {name} has no run on {ranks} ranks, and that of {next(iter(of))} has; run both "
                    f"on the same ranks"
                )
        every = sorted({size for curve in of.values() for size in curve.sizes_bytes})
        for name, curve in of.items():
            missing = [size for size in every if size not in curve.sizes_bytes]
            if missing:
                raise ConfigError(
                    f"the benchmark of {name} on {ranks} ranks lacks sizes that others have: "
                    f"{', '.join(f'{size:.0f} B' for size in missing[:4])}{', ...' if len(missing) > 4 else ''}; run "
                    f"all over the same sizes"
                )
    return Learned(tuple(curves))
