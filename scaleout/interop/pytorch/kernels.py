"""What recorded kernels did: GEMMs and attention with their sizes, all others with the bytes of their tensors.

What counts a batch's tokens is told apart from what depends on parameters, so that a kernel can be scaled to another
batch, sequence or model: sizes of GEMMs and attention by name, bytes of others by whether their operator works on
activations. Of forward and backward all do, but for operators whose tensors have the shapes of parameters: casts of
weights, gathered shards, gradients that are added up. Optimizers touch parameters alone.

An operator's FLOPs and bytes are counted once: its kernels share them by the time that they take.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import gcd, prod
from typing import Any

from scaleout.config.documents import whole
from scaleout.interop.pytorch.communication import Communication, item_bytes
from scaleout.interop.pytorch.kineto import NONE, Operator, Recording, Work, WorkKind, ancestors, shape_of
from scaleout.program.graph import NodeRole
from scaleout.program.operations import ITEM_BYTES, RECORDED, Kernel, kernel
from scaleout.program.recorded import REDUCER, recorded, recorded_table_gradient
from scaleout.schedule.rewrite import divided

DTYPES = {"c10::bfloat16": "bf16", "bfloat16": "bf16", "c10::half": "fp16", "half": "fp16", "float": "fp32",
           "double": "fp64", "c10::float8_e4m3fn": "fp8_e4m3", "c10::float8_e5m2": "fp8_e5m2"}  # fmt: skip
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm")
_WEIGHT_FIRST = {"MmBackward0": True, "BmmBackward0": True, "AddmmBackward0": False, "BaddbmmBackward0": False}
"""Backward of products of two factors, and whether it computes the gradient of the second one, the weight, first."""
_BAGS = ("_embedding_bag", "_embedding_bag_forward_only")
_BAGS_GRADIENT = "_embedding_bag_dense_backward"
_FLATTENS = ("reshape", "view", "flatten")
_LOOKUPS = ("embedding", *_BAGS, "index_select", "gather", "nll_loss_forward", "nll_loss_backward")
"""What reads, or writes, of its first tensor only some elements; the loss one of each row."""
_TABLES = {"embedding_dense_backward": 2, _BAGS_GRADIENT: 5}
"""Gradients of tables, by the place of the number of rows among their inputs."""
_SEQUENCE_FIRST = ("_flash_attention", "_efficient_attention", "_flash_attn", "_fmha")
"""Operators of attention that take a sequence's heads together."""
_GRADIENT = "torch::autograd::AccumulateGrad"
"""What adds up the gradient of a parameter, and the end of the name of what calls it and its hooks."""
_TAKE_INPUT = tuple(
    f"aten::{name}" for name in ("linear", "layer_norm", "rms_norm", "batch_norm", "group_norm", "conv2d")
)
"""Operators of a layer that take its input first, and parameters after it."""
_PARAMETERS = ("FSDP::all_gather", "FSDP::post_backward", "fsdp::", "Optimizer.step", "Optimizer.zero_grad", "Reducer",
               "aten::flatten_dense_tensors", "aten::unflatten_dense_tensors")  # fmt: skip
