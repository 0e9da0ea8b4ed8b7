"""From a step to weeks of training: jitter and stragglers, failures, checkpoints and restarts.

Maps the times of a simulated step, and what disturbs it, to the distribution of a step and the share of the time that
trains. Knows no repair of single links, no spare nodes and no failures that come together. See
docs/models/cost-and-goodput.md.

A step waits for its slowest rank: ``step + compute (max_i J_i - 1)``, J lognormal of mean 1, times the slowdown on
ranks that are stragglers. Failures come at random at the rate ``1 / M`` of all ranks and ports; each costs what was
computed since the last checkpoint, and a restart. With checkpoints of d seconds every t seconds of training the
expected time of an interval is ``M e**(R / M) (e**((t + d) / M) - 1)``.

Symbols: N ranks; M mean time between failures of the job; t interval; d checkpoint; R restart.
Source: Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22(3), 2006.
"""

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.link_type import load_link_type
from scaleout.cluster.topology.topology import Topology
from scaleout.config.documents import LARGEST_NUMBER, LEAST_NUMBER
from scaleout.config.units import format_seconds
from scaleout.errors import ConfigError

RESTART_S = 600.0
"""From a failure until training goes on, besides what is computed again. Source: Jiang et al., MegaScale, NSDI 2024:
detected and diagnosed in less than 10 minutes on average."""


_QUANTILES = 1000
"""Points at which the distribution of the slowest rank is read for its mean."""


@dataclass(frozen=True)
class Disturbance:
    """What happens to a job beside the simulated step."""

    failures_per_s: float  # of the whole job
    checkpoint_s: float  # for which training waits
    restart_s: float = RESTART_S
    interval_s: float | None = None  # of training between checkpoints; the best if None
    jitter: float = 0.0  # standard deviation of a rank's compute in a step, over its mean
    stragglers: float = 0.0  # share of ranks that are slow
    straggler_slowdown: float = 1.0
    seed: int = 0
    samples: int = 10_000

    def __post_init__(self) -> None:
        for name in ("failures_per_s", "checkpoint_s", "restart_s", "jitter"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} is {value}; give zero or more")
        if self.interval_s is not None and not (math.isfinite(self.interval_s) and self.interval_s > 0):
            raise ConfigError(f"the interval of checkpoints is {self.interval_s} s; give more than zero")
        if not 0 <= self.stragglers <= 1 or not 1 <= self.straggler_slowdown <= LARGEST_NUMBER:
            raise ConfigError(
                f"stragglers {self.stragglers}={self.straggler_slowdown}: give a share of the ranks from 0 to 1, and "
                f"how many times as long they take, from 1 to {LARGEST_NUMBER:g}"
            )


@dataclass(frozen=True)
class Goodput:
    """What is left of a simulated speed."""

    step_s: float  # simulated, without disturbance
    step_mean_s: float
    step_median_s: float
    step_p95_s: float
    between_failures_s: float  # mean; infinite if nothing fails
    interval_s: float  # of training between checkpoints; infinite if nothing fails
    goodput: float  # share of the time that trains, with the mean step
    checkpoint_share: float  # of the time
    failure_share: float  # computed again, and restarts

    @property
    def speed(self) -> float:
        """Of the simulated speed, what is left of it all."""
        return self.goodput * self.step_s / self.step_mean_s

    @property
    def waiting_share(self) -> float:
        """Of the time, that in which steps last longer than simulated, as they wait for their slowest rank."""
        return self.goodput - self.speed

    def training_s(self, steps: float) -> float:
        """Return the expected time of so many steps."""
        return steps * self.step_mean_s / self.goodput

    def summary(self) -> dict[str, Any]:
        """Return it as plain values; what never happens is None."""
        found = {**asdict(self), "speed": self.speed}
        return {name: value if math.isfinite(value) else None for name, value in found.items()}


def goodput(step_s: float, *, compute_s: float, ranks: int, disturbance: Disturbance) -> Goodput:
    """Return what is left of a step of which so much is compute; the same for the same seed.

    >>> found = goodput(1.0, compute_s=0.8, ranks=8, disturbance=Disturbance(1 / 3600, 10.0, 60.0))
    >>> f"every {found.interval_s:.0f} s, {found.goodput:.3f}"
    'every 262 s, 0.912'
    """
    steps_s = sampled_steps(step_s, compute_s=compute_s, ranks=ranks, disturbance=disturbance)
    median_s, p95_s = (float(found) for found in np.quantile(steps_s, (0.5, 0.95)))
    rate, written_s = disturbance.failures_per_s, disturbance.checkpoint_s
    between_s = 1 / rate if rate else math.inf
    interval_s = disturbance.interval_s or best_interval_s(between_s, written_s)
    spent_s = expected_interval_s(interval_s, between_s, checkpoint_s=written_s, restart_s=disturbance.restart_s)
    trains = 1.0 if math.isinf(interval_s) else interval_s / spent_s
    if trains < LEAST_NUMBER:
        raise ConfigError(
            f"a job that fails every {_told(between_s)} never finishes an interval of {_told(interval_s)} with "
            f"checkpoints of {_told(written_s)} and restarts of {_told(disturbance.restart_s)}; give shorter ones, or "
            f"fewer failures"
        )
    writes = 0.0 if math.isinf(interval_s) else written_s / spent_s
    mean_s = float(steps_s.mean())
    return Goodput(
        step_s, mean_s, median_s, p95_s, between_s, interval_s, trains, writes, max(0.0, 1 - trains - writes)
    )


