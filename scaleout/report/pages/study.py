"""The cases of a study to one page that opens offline, figures, and a table for other programs.

The page holds all data and scripts: charts of Vega-Lite, a sortable table of DataTables. It shows what
`report.pages.views` draws; the figures are the same charts as PNG and SVG, or in the format and width that `look` says.
PNG and SVG are the same bytes for the same cases; in a PDF vl-convert orders resources as they come.
"""

import importlib.util
import json
import re
from collections.abc import Callable
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

import itables
import itables.javascript
import jinja2
import pandas as pd
import vl_convert
from markupsafe import Markup

import scaleout
from scaleout.config.units import counted
from scaleout.config.writing import write_bytes
from scaleout.errors import printable
from scaleout.report.look import COLUMN_POINTS, NARROW_IN, PAGE_POINTS, look_now
from scaleout.report.pages.cases import Cases
from scaleout.report.pages.style import IN_COLUMN, ON_PAGE
from scaleout.report.pages.suggested import views_of
from scaleout.report.pages.vega import chart_script
from scaleout.report.pages.views import chart_of
from scaleout.study.sweep.columns import column_of
from scaleout.study.sweep.study import Study
from scaleout.study.sweep.table import best_of, cheapest_of, measure_of, measured, num_unfit
from scaleout.study.sweep.views import View

_MOST_FASTEST = 12
_MOST_NAMED = 8
_A_PAGE = 50
_SHOWN = ("makespan_s", "speedup", "tokens_per_s", "samples_per_s", "mfu", "exposed_share", "fits")
"""Results that stand in the table, beside derived columns; the files hold all of them."""


_LONGEST_NAME = 40
"""Letters of the name of a figure's file."""
_NARROW, _WIDE = 72, 140
"""Letters of a line of a note in a column, and on a page."""
_FONT = re.compile(r'"fontSize": [0-9.]+')
_SIZE = re.compile(r'width="([0-9.]+)" height="([0-9.]+)"')


class _Table(NamedTuple):
    caption: str
    columns: list[str]
    rows: list[list[str]]
    numbers: list[int]  # columns of numbers


def write_study_report(cases: pd.DataFrame, study: Study, directory: Path) -> dict[str, str]:
    """Write report.html, cases.csv and figures/ into a directory.

    Parameters
    ----------
    cases : DataFrame
        A row a case, as in cases.parquet.
    study : Study
        Its title, inputs, baseline and views.
    directory : Path
        An existing folder; the files replace those of an earlier report.

    Returns
    -------
    dict of str to str
        Names of the files, and what they hold.
    """
    drawn, width_in = Cases(cases, study), look_now().width_in
    journal = drawn if width_in is None else Cases(cases, study, IN_COLUMN if width_in < NARROW_IN else ON_PAGE)
    files = {"report.html": "the study, in a browser", "cases.csv": "all cases, as text"}
    write_bytes(directory / "cases.csv", cases.to_csv(index=False).encode())
    views = list[dict[str, Any]]()
    charts = list[dict[str, Any]]()
    undrawn = list[str]()
    for view in views_of(drawn):
        chart = chart_of(drawn, view)
        if chart is None:
            undrawn.append(f"{view.title}: not drawn, as {drawn.lack(view)}")
            continue
        name = f"figures/{len(charts) + 1:02d}-{_slug(view)}"
        charts.append(chart.to_dict())
        figure = charts[-1] if journal is drawn else _for_journal(chart_of(journal, view))
        written = _write_figures(figure, directory, name)
        views.append({"title": view.title, "files": written})
        unfit = drawn.of(view).unfit()
        files |= dict.fromkeys(written, f"{view.title}; {unfit}" if unfit else view.title)
    for old in (directory / "figures").glob("[0-9][0-9]-*.*"):  # of views that are no more
        if old.suffix in (".png", ".svg", ".pdf") and f"figures/{old.name}" not in files:
            old.unlink()
    page = _template().render(
        title=study.title or study.name, description=study.description, source=study.source.rstrip("."),
        version=scaleout.__version__, counts=_counts(cases),
        answers=[each for each in (_fastest(drawn), _cheapest(drawn)) if each is not None], views=views,
        undrawn=undrawn, charts=as_script(charts), chart_script=Markup(chart_script()),
        table_script=Markup(_table_script()), same=_same(drawn), table=Markup(_table(drawn)), failures=_failures(cases),
    )  # fmt: skip
    write_bytes(directory / "report.html", page.encode())
    files["report.html"] += "".join(f"; {each}" for each in undrawn)
    return files


def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(
        "study.html.j2"
    )


def as_script(value: Any) -> Markup:
    """Return a value as JSON inside a script, which no text in it can end."""
    return Markup(json.dumps(value, default=str).replace("<", "\\u003c"))


