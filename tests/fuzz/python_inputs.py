"""Calls of the public functions, some of whose arguments are nonsense, by itself or within a good one."""

import inspect
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from api_examples import CALLABLES, examples_in, required
from judge import Case
from nonsense import FOREIGN, OBJECTS, VALUES

import scaleout

_SLOW = ("search", "sweep", "run_study")
"""Which start processes."""
_NAMES = [name for name in CALLABLES if name not in _SLOW]
_TEXTS = [text for kind in sorted(VALUES) for text in VALUES[kind] if len(text) < 300]


@cache
def _examples():
    folder = TemporaryDirectory()
    return folder, examples_in(Path(folder.name))


def calls(random):
    """A function and a number, of which its arguments are drawn."""
    return Case("call", {"call": f"{random.choice(_NAMES)} {random.randrange(2**63)}".encode()})


_GOOD = {
    "changes": {"layers": 2, "sequence": 64}, "algorithms": {"all_reduce": "ring"}, "injection_bytes_per_s": 1e9,
    "network_changes": {"degrade": {"0-1": 0.5}, "bandwidth": {"0": "2x"}, "slow": {0: 1.5}, "broken": ["2-3"]},
}  # fmt: skip
"""Optional arguments that hold something."""


def read_call(case):
    name, seed = case.files["call"].decode().split()
    random, arguments = Random(int(seed)), dict(required(name, _examples()[1]))
    plain = [
        each.name for each in inspect.signature(getattr(scaleout, name)).parameters.values()
        if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) and each.name not in ("tell", "condition")
        and not type(arguments.get(each.name)).__module__.startswith("scaleout")
    ]  # fmt: skip
    for parameter in random.sample(plain, min(len(plain), random.choice((1, 1, 1, 2, 3)))):
        arguments[parameter] = _other(random, arguments.get(parameter, _GOOD.get(parameter)))
    getattr(scaleout, name)(**arguments)


def _other(random, good):
    """Something else than a good argument: of a list, a range or a mapping mostly with one of its values changed."""
    what = random.random()
    if isinstance(good, range | list) and len(good) and what < 0.6:
        changed = list(good)
        changed[random.randrange(len(changed))] = nonsense(random)
        return changed
    if isinstance(good, dict) and what < 0.8:
        key = random.choice(list(good))
        return {**good, key: _other(random, good[key])} if what < 0.7 else {_nonsense_key(random): good[key]}
    return good if what > 0.9 else nonsense(random)


def _nonsense_key(random):
    return random.choice((*_TEXTS, None, -1, 0, 1.0, 10**400, ("a",), True))


def nonsense(random):
    """Return something that few arguments may be."""
    what = random.random()
    if what < 0.6:
        return random.choice(OBJECTS)
    if what < 0.7:
        return random.choice(FOREIGN)
    if what < 0.85:
        return random.choice(_TEXTS)
    inner = nonsense(random)
    return random.choice(([inner], (inner, inner), {"0-1": inner}, {0: inner}, {"layers": inner}, {"all": inner}))
