"""Bytes that a device's memory reads and writes for a product and the collectives behind it, by kind."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Traffic:
    """Bytes of one rank's memory.

    Attributes
    ----------
    product_reads, product_writes : float
        Of the matrix product; its writes into other ranks' memory are theirs.
    scatter_reads, scatter_writes : float
        Of the reduce-scatter (or all-to-all); its writes, updates included, are those that arrive.
    gather_reads, gather_writes : float
        Of the all-gather.
    """

    product_reads: float = 0.0
    product_writes: float = 0.0
    scatter_reads: float = 0.0
    scatter_writes: float = 0.0
    gather_reads: float = 0.0
    gather_writes: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return float(sum(asdict(self).values()))

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(**{name: size + getattr(other, name) for name, size in asdict(self).items()})
