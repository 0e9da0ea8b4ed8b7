"""What work draws: a limit, what is drawn in any case, energies, and how power falls with the clock.

Source of each number: the device file, beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from pydantic import Field, model_validator

from scaleout.config.units import Joules, Seconds, Watts
from scaleout.config.validated import Config, Sourced
from scaleout.program.operations import OPERATIONS, Family, Kernel

_DTYPES = ("bf16", "fp16")
"""Dtypes whose FLOPs have the energies of the file; those of others are not known."""

_FLOPS_OF: Mapping[Family, str] = {Family.GEMM: "gemm", Family.CONVOLUTION: "gemm", Family.ATTENTION: "attention"}


class EnergyFile(Config):
    """Energies of a FLOP at full clock, by class of kernels."""

    gemm: Sourced[Joules]
    attention: Sourced[Joules]


class SentFile(Config):
    """Energies of a byte that a rank sends, by kind of collective."""

    all_reduce: Sourced[Joules]
    all_gather: Sourced[Joules]
    reduce_scatter: Sourced[Joules]
    all_to_all: Sourced[Joules]


class PowerFile(Config):
    """What a device file says of power."""

    limit: Sourced[Watts]
    idle: Sourced[Watts]
    other: Sourced[Watts] = Field(description="what kernels that wait for memory draw beyond idle")
    exponent: Sourced[float] = Field(description="power of work falls with so many powers of its slowdown")
    memory: Sourced[Seconds] = Field(description="over how long the governor takes the mean")
    energy: EnergyFile
    sent: SentFile

    @model_validator(mode="after")
    def _leaves_room(self) -> Self:
        if self.limit.value <= self.idle.value:
            raise ValueError(f"the limit, {self.limit.value} W, must be above idle, {self.idle.value} W")
        if self.exponent.value <= 1:
            raise ValueError("the exponent must be above one: slower work takes less energy")
        if self.memory.value <= 0:
            raise ValueError(f"memory, {self.memory.value} s, must be above zero")
        return self


@dataclass(frozen=True)
class Power:
    """What a device may draw, and what its work does.

    Attributes
    ----------
    limit_w, idle_w, other_w : float
        The limit, what is drawn in any case, and what is beyond that by kernels whose FLOPs have no energy.
    exponent : float
        The power of work, beyond idle, falls with so many powers of its slowdown.
    memory_s : float
        Over how long the governor takes the mean.
    joules_per_flop : mapping
        `gemm` and `attention`, in two-byte types, with the bytes that come with it.
    joules_per_sent_byte : mapping
        Kind of collective to that of a byte that a rank must send; nothing of kinds that are left out.
    """

    limit_w: float
    idle_w: float
    other_w: float
    exponent: float
    memory_s: float
    joules_per_flop: Mapping[str, float] = field(hash=False)
    joules_per_sent_byte: Mapping[str, float] = field(hash=False)

    def joules(self, kernel: Kernel, seconds: float) -> float:
        """Return the energy at full clock, beyond idle, of one call that takes so long alone."""
        operation = OPERATIONS.get(kernel.op)
        kind = _FLOPS_OF.get(operation.family) if operation and kernel.dtype in _DTYPES else None
        return self.joules_per_flop[kind] * kernel.flops if kind else self.other_w * seconds

    def slowdown(self, joules: float, seconds: float) -> float:
        """How many times as slow the clock makes work of an energy at full clock that takes so long at the limit.

        With a slowdown s the power of work is ``s**-exponent`` of that at full clock, and its energy s times that; over
        its time that is what the limit has room for: ``E s**(1 - exponent) = room T``. 1 where there is room for more.
        """
        room_w = self.limit_w - self.idle_w
        return float(max(1.0, (joules / (room_w * seconds)) ** (1 / (self.exponent - 1))))


def power(given: PowerFile) -> Power:
    """Return what a device file says of power."""
    energy, sent = given.energy, given.sent
    return Power(
        given.limit.value,
        given.idle.value,
        given.other.value,
        given.exponent.value,
        given.memory.value,
        {"gemm": energy.gemm.value, "attention": energy.attention.value},
        {kind: number.value for kind, number in sent},
    )
