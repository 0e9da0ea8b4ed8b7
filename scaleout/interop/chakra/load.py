"""A set of Chakra traces to a program: one execution graph for all ranks whose traces are congruent.

Equal nodes of all files are decoded once. Ranks share a graph if their traces differ at most in ids, in which group of
a family they name and, one for one, in the ranks that their messages name.

Symbols: D distinct nodes of all files; N nodes of a file; R ranks.
"""

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scaleout.errors import TraceError
from scaleout.interop.chakra import vocabulary
from scaleout.interop.chakra.attributes import get, to_dict
from scaleout.interop.chakra.nodes import NodeReader
from scaleout.interop.chakra.rows import LABELS, READ, Row, held, locating, read_row
from scaleout.interop.chakra.trace_set import (
    Group,
    TraceSet,
    declared_groups,
    find_traces,
    gathered_families,
    stated_families,
)
from scaleout.interop.chakra.vocabulary import StatedFamily
from scaleout.interop.chakra.wire import Metadata
from scaleout.program.graph import (
    COLLECTIVES,
    FLOAT_COLUMNS,
    NEUTRAL,
    NONE,
    ExecutionGraph,
    Floats,
    Ints,
    NodeKind,
    compress,
    topological_order,
)
from scaleout.program.program import GroupFamily, Program

_Column = Ints | Floats

_ALL_GATHER = COLLECTIVES.index("all_gather")
_COLUMNS = ("kind", "duration_s", "time_source", "flops", "bytes", "collective", "tag", "priority", "peer")
"""Columns of a graph that rows hold as they are."""


@dataclass(frozen=True)
class LoadedTrace:
    """What a set of traces holds."""

    program: Program  # not scheduled; kernels of unknown time are for `scaleout.cluster.device.annotate` to time
    # the text attributes of the first rank's metadata, unread, such as those given to `save_program`
    facts: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class _Nodes:
    """The D distinct nodes of all files."""

    reader: NodeReader[Row]
    # columns of graphs, (D,); kernel, phase and group are indices into the lists of distinct ones
    columns: dict[str, _Column]
    own_side: Ints  # (D,) the rank that a message states as its own, or `NONE`
    declared: Mapping[int, Mapping[str, list[int]]]  # groups that a node lists, key to ranks
    congruent: Ints  # (D,) equal for nodes that differ at most in what may differ between ranks that do the same
    ids: npt.NDArray[np.uint64]  # (D,) identifiers
    dependency_offsets: Ints  # (D + 1,)
    dependencies: npt.NDArray[np.uint64]  # (E,) identifiers
    kernels: list[Any]
    phases: list[Any]
    groups: list[Any]  # key of a group, and family that our own attribute states


def _nodes_of(reader: NodeReader[Row], declared: Mapping[int, Mapping[str, list[int]]]) -> _Nodes:
    """Turn all that was read into columns."""
    rows, of_row, of_labels = reader.contents, np.array(reader.content_of), np.array(reader.labels_of)
    kernel, kernels = _numbered(row.kernel for row in rows)
    group, groups = _numbered((row.group, row.family) for row in rows)
    columns: dict[str, _Column] = {
        "kernel": np.where([row.kernel is None for row in rows], NONE, kernel)[of_row],
        "group": np.where([bool(row.group) or row.family != NONE for row in rows], group, NONE)[of_row],
    }
    for name in _COLUMNS:
        values = [getattr(row, name) for row in rows]
        columns[name] = np.array(values, np.float64 if name in FLOAT_COLUMNS else np.int64)[of_row]
    apart_s = np.array(reader.values_apart)
    columns["duration_s"] = np.where(np.isnan(apart_s), columns["duration_s"], apart_s)
    labels = {label.column: reader.values(name, label.neutral) for name, label in LABELS.items()}
    same_labels, distinct_labels = _numbered(zip(*labels.values(), strict=True))
    phase, phases = _numbered(labels.pop("phase"))
    columns["phase"] = phase[of_labels]
    columns |= {name: np.array(values, np.int64)[of_labels] for name, values in labels.items()}
    same_rows, distinct_rows = _numbered(row[:-3] for row in rows)
    keys = _numbered(reader.names)[0] * len(distinct_rows) + same_rows[of_row]
    keys = np.unique(keys * len(distinct_labels) + same_labels[of_labels], return_inverse=True)[1]
    times_s, same_times = np.unique(columns["duration_s"], return_inverse=True)
    keys = keys * len(times_s) + same_times
    return _Nodes(
        reader,
        columns,
        own_side=np.array([row.own_side for row in rows], np.int64)[of_row],
        declared=declared,
        congruent=np.unique(keys, return_inverse=True)[1],
        ids=np.array(reader.ids),
        dependency_offsets=np.array(reader.dependency_offsets),
        dependencies=np.array(reader.dependencies),
        kernels=kernels,
        phases=phases,
        groups=groups,
    )


