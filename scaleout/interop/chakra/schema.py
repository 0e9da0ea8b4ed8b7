"""The Chakra schema: tables of messages and enums to protobuf classes.

The classes are built in a descriptor pool of our own rather than by `protoc`: they never clash with an installed
`chakra` package and need no build step.
"""

from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from scaleout.interop.chakra.tables import ENUMS, FIELDS, SCALARS

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer, RepeatedScalarFieldContainer

_PACKAGE = "ChakraProtoMsg"


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
        field.type = kinds.TYPE_ENUM if type_name in ENUMS else kinds.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"


def _file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    for enum_name, members in ENUMS.items():
        enum = file.enum_type.add(name=enum_name)
        for member in members:
            enum.value.add(name=member.name, number=member.value)
    for message_name, fields in FIELDS.items():
        message = file.message_type.add(name=message_name)
        if any(type_name.endswith("?") for _, _, type_name in fields):
            message.oneof_decl.add(name="value")
        for number, name, type_name in fields:
            _add_field(message, number, name, type_name)
    return file


def _build_messages() -> dict[str, type[Message]]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_file_descriptor().SerializeToString())
    descriptors = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in FIELDS}
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
