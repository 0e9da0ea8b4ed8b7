"""An output of scaleout to one page for a browser: its answer, a timeline, tables, the network and what-ifs.

The page holds all styles and scripts and asks nobody but the server that it came from: for marks of another window of
time, and for the answer to a what-if.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import jinja2
from markupsafe import Markup

import scaleout
from scaleout.config.units import counted
from scaleout.report.colours import COMMUNICATION, COMPUTE, IDLE, SERIES, time_scale
from scaleout.report.pages.document import Table, tables_of
from scaleout.report.pages.slices import MOST_TRACKS, Slices
from scaleout.report.pages.study import as_script
from scaleout.report.pages.vega import chart_script

_HEIGHT = 20
"""Of a track."""
_COLLECTIVES = (COMMUNICATION, "#aa3377", "#228833", "#ccbb44", "#66ccee", "#882255")
_TIME_AXIS = alt.Axis(labelFlush=False, labelOverlap="greedy", labelSeparation=8, tickCount=10)
"""Of a timeline: a label that is moved inwards at an end would lie on the next."""
_MOST_FACTS = 6
"""Facts about a slice that pointing at it shows."""


@dataclass(frozen=True)
class Control:
    """One thing that can be changed: by a slider over `values`, or by a choice of them.

    `labels` say what each value is, and `at` is the place of the one that holds now.
    """

    name: str
    label: str
    values: Sequence[Any]
    labels: Sequence[str]
    at: int
    slider: bool = True


@dataclass(frozen=True, eq=False)
class Page:
    """What a page shows; `jobs` are names of the jobs that it can simulate again, such as the plans of a search."""

    title: str
    what: str
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    slices: Slices | None = None
    network: Sequence[str] = ()  # lines of text
    loads: Sequence[tuple[str, str]] = ()  # title and picture as a data address
    pictures: Sequence[tuple[str, str]] = ()
    jobs: Sequence[str] = ()
    notes: Sequence[str] = ()
    controls: Sequence[Control] = field(default_factory=tuple)


@cache
def _template(name: str) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.get_template(name)


def _macro(name: str, value: Any) -> Markup:
    """Return what a macro of the template of parts makes of a value."""
    return Markup(getattr(_template("parts.html.j2").module, name)(value))


def page_of(page: Page, nonce: str) -> str:
    """Return a page; `nonce` is what its scripts are allowed by."""
    return _template("view.html.j2").render(
        page=page, nonce=nonce, version=scaleout.__version__, parts=parts_of(page),
        chart_script=Markup(chart_script()),
        state=as_script(
            {
                "controls": [vars(each) for each in page.controls],
                "timeline": None if page.slices is None else timeline_of(page.slices),
            }
        ),
    )  # fmt: skip


def parts_of(page: Page) -> dict[str, str]:
    """Return the parts of a page that a what-if changes, as HTML by the element that holds each."""
    return {name: _macro(name, page) for name in ("facts", "tables", "network")}


def answer_parts(document: Mapping[str, Any], page: Page, answer: Table) -> dict[str, str]:
    """Return the parts of a page that show the answer to a what-if: it, its tables and its network.

    What the output itself holds, such as the plans of a search, stays.
    """
    detail = Page(page.title, page.what, tables=tables_of(document))
    return {
        "answer": _macro("plain", answer), "network": _macro("network", page),
        "answer-tables": _macro("tables", detail),
    }  # fmt: skip


def timeline_of(
    slices: Slices, window: tuple[float, float] | None = None, processes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a chart of a window [s] of a timeline, and what it shows: by default all of it, of the first processes."""
    first, last = window or (0.0, slices.end)
    first, last = max(0.0, first), min(slices.end, last)
    if not last > first:
        first, last = 0.0, slices.end or 1e-9
    shown = [name for name in slices.processes if name in processes] or _first(slices)
    marks = slices.marks((first, last), shown)
    tracks = [number for number, track in enumerate(slices.tracks) if track.process in shown]
    joined = sum(mark["count"] for mark in marks if mark["count"] > 1)
    return {
        "window": [first, last], "end": slices.end, "processes": list(slices.processes), "shown": shown,
        "scale": time_scale(slices.end)[0], "chart": _chart(slices, tracks, marks, (first, last)),
        "words": f"{sum(mark['count'] for mark in marks):,} of "
        f"{counted(len(slices.events), 'slice')} in {len(marks):,} marks"
        + (f"; {joined:,} that are shorter than a pixel are joined (paler)" if joined else ""),
    }  # fmt: skip