def _numbered(values: Iterable[Hashable]) -> tuple[Ints, list[Any]]:
    """Number distinct values by first appearance; return the number of each, and the distinct ones."""
    numbers: dict[Hashable, int] = {}
    found = [numbers.setdefault(value, len(numbers)) for value in values]
    return np.array(found, np.int64), list(numbers)


def _by_first_use(values: _Column) -> tuple[Ints, list[int]]:
    """As `_numbered`, of whole numbers; `NONE` stays."""
    used = values != NONE
    distinct, first, inverse = np.unique(values[used], return_index=True, return_inverse=True)
    order = np.argsort(first)
    column = np.full(len(values), NONE)
    column[used] = np.argsort(order)[inverse.reshape(-1)]
    return column, distinct[order].tolist()


@dataclass(frozen=True, eq=False)
class _File:
    """A rank's file; files of the same nodes share all but the path and what the metadata states."""

    path: Path
    nodes: _Nodes
    numbers: Ints  # (N,) which of the distinct nodes each is
    dependency_offsets: Ints  # (N + 1,)
    dependencies: Ints  # (E,) positions in the file
    # distinct keys of groups and families that our own attribute states, in the order of their first use
    groups: list[tuple[str, int]]
    group_of: Ints  # (N,) which of `groups`, or `NONE`
    peers: list[int]  # distinct ranks that messages of no group name, in the order of their first use
    peer_of: Ints  # (N,) which of `peers`, or `NONE`
    metadata: Metadata = field(default_factory=Metadata)
    stated: list[str] = field(default_factory=list)  # families that our metadata states
    structure: int = NONE  # equal for files that differ at most in ids, groups and peers

    def declared(self) -> dict[str, list[int]]:
        """Return the groups that metadata nodes list, key to ranks."""
        found: dict[str, list[int]] = {}
        for number in self.numbers.tolist() if self.nodes.declared else ():
            found.update(self.nodes.declared.get(number, {}))
        return found

    def column(self, name: str) -> Any:
        """Return a column of graphs, (N,)."""
        return self.nodes.columns[name][self.numbers]

    def name(self, node: int) -> str:
        """Return the name of a node."""
        return self.nodes.reader.names[int(self.numbers[node])]

    def describe(self, node: int) -> str:
        """Say where a node is."""
        return f"{self.path}: node {self.nodes.reader.ids[self.numbers[node]]} ({self.name(node)!r})"

    @property
    def key(self) -> tuple[bytes, ...]:
        """What makes the structure."""
        columns = (self.nodes.congruent[self.numbers], self.group_of, self.peer_of)
        return tuple(column.tobytes() for column in (*columns, self.dependency_offsets, self.dependencies))


_SHARED = ("structure", "dependency_offsets", "dependencies", "group_of", "peer_of")
"""What files of equal structure share."""


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
    files = _read_files(traces.paths, dtype=dtype)
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
        key = (file.structure, of_group, sizes, further.tobytes())
        if key not in roles:
            roles[key] = len(graphs)
            with locating(file.path):
                graphs.append(_graph(file, of_group, sizes, further))
        role_of_rank[rank] = roles[key]
        peers[rank, : len(file.peers)] = file.peers
    program = Program(traces.prefix, tuple(graphs), role_of_rank, families, peers if peers.size else None)
    facts = {name: text for name, text in to_dict(files[0].metadata).items() if isinstance(text, str)}
    return LoadedTrace(program, facts)


def _further(file: _File, rank: int, families: Sequence[GroupFamily]) -> Ints:
    """(N,) how many members further on in the group of a message its other end is; `NONE` of all other nodes."""
    further = np.full(len(file.numbers), NONE)
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


def _read_files(paths: Sequence[Path], *, dtype: str) -> list[_File]:
    """Read all files; those of equal structure share what makes it."""
    reader = NodeReader(partial(read_row, dtype=dtype), READ, {name: label.read for name, label in LABELS.items()},
                        apart=vocabulary.DURATION)  # fmt: skip
    read: list[tuple[Path, Metadata, Ints]] = []
    declared: dict[int, dict[str, list[int]]] = {}
    for path in paths:
        known = len(reader.ids)
        with locating(path):
            metadata, found = reader.read(path)
            for number in range(known, len(reader.ids)):
                if reader.contents[reader.content_of[number]].is_metadata:
                    declared[number] = declared_groups(reader.node(number))
        read.append((path, metadata, np.array(found, np.int32)))
    reader.forget()
    nodes = _nodes_of(reader, declared)
    files: list[_File] = []
    laid_out: dict[bytes, _File] = {}
    structures: dict[tuple[bytes, ...], _File] = {}
    for path, metadata, numbers in read:
        with locating(path):
            stated = get(metadata, vocabulary.GROUPS, list[str], default=[])
            if numbers.tobytes() not in laid_out:
                file = _lay_out(path, nodes, numbers)
                first = structures.setdefault(file.key, replace(file, structure=len(structures)))
                shared = {name: getattr(first, name) for name in _SHARED}
                laid_out[numbers.tobytes()] = replace(file, **shared)
        files.append(replace(laid_out[numbers.tobytes()], path=path, metadata=metadata, stated=stated))
    return files


