"""Along which dimensions an operation may be cut: what each of its sizes is to it.

Along another dimension (OD) parts are independent; along a contraction dimension (CD) they are sums that would have to
be added up; along a none-split dimension (ND) every part needs all others. Source: Centauri, Sec. 3.1.3, Table 3.
"""

from enum import Enum
from itertools import pairwise

from scaleout.errors import ConfigError
from scaleout.program.operations import OPERATIONS, Family

PRODUCTS = ("gemm", "gemm_fp8", "gemm_fp8_rowwise")
"""Products that are cut."""


GATED = "swiglu"
"""How operations begin whose columns belong together in pairs: a gate and what it lets through."""


class DimensionType(Enum):
    """What a dimension is to an operation."""

    OTHER = "OD"
    CONTRACTION = "CD"
    NONE_SPLIT = "ND"


_WHY = {
    DimensionType.CONTRACTION: "a contraction dimension (CD), along which parts would have to be added up",
    DimensionType.NONE_SPLIT: "a none-split dimension (ND), along which every part needs all others",
}


def types_of(op: str) -> dict[str, DimensionType]:
    """Return the type of each dimension that an operation may have been asked to be cut along; none if not known."""
    parameters = OPERATIONS[op].parameters if op in OPERATIONS else ()
    if op in PRODUCTS:
        return {"M": DimensionType.OTHER, "N": DimensionType.OTHER, "K": DimensionType.CONTRACTION}
    if op in OPERATIONS and op.startswith(GATED):
        return {**dict.fromkeys(parameters, DimensionType.OTHER), "columns": DimensionType.NONE_SPLIT}
    if op in OPERATIONS and OPERATIONS[op].family is Family.ELEMENTWISE:
        return dict.fromkeys(parameters, DimensionType.OTHER)
    if op in OPERATIONS and OPERATIONS[op].family is Family.ROWS and len(parameters) > 1:
        return {parameters[0]: DimensionType.OTHER, **dict.fromkeys(parameters[1:], DimensionType.NONE_SPLIT)}
    return {}


def check_cut(op: str, dimension: str) -> None:
    """Refuse a cut that would change what an operation computes.

    Raises
    ------
    ConfigError
        If the operation has no such dimension, or it may not be split; the message names its type.
    """
    types = types_of(op)
    may = [name for name, kind in types.items() if kind is DimensionType.OTHER]
    advice = f"cut along {' or '.join(may)}" if may else "leave it whole"
    if dimension not in types:
        raise ConfigError(f"{op} has no dimension {dimension!r} that it can be cut along; {advice}")
    if types[dimension] is not DimensionType.OTHER:
        raise ConfigError(f"{op} cannot be cut along {dimension}, {_WHY[types[dimension]]}; {advice}")


def shared_dimensions(chain: tuple[str, ...]) -> tuple[str, ...]:
    """Return along which dimensions of the data that pass through a chain of operations all of them may be cut.

    A product contracts the columns of its input, so behind another operation only rows are left.

    >>> shared_dimensions(("gemm", "gelu_fwd")), shared_dimensions(("gemm", "softmax_fwd"))
    (('rows', 'columns'), ('rows',))
    >>> shared_dimensions(("gemm", "gelu_fwd", "gemm"))
    ('rows',)
    """
    if any(not types_of(op) for op in chain):
        return ()
    contracts = any(after in PRODUCTS for _, after in pairwise(chain))
    couples = any(DimensionType.NONE_SPLIT in types_of(op).values() for op in chain)
    return ("rows",) if contracts or couples else ("rows", "columns")
