"""What collectives and messages a rank's NCCL or RCCL kernels carry out: kind, bytes, group and peer.

The metadata stands on the kernel itself, on the `record_param_comms` of the host that launched it, or only in the
inputs of that operator; a kernel's own name tells the kind at the least. Sends and receives that were called together
are carried out by one kernel. Bytes are those of a graph: an all-gather's output, of all others the input.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from scaleout.config.documents import MAX_RANKS
from scaleout.errors import TraceError
from scaleout.interop.pytorch.kineto import (
    NONE,
    Operator,
    Recording,
    Work,
    WorkKind,
    ancestors,
    shape_of,
    whole_of,
)

SEND, RECEIVE = "send", "receive"

MOST_NAMED = 2**23
"""Of ranks of all groups of a recording, counted again for each collective."""

COMMUNICATES = "record_param_comms"
"""Operator under which PyTorch launches a collective, and says what it moves."""
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
    kinds = [kind for operator in named if (kind := kind_of(operator.name)) and operator.name != COMMUNICATES]
    kind = kinds[0] if kinds else kind_of(work.name) or "all_reduce"
    sizes = [size for operator in named if (size := _input_bytes(operator, kind)) is not None]
    return Communication(kind, sizes[0] if sizes else None, None, "")


def _stated(args: Mapping[str, Any], recording: Recording) -> Communication | None:
    """Read the metadata that PyTorch writes beside a collective; None if it names no kind."""
    kind = kind_of(str(args["Collective name"]))
    if kind is None:
        return None
    item = item_bytes(str(args.get("dtype", "")))
    elements = shape_of([args.get("Out msg nelems" if kind in ("all_gather", RECEIVE) else "In msg nelems")])
    size_bytes = elements[0] * item if item is not None and elements is not None else None
    name = str(args.get("Process Group Name", ""))
    peer = whole_of(args.get("Dst Rank" if kind == SEND else "Src Rank")) if kind in (SEND, RECEIVE) else NONE
    return Communication(
        kind,
        size_bytes,
        _ranks(args, recording, name),
        name,
        peer if peer >= 0 else None,
        item,
    )


_TOLD = ("Group size", "Process Group Ranks", "Global rank start", "Global rank stride")


def _ranks(args: Mapping[str, Any], recording: Recording, name: str) -> tuple[int, ...] | None:
    """Return the ranks of a group, found once for all that are told alike."""
    told = (name, *(str(args.get(key, "")) for key in _TOLD))
    if told not in recording.stated:
        recording.stated[told] = _stated_ranks(args, recording, name)
    return recording.stated[told]


def _stated_ranks(args: Mapping[str, Any], recording: Recording, name: str) -> tuple[int, ...] | None:
    """Return the ranks of a group: as stated in full, by first rank and stride, or as the file lists its name.

    `TraceError` if a rank stands twice among them, or that of the recording does not, or groups have too many ranks.
    """
    size = args.get("Group size")
    text = str(args.get("Process Group Ranks", ""))
    stated = tuple(int(rank) for rank in re.findall(r"\b[0-9]{1,7}\b", text)) if "..." not in text else ()
    if not stated or size not in (None, len(stated)):
        stated = recording.groups.get(name, ())
    if not stated:
        first, stride, count = (
            whole_of(args.get(key)) for key in ("Global rank start", "Global rank stride", "Group size")
        )
        if first < 0 or stride < 1 or not 0 < count <= MAX_RANKS:
            return None
        check_named(recording.path, count + sum(len(group) for group in recording.stated.values() if group))
        stated = tuple(range(first, first + stride * count, stride))
    if len(set(stated)) < len(stated) or (recording.rank is not None and recording.rank not in stated):
        raise TraceError(
            f"{recording.path}: rank {recording.rank} takes part in a collective of ranks {stated[:8]}, of which each "
            f"must stand once, and it among them; mend the file"
        )
    return stated


def check_named(path: Path, ranks: int) -> None:
    """Refuse collectives whose groups together have more ranks than can be matched in good time."""
    if ranks > MOST_NAMED:
        raise TraceError(
            f"{path}: its collectives are of groups of more than {MOST_NAMED:,} ranks in all; record fewer steps"
        )


def _input_bytes(operator: Operator, kind: str) -> int | None:
    """Return the bytes of the first tensor that an operator takes; of an all-gather's those of its result."""
    sized = [
        (shape, item)
        for dims, dtype in zip(operator.dims, operator.dtypes, strict=False)
        if (item := item_bytes(dtype)) is not None and (shape := shape_of(dims))
    ]
    if not sized:
        return None
    sizes: list[int] = [prod(shape) * item for shape, item in sized]
    if kind == "all_gather":
        return max(sizes) if len(sizes) > 1 else None
    return max(sizes) if kind == "reduce_scatter" else sizes[0]


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
        if operator.name == COMMUNICATES and number not in launched and _is_message(operator)
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
        if call is not None and stated is not None and "Collective name" not in recording.works[call].args:
            found.setdefault(call, []).append(stated)
    return {number: tuple(messages) for number, messages in found.items()}


def _is_message(operator: Operator) -> bool:
    return kind_of(str(operator.args.get("Collective name", ""))) in (SEND, RECEIVE)


def _parameters_above(recording: Recording, operator: int) -> int:
    while operator != NONE and recording.operators[operator].name != COMMUNICATES:
        operator = recording.operators[operator].parent
    return operator
