"""Primitive substitution: a collective as others that together have its effect.

Of the substitutes that are known only an all-reduce's reduce-scatter and all-gather become programs: those through one
root double the latency and let all messages meet at the root, and graphs have no roots to spread.

Knows no costs; who substitutes says which collectives. Source: Chen et al., Centauri, Sec. 3.1.1, Table 2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, ExecutionGraph
from scaleout.program.program import Program
from scaleout.schedule.rewrite import Rewrite

Chooser = Callable[[int, str, int], bool]
"""Whether a collective is rewritten: its family of groups, its kind and its bytes, on which all members agree."""

WHOLE = 1
"""Pieces of a transfer that is not cut."""


@dataclass(frozen=True)
class Substitution:
    """Collectives that together do what another does; `pruned` says why they are not taken, or is empty."""

    kind: str
    parts: tuple[str, ...]
    pruned: str = ""


_ROOTED = "through one root it takes twice the latency, and all messages meet at the root"
_ROOTS = "the roots are spread, but collectives of a graph have none: one collective stands for all of them"

SUBSTITUTIONS = (
    Substitution("all_reduce", ("reduce", "broadcast"), _ROOTED),
    Substitution("all_reduce", ("reduce_scatter", "all_gather")),
    Substitution("reduce_scatter", ("reduce", "scatter"), _ROOTED),
    Substitution("reduce_scatter", ("reduces",), _ROOTS),
    Substitution("all_gather", ("gather", "broadcast"), _ROOTED),
    Substitution("all_gather", ("broadcasts",), _ROOTS),
)
"""Table 2, in its order."""


def substitution(kind: str, parts: Sequence[str]) -> Substitution:
    """Return a substitution that can be carried out.

    Raises
    ------
    ConfigError
        If it is pruned, with the reason, or is none.
    """
    for found in SUBSTITUTIONS:
        if found.kind == kind and found.parts == tuple(parts):
            if found.pruned:
                raise ConfigError(f"{kind} as {' + '.join(parts)} is pruned: {found.pruned}; leave {kind} whole")
            return found
    known = "; ".join(f"{each.kind} as {' + '.join(each.parts)}" for each in SUBSTITUTIONS if not each.pruned)
    raise ConfigError(f"{' + '.join(parts)} is no substitute of {kind}; known: {known}")


def substitute(program: Program, *, chosen: Chooser = lambda family, kind, size_bytes: True) -> Program:
    """Write every all-reduce that is chosen as a reduce-scatter and an all-gather of the same bytes."""
    parts = substitution("all_reduce", ("reduce_scatter", "all_gather")).parts
    return program.map_graphs(lambda graph: _substitute(graph, parts, chosen))


def _substitute(graph: ExecutionGraph, parts: Sequence[str], chosen: Chooser) -> ExecutionGraph:
    all_reduces = (graph.collective == COLLECTIVES.index("all_reduce")) & (graph.pieces == WHOLE)
    found = {
        node
        for node in np.flatnonzero(all_reduces).tolist()
        if chosen(int(graph.group[node]), "all_reduce", int(graph.bytes[node]))
    }
    if not found:
        return graph
    new = Rewrite(graph)
    for node in range(len(graph)):
        if node not in found:
            new.keep(node)
            continue
        after = new.needs(node)
        for part in parts:
            name = f"{graph.names[node]}_{part}"
            after = [new.add(node, after, name=name, collective=COLLECTIVES.index(part))]
        new.done[node] = after[0]
    return new.build()
