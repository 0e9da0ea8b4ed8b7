"""Of which pass and layer a recorded work is, by the names of the operators and annotations that called it."""

import re
from typing import Any

from scaleout.interop.pytorch.kineto import NONE, Recording, Work, ancestors
from scaleout.program.graph import NodeRole

_LAYER = re.compile(r"(?:layers?|blocks?|h)\.(\d+)|(?:Layer|Block)_(\d+)")
_PHASES = ((NodeRole.OPTIMIZER, "optimizer"), (NodeRole.BACKWARD, "backward"), (NodeRole.FORWARD, "forward"))


def where_of(recording: Recording, work: Work) -> dict[str, Any]:
    """Return the pass and the layer of a work, as far as the names of what called it tell.

    Autograd numbers operators whose gradient it will compute. Within backward only a forward that runs again has such:
    `torch.utils.checkpoint` turns gradients on for it.
    """
    role, layer = NodeRole.FORWARD, NONE
    numbered = recomputed = False
    for operator in ancestors(recording.operators, work.operator):
        name = operator.name
        if name.startswith("Optimizer.step"):
            role = NodeRole.OPTIMIZER
        elif "Backward" in name or "autograd::engine" in name or "backward" in name.lower():
            recomputed |= numbered and role == NodeRole.FORWARD and "CppNode" not in name
            role = role if role == NodeRole.OPTIMIZER else NodeRole.BACKWARD
        numbered |= "Sequence number" in operator.args
        found = _LAYER.search(name)
        if found and layer == NONE:
            layer = int(found[1] or found[2])
    if work.operator == NONE:
        return {"phase": "unlinked"}
    again = NodeRole.RECOMPUTE if recomputed and role == NodeRole.BACKWARD else 0
    columns: dict[str, Any] = {"role": role | again, "phase": dict(_PHASES)[role]}
    return columns | ({"layer": layer} if layer != NONE else {})
