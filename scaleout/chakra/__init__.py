"""Chakra execution traces: reading and writing the files, and the values of attributes.

A trace is one file a rank: metadata, then nodes. Messages are protobuf messages with the names and numbers of
the public schema, so that they work as those of its `et_def_pb2` do; the enums are Python's. This package, and
no other, imports protobuf. It knows the format, and nothing of execution graphs, clusters or simulation.

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

from scaleout.chakra.attributes import (
    CONVENTIONAL_KINDS,
    attribute,
    conventional_attribute,
    find,
    get,
    to_dict,
)
from scaleout.chakra.reader import read, stream
from scaleout.chakra.schema import (
    KINDS,
    AttributeProto,
    CollectiveCommType,
    GlobalMetadata,
    IOInfo,
    Node,
    NodeType,
    Tensor,
)
from scaleout.chakra.writer import write

__all__ = [
    "CONVENTIONAL_KINDS",
    "KINDS",
    "AttributeProto",
    "CollectiveCommType",
    "GlobalMetadata",
    "IOInfo",
    "Node",
    "NodeType",
    "Tensor",
    "attribute",
    "conventional_attribute",
    "find",
    "get",
    "read",
    "stream",
    "to_dict",
    "write",
]
