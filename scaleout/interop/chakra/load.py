"""A set of Chakra traces to a program: one execution graph for all ranks whose traces are congruent.

Files of equal bytes are parsed once, and so are equal nodes of different files. Ranks share a graph if their traces
differ at most in ids and in which group of a family they name. The time of a compute node is the exact time of our own
attribute; else `duration_micros`; else a device's, from its FLOPs and bytes; else zero, if the trace says that there is
nothing to run. Durations of communication are not read: the network times it, and measured ones are mostly waiting.
"""

import contextlib
import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from scaleout.errors import GraphError, ScaleoutError, TraceError
from scaleout.interop.chakra import vocabulary
from scaleout.interop.chakra.attributes import find, get, to_dict
from scaleout.interop.chakra.files import read
from scaleout.interop.chakra.schema import Node
from scaleout.interop.chakra.tables import CollectiveCommType, NodeType
from scaleout.interop.chakra.trace_set import (
    Group,
    GroupBook,
    TraceSet,
    declared_groups,
    find_traces,
    gathered_families,
    stated_families,
)
from scaleout.interop.chakra.vocabulary import COMM_TYPES, WORLD, StatedFamily
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, GraphBuilder, NodeKind, topological_order
from scaleout.program.operations import Kernel, TimeSource, custom
from scaleout.program.program import GroupFamily, Program

_ALL_GATHER = COLLECTIVES.index("all_gather")
_INT64_END = 2**63
_COLLECTIVE_OF: Mapping[int, int] = {comm_type: COLLECTIVES.index(kind) for kind, comm_type in COMM_TYPES.items()}


@dataclass(frozen=True)
class LoadedTrace:
    """What a set of traces holds.

    Attributes
    ----------
    program : Program
        Not scheduled. Kernels of unknown time are for `scaleout.cluster.device.annotate` to time.
    facts : mapping of str to str
        The text attributes of the first rank's metadata, unread, such as those given to `save_program`.
    """

    program: Program
    facts: Mapping[str, str]


class _Row(NamedTuple):
    """A node without its dependencies and the key of its group; names are those of the columns of `ExecutionGraph`.

    `duration_s` is None where it is not known; `bytes` of an all-gather is a rank's shard, as in the trace; `family`
    is our own attribute; `own_side` is the rank that a message states as its own, or `NONE`.
    """

    name: str
    phase: str
    kind: NodeKind = NodeKind.COMPUTE
    kernel: Kernel | None = None
    duration_s: float | None = None
    time_source: int = TimeSource.UNKNOWN
    flops: int = 0
    bytes: int = 0
    collective: int = NONE
    family: int = NONE
    peer: int = NONE
    own_side: int = NONE
    tag: int = 0
    priority: int = 0
    microbatch: int = NONE
    stage: int = NONE
    role: int = 0
    layer: int = NONE


@dataclass(frozen=True)
class _File:
    """A rank's parsed file; files of equal bytes share all but their path.

    Attributes
    ----------
    rows : what each node is, in the order of the file
    ids : of the nodes, for messages
    dependencies : positions of the nodes that each node waits for
    groups : distinct (key of a group, family that our own attribute states), in the order of their first use
    group_of : for each node, which of `groups`, or `NONE`
    gathered : which of `groups` an all-gather uses; its bytes depend on the size of the group
    declared : groups that a metadata node lists
    stated : families that our metadata states
    """

    path: Path
    rows: list[_Row]
    ids: list[int]
    dependencies: list[tuple[int, ...]]
    groups: list[tuple[str, int]]
    group_of: list[int]
    gathered: set[int]
    declared: dict[str, list[int]]
    stated: list[str]
    facts: dict[str, str]

    def structure(self) -> tuple[tuple[int, ...], ...]:
        """Return a key that is equal for files that differ in groups only; equal rows are one object, see `_Parser`."""
        return (tuple(map(id, self.rows)), *self.dependencies, tuple(self.group_of))

    def describe(self, node: int) -> str:
        """Say where a node is."""
        return f"{self.path}: node {self.ids[node]} ({self.rows[node].name!r})"


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
    parser = _Parser(dtype)
    files = [parser.parse(file) for file in traces.paths]
    for rank, file in enumerate(files):
        _check_rank(file, rank, num_ranks=traces.num_ranks)
    structures = _structures(files)
    families, family_of_group = _groups(traces, files, structures)
    roles: dict[tuple[object, ...], int] = {}
    graphs: list[ExecutionGraph] = []
    role_of_rank = np.empty(traces.num_ranks, np.int64)
    for rank, file in enumerate(files):
        of_group = family_of_group[rank]
        sizes = tuple(
            len(families[family].of(rank)) if number in file.gathered else NONE
            for number, family in enumerate(of_group)
        )
        key = (structures[rank], of_group, sizes)
        if key not in roles:
            roles[key] = len(graphs)
            with _locating(file.path):
                graphs.append(_graph(file, of_group, sizes))
        role_of_rank[rank] = roles[key]
    program = Program(traces.prefix, tuple(graphs), role_of_rank, families)
    return LoadedTrace(program, files[0].facts)


