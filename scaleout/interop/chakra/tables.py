"""The Chakra schema as tables: enums, kinds of attribute values, and the fields of messages.

Names, numbers and types are those of the public schema `ChakraProtoMsg`, whose versions 0.0.4 to 1.0.0 have one binary
format. `schema` makes protobuf classes of them; `wire` reads nodes without protobuf.

Source: mlcommons/chakra, schema/protobuf/et_def.proto.
"""

from enum import IntEnum


class NodeType(IntEnum):
    """What a node does."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7


class CollectiveCommType(IntEnum):
    """Which collective a `COMM_COLL_NODE` is: the value of its attribute `comm_type`."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


SCALARS = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
    *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
)
"""Protobuf's scalar types in the schema's order; an attribute's value is one of them or a list of one."""

KINDS = tuple(f"{scalar}_{form}" for scalar in SCALARS for form in ("val", "list"))
"""Kinds of an attribute's value: the names of its fields, numbered from 3 in this order."""


def _list_message(scalar: str) -> str:
    return f"{scalar.capitalize()}List"


def _kind_type(kind: str) -> str:
    scalar, form = kind.split("_")
    return scalar if form == "val" else _list_message(scalar)


# A field is (number, name, type), its type a scalar, an enum or a message; `*` marks a repeated one, and `?` a
# member of the oneof `value`.
Field = tuple[int, str, str]
FIELDS: dict[str, tuple[Field, ...]] = {
    **{_list_message(scalar): ((1, "values", f"{scalar}*"),) for scalar in SCALARS},
    "AttributeProto": (
        (1, "name", "string"),
        (2, "doc_string", "string"),
        *((number, kind, f"{_kind_type(kind)}?") for number, kind in enumerate(KINDS, start=3)),
    ),
    "GlobalMetadata": ((1, "version", "string"), (2, "attr", "AttributeProto*")),
    "IOInfo": ((1, "values", "string"), (2, "shapes", "string"), (3, "types", "string")),
    "Node": (
        (1, "id", "uint64"),
        (2, "name", "string"),
        (3, "type", "NodeType"),
        (4, "ctrl_deps", "uint64*"),
        (5, "data_deps", "uint64*"),
        (6, "start_time_micros", "uint64"),
        (7, "duration_micros", "uint64"),
        (8, "inputs", "IOInfo"),
        (9, "outputs", "IOInfo"),
        (10, "attr", "AttributeProto*"),
    ),
}
