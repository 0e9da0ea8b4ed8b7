"""A timed program to a Chakra trace set that ASTRA-sim replays: one file a rank, and a file of process groups.

Each role is encoded once, and ranks in the same groups get copies of one file. Attributes of our own (`vocabulary`),
which ASTRA-sim skips, carry what Chakra has no field for, so that `load.load_program` gives back an equal program.
ASTRA-sim replays all-reduce, reduce-scatter, all-gather and all-to-all. A reduce, gather, scatter or barrier stops it;
a broadcast takes no time there.

Source: shapes of attributes as in astra-sim's feeder; `comm_size` of an all-gather is a rank's shard (Ring.cc).
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from scaleout.cluster.device.kernel_times import source_names
from scaleout.cluster.topology.peers import peer_of
from scaleout.config.units import counted, format_bytes
from scaleout.config.writing import into, write_json
from scaleout.errors import ConfigError, GraphError, TraceError
from scaleout.interop.chakra import vocabulary
from scaleout.interop.chakra.attributes import CONVENTIONAL_KINDS
from scaleout.interop.chakra.files import write_frames
from scaleout.interop.chakra.schema import AttributeProto, GlobalMetadata, Node, attribute
from scaleout.interop.chakra.tables import NodeType
from scaleout.interop.chakra.trace_set import prefixes, rank_file
from scaleout.interop.chakra.vocabulary import COMM_TYPES, OWN_KINDS, StatedFamily
from scaleout.program.graph import COLLECTIVES, NONE, ExecutionGraph, NodeKind, NodeRole
from scaleout.program.operations import TimeSource
from scaleout.program.program import Program

VERSION = "0.0.4"
"""What the metadata states, as ASTRA-sim's own examples do; later versions are the same format."""

_MOST_FILES = 1 << 17
"""One a rank; more take minutes to write, and hours to copy."""
_BLOCK_BYTES, _NODE_BYTES = 4096, 64
"""The least that a file takes on a disk, and a node in it."""
_NODE_TYPES = {
    NodeKind.COMPUTE: NodeType.COMP_NODE,
    NodeKind.COLLECTIVE: NodeType.COMM_COLL_NODE,
    NodeKind.SEND: NodeType.COMM_SEND_NODE,
    NodeKind.RECV: NodeType.COMM_RECV_NODE,
}


def save_program(
    program: Program, directory: str | os.PathLike[str], *, name: str, facts: Mapping[str, str]
) -> list[Path]:
    """Write the traces of all ranks, and their process groups if there are others than all ranks.

    A trace set of the same name is replaced, once all files are written.

    Parameters
    ----------
    program : Program
        Timed (`scaleout.cluster.device.annotate`) and not scheduled: a trace says what depends on what, and the
        schedule is its reader's choice.
    directory : str or path
        Folder to write to; it is made if its parent exists.
    name : str
        Prefix of the files: ``<name>.<rank>.et`` and, for groups, ``<name>.json``.
    facts : mapping of str to str
        Workload, device and the like, for the metadata of each file.

    Returns
    -------
    list of Path
        The file of each rank, then the group file if there is one.

    Raises
    ------
    GraphError
        If the program is not timed, or is scheduled, or a rank's share of an all-gather is not a whole number.
    TraceError
        If the folder holds other traces.
    ConfigError
        If it cannot be written.
    """
    folder = Path(directory)
    if not name or Path(name).name != name:
        raise TraceError(f"{name!r} cannot be the prefix of a file; give a name without a folder")
    for graph in program.graphs:
        _check_graph(graph)
    _check_room(folder, name=name, num_ranks=program.num_ranks)
    _check_size(folder, program)
    return _write_set(program, folder, name=name, facts=facts)


def traced(name: str, value: Any) -> AttributeProto:
    """Build a conventional attribute, or one of our own, of the kind that its table gives it."""
    return attribute(name, (OWN_KINDS if name in OWN_KINDS else CONVENTIONAL_KINDS)[name], value)


def _check_graph(graph: ExecutionGraph) -> None:
    compute = graph.kind == NodeKind.COMPUTE
    untimed = np.flatnonzero(compute & ~np.isfinite(graph.duration_s))
    if untimed.size:
        node = int(untimed[0])
        raise GraphError(f"node {node} ({graph.names[node]!r}) has no time; time the program with a device first")
    recorded = (graph.time_source == TimeSource.RECORDED).any()  # its streams are no schedule of ours
    scheduled = ((graph.stream != 0) & ~recorded) | (graph.slices != 1)
    kernels = graph.kernel != NONE
    for column in ("flops", "bytes"):
        whole = np.array([getattr(kernel, column) for kernel in graph.kernels], np.int64)
        scheduled[kernels] |= getattr(graph, column)[kernels] != whole[graph.kernel[kernels]]
    if scheduled.any():
        node = int(np.flatnonzero(scheduled)[0])
        raise GraphError(
            f"node {node} ({graph.names[node]!r}) was scheduled: it is on a stream or part of a whole; "
            f"save the program as it was before any schedule"
        )