@contextlib.contextmanager
def _locating(where: object) -> Iterator[None]:
    """Put the file or node in front of messages that do not name it."""
    try:
        yield
    except ScaleoutError as error:
        if str(error).startswith(f"{where}: "):
            raise
        raise type(error)(f"{where}: {error}") from None


@dataclass(frozen=True)
class _Parser:
    """Parses equal files, and equal nodes of different files, once."""

    dtype: str
    files: dict[bytes, _File] = field(default_factory=dict)
    nodes: dict[bytes, tuple[_Row, str]] = field(default_factory=dict)
    rows: dict[_Row, _Row] = field(default_factory=dict)  # equal rows of different nodes to one of them

    def parse(self, path: Path) -> _File:
        try:
            with path.open("rb") as content:
                digest = hashlib.file_digest(content, "sha256").digest()
        except OSError as error:
            raise TraceError(f"{path}: cannot be read ({error.strerror}); give an existing .et file") from None
        if digest not in self.files:
            with _locating(path):
                self.files[digest] = self._parse(path)
        return replace(self.files[digest], path=path)

    def _parse(self, path: Path) -> _File:
        metadata, nodes = read(path)
        facts = {name: value for name, value in to_dict(metadata).items() if isinstance(value, str)}
        stated = get(metadata, vocabulary.GROUPS, list[str], default=[])
        file = _File(path, [], [], [], [], [], set(), {}, stated, facts)
        waits: list[set[int]] = []
        groups: dict[tuple[str, int], int] = {}
        for node in nodes:
            row, key = self._row(node)
            file.rows.append(row)
            file.ids.append(node.id)
            waits.append({*node.data_deps, *node.ctrl_deps})
            collective = row.kind == NodeKind.COLLECTIVE
            group = (key or WORLD, row.family)
            file.group_of.append(groups.setdefault(group, len(groups)) if collective else NONE)
            if row.collective == _ALL_GATHER:
                file.gathered.add(file.group_of[-1])
            if node.type == NodeType.METADATA_NODE:
                file.declared.update(declared_groups(node))
        file.groups.extend(groups)
        file.dependencies.extend(_positions(file, waits))
        return file

    def _row(self, node: Node) -> tuple[_Row, str]:
        content = node.SerializeToString()
        if content not in self.nodes:
            row, key = _read_row(node, dtype=self.dtype)
            self.nodes[content] = self.rows.setdefault(row, row), key
        return self.nodes[content]


def _positions(file: _File, waits: Sequence[set[int]]) -> Iterator[tuple[int, ...]]:
    """Turn ids into positions in the file."""
    position: dict[int, int] = {}
    for index, node_id in enumerate(file.ids):
        if position.setdefault(node_id, index) != index:
            first = file.rows[position[node_id]].name
            raise TraceError(f"{file.describe(index)} has the id of node {first!r} too; give each node its own id")
    for index, ids in enumerate(waits):
        unknown = [node_id for node_id in ids if node_id not in position]
        if unknown:
            raise TraceError(
                f"{file.describe(index)} depends on node {min(unknown)}, which the file does not have; "
                f"add that node or remove the dependency"
            )
        yield tuple(sorted(position[node_id] for node_id in ids))


def _structures(files: Sequence[_File]) -> list[int]:
    """Number the structures of files."""
    parsed = {id(file.rows): file for file in files}  # files of equal bytes share their lists
    numbers: dict[tuple[tuple[int, ...], ...], int] = {}
    number_of = {key: numbers.setdefault(file.structure(), len(numbers)) for key, file in parsed.items()}
    return [number_of[id(file.rows)] for file in files]


