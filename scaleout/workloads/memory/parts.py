"""What parts of a model hold on a rank: kept from their forward on, made and freed by their backward, persistent.

A part is the embedding, a layer of a kind, or the head; it is counted as its forward is written (`generate.profile`).
Backward of a stage begins with its last part, so what it holds most of is of one part, with what those behind it have
freed by then (`Held.beyond_bytes`; where `transient_memory` says that this is counted).
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from scaleout.workloads.config.layered import HEAD, Content, LayeredModel
from scaleout.workloads.generate.axes import Axes
from scaleout.workloads.generate.profile import StageProfile, part_key, profiles_of

Floats = npt.NDArray[np.float64]


SHARDED_FROM = {"optimizer_states": 1, "gradients": 2, "parameters": 3}
"""Level of ZeRO from which on a kind is sharded."""


@dataclass(frozen=True)
class Held:
    """What a part of a model holds on a rank."""

    kept_bytes: float = 0.0  # activations of one micro-batch, from its forward to the end of its backward
    recompute_bytes: float = 0.0  # what backward has recomputed when it holds most
    all_recompute_bytes: float = 0.0  # what it recomputes of all parts together
    parameters: tuple[int, int] = (0, 0)  # of the dense bucket, and of the experts'
    in_fp8: int = 0  # of all these, those that inference holds in fp8
    transient_bytes: float = 0.0  # what backward has made when it holds most, if that is counted
    freed_bytes: float = 0.0  # what of `kept_bytes` it has freed by then, likewise
    frees: bool = False  # whether both are counted
    weights: frozenset[tuple[int, int]] = frozenset()  # outputs and inputs of those with placeholders of gradients

    @classmethod
    def of(cls, profile: StageProfile, workload: LayeredModel, reduced_bytes: tuple[int, int]) -> "Held":
        """Take it from a profile, with the bytes of gradients of a parameter that are whole until they are reduced."""
        tape = profile.tape
        parameters = tape.parameters.get("dense", 0), tape.parameters.get("experts", 0)
        made = 0.0
        if workload.transient_memory:
            gradients = sum(size * count for size, count in zip(reduced_bytes, parameters, strict=True))
            made = profile.transient_bytes
            made = max(made, gradients) if profile.kind == HEAD else made + gradients  # the loss makes none
        return cls(
            tape.kept_bytes,
            tape.recompute_bytes,
            tape.all_recompute_bytes,
            parameters,
            sum(tape.in_fp8.values()),
            made,
            frees=workload.transient_memory,
            weights=frozenset(tape.weights) if workload.placeholder_gradients else frozenset(),
        )

    @property
    def beyond_bytes(self) -> float:
        """The most that backward holds beyond what is kept when it begins."""
        return self.recompute_bytes + self.transient_bytes - self.freed_bytes

    def __add__(self, other: "Held") -> "Held":
        freed = self.freed_bytes + other.kept_bytes * other.frees  # backward begins with the other
        most = max(other, replace(self, freed_bytes=freed), key=lambda each: each.beyond_bytes)
        return Held(
            self.kept_bytes + other.kept_bytes,
            most.recompute_bytes,
            self.all_recompute_bytes + other.all_recompute_bytes,
            (self.parameters[0] + other.parameters[0], self.parameters[1] + other.parameters[1]),
            self.in_fp8 + other.in_fp8,
            most.transient_bytes,
            most.freed_bytes,
            self.frees or other.frees,
            self.weights | other.weights,
        )

    def times(self, count: int) -> "Held":
        """Return what as many parts hold."""
        dense, experts = self.parameters
        return replace(
            self, kept_bytes=count * self.kept_bytes, all_recompute_bytes=count * self.all_recompute_bytes,
            parameters=(count * dense, count * experts), in_fp8=count * self.in_fp8,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Contained:
    """What a stage holds: its parts in order, each with how many of it follow one another, and their sum."""

    parts: tuple[tuple[Held, int], ...]
    total: Held

    @property
    def kept_bytes(self) -> Floats:
        """What each part keeps of one micro-batch, in order, shape (parts,)."""
        return np.repeat([held.kept_bytes for held, _ in self.parts], [count for _, count in self.parts])

    @functools.cached_property
    def units(self) -> "Units":
        """What of it persists through a step."""
        return tuple((held.parameters, held.weights, count) for held, count in self.parts)


Units = tuple[tuple[tuple[int, int], frozenset[tuple[int, int]], int], ...]
"""Parameters of each part of a stage and their placeholders, and how many parts that are alike follow one another."""


@dataclass(frozen=True)
class _Stage:
    """What decides what a stage holds; the workload is any that has this key."""

    key: tuple[object, ...]
    content: Content
    workload: LayeredModel = field(compare=False)


def contained_in(workload: LayeredModel, contents: Sequence[Content]) -> dict[Content, Contained]:
    """Return what stages hold: the embedding, layers of each kind, and the head, as far as each has them."""
    flags = workload.transient_memory, workload.placeholder_gradients, _reduced_bytes(workload)
    key = (*part_key(workload), *flags)
    return {content: _contained(_Stage(key, content, workload)) for content in dict.fromkeys(contents)}


@functools.lru_cache(maxsize=65536)
def _contained(stage: _Stage) -> Contained:
    profile_of, reduced = profiles_of(stage.workload, backward=True), _reduced_bytes(stage.workload)
    parts = tuple((Held.of(profile_of(kind), stage.workload, reduced), count) for kind, count in stage.content)
    return Contained(parts, sum((held.times(count) for held, count in parts), Held()))


def _reduced_bytes(workload: LayeredModel) -> tuple[int, int]:
    """Return what the gradient of a parameter takes before it is sharded, of the dense bucket and of the experts'.

    Nothing where it is not sharded, or where buffers of a whole step stand for it: without transient memory.
    """
    if not (workload.transient_memory and workload.mode == "training" and workload.zero >= SHARDED_FROM["gradients"]):
        return 0, 0
    axes, size = Axes(workload), workload.gradient_bytes
    return size * (axes.dense().shards > 1), size * (axes.experts().shards > 1)
