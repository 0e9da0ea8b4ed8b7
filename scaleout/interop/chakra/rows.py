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


def _integer(name: str, node: Node, default: int = NONE) -> int:
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
    lowest: int | None = None  # if it is a plain number, which a lower one stands for


LABELS: Mapping[str, Label] = {
    vocabulary.MICROBATCH: Label("microbatch", NONE, partial(_integer, vocabulary.MICROBATCH), -_INT64_END),
    vocabulary.STAGE: Label("stage", NONE, partial(_integer, vocabulary.STAGE), -_INT64_END),
    vocabulary.ROLE: Label("role", 0, _role),
    vocabulary.LAYER: Label("layer", NONE, partial(_integer, vocabulary.LAYER), -_INT64_END),
    vocabulary.STREAM: Label("stream", 0, _stream, 0),
    vocabulary.PHASE: Label("phase", "", _phase),
}

_OF_COMPUTE = {"flops": "num_ops", "bytes": "tensor_size", "priority": vocabulary.PRIORITY}
_OF_COLLECTIVE = {"bytes": "comm_size", "priority": "comm_priority", "family": vocabulary.GROUP}
_OF_MESSAGE = {"tag": "comm_tag", **_OF_COLLECTIVE}
NUMBERS: Mapping[NodeType, Mapping[str, str]] = {
    NodeType.INVALID_NODE: {},
    NodeType.METADATA_NODE: {},
    NodeType.MEM_LOAD_NODE: _OF_COMPUTE,
    NodeType.MEM_STORE_NODE: _OF_COMPUTE,
    NodeType.COMP_NODE: _OF_COMPUTE,
    NodeType.COMM_SEND_NODE: {"peer": "comm_dst", "own_side": "comm_src", **_OF_MESSAGE},
    NodeType.COMM_RECV_NODE: {"peer": "comm_src", "own_side": "comm_dst", **_OF_MESSAGE},
    NodeType.COMM_COLL_NODE: _OF_COLLECTIVE,
}
"""Columns of a row that are plain numbers, and the attribute that each is, for every type of node."""
COUNTS = ("num_ops", "tensor_size", "comm_size")
"""Attributes that are at least zero."""
_OPTIONAL = {"num_ops": 0, "tensor_size": 0, vocabulary.PRIORITY: 0, "comm_priority": 0, vocabulary.GROUP: NONE}
"""What an attribute is where it is absent."""

READ = frozenset(
    {
        *("is_cpu_op", "involved_dim", "pg_name", "comm_type", vocabulary.DURATION, vocabulary.TIME_SOURCE),
        *(vocabulary.KERNEL, *(attribute for numbers in NUMBERS.values() for attribute in numbers.values())),
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
    if node.type in (NodeType.METADATA_NODE, NodeType.INVALID_NODE):  # ASTRA-sim passes over both too
        is_metadata = node.type == NodeType.METADATA_NODE
        return Row(duration_s=0.0, time_source=TimeSource.GIVEN, is_metadata=is_metadata)
    if node.type in (NodeType.MEM_LOAD_NODE, NodeType.MEM_STORE_NODE, NodeType.COMP_NODE):
        return _compute(node, dtype=dtype)
    if node.type == NodeType.COMM_COLL_NODE:
        return _collective(node)
    kind = NodeKind.SEND if node.type == NodeType.COMM_SEND_NODE else NodeKind.RECV
    return Row(kind=kind, **_numbers(node), **_recorded(node))


def states(node: Node, name: str) -> bool:
    """Whether a node has an attribute with a value."""
    return node.attributes.get(name, (None, None))[0] is not None


def _numbers(node: Node) -> dict[str, Any]:
    """Read the columns that are plain numbers."""
    columns: dict[str, Any] = {}
    for column, attribute in NUMBERS[NodeType(node.type)].items():
        own_side = NONE if column == "own_side" else None
        value = get(node, attribute, int, default=_OPTIONAL.get(attribute, own_side))
        if attribute in COUNTS and not 0 <= value < _INT64_END:
            raise TraceError(f"{node}: {attribute} is {value}; write a number from 0 to 2**63 - 1")
        columns[column] = held(value, attribute, str(node))
    return columns


def _compute(node: Node, *, dtype: str) -> Row:
    row = Row(**_numbers(node))
    if states(node, vocabulary.DURATION):
        return _timed_by_us(node, row)
    kernel = kernel_of("", dtype=dtype, flops=row.flops, size_bytes=row.bytes) if row.flops or row.bytes else None
    if kernel is not None and not node.duration_micros:
        return row._replace(kernel=kernel)
    states_work = node.duration_micros or states(node, "num_ops") or states(node, "tensor_size")
    if states_work or get(node, "is_cpu_op", bool, default=False):
        return row._replace(kernel=kernel, duration_s=node.duration_micros / 1e6, time_source=TimeSource.GIVEN)
    raise GraphError(f"{node} is a kernel with no time and no FLOPs; give it a duration, or num_ops and tensor_size")


def _recorded(node: Node) -> dict[str, Any]:
    """Return the time of communication, and where it comes from, where our own attributes tell."""
    if not states(node, vocabulary.DURATION):
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
            kernel=kernel_of(text, dtype="", flops=row.flops, size_bytes=row.bytes) if text else None,
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
        collective=_COLLECTIVE_OF[value],
        group=get(node, "pg_name", str, default="") or WORLD,
        **_numbers(node),
        **_recorded(node),
    )


def kernel_text_of(node: Node) -> str:
    """Return our own attribute of the kernel of a node that has one; empty if only its FLOPs and bytes are known."""
    return get(node, vocabulary.KERNEL, str, default="") if states(node, vocabulary.DURATION) else ""


def kernel_of(text: str, *, dtype: str, flops: int, size_bytes: int) -> Kernel:
    """Return the kernel of a node, given what `kernel_text_of` says of it."""
    if text:
        return vocabulary.parse_kernel(text, flops=flops, size_bytes=size_bytes)
    return custom(dtype=dtype, flops=flops, bytes=size_bytes)
