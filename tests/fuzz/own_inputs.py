"""What a program gives besides arguments: rounds of an algorithm of its own, and keys of a sweep, some of nonsense."""

from random import Random

from judge import Case
from nonsense import OBJECTS
from python_inputs import nonsense

import scaleout
from scaleout.network.collectives import ALGORITHMS
from scaleout.network.collectives.rounds import (
    Combined,
    Edges,
    Everyone,
    Exchange,
    Fold,
    FoldedExchange,
    Ring,
    Round,
    Schedule,
    Shift,
)
from scaleout.study.sweep.grid import KEYED, PLAIN

_TOPOLOGIES = ("t3-ring-8", "h200-node-4", "graph-8", "mi210-pair", "dgx-h200-2")
_KINDS = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter")
_NAME = "of_the_fuzzer"


def own(random):
    """A number, of which rounds or the keys of a sweep are drawn."""
    return Case("own", {"own": f"{random.choice(('rounds', 'rounds', 'sweep'))} {random.randrange(2**63)}".encode()})


def read_own(case):
    """Time a collective of such rounds, or make the table of such a sweep, whose cases all fail."""
    what, seed = case.files["own"].decode().split()
    random = Random(int(seed))
    if what == "sweep":
        scaleout.sweep(workers=1, **_keys(random))
        return
    kind, topology, made = random.choice(_KINDS), random.choice(_TOPOLOGIES), _rounds(random)
    scaleout.define_algorithm(_NAME, kind)(lambda placement: made)
    network = random.choice(("alpha_beta", "link"))
    try:
        (row,) = scaleout.collective(kind, "1MiB", topology=topology, algorithm=_NAME, network=network).by_size[0]
    finally:
        del ALGORITHMS[_NAME]
    if not 0 < row["time_s"] < float("inf"):
        raise AssertionError(f"takes {row['time_s']} s")


def _keys(random):
    keys = {"workload": "dlrm-128", "schedule": ["baseline", "overlap"], "set": {"nonsense": [1, 2]}}
    for _ in range(random.choice((1, 1, 2))):
        key = random.choice((*PLAIN, *KEYED, "title", "columns", "where", "baseline", "views"))
        value = nonsense(random)
        several = [value, random.choice(OBJECTS)] if random.random() < 0.4 else value
        names = ("nonsense", "0-1", 0, "all", "\ud800")
        if key != "workload":
            keys[key] = {random.choice(names): several} if key in KEYED and random.random() < 0.8 else several
    return {"set": {"nonsense": 1}, **keys}


def _rounds(random):
    """A schedule of which something is nonsense, mostly."""
    if random.random() < 0.05:
        return _either(random, Schedule(()))
    made = [_round(random) for _ in range(random.choice((1, 1, 2, 5)))]
    return Schedule(tuple(made) if random.random() < 0.97 else made, random.random() < 0.2)


def _round(random):
    p = random.choice((2, 4, 8, 16))
    fraction, repeat = random.choice((1 / p, 1.0, 0.5)), random.choice((1, 1, p - 1))
    if random.random() < 0.05:
        return _either(random, None)
    dimensions = None if random.random() < 0.8 else random.choice(((0,), (1,), (0, 1), (1, 0), (0, 0), ()))
    return Round(
        _pattern(random, p), _either(random, fraction), _either(random, repeat), _either(random, dimensions),
        random.choice((0, 0, 0, 1, -1)),
    )  # fmt: skip


def _pattern(random, p):
    root = (0,) * (p - 1)
    made = random.choice((
        Ring, Everyone, lambda: Ring(True), lambda: Shift((_either(random, random.randrange(p)),)),
        lambda: Shift((_either(random, 1), 0)), lambda: Exchange(_either(random, random.randrange(5))),
        lambda: Edges(root, tuple(range(1, p))), lambda: Edges((_either(random, 0),), (_either(random, p - 1),)),
        lambda: FoldedExchange(_either(random, 0), _either(random, random.randrange(3))),
        lambda: Fold(_either(random, 1)), lambda: Combined(_pattern(random, p), random.random() < 0.5, True),
        lambda: _either(random, None),
    ))  # fmt: skip
    return made()


def _either(random, good):
    """A good value, or seldom another."""
    return good if random.random() < 0.9 else nonsense(random)
