"""What-ifs of a recorded job: its batch, sequence, layers, steps, ranks or device changed, kernel by kernel.

A kernel whose sizes are recorded takes its recorded time, times what our model says of the new size over the old one;
one of which only bytes are known takes as much longer as it moves more, beyond the time of the shortest kernels. Layers
and micro-batches are found as what repeats in the order of launches, and are left out or run again. The host is left
out where it held nothing up: recording slows it, and its time is not the job's.

See docs/models/recordings.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from scaleout.cluster.device.spec import Device
from scaleout.config.reading import nearest
from scaleout.errors import ConfigError
from scaleout.program.graph import ExecutionGraph, NodeRole
from scaleout.program.program import Program
from scaleout.program.recorded import HOST
from scaleout.study.edits.communication import bucket, chunks
from scaleout.study.edits.device import on_device
from scaleout.study.edits.groups import with_axes
from scaleout.study.edits.layers import layers, recompute
from scaleout.study.edits.microbatches import accumulate, microbatches
from scaleout.study.edits.ranks import data, expert, tensor
from scaleout.study.edits.recorded import Edited, Recorded
from scaleout.study.edits.sizes import batch, sequence
from scaleout.study.edits.slowdown import with_losses, without_losses

_HOST_BOUND = 0.1
"""Of the step, how much the GPU may wait for the host for the host to be left out of an edit."""


def edited(recording: Recorded, edits: Mapping[str, str], *, device: Device | None = None) -> Edited:
    """Carry out the edits of a recording, in the order of `EDITS`, then move it to another device.

    Raises
    ------
    ConfigError
        If an edit is unknown, cannot be read, or the recording does not have what it changes.
    """
    unknown = [key for key in edits if key not in EDITS]
    if unknown:
        raise ConfigError(f"--edit {unknown[0]}={edits[unknown[0]]}: no such edit; {nearest(unknown[0], EDITS)}")
    notes: list[str] = []
    program = recording.program
    if (edits or device is not None) and recording.host_bound < _HOST_BOUND:
        program = program.map_graphs(_without_host)
        notes.append(
            f"the GPU waited {recording.host_bound:.1%} of the time for the host, which is left out of what is edited: "
            f"if the GPU becomes faster than the host can launch, the step takes longer than this"
        )
    elif edits or device is not None:
        notes.append(
            f"the GPU waited {recording.host_bound:.1%} of the time for the host, which is kept as it was recorded: "
            f"recording slows it, and the job may be faster, and change otherwise, when nothing records it"
        )
    share = 0.0
    if edits or device is not None:
        program, share = without_losses(program)
    for key, edit in EDITS.items():
        if key in edits:
            program = edit(replace(recording, program=program), edits[key], notes)
    if device is not None:
        program = on_device(replace(recording, program=program), device, notes)
    if share:
        notes.append(f"kernels lose {share:.0%} of the time in which collectives run beside them, as those recorded do")
    return Edited(with_losses(program, share), notes)


def _without_host(graph: ExecutionGraph) -> ExecutionGraph:
    names = np.array(graph.names, object)
    host = graph.has_role(NodeRole.HOST) & (names == HOST)
    return graph.with_columns(duration_s=np.where(host, 0.0, graph.duration_s))


EDITS: dict[str, Callable[[Recorded, str, list[str]], Program]] = {
    "data": data,
    "tensor": tensor,
    "expert": expert,
    "layers": layers,
    "microbatches": microbatches,
    "recompute": recompute,
    "chunks": chunks,
    "batch": batch,
    "sequence": sequence,
    "bucket": bucket,
    "accumulate": accumulate,
}
"""What can be edited, in the order in which it is done."""

__all__ = ["EDITS", "Edited", "Recorded", "edited", "with_axes"]
