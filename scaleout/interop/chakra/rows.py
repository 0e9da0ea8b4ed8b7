"""A node of a trace to a row: what it is but for its name, identifier and dependencies, and its labels.

The time of a compute node is the exact time of our own attribute; else `duration_micros`; else a device's, from its
FLOPs and bytes; else zero, if the trace says that there is nothing to run. Of communication only our own attribute is
read, which leaves out waiting; otherwise the network times it. Knows no other nodes.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from scaleout.errors import GraphError, ScaleoutError, TraceError
from scaleout.interop.chakra import vocabulary
from scaleout.interop.chakra.attributes import get
from scaleout.interop.chakra.tables import CollectiveCommType, NodeType
from scaleout.interop.chakra.vocabulary import COMM_TYPES, WORLD
from scaleout.interop.chakra.wire import Node
from scaleout.program.graph import COLLECTIVES, NONE, NodeKind
from scaleout.program.operations import Kernel, TimeSource, custom

_INT64_END = 2**63
_COLLECTIVE_OF: Mapping[int, int] = {comm_type: COLLECTIVES.index(kind) for kind, comm_type in COMM_TYPES.items()}


class Row(NamedTuple):
    """A node but for its name, labels and dependencies; names are those of the columns of `ExecutionGraph`.

    `duration_s` is NaN where it is not known; `bytes` of an all-gather is a rank's shard, as in the trace; `family` is
    our own attribute. The last three may differ between ranks that do the same: the key of a collective's group, the
    other end of a message, and the rank that it states as its own, or `NONE`.
    """

    kind: NodeKind = NodeKind.COMPUTE
    kernel: Kernel | None = None
    duration_s: float = math.nan
    time_source: int = TimeSource.UNKNOWN
    flops: int = 0
    bytes: int = 0
    collective: int = NONE
    tag: int = 0
    priority: int = 0
    is_metadata: bool = False
    family: int = NONE
    group: str = ""
    peer: int = NONE
    own_side: int = NONE


@contextlib.contextmanager
def locating(where: object) -> Iterator[None]:
    """Put the file or node in front of messages that do not name it."""
    try:
        yield
    except ScaleoutError as error:
        if str(error).startswith(f"{where}: "):
            raise
        raise type(error)(f"{where}: {error}") from None


def held(value: int, name: str, where: str) -> int:
    """Return a number that a column of int64 holds."""
    if not -_INT64_END <= value < _INT64_END:
        raise GraphError(f"{where} has {name} = {value:.3g}, more than a node can count (2**63); choose smaller sizes")
    return value


def _integer(name: str, node: Node, default: int | None = NONE) -> int:
    return held(get(node, name, int, default=default), name, str(node))


def _phase(node: Node) -> str:
    return get(node, vocabulary.PHASE, str, default="")


def _role(node: Node) -> int:
    text = get(node, vocabulary.ROLE, str, default="")
    with locating(node):
        return vocabulary.parse_role(text)


def _stream(node: Node) -> int:
    return max(0, _integer(vocabulary.STREAM, node, 0))


class Label(NamedTuple):
    """An attribute that says nothing of the others: its column, the value of a node without, and what reads it."""

    column: str
    neutral: Any
    read: Callable[[Node], Any]


LABELS: Mapping[str, Label] = {
    vocabulary.MICROBATCH: Label("microbatch", NONE, partial(_integer, vocabulary.MICROBATCH)),
    vocabulary.STAGE: Label("stage", NONE, partial(_integer, vocabulary.STAGE)),
    vocabulary.ROLE: Label("role", 0, _role),
    vocabulary.LAYER: Label("layer", NONE, partial(_integer, vocabulary.LAYER)),
    vocabulary.STREAM: Label("stream", 0, _stream),
    vocabulary.PHASE: Label("phase", "", _phase),
}
"""First the one that differs most between nodes."""

READ = frozenset(
    {
        *("is_cpu_op", "num_ops", "tensor_size", "involved_dim", "pg_name", "comm_type", "comm_size"),
        *("comm_src", "comm_dst", "comm_tag", "comm_priority", vocabulary.DURATION, vocabulary.TIME_SOURCE),
        *(vocabulary.KERNEL, vocabulary.PRIORITY, vocabulary.GROUP),
    }
)
"""Attributes that `read_row` reads."""


def read_row(node: Node, *, dtype: str) -> Row:
    """Read a node; `dtype` is of kernels of which it tells FLOPs and bytes only.

    Raises
    ------
    TraceError
        If the node lacks what its kind needs, or an attribute has another kind or value than there can be.
    GraphError
        If a kernel has no time and no FLOPs, or a number is larger than a graph holds.
    """
    if node.type == NodeType.COMM_COLL_NODE:
        return _collective(node)
    if node.type == NodeType.COMM_SEND_NODE:
        return _message(node, NodeKind.SEND, own="comm_src", peer="comm_dst")
    if node.type == NodeType.COMM_RECV_NODE:
        return _message(node, NodeKind.RECV, own="comm_dst", peer="comm_src")
    if node.type in (NodeType.METADATA_NODE, NodeType.INVALID_NODE):  # ASTRA-sim passes over both too
        is_metadata = node.type == NodeType.METADATA_NODE
        return Row(duration_s=0.0, time_source=TimeSource.GIVEN, is_metadata=is_metadata)
    return _compute(node, dtype=dtype)


def _states(node: Node, name: str) -> bool:
    return node.attributes.get(name, (None, None))[0] is not None


def _count(node: Node, name: str) -> int:
    """Read a size or a count of FLOPs, which a column of int64 must hold."""
    value = get(node, name, int)
    if not 0 <= value < _INT64_END:
        raise TraceError(f"{node}: {name} is {value}; write a number from 0 to 2**63 - 1")
    return value


def _compute(node: Node, *, dtype: str) -> Row:
    row = Row(
        flops=_count(node, "num_ops") if _states(node, "num_ops") else 0,
        bytes=_count(node, "tensor_size") if _states(node, "tensor_size") else 0,
        priority=_integer(vocabulary.PRIORITY, node, 0),
    )
    if _states(node, vocabulary.DURATION):
        return _timed_by_us(node, row)
    kernel = custom(dtype=dtype, flops=row.flops, bytes=row.bytes) if row.flops or row.bytes else None
    if kernel is not None and not node.duration_micros:
        return row._replace(kernel=kernel)
    states_work = node.duration_micros or _states(node, "num_ops") or _states(node, "tensor_size")
    if states_work or get(node, "is_cpu_op", bool, default=False):
        return row._replace(kernel=kernel, duration_s=node.duration_micros / 1e6, time_source=TimeSource.GIVEN)
    raise GraphError(f"{node} is a kernel with no time and no FLOPs; give it a duration, or num_ops and tensor_size")


def _recorded(node: Node) -> dict[str, Any]:
    """Return the time of communication, and where it comes from, where our own attributes tell."""
    if not _states(node, vocabulary.DURATION):
        return {}
    row = _timed_by_us(node, Row())
    if row.time_source not in (TimeSource.RECORDED, TimeSource.SCALED):
        raise TraceError(f"{node}: {vocabulary.TIME_SOURCE} is not `recorded`; leave {vocabulary.DURATION} out")
    return {"duration_s": row.duration_s, "time_source": row.time_source, "kernel": row.kernel}


def _timed_by_us(node: Node, row: Row) -> Row:
    duration_s = get(node, vocabulary.DURATION, float)
    if not 0 <= duration_s < math.inf:
        raise TraceError(f"{node}: {vocabulary.DURATION} is {duration_s}; write a time >= 0")
    text = get(node, vocabulary.KERNEL, str, default="")
    try:
        return row._replace(
            kernel=vocabulary.parse_kernel(text, flops=row.flops, size_bytes=row.bytes) if text else None,
            duration_s=duration_s,
            time_source=vocabulary.parse_time_source(get(node, vocabulary.TIME_SOURCE, str)),
        )
    except ScaleoutError as error:
        raise TraceError(f"{node}: {error}") from None


def _collective(node: Node) -> Row:
    value = get(node, "comm_type", int)
    if value not in _COLLECTIVE_OF:
        name = CollectiveCommType(value).name if value in tuple(CollectiveCommType) else str(value)
        raise TraceError(
            f"{node}: comm_type {name} is not supported; it must be one of "
            f"{', '.join(comm_type.name for comm_type in COMM_TYPES.values())}"
        )
    dimensions = get(node, "involved_dim", list[bool], default=[])
    if not all(dimensions):
        raise TraceError(
            f"{node}: involved_dim {dimensions} keeps it to some dimensions of the network, "
            f"which is not supported; name a process group of the ranks that take part"
        )
    return Row(
        kind=NodeKind.COLLECTIVE,
        bytes=_count(node, "comm_size"),
        collective=_COLLECTIVE_OF[value],
        priority=_integer("comm_priority", node, 0),
        family=_integer(vocabulary.GROUP, node),
        group=get(node, "pg_name", str, default="") or WORLD,
        **_recorded(node),
    )


def _message(node: Node, kind: NodeKind, *, own: str, peer: str) -> Row:
    return Row(
        kind=kind,
        peer=_integer(peer, node, None),
        own_side=_integer(own, node),
        tag=_integer("comm_tag", node, None),
        bytes=_count(node, "comm_size"),
        priority=_integer("comm_priority", node, 0),
        family=_integer(vocabulary.GROUP, node),
        **_recorded(node),
    )
