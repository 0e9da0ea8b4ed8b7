"""What messages take from each place of an axis to the next, alone on the network: of all groups the slowest.

Pairs that lie alike in the topology are asked about once. Source: none; bookkeeping over `alpha_beta.send_cost`.

Symbols: p places of a pipeline; v model chunks of a rank.
"""

import functools
from collections.abc import Sequence

import numpy as np

from scaleout.network.alpha_beta import CollectiveCost, send_cost
from scaleout.parallelism import Mesh
from scaleout.peers import distances
from scaleout.pipelines import PIPELINES
from scaleout.topology import Topology

Pairs = tuple[tuple[int, int], ...]
"""Ranks, each with its next along an axis."""


def neighbours(topology: Topology, mesh: Mesh, axis: str) -> list[Pairs]:
    """Return for each place of an axis the pairs of a rank and its next that are not alike; the last's is the first."""
    groups = np.array(mesh.groups(axis).members)
    following = np.roll(groups, -1, axis=1)
    sources, targets = groups.T.ravel(), following.T.ravel()
    apart = distances(topology, sources, targets)
    first, kind = np.unique(apart, axis=0, return_index=True, return_inverse=True)[1:]
    pairs = list(zip(sources[first].tolist(), targets[first].tolist(), strict=True))
    places = kind.reshape(groups.shape[::-1])
    return [tuple(pairs[number] for number in np.unique(place)) for place in places]


def slowest(size_bytes: int, topology: Topology, *, between: Sequence[Pairs]) -> list[CollectiveCost]:
    """Return the slowest message of each place, of those between its pairs."""
    return [
        max(
            (send_cost(size_bytes, topology, source=source, destination=to) for source, to in pairs),
            key=lambda cost: cost.time_s,
        )
        for pairs in between
    ]


def sends_s(hops_s: Sequence[float], pipeline_schedule: str, p: int, v: int) -> list[list[float]]:
    """Return the seconds of a message between each chunk of each place and its successor, shape (p, v).

    Parameters
    ----------
    hops_s : sequence of float, length p
        From each place to the next.
    """
    return [
        [0.0 if to is None else hops_s[place if (to - place) % p == 1 else to] for to in row]
        for place, row in enumerate(_targets(pipeline_schedule, p, v))
    ]


@functools.lru_cache(maxsize=512)
def _targets(name: str, p: int, v: int) -> tuple[tuple[int | None, ...], ...]:
    """Return the place that each chunk of each place sends to; None for the last stage, or its own place."""
    rows = []
    for place_ in range(p):
        found = [PIPELINES[name].after(place_, chunk, p, v) for chunk in range(v)]
        rows.append(tuple(None if to is None or to[0] == place_ else to[0] for to in found))
    return tuple(rows)