def _slug(view: View) -> str:
    """Return the name of a figure's file: its title, or where that is long its kind and what it draws.

    >>> _slug(View(kind="bar", title="The step on both networks"))
    'the-step-on-both-networks'
    >>> _slug(View(kind="tornado", y="makespan_s", title="What moves the makespan, one input at a time"))
    'tornado-makespan-s'
    """
    drawn = view.colour if view.kind == "heat_map" else view.y
    words = (view.title, f"{view.kind} {drawn}")
    title, short = (re.sub(r"[^a-z0-9]+", "-", each.lower()).strip("-") for each in words)
    return title if title and len(title) <= _LONGEST_NAME else short[:_LONGEST_NAME].rstrip("-")


def _for_journal(chart: Any) -> dict[str, Any]:
    """Return a chart with the fonts of a journal, its legend below, and its title left to the caption.

    What the title says of the cases that are drawn is a note below.
    """
    specification: dict[str, Any] = chart.to_dict()
    narrow = (look_now().width_in or NARROW_IN) < NARROW_IN
    told = [
        line for each in specification.pop("title")["subtitle"] for line in wrap(each, _NARROW if narrow else _WIDE)
    ]
    size = COLUMN_POINTS if narrow else PAGE_POINTS
    fonts = {"labelFontSize": size, "titleFontSize": size}
    below = {"orient": "bottom", "offset": 4, "columns": 2 if narrow else 4, "labelLimit": 220}
    config = specification["config"]
    below["symbolSize"] = 2 * (IN_COLUMN if narrow else ON_PAGE).mark
    if told:
        specification["title"] = {"text": told, "orient": "bottom", "anchor": "start", "fontSize": size, "offset": 10}
    for name, more in (("axis", {}), ("header", {}), ("legend", below)):
        config[name] = {**config[name], **fonts, **more}
    sized = {**specification, "config": {**config, "text": {"fontSize": size}}}
    found: dict[str, Any] = json.loads(_FONT.sub(f'"fontSize": {size}', json.dumps(sized)))
    return found


def _drawable(value: Any) -> Any:
    """Return what a chart is of with `printable` texts: the engine ends the process at what XML cannot hold."""
    if isinstance(value, dict):
        return {_drawable(key): _drawable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_drawable(each) for each in value]
    return printable(value) if isinstance(value, str) else value


def _write_figures(specification: dict[str, Any], directory: Path, name: str) -> list[str]:
    """Write a chart in the formats and at the width that `look` says, and return the names of the files."""
    how = look_now()
    (directory / name).parent.mkdir(exist_ok=True)
    if (fonts := _fonts()) is not None:
        vl_convert.register_font_directory(str(fonts))
    drawn = vl_convert.vegalite_to_svg(_drawable(specification))
    numbers: dict[str, str] = {}  # of colour scales, which a process counts on: the same bytes for the same view
    svg = re.sub(r"gradient_\d+", lambda found: numbers.setdefault(found[0], f"gradient_{len(numbers)}"), drawn)
    scale, ppi = 2.0, 72.0
    if how.width_in is not None:  # a pixel of the drawing is a point
        points, scale, ppi = 72 * how.width_in, 1.0, 300.0
        size = _SIZE.search(svg)
        assert size is not None, "every drawing of Vega says its size"
        high = float(size[2]) * points / float(size[1])
        svg = _SIZE.sub(f'width="{points:.6g}" height="{high:.6g}"', svg, count=1)
    in_points = svg if how.width_in is None else _SIZE.sub(r'width="\1pt" height="\2pt"', svg, count=1)
    make: dict[str, Callable[[], bytes]] = {
        "png": lambda: vl_convert.svg_to_png(svg, scale=scale, ppi=ppi),
        "svg": in_points.encode,
        "pdf": lambda: vl_convert.svg_to_pdf(svg),
    }
    written = [f"{name}.{each}" for each in ((how.format,) if how.format else ("png", "svg"))]
    for file in written:
        write_bytes(directory / file, make[file.rpartition(".")[2]]())
    return written


def _fonts() -> Path | None:
    """Return where matplotlib keeps the font that all figures have, without loading it."""
    found = importlib.util.find_spec("matplotlib")
    folder = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf" if found and found.origin else None
    return folder if folder is not None and folder.is_dir() else None


def _counts(cases: pd.DataFrame) -> str:
    found = cases["status"].value_counts()
    told = [f"{count:,} {status}" for status, count in found.items() if status != "ok"]
    if unfit := num_unfit(cases):
        told.append(f"{unfit:,} too large for memory")
    return f"{counted(len(cases), 'case')}" + (f", of which {', '.join(told)}." if told else ".")


def _fastest(cases: Cases) -> _Table | None:
    """Return the fastest case of each workload."""
    if cases.frame.empty or "makespan_s" not in cases.frame:
        return None
    label = column_of(measure_of(cases.frame)).label
    return _answer(cases, f"The fastest case of each workload, by {label}", best_of(cases.study, cases.frame))


def _cheapest(cases: Cases) -> _Table | None:
    """Return the case of each workload on the cheapest network that is nearly as fast; None if prices are one."""
    found = cheapest_of(cases.study, cases.frame)
    caption = f"The cheapest network within {100 * cases.study.file.within:.4g}% of the fastest, of as many ranks"
    return _answer(cases, caption, found, "network_dollars") if found else None


