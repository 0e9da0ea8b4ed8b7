"""Any output of scaleout, opened to be looked at: what it holds, and the jobs in it, to be simulated with changes.

An output is a folder of ``--output``, a file of ``--json``, a study's folder, a timeline, or a folder of traces. What
a job is changed by says `controls`.
"""

import base64
import tempfile
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

from scaleout.analysis.efficiency import Fit
from scaleout.analysis.traffic import DimensionTraffic
from scaleout.api.again import collective_inputs, run_inputs
from scaleout.api.answer import Answer
from scaleout.api.collectives import CollectiveAnswer
from scaleout.api.controls import Inputs, network_of, offered_of
from scaleout.api.runs import RunAnswer
from scaleout.api.traces import read_trace
from scaleout.cluster.topology.topology import Topology
from scaleout.config.documents import is_file, opened, parse_json, read_json, read_text
from scaleout.config.units import format_rate, format_seconds
from scaleout.errors import ConfigError, ScaleoutError, one_line
from scaleout.network.flow.link_traffic import LinkTraffic
from scaleout.report.box import FITTED, room
from scaleout.report.drawing import draw, faults_of
from scaleout.report.files import loads_of_fastest
from scaleout.report.pages.document import Cell, Table, facts_of, tables_of
from scaleout.report.pages.slices import Slices, slices_of
from scaleout.report.pages.view import Control, Page
from scaleout.report.vocabulary import check_types, schema
from scaleout.study.job import Tell
from scaleout.study.sweep.columns import COLUMNS, column_of

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_MOST_TIMELINE_BYTES = 2**30
_MOST_JOBS = 200
_MOST_VALUES = 10**8
_MOST_PICTURE_BYTES = 4 * 2**20
_MOST_LABEL = 90
_MOST_TITLE = 500
_MOST_TIES = 4


@dataclass(frozen=True)
class Asked:
    """A job of an output: what it is called, and its inputs."""

    label: str
    inputs: Inputs


class Speed(NamedTuple):
    """How fast a row of a document is: the time, and tokens or samples a second and rank where it has any."""

    time_s: float
    per_rank: float | None


@dataclass(frozen=True, eq=False)
class Output:
    """An output that was opened: its page, and the jobs that can be simulated again."""

    page: Page
    jobs: tuple[Asked, ...]
    before: Mapping[str, Speed]  # of the schedules of the file, for comparison

    def controls(self, job: int) -> list[Control]:
        """What can be changed of a job; nothing of one whose inputs are damaged, which `again` tells."""
        try:
            return [offered.control for offered in offered_of(self.jobs[job].inputs)]
        except ScaleoutError:
            return []

    def again(self, job: int, changes: Mapping[str, int], tell: Tell | None = None) -> Answer:
        """Simulate a job with changes: control to the place of its value. `ScaleoutError` as `scaleout.run`."""
        inputs = self.jobs[job].inputs
        for offered in offered_of(inputs):
            place = changes.get(offered.control.name)
            if place is not None and place != offered.control.at:
                inputs = offered.change(inputs, offered.control.values[place])
        return collective_inputs(inputs) if "collective" in inputs else run_inputs(inputs, tell)