def _check_rank(file: _File, rank: int, *, num_ranks: int) -> None:
    """Check what a file says of ranks; files of equal bytes can stand for several."""
    for node, row in enumerate(file.rows):
        if row.kind not in (NodeKind.SEND, NodeKind.RECV):
            continue
        if row.own_side not in (NONE, rank):
            raise TraceError(
                f"{file.describe(node)} is a message of rank {row.own_side}, but the file is of rank {rank}; "
                f"name the file after its rank"
            )
        if not 0 <= row.peer < num_ranks:
            raise TraceError(
                f"{file.describe(node)} names rank {row.peer}, but there are traces of ranks 0 to {num_ranks - 1} "
                f"only; give the files of all ranks"
            )


def _groups(
    traces: TraceSet, files: Sequence[_File], structures: Sequence[int]
) -> tuple[tuple[GroupFamily, ...], list[tuple[int, ...]]]:
    """Return the families of groups, and for each rank the family of each of its groups."""
    book = GroupBook(traces)
    for rank, file in enumerate(files):
        if file.stated != files[0].stated:
            raise TraceError(
                f"{file.path}: states other process groups than rank 0 does (rank {rank} is of another trace); "
                f"write all ranks' traces again"
            )
    if files[0].stated:
        with _locating(files[0].path):
            stated = [StatedFamily.parse(text) for text in files[0].stated]
            families = stated_families(stated, book)
        return families, [_stated_groups(file, rank, stated, families) for rank, file in enumerate(files)]
    used = [_named_groups(file, rank, book) for rank, file in enumerate(files)]
    families, family_of = gathered_families(list(zip(structures, used, strict=True)))
    return families, [tuple(family_of[group] for group in groups) for groups in used]


def _stated_groups(
    file: _File, rank: int, stated: Sequence[StatedFamily], families: Sequence[GroupFamily]
) -> tuple[int, ...]:
    """Read the family of each group from our own attribute, and check that the key is that of the rank's group."""
    for number, (key, family) in enumerate(file.groups):
        where = file.describe(file.group_of.index(number))
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
        if key != stated[family].key(index):
            raise TraceError(
                f"{where} names group {key!r}, but rank {rank} is in group {stated[family].key(index)!r} of "
                f"{stated[family].name!r}; name each file after its rank, and keep the group file of the trace"
            )
    return tuple(family for _, family in file.groups)


def _named_groups(file: _File, rank: int, book: GroupBook) -> list[Group]:
    groups = []
    for number, (key, _) in enumerate(file.groups):
        where = file.describe(file.group_of.index(number))
        with _locating(where):
            group = book.find(key, file.declared)
        if rank not in group.members:
            raise TraceError(
                f"{where} is a collective of group {key!r}, which has not rank {rank} but "
                f"{', '.join(map(str, group.members[:8]))}; add the rank to the group or remove the collective"
            )
        groups.append(group)
    return groups


def _graph(file: _File, family_of_group: Sequence[int], sizes: Sequence[int]) -> ExecutionGraph:
    names = [f"{row.name}, id {node_id}" for row, node_id in zip(file.rows, file.ids, strict=True)]
    order = topological_order(file.dependencies, names)
    position = {node: index for index, node in enumerate(order)}
    builder = GraphBuilder()
    for node in order:
        row, group = file.rows[node], file.group_of[node]
        columns = row._asdict()
        del columns["family"], columns["own_side"]
        columns["kernel"] = NONE if row.kernel is None else builder.kernel_index(row.kernel)
        columns["duration_s"] = np.nan if row.duration_s is None else row.duration_s
        columns["group"] = NONE if group == NONE else family_of_group[group]
        if row.collective == _ALL_GATHER:  # a trace has the shard of a rank where a graph has the whole
            columns["bytes"] *= sizes[group]
        builder.add([position[dependency] for dependency in file.dependencies[node]], **columns)
    return builder.build()


def _read_row(node: Node, *, dtype: str) -> tuple[_Row, str]:
    """Read a node, and the key of a collective's group; "" otherwise, and for all ranks."""
    text = get(node, vocabulary.ROLE, str, default="")
    with _locating(f"node {node.id} ({node.name!r})"):
        role = vocabulary.parse_role(text)
    row = _Row(
        node.name,
        get(node, vocabulary.PHASE, str, default=""),
        microbatch=get(node, vocabulary.MICROBATCH, int, default=NONE),
        stage=get(node, vocabulary.STAGE, int, default=NONE),
        role=role,
        layer=get(node, vocabulary.LAYER, int, default=NONE),
    )
    if node.type == NodeType.COMM_COLL_NODE:
        return _collective(node, row), get(node, "pg_name", str, default="")
    if node.type == NodeType.COMM_SEND_NODE:
        return _message(node, row._replace(kind=NodeKind.SEND), own="comm_src", peer="comm_dst"), ""
    if node.type == NodeType.COMM_RECV_NODE:
        return _message(node, row._replace(kind=NodeKind.RECV), own="comm_dst", peer="comm_src"), ""
    if node.type in (NodeType.METADATA_NODE, NodeType.INVALID_NODE):  # ASTRA-sim passes over both too
        return row._replace(duration_s=0.0, time_source=TimeSource.GIVEN), ""
    return _compute(node, row, dtype=dtype), ""


