"""What collectives and messages a rank's NCCL or RCCL kernels carry out: kind, bytes, group and peer.

The metadata stands on the kernel itself, on the `record_param_comms` of the host that launched it, or only in the
inputs of that operator; a kernel's own name tells the kind at the least. Sends and receives that were called together
are carried out by one kernel. Bytes are those of a graph: an all-gather's output, of all others the input.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from scaleout.interop.pytorch.kineto import NONE, Operator, Recording, Work, WorkKind, ancestors
from scaleout.program.graph import COLLECTIVES

SEND, RECEIVE = "send", "receive"

_PARAMETERS = "record_param_comms"
_NAMES: tuple[tuple[str, str], ...] = (
    ("reducescatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("allgather", "all_gather"),
    ("alltoall", "all_to_all"), ("all2all", "all_to_all"), ("broadcast", "broadcast"), ("barrier", "barrier"),
    ("gather", "gather"), ("scatter", "scatter"), ("reduce", "reduce"), ("recv", RECEIVE), ("send", SEND),
)  # fmt: skip
"""Part of a name, in lower case and without underscores, to the kind; the first that is found counts."""

_ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("double", "float64", "long", "int64", "longint", "complexfloat"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "c10::half", "c10::bfloat16", "short", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "uint8", "int8", "signedchar", "unsignedchar", "float8_e4m3fn",
                     "float8_e5m2", "c10::float8_e4m3fn", "c10::float8_e5m2"), 1),
}  # fmt: skip


@dataclass(frozen=True)
class Communication:
    """A collective, or one end of a message, that a kernel carries out; None for what the recording does not tell."""

    kind: str  # of `COLLECTIVES`, or `SEND` or `RECEIVE`
    size_bytes: int | None
    group: tuple[int, ...] | None  # its ranks in order
    group_name: str
    peer: int | None = None  # rank at the other end of a message
    item_bytes: int | None = None  # of an element


def item_bytes(dtype: str) -> int | None:
    """Return the bytes of an element of a type as PyTorch writes it; None if it is not known.

    >>> item_bytes("c10::BFloat16"), item_bytes("long int"), item_bytes("TensorList")
    (2, 8, None)
    """
    return _ITEM_BYTES.get(dtype.lower().replace(" ", ""))


def is_communication(work: Work) -> bool:
    """Whether a work of the GPU is a kernel of NCCL or RCCL."""
    name = work.name.lower()
    return work.kind is WorkKind.KERNEL and ("nccl" in name or "rccl" in name or "msccl" in name)


def communications_of(recording: Recording, works: Sequence[int]) -> dict[int, tuple[Communication, ...]]:
    """Return what each communication kernel among some works carries out."""
    called = _called_together(recording, works)
    return {number: called.get(number) or (_of_kernel(recording, recording.works[number]),) for number in works}


def kind_of(name: str) -> str | None:
    """Return the kind of collective or message that a name tells.

    >>> kind_of("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"), kind_of("_allgather_base"), kind_of("aten::mm")
    ('reduce_scatter', 'all_gather', None)
    """
    text = name.lower().replace("_", "").replace(" ", "")
    if "sendrecv" in text:  # NCCL's kernel of messages, of which all-to-alls are made
        return "all_to_all"
    return next((kind for part, kind in _NAMES if part in text), None)


def _of_kernel(recording: Recording, work: Work) -> Communication:
    callers = list(ancestors(recording.operators, work.operator))
    for args in (work.args, *(operator.args for operator in callers)):
        if "Collective name" in args:
            found = _stated(args, recording)
            if found is not None:
                return found
    named = [operator for operator in callers if re.match(r"nccl:|c10d::|_c10d|record_param_comms", operator.name)]
    kinds = [kind for operator in named if (kind := kind_of(operator.name)) and operator.name != _PARAMETERS]
    kind = kinds[0] if kinds else kind_of(work.name) or "all_reduce"
    sizes = [size for operator in named if (size := _input_bytes(operator, kind)) is not None]
    return Communication(kind, sizes[0] if sizes else None, None, "")


def _stated(args: Mapping[str, Any], recording: Recording) -> Communication | None:
    """Read the metadata that PyTorch writes beside a collective; None if it names no kind."""
    kind = kind_of(str(args["Collective name"]))
    if kind is None:
        return None
    item = item_bytes(str(args.get("dtype", "")))
    elements = args.get("Out msg nelems" if kind in ("all_gather", RECEIVE) else "In msg nelems")
    known = item is not None and isinstance(elements, int) and elements >= 0
    name = str(args.get("Process Group Name", ""))
    peer = args.get("Dst Rank" if kind == SEND else "Src Rank") if kind in (SEND, RECEIVE) else None
    return Communication(
        kind,
        int(elements) * (item or 0) if known else None,
        _ranks(args, recording, name),
        name,
        peer if isinstance(peer, int) and peer >= 0 else None,
        item,
    )


def _ranks(args: Mapping[str, Any], recording: Recording, name: str) -> tuple[int, ...] | None:
    """Return the ranks of a group: as stated in full, by first rank and stride, or as the file lists its name."""
    size = args.get("Group size")
    text = str(args.get("Process Group Ranks", ""))
    stated = tuple(int(rank) for rank in re.findall(r"\d+", text)) if "..." not in text else ()
    if stated and size in (None, len(stated)):
        return stated
    if name in recording.groups:
        return recording.groups[name]
    first, stride = args.get("Global rank start"), args.get("Global rank stride")
    if isinstance(first, int) and isinstance(stride, int) and isinstance(size, int) and stride > 0 and size > 0:
        return tuple(range(first, first + stride * size, stride))
    return None


def _input_bytes(operator: Operator, kind: str) -> int | None:
    """Return the bytes of the first tensor that an operator takes; of an all-gather's those of its result."""
    sized = [
        (dims, item)
        for dims, dtype in zip(operator.dims, operator.dtypes, strict=False)
        if (item := item_bytes(dtype)) is not None and dims and all(isinstance(size, int) for size in dims)
    ]
    if not sized:
        return None
    sizes = [prod(dims) * item for dims, item in sized]
    if kind == "all_gather":
        return max(sizes) if len(sizes) > 1 else None
    return sizes[0] if kind not in ("reduce_scatter",) else max(sizes)