def open_output(path: Path, *, topology: str | None = None) -> Output:
    """Open an output; `ScaleoutError` if it is none, or damaged: the message says what, where and what to do.

    Parameters
    ----------
    path : Path
        A folder of ``--output``, of a study or of traces, or a file of ``--json`` or a timeline.
    topology : str, optional
        On which the traces of a folder are simulated.
    """
    if topology is not None and any(map(is_file, (path / "summary.json", path / "cases.parquet", path))):
        raise ConfigError(f"--topology is for traces, and {path} holds none; leave it out")
    if is_file(path / "summary.json"):
        return _result(read_json(path / "summary.json"), path / "summary.json", path)
    if is_file(path / "cases.parquet"):
        return _study(path)
    if path.is_dir() and any(path.glob("*.et")):
        trace = read_trace(path)
        inputs = {"trace": str(path), **({"topology": topology} if topology else {})}
        page = Page(trace.title, "traces", facts=[("ranks", f"{trace.program.num_ranks:,}"), *trace.facts.items()])
        return _with_jobs(page, [Asked(trace.title, inputs)], {}, where=path)
    if is_file(path) and _is_json(path):
        found = parse_json(
            read_text(path, most_bytes=_MOST_TIMELINE_BYTES), where=str(path), most_bytes=_MOST_TIMELINE_BYTES
        )
        if isinstance(found, list) or (isinstance(found, dict) and "traceEvents" in found):
            slices = slices_of(found, where=str(path))
            facts = [("slices", f"{len(slices.events):,}"), ("end", format_seconds(slices.end))]
            return Output(Page(path.name, "timeline", facts=facts, slices=slices), (), {})
        return _result(found, path, None)
    raise ConfigError(
        f"{path}: is no output of scaleout; give a folder of --output (run, study, search, diff, ...) or of traces, a "
        f"file of --json, or a timeline"
    )


def _is_json(path: Path) -> bool:
    """Whether a file begins as an object or a list of JSON."""
    with opened(path, "file") as file:
        return file.read(4096).removeprefix(BOM_UTF8).lstrip()[:1] in (b"{", b"[")


def _result(document: Any, path: Path, folder: Path | None) -> Output:
    """Open a document, with what lies beside it in its folder."""
    if not (isinstance(document, dict) and isinstance(document.get("inputs"), dict) and "command" in document):
        raise ConfigError(
            f"{path}: is no document of `scaleout ... --json` (it has no `command` and `inputs`); give one"
        )
    inputs, command = document["inputs"], str(document["command"])
    check_types(document, command, where=str(path))
    slices, notes = None, list[str]()
    if folder is not None and is_file(folder / "timeline.json"):
        file = folder / "timeline.json"
        try:
            text = read_text(file, most_bytes=_MOST_TIMELINE_BYTES)
            slices = slices_of(parse_json(text, where=str(file), most_bytes=_MOST_TIMELINE_BYTES), where=str(file))
        except ConfigError as error:
            notes.append(str(error))
    if "answer" not in document and "answer" in schema(command)["required"]:
        notes.append("Written without an answer in words, as by older releases; run it again for one.")
    pictures = _pictures(folder) if folder is not None else []
    loads = [each for each in pictures if each[0].startswith(_PICTURES["links"])]
    title = ", ".join(str(document[key]) for key in ("workload", "topology", "device") if key in document)
    page = Page(
        title or _of_both(document) or str(folder or path), f"scaleout {command}",
        facts=facts_of(document),
        tables=tables_of(document), slices=slices,
        loads=loads, pictures=[each for each in pictures if each not in loads], notes=notes,
    )  # fmt: skip
    rows = document.get("results")
    speeds = {
        row["schedule"]: _speed_of(row, document) for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and isinstance(row.get("makespan_s"), float) and isinstance(row.get("schedule"), str)
    } if command == "run" else {}  # fmt: skip
    return _with_jobs(page, _jobs(document, inputs), speeds, where=path)


def _speed_of(row: Mapping[str, Any], document: Mapping[str, Any]) -> Speed:
    """Return how fast a row of a document is, by the quantity of the box."""
    time_s = float(row["makespan_s"] if "makespan_s" in row else row["time_s"])
    per_rank, samples, ranks = row.get("tokens_per_s_per_rank"), document.get("samples"), document.get("ranks")
    if per_rank is None and samples and ranks and time_s:
        per_rank = samples / time_s / ranks
    return Speed(time_s, per_rank)


def _of_both(document: Mapping[str, Any]) -> str:
    """Return what two results that a document compares have in common, as its title; nothing of other documents."""
    if not {"a", "b"} <= document.keys():
        return ""
    a, b = (str(document[key]).split(", ") for key in ("a", "b"))
    common = [one for one, other in zip(a, b, strict=False) if one == other]
    return ": ".join(filter(None, ("B against A", ", ".join(common))))