"""What operators that work on parameters or their gradients are called by."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Tensor:
    shape: Shape
    num_bytes: int
    dtype: str


def parameters_of(recording: Recording) -> tuple[Counter[Shape], int]:
    """Count the parameters of each shape whose gradients a recording adds up, each as often as backward ran.

    Returns that number too: every gradient is added up once a backward, and a model has one at least that no layer
    repeats, such as its embedding. An input of the model may want its gradient too: what has a shape that products and
    norms take first alone is no parameter.
    """
    found: Counter[Shape] = Counter()
    first: set[Shape] = set()
    later: set[Shape] = set()
    for operator in recording.operators:
        if operator.name == _GRADIENT:
            found.update(tensor.shape for tensor in _tensors(operator))
        elif operator.name in _TAKE_INPUT:
            shapes = [tensor.shape for tensor in _tensors(operator)]
            first.update(shapes[:1])
            later.update(shapes[1:])
    times = gcd(*found.values()) if len(set(found.values())) > 1 else max(1, len(recording.steps))
    return Counter({shape: count for shape, count in found.items() if shape not in first - later}), times


def describe(recording: Recording, works: Sequence[int]) -> dict[int, Kernel]:
    """Describe the kernels among some works, as far as the operators that launched them tell.

    What a product or attention clears before it runs is described as itself: it is no part of its work, and does not
    grow with its tokens.
    """
    shapes = {each for each in parameter_shapes(recording) if len(each) > 1}
    gradients = _weight_gradients(recording)
    pooled = _pooled(recording)
    known: dict[int, Kernel | None] = {**pooled}
    found: dict[int, Kernel] = {}
    launched: dict[int, list[int]] = defaultdict(list)  # operator to its works
    for number in works:
        operator = _sized(recording, recording.works[number].operator, pooled)
        if operator == NONE:
            continue
        if operator not in known:
            known[operator] = _kernel(recording, operator, shapes, gradients)
        call, work = known[operator], recording.works[number]
        if call is None:
            continue
        if work.kind == WorkKind.SET and not call.op.startswith((RECORDED, "embedding")):
            cleared = whole(str(work.args.get("bytes"))) or 1
            found[number] = recorded("memset", dtype="u8", token_bytes=0, other_bytes=cleared)
        else:
            found[number] = call
            launched[operator].append(number)
    return found | _shared(recording.works, found, launched.values())


def _shared(works: Sequence[Work], calls: Mapping[int, Kernel], launched: Iterable[Sequence[int]]) -> dict[int, Kernel]:
    """Share what operators do among the kernels that each launched, by time: all of it is done once.

    Operators that are alike share alike, by the time of their kernels together, so that what repeats stays equal.
    """
    alike: dict[tuple[Kernel, tuple[str, ...]], list[Sequence[int]]] = defaultdict(list)
    for each in launched:
        if len(each) > 1:
            alike[calls[each[0]], tuple(works[number].name for number in each)].append(each)
    found = {}
    for (call, names), same in alike.items():
        ends = [*accumulate(sum(works[n].end_us - works[n].start_us for n in turn) for turn in zip(*same, strict=True))]
        edges = (
            [0.0, *(end / ends[-1] for end in ends)] if ends[-1] else [n / len(names) for n in range(len(names) + 1)]
        )
        parts = [
            replace(call, flops=flops, bytes=size_bytes)
            for flops, size_bytes in zip(divided(call.flops, edges), divided(call.bytes, edges), strict=True)
        ]
        found.update({number: part for each in same for number, part in zip(each, parts, strict=True)})
    return found


def parameter_shapes(recording: Recording) -> set[Shape]:
    """Return the shapes of parameters, either way round."""
    return {each for shape in parameters_of(recording)[0] for each in _either_way(shape)}


class Communicated:
    """What a rank's collectives and messages carry: activations, or parameters and their gradients.

    Exchanges and messages carry activations. What is summed before a step's backward are activations; so are sums of
    backward with the shape of one, but those that a parameter's gradient calls for. Of other collectives buckets and
    shards of parameters are flat, and activations have a shape that no parameter has. Where no shapes are recorded,
    sums before backward as large as what a product of tokens writes are of activations.
    """

    def __init__(self, recording: Recording, described: Iterable[Kernel]) -> None:
        self._recording, self._parameters = recording, parameter_shapes(recording)
        products = [(dict(call.shape), ITEM_BYTES[call.dtype]) for call in described if call.tokens == "M"]
        self._tokens = max((shape["M"] for shape, _ in products), default=0)
        self._written = {shape["M"] * shape["N"] * each for shape, each in products if "N" in shape}  # bytes
        self._summed: set[Shape] = set()  # before the backward of a step
        self._backward = False  # whether that of the step has begun

    def passes(self, role: int) -> None:
        """Tell of which pass the next work is, in the order of the program."""
        if role & NodeRole.OPTIMIZER:
            self._backward = False
        self._backward |= bool(role & NodeRole.BACKWARD)

    def describe(self, work: int, call: Communication, size_bytes: int) -> Kernel:
        """Describe what a collective or message carries."""
        callers = list(ancestors(self._recording.operators, self._recording.works[work].operator))
        carries = call.kind in ("all_to_all", "send", "receive")
        shapes = next(([each.shape for each in _tensors(one)] for one in callers if one.name.startswith("c10d::")), [])
        if not carries and call.kind in ("all_reduce", "reduce_scatter") and not _of_parameters(callers):
            if not self._backward:
                self._summed.update(shape for shape in shapes if len(shape) > 1 or self._counts_tokens(shape))
            within = not self._backward or any("Backward" in each.name for each in callers)
            carries = within and any(shape in self._summed for shape in shapes)
            carries |= not shapes and not self._backward and size_bytes in self._written
        carries = carries or any(len(shape) > 1 and shape not in self._parameters for shape in shapes)
        tokens = size_bytes if carries else 0
        dtype = {8: "fp64", 4: "fp32", 1: "int8"}.get(call.item_bytes or 0, "bf16")
        return recorded(call.kind, dtype=dtype, token_bytes=tokens, other_bytes=size_bytes - tokens)

    def _counts_tokens(self, shape: Shape) -> bool:
        """Whether something flat has elements for each token."""
        return bool(self._tokens) and prod(shape) % self._tokens == 0


def _of_parameters(callers: Iterable[Operator]) -> bool:
    """Whether what calls an operator works on parameters or their gradients."""
    return any(each.name.startswith(_PARAMETERS) or each.name.endswith(_GRADIENT) for each in callers)


def _either_way(shape: Shape) -> set[Shape]:
    return {shape, (*shape[:-2], shape[-1], shape[-2])} if len(shape) > 1 else {shape}


def _sized(recording: Recording, operator: int, pooled: Mapping[int, Kernel]) -> int:
    """Return the innermost operator around a launch that says the sizes of tensors; `NONE` if none does.

    What one of pooled lookups calls, such as what clears the gradient of a table, is part of it.
    """
    found = NONE
    while operator != NONE:
        each = recording.operators[operator]
        if operator in pooled:
            return operator
        if found == NONE and any(each.dims) and not each.name.startswith(("nccl:", "record_param", "autograd::")):
            found = operator
        operator = each.parent
    return found


def _dtype(tensor: _Tensor) -> str:
    return DTYPES.get(tensor.dtype.lower().replace(" ", ""), "fp32")


def _tensors(operator: Operator) -> list[_Tensor]:
    found = []
    for dims, dtype in zip(operator.dims, operator.dtypes, strict=False):
        if not isinstance(dims, list) or not dims:
            continue
        listed = dims if isinstance(dims[0], list) else [dims]
        size = item_bytes(dtype) or 4  # types of lists are not told
        for shape in listed:
            sizes = shape_of(shape)
            if sizes:
                found.append(_Tensor(sizes, prod(sizes) * size, dtype))
    return found


def _weight_gradients(recording: Recording) -> set[int]:
    """Return the products that compute the gradient of a product's second factor, as their order tells."""
    products: dict[int, list[int]] = defaultdict(list)
    for number, operator in enumerate(recording.operators):
        if operator.name.rpartition("::")[2] not in _PRODUCTS:
            continue
        caller = operator.parent
        while caller != NONE and recording.operators[caller].name not in _WEIGHT_FIRST:
            caller = recording.operators[caller].parent
        if caller != NONE:
            products[caller].append(number)
    found: set[int] = set()
    for caller, both in products.items():
        half = len(both) // 2  # several, where one on distributed tensors calls one on their shards
        if len(both) == 2 * half:
            found.update(both[:half] if _WEIGHT_FIRST[recording.operators[caller].name] else both[half:])
    return found