def _called_together(recording: Recording, works: Sequence[int]) -> dict[int, tuple[Communication, ...]]:
    """Return the messages of kernels that carry out what was called before them without a kernel of its own.

    PyTorch starts the sends and receives of a batch at its end, by one kernel.
    """
    launched = {
        _parameters_above(recording, recording.works[number].operator) for number in works
    }  # operators that have their own kernel
    waiting = [
        (operator.start_us, operator.thread, operator)
        for number, operator in enumerate(recording.operators)
        if operator.name == _PARAMETERS and number not in launched and _is_message(operator)
    ]
    waiting.sort(key=lambda each: each[0])
    found: dict[int, list[Communication]] = {}
    by_launch = sorted(
        (recording.calls[recording.works[number].call].start_us, number)
        for number in works
        if recording.works[number].call != NONE and kind_of(recording.works[number].name) == "all_to_all"
    )
    for start_us, thread, operator in waiting:
        call = next(
            (
                number
                for launch_us, number in by_launch
                if launch_us >= start_us and recording.calls[recording.works[number].call].thread == thread
            ),
            None,
        )
        stated = _stated(operator.args, recording)
        if call is not None and stated is not None and "Collective name" not in _own(recording, call):
            found.setdefault(call, []).append(stated)
    return {number: tuple(messages) for number, messages in found.items()}


def _own(recording: Recording, work: int) -> Mapping[str, Any]:
    return recording.works[work].args


def _is_message(operator: Operator) -> bool:
    return kind_of(str(operator.args.get("Collective name", ""))) in (SEND, RECEIVE)


def _parameters_above(recording: Recording, operator: int) -> int:
    while operator != NONE and recording.operators[operator].name != _PARAMETERS:
        operator = recording.operators[operator].parent
    return operator


def kinds() -> Iterator[str]:
    """Yield the kinds that there are."""
    yield from (*COLLECTIVES, SEND, RECEIVE)
