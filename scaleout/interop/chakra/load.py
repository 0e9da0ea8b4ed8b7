"""A set of Chakra traces to a program: one execution graph for all ranks whose traces are congruent.

Files of the same bytes are read once. Ranks share a graph if their traces differ at most in ids, in which group of
a family they name, one for one in the ranks that their messages name, and in the numbers of ranks in names of nodes,
of which the graph has those of the first rank.

Symbols: N nodes of a file; R ranks.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from scaleout.errors import TraceError
from scaleout.interop.chakra import vocabulary
from scaleout.interop.chakra.attributes import get, to_dict
from scaleout.interop.chakra.fields import Bits
from scaleout.interop.chakra.framing import read_content
from scaleout.interop.chakra.nodes import NodeReader, Nodes
from scaleout.interop.chakra.rows import held, locating
from scaleout.interop.chakra.trace_set import (
    Group,
    TraceSet,
    find_traces,
    gathered_families,
    stated_families,
)
from scaleout.interop.chakra.vocabulary import StatedFamily
from scaleout.interop.chakra.wire import Metadata
from scaleout.program.calls import KernelColumns
from scaleout.program.graph import (
    COLLECTIVES,
    NEUTRAL,
    NONE,
    ExecutionGraph,
    Floats,
    Ints,
    NodeKind,
    compress,
    compress_edges,
    topological_order,
)
from scaleout.program.operations import RECORDED, Kernel
from scaleout.program.program import GroupFamily, Program

_ALL_GATHER = COLLECTIVES.index("all_gather")


def _none() -> Ints:
    return np.empty(0, np.int64)


_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class LoadedTrace:
    """What a set of traces holds."""

    program: Program  # not scheduled; kernels of unknown time are for `scaleout.cluster.device.annotate` to time
    # the text attributes of the first rank's metadata, unread, such as those given to `save_program`
    facts: Mapping[str, str]


def _by_first_use(values: Ints | Floats) -> tuple[Ints, list[int]]:
    """Number distinct values by first appearance; return the number of each, and the distinct ones; `NONE` stays."""
    used = values != NONE
    distinct, first, inverse = np.unique(values[used], return_index=True, return_inverse=True)
    order = np.argsort(first)
    column = np.full(len(values), NONE)
    column[used] = np.argsort(order)[inverse.reshape(-1)]
    return column, distinct[order].tolist()


@dataclass(frozen=True, eq=False)
class _File:
    """A rank's file."""

    path: Path
    metadata: Metadata
    stated: list[str]  # families that our metadata states
    reader: NodeReader
    ids: Bits  # (N,)
    names: Ints  # (N,) numbers of the reader's names
    columns: Mapping[str, Any]  # of `Nodes`, (N,)
    declared: Mapping[str, list[int]]  # groups that metadata nodes list, key to ranks
    # distinct keys of groups and families that our own attribute states, in the order of their first use
    groups: list[tuple[str, int]]
    group_of: Ints  # (N,) which of `groups`, or `NONE`
    peers: list[int]  # distinct ranks that messages of no group name, in the order of their first use
    peer_of: Ints  # (N,) which of `peers`, or `NONE`
    dependency_offsets: Ints = field(default_factory=_none)  # (N + 1,)
    dependencies: Ints = field(default_factory=_none)  # (E,) positions in the file
    structure: bytes = b""  # equal for files that differ at most in ids, groups and ranks: of messages, and in names

    def column(self, name: str) -> Any:
        """Return a column of graphs, (N,)."""
        return self.columns[name]

    def name(self, node: int) -> str:
        """Return the name of a node."""
        return self.reader.names[int(self.names[node])]

    def describe(self, node: int) -> str:
        """Say where a node is."""
        return f"{self.path}: node {self.ids[node]} ({self.name(node)!r})"