def _kernel(recording: Recording, number: int, shapes: set[Shape], gradients: set[int]) -> Kernel | None:
    operator = recording.operators[number]
    name, tensors = operator.name.rpartition("::")[2], _tensors(operator)
    if not tensors:
        return None
    dtype = _dtype(tensors[-1])
    of_parameters = _of_parameters(ancestors(recording.operators, number))
    backward = any("Backward" in each.name for each in ancestors(recording.operators, number))
    reduces = next((each.name for each in ancestors(recording.operators, number) if each.name.startswith(REDUCER)), "")
    if name in _PRODUCTS and not of_parameters:
        factors = [tensor.shape for tensor in tensors if len(tensor.shape) > 1]
        call = gemm(dtype, factors, shapes, of_weight=(number in gradients or None) if backward else False)
        if call is not None:
            return call
    if "attention" in name:
        call = _attention(name, operator, tensors)
        if call is not None:
            return call
    total = sum(tensor.num_bytes for tensor in tensors)
    if name in _LOOKUPS:  # of a table only the rows that are looked up are read
        total = sum(tensor.num_bytes for tensor in tensors[1:])
    if name in _TABLES:
        return _table_gradient(operator, tensors, _TABLES[name])
    matrices = [tensor for tensor in tensors if len(tensor.shape) > 1]
    of_parameters |= bool(reduces) or (
        bool(matrices) and all(tensor.shape in shapes for tensor in matrices) and _copies(name)
    )
    tokens = 0 if of_parameters else total
    return recorded(reduces or operator.name, dtype=dtype, token_bytes=tokens, other_bytes=total - tokens)


