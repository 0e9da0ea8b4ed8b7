"""Execution graphs: what one rank does in a step, as read-only columns, and the builder that makes them.

A graph has N nodes and E dependencies. A node is a kernel, a collective, or one end of a point-to-point message, and
follows its dependencies. Graphs know no rank numbers, devices or networks: a collective names its group by an index
into the groups of the `Program` that holds the graph.

Source: the node kinds are those of Chakra (MLCommons, execution-trace schema 1.0).
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt

from scaleout.config.reading import nearest
from scaleout.errors import GraphError
from scaleout.program.calls import KernelColumns, columns_of
from scaleout.program.operations import RECORDED, Kernel, TimeSource

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Found = TypeVar("Found")


class NodeKind(IntEnum):
    """What a node is."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3


COLLECTIVES = (
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "barrier", "gather", "scatter",
)  # fmt: skip
"""Kinds of collective; a graph's `collective` column indexes this tuple."""

NONE = -1
"""In an index column, for nodes that have no such thing."""

HEAD = -2
"""In the `layer` column, for a model's head, which follows its last layer."""


class NodeRole(IntFlag):
    """The pass of the step that a node is part of, and its job there; at most one of each.

    Passes and analyses read roles, never names. A graph whose `role` column is 0, such as one of a foreign trace, has
    no forward, gradients or layers for them.
    """

    FORWARD = 1
    BACKWARD = 2
    RECOMPUTE = 4  # forward recomputed within backward
    DEFERRED = 8  # weight gradients that a pipeline computes in a pass of their own
    REDUCTION = 16  # between backward and optimizer: the remaining reductions, and sums over other gradients
    OPTIMIZER = 32
    INPUT = 64  # reading of the next step's data, which uses no device resource
    LOOP = 128  # back-to-back calls of a measurement
    HOST = 16384  # time of the host between its calls, of a launch, or an untold wait, which use no device resource

    WEIGHTS = 256  # multiplies activations by weights, or casts for such a GEMM
    ACTIVATION_GRADIENT = 512  # computes the gradient of such a GEMM's input
    WEIGHT_GRADIENT = 1024  # computes the gradient of its weights
    EXCHANGE = 2048  # communicates activations or their gradients, or permutes their rows for that
    PARAMETERS = 4096  # gathers parameters
    GRADIENTS = 8192  # reduces a bucket of gradients over the ranks that share its parameters