class _Columns:
    """Columns that files and graphs share where they are equal."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}
        self._names: dict[bytes, tuple[str, ...]] = {}

    def key(self, column: Any) -> bytes:
        """Return what only equal columns have."""
        is_one = len(column) > 0 and (column == column[0]).all()
        content = column[:1].tobytes() if is_one else hashlib.blake2b(column).digest()
        return f"{column.dtype.char} {len(column)} {is_one} ".encode() + content

    def __call__(self, column: Any) -> Any:
        """Return the first column that was equal to one."""
        return self._known.setdefault(self.key(column), column)

    def names(self, names: Ints, texts: Sequence[str]) -> tuple[str, ...]:
        """Return the names of nodes by number."""
        key = self.key(names)
        if key not in self._names:
            self._names[key] = tuple(map(texts.__getitem__, names.tolist()))
        return self._names[key]


def load_program(path: str | os.PathLike[str], *, dtype: str = "bf16") -> LoadedTrace:
    """Read the traces of all ranks.

    Parameters
    ----------
    path : str or path
        A folder that holds ``<prefix>.<rank>.et`` of one prefix, ranks from 0 without a gap; or a folder and a
        prefix, such as ``traces/dlrm``.
    dtype : str
        Data type of kernels of which a trace tells FLOPs and bytes only.

    Raises
    ------
    TraceError
        If the set is not complete, a file is damaged, or a node lacks what its kind needs or names a group, rank
        or node that is not there. The message names file and node.
    GraphError
        If nodes wait for each other in a cycle, or a kernel has no time and no FLOPs.
    ConfigError
        If the dtype is not known.
    """
    traces = find_traces(path)
    columns = _Columns()
    files = _read_files(traces.paths, columns, dtype=dtype)
    for rank, file in enumerate(files):
        _check_rank(file, rank, num_ranks=traces.num_ranks)
    families, family_of_group = _groups(traces, files)
    roles: dict[tuple[object, ...], int] = {}
    graphs: list[ExecutionGraph] = []
    role_of_rank = np.empty(traces.num_ranks, np.int64)
    peers = np.full((traces.num_ranks, max(len(file.peers) for file in files)), NONE)
    for rank, file in enumerate(files):
        further = _further(file, rank, [families[family] for family in family_of_group[rank]])
        of_group, gathered = family_of_group[rank], set(file.group_of[file.column("collective") == _ALL_GATHER])
        sizes = tuple(
            len(families[family].of(rank)) if number in gathered else NONE for number, family in enumerate(of_group)
        )
        key = (file.structure, of_group, sizes, columns.key(further))
        if key not in roles:
            roles[key] = len(graphs)
            with locating(file.path):
                graphs.append(_graph(file, columns, of_group, sizes, further))
        role_of_rank[rank] = roles[key]
        peers[rank, : len(file.peers)] = file.peers
    program = Program(traces.prefix, tuple(graphs), role_of_rank, families, peers if peers.size else None)
    facts = {name: text for name, text in to_dict(files[0].metadata).items() if isinstance(text, str)}
    return LoadedTrace(program, facts)


def _further(file: _File, rank: int, families: Sequence[GroupFamily]) -> Ints:
    """(N,) how many members further on in the group of a message its other end is; `NONE` of all other nodes."""
    further = np.full(len(file.ids), NONE)
    nodes = np.flatnonzero((file.group_of != NONE) & (file.column("kind") > NodeKind.COLLECTIVE))
    named = file.column("peer")[nodes]
    for number in np.unique(file.group_of[nodes]).tolist():
        members = families[number].of(rank)
        position = {member: (at - members.index(rank)) % len(members) for at, member in enumerate(members)}
        mine = file.group_of[nodes] == number
        lost = [node for node in nodes[mine].tolist() if int(file.column("peer")[node]) not in position]
        if lost:
            raise TraceError(
                f"{file.describe(lost[0])} names rank {file.column('peer')[lost[0]]}, which is not in the group of "
                f"{families[number].name!r} that rank {rank} is in; write the trace again"
            )
        further[nodes[mine]] = [position[peer] for peer in named[mine].tolist()]
    return further


def _read_files(paths: Sequence[Path], columns: _Columns, *, dtype: str) -> list[_File]:
    """Read all files; those of equal bytes are read once."""
    reader = NodeReader(dtype=dtype)
    files: list[_File] = []
    known: dict[bytes, _File] = {}
    for path in paths:
        with locating(path):
            content = read_content(path)
            digest = hashlib.blake2b(content.whole).digest()
            if digest not in known:
                known[digest] = _lay_out(path, *reader.read(content), reader, columns)
        files.append(replace(known[digest], path=path))
    return files


def _lay_out(path: Path, metadata: Metadata, nodes: Nodes, reader: NodeReader, share: _Columns) -> _File:
    """Find what the nodes of a file wait for, and which groups and peers they name."""
    columns = {name: share(column) for name, column in sorted(nodes.columns.items())}
    group_of, groups = _by_first_use(columns.pop("group"))
    del columns["family"]
    messages = (columns["kind"] > NodeKind.COLLECTIVE) & (group_of == NONE)
    peer_of, peers = _by_first_use(np.where(messages, columns["peer"], NONE))
    shared = {
        "group_of": share(group_of),
        "peer_of": share(peer_of),
        "ids": share(nodes.ids),
        "names": share(nodes.names),
    }
    file = _File(
        path=path,
        metadata=metadata,
        stated=get(metadata, vocabulary.GROUPS, list[str], default=[]),
        reader=reader,
        columns=columns,
        declared=nodes.declared,
        groups=[reader.groups[group] for group in groups],
        peers=peers,
        **shared,
    )
    offsets, dependencies = map(share, compress_edges(nodes.users, _positions(file, nodes), len(nodes.ids)))
    alike = [reader.but_rank(file.names), file.group_of, file.peer_of, offsets, dependencies]
    alike += [column for name, column in columns.items() if name not in ("peer", "own_side")]
    structure = b"".join(map(share.key, alike))
    return replace(file, dependency_offsets=offsets, dependencies=dependencies, structure=structure)


def _positions(file: _File, nodes: Nodes) -> Ints:
    """Return where in a file what its nodes wait for is, (E,)."""
    ids, wanted = file.ids, nodes.needs
    by_id = np.argsort(ids, kind="stable")
    twice = by_id[1:][ids[by_id][1:] == ids[by_id][:-1]]
    if twice.size:
        node = int(twice.min())
        first = file.name(int(np.argmax(ids == ids[node])))
        raise TraceError(f"{file.describe(node)} has the id of node {first!r} too; give each node its own id")
    at = np.minimum(np.searchsorted(ids[by_id], wanted), len(ids) - 1)
    missing = np.flatnonzero(ids[by_id][at] != wanted)
    if missing.size:
        users = nodes.users[missing]
        node = int(users.min())
        (lost, *_) = np.sort(wanted[missing[users == node]]).tolist()
        raise TraceError(
            f"{file.describe(node)} depends on node {lost}, which the file does not have; "
            f"add that node or remove the dependency"
        )
    return np.asarray(by_id[at])


def _check_rank(file: _File, rank: int, *, num_ranks: int) -> None:
    """Check what a file says of ranks; files of the same nodes can stand for several."""
    own_side, peers = file.column("own_side"), file.column("peer")
    messages = file.column("kind") > NodeKind.COLLECTIVE
    of_others = (own_side != NONE) & (own_side != rank)
    bad = np.flatnonzero(messages & (of_others | (peers < 0) | (peers >= num_ranks)))
    if not bad.size:
        return
    node = int(bad[0])
    if of_others[node]:
        raise TraceError(
            f"{file.describe(node)} is a message of rank {own_side[node]}, but the file is of rank {rank}; "
            f"name the file after its rank"
        )
    raise TraceError(
        f"{file.describe(node)} names rank {peers[node]}, but there are traces of ranks 0 to {num_ranks - 1} "
        f"only; give the files of all ranks"
    )


def _groups(traces: TraceSet, files: Sequence[_File]) -> tuple[tuple[GroupFamily, ...], list[tuple[int, ...]]]:
    """Return the families of groups, and for each rank the family of each of its groups."""
    for rank, file in enumerate(files):
        if file.stated != files[0].stated:
            raise TraceError(
                f"{file.path}: states other process groups than rank 0 does (rank {rank} is of another trace); "
                f"write all ranks' traces again"
            )
    if files[0].stated:
        with locating(files[0].path):
            stated = [StatedFamily.parse(text) for text in files[0].stated]
            families = stated_families(stated, traces)
        return families, [_stated_groups(file, rank, stated, families) for rank, file in enumerate(files)]
    used = [_named_groups(file, rank, traces) for rank, file in enumerate(files)]
    families, family_of = gathered_families(
        [(file.structure, groups) for file, groups in zip(files, used, strict=True)]
    )
    return families, [tuple(family_of[group] for group in groups) for groups in used]


def _stated_groups(
    file: _File, rank: int, stated: Sequence[StatedFamily], families: Sequence[GroupFamily]
) -> tuple[int, ...]:
    """Read the family of each group from our own attribute, and check that the key is that of the rank's group."""
    for number, (key, family) in enumerate(file.groups):
        where = file.describe(int(np.argmax(file.group_of == number)))
        if not 0 <= family < len(stated):
            raise TraceError(
                f"{where}: {vocabulary.GROUP} is {family if family != NONE else 'absent'}, but the metadata states "
                f"families 0 to {len(stated) - 1}; write the trace again"
            )
        index = families[family].group_of_rank.get(rank)
        if index is None:
            raise TraceError(
                f"{where}: rank {rank} is in no group of {stated[family].name!r}; add it to one in the group file"
            )
        if key and key != stated[family].key(index):
            raise TraceError(
                f"{where} names group {key!r}, but rank {rank} is in group {stated[family].key(index)!r} of "
                f"{stated[family].name!r}; name each file after its rank, and keep the group file of the trace"
            )
    return tuple(family for _, family in file.groups)


