"""Predictions held against measured runs: rows of files to workloads, simulated and compared.

`FAMILIES` is the one table: kinds of rows that are known, each with the keys that it needs and what turns a row into
something to predict. `compare_files` reads, predicts and sums up. Nothing is fitted here.
"""

from scaleout.machine import Machine
from scaleout.validation.accuracy import Accuracy, accuracy_of
from scaleout.validation.case import NoModelError
from scaleout.validation.chunks import Choice, choices
from scaleout.validation.compare import FAMILIES, Compared, Comparison, compare_files, family_of
from scaleout.validation.rows import Row, read_rows

__all__ = [
    "FAMILIES",
    "Accuracy",
    "Choice",
    "Compared",
    "Comparison",
    "Machine",
    "NoModelError",
    "Row",
    "accuracy_of",
    "choices",
    "compare_files",
    "family_of",
    "read_rows",
]
