"""Transformer decoders, dense or mixture-of-experts: the layers of one stage, forward and backward, for one rank.

Tensor parallelism cuts heads and feed-forward columns over ranks: each half of a layer ends with an all-reduce,
or, with sequence parallelism, begins with an all-gather and ends with a reduce-scatter. In decode every sequence makes
one token against a cache of `sequence` tokens. Where parameters are sharded (ZeRO-3, FSDP), each layer's are gathered
before it, forward and backward, while the layers before it compute.

Source: Megatron-LM, arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198 (sequence parallelism, recompute);
FSDP, arXiv:2304.11277.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from scaleout.generators.attention import Heads, attend
from scaleout.generators.axes import Axes
from scaleout.generators.layers import (
    COPY_IN,
    GATHER_IN,
    GATHER_IN_AGAIN,
    SCATTER_OUT,
    SUM_OUT,
    WHOLE_IN,
    WHOLE_OUT,
    Exchange,
    Layer,
    activation,
    checkpoint,
    dropout,
    exchange,
    norm,
    phased,
    residual,
)
from scaleout.generators.linear import linear
from scaleout.generators.moe import Experts, mixture
from scaleout.generators.tape import URGENT, Bucket, Page, Tape
from scaleout.graph import NONE, GraphBuilder
from scaleout.operations import ITEM_BYTES, kernel
from scaleout.workload import Moe, Transformer


@dataclass(frozen=True)
class Unit:
    """A layer, the embedding or the head in a stage's forward: its first node, and its parameters by bucket."""

    entry: int
    parameters: Mapping[str, int]