def _jobs(document: Mapping[str, Any], inputs: Inputs) -> list[Asked]:
    """Return the jobs of a document: each plan of a search, or the one of other commands."""
    plans = document.get("fastest")
    if isinstance(plans, list):
        found = [each for each in plans if isinstance(each, dict) and isinstance(each.get("inputs"), dict)]
        return [Asked(f"plan {number}", each["inputs"]) for number, each in enumerate(found[:_MOST_JOBS], start=1)]
    known = "collective" in inputs or "trace" in inputs or isinstance(inputs.get("workload"), str)
    return [Asked(str(document["command"]), inputs)] if known else []


def _with_jobs(page: Page, jobs: Sequence[Asked], before: Mapping[str, Speed], *, where: Path) -> Output:
    first = jobs[0].inputs if jobs else {}
    topology = network_of(first) if jobs else None
    try:
        controls = [offered.control for offered in offered_of(first)] if jobs else ()
    except ScaleoutError as error:
        raise ConfigError(f"{where}: {error}") from None
    network = draw(topology) if topology is not None else ()
    loads = [(title + _of_faults(topology), address) for title, address in page.loads]
    page = replace(page, jobs=[each.label for each in jobs], network=network, loads=loads, controls=controls)
    return Output(page, tuple(jobs), before)


def _study(folder: Path) -> Output:
    """Open the folder of a study: its cases, the fastest first among the jobs, and its figures."""
    cases, title = _cases(folder / "cases.parquet")
    columns = list(cases.columns)
    inputs = columns[columns.index("timeline") + 1 : columns.index("ranks")]
    ran, tight, ties, by = _fastest_first(cases)
    varied = [name for name in inputs if cases[name].nunique() > 1]
    alike = {name for name in columns if len(cases) > 1 and cases[name].nunique(dropna=False) == 1} - {"makespan_s"}
    shown = [name for name in ("case", *varied, *COLUMNS, "status", "message", "run") if name in {*columns} - alike]
    known = cases[shown].astype(object).where(cases[shown].notna(), None)
    rows = [dict(zip(shown, row, strict=True)) for row in known.itertuples(index=False)]
    jobs = []
    for row in ran.astype(object).where(ran.notna(), None).to_dict("records"):
        given = {name: row[name] for name in inputs if row[name] is not None}
        words = ", ".join(f"{column_of(name).label} {row[name]}" for name in varied if row[name] is not None)
        jobs.append(Asked(shorten(f"case {row['case']}: {words}", _MOST_LABEL, placeholder=" ..."), given))
    counts = {"simulated" if key == "ok" else str(key): n for key, n in cases["status"].value_counts().items()}
    same = ", ".join(
        f"{column_of(name).label} {cases[name].iloc[0]}" for name in inputs if cases[name].nunique(dropna=False) == 1
    )
    facts = [("cases", f"{len(cases):,}"), ("in all of them", same), *((key, f"{n:,}") for key, n in counts.items())]
    if len(jobs) > tight:
        best = [("fastest", f"{format_seconds(ran['makespan_s'].iloc[0])} a step, {jobs[0].label}{by}")]
        named = [each.label for each in jobs[1 : min(ties, _MOST_TIES + 1)]]
        more = [f"{ties - 1 - len(named):,} more"] if ties - 1 > len(named) else []
        facts[:0] = best + ([("as fast", "; ".join(named + more))] if named else [])
    if tight:
        facts.append(("of these do not fit", f"{tight:,}, which come last"))
    page = Page(
        title or str(folder),
        "scaleout study",
        facts=facts,
        tables=tables_of({"cases": rows}),
        pictures=_pictures(folder / "figures"),
    )
    return _with_jobs(page, jobs, {}, where=folder / "cases.parquet")


