"""Cases and rows of results to the table of a study: inputs, results, speed-ups over the baseline, derived columns."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pandas.api.types import is_bool_dtype, is_numeric_dtype
from pyarrow import parquet

from scaleout.analysis.goodput import disturbance_on, goodput
from scaleout.cluster.device.spec import Device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.units import counted
from scaleout.config.writing import replacing
from scaleout.errors import ConfigError, shown
from scaleout.study.provenance import of_another
from scaleout.study.sweep.cases import Case, run_line
from scaleout.study.sweep.columns import ABOUT, BEFORE, COLUMNS, DIMENSION_BYTES, TEXTS, column_of, kind_of
from scaleout.study.sweep.study import Losses, Study
from scaleout.study.sweep.worker import OK, Row, broken_of, left_out

FILE = "cases.parquet"
"""Of an output folder: the table."""
_MOST_NAMED = 4
"""Values of an input, at most, that are named as those that do not fit."""


def table_of_cases(study: Study, cases: Iterable[Case], rows: Sequence[Row]) -> pd.DataFrame:
    """Return the table of a study, a row a case in the order of its file; see docs/how-to/run-a-study.md."""
    of_key = {row["key"]: row for row in rows}
    found: list[dict[str, Any]] = []
    for case in cases:
        row = _constrained(study, case, of_key[case.key])
        said = {"case": case.number, "key": case.key, "status": row["status"], "message": row["message"]}
        inputs = {column: case.inputs.get(column) for column in study.inputs}
        results = {**_results(row), **_goodput(study.file.goodput, case, row)}
        found.append({**said, "run": run_line(case.inputs), "timeline": "", **inputs, **results})
    _add_speedups(study, found)
    for name, expression in study.expressions.items():
        for each in found:
            each[name] = expression(each) if each["status"] == OK else None
    columns = list(found[0]) if found else []
    there = dict.fromkeys(column for each in found for column in each)
    columns = ["case", "key", "status", "message", "run", "timeline", *study.inputs]
    columns += [name for name in COLUMNS if name in there]
    columns += sorted(name for name in there if name.startswith(DIMENSION_BYTES))
    columns += list(study.expressions)
    return pd.DataFrame({name: _column(name, [each.get(name) for each in found]) for name in columns})


def _goodput(losses: Losses | None, case: Case, row: Row) -> dict[str, Any]:
    """Return what is left of a step of training after failures, checkpoints and jitter.

    Nothing where the study does not ask, the case trains nothing, or nobody knows how often its devices fail.
    """
    if losses is None or row["status"] != OK or case.workload is None or case.topology is None or case.device is None:
        return {}
    device: Device = case.device.value
    trains = getattr(case.workload.value, "mode", "training") == "training"
    if not trains or (losses.failures is None and device.reliability is None):
        return {}
    disturbance = disturbance_on(
        case.topology.value, device, failures=losses.failures, jitter=losses.jitter, checkpoint_s=losses.checkpoint,
        restart_s=losses.restart, interval_s=losses.interval, stragglers=losses.stragglers,
        straggler_slowdown=losses.straggler_slowdown, seed=losses.seed,
    )  # fmt: skip
    try:
        found = goodput(row["makespan_s"], compute_s=row["compute_s"], ranks=row["ranks"], disturbance=disturbance)
    except ConfigError:  # it fails before a checkpoint is written
        return {"goodput": 0.0}
    values = {
        "step_median_s": found.step_median_s, "step_p95_s": found.step_p95_s, "goodput": found.goodput,
        "between_failures_s": found.between_failures_s, "checkpoint_interval_s": found.interval_s,
    }  # fmt: skip
    if losses.tokens is not None and row.get("tokens_per_s"):
        values["training_s"] = losses.tokens / (row["tokens_per_s"] * found.speed)
    return {name: value for name, value in values.items() if math.isfinite(value)}


def _constrained(study: Study, case: Case, row: Row) -> Row:
    """Return a row, or, where a constraint on it is false that was not there when it ran, why it is left out."""
    if row["status"] == OK:
        broken = broken_of(study.where, case, row)
        if broken is not None:
            return {**{name: row.get(name) for name in ("key", *BEFORE)}, **left_out(broken)}
    return row


def _results(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("key", "status", "message")}


def _add_speedups(study: Study, rows: Sequence[dict[str, Any]]) -> None:
    """Add to each case the makespan of its baseline over its own: that which agrees with it in all other axes.

    Inputs that go together (`zip`) with one of the baseline are not other axes.
    """
    if not study.baseline:
        return
    axes = (set(axis.columns) for grid in study.grids for axis in grid.axes)
    compared = set[str]().union(*(columns for columns in axes if columns & study.baseline.keys()))
    others = [column for column in study.axes if column not in compared]

    def group(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(column) for column in others)

    baselines = {
        group(row): row["makespan_s"]
        for row in rows
        if row["status"] == OK and all(row.get(column) == value for column, value in study.baseline.items())
    }
    for row in rows:
        if row["status"] == OK and group(row) in baselines and row["makespan_s"]:
            row["speedup"] = baselines[group(row)] / row["makespan_s"]


def _column(name: str, values: list[Any]) -> pd.Series:
    """Return a column of one type: whole numbers, numbers, truth values, else texts."""
    there = [value for value in values if value is not None]
    types = {type(value) for value in there}
    if name == "case":
        return pd.Series(values, dtype="int64")
    kind = kind_of(name, types)
    if kind == "truth values":
        return pd.Series(values, dtype="boolean")
    if kind == "numbers" and (types == {int} or name == "ranks"):
        return pd.Series(values, dtype="Int64")
    if kind == "numbers":
        return pd.Series([float("nan") if value is None else float(value) for value in values], dtype="float64")
    missing = "" if name in (*TEXTS, *ABOUT) else None
    return pd.Series([missing if value is None else text_of(value) for value in values])


def text_of(value: Any) -> str:
    """Return a value of a file as a column of texts has it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(text_of, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def holds_numbers(values: "pd.Series[Any]") -> bool:
    """Whether a column of the table is of numbers; truth values are none."""
    return bool(is_numeric_dtype(values) and not is_bool_dtype(values))


def ordered(study: Study, cases: pd.DataFrame, column: str) -> list[Any]:
    """Return the values of a column that are there, in the order of the study's file, then as the cases have them."""
    there = cases[column].dropna().drop_duplicates().tolist()
    plain = holds_numbers(cases[column]) or is_bool_dtype(cases[column])
    places = {value if plain else text_of(value): place for place, value in enumerate(study.axes.get(column, ()))}
    return sorted(there, key=lambda value: places.get(value, len(places)))


def numbers_of(study: Study, cases: pd.DataFrame, column: str) -> dict[Any, float] | None:
    """Return where the values of a column lie on an axis of numbers, as those of `2x` do; None where they are names."""
    if holds_numbers(cases[column]):
        return {value: float(value) for value in ordered(study, cases, column)}
    texts = {text_of(value): number for value, number in (study.numbers(column) or {}).items()}
    there = ordered(study, cases, column)
    return {value: texts[value] for value in there} if there and {*there} <= texts.keys() else None


_TEXT = {pa.string(), pa.large_string(), pa.null()}


def _types_of(column: str) -> set[pa.DataType]:
    """Return the types that a column may have in the file."""
    if column in (*TEXTS, *ABOUT):
        return _TEXT
    if column in ("case", "ranks"):
        return {pa.int64()}
    if column == "fits":
        return {pa.bool_()}
    if column in COLUMNS or column.startswith(DIMENSION_BYTES):
        return {pa.float64()}
    return {*_TEXT, pa.int64(), pa.bool_(), pa.float64()}


def check_table(table: pa.Table) -> None:
    """Raise `ValueError` if a table that was read holds what no study writes."""
    names = table.column_names
    lacking = [name for name in ("case", "status", "timeline", "ranks", "makespan_s", "workload") if name not in names]
    if lacking or len({*names}) < len(names):
        raise ValueError(f"it has no column {lacking[0]}" if lacking else "a column stands twice")
    if names.index("timeline") > names.index("ranks"):
        raise ValueError("its columns are in another order")
    for name, column in zip(names, table.columns, strict=True):
        if column.type not in _types_of(name):
            raise ValueError(f"column {shown(name)} is of type {column.type}")
        if pa.types.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py():
            raise ValueError(f"column {shown(name)} holds infinity")
    times_s = table.filter(pc.equal(table["status"], OK))["makespan_s"]
    if table["case"].null_count or not pc.all(pc.fill_null(pc.greater(times_s, 0), False), min_count=0).as_py():
        raise ValueError("a case has no number, or ran without a makespan above zero")


TITLE = b"scaleout.title"
"""Of the metadata of a table's file: what its study asks."""


def write_table(cases: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet, whole; the same table is the same bytes. `OSError` if the disk is full.

    Its title, in the file's metadata, is that of its `attrs`, as `engine.execute` gives it.
    """
    table = pa.Table.from_pandas(cases, preserve_index=False)
    if title := str(cases.attrs.get("title", "")):
        table = table.replace_schema_metadata({**(table.schema.metadata or {}), TITLE: title.encode()})
    with replacing(path) as file:
        parquet.write_table(table, file)


AS_FAST = 1e-9
"""Share by which cases that are as fast may differ."""


def measure_of(cases: pd.DataFrame) -> str:
    """Return the column by which cases of one workload are compared: one for the whole study.

    The makespan where each workload's steps are of one size, on as many ranks; else tokens a second, or samples where
    some workload has no tokens, and of a rank where ranks vary. The makespan also where steps have neither.
    """
    ran = cases[cases["status"] == OK]
    ranks_vary = "ranks" in ran and bool((ran.groupby("workload", sort=False)["ranks"].nunique() > 1).any())
    for name in ("tokens_per_s", "samples_per_s"):
        if name in ran and len(ran) and ran[name].notna().all():
            steps = (ran[name] * ran["makespan_s"]).map(lambda size: f"{size:.6g}").groupby(ran["workload"], sort=False)
            if ranks_vary:
                return f"{name}_per_rank"
            return name if bool((steps.nunique() > 1).any()) else "makespan_s"
    return "makespan_s"


def measured(cases: pd.DataFrame, name: str) -> pd.Series:
    """Return a column of `measure_of`."""
    whole = name.removesuffix("_per_rank")
    return cases[name] if name == whole else cases[whole] / cases["ranks"].astype("float64")


def best_of(study: Study, cases: pd.DataFrame, top: int = 1) -> list[dict[str, Any]]:
    """Return the fastest cases of each workload by `measure_of`: number, inputs that vary, results and command.

    Of cases that fit into memory, where any does: nobody can run the others.
    """
    return _choices(study, cases, lambda _group, slower: slower, top)


def fitting(cases: pd.DataFrame) -> "pd.Series[bool]":
    """Return which cases fit into memory, as far as it is counted."""
    if "fits" not in cases:
        return pd.Series(True, index=cases.index)
    return cases["fits"].astype("boolean").fillna(True).astype(bool)


def num_unfit(cases: pd.DataFrame) -> int:
    """Return how many cases were simulated and do not fit into memory."""
    return int((~fitting(cases) & cases["status"].eq("ok")).sum())


def eligible(cases: pd.DataFrame) -> pd.DataFrame:
    """Return the cases among which to choose: of each workload those that fit, or all where none does."""
    fit = fitting(cases)
    return cases[fit | ~fit.groupby(cases["workload"], sort=False).transform("any")]


def axes_of(cases: pd.DataFrame, inputs: Sequence[str]) -> dict[str, list[str]]:
    """Return inputs that vary by themselves, each with those that vary with it, as the keys of a zip do."""
    found: dict[str, list[str]] = {}
    for name in inputs:
        for first, alike in found.items():
            pairs = cases[[first, name]].drop_duplicates()
            if len(pairs) == pairs[first].nunique(dropna=False) == pairs[name].nunique(dropna=False):
                alike.append(name)
                break
        else:
            found[name] = [name]
    return found


def unfit_words(drawn: pd.DataFrame, left_out: pd.DataFrame, inputs: Mapping[str, str]) -> str:
    """Say which cases a picture leaves out because they do not fit into memory, or draws though they do not.

    `inputs` maps columns to words; where one of them alone tells which are left out, its values are named.
    """
    if len(left_out):
        told = f"without {counted(len(left_out), 'case')} that would not fit into memory"
        for name, label in inputs.items():
            values = left_out[name].drop_duplicates()
            if values.notna().all() and len(values) <= _MOST_NAMED and not values.isin(drawn[name]).any():
                return f"{told}: {label} {', '.join(map(str, values))}"
        return told
    unfit = int((~fitting(drawn)).sum())
    if not unfit:
        return ""
    return f"{counted(unfit, 'case')} of a workload of which none fits into memory"


def cheapest_of(study: Study, cases: pd.DataFrame) -> list[dict[str, Any]]:
    """Return of each workload the case on the network of the least price that is as good as within the study's share.

    Of those on networks of one price it is the fastest. Only networks of as many ranks as that of the fastest case are
    compared. Nothing of a workload where their price does not vary, or none is known. ``slower_share`` is by how much
    it is slower than the fastest case, on whatever network. As in `best_of`, of cases that fit.
    """
    if "network_dollars" not in cases:
        return []
    within = study.file.within
    chosen = list[pd.DataFrame]()
    for fastest in best_of(study, cases):
        alike = cases["workload"].eq(fastest["workload"]) & cases["ranks"].eq(fastest["ranks"]).fillna(False)
        if cases.loc[alike, "network_dollars"].nunique() > 1:
            chosen.append(cases[alike])
    if not chosen:
        return []

    def price(group: pd.DataFrame, slower: pd.Series) -> pd.Series:
        return group["network_dollars"].where(slower <= within * (1 + 1e-12)).astype("float64")

    return [each for each in _choices(study, pd.concat(chosen), price) if "network_dollars" in each]


def _choices(
    study: Study, cases: pd.DataFrame, least: Callable[[pd.DataFrame, pd.Series], pd.Series], top: int = 1
) -> list[dict[str, Any]]:
    """Return the cases of each workload of which something of its group is least, and of these the fastest."""
    measure = measure_of(cases)
    found = []
    for _, group in eligible(cases[cases["status"] == OK]).groupby("workload", sort=False):
        values = measured(group, measure).astype("float64")
        slower = values / values.min() - 1 if column_of(measure).better == "low" else values.max() / values - 1
        wanted = pd.DataFrame({"least": least(group, slower), "slower": slower})
        for at in wanted.sort_values(["least", "slower"], kind="stable").index[:top]:
            row = group.loc[at]
            found.append(_choice(study, row) | {measure: float(values[at]), "slower_share": float(slower[at])})
    return found


def _choice(study: Study, row: "pd.Series[Any]") -> dict[str, Any]:
    """Return a case's number, inputs that vary, step, memory, price of its network and command."""
    varied = [f"{name}={row[name]}" for name in study.axes if name != "workload" and not pd.isna(row[name])]
    known = {name: row[name] for name in ("fits", "network_dollars", "roofline_share") if not pd.isna(row.get(name))}
    return {
        "workload": row["workload"],
        "case": int(row["case"]),
        "inputs": ", ".join(varied),
        "ranks": int(row["ranks"]),
        "makespan_s": row["makespan_s"],
        **{name: bool(value) if name == "fits" else float(value) for name, value in known.items()},
        "run": row["run"],
    }


def notes_of(cases: pd.DataFrame) -> list[str]:
    """Say which networks are those of other devices than their kernels are timed on."""
    pairs = cases.loc[cases["status"] == OK, ["topology", "device"]].drop_duplicates()
    return [
        note
        for topology, device in pairs.itertuples(index=False)
        for note in of_another(load_topology(topology), device)
    ]


def failures_of(cases: pd.DataFrame, most: int = 5) -> list[dict[str, Any]]:
    """Return the most frequent messages of cases that failed, with how many had each and the first of them."""
    failed = cases[cases["status"] == "failed"]
    counts = (
        failed.groupby("message", sort=False)["case"]
        .agg(["size", "min"])
        .sort_values("size", ascending=False, kind="stable")
    )
    return [
        {"message": message, "cases": int(row["size"]), "case": int(row["min"])}
        for message, row in counts.head(most).iterrows()
    ]
