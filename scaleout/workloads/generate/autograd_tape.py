"""The autograd tape: what backward must do, recorded by layers as they write their forward kernels.

A layer writes forward kernels into the tape's graph and pushes what backward must do. `AutogradTape.backward` plays
that from the end, into whatever graph the tape then has, as often as graphs of backward are needed. The tape also
counts the bytes that layers save for backward. Gradients fill buckets, each reduced as soon as it is full.

Symbols: x node that makes an input, y an output; dx and dy nodes that make their gradients. `NONE`: the graph's input.
Source: Li et al., PyTorch Distributed, VLDB 2020 (buckets); ZeRO, arXiv:1910.02054 (reduce-scatter instead).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from scaleout.program.graph import NONE, GraphBuilder, NodeRole
from scaleout.program.operations import ITEM_BYTES, Kernel, kernel
from scaleout.workloads.config.style import PLAIN, Style
from scaleout.workloads.generate.axes import Call, GradientSync

Action = Callable[[int], int]


@dataclass
class Span:
    """What one action of backward does to memory."""

    kept_bytes: float = 0.0  # what was kept for it, and goes when it is done
    made_bytes: float = 0.0  # the gradient that it makes; 0 if it hands on the one that it gets
    scratch_bytes: float = 0.0  # what it needs meanwhile
    aside_bytes: float = 0.0  # gradients that it puts aside, or takes up again if below zero


BULK, URGENT = 0, 1
"""Priority of gradient reductions, and of collectives that the next kernel waits for."""


@dataclass
class Bucket:
    """Gradients of one group that wait to be reduced together."""

    name: str
    sharing: GradientSync
    nodes: list[int] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(frozen=True)
class Reduction:
    """A reduction that is deferred: its collectives, one after the other, and the nodes that make the gradients.

    A `copy` brings the gradients into the bucket before, and out of it after.
    """

    collectives: tuple[Call, ...]
    after: tuple[int, ...]
    copy: Kernel | None = None

    def write(self, graph: GraphBuilder) -> int:
        """Write the collectives and the copies, and return the last node."""
        after = self.after
        if self.copy is not None:
            after = (graph.compute(self.copy, after=after, name="copy_into_bucket"),)
        columns = {"priority": BULK, "role": NodeRole.GRADIENTS}
        for kind, size_bytes, group in self.collectives:
            node = graph.collective(kind, size_bytes, group=group, after=after, name=f"gradients_{kind}", **columns)
            after = (node,)
        if self.copy is not None:
            after = (graph.compute(self.copy, after=after, name="copy_out_of_bucket"),)
        return after[0]


@dataclass
class Gradients:
    """What backward makes: gradients, and the nodes after which they are `final`; an empty data type is none."""

    bucket_bytes: float  # size from which on a bucket is reduced
    item_bytes: int
    reduces: bool = True  # these gradients are reduced, or else added up until those of a later micro-batch are
    accumulates: str = ""  # data type of gradients that are there already, to which a kernel of its own adds these
    copied: str = ""  # data type of gradients that are copied into their bucket and out of it
    deferred: list[Reduction] | None = None  # takes reductions: in a pipeline other ranks wait for what comes next
    final: list[int] = field(default_factory=list)
    copies: str = ""  # data type of gradients that are copied into the buffers that are reduced
    flat: tuple[tuple[str, str], ...] = ()  # kernels, and their data types, that make one flat tensor of sharded ones
    lists: str = ""  # data type of gradients that are each reduced by itself, out of a list with a tensor a rank
    replicas_at_end: bool = False  # shards are summed over their replicas at the end of the step, and not here

    def accumulate_gradient(
        self, graph: GraphBuilder, gradient: int, num_parameters: int, bucket: Bucket, biases: int = 0
    ) -> None:
        """Take a gradient, of a tensor or of that and its `biases`, into its bucket; reduce that if it is full."""
        if self.accumulates:
            add = kernel("add", dtype=self.accumulates, elements=num_parameters)
            gradient = graph.compute(add, after=(gradient,), name="accumulate_gradient")
        if not self.reduces:
            return
        sharing = bucket.sharing
        if self._copies_in(sharing):
            scale = kernel("mul_scalar", dtype=self.copies, elements=num_parameters)
            gradient = graph.compute(scale, after=(gradient,), name="gradient_into_bucket")
        for count in (num_parameters - biases, biases) if self.lists and biases else (num_parameters,):
            bucket.nodes.append(gradient)
            bucket.size_bytes += count * self.item_bytes
            if bucket.size_bytes >= self.bucket_bytes or self.lists:
                self.flush(graph, bucket)

    def _copies_in(self, sharing: GradientSync) -> bool:
        """Whether each gradient is scaled into its bucket: where that holds several, and is not copied whole."""
        if not self.copies or self.copied or sharing.sharded:
            return False
        return sharing.degree > 1 and self.bucket_bytes > self.item_bytes

    def flush(self, graph: GraphBuilder, bucket: Bucket) -> None:
        """Reduce what a bucket holds over its group, if anybody shares it."""
        if not bucket.nodes:
            return
        sharing, size_bytes = bucket.sharing, bucket.size_bytes
        if self.copies and not self.copied and sharing.sharded:
            fill = kernel("clone", dtype=self.copies, elements=size_bytes // self.item_bytes)
            bucket.nodes = [graph.compute(fill, after=bucket.nodes, name="gradients_copy_in")]
        for op, dtype in self.flat if sharing.sharded and sharing.degree > 1 else ():
            made = kernel(op, dtype=dtype, elements=size_bytes // self.item_bytes)
            bucket.nodes = [graph.compute(made, after=bucket.nodes, name=f"flat_gradients_{op}")]
        if self.lists and sharing.sharded and sharing.degree > 1:
            elements = size_bytes // self.item_bytes
            divided = kernel("mul_scalar", dtype=self.lists, elements=elements)
            bucket.nodes = [graph.compute(divided, after=bucket.nodes, name="gradients_divide")]
            copied = kernel("list_in", dtype=self.lists, elements=elements, tensors=sharing.degree)
            bucket.nodes = [graph.compute(copied, after=bucket.nodes, name="gradients_into_list")]
        steps = [*sharing.reduces(size_bytes), *(() if self.replicas_at_end else sharing.sums_replicas(size_bytes))]
        copy = kernel("clone", dtype=self.copied, elements=size_bytes // self.item_bytes) if self.copied else None
        reduction = Reduction(tuple(steps), tuple(bucket.nodes), copy)
        if not steps:
            self.final += bucket.nodes
        elif self.deferred is None:
            self.final.append(reduction.write(graph))
        else:
            self.deferred.append(reduction)
        bucket.nodes, bucket.size_bytes = [], 0


@dataclass
class Cursor:
    """Where tapes write now."""

    graph: GraphBuilder
    weights: list[Callable[[], None]] | None = None  # takes gradients of weights, instead of their being made at once
    waits: tuple[int, ...] = ()  # nodes that the next kernel waits for besides its inputs

    def begin(self, graph: GraphBuilder, weights: list[Callable[[], None]] | None = None) -> None:
        """Write to another graph from here on, in which nothing waits for nodes of the one before."""
        self.graph, self.weights, self.waits = graph, weights, ()


@dataclass
class AutogradTape:
    """A graph being written and what its backward pass must do; parameters are counted by the name of their bucket."""

    cursor: Cursor  # shared with the tapes of branches
    dtype: str
    gradients: Gradients | None  # None if there is no backward
    actions: list[Action] = field(default_factory=list)  # what backward does, in forward order
    kept_bytes: float = 0.0  # what the layers keep for backward
    recompute_bytes: float = 0.0  # the most that a part which backward recomputes keeps meanwhile
    all_recompute_bytes: float = 0.0  # what all such parts keep together, where gradients of weights are deferred
    parameters: dict[str, int] = field(default_factory=dict)  # that its layers hold
    in_fp8: dict[str, int] = field(default_factory=dict)  # of these, those that are held in fp8
    tensors: list[tuple[str, int]] = field(default_factory=list)  # the same one by one
    partial: dict[str, int] = field(default_factory=dict)  # of whose gradient each tensor-parallel rank makes a part
    layers: list[int] = field(default_factory=list)  # the layer that each action belongs to
    role: NodeRole = NodeRole.FORWARD  # the pass that layers write
    needed: int = 0  # nodes when a layer last kept something: those after make nothing that backward reads
    style: Style = PLAIN
    saved: bool = False  # what layers recompute leaves out the operations whose results were kept
    operations_bytes: float = 0.0  # results of those operations
    spans: list[Span] = field(default_factory=list)  # what each action does to memory
    weights: set[tuple[int, int]] = field(default_factory=set)  # outputs and inputs of the weights of its layers

    @property
    def graph(self) -> GraphBuilder:
        """Where nodes go."""
        return self.cursor.graph

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    def kernel(self, op: str, *after: int, name: str = "", role: int = 0, **shape: int) -> int:
        """Add one kernel of the tape's data type, and return its index."""
        return self.add(kernel(op, dtype=self.dtype, **shape), *after, name=name, role=role)

    def add(self, made: Kernel, *after: int, name: str = "", role: int = 0) -> int:
        """Add one kernel, and return its index."""
        waits, self.cursor.waits = self.cursor.waits, ()
        return self.graph.compute(made, after=(*after, *waits), name=name, role=role)

    def enter(self, phase: str) -> None:
        """Begin a phase of the pass that layers write."""
        self.graph.enter(f"{phase}_{self.role.name.lower()}" if self.role.name else phase, self.role)

    def aside(self, op: str, after: int, *, name: str, **shape: int) -> int:
        """Add a kernel that does not wait for what the next one of the layers does, and return its index."""
        return self.graph.compute(kernel(op, dtype=self.dtype, **shape), after=(after,), name=name)

    def push(self, action: Action, *, makes: float = 0.0, scratch_bytes: float = 0.0, aside: float = 0.0) -> None:
        """Remember what backward does here, and the elements of gradients that it makes or puts aside."""
        if self.gradients is not None:
            self.actions.append(action)
            self.layers.append(self.graph.layer)
            self.spans.append(Span(0.0, makes * self.item_bytes, scratch_bytes, aside * self.item_bytes))

    def save_for_backward(self, elements: float, item_bytes: float | None = None) -> None:
        """Count elements that are kept for backward, of the tape's data type unless another size is given."""
        if self.gradients is not None:
            size_bytes = elements * (self.item_bytes if item_bytes is None else item_bytes)
            self.kept_bytes += size_bytes
            self.needed = len(self.graph)
            if self.spans:
                self.spans[-1].kept_bytes += size_bytes

    def hold(
        self, num_parameters: int, bucket: Bucket, *, biases: int = 0, partial: bool = False, in_fp8: int = 0
    ) -> None:
        """Count parameters of a layer, a tensor or that and its `biases`, some held in fp8.

        Their gradients may be `partial` sums over the tensor axis.
        """
        self.in_fp8[bucket.name] = self.in_fp8.get(bucket.name, 0) + in_fp8
        self.partial[bucket.name] = self.partial.get(bucket.name, 0) + num_parameters * partial
        self.parameters[bucket.name] = self.parameters.get(bucket.name, 0) + num_parameters
        self.tensors += [(bucket.name, count) for count in (num_parameters - biases, biases) if count]

    def branch(self) -> "AutogradTape":
        """Return a tape of its own with the same cursor, of layers beside those of this one."""
        return AutogradTape(
            self.cursor, self.dtype, self.gradients, parameters=self.parameters, in_fp8=self.in_fp8,
            tensors=self.tensors, partial=self.partial, role=self.role, style=self.style, saved=self.saved,
            weights=self.weights,
        )  # fmt: skip

    def recompute(self, *, saved: bool = False) -> "AutogradTape":
        """Return a tape for layers that are recomputed."""
        return AutogradTape(
            self.cursor, self.dtype, self.gradients, role=NodeRole.RECOMPUTE, style=self.style, saved=saved
        )

    def accumulate_gradient(
        self, make: Callable[[int], int], source: int, num_parameters: int, bucket: Bucket, biases: int = 0
    ) -> None:
        """Make a weight's gradient from a node, now or when the weights' turn comes; hand it to the gradients.

        Where gradients are reduced out of lists, the next kernel waits for their reduction.
        """

        def made(node: int) -> None:
            assert self.gradients is not None, "only backward makes gradients"
            self.gradients.accumulate_gradient(self.graph, make(node), num_parameters, bucket, biases)
            if self.gradients.lists and self.gradients.reduces:
                self.cursor.waits += tuple(self.gradients.final[-1:])

        def made_later(layer: int = self.graph.layer) -> None:
            self.graph.layer = layer
            made(NONE)

        if self.cursor.weights is None:
            made(source)
        else:
            self.cursor.weights.append(made_later)

    def backward(self, dy: int) -> int:
        """Play the tape from the end; return the node that makes the gradient of the first input."""
        for action, layer in zip(reversed(self.actions), reversed(self.layers), strict=True):
            self.graph.layer = layer
            dy = action(dy)
        return dy

    def transient_bytes(self, entering_bytes: float) -> float:
        """Return the most that backward holds beyond all that is kept when it begins, with a gradient that comes in."""
        freed, live, aside, most = 0.0, entering_bytes, 0.0, entering_bytes
        for span in reversed(self.spans):
            most = max(most, live + aside + span.made_bytes + span.scratch_bytes - freed)
            freed += span.kept_bytes
            aside += span.aside_bytes
            if span.made_bytes or span.aside_bytes > 0:  # what is put aside is the gradient itself, not a copy
                live = span.made_bytes
        return most