class _Ranked(NamedTuple):
    """The cases of a study that ran, as it compares them, those that fit first."""

    cases: "pd.DataFrame"
    tight: int  # how many of them do not fit
    ties: int  # how many are as fast as the first, with it
    by: str  # behind the first: by what, if not by their steps


def _fastest_first(cases: "pd.DataFrame") -> _Ranked:
    from scaleout.study.sweep.table import (  # noqa: PLC0415 - with pandas, half a second
        AS_FAST,
        fitting,
        measure_of,
        measured,
    )

    ran = cases[cases["status"] == "ok"]
    by = measure_of(ran)
    worse = measured(ran, by).astype("float64") * (-1 if column_of(by).better == "high" else 1)
    order = worse.to_frame("worse").assign(large=~fitting(ran))
    order = order.sort_values(["large", "worse"], kind="stable").head(_MOST_JOBS)
    fits = order["worse"][~order["large"]].to_numpy()
    ties = int((fits <= fits[0] + AS_FAST * abs(fits[0])).sum()) if len(fits) else 0
    words = "" if by == "makespan_s" else f", by {column_of(by).label}"
    return _Ranked(ran.loc[order.index], int(order["large"].sum()), ties, words)


def _cases(file: Path) -> "tuple[pd.DataFrame, str]":
    """Read the table of a study, and its title if it has one; a few bytes may stand for any number of rows."""
    from pyarrow.lib import ArrowException  # noqa: PLC0415 - takes half a second

    from scaleout.study.sweep.table import TITLE  # noqa: PLC0415 - as late

    try:
        table = _table(file)
        found: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        title = one_line((table.schema.metadata or {}).get(TITLE, b"").decode())[:_MOST_TITLE]
    except (ArrowException, OSError, ValueError) as error:  # no Parquet
        raise ConfigError(f"{file}: is no table of a study ({one_line(str(error))}); run the study again") from None
    return found, title


def _table(file: Path) -> "pa.Table":
    from pyarrow import parquet  # noqa: PLC0415 - takes half a second

    from scaleout.study.sweep.table import check_table  # noqa: PLC0415 - as late

    with parquet.ParquetFile(file) as table:
        size = table.metadata.num_rows * table.metadata.num_columns
        if size > _MOST_VALUES:
            raise ValueError(f"it holds {size:,} values, and at most {_MOST_VALUES:,} are read")
        read = table.read()
    read.validate(full=True)  # texts too
    check_table(read)
    return read


def _pictures(folder: Path) -> list[tuple[str, str]]:
    """Return the pictures of a folder: what each is, and its content as a data address."""
    found = []
    for file in sorted(folder.glob("*.png")):
        if is_file(file) and file.stat().st_size <= _MOST_PICTURE_BYTES:
            found.append((_titled(file.stem), _address(file)))
    return found


_PICTURES = {
    "breakdown": "where the time goes", "links": "how busy the links are", "memory": "memory over time",
    "pareto": "time and memory of plans",
}  # fmt: skip
"""First word of a picture's file to what it shows; the rest is the schedule."""


def _titled(stem: str) -> str:
    """Return what a picture shows, by the name of its file.

    >>> _titled("memory-centauri+fused"), _titled("01-makespan-over-topology")
    ('memory over time under centauri+fused', 'makespan over topology')
    """
    kind, _, schedule = stem.partition("-")
    if kind in _PICTURES:
        return f"{_PICTURES[kind]} under {schedule}" if schedule else _PICTURES[kind]
    return (schedule if kind.isdigit() else stem).replace("-", " ")


