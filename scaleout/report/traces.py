"""Chakra traces to facts: what ranks do, in which process groups, and what a run does not read of it.

Of a set of files all counts are of all ranks together; what is not read is looked for in the file of rank 0.
"""

from collections import Counter
from math import fsum
from typing import Any

import numpy as np

from scaleout.config.units import format_ranks
from scaleout.interop.chakra.attributes import get, to_dict
from scaleout.interop.chakra.load import load_program
from scaleout.interop.chakra.rows import LABELS, READ
from scaleout.interop.chakra.tables import NodeType
from scaleout.interop.chakra.trace_set import find_traces
from scaleout.interop.chakra.vocabulary import DURATION
from scaleout.interop.chakra.wire import Metadata, Node, read
from scaleout.program.graph import NONE, ExecutionGraph, NodeKind
from scaleout.program.labels import label, label_numbers, own_name, own_name_numbers
from scaleout.program.program import GroupFamily, Program
from scaleout.simulation.columns import distinct

_SOME_GROUPS = 3
"""Of those of one set, of how many the members are told."""
_COMMUNICATION = (NodeType.COMM_SEND_NODE, NodeType.COMM_RECV_NODE, NodeType.COMM_COLL_NODE)
_PASSED_OVER = (NodeType.METADATA_NODE, NodeType.INVALID_NODE)


def trace(path: str) -> dict[str, Any]:
    """Describe a Chakra trace file, or a set of them."""
    if path.endswith(".et"):
        metadata, nodes = read(path)
        return {"trace": path, **_head(metadata), **_file(nodes), "not_read": _not_read(nodes)}
    program = load_program(path).program
    metadata, nodes = read(find_traces(path).paths[0])
    ranks = program.ranks_of_role.tolist()
    return {
        "trace": path,
        "ranks": program.num_ranks,
        "different_ranks": len(program.graphs),
        **_head(metadata),
        "nodes": sum(each * len(graph) for each, graph in zip(ranks, program.graphs, strict=True)),
        "nodes_by_kind": {
            kind.name.lower(): sum(
                each * int((graph.kind == kind).sum()) for each, graph in zip(ranks, program.graphs, strict=True)
            )
            for kind in NodeKind
        },
        **_rows(program),
        "process_groups": [_groups(family) for family in program.groups],
        "not_read": _not_read(nodes),
    }


def _head(metadata: Metadata) -> dict[str, Any]:
    return {
        "version": metadata.version,
        "metadata": {name: str(value) for name, value in to_dict(metadata).items()},
    }


def _file(nodes: list[Node]) -> dict[str, Any]:
    types = Counter(NodeType(node.type).name for node in nodes)
    return {
        "nodes": len(nodes),
        "types": dict(types.most_common()),
        "dependencies": sum(len(node.dependencies) for node in nodes),
        "kernel_time_s": fsum(get(node, DURATION, float, default=node.duration_micros / 1e6) for node in nodes),
        "communication_bytes": sum(get(node, "comm_size", int, default=0) for node in nodes),
    }


def _rows(program: Program) -> dict[str, list[dict[str, Any]]]:
    """Add up what ranks do, the longest and largest first: kernels by their names, communication by size and group."""
    kernels: dict[str, dict[str, Any]] = {}
    calls: dict[tuple[str, str, str, int], dict[str, Any]] = {}
    for ranks, graph in zip(program.ranks_of_role.tolist(), program.graphs, strict=True):
        communicates = graph.kind != NodeKind.COMPUTE
        of_calls = (graph.bytes, graph.group, own_name_numbers(graph))
        keys = [label_numbers(graph), *(np.where(communicates, each, 0) for each in of_calls)]
        first, which = distinct(*keys)
        sums = [np.bincount(which, each, len(first)).tolist() for each in _columns(graph)]
        for node, count, time_s, timed_anew, flops, size in zip(first.tolist(), *sums, strict=True):
            name = label(graph, node)
            if not communicates[node]:
                row = {"kernel": name, "count": 0, "time_s": 0.0, "without_time": 0, "work_flops": 0, "moved_bytes": 0}
                row = kernels.setdefault(name, row)
                added = {"time_s": time_s, "without_time": timed_anew, "work_flops": flops, "moved_bytes": size}
            else:
                group, each = int(graph.group[node]), int(graph.bytes[node])
                of = program.groups[group].name if group != NONE else ""
                own = own_name(graph, node)
                row = {"communication": name, "named": own, "group": of, "each_bytes": each}
                row |= {"each_is": _size_of(graph, node), "count": 0, "all_bytes": 0}
                row = calls.setdefault((name, own, of, each), row)
                added = {"all_bytes": size}
            for key, value in {"count": count, **added}.items():
                row[key] += ranks * (value if key == "time_s" else int(value))
    return {
        "kernels": sorted(kernels.values(), key=lambda row: (-row["time_s"], -row["work_flops"], -row["moved_bytes"])),
        "communication": sorted(calls.values(), key=lambda row: -row["all_bytes"]),
    }


def _size_of(graph: ExecutionGraph, node: int) -> str:
    """Say what the bytes of a communication are; a file has those of a rank, of an all-gather its shard."""
    return _SIZES.get(graph.operation(node), "a rank's buffer")


_SIZES = {"all_gather": "gathered whole", "reduce_scatter": "whole before", "send": "message", "recv": "message"}


def _columns(graph: ExecutionGraph) -> tuple[Any, ...]:
    """Return what is added up of each node, (N,): itself, its time, whether it has none, FLOPs and bytes."""
    has_time = ~np.isnan(graph.duration_s)
    return np.ones(len(graph)), np.where(has_time, graph.duration_s, 0.0), 1.0 * ~has_time, graph.flops, graph.bytes


def _groups(family: GroupFamily) -> dict[str, Any]:
    sizes = sorted({len(members) for members in family.members})
    some = "; ".join(format_ranks(members) for members in family.members[:_SOME_GROUPS])
    more = len(family.members) - _SOME_GROUPS
    return {
        "group": family.name,
        "groups": len(family.members),
        "ranks_each": "-".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))),
        "members": f"{some}; {more:,} more groups" if more > 0 else some,
    }


def _not_read(nodes: list[Node]) -> dict[str, int]:
    """Count the nodes of which a run leaves something out, by what it is."""
    found: Counter[str] = Counter()
    for node in nodes:
        found.update(f"attribute {name}" for name in node.attributes if name not in READ and name not in LABELS)
        if node.type in _PASSED_OVER:
            found[f"{NodeType(node.type).name}: takes no time"] += 1
        elif node.type in _COMMUNICATION and node.duration_micros and DURATION not in node.attributes:
            found["duration_micros of communication, which the network times"] += 1
    return dict(found.most_common())
