"""The forward pass of a stage: what its family writes, in units whose parameters are gathered together.

Layers, embedding and head are units of sharding each, see `units`; one that backward recomputes is a checkpoint.
"""

from functools import partial
from typing import Any

from scaleout.program.graph import HEAD, NONE
from scaleout.program.operations import ITEM_BYTES
from scaleout.workloads.families.layered import LayeredModel
from scaleout.workloads.generate.autograd_tape import AutogradTape
from scaleout.workloads.generate.layers import WHOLE_IN, WHOLE_OUT, checkpoint, exchange, phased
from scaleout.workloads.generate.units import Rank, Units


def forward(
    tape: AutogradTape,
    rank: Rank[Any],
    layers: range,
    *,
    first: bool,
    last: bool,
    receives: bool = False,
    sends: bool = False,
) -> int:
    """Write the forward pass of some layers, with the embedding before the first and the head after the last.

    One that `receives` its input in parts gathers them; one that `sends` its output receives its gradient so.

    Returns
    -------
    int
        The node that makes the output.
    """
    model: LayeredModel = rank.workload
    x = NONE
    units = Units(rank)
    item_bytes = ITEM_BYTES[model.gather_dtype or tape.dtype]
    if receives and model.scatters:
        tape.enter("pipeline")
        x = exchange(tape, x, WHOLE_IN, rank.whole_bytes, group=rank.tensor, name="activations")
    if first:
        x = units.apply(tape, x, partial(model.write_embedding, rank=rank), phase="embedding")
    for number in layers:
        tape.graph.layer = number
        whole = partial(model.write_layer, rank=rank, number=number)
        if model.recompute in ("operations", "full"):
            again = partial(
                checkpoint, layer=whole, kept_elements=rank.elements, stop_early=model.stop_recompute_early,
                saved=model.recompute == "operations",
            )  # fmt: skip
            x = units.apply(tape, x, again, item_bytes=item_bytes)
        else:
            x = units.apply(tape, x, whole, item_bytes=item_bytes)
    tape.graph.layer = NONE
    if sends and model.scatters:
        x = phased(tape, x, partial(_whole_gradient, rank=rank), phase="pipeline")
    if not last:
        return x
    tape.graph.layer = HEAD
    return units.apply(tape, x, partial(phased, layer=partial(model.write_head, rank=rank), phase="head"))


def _whole_gradient(tape: AutogradTape, x: int, rank: Rank[Any]) -> int:
    return exchange(tape, x, WHOLE_OUT, rank.whole_bytes, group=rank.tensor, name="activations")
