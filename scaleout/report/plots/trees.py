"""Loads of switched networks to a picture: ranks in their nodes, the switches of each level, links up and down.

The innermost dimension is drawn below the ranks, in the box of a node, the others above. Of many coordinates along a
dimension a few are drawn: the first of each load among them, the busiest loads first, and the last.

Symbols: R ranks; D dimensions; P ports.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch
from matplotlib.patheffects import withStroke

from scaleout.analysis.bounds import dimension_names
from scaleout.analysis.traffic import DimensionTraffic
from scaleout.cluster.topology.topology import Topology
from scaleout.config.units import format_ranks
from scaleout.network.flow.link_traffic import LinkTraffic
from scaleout.network.routes.links import Floats, Ints
from scaleout.report.drawing import changed_names
from scaleout.report.plots.schedules import is_narrow

_MOST_RANKS, _MOST_NODES, _FEW = 8, 4, 3
"""Coordinates that are drawn one by one, along the innermost dimension and the others, and of more than these."""

_MOST_NUMBERED = 12
"""Ranks of a picture that all have their numbers."""

_NARROW_CHARACTERS, _WIDE_CHARACTERS = 50, 90
"""Of a line above a narrow picture, and above others."""

_SIDE = 0.008
"""Distance of a link from the line between its ends, to the right of its way, in widths of the picture."""


def is_tree(topology: Topology) -> bool:
    """Tell whether all links are up to a switch or down from it."""
    wide = [dimension for dimension in topology.dimensions if dimension.size > 1]
    return bool(wide) and all({port.role for port in each.structure.ports(each)} == {"up", "down"} for each in wide)


class _Level(NamedTuple):
    """Links between two rows of one dimension: (R,) load above each rank, up and down, and what is left of the rate."""

    dimension: int
    span: int
    up: Floats
    down: Floats
    left: Floats


@dataclass(frozen=True)
class _Drawn:
    """Ranks that are drawn, their places, and how they stand in nodes."""

    topology: Topology
    ranks: Ints
    coordinates: Ints  # (R, D) of those drawn
    x: Floats
    notes: tuple[str, ...]  # what is left out

    @property
    def nodes(self) -> Ints:
        """Number of the node of each."""
        return np.asarray(self.ranks // self.topology.shape[0], np.int64)


def draw_tree(axes: Axes, traffic: LinkTraffic | DimensionTraffic, scale: mpl.cm.ScalarMappable) -> None:
    """Draw ranks, switches and links, and name the levels at the left, with the busiest link of each way."""
    topology = traffic.links.topology
    levels = _levels(traffic)
    drawn = _chosen(topology, levels, known=isinstance(traffic, LinkTraffic))
    inner, outer = ([each for each in levels if (each.dimension == 0) is within] for within in (True, False))
    if not outer:
        inner, outer = [], inner  # one dimension: upwards, without a box
    names = dimension_names(topology)
    ticks: list[tuple[float, str]] = [(0.0, "ranks")]
    for part, way in ((inner, -1.0), (outer, 1.0)):
        height = 0.0
        below = drawn.x
        for number, level in enumerate(part):
            first = number == 0 or part[number - 1].dimension != level.dimension
            bottom = 0.0 if first else height
            step = 1.0 if way < 0 else 1.6
            places = _places(drawn, level, spread=way > 0)
            ends = (drawn.x if first else below, bottom * way), (places, (height + step) * way)
            _links(axes, ends, level=level, drawn=drawn, scale=scale)
            axes.plot(
                places,
                np.full(len(places), (height + step) * way),
                "s",
                color="#4d4d4d",
                markersize=_size(len(set(places))),
                zorder=3,
            )
            ticks.append(((height + step) * way, "switches" if way > 0 and len(set(places)) > 1 else "switch"))
            ticks.append(((height + 0.55 * step) * way, _said(names[level.dimension], level)))
            height, below = height + step, places
    name_changed([axes], topology)
    low = -len(inner) - 0.25 if inner else 0.0
    _ranks(axes, drawn, low=low)
    _numbers(axes, drawn, np.any([level.left < 1 for level in levels if level.span == 1], axis=0)[drawn.ranks])
    axes.set_ylim(low - 0.15, 1.6 * len(outer) + 0.15)
    axes.set_yticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _levels(traffic: LinkTraffic | DimensionTraffic) -> list[_Level]:
    """Return the levels of all dimensions; a link over a subtree stands at every rank below it."""
    topology = traffic.links.topology
    every = np.arange(topology.num_ranks)
    loads, left = dict[tuple[int, int, str], Floats](), dict[tuple[int, int], Floats]()
    for number, (port, having, _, utilisation) in enumerate(traffic.ports()):
        if port.dimension >= len(topology.shape):
            continue
        load = np.full(topology.num_ranks, np.nan)
        load[having] = 100 * utilisation
        weight = math.prod(topology.shape[: port.dimension])
        first = every - every // weight % port.span * weight
        loads[port.dimension, port.span, port.role] = load[first]
        least = np.minimum(
            left.get((port.dimension, port.span), np.ones(len(every))), traffic.links.left_of(number)[first]
        )
        left[port.dimension, port.span] = least
    return [
        _Level(number, span, load, loads[number, span, "down"], left[number, span])
        for (number, span, role), load in loads.items()
        if role == "up"
    ]


def _chosen(topology: Topology, levels: Sequence[_Level], *, known: bool) -> _Drawn:
    """Return the ranks to draw: all of a small network, else some that stand for others, where loads are `known`."""
    shape = topology.shape
    at = topology.coordinates(np.arange(topology.num_ranks))
    loads = np.nan_to_num(np.round(np.array([each for level in levels for each in (level.up, level.down)]), 3), nan=-1)
    kept, notes = np.ones(topology.num_ranks, bool), []
    for number, size in enumerate(shape):
        if size <= (_MOST_NODES if number else _MOST_RANKS):
            continue
        order = np.argsort(at[:, number], kind="stable")
        slices = loads[:, order].reshape(len(loads), size, -1).swapaxes(0, 1).reshape(size, -1)
        _, first = np.unique(slices, axis=0, return_index=True)
        busiest = first[np.argsort(-slices[first].max(axis=1), kind="stable")]
        changed = at[np.any([level.left < 1 for level in levels], axis=0), number]
        few = np.unique([*busiest[:_FEW], *([1] if len(first) == 1 else []), *changed[:_FEW], size - 1])
        kept &= np.isin(at[:, number], few)
        unit = ("ranks of a node" if len(shape) > 1 else "ranks") if number == 0 else "nodes"
        alike = "all loaded alike" if len(first) == 1 else f"{len(first):,} loads"
        alike += ", the busiest" if len(first) > _FEW else ""
        notes.append(f"{len(few)} of {size:,} {unit}" + (f" ({alike})" if known else ""))
    ranks = np.flatnonzero(kept)
    apart = np.diff(ranks, prepend=ranks[:1]) > 1
    new = np.diff(ranks // shape[0], prepend=ranks[:1] // shape[0]) > 0
    x = np.cumsum(np.where(new, 2.2, np.where(apart, 1.8, 1.0))) - 1.0
    return _Drawn(topology, ranks, at[ranks], x, tuple(notes))


def _places(drawn: _Drawn, level: _Level, *, spread: bool) -> Floats:
    """Return the place across of the switch above each rank: in the middle, or all of a row evenly spread."""
    dimension = drawn.topology.dimensions[level.dimension]
    spans = [span for span, _ in dimension.levels]
    wider = next((span for span in spans if span > level.span), dimension.size)
    key = drawn.coordinates.copy()
    key[:, level.dimension] //= wider
    _, which = np.unique(key, axis=0, return_inverse=True)
    which = which.ravel()
    middle = np.bincount(which, drawn.x) / np.bincount(which)
    if spread and len(middle) > 1:
        across = np.linspace(drawn.x[0], drawn.x[-1], 2 * len(middle) + 1)[1::2]
        order = np.argsort(middle, kind="stable")
        middle[order] = across
    return np.asarray(middle[which], np.float64)


def _size(count: float) -> float:
    """Return the size [pt] of so many marks in a row, that they stand apart."""
    return min(6.5, (95.0 if is_narrow() else 250.0) / (count + 1))


_Row = tuple[Floats, float]
"""Places across, and the height."""


def _links(axes: Axes, ends: tuple[_Row, _Row], *, level: _Level, drawn: _Drawn, scale: mpl.cm.ScalarMappable) -> None:
    """Draw each link of a level both ways, once for the ranks below it."""
    (low, low_y), (high, high_y) = ends
    keys = np.column_stack([low, high])
    _, once = np.unique(keys, axis=0, return_index=True)
    side = _SIDE * (drawn.x[-1] - drawn.x[0] + 2) * np.sign(high_y - low_y)
    inset = 0.14 * (high_y - low_y)
    bottom, top = low_y + inset, high_y - inset
    for load, begin, end, aside in (
        (level.up, (low, bottom), (high, top), side),
        (level.down, (high, top), (low, bottom), -side),
    ):
        (x, y), (to_x, to_y) = begin, end
        axes.quiver(
            x[once] + aside, np.full(len(once), y), (to_x - x)[once], np.full(len(once), to_y - y),
            load[drawn.ranks][once], cmap=scale.cmap, norm=scale.norm, angles="xy", scale_units="xy", scale=1,
            units="inches", width=min(0.016, 0.3 / float(drawn.x[-1] + 1)), headwidth=4, headlength=4,
            headaxislength=4, minlength=0,
        )  # fmt: skip
    mark_changed(axes, low[once], np.full(len(once), bottom), level.left[drawn.ranks][once])


BROKEN, DEGRADED = ("x", "broken"), ("o", "less bandwidth than built")
"""How links that are changed are marked, and what is said of them."""


def mark_changed(axes: Axes, x: Floats, y: Floats, left: Floats) -> None:
    """Mark links of which nothing or less than all is left, each at a place; what is marked gets an entry."""
    for (marker, label), chosen in ((BROKEN, left == 0), (DEGRADED, (left > 0) & (left < 1))):
        if chosen.any():
            known = label in axes.get_legend_handles_labels()[1]
            axes.plot(
                x[chosen], y[chosen], marker, color="black", markerfacecolor="none", markersize=5, markeredgewidth=1.2,
                zorder=5, label="_" if known else label, path_effects=[withStroke(linewidth=3, foreground="white")],
            )  # fmt: skip


def name_changed(panels: Sequence[Axes], topology: Topology) -> None:
    """Say below a picture what the marks of changed links mean, and which links these are, as options take them."""
    found = (zip(*panel.get_legend_handles_labels(), strict=True) for panel in panels)
    marks = {label: handle for each in found for handle, label in each}
    wide = _NARROW_CHARACTERS if is_narrow() else _WIDE_CHARACTERS
    named = [fill(f"{label}: {changed_names(topology, broken=label == BROKEN[1])}", wide) for label in marks]
    if named:
        panels[0].figure.legend([*marks.values()], named, loc="outside lower center", frameon=False, fontsize="small")


def _said(name: str, level: _Level) -> str:
    """Name a level's links and how busy they are, each way: the busiest, where not all are alike."""
    up, down = map(_most, (level.up, level.down))
    above = f"{name}, of {level.span:,} together" if level.span > 1 else name
    return f"{above}\nup {up}, down {down}"


