"""The Chakra schema: tables of messages and enums to protobuf classes.

The classes are built in a descriptor pool of our own rather than by `protoc`: they never clash with an installed
`chakra` package and need no build step.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

from scaleout.errors import TraceError
from scaleout.interop.chakra.tables import FIELDS, KINDS, SCALARS, NodeType

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
        field.type = kinds.TYPE_ENUM if type_name == "NodeType" else kinds.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"


def _file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    enum = file.enum_type.add(name="NodeType")
    for member in NodeType:
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

AttributeProto: Any = MESSAGES["AttributeProto"]
GlobalMetadata: Any = MESSAGES["GlobalMetadata"]
Node: Any = MESSAGES["Node"]


def attribute(name: str, kind: str, value: Any) -> AttributeProto:
    """Build an attribute of one of the 30 `KINDS`, such as ``"int64_val"``; a ``"bool_list"`` takes any iterable.

    Raises
    ------
    TraceError
        If there is no such kind, or it cannot hold the value.

    Examples
    --------
    >>> attribute("comm_size", "int64_val", 1 << 20).int64_val
    1048576
    """
    if kind not in KINDS:
        raise TraceError(f"attribute {name!r}: no kind {kind!r}; use one of {', '.join(KINDS)}")
    result = AttributeProto(name=name)
    try:
        if kind.endswith("_list"):
            values = getattr(result, kind)
            values.SetInParent()  # so that an empty list is a value too
            values.values.extend(value)
        else:
            setattr(result, kind, value)
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceError(f"attribute {name!r}: {kind} cannot hold {value!r} ({error}); give what it can") from None
    return result
