"""A Chakra node to the columns of an execution graph's node, whoever wrote it.

How a compute node gets its time: the exact time of our own attribute; else `duration_micros`; else its FLOPs and
bytes, for a device to time; else none, if it says itself that there is nothing to run: work of zero, an operator of
the host, metadata, or an invalid node, which ASTRA-sim passes over too. Anything else is a kernel of unknown time,
and refused. Memory nodes are kernels that only move bytes. Durations of communication are not read: the network
times it, and in measured traces they are mostly waiting.

Knows one node at a time; nothing of files, ranks or groups.
"""

import math
from typing import NamedTuple

from scaleout.errors import GraphError, ScaleoutError, TraceError
from scaleout.interop.chakra import vocabulary
from scaleout.interop.chakra.attributes import find, get
from scaleout.interop.chakra.schema import CollectiveCommType, Node, NodeType
from scaleout.interop.chakra.vocabulary import COMM_TYPES
from scaleout.program.graph import COLLECTIVES, NONE, NodeKind
from scaleout.program.operations import Kernel, TimeSource, custom

_INT64_END = 2**63
_COLLECTIVE_OF = {comm_type: COLLECTIVES.index(kind) for kind, comm_type in COMM_TYPES.items()}


class Row(NamedTuple):
    """A node but for what it waits for and the key of its group; names as in `ExecutionGraph`.

    `duration_s` is None where it is not known; `bytes` of an all-gather is a rank's shard, as in the trace; `family`
    is our own attribute; `own_side` is the rank that a message says to be on, or `NONE`.
    """

    name: str
    phase: str
    kind: NodeKind
    kernel: Kernel | None = None
    duration_s: float | None = None
    time_source: TimeSource = TimeSource.UNKNOWN
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


def read_row(node: Node, *, dtype: str) -> tuple[Row, str]:
    """Read a node.

    Parameters
    ----------
    dtype : str
        Data type of kernels of which only FLOPs and bytes are known.

    Returns
    -------
    row : Row
    pg_name : str
        Key of a collective's group; "" otherwise, and for all ranks.

    Raises
    ------
    TraceError
        If an attribute is missing, of the wrong kind or of no use.
    GraphError
        If a kernel has no time and no FLOPs.
    """
    row, pg_name = _read(node, dtype=dtype)
    text = get(node, vocabulary.ROLE, str, default="")
    try:
        role = vocabulary.parse_role(text) if text else 0
    except TraceError as error:
        raise TraceError(f"node {node.id} ({node.name!r}): {error}") from None
    return row._replace(
        microbatch=get(node, vocabulary.MICROBATCH, int, default=NONE),
        stage=get(node, vocabulary.STAGE, int, default=NONE),
        role=role,
        layer=get(node, vocabulary.LAYER, int, default=NONE),
    ), pg_name


def _read(node: Node, *, dtype: str) -> tuple[Row, str]:
    if node.type == NodeType.COMM_COLL_NODE:
        return _collective(node), get(node, "pg_name", str, default="")
    if node.type == NodeType.COMM_SEND_NODE:
        return _message(node, NodeKind.SEND, own="comm_src", peer="comm_dst"), ""
    if node.type == NodeType.COMM_RECV_NODE:
        return _message(node, NodeKind.RECV, own="comm_dst", peer="comm_src"), ""
    if node.type in (NodeType.METADATA_NODE, NodeType.INVALID_NODE):
        return _nothing(node), ""
    return _compute(node, dtype=dtype), ""


def _phase(node: Node) -> str:
    return get(node, vocabulary.PHASE, str, default="")


def _states(node: Node, name: str) -> bool:
    found = find(node, name)
    return found is not None and found.WhichOneof("value") is not None


def _count(node: Node, name: str) -> int:
    """Read a size or a count of FLOPs, which a column of int64 must hold."""
    value = get(node, name, int)
    if not 0 <= value < _INT64_END:
        raise TraceError(f"node {node.id} ({node.name!r}): {name} is {value}; write a number from 0 to 2**63 - 1")
    return value


def _nothing(node: Node) -> Row:
    return Row(node.name, _phase(node), NodeKind.COMPUTE, duration_s=0.0, time_source=TimeSource.GIVEN)


def _compute(node: Node, *, dtype: str) -> Row:
    row = Row(
        node.name,
        _phase(node),
        NodeKind.COMPUTE,
        flops=_count(node, "num_ops") if _states(node, "num_ops") else 0,
        bytes=_count(node, "tensor_size") if _states(node, "tensor_size") else 0,
        priority=get(node, vocabulary.PRIORITY, int, default=0),
    )
    if _states(node, vocabulary.DURATION):
        return _timed_by_us(node, row)
    kernel = custom(dtype=dtype, flops=row.flops, bytes=row.bytes) if row.flops or row.bytes else None
    if node.duration_micros:
        return row._replace(kernel=kernel, duration_s=node.duration_micros / 1e6, time_source=TimeSource.GIVEN)
    if kernel is not None:
        return row._replace(kernel=kernel)
    states_no_work = _states(node, "num_ops") or _states(node, "tensor_size")
    if states_no_work or get(node, "is_cpu_op", bool, default=False):
        return _nothing(node)
    raise GraphError(
        f"node {node.id} ({node.name!r}) is a kernel with no time and no FLOPs; "
        f"give it a duration, or num_ops and tensor_size"
    )


def _timed_by_us(node: Node, row: Row) -> Row:
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


def _collective(node: Node) -> Row:
    value = get(node, "comm_type", int)
    if value not in _COLLECTIVE_OF:
        known = {int(comm_type) for comm_type in CollectiveCommType}
        name = CollectiveCommType(value).name if value in known else str(value)
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
    return Row(
        node.name,
        _phase(node),
        NodeKind.COLLECTIVE,
        bytes=_count(node, "comm_size"),
        collective=_COLLECTIVE_OF[CollectiveCommType(value)],
        family=get(node, vocabulary.GROUP, int, default=NONE),
        priority=get(node, "comm_priority", int, default=0),
    )


def _message(node: Node, kind: NodeKind, *, own: str, peer: str) -> Row:
    return Row(
        node.name,
        _phase(node),
        kind,
        peer=get(node, peer, int),
        own_side=get(node, own, int, default=NONE),
        tag=get(node, "comm_tag", int),
        bytes=_count(node, "comm_size"),
        priority=get(node, "comm_priority", int, default=0),
    )
