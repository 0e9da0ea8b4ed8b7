"""What charts of studies look like, as the other figures do: font, axes, sizes of panels, and marks of series."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from scaleout.analysis.breakdown import MUCH

FONT = "DejaVu Sans"
"""Of all figures."""


class Panels(NamedTuple):
    """Sizes of panels [px]: the width of each, where one, two or more are side by side, the height, and of marks."""

    widths: tuple[int, ...] = (560, 400, 270)
    height: int = 230
    mark: int = 40  # square pixels
    line: float = 1.5


IN_COLUMN, ON_PAGE = Panels((175,), 115, 10, 1.0), Panels((400, 175, 110), 130, 12, 1.0)
"""Panels in a column or on a page of a journal, of which a pixel is about a point."""

_PLAIN: Mapping[str, Any] = {"titleFontWeight": "normal", "labelColor": "black", "titleColor": "black"}
STYLE: Mapping[str, Any] = {
    "font": f"{FONT}, sans-serif",
    "view": {"stroke": None},
    "axis": {**_PLAIN, "domainColor": "black", "tickColor": "black", "domainWidth": 0.8, "tickWidth": 0.8,
             "tickSize": 3, "gridColor": "#eeeeee", "gridWidth": 0.8},
    "legend": _PLAIN, "header": _PLAIN, "title": {"fontWeight": "normal"},
}  # fmt: skip
"""Of charts, as the other figures have it."""

SHAPES = ("square", "circle", "diamond", "triangle-up", "triangle-down", "cross", "triangle-right")
"""Of marks; of equal cases the corners of the first are seen behind the second."""
ESTIMATED = f"datum.roofline_share >= {MUCH}"
"""Whether so much of a case's kernel time is an estimate that its marks say so."""
PALE = 0.45
"""Opacity of a bar of such a case."""
