"""The kinds of dimension, one file each, and their table: a new kind is a subclass of `DimensionKind` and an entry."""

from scaleout.cluster.topology.kinds.dragonfly import Dragonfly
from scaleout.cluster.topology.kinds.fat_tree import FatTree, Switch
from scaleout.cluster.topology.kinds.fully_connected import FullyConnected
from scaleout.cluster.topology.kinds.graph import Graph
from scaleout.cluster.topology.kinds.kind import DimensionKind
from scaleout.cluster.topology.kinds.ring import Mesh, Ring
from scaleout.config.validated import nearest
from scaleout.errors import ConfigError

__all__ = ["KINDS", "DimensionKind", "find_kind"]

KINDS: dict[str, DimensionKind] = {
    kind.name: kind for kind in (Ring(), Switch(), FullyConnected(), Mesh(), FatTree(), Dragonfly(), Graph())
}
"""Name of a kind of dimension to what it says of its links."""


def find_kind(name: str, *, in_file: bool = False) -> DimensionKind:
    """Return a kind by its name, in a topology file also by another name that it has there; refuse unknown ones."""
    if name in KINDS:
        return KINDS[name]
    found = next((kind for kind in KINDS.values() if in_file and name in kind.names_in_files), None)
    if found is None:
        raise ConfigError(f"unknown kind of dimension {name!r}; {nearest(name, KINDS)}")
    return found
