"""Host execution traces without device traces to timelines: what operators launch, in order, with no times.

All threads of a rank launch into one stream, in the order in which operators began. A collective follows what was
launched before it, and the one before it of its group. What was launched after it waits for it once the host called
`wait` for it, or once it takes a tensor that the collective wrote. Kernels get their time from the model of kernel
times, collectives from the network; copies between host and GPU take none, and of the host's own time nothing is known.
"""

import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from scaleout.errors import TraceError
from scaleout.interop.pytorch.communication import COMMUNICATES, kind_of
from scaleout.interop.pytorch.host import HostTrace, attributes_of, parts_of
from scaleout.interop.pytorch.host_kernels import IDLE, Called, NoShapeError, Tensor, kernels_of, tensors_in
from scaleout.interop.pytorch.kineto import NONE, Recording, Work, WorkKind
from scaleout.interop.pytorch.timeline import Moment, Timeline
from scaleout.program.operations import Kernel

_STREAM = (0, 0)
_OWN = ("aten::", "c10d::", "_c10d_functional::", "torch")
"""What names of PyTorch's own operators begin with; what they launch they do by others that are listed, or do all."""
_UNKNOWN = 5
"""Names of unknown operators that a message lists."""


@dataclass
class Launched:
    """What the host traces of a job launch."""

    timelines: dict[int, Timeline]
    unknown: Counter[str] = field(default_factory=Counter)  # operators that launch what is not known
    copies: int = 0  # between host and GPU


def launched_by(traces: Mapping[int, HostTrace], *, allow_partial: bool) -> Launched:
    """Return what the host traces of a job's ranks launch.

    Parameters
    ----------
    traces : mapping of int to HostTrace
        By rank.
    allow_partial : bool
        Leave out operators that launch what is not known.

    Raises
    ------
    TraceError
        If there are such operators, or a rank launches nothing.
    """
    found = Launched({})
    for rank, trace in traces.items():
        found.timelines[rank] = _Order(rank, trace, found).timeline()
    unknown = sum(found.unknown.values())
    first = next(iter(traces.values())).path
    if unknown and not allow_partial:
        named = ", ".join(f"{name} ({count:,})" for name, count in found.unknown.most_common(_UNKNOWN))
        raise TraceError(
            f"{first}: {unknown:,} operators launch what no kernel time is known of, such as {named}; record with "
            f"torch.profiler beside it, or leave them out with --allow-partial"
        )
    idle = [rank for rank, timeline in found.timelines.items() if not timeline.moments]
    if idle:
        raise TraceError(
            f"{traces[idle[0]].path}: its operators launch nothing on a GPU; record with torch.profiler beside it"
        )
    return found


