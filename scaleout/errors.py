"""The exceptions that scaleout raises for its user.

Every message says what is wrong, where, and what to do. The command line prints it and exits with code 2;
faults of scaleout itself are `assert` and propagate. Messages quote names and values of the input, which may be of any
length and hold any character: `shown` cuts a value, and what a message holds is printable and of bounded length.
"""

import re
import reprlib

_UNPRINTABLE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
"""What a terminal obeys or cannot write: controls but the end of a line, directions, and what is no character."""
_LONGEST_LINE, _MOST_LINES = 2000, 40

_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 100
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = 12


def printable(text: str) -> str:
    r"""Return a text with what a terminal would obey written as an escape.

    >>> print(printable("a\x1b[31m"))
    a\x1b[31m
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def one_line(text: str) -> str:
    r"""Return a text as `printable` does, on one line: the end of a line is an escape, too.

    >>> one_line("a" + chr(10) + "b") == chr(97) + r"\nb"
    True
    """
    return printable(text).replace("\n", r"\n")


def shown(value: object) -> str:
    """Return a value of the input as Python writes it, on one line and cut if it is long."""
    return " ".join(line.strip() for line in _REPR.repr(value).splitlines())


def _bounded(message: str) -> str:
    """Cut long lines in the middle, and many lines at the end."""
    lines = message.split("\n", _MOST_LINES)
    if len(lines) > _MOST_LINES:
        lines[-1] = f"and {1 + lines[-1].count(chr(10))} lines more"
    return "\n".join(
        line if len(line) <= _LONGEST_LINE else f"{line[:1400]} ... ({len(line) - 1800} characters) ... {line[-400:]}"
        for line in lines
    )


class ScaleoutError(Exception):
    """Base of every error that is about the user's input."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(_bounded(message)))


class ConfigError(ScaleoutError):
    """A name, file, key, unit or size in the input cannot be used."""


class TraceError(ScaleoutError):
    """A trace file or a set of them is missing, truncated, foreign or incomplete."""


class GraphError(ScaleoutError):
    """An execution graph or program breaks its laws: a cycle, an unknown group, a kernel without work."""


class SimulationError(ScaleoutError):
    """A program cannot finish on the cluster: someone waits for a rank that never comes."""


class MeasurementError(ScaleoutError):
    """A measurement on real hardware ended before its time; what was measured is kept."""