def _first(slices: Slices) -> list[str]:
    """Return the first process of each schedule, as far as their tracks can be drawn."""
    firsts = {name.partition(":")[0]: name for name in reversed(slices.processes)}
    found, tracks = list[str](), 0
    for name in (name for name in slices.processes if name in firsts.values()):
        tracks += sum(track.process == name for track in slices.tracks)
        if found and tracks > MOST_TRACKS:
            break
        found.append(name)
    return found


def _chart(
    slices: Slices, tracks: Sequence[int], marks: Sequence[Mapping[str, Any]], window: tuple[float, float]
) -> dict[str, Any]:
    scale, unit = time_scale(slices.end)
    names = {number: " | ".join(slices.tracks[number]) for number in tracks}
    short = {number: _without_ranks(name) for number, name in names.items()}
    names = short if len(set(short.values())) == len(names) else names
    rows = [
        {
            "track": names[mark["track"]], "start": mark["start_s"] * scale, "end": mark["end_s"] * scale,
            "length": (mark["end_s"] - mark["start_s"]) * scale, "kind": mark["kind"], "name": mark["name"],
            "count": mark["count"], "busy": mark["busy"], "about": _about(mark["about"]),
        }
        for mark in marks
    ]  # fmt: skip
    colours, order = _colours(slices.kinds), list(names.values())
    x_scale = alt.Scale(domain=[each * scale for each in window], nice=False)
    tooltip = [
        alt.Tooltip("name:N"), alt.Tooltip("kind:N"), alt.Tooltip("start:Q", title=f"start [{unit}]", format=".6~g"),
        alt.Tooltip("length:Q", title=f"length [{unit}]", format=".4~g"), alt.Tooltip("count:Q", title="slices"),
        alt.Tooltip("busy:Q", format=".0%"), alt.Tooltip("about:N"),
    ]  # fmt: skip
    marks_drawn = alt.Chart().mark_rect(clip=True, stroke=None).encode(
        x=alt.X("start:Q", title=f"time [{unit}]", scale=x_scale, axis=_TIME_AXIS),
        x2="end:Q",
        y=alt.Y("track:N", title=None, sort=order, scale=alt.Scale(domain=order, padding=0.15)),
        color=alt.Color("kind:N", title=None, scale=alt.Scale(domain=list(colours), range=list(colours.values())),
                        legend=alt.Legend(orient="top")),
        opacity=alt.condition("datum.count > 1", alt.value(0.6), alt.value(1.0)),
        tooltip=tooltip,
    )  # fmt: skip
    sized = marks_drawn.properties(width="container", height=_HEIGHT * max(1, len(tracks)))
    chart = sized.add_params(alt.selection_interval(name="zoom", bind="scales", encodings=["x"]))
    return {**chart.to_dict(), "data": {"values": rows}}


def _without_ranks(name: str) -> str:
    """Return the name of a track without its ranks, as where each schedule has one class of them.

    >>> _without_ranks("fused: ranks 0-127 | stream 0: compute")
    'fused | stream 0: compute'
    """
    process, _, track = name.partition(" | ")
    return f"{process.partition(':')[0]} | {track}"


def _about(about: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in list(about.items())[:_MOST_FACTS])


def _colours(kinds: Sequence[str]) -> dict[str, str]:
    """Return the colour of each kind of slice: compute, phases, and every kind of collective its own."""
    others = [kind for kind in kinds if kind not in ("compute", "phase")]
    known = {"compute": COMPUTE, "phase": IDLE}
    ring = _COLLECTIVES if len(others) <= len(_COLLECTIVES) else (*_COLLECTIVES, *SERIES)
    return {kind: known[kind] for kind in known if kind in kinds} | {
        kind: ring[number % len(ring)] for number, kind in enumerate(others)
    }
