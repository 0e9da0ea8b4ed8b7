"""What a published table is: how its rows become things to predict, and what they were measured on."""

from collections.abc import Callable
from dataclasses import dataclass

from scaleout.cluster.machine import Machine
from scaleout.validation.measured.case import Case
from scaleout.validation.measured.rows import Row


def _whole(row: Row) -> list[Row]:
    return [row]


@dataclass(frozen=True)
class Table:
    """Rows of one published table.

    Attributes
    ----------
    name : str
        The family under which its errors are summed up.
    case : callable
        From a row and its machine to something to predict; raises `NoModelError` where there is no model.
    home : callable
        Device and topology that a row was measured on.
    split : callable
        A row to the measured runs in it, a row of its own each; itself if it is one.
    """

    name: str
    case: Callable[[Row, Machine], Case]
    home: Callable[[Row], tuple[str, str]]
    split: Callable[[Row], list[Row]] = _whole