@dataclass
class Rank:
    """What one rank of one stage holds, and where its gradients go.

    Attributes
    ----------
    workload : Transformer
    axes : Axes
    tokens : int
        Tokens of a micro-batch outside tensor-parallel blocks.
    dense, experts : Bucket
        Where gradients wait.
    tied : list or None
        Where a head leaves the gradient of the table that it shares with the embedding of the same rank.
    units : list of Unit
        Whose parameters are gathered together, in the order of forward.
    """

    workload: Transformer
    axes: Axes
    tied: list[int] | None = None
    units: list[Unit] = field(default_factory=list)
    dense: Bucket = field(init=False)
    experts: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self.dense = Bucket("dense", self.axes.dense())
        self.experts = Bucket("experts", self.axes.experts() if isinstance(self.workload, Moe) else self.axes.dense())

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch outside tensor-parallel blocks."""
        workload = self.workload
        return workload.local_tokens // (workload.tensor_parallel if workload.sequence_parallel else 1)

    @property
    def elements(self) -> int:
        """Activations outside tensor-parallel blocks."""
        return self.tokens * self.workload.hidden

    @property
    def whole_bytes(self) -> int:
        """Bytes of the activations that tensor-parallel blocks read and make."""
        return self.workload.local_tokens * self.workload.hidden * self.workload.item_bytes

    @property
    def tensor(self) -> int:
        """Family of the tensor axis."""
        return self.axes.number("tensor")

    @property
    def buckets(self) -> tuple[Bucket, Bucket]:
        """Where gradients wait."""
        return self.dense, self.experts


def forward(
    tape: Tape, rank: Rank, layers: range, *, first: bool, last: bool, receives: bool = False, sends: bool = False
) -> int:
    """Write the forward pass of some layers, with the embedding before the first and the head after the last.

    One that `receives` its input in parts gathers them; one that `sends` its output receives its gradient so.

    Returns
    -------
    int
        The node that makes the output.
    """
    x = NONE
    units = Units(rank)
    item_bytes = ITEM_BYTES[rank.workload.gather_dtype or tape.dtype]
    if receives and rank.workload.scatters:
        tape.graph.phase = "pipeline_forward"
        x = exchange(tape, x, WHOLE_IN, rank.whole_bytes, group=rank.tensor, name="activations")
    if first:
        x = units.apply(tape, x, partial(_embedding, rank=rank), phase="embedding")
    for number in layers:
        whole = partial(_layer, rank=rank, number=number)
        if rank.workload.recompute in ("operations", "full"):
            again = partial(
                checkpoint, layer=whole, kept_elements=rank.elements, stop_early=rank.workload.stop_recompute_early,
                saved=rank.workload.recompute == "operations",
            )  # fmt: skip
            x = units.apply(tape, x, again, item_bytes=item_bytes)
        else:
            x = units.apply(tape, x, whole, item_bytes=item_bytes)
    if sends and rank.workload.scatters:
        x = phased(tape, x, partial(_whole_gradient, rank=rank), phase="pipeline")
    return units.apply(tape, x, partial(phased, layer=partial(_head, rank=rank), phase="head")) if last else x


def _whole_gradient(tape: Tape, x: int, rank: Rank) -> int:
    return exchange(tape, x, WHOLE_OUT, rank.whole_bytes, group=rank.tensor, name="activations")


@dataclass
class Units:
    """Layers whose parameters are gathered together where they are sharded: each is gathered ahead of its turn."""

    rank: Rank
    begun: list[int] = field(default_factory=list)
    graph: GraphBuilder | None = None

    def apply(self, tape: Tape, x: int, layer: Layer, *, phase: str = "", item_bytes: int | None = None) -> int:
        """Apply a layer, with its parameters gathered before it, and again before its backward."""
        item_bytes = item_bytes or tape.item_bytes
        workload = self.rank.workload
        if workload.zero < 3:
            return self._apply_whole(tape, x, layer)
        held = Tape(Page(GraphBuilder()), tape.dtype, None)
        layer(held, NONE)
        if phase:
            tape.graph.phase = f"{phase}_forward"

        def leave(dy: int) -> int:
            if workload.reshard_after_forward:
                self._gather(tape, dy, held.parameters, item_bytes, ahead=workload.gathered_ahead)
            return dy

        def enter(dx: int) -> int:
            assert tape.gradients is not None
            for bucket in self.rank.buckets:
                tape.gradients.flush(tape.graph, bucket)
            return dx

        self._gather(tape, x, held.parameters, item_bytes, ahead=workload.prefetch)
        tape.push(enter)
        y = layer(tape, x)
        tape.push(leave)
        return y

    def _apply_whole(self, tape: Tape, x: int, layer: Layer) -> int:
        """Apply a layer whose parameters stand whole all through a step, and note where it begins."""
        entry, before = len(tape.graph), dict(tape.parameters)
        y = layer(tape, x)
        held = {name: count - before.get(name, 0) for name, count in tape.parameters.items()}
        self.rank.units.append(Unit(entry, {name: count for name, count in held.items() if count}))
        return y

    def _gather(self, tape: Tape, node: int, parameters: dict[str, int], item_bytes: int, *, ahead: int) -> None:
        """Gather the parameters of the unit that begins at a node, once those before it in its graph began."""
        if self.graph is not tape.graph:
            self.graph, self.begun = tape.graph, []
        self.begun.append(node)
        after = self.begun[-1 - ahead] if ahead < len(self.begun) else NONE
        gathers = []
        for bucket in self.rank.buckets:
            size_bytes = parameters.get(bucket.name, 0) * item_bytes
            if size_bytes and bucket.sharing.degree > 1:
                gathers.append(self._gather_bucket(tape, bucket, size_bytes, after))
        tape.page.waits += tuple(gathers)

    def _gather_bucket(self, tape: Tape, bucket: Bucket, size_bytes: int, after: int) -> int:
        """Gather the parameters of a bucket; where eager FSDP copies, through a buffer that it fills and empties."""
        degree, elements = bucket.sharing.degree, size_bytes // tape.item_bytes
        if self.rank.workload.layout_copies:
            after = tape.aside("clone", after, name="parameters_copy_in", elements=-(-elements // degree))
        gather = tape.graph.collective(
            "all_gather", size_bytes, group=bucket.sharing.group, after=(after,),
            name="parameters_all_gather", priority=URGENT,
        )  # fmt: skip
        if not self.rank.workload.layout_copies:
            return gather
        return tape.aside("clone", gather, name="parameters_copy_out", elements=elements)


def _layer(tape: Tape, x: int, rank: Rank, number: int) -> int:
    label = f"layer_{number}"
    for phase, branch in (("attention", _attention), ("feed_forward", _feed_forward)):
        block = partial(branch, rank=rank, number=number, label=f"{label}_{phase}")
        half = partial(residual, branch=partial(_dropped, layer=block, rank=rank), elements=rank.elements)
        x = phased(tape, x, half, phase=phase)
    return x


def _dropped(tape: Tape, x: int, layer: Layer, rank: Rank) -> int:
    """Apply a layer, and dropout to its output where the model has it."""
    x = layer(tape, x)
    return dropout(tape, x, elements=rank.elements) if rank.workload.dropout and tape.gradients else x


def _tensor_parallel(tape: Tape, x: int, rank: Rank, block: Layer, *, label: str) -> int:
    """Run a block whose weights are cut over the tensor axis, on the whole of its normalised input."""
    workload = rank.workload
    x = norm(tape, x, workload.norm, tokens=rank.tokens, hidden=workload.hidden, bucket=rank.dense)
    if workload.tensor_parallel == 1:
        return block(tape, x)
    into, out = (_gather_in(workload), SCATTER_OUT) if workload.sequence_parallel else (COPY_IN, SUM_OUT)
    over = partial(
        exchange, tape, size_bytes=rank.whole_bytes, group=rank.tensor, name=label, degree=workload.tensor_parallel,
        shard=rank.elements if workload.sequence_parallel else 0,
    )  # fmt: skip
    return over(block(tape, over(x, into)), out)


def _kept_tokens(rank: Rank) -> int:
    """Tokens of a tensor-parallel block's input that are kept for backward."""
    return rank.workload.local_tokens if rank.workload.keep_gathered else rank.tokens


