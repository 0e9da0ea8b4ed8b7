"""The Chakra schema: tables of messages and enums to protobuf classes.

Names, numbers and types are those of the public schema `ChakraProtoMsg`, whose versions 0.0.4 to 1.0.0 have one binary
format. The classes are built in a descriptor pool of our own rather than by `protoc`: they never clash with an
installed `chakra` package and need no build step.

Source: mlcommons/chakra, schema/protobuf/et_def.proto.
"""

from enum import IntEnum
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer

_PACKAGE = "ChakraProtoMsg"


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
_Field = tuple[int, str, str]
_FIELDS: dict[str, tuple[_Field, ...]] = {
    **{_list_message(scalar): ((1, "values", f"{scalar}*"),) for scalar in SCALARS},
    "AttributeProto": (
        (1, "name", "string"),
        (2, "doc_string", "string"),
        *((number, kind, f"{_kind_type(kind)}?") for number, kind in enumerate(KINDS, start=3)),
    ),
    "GlobalMetadata": ((1, "version", "string"), (2, "attr", "AttributeProto*")),
    "IOInfo": ((1, "values", "string"), (2, "shapes", "string"), (3, "types", "string")),
    "Tensor": (
        (1, "tensor_id", "uint64"),
        (2, "storage_id", "uint64"),
        (3, "offset", "uint64"),
        (4, "num_elem", "uint64"),
        (5, "elem_bytes", "uint64"),
        (6, "device", "string"),
    ),
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
_ENUMS: dict[str, type[IntEnum]] = {"NodeType": NodeType, "CollectiveCommType": CollectiveCommType}


def _add_field(message: descriptor_pb2.DescriptorProto, number: int, name: str, marked_type: str) -> None:
    kinds = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL)
    if marked_type.endswith("*"):
        field.label = kinds.LABEL_REPEATED
    elif marked_type.endswith("?"):
        field.oneof_index = 0
    type_name = marked_type.rstrip("*?")
    if type_name in SCALARS:
        field.type = kinds.Type.Value(f"TYPE_{type_name.upper()}")
    else:
        field.type = kinds.TYPE_ENUM if type_name in _ENUMS else kinds.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"


def _file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    for enum_name, members in _ENUMS.items():
        enum = file.enum_type.add(name=enum_name)
        for member in members:
            enum.value.add(name=member.name, number=member.value)
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        if any(type_name.endswith("?") for _, _, type_name in fields):
            message.oneof_decl.add(name="value")
        for number, name, type_name in fields:
            _add_field(message, number, name, type_name)
    return file


def _build_messages() -> dict[str, type[Message]]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_file_descriptor().SerializeToString())
    descriptors = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _FIELDS}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in descriptors.items()}


MESSAGES: dict[str, type[Message]] = _build_messages()
"""Name to class of every message, the list messages (`Int64List`, ...) among them."""

if TYPE_CHECKING:
    # What mypy and editors see of the classes below; `tests/test_chakra.py` holds the two together.

    class _Message(Message):
        def __init__(self, **fields: Any) -> None: ...

    class AttributeProto(_Message):
        """A name and at most one value of the 30 `KINDS`; `WhichOneof("value")` says which."""

        name: str
        doc_string: str

        def __getattr__(self, kind: str) -> Any: ...

    class GlobalMetadata(_Message):
        """The first message of a file."""

        version: str
        attr: RepeatedCompositeFieldContainer[AttributeProto]

    class IOInfo(_Message):
        """Inputs or outputs of a node, as text that Python's `repr` wrote."""

        values: str
        shapes: str
        types: str

    class Node(_Message):
        """One operation of a rank, and the nodes it waits for."""

        id: int
        name: str
        type: int
        ctrl_deps: RepeatedScalarFieldContainer[int]
        data_deps: RepeatedScalarFieldContainer[int]
        start_time_micros: int
        duration_micros: int
        inputs: IOInfo
        outputs: IOInfo
        attr: RepeatedCompositeFieldContainer[AttributeProto]

else:
    AttributeProto = MESSAGES["AttributeProto"]
    GlobalMetadata = MESSAGES["GlobalMetadata"]
    IOInfo = MESSAGES["IOInfo"]
    Node = MESSAGES["Node"]
