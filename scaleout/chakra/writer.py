"""Metadata and nodes to a Chakra trace file.

The inverse of `reader`: reading a file and writing what was read gives the same bytes. Knows framing, and
nothing of what the nodes mean.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from google.protobuf.message import Message

from scaleout.chakra.schema import GlobalMetadata, Node
from scaleout.errors import TraceError


def write(path: str | os.PathLike[str], metadata: GlobalMetadata, nodes: Iterable[Node]) -> None:
    """Write a trace, whole or not at all.

    The frames go to a hidden file beside the target, which takes the target's name at the end; if anything
    fails on the way, a file that was there before stays as it was. A node with all fields at their defaults
    becomes an empty frame, at which Chakra's Python tools stop reading: give every node a type.

    Parameters
    ----------
    path : str or path
        The file to write or replace; by convention ``<prefix>.<rank>.et``.
    metadata : GlobalMetadata
    nodes : iterable of Node
        Taken one at a time, so that a generator of any length will do.

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
            file.write(_frame(metadata, GlobalMetadata, place=f"{path}: metadata"))
            num_empty = 0
            for index, node in enumerate(nodes):
                frame = _frame(node, Node, place=f"{path}: node {index}")
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


def _frame(message: Message, expected: type[Message], *, place: str) -> bytes:
    # The public `chakra` package's own messages are welcome too: same schema, another class.
    if type(message) is not expected:
        wanted = expected.DESCRIPTOR.full_name
        descriptor = getattr(message, "DESCRIPTOR", None)
        if getattr(descriptor, "full_name", None) != wanted:
            raise TraceError(f"{place} is of {type(message).__name__}, not {wanted}; build it with scaleout.chakra")
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
