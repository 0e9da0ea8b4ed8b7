"""A Chakra trace file to its metadata and nodes, and back to the same bytes.

The messages are protobuf's; `framing` says how they lie in the file.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from scaleout.errors import TraceError
from scaleout.interop.chakra.framing import GIVE_TRACE, WRITE_AGAIN, Source, frames, is_text, open_trace
from scaleout.interop.chakra.schema import GlobalMetadata, Node
from scaleout.interop.chakra.tables import NodeType

_PARSE_ERRORS = (DecodeError, UnicodeDecodeError)  # protobuf's pure Python implementation raises the latter
_LAST_TYPE = max(NodeType)
_LAST_METADATA_FIELD = max(GlobalMetadata.DESCRIPTOR.fields_by_number)
_LAST_NODE_FIELD = max(Node.DESCRIPTOR.fields_by_number)


def read(path: str | os.PathLike[str]) -> tuple[GlobalMetadata, list[Node]]:
    """Read a whole trace.

    Parameters
    ----------
    path : str or path
        A ``.et`` file, plain or gzip.

    Raises
    ------
    TraceError
        If the file cannot be read, is empty, cut short or damaged, or is not a Chakra trace.
    """
    metadata, nodes = stream(path)
    return metadata, list(nodes)


def stream(path: str | os.PathLike[str]) -> tuple[GlobalMetadata, Iterator[Node]]:
    """Read the metadata now, and each node, with its errors, when the iterator reaches it; see `read`.

    The file is closed after the last node, or when the iterator is dropped.
    """
    source = open_trace(Path(path))
    found = frames(source)
    _, frame = next(found)
    return _metadata(source, frame), _nodes(source, found)


def read_content(path: str | os.PathLike[str]) -> tuple[GlobalMetadata, bytes]:
    """Read the metadata, and all bytes of the trace, unzipped and not looked into; see `read`."""
    source = open_trace(Path(path))
    blocks: list[bytes] = []
    with source.file:
        block_bytes = os.fstat(source.file.fileno()).st_size + 1  # of a plain file the one block
        while block := source.read(block_bytes, offset=sum(map(len, blocks))):
            blocks.append(block)
    content = b"".join(blocks)
    _, frame = next(frames(source._replace(file=BytesIO(content))))
    return _metadata(source, frame), content


def has_known_fields(node: Node) -> bool:
    """Whether a node has a type that there is, and no field of the schema with another type."""
    unknown = UnknownFieldSet(node)
    return 0 <= node.type <= _LAST_TYPE and not (unknown and min(_numbers(unknown)) <= _LAST_NODE_FIELD)


def _metadata(source: Source, frame: bytes) -> GlobalMetadata:
    try:
        metadata = GlobalMetadata.FromString(frame)
    except _PARSE_ERRORS:
        text = "it is no Chakra GlobalMetadata"
        raise source.fault(0, 0, text=text, remedy=WRITE_AGAIN) from None
    unknown = UnknownFieldSet(metadata)  # fields that the schema has not, or has with another type
    # A later schema may add fields, which are kept. A known number with another type is another schema, and so is a
    # message of which nothing is known. No trace is all text: the tags of id, name and type are control characters.
    if unknown and (
        min(_numbers(unknown)) <= _LAST_METADATA_FIELD
        or not (metadata.version or metadata.attr)
        or is_text(source.head)
    ):
        text = "its fields are not those of a Chakra GlobalMetadata"
        raise source.fault(0, 0, text=text, remedy=WRITE_AGAIN)
    return metadata


def _nodes(source: Source, found: Iterator[tuple[int, bytes]]) -> Iterator[Node]:
    num_empty = 0
    for index, (offset, frame) in enumerate(found, start=1):
        try:
            node = Node.FromString(frame)
        except _PARSE_ERRORS:
            text = "it is no Chakra Node"
            raise source.fault(index, offset, text=text, remedy=WRITE_AGAIN) from None
        if not 0 <= node.type <= _LAST_TYPE:
            text = f"its type is {node.type}, but types go from 0 to {_LAST_TYPE:d}"
            raise source.fault(index, offset, text=text, remedy=GIVE_TRACE)
        unknown = UnknownFieldSet(node)
        if unknown and min(_numbers(unknown)) <= _LAST_NODE_FIELD:
            text = "its fields are not of the types of a Chakra Node, as in a schema older than 0.0.4"
            raise source.fault(index, offset, text=text, remedy=GIVE_TRACE)
        num_empty += not frame
        if num_empty > 1:
            # One may be node 0 without a name or type; more are the zeros that a lost block of a disk reads as.
            text = "it is the second empty node, but ids must differ: the file may be filled with zeros"
            raise source.fault(index, offset, text=text, remedy=WRITE_AGAIN)
        yield node


def _numbers(fields: UnknownFieldSet) -> list[int]:
    return [fields[position].field_number for position in range(len(fields))]


def write(path: str | os.PathLike[str], metadata: GlobalMetadata, nodes: Iterable[Node]) -> None:
    """Write a trace, whole or not at all.

    The frames go to a hidden file that is renamed at the end, so that a failure leaves an older file as it was. A node
    with all fields at their defaults becomes an empty frame, at which Chakra's Python tools stop reading: give every
    node a type.

    Parameters
    ----------
    path : str or path
        The file to write or replace; by convention ``<prefix>.<rank>.et``.
    nodes : iterable of Node
        Taken one at a time, from a generator of any length.

    Raises
    ------
    TraceError
        If the file cannot be written, an item is not of its class, or two nodes are empty.
    """
    target = Path(os.path.realpath(path))  # as `open` does, write through a link rather than replace it
    partial = target.parent / f".{os.urandom(8).hex()}.partial"
    # Never gzip, though our reader takes it: ASTRA-sim's third feeder does not look for it, and reports success
    # with one garbage node.
    try:
        with partial.open("xb", buffering=1 << 20) as file:
            file.write(_frame(metadata, GlobalMetadata, where=f"{path}: metadata"))
            num_empty = 0
            for index, node in enumerate(nodes):
                frame = _frame(node, Node, where=f"{path}: node {index}")
                num_empty += frame == b"\0"
                if num_empty > 1:
                    raise TraceError(f"{path}: node {index} is the second empty one; give each node its own id")
                file.write(frame)
        partial.replace(target)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror}); give a file in a folder of yours") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _frame(message: Message, expected: type[Message], *, where: str) -> bytes:
    # The public `chakra` package's own messages are welcome too: same schema, another class.
    if type(message) is not expected:
        wanted = expected.DESCRIPTOR.full_name
        descriptor = getattr(message, "DESCRIPTOR", None)
        if getattr(descriptor, "full_name", None) != wanted:
            raise TraceError(
                f"{where} is of {type(message).__name__}, not {wanted}; build it with scaleout.interop.chakra"
            )
    payload = message.SerializeToString()
    return _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    """Encode seven bits a byte, the lowest first; the high bit of a byte says that another follows."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
