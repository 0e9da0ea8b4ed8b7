"""Values of attributes, from any kind that fits, and the kind in which each is written.

Writing (`schema.attribute`) is strict, since other readers take one kind only: ASTRA-sim's first feeder reads 0 where
`comm_size` is not an `int64_val`. Reading is lenient, since writers differ: a number is taken from any kind that holds
it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from scaleout.errors import TraceError
from scaleout.interop.chakra.tables import KINDS, SCALARS
from scaleout.interop.chakra.wire import Metadata, Node

Value = TypeVar("Value")

CONVENTIONAL_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "is_cpu_op": "bool_val",
        "num_ops": "int64_val",  # FLOPs
        "tensor_size": "uint64_val",  # bytes
        "comm_type": "int64_val",  # CollectiveCommType
        "comm_size": "int64_val",  # bytes per rank; of an all-gather the shard, else the full input
        "comm_src": "int32_val",  # global rank
        "comm_dst": "int32_val",  # global rank
        "comm_tag": "int32_val",
        "comm_priority": "int32_val",
        "pg_name": "string_val",  # key of a process group; "" and "0" are all ranks
        "involved_dim": "bool_list",  # one for each dimension of the network
        "inputs": "string_list",  # name, size, name, size, ...
        "outputs": "string_list",
        "rf_id": "int64_val",  # from here on PyTorch's
        "fw_parent": "int64_val",
        "seq_id": "int64_val",
        "scope": "int64_val",
        "tid": "int64_val",
        "fw_tid": "int64_val",
        "stream": "int64_val",  # CUDA stream
        "op_schema": "string_val",
    }
)
"""Attribute to the kind in which the Chakra tools and ASTRA-sim write and expect it."""

_INTEGERS = tuple(scalar for scalar in SCALARS if "int" in scalar or "fixed" in scalar)
_NUMBERS = ("double", "float", *_INTEGERS)


def _kinds(form: str, *scalars: str) -> frozenset[str]:
    return frozenset(f"{scalar}_{form}" for scalar in scalars)


_FITTING: dict[Any, tuple[str, frozenset[str]]] = {
    int: ("an integer", _kinds("val", *_INTEGERS)),
    float: ("a number", _kinds("val", *_NUMBERS)),
    bool: ("true or false", _kinds("val", "bool", *_INTEGERS)),  # STAGE writes `is_cpu_op` as the int32 0
    str: ("a string", _kinds("val", "string")),
    bytes: ("bytes", _kinds("val", "bytes")),
    list[int]: ("a list of integers", _kinds("list", *_INTEGERS)),
    list[float]: ("a list of numbers", _kinds("list", *_NUMBERS)),
    list[bool]: ("a list of true and false", _kinds("list", "bool", *_INTEGERS)),
    list[str]: ("a list of strings", _kinds("list", "string")),
    list[bytes]: ("a list of bytes", _kinds("list", "bytes")),
}
"""Python type to its words for messages and the kinds that hold it."""
_TRUTHS, _FLOATS = frozenset({bool, list[bool]}), frozenset({float, list[float]})
INTEGER_KINDS = _FITTING[int][1]
"""Kinds that hold one integer."""


def get(message: Node | Metadata, name: str, wanted: type[Value], *, default: Value | None = None) -> Value:
    """Return the value of an attribute as a Python type.

    An integer is taken from any of the ten integer kinds, a float from these and the two floating kinds, a bool
    also from an integer 0 or 1; a list of them likewise.

    Parameters
    ----------
    wanted : type
        ``int``, ``float``, ``bool``, ``str``, ``bytes`` or a list of one, such as ``list[bool]``.
    default : optional
        Of an attribute that is absent or, as some tools write it, has no value.

    Raises
    ------
    TraceError
        If the value is of another kind, or a needed one is absent.

    Examples
    --------
    >>> from scaleout.interop.chakra import schema
    >>> written = schema.Node(id=3, attr=[schema.attribute("comm_tag", "uint64_val", 7)])
    >>> node = Node(written.SerializeToString())
    >>> get(node, "comm_tag", int), get(node, "comm_priority", int, default=0)
    (7, 0)
    """
    words, kinds = _FITTING[wanted]
    value: Any
    kind, value = message.attributes.get(name, (None, None))
    if kind is None:
        if default is not None:
            return default
        fault = "has no value in its attribute" if name in message.attributes else "has no attribute"
        raise TraceError(f"{message} {fault} {name!r}; it needs {words}, so mend the tool that wrote it")
    if kind not in kinds:
        raise TraceError(
            f"{message}: attribute {name!r} is {kind} {_shorten(value)}, but must be {words}; "
            f"write it as {_preferred(name, kinds)}"
        )
    if wanted in _TRUTHS:
        value = _truth(message, name, value)
    elif wanted in _FLOATS:
        value = [float(item) for item in value] if isinstance(value, list) else float(value)
    result: Value = value
    return result


def to_dict(message: Node | Metadata) -> dict[str, Any]:
    """Return all attributes, name to value: None where none is set, the first where a name repeats."""
    return {name: value for name, (_, value) in message.attributes.items()}


def _truth(message: Node | Metadata, name: str, value: Any) -> Any:
    if any(item not in (0, 1) for item in (value if isinstance(value, list) else [value])):
        raise TraceError(f"{message}: attribute {name!r} is {value}, neither true nor false; write 0 or 1")
    return [bool(item) for item in value] if isinstance(value, list) else bool(value)


def _preferred(name: str, kinds: frozenset[str]) -> str:
    conventional = CONVENTIONAL_KINDS.get(name)
    return conventional if conventional in kinds else " or ".join(kind for kind in KINDS if kind in kinds)


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