def _check_room(folder: Path, *, name: str, num_ranks: int) -> None:
    """Refuse to mix two trace sets: no reader could tell them apart."""
    if not folder.exists():
        return
    found = prefixes(folder)
    others = [prefix for prefix in found if prefix != name]
    if others:
        raise TraceError(f"{folder}: holds traces of {others[0]!r} already; give another folder, or remove them")
    last = max(found.get(name, {}), default=NONE)
    if last >= num_ranks:
        raise TraceError(
            f"{folder}: holds {rank_file(name, last)} already, but the program has ranks 0 to {num_ranks - 1}; "
            f"give another folder, or remove the old traces"
        )
    if not found and (folder / f"{name}.json").exists():
        raise TraceError(f"{folder}: holds {name}.json, which belongs to no trace; give another folder or name")


def _check_size(folder: Path, program: Program) -> None:
    """Refuse more files than a folder is for, and what the disk cannot hold, before any is written."""
    sizes = [max(_BLOCK_BYTES, _NODE_BYTES * len(graph)) for graph in program.graphs]
    size_bytes = int(np.array(sizes, float) @ program.ranks_of_role)
    told = f"{folder}: {counted(program.num_ranks, 'file')}, one a rank, take {format_bytes(size_bytes)} or more"
    if program.num_ranks > _MOST_FILES:
        raise ConfigError(
            f"{told}; at most {_MOST_FILES:,} are written: write the traces of fewer ranks, and ask for more of them "
            f"where they run"
        )
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    free_bytes = shutil.disk_usage(there).free
    if size_bytes > free_bytes:
        raise ConfigError(f"{told}, and the disk has {format_bytes(free_bytes)} left; give a folder on a larger one")


def _write_set(program: Program, folder: Path, *, name: str, facts: Mapping[str, str]) -> list[Path]:
    with into(folder) as unfinished:
        names = _write_files(program, unfinished, name=name, facts=facts)
    if f"{name}.json" not in names:
        (folder / f"{name}.json").unlink(missing_ok=True)  # of the set that is replaced
    return [folder / file for file in names]


def _write_files(program: Program, folder: Path, *, name: str, facts: Mapping[str, str]) -> list[str]:
    families = _number(program)
    metadata = GlobalMetadata(
        version=VERSION,
        attr=[
            *(attribute(fact, "string_val", value) for fact, value in facts.items()),
            traced(vocabulary.GROUPS, [family.text() for family in families]),
        ],
    )
    roles = [_encode(graph, families) for graph in program.graphs]
    used = [sorted({int(role.graph.group[node]) for node in role.sizes}) for role in roles]
    written: dict[tuple[int, tuple[int, ...]], Path] = {}
    names = []
    for rank, role in enumerate(program.role_of_rank.tolist()):
        groups = tuple(program.groups[family].group_of_rank.get(rank, NONE) for family in used[role])
        groups += (rank,) if roles[role].peers else ()  # ranks of a group have other peers
        names.append(rank_file(name, rank))
        path = folder / names[-1]
        if (role, groups) in written:
            shutil.copyfile(written[role, groups], path)
            continue
        roles[role].address(program, rank, families)
        write_frames(path, metadata, roles[role].nodes)
        written[role, groups] = path
    keys = {
        stated.key(index): members
        for stated, family in zip(families, program.groups, strict=True)
        for index, members in enumerate(family.members)
        if stated.first_key
    }
    if keys:
        names.append(f"{name}.json")
        write_json(folder / names[-1], keys, indent=None)
    return names


def _number(program: Program) -> list[StatedFamily]:
    """Give each group its key, from 1: ASTRA-sim takes 0 for all ranks."""
    everyone = (tuple(range(program.num_ranks)),)
    families, next_key = [], 1
    for family in program.groups:
        world = family.members == everyone
        families.append(StatedFamily(family.name, 0 if world else next_key, len(family.members), family.axis))
        next_key += 0 if world else len(family.members)
    return families


@dataclass(frozen=True)
class _Role:
    """The messages of a graph; `address` puts into its collectives what differs between ranks."""

    graph: ExecutionGraph
    nodes: list[Node] = field(default_factory=list)
    sizes: dict[int, AttributeProto] = field(default_factory=dict)  # node to its comm_size
    names: dict[int, AttributeProto] = field(default_factory=dict)  # node to its pg_name
    peers: dict[int, AttributeProto] = field(default_factory=dict)  # node to the rank at its other end

    def address(self, program: Program, rank: int, families: Sequence[StatedFamily]) -> None:
        """Write a rank's groups and peers into the messages."""
        for node, attr in self.peers.items():
            attr.CopyFrom(traced(attr.name, peer_of(program, rank, self.graph, node)))
        for node, attr in self.sizes.items():
            family = int(self.graph.group[node])
            members = program.groups[family].of(rank)
            attr.CopyFrom(traced("comm_size", _comm_size(self.graph, node, num_members=len(members))))
            if node in self.names:
                key = families[family].key(program.groups[family].group_of_rank[rank])
                self.names[node].CopyFrom(traced("pg_name", key))