def _answer(cases: Cases, caption: str, chosen: list[dict[str, Any]], *more: str) -> _Table:
    """Return chosen cases: the inputs that vary, and their main results."""
    found = cases.frame.set_index("case", drop=False).loc[[each["case"] for each in chosen]]
    inputs = [name for name in ("workload", *cases.study.axes) if name in found]
    by = measure_of(cases.frame)
    found = found.assign(**{by: measured(found, by)})
    names = dict.fromkeys(("makespan_s", by, *more, "speedup", "tokens_per_s", "mfu", "exposed_share"))
    results = [name for name in names if _known(found, name)]
    columns = list(dict.fromkeys((*inputs, *results)))
    rows = [[cases.text(name, row[name]) for name in columns] for _, row in found.head(_MOST_FASTEST).iterrows()]
    heads = [column_of(name).label for name in columns]
    return _Table(caption, heads, rows, [i for i, name in enumerate(columns) if name in results])


def _known(frame: pd.DataFrame, name: str) -> bool:
    return name in frame and bool(frame[name].notna().any())


def _failures(cases: pd.DataFrame) -> list[dict[str, str]]:
    """Return the messages of cases without a result, each once, with the numbers of some of its cases."""
    rows = list[dict[str, str]]()
    for (status, message), group in cases[cases["status"] != "ok"].groupby(["status", "message"], sort=False):
        numbers = [str(number) for number in group["case"][:_MOST_NAMED]]
        more = len(group) - len(numbers)
        rows.append(
            {
                "status": str(status),
                "message": str(message),
                "cases": ", ".join(numbers) + (f" and {more} more" if more else ""),
            }
        )
    return rows


def _table_script() -> str:
    bundle = Path(itables.__file__).parent / "html" / "dt_bundle.js"
    return itables.javascript.generate_init_offline_itables_html(bundle)


def _table(cases: Cases) -> str:
    """Return the cases as a sortable table: inputs, main results and derived columns, status and how to run each."""
    derived = [name for name in cases.study.columns if name in cases.all]
    results = [name for name in (*_SHOWN, *derived) if _known(cases.all, name)]
    columns = ["case", *_split(cases)[0], *results, "status", "run", "timeline"]
    shown = pd.DataFrame({cases.label(name): _digits(cases.all[name]) for name in columns})
    link = itables.JavascriptFunction(
        "function (data) { return data ? `<a href=\"${encodeURI(data)}\">open</a>` : ''; }"
    )
    shares = [number for number, name in enumerate(columns) if column_of(name).unit == "share"]
    floats = [number for number, name in enumerate(columns) if pd.api.types.is_float_dtype(cases.all[name])]
    given = [number for number, name in enumerate(columns) if name in cases.inputs]
    digits = "Number(data).toLocaleString('en-US', {%smaximumSignificantDigits: %d})"
    written = {
        _written("`${(100 * data).toFixed(1)}%`"): shares,
        _written(digits % ("", 4)): sorted({*floats} & {*given}),
        _written(digits % ("minimumSignificantDigits: 3, ", 3)): sorted({*floats} - {*shares, *given}),
    }
    return itables.to_html_datatable(
        shown, table_id="cases", connected=False, text_in_header_can_be_selected=False, showIndex=False, maxBytes=0,
        paging=len(shown) > _A_PAGE, pageLength=_A_PAGE, scrollX=True, classes="display compact nowrap",
        allow_html=False,
        columnDefs=[
            {"targets": len(columns) - 1, "render": link},
            *({"targets": targets, "render": render} for render, targets in written.items() if targets),
        ],
    )  # fmt: skip


def _written(shown: str) -> itables.JavascriptFunction:
    """Return what shows a number of a cell, `data`, as an expression says, and leaves what is sorted by."""
    return itables.JavascriptFunction(
        f"function (data, type) {{ return type !== 'display' || data === '' ? data : {shown}; }}"
    )


def _split(cases: Cases) -> tuple[list[str], dict[str, str]]:
    """Return the inputs that differ among cases, in columns, and the others with their only value, as words."""
    alone = {}
    for name in cases.inputs:
        values = cases.all[name].drop_duplicates()
        if len(cases.all) > 1 and len(values) == 1:
            alone[name] = cases.text(name, values.iloc[0])
    return [name for name in cases.inputs if name not in alone], alone


def _same(cases: Cases) -> str:
    """Return what all cases have in common, for above the table."""
    told = ", ".join(f"{cases.label(name)} {value}" for name, value in _split(cases)[1].items() if value)
    return f"All cases: {told}." if told else ""


def _digits(values: pd.Series) -> pd.Series:
    """Return numbers at four significant digits, what is missing as an empty text, and anything else as it is."""
    if pd.api.types.is_float_dtype(values):
        values = values.map(lambda value: float(f"{value:.4g}"), na_action="ignore")
    return values.astype(object).where(values.notna(), "")
