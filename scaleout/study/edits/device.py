"""A recorded job on another device: each kernel its recorded time times a modelled ratio of the two devices.

A kernel whose sizes are recorded takes ``t m'/m``, with m our model's time of it on the recorded device and m' that on
the other. Of others only bytes are known, and the model's time is that of a stream of as many; of those of which not
even bytes are known, it is that of a long stream. Copies from and to the host, collectives and the host itself take
their recorded times.

Symbols: t recorded time, m and m' modelled times (s). See docs/models/recordings.md.
"""

from collections.abc import Sequence

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.errors import ConfigError
from scaleout.program.calls import entire
from scaleout.program.graph import NONE, Bools, ExecutionGraph, Floats, NodeKind, NodeRole
from scaleout.program.operations import RECORDED, Kernel, TimeSource, custom
from scaleout.program.program import Program
from scaleout.study.edits.recorded import Recorded

_LONG = custom(dtype="fp32", flops=0, bytes=2**32)
"""A stream of so many bytes that only the bandwidth counts."""
_OVER_THE_BUS = ("Memcpy HtoD", "Memcpy DtoH")


def on_device(recording: Recorded, device: Device, notes: list[str]) -> Program:
    """Return the program as it would run on another device.

    `ConfigError` if the recorded device is none of the library, or another has no peak rate for a GEMM's type.
    """
    if recording.device is None:
        raise ConfigError(
            f"--device {device.name}: the device of the recording has no file, so that nothing tells how much faster "
            f"this one is; write one, or leave it out"
        )
    recorded_on = recording.device
    seconds = dict.fromkeys(("known", "streams", "unknown"), 0.0)

    def move(graph: ExecutionGraph) -> ExecutionGraph:
        ratios = _ratios(graph.kernels, recorded_on, device)
        ratio = np.append(ratios, _ratios((_LONG,), recorded_on, device))[graph.kernel]
        moves = (graph.kind == NodeKind.COMPUTE) & ~graph.has_role(NodeRole.HOST) & ~_over_the_bus(graph)
        streams = np.array([call.op.startswith(RECORDED) for call in graph.kernels] + [False])[graph.kernel]
        unknown = graph.kernel == NONE
        for name, mask in (("known", ~streams & ~unknown), ("streams", streams), ("unknown", unknown)):
            seconds[name] += float(graph.duration_s[moves & mask].sum())
        return graph.with_columns(
            duration_s=np.where(moves, graph.duration_s * ratio, graph.duration_s),
            time_source=np.where(moves, int(TimeSource.SCALED), graph.time_source),
        )

    program = recording.program.map_graphs(move)
    total = sum(seconds.values()) or 1.0
    notes.append(
        f"device: of the time of kernels on {recorded_on.name}, {seconds['known'] / total:.0%} is of GEMMs and "
        f"attention, scaled by their modelled times on {device.name}; {seconds['streams'] / total:.0%} is scaled by "
        f"bytes and {seconds['unknown'] / total:.0%}, of unknown sizes, by bandwidth; the host is as recorded"
    )
    if any((graph.kind != NodeKind.COMPUTE).any() for graph in program.graphs):
        notes.append("device: collectives take their recorded times; with --topology the other machine's network")
    return program


def _ratios(calls: Sequence[Kernel], old: Device, new: Device) -> Floats:
    """Return how many times as long each kernel takes on the new device."""
    if not calls:
        return np.zeros(0)
    known = [
        custom(dtype="fp32", flops=0, bytes=max(call.bytes, 1)) if call.op.startswith(RECORDED) else call
        for call in map(entire, calls)
    ]
    before_s, after_s = (kernel_times(device, known)[0] for device in (old, new))
    return np.asarray(after_s / before_s)


def _over_the_bus(graph: ExecutionGraph) -> Bools:
    return np.array([name.startswith(_OVER_THE_BUS) for name in graph.names], bool)