def _states(node: Node, name: str) -> bool:
    found = find(node, name)
    return found is not None and found.WhichOneof("value") is not None


def _count(node: Node, name: str) -> int:
    """Read a size or a count of FLOPs, which a column of int64 must hold."""
    value = get(node, name, int)
    if not 0 <= value < _INT64_END:
        raise TraceError(f"node {node.id} ({node.name!r}): {name} is {value}; write a number from 0 to 2**63 - 1")
    return value


def _compute(node: Node, row: _Row, *, dtype: str) -> _Row:
    row = row._replace(
        flops=_count(node, "num_ops") if _states(node, "num_ops") else 0,
        bytes=_count(node, "tensor_size") if _states(node, "tensor_size") else 0,
        priority=get(node, vocabulary.PRIORITY, int, default=0),
    )
    if _states(node, vocabulary.DURATION):
        return _timed_by_us(node, row)
    kernel = custom(dtype=dtype, flops=row.flops, bytes=row.bytes) if row.flops or row.bytes else None
    if kernel is not None and not node.duration_micros:
        return row._replace(kernel=kernel)
    states_work = node.duration_micros or _states(node, "num_ops") or _states(node, "tensor_size")
    if states_work or get(node, "is_cpu_op", bool, default=False):
        return row._replace(kernel=kernel, duration_s=node.duration_micros / 1e6, time_source=TimeSource.GIVEN)
    raise GraphError(
        f"node {node.id} ({node.name!r}) is a kernel with no time and no FLOPs; "
        f"give it a duration, or num_ops and tensor_size"
    )


def _timed_by_us(node: Node, row: _Row) -> _Row:
    duration_s = get(node, vocabulary.DURATION, float)
    if not 0 <= duration_s < math.inf:
        raise TraceError(f"node {node.id} ({node.name!r}): {vocabulary.DURATION} is {duration_s}; write a time >= 0")
    text = get(node, vocabulary.KERNEL, str, default="")
    try:
        return row._replace(
            kernel=vocabulary.parse_kernel(text, flops=row.flops, size_bytes=row.bytes) if text else None,
            duration_s=duration_s,
            time_source=vocabulary.parse_time_source(get(node, vocabulary.TIME_SOURCE, str)),
        )
    except ScaleoutError as error:
        raise TraceError(f"node {node.id} ({node.name!r}): {error}") from None


def _collective(node: Node, row: _Row) -> _Row:
    value = get(node, "comm_type", int)
    if value not in _COLLECTIVE_OF:
        name = CollectiveCommType(value).name if value in tuple(CollectiveCommType) else str(value)
        raise TraceError(
            f"node {node.id} ({node.name!r}): comm_type {name} is not supported; it must be one of "
            f"{', '.join(comm_type.name for comm_type in COMM_TYPES.values())}"
        )
    dimensions = get(node, "involved_dim", list[bool], default=[])
    if not all(dimensions):
        raise TraceError(
            f"node {node.id} ({node.name!r}): involved_dim {dimensions} keeps it to some dimensions of the network, "
            f"which is not supported; name a process group of the ranks that take part"
        )
    return row._replace(
        kind=NodeKind.COLLECTIVE,
        bytes=_count(node, "comm_size"),
        collective=_COLLECTIVE_OF[value],
        family=get(node, vocabulary.GROUP, int, default=NONE),
        priority=get(node, "comm_priority", int, default=0),
    )


def _message(node: Node, row: _Row, *, own: str, peer: str) -> _Row:
    return row._replace(
        peer=get(node, peer, int),
        own_side=get(node, own, int, default=NONE),
        tag=get(node, "comm_tag", int),
        bytes=_count(node, "comm_size"),
        priority=get(node, "comm_priority", int, default=0),
    )
