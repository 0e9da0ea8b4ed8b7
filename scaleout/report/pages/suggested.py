"""The views of a study: those of its file, or those that its inputs and results suggest. Knows no chart."""

from collections.abc import Sequence

from scaleout.report.colours import SERIES
from scaleout.report.pages.cases import Cases
from scaleout.study.sweep.columns import column_of
from scaleout.study.sweep.table import measure_of
from scaleout.study.sweep.views import View


def views_of(cases: Cases) -> list[View]:
    """Return the views of a study; where it names none, those that its inputs and results suggest."""
    if cases.study.views:
        return [_titled(cases, view) for view in cases.study.views]
    axes = sorted(cases.axes, key=lambda name: -len(cases.order(name)))
    facet = "workload" if "workload" in axes else ""
    free = [name for name in axes if name != facet]
    by = measure_of(cases.frame)
    by = by if cases.has(by) else "makespan_s"
    found = _main_views(cases, free, facet, by)
    priced = next((name for name in ("network_dollars", "dollars", "peak_memory_bytes") if cases.has(name)), None)
    if priced and free:
        colour = next((name for name in ("topology", "schedule") if name in free), free[0])
        found.append(View(kind="pareto", x=priced, y=by, colour=colour, facet=facet))
    if len(free) > 1:
        found.append(View(kind="tornado", y=by, facet=facet))
    return [_titled(cases, view) for view in found]


def _main_views(cases: Cases, free: Sequence[str], facet: str, by: str) -> list[View]:
    """Views over the inputs with most values: by what cases are compared, the speed-up, and two inputs at once."""
    if not free:
        return [View(kind="bar", x=facet, y=by)] if facet else []
    counted = next((name for name in free if len(cases.order(name)) > 2 and cases.numbers(name)), None)
    words = [name for name in free if name != counted and len(cases.order(name)) <= len(SERIES)]
    colour = "schedule" if "schedule" in words else next(iter(words), "")
    first = counted or next((name for name in free if name != colour), free[0])
    colour = "" if colour == first else colour
    found = [View(kind="line" if counted else "bar", x=first, y=by, colour=colour, facet=facet)]
    named = next((name for name in words if name not in (first, colour)), None)
    if cases.has("speedup"):
        found.append(View(kind="bar", x=named or first, y="speedup", colour=colour, facet=facet))
    if len(free) > 1:
        columns = [name for name in free if name != (named or first)]
        found.append(View(kind="heat_map", x=columns[0], y=named or first, colour=by, facet=facet))
    return found


def _titled(cases: Cases, view: View) -> View:
    """Return a view with a title."""
    if view.title:
        return view
    label = {name: column_of(name).label for name in (view.x, view.y, view.colour or "makespan_s")}
    titles = {
        "tornado": f"What moves the {label[view.y]}, one input at a time, from the best case",
        "heat_map": f"{label[view.colour or 'makespan_s']} by {label[view.x]} and {label[view.y]}",
    }
    return view.model_copy(
        update={"title": titles.get(view.kind, f"{label[view.y]} over {label[view.x]}").capitalize()}
    )