def _lay_out(path: Path, nodes: _Nodes, numbers: Ints) -> _File:
    """Find what the nodes of a file wait for, and which groups and peers they name."""
    group_of, groups = _by_first_use(nodes.columns["group"][numbers])
    messages = nodes.columns["kind"][numbers] > NodeKind.COLLECTIVE
    peer_of, peers = _by_first_use(np.where(messages & (group_of == NONE), nodes.columns["peer"][numbers], NONE))
    sizes = np.diff(nodes.dependency_offsets)[numbers]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    file = _File(
        path, nodes, numbers, offsets, offsets[:0], [nodes.groups[group] for group in groups], group_of, peers, peer_of
    )
    at = np.repeat(nodes.dependency_offsets[numbers] - offsets[:-1], sizes) + np.arange(offsets[-1])
    found = _positions(file, nodes.dependencies[at])
    users = np.repeat(np.arange(len(numbers)), sizes)
    return replace(file, dependencies=np.sort(users * len(numbers) + found) % max(len(numbers), 1))


def _positions(file: _File, wanted: npt.NDArray[np.uint64]) -> Ints:
    """Turn the ids of dependencies into positions in the file."""
    ids = file.nodes.ids[file.numbers]
    by_id = np.argsort(ids, kind="stable")
    twice = by_id[1:][ids[by_id][1:] == ids[by_id][:-1]]
    if twice.size:
        node = int(twice.min())
        first = file.name(int(np.argmax(ids == ids[node])))
        raise TraceError(f"{file.describe(node)} has the id of node {first!r} too; give each node its own id")
    at = np.minimum(np.searchsorted(ids[by_id], wanted), len(ids) - 1)
    missing = np.flatnonzero(ids[by_id][at] != wanted)
    if missing.size:
        node = int(np.searchsorted(file.dependency_offsets, missing[0], side="right")) - 1
        raise TraceError(
            f"{file.describe(node)} depends on node {wanted[missing[0]]}, which the file does not have; "
            f"add that node or remove the dependency"
        )
    return by_id[at]


def _check_rank(file: _File, rank: int, *, num_ranks: int) -> None:
    """Check what a file says of ranks; files of the same nodes can stand for several."""
    own_side, peers = file.nodes.own_side[file.numbers], file.column("peer")
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
    groups, declared = [], file.declared()
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


def _graph(file: _File, family_of_group: Sequence[int], sizes: Sequence[int], further: Ints) -> ExecutionGraph:
    """Build the graph of a file, given the family of each of its groups, and the size of those that it gathers from.

    `further` is as in `_further`.
    """
    order, offsets, dependencies = _in_order(file)
    size = len(order)
    columns: dict[str, Any] = {
        name: file.column(name)[order] if name in file.nodes.columns else np.full(size, neutral)
        for name, neutral in NEUTRAL.items()
    }
    group_of = file.group_of[order]
    for node in np.flatnonzero(columns["collective"] == _ALL_GATHER).tolist():
        # A trace has the shard of a rank where a graph has the whole.
        whole_bytes = int(columns["bytes"][node]) * sizes[group_of[node]]
        columns["bytes"][node] = held(whole_bytes, "bytes", f"node {node} ({file.name(order[node])!r})")
    columns["group"] = np.array([*family_of_group, NONE])[group_of]
    columns["peer"] = np.where(further == NONE, file.peer_of, further)[order]
    columns["kernel"], kernels = _by_first_use(columns["kernel"])
    columns["phase"], phases = _by_first_use(columns["phase"])
    return ExecutionGraph(
        names=tuple(map(file.nodes.reader.names.__getitem__, file.numbers[order].tolist())),
        dependency_offsets=offsets,
        dependencies=dependencies,
        kernels=tuple(file.nodes.kernels[kernel] for kernel in kernels),
        phases=tuple(file.nodes.phases[phase] for phase in phases) or ("",),
        **columns,
    )


def _in_order(file: _File) -> tuple[Ints, Ints, Ints]:
    """Order nodes after what they wait for; return also their dependencies, as offsets and new positions."""
    offsets, dependencies, size = file.dependency_offsets, file.dependencies, len(file.numbers)
    if (dependencies < np.repeat(np.arange(size), np.diff(offsets))).all():
        return np.arange(size), offsets, dependencies
    rows = [dependencies[begin:end].tolist() for begin, end in pairwise(offsets.tolist())]
    names = [f"{file.name(node)}, id {file.nodes.reader.ids[number]}" for node, number in enumerate(file.numbers)]
    order = topological_order(rows, names)
    position = np.argsort(order)
    return np.array(order, np.int64), *compress([sorted(position[rows[node]].tolist()) for node in order])
