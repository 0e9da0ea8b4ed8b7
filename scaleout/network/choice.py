"""Which algorithm `auto` takes: the fastest at each size, and how far behind the next one is.

Maps the times of all algorithms over sizes to decisions. Knows neither models nor topologies.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Decision:
    """What is taken at one size.

    Attributes
    ----------
    bytes : int
    algorithm : str
        The fastest; of equally fast ones the first.
    time_s : float
    runner_up : str
        The next fastest; empty if there is no other.
    ratio : float
        Time of the next fastest over that of the fastest; 1 if there is no other.
    changed : bool
        Whether a smaller size takes another algorithm; false at the first size.
    """

    bytes: int
    algorithm: str
    time_s: float
    runner_up: str
    ratio: float
    changed: bool


def decide(times_s: Mapping[int, Mapping[str, float]]) -> tuple[Decision, ...]:
    """Return the decision at each size, in the order of the sizes.

    Parameters
    ----------
    times_s : mapping of int to mapping of str to float
        Size in bytes to the time of each algorithm, one at least.

    >>> [first, second] = decide({10: {"ring": 2.0, "direct": 1.0}, 1000: {"ring": 3.0, "direct": 6.0}})
    >>> first.algorithm, second.algorithm, second.runner_up, second.ratio, second.changed
    ('direct', 'ring', 'direct', 2.0, True)
    """
    decisions: list[Decision] = []
    for size_bytes, times in times_s.items():
        (best, best_s), *others = sorted(times.items(), key=lambda item: item[1])
        runner_up, runner_up_s = others[0] if others else ("", best_s)
        changed = bool(decisions) and decisions[-1].algorithm != best
        ratio = runner_up_s / best_s if best_s else 1.0
        decisions.append(Decision(size_bytes, best, best_s, runner_up, ratio, changed))
    return tuple(decisions)
