"""A Chakra trace file to its metadata and nodes, and back to the same bytes.

A file is a sequence of frames: the length of a message as a varint, then the message. The first is a `GlobalMetadata`,
each later one a `Node`, without count or footer: a file cut exactly between two frames cannot be told from a shorter
trace, while any other cut is found. Offsets in messages count the bytes of the trace, after unzipping a gzip file.
"""

import codecs
import contextlib
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from scaleout.errors import TraceError
from scaleout.interop.chakra.schema import GlobalMetadata, Node, NodeType

_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 20
_LENGTH_BYTES = 5
"""A length takes at most this many bytes: protobuf's largest message is 2 GiB less one byte."""
_MAX_MESSAGE_BYTES = 2**31 - 1
_PARSE_ERRORS = (DecodeError, UnicodeDecodeError)  # protobuf's pure Python implementation raises the latter
_LAST_TYPE = max(NodeType)
_LAST_METADATA_FIELD = max(GlobalMetadata.DESCRIPTOR.fields_by_number)
_LAST_NODE_FIELD = max(Node.DESCRIPTOR.fields_by_number)
_TEXT_CONTROLS = "\t\n\r"
_WRITE_AGAIN = "write or copy it again"
_GIVE_TRACE = "give the .et file of a rank, in the Chakra schema 0.0.4 to 1.0.0"


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
    source = _open(Path(path))
    frames = _frames(source)
    _, frame = next(frames)
    return _metadata(source, frame), _nodes(source, frames)


@dataclass(frozen=True)
class _Source:
    """An open file, with the first of its bytes to tell what else it may be."""

    path: Path
    file: BufferedReader | gzip.GzipFile
    head: bytes

    def read(self, size_bytes: int, *, offset: int) -> bytes:
        try:
            return self.file.read(size_bytes)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(self.path, error, offset=offset) from None

    def fault(self, index: int, offset: int, *, text: str, remedy: str) -> TraceError:
        """Close the file and say what is wrong with a frame: number 0 is the metadata, and node 0 follows it."""
        self.file.close()
        if index > 0:
            return TraceError(f"{self.path}: node {index - 1} at byte {offset}: {text}; {remedy}")
        if _is_text(self.head):
            start = self.head[:20].decode("utf-8", "ignore")
            return TraceError(f"{self.path}: is text ({start!r}...), not a Chakra trace; {_GIVE_TRACE}")
        return TraceError(f"{self.path}: metadata at byte {offset}: {text}; {remedy}, or {_GIVE_TRACE}")


def _open(path: Path) -> _Source:
    file: BufferedReader | gzip.GzipFile | None = None
    try:
        file = path.open("rb")
        if file.peek(2)[:2] == _GZIP_MAGIC:
            file.close()
            file = gzip.GzipFile(path)
        head = file.peek(512)[:512]
    except (OSError, EOFError, zlib.error) as error:
        if file is not None:
            file.close()
        raise _unreadable(path, error, offset=0) from None
    if not head:
        file.close()
        raise TraceError(f"{path}: is empty, but a trace holds at least its metadata; {_WRITE_AGAIN}")
    return _Source(path, file, head)


def _unreadable(path: Path, error: Exception, *, offset: int) -> TraceError:
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return TraceError(
            f"{path}: the gzip data is cut short or damaged after byte {offset} of the trace ({error}); {_WRITE_AGAIN}"
        )
    reason = error.strerror if isinstance(error, OSError) else error
    return TraceError(f"{path}: cannot be read ({reason}); give an existing .et file")


