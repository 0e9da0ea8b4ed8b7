"""Words of a program to text of a trace and back: attributes of our own, collectives, kernels, group families.

Attributes of our own carry what Chakra has no field for, such as exact times, kernels and phases; ASTRA-sim skips them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from scaleout.cluster.device.kernel_times import source_names
from scaleout.config.documents import whole
from scaleout.errors import TraceError
from scaleout.interop.chakra.tables import CollectiveCommType
from scaleout.program.calls import entire
from scaleout.program.graph import COLLECTIVES, NodeRole
from scaleout.program.operations import CUSTOM, RECORDED, Kernel, custom, kernel

DURATION = "scaleout_duration_s"
TIME_SOURCE = "scaleout_time_source"
KERNEL = "scaleout_kernel"
PHASE = "scaleout_phase"
PRIORITY = "scaleout_priority"
MICROBATCH = "scaleout_microbatch"
STAGE = "scaleout_stage"
ROLE = "scaleout_role"
LAYER = "scaleout_layer"
GROUP = "scaleout_group"
STREAM = "stream"
GROUPS = "scaleout_groups"

OWN_KINDS: Mapping[str, str] = MappingProxyType(
    {
        DURATION: "double_val",  # exact seconds, where duration_micros is whole microseconds
        TIME_SOURCE: "string_val",  # one of `source_names`
        KERNEL: "string_val",  # operation, dtype and sizes: "gemm bf16 M=1024 N=4096 K=512"
        PHASE: "string_val",  # absent for the phase ""
        PRIORITY: "int64_val",  # of a kernel, if not 0; communication has comm_priority
        MICROBATCH: "int64_val",  # of a node in a pipeline, as is the stage
        STAGE: "int64_val",
        ROLE: "string_val",  # names of `NodeRole` in lower case, if any: "backward weight_gradient"
        LAYER: "sint64_val",  # of a node in a layer; `HEAD` is below 0, an int64 longer than ASTRA-sim's feeder reads
        GROUP: "int64_val",  # which of `GROUPS` a collective spans
        GROUPS: "string_list",  # in the metadata: the program's families of groups, see `StatedFamily`
    }
)
"""Attribute of our own to its kind."""

COMM_TYPES: Mapping[str, CollectiveCommType] = MappingProxyType(
    {kind: CollectiveCommType[kind.upper()] for kind in COLLECTIVES}
)
"""Kind of collective to the value of `comm_type`; Chakra's REDUCE_SCATTER_BLOCK has none."""

WORLD = "0"
"""The `pg_name` of all ranks, as is an empty or absent one."""


def parse_time_source(text: str) -> int:
    """Read where a time comes from, which is written by its name in results."""
    known = {name: number for number, name in source_names().items()}
    if text not in known:
        raise TraceError(f"{TIME_SOURCE} is {text!r}; use one of {', '.join(known)}")
    return known[text]


@lru_cache
def role_text(role: int) -> str:
    """Write a node's role.

    >>> role_text(NodeRole.BACKWARD | NodeRole.WEIGHT_GRADIENT)
    'backward weight_gradient'
    """
    return " ".join(flag.name.lower() for flag in NodeRole if flag & role and flag.name)


@lru_cache
def parse_role(text: str) -> int:
    """Read back what `role_text` wrote."""
    known = {flag.name.lower(): int(flag) for flag in NodeRole if flag.name}
    unknown = [word for word in text.split() if word not in known]
    if unknown:
        raise TraceError(f"{ROLE} holds {unknown[0]!r}; use words of {', '.join(known)}")
    return sum({known[word] for word in text.split()})


def kernel_text(call: Kernel) -> str:
    """Write a kernel's operation, dtype and sizes.

    >>> kernel_text(kernel("gemm", dtype="bf16", M=1024, N=4096, K=512))
    'gemm bf16 M=1024 N=4096 K=512'
    """
    tokens = [f"{_TOKENS}{call.tokens}"] if call.tokens else []
    return " ".join([call.op, call.dtype, *(f"{name}={size}" for name, size in call.shape), *tokens])


def parse_kernel(text: str, *, flops: int, size_bytes: int) -> Kernel:
    """Read back what `kernel_text` wrote; the counts are those of the trace, in whatever way its writer counted."""
    text, _, tokens = text.partition(f" {_TOKENS}")
    op, _, rest = text.partition(" ")
    dtype, *sizes = rest.split(" ")
    if op == CUSTOM:
        return custom(dtype=dtype, flops=flops, bytes=size_bytes)
    pairs = [size.partition("=") for size in sizes]
    numbers = {name: whole(text) for name, _, text in pairs if name.isidentifier() and name not in ("op", "dtype")}
    shape = {name: number for name, number in numbers.items() if number is not None}
    if len(shape) < len(pairs):
        raise TraceError(f"{KERNEL} is {text!r}; write it as operation, dtype and sizes, like 'gemm bf16 M=8 N=8 K=8'")
    if op.startswith(RECORDED):
        return entire(Kernel(op, dtype, tuple(shape.items()), 0, 0))
    call = kernel(op, dtype=dtype, **shape)
    return replace(call, flops=flops, bytes=size_bytes, tokens=tokens)


_TOKENS = "counts_tokens="


_AXIS = "axis="


@dataclass(frozen=True)
class StatedFamily:
    """A family of groups as the metadata states it: its groups have consecutive keys in the group file."""

    name: str
    first_key: int  # key of the first group; 0 for the family whose one group is all ranks, which needs no key
    num_groups: int
    axis: str = ""  # its `GroupFamily.axis`; empty for the name

    def text(self) -> str:
        """Write the family, and its axis where that is not the name.

        >>> StatedFamily("tensor", 1, 4).text()
        'tensor 1 4'
        >>> StatedFamily("expert_data", 5, 4, "data").text()
        'expert_data 5 4 axis=data'
        """
        axis = "" if self.axis in ("", self.name) else f" {_AXIS}{self.axis}"
        return f"{self.name} {self.first_key} {self.num_groups}{axis}"

    @classmethod
    def parse(cls, text: str) -> "StatedFamily":
        """Read back what `text` wrote."""
        stated, _, axis = text.partition(f" {_AXIS}")
        name, *ends = stated.rsplit(" ", 2)
        numbers = [number for end in ends if (number := whole(end)) is not None]
        if len(numbers) != 2:
            raise TraceError(f"{GROUPS} holds {text!r}; write a name, the first key and a count, like 'tensor 1 4'")
        return cls(name, numbers[0], numbers[1], axis)

    def key(self, index: int) -> str:
        """Return the key of a group of the family, as `pg_name` and the group file write it."""
        return str(self.first_key + index)
