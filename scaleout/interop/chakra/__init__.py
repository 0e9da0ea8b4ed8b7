"""Chakra execution traces: reading and writing the files, the values of attributes, and programs as trace sets.

A trace is one file a rank: metadata, then nodes, as messages of the public schema. They are written by protobuf, which
no other package imports, and read without. `save_program` and `load_program` turn programs into sets of traces and
back. What takes long to import is imported on first use. Nothing here knows clusters or simulation.

>>> import tempfile
>>> from pathlib import Path
>>> collective = {"comm_type": CollectiveCommType.ALL_REDUCE, "comm_size": 1 << 20}
>>> attributes = [conventional_attribute(name, value) for name, value in collective.items()]
>>> node = Node(id=1, name="gradients", type=NodeType.COMM_COLL_NODE, data_deps=[0], attr=attributes)
>>> with tempfile.TemporaryDirectory() as folder:
...     path = Path(folder) / "job.0.et"
...     write(path, GlobalMetadata(version="0.0.4"), [node])
...     metadata, nodes = read(path)
>>> metadata.version, NodeType(nodes[0].type).name, get(nodes[0], "comm_size", int)
('0.0.4', 'COMM_COLL_NODE', 1048576)
"""

import importlib
from typing import TYPE_CHECKING, Any

from scaleout.interop.chakra.attributes import CONVENTIONAL_KINDS, attribute, conventional_attribute, get, to_dict
from scaleout.interop.chakra.tables import KINDS, CollectiveCommType, NodeType
from scaleout.interop.chakra.wire import read

if TYPE_CHECKING:
    from scaleout.interop.chakra.files import write
    from scaleout.interop.chakra.load import LoadedTrace, load_program
    from scaleout.interop.chakra.save import save_program
    from scaleout.interop.chakra.schema import AttributeProto, GlobalMetadata, IOInfo, Node

__all__ = [
    "CONVENTIONAL_KINDS",
    "KINDS",
    "AttributeProto",
    "CollectiveCommType",
    "GlobalMetadata",
    "IOInfo",
    "LoadedTrace",
    "Node",
    "NodeType",
    "attribute",
    "conventional_attribute",
    "get",
    "load_program",
    "read",
    "save_program",
    "to_dict",
    "write",
]

_LATE = {
    **dict.fromkeys(("LoadedTrace", "load_program"), "scaleout.interop.chakra.load"),
    "save_program": "scaleout.interop.chakra.save",
    "write": "scaleout.interop.chakra.files",
    **dict.fromkeys(("AttributeProto", "GlobalMetadata", "IOInfo", "Node"), "scaleout.interop.chakra.schema"),
}


def __getattr__(name: str) -> Any:
    """Import what needs protobuf or execution graphs on first use, so that small jobs start fast."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)