def _address(file: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()


def loads_of(answer: Answer) -> list[tuple[str, str]]:
    """Return pictures of how busy the links are, or the busiest of each dimension where that alone is known."""
    traffic = dict[str, LinkTraffic | DimensionTraffic]()
    if isinstance(answer, RunAnswer):
        traffic = {each.schedule: each.result.link_traffic for each in answer.outcomes if each.result.link_traffic}
        fastest = None if traffic else loads_of_fastest(answer.comparison, answer.inputs)
        traffic = traffic if fastest is None else dict([fastest])
    if isinstance(answer, CollectiveAnswer):
        traffic = {row["algorithm"]: row["traffic"] for rows in answer.by_size for row in rows if row.get("traffic")}
    if not traffic:
        return []
    from scaleout.report.plots.links import draw_links  # noqa: PLC0415 - matplotlib takes half a second

    found = []
    with tempfile.TemporaryDirectory() as folder:
        for schedule, links in traffic.items():
            file = Path(folder) / "links.png"
            draw_links(links, file, title=schedule)
            title = f"{_PICTURES['links']} under {schedule}{_of_faults(links.links.topology)}"
            found.append((title, _address(file)))
    return found


def _of_faults(topology: Topology | None) -> str:
    """Say after the title of a picture of links which of them are slower than built or broken, if any are."""
    return "" if topology is None else "".join(f"; {words}" for _, words in faults_of(topology))


def timeline_of_answer(answer: Answer) -> Slices | None:
    """Return the timeline of a job that was simulated; None of a collective."""
    if not isinstance(answer, RunAnswer):
        return None
    from scaleout.report.perfetto import trace_events  # noqa: PLC0415 - as late as what it is for

    return slices_of(trace_events(answer.comparison), where="timeline")


def compared(output: Output, answer: Answer) -> Table:
    """Return the answer to a what-if beside what the file says: a row a schedule, or an algorithm of a collective.

    A step of another batch is compared by what it does a second, as the box tells it, and by its time.
    What the file does not have stands beside its fastest; a job says whether it fits.
    """
    document, before, rooms, known = answer.to_dict(), output.before, dict[str, str](), dict[str, Fit]()
    if isinstance(answer, RunAnswer):
        known = {each.schedule: each.fit for each in answer.outcomes if each.fit is not None}
        rooms = {schedule: room(fit, answer.comparison.ranks) for schedule, fit in known.items()}
    fastest = min(before, key=lambda name: before[name].time_s, default="")
    what, time = ("algorithm", "time") if "collective" in answer.inputs else ("schedule", "step")
    rate, table = "samples/s/GPU" if "samples" in document else "tokens/s/GPU", []
    for row in document["results"]:
        name, now = str(row.get("schedule") or row.get("algorithm")), _speed_of(row, document)
        of = name if name in before else fastest
        was, under = before.get(of), "" if of == name else f" under {of}"
        fitted = "" if name not in known or known[name].fits else FITTED
        line = {what: Cell(name, name), **_beside(time, now.time_s, was and was.time_s, under, fitted)}
        line |= _beside(rate, now.per_rank, was and was.per_rank, under, fitted)
        table.append(line | {"memory": Cell(rooms[name], rooms[name])} if name in rooms else line)
    columns = list(dict.fromkeys(name for line in table for name in line))
    numbers = frozenset(place for place, name in enumerate(columns) if name not in (what, "memory"))
    rows = [[line.get(name, Cell("", "")) for name in columns] for line in table]
    return Table("answer", columns, rows, len(rows), numbers)


def _beside(what: str, now: float | None, was: float | None, under: str, fitted: str) -> dict[str, Cell]:
    """Return the cells of a quantity by their columns: now, and beside that of the file by how much it changes.

    `under` stands behind the file's, `fitted` behind the change.
    """
    if now is None:
        return {}
    form = format_rate if what.endswith("/s/GPU") else format_seconds
    cells = {what: Cell(form(now), now)}
    if not was:
        return cells
    ratio = now / was - 1
    words = ("none" if f"{ratio:+.1%}" in ("+0.0%", "-0.0%") else f"{ratio:+.1%}") + fitted
    return cells | {f"{what} in the file": Cell(form(was) + under, was), f"change of {what}": Cell(words, ratio)}
