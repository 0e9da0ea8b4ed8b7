"""Ways to communicate that a machine offers, and policies: which of them serves an all-reduce.

A back end is a communication library with its own costs: NCCL's rings, MPI's trees between copies to the host and
back, and so on; a topology's file names them. A policy makes one library of some of them:

`NAME`
    that back end alone
`NAME+NAME`
    the fastest of these at each size and number of ranks
`fastest`
    the fastest of all that leave the host free
`FILE.yaml`
    a table of rules: ranks and sizes up to which a back end serves
`NAME=FILE,NAME=FILE,...`
    what benchmarks in nccl-tests' format, one or more of each back end, say of the nearest ranks and size

What is no all-reduce stays with the topology's own library.

Knows no collective and no time; `network.alpha_beta` charges the library that comes out.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from scaleout import config
from scaleout.errors import ConfigError
from scaleout.nccl_tests import read_runs
from scaleout.selection import Curve, Rule, Selection, Table, learned
from scaleout.topology import Topology
from scaleout.transport import Library, Protocol
from scaleout.units import Bytes

KIND = "all_reduce"
"""What policies choose for."""

_FASTEST = "fastest"


def with_policy(topology: Topology, policy: str) -> Topology:
    """Return the topology with the library that a policy makes of its back ends.

    Raises
    ------
    ConfigError
        If the machine has no such back end, or a table or benchmark is wrong.
    """
    if not topology.backends:
        raise ConfigError(
            f"policy {policy!r}: topology {topology.name!r} names no back ends; add 'backends' to its file, or leave "
            f"the policy out"
        )
    return replace(topology, library=library_of(topology, policy))


def with_table(topology: Topology, table: Table, *, name: str) -> Topology:
    """Return the topology with the library that a table makes of its back ends."""
    return replace(topology, library=_joined(topology, name, table.backends, table))


def library_of(topology: Topology, policy: str) -> Library:
    """Return the library that a policy makes; see `with_policy`."""
    if policy.endswith((".yaml", ".yml")):
        table = load_table(Path(policy))
        return _joined(topology, policy, table.backends, table)
    if "=" in policy:
        found = learned(_curves(topology, policy))
        return _joined(topology, policy, found.backends, found)
    if policy == _FASTEST:
        free = tuple(name for name, library in topology.backends if not library.blocks_host)
        return _joined(topology, policy, free, None)
    return _joined(topology, policy, tuple(dict.fromkeys(policy.split("+"))), None)


def backend(topology: Topology, name: str) -> Library:
    """Return one back end of a machine.

    Raises
    ------
    ConfigError
        If the machine has none of that name; the message gives the nearest.
    """
    known = dict(topology.backends)
    if name not in known:
        raise ConfigError(
            f"topology {topology.name!r} has no back end {name!r}; {config.nearest(name, [*known, _FASTEST])}"
        )
    return known[name]


def _joined(topology: Topology, policy: str, names: Sequence[str], selection: Selection | None) -> Library:
    """Make one library of several: each serves the algorithms that are its own."""
    parts = {name: backend(topology, name) for name in names}
    blocking = [name for name, library in parts.items() if library.blocks_host]
    if blocking and len(parts) > 1:
        raise ConfigError(
            f"policy {policy!r}: {blocking[0]} blocks the host, so that the choice of a back end changes what it can "
            f"run beside; take it alone"
        )
    default = topology.library
    others = tuple(_others(protocol) for protocol in default.protocols) if default else ()
    protocols = tuple(
        _pinned(protocol, library, name)
        for name, library in parts.items()
        for protocol in library.protocols
        if KIND in protocol.collectives
    )
    served = tuple(dict.fromkeys(name for library in parts.values() for name in library.algorithms_for(KIND)))
    algorithms = tuple((kind, chosen) for kind, chosen in default.algorithms if kind != KIND) if default else ()
    return Library(
        f"{policy} on {topology.name}",
        tuple(protocol for protocol in others if protocol.collectives) + protocols,
        (*algorithms, (KIND, served)),
        "\n".join(library.source for library in parts.values()),
        default.appetite if default else None,
        blocks_host=bool(blocking),
        selection=selection,
    )


def _others(protocol: Protocol) -> Protocol:
    """Return a protocol without the kind that the policy serves."""
    return replace(protocol, collectives=tuple(kind for kind in protocol.collectives if kind != KIND))


def _pinned(protocol: Protocol, library: Library, name: str) -> Protocol:
    algorithms = protocol.algorithms or library.algorithms_for(KIND)
    return replace(protocol, collectives=(KIND,), algorithms=algorithms, backend=name)


class _RuleFile(config.Config):
    ranks: Annotated[int, Field(gt=0)] | None = None
    size: Annotated[Bytes, Field(gt=0)] | None = None
    backend: str


class _TableFile(config.Config):
    source: str
    rules: tuple[_RuleFile, ...]


def load_table(path: Path) -> Table:
    """Read a table of rules; what a rule leaves out does not limit it.

    Raises
    ------
    ConfigError
        If there is no such file, or it is no table.
    """
    if not path.is_file():
        raise ConfigError(f"policy file '{path}' does not exist; give a file of rules, or a back end's name")
    values = config.validate(_TableFile, config.read_yaml(path), where=str(path))
    if not values.rules:
        raise ConfigError(f"{path}: a table without rules; give at least one")
    return Table(
        tuple(
            Rule(
                math.inf if rule.ranks is None else rule.ranks,
                math.inf if rule.size is None else rule.size,
                rule.backend,
            )
            for rule in values.rules
        )
    )


def _curves(topology: Topology, policy: str) -> list[Curve]:
    """Read the benchmarks that a policy names."""
    found: list[Curve] = []
    for part in policy.split(","):
        name, _, file = part.partition("=")
        if not (name and file):
            raise ConfigError(f"policy {policy!r}: {part!r} is no benchmark of a back end; write nccl_ring=runs.txt")
        backend(topology, name)
        found += [Curve(name, run.num_ranks, run.sizes_bytes, run.seconds) for run in read_runs(Path(file))]
    twice = [curve for curve in found if sum(_same(curve, other) for other in found) > 1]
    if twice:
        raise ConfigError(
            f"policy {policy!r}: {twice[0].backend} on {twice[0].num_ranks} ranks was run more than once; keep one run"
        )
    return found


def _same(one: Curve, other: Curve) -> bool:
    return (one.backend, one.num_ranks) == (other.backend, other.num_ranks)
