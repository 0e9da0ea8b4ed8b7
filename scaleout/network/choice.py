"""Which algorithm `auto` takes at each size, and how far from it the fastest other one is.

Maps the times of all algorithms over sizes, and what `auto` takes, to decisions. That is the fastest, but where a
communication library chooses by what it expects. Knows neither models nor topologies.
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
        What `auto` takes.
    time_s : float
    runner_up : str
        The fastest other; empty if there is no other.
    ratio : float
        Time of the fastest other over that of what is taken; 1 if there is no other, and less than 1 if `auto` does
        not take the fastest.
    changed : bool
        Whether a smaller size takes another algorithm; false at the first size.
    """

    bytes: int
    algorithm: str
    time_s: float
    runner_up: str
    ratio: float
    changed: bool


def decide(times_s: Mapping[int, Mapping[str, float]], taken: Mapping[int, str]) -> tuple[Decision, ...]:
    """Return the decision at each size, in the order of the sizes.

    Parameters
    ----------
    times_s : mapping of int to mapping of str to float
        Size in bytes to the time of each algorithm, one at least.
    taken : mapping of int to str
        Size in bytes to the algorithm that `auto` takes.

    >>> times_s = {10: {"ring": 2.0, "direct": 1.0}, 1000: {"ring": 3.0, "direct": 6.0}}
    >>> [first, second] = decide(times_s, {10: "direct", 1000: "ring"})
    >>> first.algorithm, second.algorithm, second.runner_up, second.ratio, second.changed
    ('direct', 'ring', 'direct', 2.0, True)
    >>> decide(times_s, {10: "ring", 1000: "ring"})[0].ratio
    0.5
    """
    decisions: list[Decision] = []
    for size_bytes, times in times_s.items():
        chosen, time_s = taken[size_bytes], times[taken[size_bytes]]
        others = {name: other_s for name, other_s in times.items() if name != chosen}
        runner_up = min(others, key=others.__getitem__, default="")
        changed = bool(decisions) and decisions[-1].algorithm != chosen
        ratio = others.get(runner_up, time_s) / time_s if time_s else 1.0
        decisions.append(Decision(size_bytes, chosen, time_s, runner_up, ratio, changed))
    return tuple(decisions)