def _pooled(recording: Recording) -> dict[int, Kernel]:
    """Describe pooled lookups, and the gradients of their tables where it is told how many these are, by operator."""
    named = [(number, each, each.name.rpartition("::")[2]) for number, each in enumerate(recording.operators)]
    bags = {number: (each, name) for number, each, name in named if name in (*_BAGS, _BAGS_GRADIENT)}
    if not bags:
        return {}
    flattened, others = set[Shape](), set[Shape]()
    for _, operator, name in named:
        shape = next((each.shape for each in _tensors(operator)), ())
        (flattened if name in _FLATTENS and len(shape) == 3 else others).add(shape)
    found = {}
    for number, (operator, name) in bags.items():
        tensors = _tensors(operator)
        call = _bag(tensors) if name in _BAGS else _gradient_of_bags(operator, tensors)
        if call is None:
            continue
        count = _tables(call, flattened, others)
        if count > 1:
            sizes = {"batch": call.sizes["batch"] // count, "tables": count, "rows": -(-call.sizes["rows"] // count)}
            call = kernel(call.op, dtype=call.dtype, **{**call.sizes, **sizes}).counting("batch")
        if count > 1 or name in _BAGS:
            found[number] = call
    return found


def _tables(call: Kernel, flattened: Iterable[Shape], others: Iterable[Shape]) -> int:
    """Return how many tables pooled lookups of one matrix are of; 1 where shapes do not tell.

    Indices were (tables, samples, lookups of a bag) before they were flattened, and what was pooled, or its gradient,
    is elsewhere ordered by sample: (..., tables, size of a row).
    """
    bags, dim, pooling = (call.sizes[size] for size in ("batch", "dim", "pooling"))
    by_sample = {each[-2] for each in others if len(each) > 2 and each[-1] == dim and prod(each) == bags * dim}
    told = {each[0] for each in flattened if each[0] * each[1] == bags and each[2] == pooling and each[0] in by_sample}
    return told.pop() if len(told) == 1 else 1


def _bag(tensors: Sequence[_Tensor]) -> Kernel | None:
    """Describe pooled lookups: of a table (rows, size of a row), indices and where each bag of them begins."""
    table, lookups, bags = (tensor.shape for tensor in tensors[:3]) if len(tensors) > 2 else ((), (), ())
    if len(table) != 2 or len(bags) != 1 or not bags[0] or prod(lookups) < bags[0]:
        return None
    sizes = {"dim": table[1], "pooling": round(prod(lookups) / bags[0]), "rows": table[0]}
    return kernel("embedding_bag_fwd", dtype=_dtype(tensors[0]), batch=bags[0], tables=1, **sizes).counting("batch")


def _gradient_of_bags(operator: Operator, tensors: Sequence[_Tensor]) -> Kernel | None:
    """Describe the gradient of a table that was pooled by sum or mean: of (bags, size of a row), and indices."""
    given = operator.args.get("Concrete Inputs")
    places = (_TABLES[_BAGS_GRADIENT], _TABLES[_BAGS_GRADIENT] + 2)
    rows, mode = (
        (whole(str(given[place])) for place in places) if isinstance(given, list) and len(given) > 7 else (0, 2)
    )
    pooled, lookups = (tensor.shape for tensor in tensors[:2]) if len(tensors) > 1 else ((), ())
    if len(pooled) != 2 or not rows or mode not in (0, 1) or not prod(pooled) or prod(lookups) < pooled[0]:
        return None
    sizes = {"dim": pooled[1], "pooling": round(prod(lookups) / pooled[0]), "rows": rows}
    return kernel("embedding_bag_bwd_dense", dtype=_dtype(tensors[0]), batch=pooled[0], tables=1, **sizes)


def _table_gradient(operator: Operator, tensors: Sequence[_Tensor], place: int) -> Kernel:
    """Describe the gradient of a table, of which gradients of what was looked up and indices are the first inputs."""
    concrete = operator.args.get("Concrete Inputs")
    rows = whole(str(concrete[place])) if isinstance(concrete, list) and len(concrete) > place else None
    lookups = prod(tensors[1].shape) if len(tensors) > 1 else 0
    dtype = _dtype(tensors[0])
    if not rows or rows < 1 or not lookups:
        return recorded(operator.name, dtype=dtype, token_bytes=tensors[0].num_bytes, other_bytes=0)
    return recorded_table_gradient(operator.name, dtype=dtype, lookups=lookups, rows=rows, width=tensors[0].shape[-1])


def _copies(name: str) -> bool:
    """Whether an operator may move weights; arithmetic of the model, and sums of its backward, work on activations."""
    return name.startswith(("copy_", "cat", "zero_", "fill_", "clone", "div_", "mul_", "to", "_to_copy", "flat"))


def gemm(dtype: str, factors: Sequence[Shape], shapes: set[Shape], *, of_weight: bool | None = None) -> Kernel | None:
    """Describe a product, and which of its sizes counts tokens: rows, columns, or what is summed over.

    Where as many tokens as the model is wide make shapes of activations those of weights, `of_weight` decides: whether
    it computes the gradient of a weight, which none of forward does; None where that is not told.
    """
    if len(factors) < 2 or 0 in (*factors[-2], *factors[-1]):
        return None
    left, right = factors[-2:]
    sizes = {"M": left[-2], "N": right[-1], "K": left[-1]}
    groups = left[:-2]
    is_weight = (*groups, sizes["M"], sizes["N"]) in shapes
    tokens = "M"
    if of_weight and is_weight:
        tokens = "K"
    elif right not in shapes:
        if left in shapes:
            tokens = "N"
        elif is_weight and of_weight is not False:
            tokens = "K"
    if prod(groups) > 1:
        return kernel("batched_gemm", dtype=dtype, groups=prod(groups), **sizes).counting(tokens)
    return kernel("gemm", dtype=dtype, **sizes).counting(tokens)


def _attention(name: str, operator: Operator, tensors: Sequence[_Tensor]) -> Kernel | None:
    """Describe attention; queries are (batch, heads, sequence, size of a head), or sequence first.

    Its type is that of queries: behind them stand masks and the seed of random numbers.
    """
    wide = [tensor for tensor in tensors if len(tensor.shape) == 4]
    backward = "backward" in name
    if len(wide) < (4 if backward else 3) or any(0 in tensor.shape for tensor in wide):
        return None
    first = 1 if backward else 0
    dtype, queries, keys = _dtype(wide[first]), wide[first].shape, wide[first + 1].shape
    if name.startswith(_SEQUENCE_FIRST):
        queries, keys = ((shape[0], shape[2], shape[1], shape[3]) for shape in (queries, keys))
    batch, heads, seq, head_dim = queries
    concrete: Any = operator.args.get("Concrete Inputs")
    causal = "True" in [str(each) for each in concrete] if isinstance(concrete, list) else True
    sizes = {"batch": batch, "heads": heads, "seq": seq, "head_dim": head_dim, "causal": int(causal)}
    suffix = "bwd" if backward else "fwd"
    if keys[1] != heads:
        sizes["kv_heads"] = keys[1]
        return kernel(f"attention_gqa_{suffix}", dtype=dtype, **sizes).counting("batch*seq")
    return kernel(f"attention_{suffix}", dtype=dtype, **sizes).counting("batch*seq")
