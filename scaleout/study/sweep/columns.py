"""Columns of a study's table: what each result is called, its unit, and which way is better.

Inputs are columns by the keys of the file; derived columns are expressions of the others.
"""

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

Kind = Literal["numbers", "truth values", "texts"]
"""What the values of a column are, apart from those that are missing."""


class Column(NamedTuple):
    """What stands in a column: in words, its unit, and whether ``low`` or ``high`` is better, or neither."""

    label: str
    unit: str = ""
    better: str = ""


COLUMNS: Mapping[str, Column] = {
    "ranks": Column("ranks"),
    "makespan_s": Column("makespan", "s", "low"),
    "step_low_s": Column("lower end of the makespan's error bars, 90%", "s", "low"),
    "step_high_s": Column("upper end of the makespan's error bars, 90%", "s", "low"),
    "speedup": Column("speed-up over the baseline", "x", "high"),
    "compute_s": Column("compute", "s", "low"),
    "communication_s": Column("communication", "s", "low"),
    "exposed_communication_s": Column("exposed communication", "s", "low"),
    "idle_s": Column("idle", "s", "low"),
    "exposed_share": Column("exposed share", "share", "low"),
    "samples_per_s": Column("samples a second", "1/s", "high"),
    "tokens_per_s": Column("tokens a second", "1/s", "high"),
    "tokens_per_s_per_rank": Column("tokens a second and rank", "1/s", "high"),
    "mfu": Column("MFU", "share", "high"),
    "hfu": Column("HFU", "share", "high"),
    "bubble": Column("bubble", "share", "low"),
    "peak_memory_bytes": Column("peak memory of the worst rank", "B", "low"),
    "memory_capacity_bytes": Column("memory of a device", "B"),
    "fits": Column("fits into memory"),
    "measured_share": Column("share of kernel time that is measured", "share", "high"),
    "roofline_share": Column("share of kernel time that is a roofline estimate", "share", "low"),
    "slowest_dimension_bytes": Column("bytes over the busiest link of the slowest dimension", "B", "low"),
    "joules": Column("energy of a step, as far as it is known", "J", "low"),
    "dollars": Column("list price of nodes and network", "$", "low"),
    "network_dollars": Column("list price of the network", "$", "low"),
    "step_dollars": Column("rent of a step", "$", "low"),
    "dollars_per_million_tokens": Column("rent of a million tokens", "$", "low"),
    "network_watts": Column("power of the network", "W", "low"),
    "step_median_s": Column("median step, with jitter and stragglers", "s", "low"),
    "step_p95_s": Column("95th percentile of the step", "s", "low"),
    "between_failures_s": Column("time between failures of the job", "s", "high"),
    "checkpoint_interval_s": Column("training between checkpoints", "s"),
    "goodput": Column("share of the time that trains", "share", "high"),
    "training_s": Column("expected time of the whole training", "s", "low"),
    "decisions": Column("what the schedule decided"),
    "model": Column("which model answered"),
}
"""Results, in the order of the table."""

DIMENSION_BYTES = "dimension_bytes."
"""Begin of the columns of bytes over the busiest link of each dimension."""

TEXTS = ("decisions", "model")
"""Results that are texts; `fits` is a truth value, `ranks` a whole number, and all else a number."""

BEFORE = ("ranks", "peak_memory_bytes", "memory_capacity_bytes", "fits")
"""Results that are known before anything is simulated: constraints may read them besides the inputs."""

ABOUT = ("key", "status", "message", "run", "timeline")
"""Columns of texts before the inputs."""

_LABELS = {"algorithm": "algorithm of ", "bandwidth": "bandwidth of dimension ",
           "latency": "latency of dimension ", "taper": "taper of dimension ", "degrade": "degraded link ",
           "slow": "slowed rank "}  # fmt: skip


def column_of(name: str) -> Column:
    """Return what stands in a column by its name: a result, bytes of a dimension, an input, or a derived one."""
    if name in COLUMNS:
        return COLUMNS[name]
    if name == "samples_per_s_per_rank":
        return Column("samples a second and rank", "1/s", "high")
    if name.startswith(DIMENSION_BYTES):
        return Column(f"bytes over the busiest link of dimension {name.removeprefix(DIMENSION_BYTES)}", "B", "low")
    key, _, rest = name.partition(".")
    if key == "set" and rest:
        return Column(rest.replace("_", " "))
    if rest and key in _LABELS:
        return Column(f"{_LABELS[key]}{rest}")
    return Column(name.replace("_", " "))


def is_result(name: str) -> bool:
    """Whether a column is what a case comes to, in numbers that hardly two cases share; ranks follow from inputs."""
    return (name in COLUMNS and name not in (*TEXTS, "ranks", "fits")) or name.startswith(DIMENSION_BYTES)


def kind_of(name: str, types: Collection[type]) -> Kind:
    """Return what a column holds whose values, of a file or a case, are of some types."""
    if name in (*TEXTS, *ABOUT):
        return "texts"
    if name == "fits" or set(types) == {bool}:
        return "truth values"
    if name in COLUMNS or name.startswith(DIMENSION_BYTES) or (types and set(types) <= {int, float}):
        return "numbers"
    return "texts"