@dataclass(frozen=True, eq=False)
class ExecutionGraph:
    """What one rank does, as columns over N nodes and dependencies in compressed sparse rows.

    A node column's type names the value of nodes that have no such thing.
    """

    names: tuple[str, ...]  # (N,), as all node columns
    kind: Annotated[Ints, NodeKind.COMPUTE]  # of `NodeKind`
    kernel: Annotated[Ints, NONE]  # index into `kernels`
    # of a compute node; NaN until timed, and for communication, which the network times. Of communication that kernels
    # carry out themselves, without a library, how long each slice keeps the links beyond its bytes; of communication
    # that was recorded, how long it took once all ranks were there
    duration_s: Annotated[Floats, np.nan]
    time_source: Annotated[Ints, TimeSource.UNKNOWN]  # of `TimeSource`, or of `kernel_times.source_names`
    flops: Annotated[Ints, 0]  # of a compute node
    bytes: Annotated[Ints, 0]  # memory traffic of a compute node, payload of a communication node
    # index into `COLLECTIVES`; of a send or receive, the collective that such one-sided puts carry out
    collective: Annotated[Ints, NONE]
    group: Annotated[Ints, NONE]  # index into the program's groups
    # of sends and receives the other rank's number, or its index in the program's `peers`; if the node names a group,
    # the relative peer in it
    peer: Annotated[Ints, NONE]
    tag: Annotated[Ints, 0]  # of a message
    # into how many equal slices the whole transfer was cut; slices of one transfer follow each other on the link and
    # pay its latency once
    slices: Annotated[Ints, 1]
    stream: Annotated[Ints, 0]  # a stream runs one node at a time; 0 is the compute stream
    priority: Annotated[Ints, 0]  # of several ready nodes of a stream the highest goes first, then the lowest index
    phase: Annotated[Ints, 0]  # index into `phases`
    issue_s: Annotated[Floats, 0.0]  # time after the start of the step at which the host has issued the node
    microbatch: Annotated[Ints, NONE]  # of nodes of a pipeline
    stage: Annotated[Ints, NONE]  # of the model, of nodes of a pipeline
    role: Annotated[Ints, 0]  # of `NodeRole`, a pass and a job combined by ``|``; 0 if not known
    layer: Annotated[Ints, NONE]  # number of the model's layer that the node belongs to, `HEAD`, or `NONE`
    dependency_offsets: Ints  # (N + 1,)
    dependencies: Ints  # (E,), compressed sparse rows of indices of earlier nodes
    kernels: tuple[Kernel, ...] | KernelColumns = ()
    phases: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        _check(self, vars(self))

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"<graph of {len(self):,} nodes>"

    def dependencies_of(self, node: int) -> Ints:
        """Return the nodes that a node waits for."""
        return self.dependencies[self.dependency_offsets[node] : self.dependency_offsets[node + 1]]

    def users_of(self, node: int) -> tuple[int, ...]:
        """Return the nodes that wait for a node, in order."""
        offsets, users = self._users
        return users[offsets[node] : offsets[node + 1]]

    @cached_property
    def _users(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What waits for each node, in compressed sparse rows: few objects, which Python's collector visits often."""
        waiting = np.repeat(np.arange(len(self)), np.diff(self.dependency_offsets))
        users = waiting[np.argsort(self.dependencies, kind="stable")]
        ends = np.cumsum(np.bincount(self.dependencies, minlength=len(self)))
        return (0, *ends.tolist()), tuple(users.tolist())

    @property
    def kind_of_kernel(self) -> Ints:
        """The kernel of each node but for its FLOPs and bytes, shape (N,): index into kinds, or `NONE`."""
        return np.append(columns_of(self.kernels).kind, NONE)[self.kernel]

    def has_role(self, roles: int) -> Bools:
        """Return whether each node has any of some roles, combined by ``|``; shape (N,)."""
        return np.asarray(self.role & roles != 0)

    def operation(self, node: int) -> str:
        """Return the name of what a node does: its kernel's operation, or the collective's kind."""
        kind = int(self.kind[node])
        if kind == NodeKind.COLLECTIVE:
            return COLLECTIVES[self.collective[node]]
        if kind != NodeKind.COMPUTE:
            prefix = f"{COLLECTIVES[self.collective[node]]}_" if self.collective[node] != NONE else ""
            return prefix + NodeKind(kind).name.lower()
        if (kernel := int(self.kernel[node])) != NONE:
            return self.kernels[kernel].op.removeprefix(RECORDED)
        return "host" if int(self.role[node]) & NodeRole.HOST else "compute"

    @property
    def total_flops(self) -> int:
        """FLOPs of all kernels."""
        return int(self.flops[self.kind == NodeKind.COMPUTE].sum())

    @property
    def payload_bytes(self) -> int:
        """Bytes of all collectives and of all messages sent."""
        return int(self.bytes[(self.kind == NodeKind.COLLECTIVE) | (self.kind == NodeKind.SEND)].sum())

    @cached_property
    def but_times(self) -> tuple[int, ...]:
        """What identifies all columns but `FLOAT_COLUMNS`: equal where graphs differ in times alone."""
        return tuple(id(getattr(self, column.name)) for column in fields(self) if column.name not in FLOAT_COLUMNS)

    def with_columns(self, **columns: Any) -> "ExecutionGraph":
        """Return a copy with some columns replaced, and only these checked; `GraphError` if there is no such column."""
        known = [column.name for column in fields(self)]
        for name in columns:
            if name not in known:
                raise GraphError(f"a graph has no column {name!r}; {nearest(name, known)}")
        made = object.__new__(ExecutionGraph)
        vars(made).update({name: getattr(self, name) for name in known}, **columns)
        _check(made, columns)
        return made


def found_once(
    graphs: Iterable[ExecutionGraph], reads: Sequence[str], find: Callable[[ExecutionGraph], Found]
) -> list[Found]:
    """Return what is found of each graph by what `reads` names alone: once for all graphs that share these."""
    known: dict[tuple[int, ...], Found] = {}
    found = []
    for graph in graphs:
        key = tuple([id(getattr(graph, name)) for name in reads])
        if key not in known:
            known[key] = find(graph)
        found.append(known[key])
    return found


NEUTRAL: Mapping[str, float] = {
    name: column.__metadata__[0]
    for name, column in get_type_hints(ExecutionGraph, include_extras=True).items()
    if get_origin(column) is Annotated
}
"""Node column to its value where a node has no such thing."""

FLOAT_COLUMNS = ("duration_s", "issue_s")
"""Node columns that hold times; all others hold whole numbers."""


def _check(graph: ExecutionGraph, given: Mapping[str, Any]) -> None:
    """Check the columns that are given, and let nobody write them; all of them if the nodes are other ones."""
    given = vars(graph) if "names" in given else given
    size = len(graph.names)
    for column, values in given.items():
        if isinstance(values, np.ndarray):
            values.flags.writeable = False
        if column in NEUTRAL and np.shape(values) != (size,):
            raise GraphError(
                f"column {column} has shape {np.shape(values)} for {size} nodes; give an array of a value for each"
            )
    for column, names, known in (
        ("kernel", "kernels", graph.kernels), ("collective", "", COLLECTIVES), ("phase", "phases", graph.phases)
    ):  # fmt: skip
        values = getattr(graph, column)
        if size and (column in given or names in given) and not NONE <= values.min() <= values.max() < len(known):
            node = int(np.argmax((values < NONE) | (values >= len(known))))
            raise GraphError(
                f"node {node} ({graph.names[node]!r}) has {column} {values[node]}; give one of {len(known)}"
            )
    for column in ("flops", "bytes", "slices", "duration_s"):
        values = getattr(graph, column)
        if column in given and (values < 0).any():
            node = int(np.argmax(values < 0))
            raise GraphError(f"node {node} ({graph.names[node]!r}) has {column} = {values[node]}; give zero or more")
    if "dependencies" in given or "dependency_offsets" in given:
        _check_order(graph)


def _check_order(graph: ExecutionGraph) -> None:
    """Refuse a dependency that does not precede its user."""
    counts = np.diff(graph.dependency_offsets)
    assert len(counts) == len(graph)
    users = np.repeat(np.arange(len(graph)), counts)
    late = np.flatnonzero((graph.dependencies >= users) | (graph.dependencies < 0))
    if late.size:
        user, dependency = int(users[late[0]]), int(graph.dependencies[late[0]])
        raise GraphError(
            f"node {user} ({graph.names[user]!r}) depends on node {dependency}, which does not precede it; "
            f"sort the nodes topologically or break the cycle"
        )


@dataclass
class GraphBuilder:
    """Collects nodes in order and freezes them into an `ExecutionGraph`."""

    phase: str = ""  # of the nodes that follow
    role: int = 0  # their pass, of `NodeRole`; a node's own role says its job besides
    layer: int = NONE  # the layer that they belong to
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _dependencies: list[tuple[int, ...]] = field(default_factory=list)
    _kernels: dict[Kernel, int] = field(default_factory=dict)
    _phases: dict[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._rows)

    def enter(self, phase: str, role: int) -> None:
        """Begin a phase of a pass, for the nodes that follow."""
        self.phase, self.role = phase, int(role)

    def compute(self, kernel: Kernel, *, after: Iterable[int] = (), name: str = "", **columns: Any) -> int:
        """Add one kernel that waits for the nodes `after`, and return its index; see `add`."""
        work = {"kernel": self.kernel_index(kernel), "flops": kernel.flops, "bytes": kernel.bytes}
        return self.add(after, name=name or kernel.op, **work, **columns)

    def collective(
        self, kind: str, size_bytes: int, *, group: int, after: Iterable[int] = (), name: str = "", **columns: Any
    ) -> int:
        """Add one collective over the rank's group of a process-group set, and return its index; see `add`."""
        columns |= {"kind": NodeKind.COLLECTIVE, "collective": COLLECTIVES.index(kind), "group": group}
        return self.add(after, name=name or kind, bytes=size_bytes, **columns)

    def join(self, after: Iterable[int], *, name: str = "join") -> int:
        """Add a node that takes no time and ends when all of `after` have; for one of them, return that one."""
        nodes = tuple(after)
        if len(nodes) == 1:
            return nodes[0]
        return self.add(nodes, name=name, duration_s=0.0, time_source=TimeSource.GIVEN)

    def add(self, after: Iterable[int], **columns: Any) -> int:
        """Add a node from raw columns, and return its index; columns not given hold their neutral value.

        `NONE` among `after` is left out: it stands for the nodes that precede the finished graph.
        """
        columns["phase"] = self._phases.setdefault(columns.pop("phase", self.phase), len(self._phases))
        columns["role"] = self.role | int(columns.get("role", 0))
        columns.setdefault("layer", self.layer)
        self._rows.append(columns)
        self._dependencies.append(tuple(sorted({node for node in after if node != NONE})))
        return len(self._rows) - 1

    def shorten(self, length: int) -> None:
        """Take back the nodes from an index on, which no other node waits for."""
        del self._rows[length:], self._dependencies[length:]

    def _column(self, name: str, neutral: float) -> Ints | Floats:
        values = [row.get(name, neutral) for row in self._rows]
        if name in FLOAT_COLUMNS:
            return np.array(values, np.float64)
        try:
            return np.array(values, np.int64)
        except OverflowError:
            node = max(range(len(values)), key=lambda index: abs(values[index]))
            raise GraphError(
                f"node {node} ({self._rows[node]['name']!r}) has {name} = {values[node]:.3g}, more than a node can "
                f"count (2**63); choose smaller sizes"
            ) from None

    def kernel_index(self, kernel: Kernel) -> int:
        """Return the index under which a kernel stands in the finished graph."""
        return self._kernels.setdefault(kernel, len(self._kernels))

    def build(self) -> ExecutionGraph:
        """Freeze what was added."""
        given = set[str]().union(*self._rows)
        columns: dict[str, Any] = {
            column: self._column(column, neutral)
            if column in given
            else np.full(len(self), neutral, np.float64 if column in FLOAT_COLUMNS else np.int64)
            for column, neutral in NEUTRAL.items()
        }
        offsets, flat = compress(self._dependencies)
        return ExecutionGraph(
            names=tuple(row["name"] for row in self._rows),
            dependency_offsets=offsets,
            dependencies=flat,
            kernels=tuple(self._kernels),
            phases=tuple(self._phases) or ("",),
            **columns,
        )


def compress(dependencies: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Turn lists of dependencies, one a node, into compressed sparse rows."""
    offsets = np.zeros(len(dependencies) + 1, np.int64)
    np.cumsum([len(row) for row in dependencies], out=offsets[1:])
    flat = np.fromiter((index for row in dependencies for index in row), np.int64, int(offsets[-1]))
    return offsets, flat


def compress_edges(users: Ints, needs: Ints, num_nodes: int) -> tuple[Ints, Ints]:
    """Turn (E,) nodes and what each waits for into compressed sparse rows, in order and each once."""
    size = max(num_nodes, 1)
    edges = np.sort(users * size + needs, kind="stable")  # which is quick where most are in order
    users, needs = np.divmod(edges[np.diff(edges, prepend=-1) > 0], size)
    return np.concatenate(([0], np.cumsum(np.bincount(users, minlength=num_nodes)))), needs


def users_in(dependencies: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return for each node those that wait for it, in order."""
    users: list[list[int]] = [[] for _ in dependencies]
    for user, row in enumerate(dependencies):
        for dependency in row:
            users[dependency].append(user)
    return users


def lowest_first(
    waiting: list[int], users_of: Callable[[int], Sequence[int]], key_of: Callable[[int], Any]
) -> list[int]:
    """Order nodes after what they wait for, of several ready ones the lowest key first; nodes of cycles are left out.

    `waiting` counts what each node still waits for, and is counted down; `users_of` maps a node to those that wait for
    it, `key_of` to its key.
    """
    ready = [(key_of(node), node) for node, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for user in users_of(node):
            waiting[user] -= 1
            if waiting[user] == 0:
                heapq.heappush(ready, (key_of(user), user))
    return order


def topological_order(dependencies: Sequence[Sequence[int]], names: Sequence[str]) -> list[int]:
    """Order nodes after what they depend on, of several ready ones the lowest first; a cycle is a `GraphError`."""
    waiting = [len(row) for row in dependencies]
    order = lowest_first(waiting, users_in(dependencies).__getitem__, int)
    if len(order) < len(waiting):
        cycle = _cycle(dependencies, waiting)
        loop = " -> ".join(f"{node} ({names[node]!r})" for node in [*cycle, cycle[0]])
        raise GraphError(f"the dependencies form a cycle: {loop}; remove one of these dependencies")
    return order


def _cycle(dependencies: Sequence[Sequence[int]], waiting: Sequence[int]) -> list[int]:
    node = next(index for index, count in enumerate(waiting) if count)
    path: list[int] = []
    while node not in path:
        path.append(node)
        node = next(dependency for dependency in dependencies[node] if waiting[dependency])
    return path[path.index(node) :]