def _most(load: Floats) -> str:
    most = float(np.nanmax(load))
    return f"{'' if np.isclose(np.nanmin(load), most) else 'at most '}{most:.3g}%"


def _numbers(axes: Axes, drawn: _Drawn, changed: npt.NDArray[np.bool_]) -> None:
    """Number ranks with a changed link where not all ranks have their numbers, those side by side as one range."""
    at = np.flatnonzero(changed)
    beside = np.split(at, np.flatnonzero(np.diff(drawn.x[at]) > 1) + 1) if len(drawn.x) > _MOST_NUMBERED else ()
    for some in filter(len, beside):
        words, x = format_ranks(drawn.ranks[some].tolist()), float(drawn.x[some].mean())
        axes.annotate(words, (x, 0), (0, 3.5), textcoords="offset points", ha="center", va="bottom", fontsize=6)


def _ranks(axes: Axes, drawn: _Drawn, *, low: float) -> None:
    """Draw the ranks with their numbers, a box round each node, and say below what is left out."""
    axes.plot(drawn.x, np.zeros(len(drawn.x)), "o", color="#222222", markersize=_size(drawn.x[-1]), zorder=3)
    for rank, x in zip(drawn.ranks.tolist(), drawn.x.tolist(), strict=True) if len(drawn.x) <= _MOST_NUMBERED else ():
        axes.annotate(str(rank), (x, 0), ha="center", va="center", color="white", fontsize=5, zorder=4)
    nodes = sorted(set(drawn.nodes.tolist()))
    middles = []
    for node in nodes:
        x = drawn.x[drawn.nodes == node]
        middles.append(float(x.mean()))
        if low:
            size = (float(x[-1] - x[0]) + 1.2, 0.35 - low)
            box = FancyBboxPatch(
                (float(x[0]) - 0.6, low), *size, boxstyle="round,pad=0,rounding_size=0.2", fill=False, color="#9a9a9a"
            )
            axes.add_patch(box)
    axes.set_xticks(middles, [f"node {node}" for node in nodes] if low else [""] * len(nodes))
    axes.set_xlim(drawn.x[0] - 1, drawn.x[-1] + 1)
    if drawn.notes:
        axes.set_xlabel("\n".join(f"drawn: {note}" for note in drawn.notes))
