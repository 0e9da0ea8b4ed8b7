"""Kernels of other sizes: another batch, or another length of its sequences."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from scaleout.cluster.device.kernel_times import kernel_times
from scaleout.cluster.device.spec import Device
from scaleout.config.units import counted
from scaleout.errors import ConfigError
from scaleout.program.calls import as_much_of, entire
from scaleout.program.graph import NONE, ExecutionGraph, Floats, NodeKind, NodeRole
from scaleout.program.operations import RECORDED, Kernel, TimeSource, kernel
from scaleout.program.program import Program
from scaleout.program.recorded import UNTOLD, recorded, recorded_table_gradient
from scaleout.study.edits.groups import activation_sums
from scaleout.study.edits.recorded import Change, Recorded, parse_change, shortest

TOLD = 1e-3
"""Of the time of kernels, how much must stay as it was for that to be told."""


def _scaled(recording: Recorded, batch: Fraction, sequence: Fraction, notes: list[str]) -> Program:
    """Return the program with other numbers of sequences and of tokens in one."""
    short_s, start_s = shortest(recording.program, recording.device)

    def scale(graph: ExecutionGraph) -> ExecutionGraph:
        calls = [resized(call, batch, sequence) for call in graph.kernels]
        ratios = ratios_of(recording.device, graph.kernels, calls)
        return with_kernels(graph, calls, ratios, short_s, start_s, waits=float(batch * sequence))

    notes += [*_unscaled(recording.program), *_unscaled_sums(recording.program)]
    return recording.program.map_graphs(scale)


def _unscaled(program: Program) -> list[str]:
    """Say which kernels of forward and backward stay as recorded, if they take a share of the time worth telling."""
    counts, seconds, total_s = [0, 0], [0.0, 0.0], 0.0
    for graph in program.graphs:
        kernels = (graph.kind == NodeKind.COMPUTE) & ~graph.has_role(NodeRole.OPTIMIZER | NodeRole.HOST)
        grows = [
            bool(call.tokens or call.sizes.get("token_bytes") or "lookups" in call.sizes) for call in graph.kernels
        ]
        stays = kernels & (graph.kernel != NONE) & ~np.array([*grows, True])[graph.kernel]
        total_s += float(graph.duration_s[kernels].sum())
        for place, chosen in enumerate((kernels & (graph.kernel == NONE), stays)):
            counts[place] += int(chosen.sum())
            seconds[place] += float(graph.duration_s[chosen].sum())
    why = ("no recorded sizes, as without record_shapes", "tensors in which no size is known to count tokens")
    return [
        f"{counted(count, 'kernel')} with {reason}, {lasts / total_s:.1%} of the time of forward and backward, "
        f"{'stays' if count == 1 else 'stay'} as recorded"
        for count, lasts, reason in zip(counts, seconds, why, strict=True)
        if lasts > TOLD * total_s
    ]


def _unscaled_sums(program: Program) -> list[str]:
    """Say which sums stay as recorded though their groups are called tensor-parallel."""
    count = 0
    for graph in program.graphs:
        grows = np.array([bool(call.sizes.get("token_bytes")) for call in graph.kernels] + [False])[graph.kernel]
        count += int((activation_sums(graph) & ~grows).sum())
    if not count:
        return []
    return [
        f"{counted(count, 'reduction')}, called tensor-parallel as they run before backward, stay as recorded: neither "
        f"their shapes nor a product as large tell that they are of activations"
    ]


def resized(call: Kernel, batch: Fraction, sequence: Fraction) -> Kernel:
    """Return a kernel for another number of sequences, and of tokens in one."""
    return as_much_of(_resized(call, batch, sequence), call)


def _resized(call: Kernel, batch: Fraction, sequence: Fraction) -> Kernel:
    tokens = batch * sequence
    if call.op.startswith(RECORDED):
        sizes, name = call.sizes, call.op.removeprefix(RECORDED)
        if "lookups" in sizes:
            lookups = _whole(sizes["lookups"] * tokens)
            table = {"rows": sizes["rows"], "width": sizes["width"]}
            return recorded_table_gradient(name, dtype=call.dtype, lookups=lookups, **table)
        scaled = round(sizes["token_bytes"] * tokens)
        return recorded(name, dtype=call.dtype, token_bytes=scaled, other_bytes=sizes["other_bytes"])
    if not call.tokens:
        return entire(call)
    shape = dict(call.shape)
    if call.tokens == "batch*seq":
        shape |= {"batch": _whole(shape["batch"] * batch), "seq": _whole(shape["seq"] * sequence)}
    else:
        shape[call.tokens] = _whole(shape[call.tokens] * tokens)
    return kernel(call.op, dtype=call.dtype, **shape).counting(call.tokens)


def _whole(size: Fraction) -> int:
    return max(1, round(size))


def ratios_of(device: Device | None, old: Sequence[Kernel], new: Sequence[Kernel]) -> Floats:
    """Return how many times as long each kernel takes: as modelled on the device, or as its FLOPs and bytes say.

    Kernels of one operator take as many times as long each: what its sizes say of all of it. Both times are at full
    clock: what the power limit adds is the step's, so the same for a kernel of either size (`clocks`).
    """
    ratios, old, new = np.ones(len(old)), [*map(entire, old)], [*map(entire, new)]
    changed = [index for index, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]
    modelled = [index for index in changed if not old[index].op.startswith(RECORDED)]
    for index in changed:
        one, other = old[index], new[index]
        ratios[index] = other.flops / one.flops if one.flops else other.bytes / max(one.bytes, 1)
    if device is not None and modelled:
        before_s, _ = kernel_times(device, [old[index] for index in modelled], full_clock=True)
        after_s, _ = kernel_times(device, [new[index] for index in modelled], full_clock=True)
        ratios[modelled] = after_s / before_s
    return ratios


def with_kernels(
    graph: ExecutionGraph, calls: Sequence[Kernel], ratios: Floats, short_s: float, start_s: float, *, waits: float
) -> ExecutionGraph:
    """Return the graph with other kernels; untold waits last as much longer as `waits` says."""
    known = graph.kernel != NONE
    ratio = np.where(known, np.append(ratios, 1.0)[graph.kernel], 1.0)
    by_bytes = np.array([call.op.startswith(RECORDED) for call in calls] + [False])[graph.kernel] & known
    fixed_s = np.where(graph.kind == NodeKind.COMPUTE, short_s, start_s)
    fixed_s = np.where(by_bytes, np.minimum(fixed_s, graph.duration_s), 0.0)
    duration_s = np.where(ratio == 1.0, graph.duration_s, fixed_s + (graph.duration_s - fixed_s) * ratio)
    untold = np.array(graph.names, object) == UNTOLD
    duration_s = np.where(untold, duration_s * waits, duration_s)
    columns: dict[str, Any] = {
        "duration_s": duration_s,
        "time_source": np.where((ratio != 1.0) | (untold & (waits != 1.0)), int(TimeSource.SCALED), graph.time_source),
        "kernels": tuple(calls),
    }
    for name in ("flops", "bytes"):
        values = np.array([getattr(call, name) for call in calls] + [0], np.int64)[graph.kernel]
        columns[name] = np.where(known, values, getattr(graph, name))
    return graph.with_columns(**columns)


def with_changes(
    graph: ExecutionGraph, device: Device | None, changes: Mapping[int, Kernel], short_s: float, start_s: float
) -> ExecutionGraph:
    """Return the graph with other kernels at some nodes, by node; each takes as much longer as it does more."""
    pairs: dict[tuple[int, Kernel], int] = {}
    index = graph.kernel.copy()
    for node in np.flatnonzero(graph.kernel != NONE).tolist():
        old = int(graph.kernel[node])
        index[node] = pairs.setdefault((old, changes.get(node, graph.kernels[old])), len(pairs))
    olds = tuple(graph.kernels[old] for old, _ in pairs)
    news = [new for _, new in pairs]
    split = graph.with_columns(kernel=index, kernels=olds)
    return with_kernels(split, news, ratios_of(device, olds, news), short_s, start_s, waits=1.0)


def batch(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Scale what counts sequences."""
    change = parse_change(text, where="--edit batch")
    attended = _attended(recording.program, "batch")
    _check_old(change, attended, notes, where="--edit batch", what="sequences")
    if attended and not any((count * change.factor).denominator == 1 for count in attended):
        raise ConfigError(
            f"--edit batch={text}: {_some(attended)} sequences were recorded in a kernel of attention, and "
            f"{change.factor} of that is no whole number; choose another"
        )
    return _scaled(recording, change.factor, Fraction(1), notes)