def sampled_steps(step_s: float, *, compute_s: float, ranks: int, disturbance: Disturbance) -> npt.NDArray[np.float64]:
    """Return times of steps, shape (samples,)."""
    each = disturbance
    random = _Random(ranks, each.jitter, each.stragglers, each.straggler_slowdown, each.seed, each.samples)
    return step_s + compute_s * (_factors(random) - 1.0)


class _Random(NamedTuple):
    """What the factors of the slowest rank depend on."""

    ranks: int
    jitter: float
    stragglers: float
    slowdown: float
    seed: int
    samples: int


@lru_cache(maxsize=16)
def _factors(of: _Random) -> npt.NDArray[np.float64]:
    """Return how many times as long the slowest rank's compute takes in each sample, shape (samples,)."""
    random = np.random.default_rng(of.seed)
    slow = random.binomial(of.ranks, of.stragglers, of.samples)
    found = np.maximum(
        _slowest(random.random(of.samples), of.ranks - slow, of.jitter),
        _slowest(random.random(of.samples), slow, of.jitter) * of.slowdown,
    )
    return np.asarray(found)


def expected_slowest(ranks: int, jitter: float) -> float:
    """Mean of the largest of so many factors of mean 1: by how much the slowest rank's compute is longer.

    >>> round(expected_slowest(1, 0.02), 6), round(expected_slowest(1024, 0.02), 3)
    (1.0, 1.067)
    """
    quantiles = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return float(_slowest(quantiles, np.full(_QUANTILES, ranks), jitter).mean()) if ranks > 1 else 1.0


def _slowest(uniform: npt.NDArray[np.float64], counts: npt.NDArray[np.int64], jitter: float) -> npt.NDArray[np.float64]:
    """Largest of so many lognormal factors of mean 1, by its own distribution; zero of none."""
    if not jitter:
        return np.where(counts > 0, 1.0, 0.0)
    sigma = math.sqrt(math.log1p(jitter**2))
    above = -np.expm1(np.log(np.maximum(uniform, 1e-300)) / np.maximum(counts, 1))  # 1 - u**(1 / n)
    deviates = np.array([-NormalDist().inv_cdf(min(max(each, 1e-300), 1 - 1e-16)) for each in above.tolist()])
    return np.where(counts > 0, np.exp(sigma * deviates - sigma**2 / 2), 0.0)


def expected_interval_s(interval_s: float, between_s: float, *, checkpoint_s: float, restart_s: float) -> float:
    """Return the expected time until an interval is trained and written, failures and restarts included.

    Infinite where it is beyond any number.
    """
    if math.isinf(between_s):
        return interval_s + checkpoint_s
    try:
        return between_s * math.exp(restart_s / between_s) * math.expm1((interval_s + checkpoint_s) / between_s)
    except OverflowError:
        return math.inf


def _told(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else format_seconds(seconds)


def best_interval_s(between_s: float, checkpoint_s: float) -> float:
    """Return the interval of the least expected time (the root of its derivative); infinite if nothing fails.

    ``e**((t + d) / M) (1 - t / M) = 1``: with x = t / M, ``x + log(1 - x) + d / M = 0``.
    """
    if math.isinf(between_s):
        return math.inf
    if not checkpoint_s:
        raise ConfigError("checkpoints take no time, so that they would never end; give how long one takes")
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if middle + math.log1p(-middle) + checkpoint_s / between_s > 0 else (low, middle)
    return low * between_s


def disturbance_on(
    topology: Topology, device: Device, *, failures: float | None, jitter: float | None, **known: Any
) -> Disturbance:
    """Return what disturbs a job on all of a machine; by default its files say how often and how much.

    `failures` are those a second of a device with its ports; `known` are other attributes of the disturbance.
    """
    rate = failures_per_s(topology, device) if failures is None else failures * topology.num_ranks
    own = 0.0 if device.reliability is None else device.reliability.jitter
    return Disturbance(rate, jitter=own if jitter is None else jitter, **known)


def failures_per_s(topology: Topology, device: Device) -> float:
    """Return the rate of failures of a job on all of a machine: of its devices and of their ports.

    Raises
    ------
    ConfigError
        If the device's file says nothing of its failures.
    """
    if device.reliability is None:
        raise ConfigError(
            f"device {device.name!r} has no 'reliability' in its file, so that its rate of failures is not known; give "
            f"--failures, such as 0.17/year of a device"
        )
    return topology.num_ranks * (device.reliability.failures_per_s + port_failures_per_s(topology))


def port_failures_per_s(topology: Topology) -> float:
    """Return the rate of failures of all ports of a rank, with the cables and switches behind them."""
    types = [each.link_type for each in topology.dimensions if each.link_type and each.size > 1]
    return math.fsum(load_link_type(name).failures_per_s for name in types)
