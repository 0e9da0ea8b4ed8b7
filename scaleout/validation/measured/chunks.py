"""Rows of a product cut into chunks, to the best number of them: measured, predicted, and what choosing that costs.

Rows that differ in their number of chunks alone are one case. The number of the least predicted time is the choice; its
cost is what it takes longer, as measured, than the best. Nothing is fitted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scaleout.validation.measured.compare import Compared


@dataclass(frozen=True)
class Choice:
    """One case: a product and its collective, in several numbers of chunks.

    Attributes
    ----------
    case : str
    measured_s, predicted_s : dict of int to float
        Number of chunks to seconds.
    """

    case: str
    measured_s: dict[int, float]
    predicted_s: dict[int, float]

    @property
    def best(self) -> int:
        """The number of chunks of the least measured time."""
        return min(self.measured_s, key=self.measured_s.__getitem__)

    @property
    def chosen(self) -> int:
        """The number of chunks of the least predicted time."""
        return min(self.predicted_s, key=self.predicted_s.__getitem__)

    @property
    def cost(self) -> float:
        """What the choice takes longer than the best, in parts of that, as measured."""
        return self.measured_s[self.chosen] / self.measured_s[self.best] - 1


def choices(rows: Sequence[Compared]) -> tuple[Choice, ...]:
    """Return the cases of predicted rows, in the rows' order; those of one number of chunks have no choice."""
    found: dict[str, Choice] = {}
    for row in rows:
        if row.measured is not None and row.predicted is not None and row.variant is not None:
            case, chunks = row.variant
            choice = found.setdefault(case, Choice(case, {}, {}))
            choice.measured_s[chunks], choice.predicted_s[chunks] = row.measured, row.predicted
    return tuple(choice for choice in found.values() if len(choice.measured_s) > 1)
