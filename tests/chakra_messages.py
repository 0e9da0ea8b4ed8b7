"""What tests of Chakra traces use: the names of the package in one place, and protobuf as the oracle of its reader."""

import gzip
from pathlib import Path

from scaleout.interop.chakra import schema, wire
from scaleout.interop.chakra.attributes import CONVENTIONAL_KINDS, get, to_dict
from scaleout.interop.chakra.files import write
from scaleout.interop.chakra.load import load_program
from scaleout.interop.chakra.save import save_program, traced
from scaleout.interop.chakra.schema import AttributeProto, GlobalMetadata, Node, attribute
from scaleout.interop.chakra.tables import KINDS, CollectiveCommType, NodeType
from scaleout.interop.chakra.wire import read

__all__ = [
    "CONVENTIONAL_KINDS",
    "KINDS",
    "AttributeProto",
    "CollectiveCommType",
    "GlobalMetadata",
    "IOInfo",
    "Node",
    "NodeType",
    "attribute",
    "get",
    "load_program",
    "read",
    "save_program",
    "to_dict",
    "traced",
    "write",
]

IOInfo = schema.MESSAGES["IOInfo"]


def read_messages(path):
    """The metadata and the nodes of a whole file, plain or gzip, each of them with all of its fields."""
    content = Path(path).read_bytes()
    content = gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    frames, at = [], 0
    while at < len(content):
        size, at = wire.varint(content, at)
        frames.append(content[at : at + size])
        at += size
    return schema.GlobalMetadata.FromString(frames[0]), [schema.Node.FromString(frame) for frame in frames[1:]]


def read_back(message):
    """What our reader makes of a node or of the metadata."""
    kind = wire.Node if message.DESCRIPTOR.name == "Node" else wire.Metadata
    return kind(message.SerializeToString())