def sequence(recording: Recorded, text: str, notes: list[str]) -> Program:
    """Scale what counts the tokens of a sequence, attention by their square."""
    change = parse_change(text, where="--edit sequence")
    attended = _attended(recording.program, "seq")
    if not attended:
        notes.append("sequence: no kernel of attention was recorded; all that counts tokens is scaled, as by batch")
    _check_old(change, attended, notes, where="--edit sequence", what="tokens of a sequence")
    return _scaled(recording, Fraction(1), change.factor, notes)


def _attended(program: Program, size: str) -> list[int]:
    """Return the different values of one size of attention, ``batch`` or ``seq``."""
    calls = {call for graph in program.graphs for call in graph.kernels if call.tokens == "batch*seq"}
    return sorted({dict(call.shape)[size] for call in calls})


def _check_old(change: Change, counts: Sequence[int], notes: list[str], *, where: str, what: str) -> None:
    """Refuse an old number that is neither a multiple nor a part of any that was recorded (`ConfigError`).

    A multiple: of all ranks or micro-batches. A part: images that attend in windows, each a sequence of its own. The
    recording does not tell whether it is one, so a note says what was taken for what.
    """
    old = change.old
    if old is None or old in counts:
        return
    told = f"{where}={old}->{change.new}"
    if not counts:
        notes.append(f"{told}: no kernel of attention tells how many {what} there were; {old} is taken on trust")
        return
    if not any(old % count == 0 or count % old == 0 for count in counts):
        raise ConfigError(
            f"{told}: {_some(counts)} {what} were recorded in a kernel of attention, which {old} does not fit; give "
            f"what the job had, on a rank or in all, or a factor, such as 0.5x"
        )
    notes.append(
        f"{told}: {_some(counts)} {what} were recorded in a kernel of attention, of which {old} is taken for the sum "
        f"or a part; they become {_some([round(float(count * change.factor), 3) for count in counts])}"
    )


def _some(counts: Sequence[float]) -> str:
    return ", ".join(f"{count:g}" for count in counts[:3]) + (", ..." if len(counts) > 3 else "")