def _named_groups(file: _File, rank: int, traces: TraceSet) -> list[Group]:
    groups, declared = [], file.declared
    for number, (key, family) in enumerate(file.groups):
        where = file.describe(int(np.argmax(file.group_of == number)))
        if not key:
            raise TraceError(
                f"{where}: {vocabulary.GROUP} is {family}, but the metadata states no families; write the trace again"
            )
        with locating(where):
            group = traces.group(key, declared)
        if rank not in group.members:
            raise TraceError(
                f"{where} is a collective of group {key!r}, which has not rank {rank} but "
                f"{', '.join(map(str, group.members[:8]))}; add the rank to the group or remove the collective"
            )
        groups.append(group)
    return groups


def _graph(
    file: _File, share: _Columns, family_of_group: Sequence[int], sizes: Sequence[int], further: Ints
) -> ExecutionGraph:
    """Build the graph of a file, given the family of each of its groups, and the size of those that it gathers from.

    `further` is as in `_further`.
    """
    order, offsets, dependencies = _in_order(file)
    columns: dict[str, Any] = {
        name: file.column(name)[order] if name in file.columns else np.full(len(file.ids), neutral)
        for name, neutral in NEUTRAL.items()
    }
    group_of = file.group_of[order]
    gathered = np.flatnonzero(columns["collective"] == _ALL_GATHER)
    if gathered.size:  # a trace has the shard of a rank where a graph has the whole
        columns["bytes"] = columns["bytes"].copy()
        ranks = np.array([*sizes, NONE])[group_of[gathered]]
        for node in gathered[columns["bytes"][gathered] > _INT64_MAX // ranks].tolist():
            whole_bytes = int(columns["bytes"][node]) * sizes[group_of[node]]
            held(whole_bytes, "bytes", f"node {node} ({file.name(order[node])!r})")
        columns["bytes"][gathered] *= ranks
    columns["group"] = np.array([*family_of_group, NONE])[group_of]
    columns["peer"] = np.where(further == NONE, file.peer_of, further)[order]
    reader = file.reader
    columns["kernel"], kernels = _kernels(columns, reader.kinds, share)
    columns["phase"], phases = _by_first_use(columns["phase"])
    return ExecutionGraph(
        names=share.names(file.names[order], reader.names),
        dependency_offsets=share(offsets),
        dependencies=share(dependencies),
        kernels=kernels,
        phases=tuple(map(reader.phases.__getitem__, phases)) or ("",),
        **{name: share(column) for name, column in columns.items()},
    )


def _kernels(columns: Mapping[str, Any], kinds: Sequence[Kernel], share: _Columns) -> tuple[Ints, KernelColumns]:
    """Number the kernels of nodes, (N,), by first use, given the kind of each; return them too.

    Nodes tell the counts of a kernel. Of communication, which states its payload instead, what was recorded tells them.
    """
    nodes = np.flatnonzero(columns["kernel"] != NONE)
    kind, computes = columns["kernel"][nodes], columns["kind"][nodes] == NodeKind.COMPUTE
    is_recorded = np.array([call.op.startswith(RECORDED) for call in kinds], bool)[kind]
    counts = [
        np.where(computes, columns[name][nodes],
                 np.where(is_recorded, np.array([getattr(call, name) for call in kinds], np.int64)[kind], 0))
        for name in ("flops", "bytes")
    ]  # fmt: skip
    rows = np.stack([kind, *counts])
    order = np.lexsort(rows)
    begins = np.ones(len(nodes), bool)
    begins[1:] = (np.diff(rows[:, order]) != 0).any(axis=0)
    firsts = order[begins]  # the first node of each kernel: sorting is stable
    by_use = np.argsort(firsts)
    numbers = np.full(len(columns["kernel"]), NONE)
    numbers[nodes[order]] = np.argsort(by_use)[np.cumsum(begins) - 1]
    kind, *counts = (row[firsts[by_use]] for row in rows)
    kind, used = _by_first_use(kind)
    return numbers, KernelColumns([kinds[number] for number in used], share(kind), *map(share, counts))


def _in_order(file: _File) -> tuple[Any, Ints, Ints]:
    """Order nodes after what they wait for; return also their dependencies, as offsets and new positions."""
    offsets, dependencies, size = file.dependency_offsets, file.dependencies, len(file.ids)
    if (dependencies < np.repeat(np.arange(size), np.diff(offsets))).all():
        return slice(None), offsets, dependencies
    rows = [dependencies[begin:end].tolist() for begin, end in pairwise(offsets.tolist())]
    names = [f"{file.name(node)}, id {number}" for node, number in enumerate(file.ids)]
    order = topological_order(rows, names)
    position = np.argsort(order)
    return np.array(order, np.int64), *compress([sorted(position[rows[node]].tolist()) for node in order])