def _frames(source: _Source) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the message of each frame, reading block by block."""
    index = start = 0
    offset = 0  # of the buffer's first byte in the trace
    buffer = b""
    with source.file:
        while True:
            if len(buffer) - start < _LENGTH_BYTES:
                offset += start
                block = source.read(_BLOCK_BYTES, offset=offset + len(buffer) - start)
                buffer, start = buffer[start:] + block, 0
                if not buffer:
                    return
            size, body = buffer[start], start + 1
            if size > 0x7F:
                size, body = _length(source, buffer, start, index=index, offset=offset + start)
            while body + size > len(buffer):
                # Drop the frames before this one; doubling what is left keeps the copying of a large frame linear.
                offset, body, buffer, start = offset + start, body - start, buffer[start:], 0
                block = source.read(max(_BLOCK_BYTES, len(buffer)), offset=offset + len(buffer))
                if not block:
                    text = f"the file ends after {len(buffer) - body} of the {size} bytes of the message"
                    raise source.fault(index, offset, text=text, remedy=_WRITE_AGAIN)
                buffer += block
            yield offset + start, buffer[body : body + size]
            start = body + size
            index += 1


def _length(source: _Source, buffer: bytes, start: int, *, index: int, offset: int) -> tuple[int, int]:
    """Decode the varint at `start`; return it and where the message begins."""
    size = 0
    for position, byte in enumerate(buffer[start : start + _LENGTH_BYTES]):
        size |= (byte & 0x7F) << (7 * position)
        if byte <= 0x7F:
            if size > _MAX_MESSAGE_BYTES:
                text = f"its length reads {size} bytes, more than the 2 GiB of any protobuf message"
                raise source.fault(index, offset, text=text, remedy=_WRITE_AGAIN)
            return size, start + position + 1
    if len(buffer) - start < _LENGTH_BYTES:
        raise source.fault(index, offset, text="the file ends inside its length", remedy=_WRITE_AGAIN)
    text = f"its length takes more than {_LENGTH_BYTES} bytes, which no protobuf message needs"
    raise source.fault(index, offset, text=text, remedy=_WRITE_AGAIN)


def _metadata(source: _Source, frame: bytes) -> GlobalMetadata:
    try:
        metadata = GlobalMetadata.FromString(frame)
    except _PARSE_ERRORS:
        text = "it is no Chakra GlobalMetadata"
        raise source.fault(0, 0, text=text, remedy=_WRITE_AGAIN) from None
    unknown = UnknownFieldSet(metadata)  # fields that the schema has not, or has with another type
    # A later schema may add fields, which are kept. A known number with another type is another schema, and so is a
    # message of which nothing is known. No trace is all text: the tags of id, name and type are control characters.
    if unknown and (
        min(_numbers(unknown)) <= _LAST_METADATA_FIELD
        or not (metadata.version or metadata.attr)
        or _is_text(source.head)
    ):
        text = "its fields are not those of a Chakra GlobalMetadata"
        raise source.fault(0, 0, text=text, remedy=_WRITE_AGAIN)
    return metadata


def _nodes(source: _Source, frames: Iterator[tuple[int, bytes]]) -> Iterator[Node]:
    num_empty = 0
    for index, (offset, frame) in enumerate(frames, start=1):
        try:
            node = Node.FromString(frame)
        except _PARSE_ERRORS:
            text = "it is no Chakra Node"
            raise source.fault(index, offset, text=text, remedy=_WRITE_AGAIN) from None
        if not 0 <= node.type <= _LAST_TYPE:
            text = f"its type is {node.type}, but types go from 0 to {_LAST_TYPE:d}"
            raise source.fault(index, offset, text=text, remedy=_GIVE_TRACE)
        unknown = UnknownFieldSet(node)
        if unknown and min(_numbers(unknown)) <= _LAST_NODE_FIELD:
            text = "its fields are not of the types of a Chakra Node, as in a schema older than 0.0.4"
            raise source.fault(index, offset, text=text, remedy=_GIVE_TRACE)
        num_empty += not frame
        if num_empty > 1:
            # One may be node 0 without a name or type; more are the zeros that a lost block of a disk reads as.
            text = "it is the second empty node, but ids must differ: the file may be filled with zeros"
            raise source.fault(index, offset, text=text, remedy=_WRITE_AGAIN)
        yield node


def _numbers(fields: UnknownFieldSet) -> list[int]:
    return [fields[position].field_number for position in range(len(fields))]


def _is_text(head: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return text != "" and all(character.isprintable() or character in _TEXT_CONTROLS for character in text)


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
