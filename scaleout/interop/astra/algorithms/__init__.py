"""Collective algorithms of ASTRA-sim: a name as system.json has it, a kind and a size, to who sends what to whom.

The table has one entry an algorithm; `named` splits what a name says besides. Nothing here knows time or networks.

Source: ASTRA-sim 2.0 at commit 518bd51 (2026-03-26), behaviour as measured.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scaleout.config.reading import nearest
from scaleout.errors import ConfigError
from scaleout.interop.astra.algorithms import double_binary_tree
from scaleout.interop.astra.algorithms.double_binary_tree import Tree
from scaleout.interop.astra.algorithms.exchange import Exchange, Manner, direct, halving_doubling, ring

Steps = Exchange | Tree

TREE = "doubleBinaryTree"
ALGORITHMS: Mapping[str, Callable[[str, int, int, Manner], Exchange]] = {
    "ring": ring,
    "direct": direct,
    "halvingDoubling": halving_doubling,
}
"""Name of an exchange to what builds it from kind, members, bytes and manner."""

_NAMES = (*ALGORITHMS, TREE, "oneRing", "oneDirect", "oneHalvingDoubling")
_WINDOWED = re.compile(r"(direct|oneDirect)(\d+)")


@dataclass(frozen=True)
class Named:
    """What a name in system.json asks for.

    Attributes
    ----------
    algorithm : str
        One of `ALGORITHMS`, or `TREE`.
    window : int or None
        Messages that `direct` sends at a time; all of them for None.
    flat : bool
        Whether all dimensions are taken as one ("one...").
    """

    algorithm: str
    window: int | None = None
    flat: bool = False


def named(text: str, *, where: str) -> Named:
    """Read a name such as ``direct8`` or ``oneRing``.

    Raises
    ------
    ConfigError
        If there is no such algorithm.
    """
    match = _WINDOWED.fullmatch(text)
    name, window = (match[1], int(match[2])) if match else (text, None)
    if name not in _NAMES or window == 0:
        raise ConfigError(f"{where}: unknown algorithm {text!r}; {nearest(text, _NAMES)}")
    flat = name.startswith("one")
    return Named(name[3].lower() + name[4:] if flat else name, window, flat)


def check(choice: Named, kind: str, num_ranks: int, *, where: str) -> None:
    """Check that an algorithm can do a kind of collective among so many members.

    Raises
    ------
    ConfigError
        If ASTRA-sim would hang or crash on it.
    """
    if choice.algorithm in ("halvingDoubling", TREE) and num_ranks & (num_ranks - 1):
        raise ConfigError(
            f"{where}: {choice.algorithm} needs a power of two of ranks, but there are {num_ranks}; use ring or direct"
        )
    if choice.algorithm == "halvingDoubling" and kind == "all-to-all":
        raise ConfigError(f"{where}: {choice.algorithm} cannot do {kind}; use ring or direct")


def build(choice: Named, kind: str, num_ranks: int, *, size_bytes: int, tree: int = 0, manner: Manner) -> Steps:
    """Build what the members do for one phase of a stream of `size_bytes`."""
    if choice.algorithm == TREE:
        return double_binary_tree.build(num_ranks, size_bytes, tree)
    return ALGORITHMS[choice.algorithm](kind, num_ranks, size_bytes, manner)
