"""What-ifs of a recorded job: its batch, sequence, layers, steps, ranks or device changed, kernel by kernel.

A kernel whose sizes are recorded takes its recorded time, times what our model says of the new size over the old one;
one of which only bytes are known takes as much longer as it moves more, beyond the time of the shortest kernels. At the
power limit matrix kernels follow the clock that the step's power leaves them. Layers
and micro-batches are found as what repeats in the order of launches, and are left out or run again. The host works as
recorded, but for what recording took of its time.

See docs/models/recordings.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from scaleout.cluster.device.spec import Device
from scaleout.config.reading import nearest
from scaleout.errors import ConfigError
from scaleout.program.program import Program
from scaleout.study.edits.clocks import at_own_clock
from scaleout.study.edits.communication import bucket, chunks
from scaleout.study.edits.device import on_device
from scaleout.study.edits.groups import edit_to, with_axes
from scaleout.study.edits.layers import layers, recompute
from scaleout.study.edits.microbatches import accumulate, microbatches
from scaleout.study.edits.ranks import data, expert, tensor
from scaleout.study.edits.recorded import Edited, Recorded
from scaleout.study.edits.recorder import told_of_host, with_recorder, without_recorder
from scaleout.study.edits.sizes import batch, sequence
from scaleout.study.edits.slowdown import with_losses, without_losses


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
    if not edits and device is None:
        return Edited(recording.program, [])
    notes: list[str] = []
    program, slowed = without_recorder(recording.program)
    notes.append(told_of_host(recording, slowed))
    program, share = without_losses(program)
    recorded = program
    for key, edit in EDITS.items():
        if key in edits:
            program = edit(replace(recording, program=program), edits[key], notes)
    if device is not None:
        program = on_device(replace(recording, program=program), device, notes)
    else:
        program, clocks = at_own_clock(program, recording.device, recorded, lambda each: with_losses(each, share))
        notes.extend([clocks] if clocks else [])
    if share:
        notes.append(f"kernels lose {share:.0%} of the time in which collectives run beside them, as those recorded do")
    return Edited(with_recorder(with_losses(program, share), slowed), notes)


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

__all__ = ["EDITS", "Edited", "Recorded", "edit_to", "edited", "with_axes"]
