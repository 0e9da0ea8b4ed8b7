"""How a figure of a paper is simulated, and what its claims come to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """Claims that one simulation answers.

    Attributes
    ----------
    ids : tuple of str
        The claims, as `published.csv` names them.
    simulate : callable
        Returns each claim's value, in the claim's own unit: 21 for 21 percent; 1 for a trend that holds, else 0.
    notes : mapping
        Claim to what a reader must know: an assumption, or why it is missed.
    """

    ids: tuple[str, ...]
    simulate: Callable[[], Mapping[str, float]]
    notes: Mapping[str, str] = field(default_factory=dict)
