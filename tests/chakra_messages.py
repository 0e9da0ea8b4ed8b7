"""Chakra traces as protobuf decodes them: the oracle of our reader."""

import gzip
from pathlib import Path

from scaleout.interop.chakra import schema, wire


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
