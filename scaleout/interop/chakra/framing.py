"""A Chakra trace file to its frames: the length of a message as a varint, then the message.

The first message is a `GlobalMetadata`, each later one a `Node`, without count or footer: a file cut exactly between
two frames cannot be told from a shorter trace, while any other cut is found. Offsets in messages count the bytes of the
trace, after unzipping a gzip file. Knows nothing of protobuf.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from scaleout.config.documents import check_regular
from scaleout.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 20
_MOST_TIMES = 100
"""How many times its size a gzip file may hold; traces of ours shrink to a tenth."""
MAX_LENGTH_BYTES = 5
"""A length takes at most this many bytes: protobuf's largest message is 2 GiB less one byte."""
_MAX_MESSAGE_BYTES = 2**31 - 1
_TEXT_CONTROLS = "\t\n\r"
WRITE_AGAIN = "write or copy it again"
GIVE_TRACE = "give the .et file of a rank, in the Chakra schema 0.0.4 to 1.0.0"


class Content(NamedTuple):
    """All bytes of a trace, unzipped."""

    path: Path
    whole: bytes

    @property
    def is_text(self) -> bool:
        """Whether the first bytes are text, in UTF-8."""
        try:
            text = codecs.getincrementaldecoder("utf-8")().decode(self.whole[:512])  # the last character may be cut
        except UnicodeDecodeError:
            return False
        return text != "" and all(character.isprintable() or character in _TEXT_CONTROLS for character in text)

    def fault(self, index: int, offset: int, *, text: str, remedy: str) -> TraceError:
        """Say what is wrong with a frame: number 0 is the metadata, and node 0 follows it."""
        if index > 0:
            return TraceError(f"{self.path}: node {index - 1} at byte {offset}: {text}; {remedy}")
        if self.is_text:
            start = self.whole[:20].decode("utf-8", "ignore")
            return TraceError(f"{self.path}: is text ({start!r}...), not a Chakra trace; {GIVE_TRACE}")
        return TraceError(f"{self.path}: metadata at byte {offset}: {text}; {remedy}, or {GIVE_TRACE}")


def read_content(path: Path) -> Content:
    """Read a plain or gzip file, or raise `TraceError` if it cannot be read or is empty."""
    unzipped = bytearray()
    try:
        check_regular(path)
        whole = path.read_bytes()
        if whole.startswith(_GZIP_MAGIC):
            with gzip.GzipFile(fileobj=BytesIO(whole)) as file:
                while block := file.read(_BLOCK_BYTES):
                    unzipped += block
                    if len(unzipped) > _MOST_TIMES * len(whole) + _BLOCK_BYTES:
                        raise TraceError(
                            f"{path}: unzips to more than {_MOST_TIMES} times its size, as no trace does; unzip it "
                            f"yourself if it is one"
                        )
            whole = bytes(unzipped)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{path}: the gzip data is cut short or damaged after byte {len(unzipped)} of the trace ({error}); "
            f"{WRITE_AGAIN}"
        ) from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror}); give an existing .et file") from None
    if not whole:
        raise TraceError(f"{path}: is empty, but a trace holds at least its metadata; {WRITE_AGAIN}")
    return Content(path, whole)


def bounds(content: Content) -> tuple[list[int], list[int], TraceError | None]:
    """Return where each frame begins and where its message does, up to the end of the last; and what is wrong there."""
    whole, start = content.whole, 0
    size_bytes = len(whole)
    starts, bodies = [start], list[int]()
    try:
        while start < size_bytes:
            size, body = whole[start], start + 1
            if size > 0x7F and body < size_bytes and whole[body] <= 0x7F:  # the length of most messages takes two bytes
                size, body = size & 0x7F | whole[body] << 7, body + 1
            elif size > 0x7F:
                size, body = _length(content, start, index=len(bodies))
            start = body + size
            if start > size_bytes:
                text = f"the file ends after {size_bytes - body} of the {size} bytes of the message"
                return starts, bodies, content.fault(len(bodies), starts[-1], text=text, remedy=WRITE_AGAIN)
            bodies.append(body)
            starts.append(start)
    except TraceError as error:
        return starts, bodies, error
    return starts, bodies, None


def frames(content: Content) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the message of each frame."""
    starts, bodies, fault = bounds(content)
    for start, body, end in zip(starts[:-1], bodies, starts[1:], strict=True):
        yield start, content.whole[body:end]
    if fault is not None:
        raise fault


def _length(content: Content, start: int, *, index: int) -> tuple[int, int]:
    """Decode the varint at `start`; return it and where the message begins."""
    size = 0
    encoded = content.whole[start : start + MAX_LENGTH_BYTES]
    for position, byte in enumerate(encoded):
        size |= (byte & 0x7F) << (7 * position)
        if byte <= 0x7F:
            if size > _MAX_MESSAGE_BYTES:
                text = f"its length reads {size} bytes, more than the 2 GiB of any protobuf message"
                raise content.fault(index, start, text=text, remedy=WRITE_AGAIN)
            return size, start + position + 1
    text = f"its length takes more than {MAX_LENGTH_BYTES} bytes, which no protobuf message needs"
    if len(encoded) < MAX_LENGTH_BYTES:
        text = "the file ends inside its length"
    raise content.fault(index, start, text=text, remedy=WRITE_AGAIN)
