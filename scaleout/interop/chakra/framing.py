"""A Chakra trace file to its frames: the length of a message as a varint, then the message.

The first message is a `GlobalMetadata`, each later one a `Node`, without count or footer: a file cut exactly between
two frames cannot be told from a shorter trace, while any other cut is found. Offsets in messages count the bytes of the
trace, after unzipping a gzip file. Knows nothing of protobuf.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import NamedTuple

from scaleout.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 20
MAX_LENGTH_BYTES = 5
"""A length takes at most this many bytes: protobuf's largest message is 2 GiB less one byte."""
_MAX_MESSAGE_BYTES = 2**31 - 1
_TEXT_CONTROLS = "\t\n\r"
WRITE_AGAIN = "write or copy it again"
GIVE_TRACE = "give the .et file of a rank, in the Chakra schema 0.0.4 to 1.0.0"


class Source(NamedTuple):
    """An open file, with the first of its bytes to tell what else it may be."""

    path: Path
    file: BufferedReader | BytesIO | gzip.GzipFile
    head: bytes

    def read(self, size_bytes: int, *, offset: int) -> bytes:
        """Read on; `offset` is where the trace stands, for messages."""
        try:
            return self.file.read(size_bytes)
        except (OSError, EOFError, zlib.error) as error:
            raise _unreadable(self.path, error, offset=offset) from None

    def fault(self, index: int, offset: int, *, text: str, remedy: str) -> TraceError:
        """Close the file and say what is wrong with a frame: number 0 is the metadata, and node 0 follows it."""
        self.file.close()
        if index > 0:
            return TraceError(f"{self.path}: node {index - 1} at byte {offset}: {text}; {remedy}")
        if is_text(self.head):
            start = self.head[:20].decode("utf-8", "ignore")
            return TraceError(f"{self.path}: is text ({start!r}...), not a Chakra trace; {GIVE_TRACE}")
        return TraceError(f"{self.path}: metadata at byte {offset}: {text}; {remedy}, or {GIVE_TRACE}")


def open_trace(path: Path) -> Source:
    """Open a plain or gzip file, or raise `TraceError` if it cannot be read or is empty."""
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
        raise TraceError(f"{path}: is empty, but a trace holds at least its metadata; {WRITE_AGAIN}")
    return Source(path, file, head)


def _unreadable(path: Path, error: Exception, *, offset: int) -> TraceError:
    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
        return TraceError(
            f"{path}: the gzip data is cut short or damaged after byte {offset} of the trace ({error}); {WRITE_AGAIN}"
        )
    reason = error.strerror if isinstance(error, OSError) else error
    return TraceError(f"{path}: cannot be read ({reason}); give an existing .et file")


def frames(source: Source) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the message of each frame, reading block by block."""
    index = start = 0
    offset = 0  # of the buffer's first byte in the trace
    buffer = b""
    with source.file:
        while True:
            if len(buffer) - start < MAX_LENGTH_BYTES:
                offset += start
                block = source.read(_BLOCK_BYTES, offset=offset + len(buffer) - start)
                buffer, start = buffer[start:] + block, 0
                if not buffer:
                    return
            size, body = buffer[start], start + 1
            if size > 0x7F and body < len(buffer) and buffer[body] <= 0x7F:
                size, body = size & 0x7F | buffer[body] << 7, body + 1
            elif size > 0x7F:
                size, body = _length(source, buffer, start, index=index, offset=offset + start)
            while body + size > len(buffer):
                # Drop the frames before this one; doubling what is left keeps the copying of a large frame linear.
                offset, body, buffer, start = offset + start, body - start, buffer[start:], 0
                block = source.read(max(_BLOCK_BYTES, len(buffer)), offset=offset + len(buffer))
                if not block:
                    text = f"the file ends after {len(buffer) - body} of the {size} bytes of the message"
                    raise source.fault(index, offset, text=text, remedy=WRITE_AGAIN)
                buffer += block
            yield offset + start, buffer[body : body + size]
            start = body + size
            index += 1


def _length(source: Source, buffer: bytes, start: int, *, index: int, offset: int) -> tuple[int, int]:
    """Decode the varint at `start`; return it and where the message begins."""
    size = 0
    for position, byte in enumerate(buffer[start : start + MAX_LENGTH_BYTES]):
        size |= (byte & 0x7F) << (7 * position)
        if byte <= 0x7F:
            if size > _MAX_MESSAGE_BYTES:
                text = f"its length reads {size} bytes, more than the 2 GiB of any protobuf message"
                raise source.fault(index, offset, text=text, remedy=WRITE_AGAIN)
            return size, start + position + 1
    if len(buffer) - start < MAX_LENGTH_BYTES:
        raise source.fault(index, offset, text="the file ends inside its length", remedy=WRITE_AGAIN)
    text = f"its length takes more than {MAX_LENGTH_BYTES} bytes, which no protobuf message needs"
    raise source.fault(index, offset, text=text, remedy=WRITE_AGAIN)


def is_text(head: bytes) -> bool:
    """Whether the first bytes of a file are text, in UTF-8."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head)  # the last character may be cut
    except UnicodeDecodeError:
        return False
    return text != "" and all(character.isprintable() or character in _TEXT_CONTROLS for character in text)