class _Order:
    """Puts what a rank launches in order."""

    def __init__(self, rank: int, trace: HostTrace, found: Launched) -> None:
        self._trace, self._found = trace, found
        self._recording = Recording(
            trace.path, rank, trace.world_size, "", trace.groups, [], [], trace.operators, [], {}, 0.0
        )
        self._known: list[int] = []  # operators of which is known what they launch
        self._foreign: list[int] = []  # operators of which no kernels are known
        self._moments: list[Moment] = []
        self._kernels: dict[int, Kernel] = {}
        self._last = NONE  # moment of the last kernel
        self._last_of: dict[str, int] = {}  # group to the moment of its last collective
        self._of_sequence: dict[int, int] = {}  # sequence number of a collective to its moment
        self._writes: dict[int, int] = {}  # storage to the moment of the collective that writes it
        self._awaited: set[int] = set()  # moments for which the next kernel waits

    def timeline(self) -> Timeline:
        """Return what the rank launches, without times."""
        operators = self._trace.operators
        done = [False] * len(operators)  # what an operator above launches itself, or passes on
        for number, operator in enumerate(operators):
            done[number] = operator.parent != NONE and done[operator.parent]
            if operator.name == COMMUNICATES:
                self._communicate(number)
                done[number] = True
            elif not done[number]:
                done[number] = self._launch(number)
            if done[number]:
                self._known.append(number)
        self._count_unknown()
        return Timeline(self._recording, (0,), 0.0, [0.0], self._moments, modelled=self._kernels)

    def _launch(self, number: int) -> bool:
        """Add the kernels of an operator; return whether it launches them itself."""
        name = self._trace.operators[number].name.rpartition("::")[2]
        if name in IDLE:
            return False
        node = self._trace.nodes[number]
        try:
            inputs, outputs = _tensors(node, "inputs"), _tensors(node, "outputs")
        except NoShapeError:
            self._foreign.append(number)
            return False
        devices = {tensor.device.partition(":")[0] for tensor in (*inputs, *outputs)}
        if "cuda" not in devices:
            return False
        if name == "copy_" and "cpu" in devices:
            self._found.copies += 1
            return True
        kernels = kernels_of(Called(name, inputs, outputs, _concrete(node)))
        if kernels is None:
            self._foreign.append(number)
            return False
        waits = {self._writes[tensor.storage] for tensor in inputs if tensor.storage in self._writes}
        for kernel in kernels:
            follows = {*waits, *self._awaited, *([self._last] if self._last != NONE else [])}
            self._awaited.clear()
            self._last = self._add(number, name, follows)
            self._kernels[self._moments[self._last].work] = kernel
        return True

    def _count_unknown(self) -> None:
        """Count operators that launch what is not known: of PyTorch's own those that call none that launches."""
        operators = self._trace.operators
        launches = [False] * len(operators)  # itself or by what it calls
        for known in self._known:
            number = known
            while number != NONE and not launches[number]:
                launches[number] = True
                number = operators[number].parent
        for number in self._foreign:
            facts, name = attributes_of(self._trace.nodes[number]), operators[number].name
            if not facts.get("op_schema") and not facts.get("kernel_backend"):
                continue  # a mark of the profiler's
            if not launches[number] or not name.startswith(_OWN):
                self._found.unknown[name] += 1

    def _communicate(self, number: int) -> None:
        """Add a collective, or wait for one."""
        node, args = self._trace.nodes[number], self._trace.operators[number].args
        name = str(args.get("Collective name", ""))
        sequence = _sequence(node)
        if kind_of(name) is None:
            if sequence in self._of_sequence:
                self._awaited.add(self._of_sequence[sequence])
            return
        if args.get("Group size") == 1:
            return
        group = str(args.get("Process Group Name", ""))
        follows = {each for each in (self._last, self._last_of.get(group, NONE)) if each != NONE}
        place = self._add(number, f"nccl:{name}", follows)
        self._last_of[group] = self._of_sequence[sequence] = place
        with suppress(NoShapeError):
            self._writes |= {tensor.storage: place for tensor in _tensors(node, "outputs")}

    def _add(self, operator: int, name: str, follows: set[int]) -> int:
        """Add a moment; its time only orders it among the others."""
        at_us = len(self._moments) * 1e-6
        work = Work(name, WorkKind.KERNEL, _STREAM, at_us, at_us, NONE, {}, operator=operator, step=0)
        self._recording.works.append(work)
        self._moments.append(Moment(len(self._moments), at_us, at_us, sorted(follows), float("nan")))
        return len(self._moments) - 1


def _tensors(node: Mapping[str, Any], side: str) -> list[Tensor]:
    values, shapes, kinds = parts_of(node, side)
    return [
        tensor
        for value, shape, kind in zip(values, shapes, kinds, strict=False)
        for tensor in tensors_in(value, shape, kind)
    ]


def _sequence(node: Mapping[str, Any]) -> int:
    """Return the number by which a collective and the wait for it know each other."""
    values, _, kinds = parts_of(node, "inputs")
    for value, kind in zip(values, kinds, strict=False):
        if kind in ("Int", "Tuple[Int,Bool]"):
            first = value[0] if isinstance(value, list) and value else value
            return first if type(first) is int else NONE
    return NONE


def _concrete(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an operator is given, by the names of its schema."""
    schema = str(attributes_of(node).get("op_schema", ""))
    inside = re.sub(r"\([^()]*\)", "", schema.partition("(")[2].rpartition(") ->")[0])
    names = [part.partition("=")[0].rpartition(" ")[2] for part in inside.split(", ") if part != "*"]
    return dict(zip(names, parts_of(node, "inputs")[0], strict=False))
