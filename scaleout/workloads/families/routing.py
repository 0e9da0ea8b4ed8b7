"""How a router spreads tokens over experts: rows that each gets, and places that a token goes to, in closed form.

A router that is out of balance is described by its *maximal violation*, by how much the busiest expert's rows exceed
the mean, over the mean (Wang et al., arXiv:2408.15664, Eq. 4). Loads are log-normal draws, stretched until they have
it.

Symbols: E experts; k of them a token's; n places (ranks, nodes), of E / n experts each.
Source: arXiv:2408.15664; node-limited routing: DeepSeek-V3, arXiv:2412.19437, 2.1.2.
"""

import functools
import math

import numpy as np


def distinct(places: int, experts: int, chosen: int) -> float:
    """Return how many places have some of a token's experts, in the mean: ``n (1 - C(E - E/n, k) / C(E, k))``.

    Every choice of k of E experts is as likely as any other.

    >>> round(distinct(2, 4, 2), 3)  # of 6 choices 2 lie in one place
    1.667
    """
    return places * (1 - math.comb(experts - experts // places, chosen) / math.comb(experts, chosen))


@functools.lru_cache(maxsize=1024)
def rows_of_experts(rows: int, experts: int, violation: float, seed: int) -> tuple[int, ...]:
    """Return the rows that each expert gets of `rows`, as whole numbers that add up to them.

    The busiest gets ``1 + violation`` times the mean, rounded; all alike if that is 0, and at most all rows.
    """
    shares = np.full(experts, 1 / experts)
    if violation and experts > 1:
        draws = np.random.default_rng(seed).standard_normal(experts)
        draws -= draws.max()
        low, high, most = 0.0, 1e9, min(1 + violation, experts) / experts
        for _ in range(100):  # the more they are stretched, the more the busiest has
            stretch = (low + high) / 2
            shares = np.exp(stretch * draws) / np.exp(stretch * draws).sum()
            low, high = (stretch, high) if shares.max() < most else (low, stretch)
    whole = np.floor(shares * rows).astype(np.int64)
    rest = np.argsort(whole - shares * rows, kind="stable")[: rows - int(whole.sum())]
    whole[rest] += 1
    return tuple(whole.tolist())