def _comm_size(graph: ExecutionGraph, node: int, *, num_members: int) -> int:
    size_bytes = int(graph.bytes[node])
    if COLLECTIVES[graph.collective[node]] != "all_gather":
        return size_bytes
    if size_bytes % num_members:
        raise GraphError(
            f"node {node} ({graph.names[node]!r}) gathers {size_bytes} B from {num_members} ranks, but a trace states "
            f"the whole bytes of a rank's share; make the size a multiple of the ranks"
        )
    return size_bytes // num_members


def _encode(graph: ExecutionGraph, families: Sequence[StatedFamily]) -> _Role:
    role = _Role(graph)
    for node in range(len(graph)):
        kind = NodeKind(int(graph.kind[node]))
        grouped = kind == NodeKind.COLLECTIVE and families[graph.group[node]].first_key > 0
        message = Node(
            id=node,
            name=graph.names[node],
            type=_NODE_TYPES[kind],
            data_deps=graph.dependencies_of(node).tolist(),
            duration_micros=_whole_micros(float(graph.duration_s[node])) if kind == NodeKind.COMPUTE else 0,
            attr=[
                traced(name, value)
                for name, value in _values(graph, node, grouped=grouped).items()
                if value is not None
            ],
        )
        attrs = {attr.name: attr for attr in message.attr}
        if kind == NodeKind.COLLECTIVE:
            role.sizes[node] = attrs["comm_size"]
            if grouped:
                role.names[node] = attrs["pg_name"]
        elif kind != NodeKind.COMPUTE:
            role.peers[node] = attrs["comm_dst" if kind == NodeKind.SEND else "comm_src"]
        role.nodes.append(message)
    return role


def _recorded(graph: ExecutionGraph, node: int) -> dict[str, Any]:
    """Return the attributes of communication that takes the time that was recorded."""
    if np.isnan(graph.duration_s[node]):
        return {}
    return {
        vocabulary.DURATION: float(graph.duration_s[node]),
        vocabulary.TIME_SOURCE: source_names()[int(graph.time_source[node])],
        vocabulary.KERNEL: vocabulary.kernel_text(graph.kernels[graph.kernel[node]])
        if graph.kernel[node] != NONE
        else None,
    }


def _whole_micros(duration_s: float) -> int:
    """Nearest whole microseconds, but not 0 for a kernel that takes time: ASTRA-sim knows no shorter one."""
    return max(round(duration_s * 1e6), 1) if duration_s > 0 else 0


def _values(graph: ExecutionGraph, node: int, *, grouped: bool) -> dict[str, Any]:
    """Return the attributes of a node, name to value or None; `_Role.address` fills in what depends on the rank."""
    kind, kernel = graph.kind[node], graph.kernel[node]
    if kind == NodeKind.COMPUTE:
        values: dict[str, Any] = {
            "num_ops": int(graph.flops[node]),
            "tensor_size": int(graph.bytes[node]),
            vocabulary.DURATION: float(graph.duration_s[node]),
            vocabulary.TIME_SOURCE: source_names()[int(graph.time_source[node])],
            vocabulary.KERNEL: vocabulary.kernel_text(graph.kernels[kernel]) if kernel != NONE else None,
            vocabulary.PRIORITY: int(graph.priority[node]) or None,
        }
    elif kind == NodeKind.COLLECTIVE:
        values = {
            "comm_type": COMM_TYPES[COLLECTIVES[graph.collective[node]]],
            "comm_size": 0,
            "comm_priority": int(graph.priority[node]),
            vocabulary.GROUP: int(graph.group[node]),
            "pg_name": "" if grouped else None,
        }
    else:
        # The own side is left out: it defaults to the rank whose file it is, and ranks can share a file's bytes.
        values = {
            "comm_size": int(graph.bytes[node]),
            "comm_dst" if kind == NodeKind.SEND else "comm_src": int(graph.peer[node]),
            "comm_tag": int(graph.tag[node]),
            "comm_priority": int(graph.priority[node]),
            vocabulary.GROUP: int(graph.group[node]) if graph.group[node] != NONE else None,
        }
    model_part = {
        vocabulary.MICROBATCH: graph.microbatch,
        vocabulary.STAGE: graph.stage,
        vocabulary.LAYER: graph.layer,
    }
    return {
        "is_cpu_op": bool(graph.role[node] & NodeRole.HOST),
        **values,
        **(_recorded(graph, node) if kind != NodeKind.COMPUTE else {}),
        vocabulary.STREAM: int(graph.stream[node]) or None,
        vocabulary.PHASE: graph.phases[graph.phase[node]] or None,
        **{name: int(column[node]) if column[node] != NONE else None for name, column in model_part.items()},
        vocabulary.ROLE: vocabulary.role_text(int(graph.role[node])) or None,
    }