def _gather_in(workload: Transformer) -> Exchange:
    return GATHER_IN if workload.keep_gathered else GATHER_IN_AGAIN


def _attention(tape: Tape, x: int, rank: Rank, number: int, label: str) -> int:
    del number
    workload = rank.workload
    context = rank.axes.number("context") if workload.context_parallel > 1 else NONE
    heads = Heads(workload, rank.dense, kept_tokens=_kept_tokens(rank), context=context)
    return _tensor_parallel(tape, x, rank, partial(attend, heads=heads, label=label), label=label)


def _feed_forward(tape: Tape, x: int, rank: Rank, number: int, label: str) -> int:
    workload = rank.workload
    if isinstance(workload, Moe) and workload.layer_kind(number) == "moe":
        group = rank.axes.number("expert") if workload.expert_parallel > 1 else NONE
        experts = Experts(group=group, router=rank.dense, weights=rank.experts, kept_tokens=_kept_tokens(rank))
        block = partial(mixture, workload=workload, experts=experts, label=label)
    else:
        block = partial(feed_forward, rank=rank, label=label)
    return _tensor_parallel(tape, x, rank, block, label=label)


def feed_forward(tape: Tape, x: int, rank: Rank, label: str) -> int:
    """Two products with an activation between, their columns cut over the tensor axis."""
    workload = rank.workload
    width = workload.ffn // workload.tensor_parallel
    of = partial(linear, tape, tokens=workload.local_tokens, bucket=rank.dense, bias=workload.biases)
    x = of(
        x, inputs=workload.hidden, outputs=(width,) * workload.gates, name=f"{label}_1", kept_tokens=_kept_tokens(rank),
        gathered="input" if workload.sequence_parallel else "",
    )  # fmt: skip
    x = activation(tape, x, workload.activation, elements=workload.local_tokens * width)
    return of(
        x, inputs=width, outputs=workload.hidden, name=f"{label}_2", saved=workload.gates > 1,
        gathered="gradient" if workload.sequence_parallel else "",
    )  # fmt: skip


def _embedding(tape: Tape, x: int, rank: Rank) -> int:
    """Look tokens up; a rank that lacks a token's row gives zeros, and the tensor axis adds up.

    The gradient of a `tied` table is the sum of its own and of the head's, and final only then.
    """
    workload = rank.workload
    rows = workload.vocabulary // workload.tensor_parallel
    tape.graph.phase = "embedding_forward"

    def backward(dy: int) -> int:
        tape.graph.phase = "embedding_backward"
        dw = tape.kernel("embedding_bwd", dy, tokens=workload.local_tokens, hidden=workload.hidden, vocab=rows)
        if rank.tied:
            dw = tape.kernel("add", dw, rank.tied.pop(), name="tied_gradients", elements=rows * workload.hidden)
        tape.learn(lambda node: node, dw, rows * workload.hidden, rank.dense)
        return dw

    if workload.vocabulary == 0:
        return tape.kernel("clone", x, name="input", elements=rank.elements)
    tape.push(backward, scratch_bytes=rows * workload.hidden * tape.item_bytes)
    tape.hold(rows * workload.hidden, rank.dense)
    x = tape.kernel("embedding_fwd", x, tokens=workload.local_tokens, hidden=workload.hidden)
    if workload.tensor_parallel > 1:
        out = SCATTER_OUT if workload.sequence_parallel else SUM_OUT
        degree = workload.tensor_parallel
        x = exchange(tape, x, out, rank.whole_bytes, group=rank.tensor, name="embedding", degree=degree)
    return dropout(tape, x, elements=rank.elements) if workload.dropout and tape.gradients else x


