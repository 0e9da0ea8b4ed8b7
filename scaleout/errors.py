"""The exceptions that scaleout raises for its user.

Every message says what is wrong, where, and what to do. The command line prints it and exits with code 2;
faults of scaleout itself are `assert` and propagate.
"""


class ScaleoutError(Exception):
    """Base of every error that is about the user's input."""


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
