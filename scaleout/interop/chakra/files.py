"""Metadata and nodes to a Chakra trace file. The messages are protobuf's; `framing` says how they lie in the file.

>>> import tempfile
>>> from pathlib import Path
>>> from scaleout.interop.chakra.attributes import get
>>> from scaleout.interop.chakra.schema import attribute
>>> from scaleout.interop.chakra.wire import read
>>> node = Node(id=1, name="gradients", data_deps=[0], attr=[attribute("comm_size", "int64_val", 1 << 20)])
>>> with tempfile.TemporaryDirectory() as folder:
...     write(Path(folder) / "job.0.et", GlobalMetadata(version="0.0.4"), [node])
...     metadata, nodes = read(Path(folder) / "job.0.et")
>>> metadata.version, nodes[0].name, get(nodes[0], "comm_size", int)
('0.0.4', 'gradients', 1048576)
"""

import os
from collections.abc import Iterable

from google.protobuf.message import Message

from scaleout.config.writing import replacing
from scaleout.errors import TraceError
from scaleout.interop.chakra.schema import GlobalMetadata, Node
from scaleout.interop.chakra.wire import encoded


def write(path: str | os.PathLike[str], metadata: GlobalMetadata, nodes: Iterable[Node]) -> None:
    """Write a trace, whole or not at all.

    A node with all fields at their defaults becomes an empty frame, at which Chakra's Python tools stop reading: give
    every node a type.

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
    try:
        write_frames(path, metadata, nodes)
    except OSError as error:
        raise TraceError(f"{path}: cannot be written ({error.strerror}); give a file in a folder of yours") from error


def write_frames(path: str | os.PathLike[str], metadata: GlobalMetadata, nodes: Iterable[Node]) -> None:
    """Write a trace as `write` does, but raise `OSError` if the file cannot be written."""
    # Never gzip, though our reader takes it: ASTRA-sim's third feeder does not look for it, and reports success
    # with one garbage node.
    with replacing(path) as file:
        file.write(_frame(metadata, GlobalMetadata, where=f"{path}: metadata"))
        num_empty = 0
        for index, node in enumerate(nodes):
            frame = _frame(node, Node, where=f"{path}: node {index}")
            num_empty += frame == b"\0"
            if num_empty > 1:
                raise TraceError(f"{path}: node {index} is the second empty one; give each node its own id")
            file.write(frame)


def _frame(message: Message, expected: type[Message], *, where: str) -> bytes:
    # The public `chakra` package's own messages are welcome too: same schema, another class.
    wanted = expected.DESCRIPTOR.full_name
    if getattr(getattr(message, "DESCRIPTOR", None), "full_name", None) != wanted:
        raise TraceError(f"{where} is of {type(message).__name__}, not {wanted}; build it with scaleout.interop.chakra")
    payload = message.SerializeToString()
    return encoded(len(payload)) + payload