def _head(tape: Tape, x: int, rank: Rank) -> int:
    """The last norm, the output projection over a rank's part of the vocabulary, and the loss or the logits."""
    workload = rank.workload
    x = norm(tape, x, workload.norm, tokens=rank.tokens, hidden=workload.hidden, bucket=rank.dense)
    if workload.vocabulary == 0:
        return x
    if workload.tensor_parallel > 1:
        into = _gather_in(workload) if workload.sequence_parallel else COPY_IN
        degree = workload.tensor_parallel
        x = exchange(tape, x, into, rank.whole_bytes, group=rank.tensor, name="head", degree=degree)
    # Prefill needs the logits of each sequence's last token only.
    tokens = workload.microbatch_size if workload.mode == "prefill" else workload.local_tokens
    part = workload.vocabulary // workload.tensor_parallel
    x = linear(
        tape, x, tokens=tokens, inputs=workload.hidden, outputs=part, bucket=rank.dense, name="head",
        shared=rank.tied, kept_tokens=_kept_tokens(rank), plain=True,
        placeholder_bytes=part * workload.hidden * tape.item_bytes if workload.placeholder_gradients else 0.0,
    )  # fmt: skip
    if workload.mode == "training":
        return _loss(tape, x, rank, tokens=tokens, vocabulary=part)
    if workload.tensor_parallel > 1:
        size_bytes = tokens * workload.vocabulary * workload.item_bytes
        x = tape.graph.collective("all_gather", size_bytes, group=rank.tensor, after=(x,), name="logits_all_gather")
    return x


def _loss(tape: Tape, x: int, rank: Rank, *, tokens: int, vocabulary: int) -> int:
    """Cross entropy over a cut vocabulary: ranks exchange maximum, sum and the target's logit of each token."""
    degree, logits, elements, loss = rank.workload.tensor_parallel, x, tokens * vocabulary, rank.workload.loss
    if loss == "in_place":  # the logits are their gradient until the product before has used it
        tape.keep(elements)
    makes = 0 if loss == "in_place" else elements
    if loss == "vocabulary_parallel":
        tape.push(lambda dy: _in_fp32(tape, dy, ("mul_scalar", "cast_to_fp32"), elements=elements), makes=makes)
        x = _in_fp32(tape, x, _VOCABULARY_PARALLEL, elements=elements)
    else:
        op = "cross_entropy" if loss == "unfused" else "cross_entropy_fused"
        tape.push(lambda dy: tape.kernel(f"{op}_bwd", dy, tokens=tokens, vocab=vocabulary), makes=makes)
        x = tape.kernel(f"{op}_fwd", x, tokens=tokens, vocab=vocabulary)
    if loss != "in_place":
        tape.keep(elements, ITEM_BYTES["fp32"])
    for _ in range(rank.workload.logged_losses):
        tape.kernel("cast_to_fp32", logits, name="logged_logits", elements=elements)
        tape.graph.compute(kernel("softmax_fwd", dtype="fp32", tokens=tokens, keys=vocabulary), after=(logits,))
    for number in ("maximum", "sum", "target") if degree > 1 else ():
        x = tape.graph.collective(
            "all_reduce",
            tokens * ITEM_BYTES["fp32"],
            group=rank.tensor,
            after=(x,),
            name=f"loss_{number}_all_reduce",
            priority=URGENT,
        )
    return x


_VOCABULARY_PARALLEL = ("cast_to_fp32", "sum_all", "mul_scalar", "mul_scalar", "sum_all", "mul_scalar")
"""What Megatron-LM's cross entropy runs over all logits: to fp32, maximum, difference, exponential, sum, quotient."""


def _in_fp32(tape: Tape, x: int, ops: Sequence[str], *, elements: int) -> int:
    """Write kernels that work on fp32, and casts between that and the model's type."""
    for op in ops:
        call = kernel(op, dtype=tape.dtype if op == "cast_to_fp32" else "fp32", elements=elements)
        x = tape.add(call, x, name=f"cross_entropy_{op}")
    return x
