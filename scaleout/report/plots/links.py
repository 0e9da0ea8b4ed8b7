"""Traffic to pictures: how busy every link of a network is; darker is busier, on one scale in all pictures.

Two rings or meshes are drawn as a grid with a link to each neighbour both ways, switches and fat trees as `trees`;
other topologies as one panel for each dimension and direction, coordinates along it against its lines; edges of graphs
as bars, the busiest first.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize

from scaleout.analysis.bounds import dimension_names
from scaleout.analysis.traffic import DimensionTraffic
from scaleout.cluster.topology.topology import Topology
from scaleout.network.flow.link_traffic import LinkTraffic
from scaleout.network.routes.links import Floats, Ints, Port
from scaleout.report.colours import COMMUNICATION
from scaleout.report.plots.schedules import STYLE, is_narrow, journal, save
from scaleout.report.plots.trees import draw_tree, is_tree, mark_changed, name_changed

Traffic = LinkTraffic | DimensionTraffic

COLOURS = LinearSegmentedColormap.from_list("links", ["#e0e0e0", "#f2b36f", COMMUNICATION, "#b3341a", "#420808"])
"""Pale grey where a link rests, dark where it is full; reads in grey and without colour vision."""

MOST_DRAWN = 40
"""Coordinates along a dimension that are drawn link by link; more are too small to see."""

MOST_EDGES = 24
"""Edges of graphs that are drawn."""

_CHAIN, _GAP = 0.13, 0.16
"""Distance of a link from the line between its ends, to the right of its way, and of its ends from the coordinates."""


def draw_links(traffic: Traffic, path: Path, *, title: str) -> None:
    """Draw the utilisation of every link."""
    topology = traffic.links.topology
    every_port = enumerate(traffic.ports())  # in the order of the links' own
    ports = [_Loaded(port, ranks, busy, traffic.links.left_of(at)) for at, (port, ranks, _, busy) in every_port]
    ports = [each for each in ports if len(each.ranks)]
    with mpl.rc_context({**STYLE, **journal(), "axes.spines.top": True, "axes.spines.right": True}):
        scale = mpl.cm.ScalarMappable(Normalize(0, 100), COLOURS)
        if _is_plane(topology):
            figure, axes = plt.subplots(figsize=_plane_size(topology), layout="constrained")
            _plane(axes, traffic, ports, scale)
            every = [axes]
        elif is_tree(topology):
            figure, axes = plt.subplots(
                figsize=(7.0, 1.6 + 1.2 * sum(port.role == "up" for port, *_ in ports)), layout="constrained"
            )
            draw_tree(axes, traffic, scale)
            every = [axes]
        else:
            figure, every = _panels(traffic, ports, scale)
        bar = figure.colorbar(scale, ax=every, pad=0.02, fraction=0.05, location="bottom" if is_narrow() else "right")
        of_busiest = isinstance(traffic, DimensionTraffic)
        bar.set_label("busiest link of each dimension [%]" if of_busiest else "utilisation of a link [%]")
        bar.outline.set_visible(False)
        figure.suptitle(title, fontsize=10)
        save(figure, path)


class _Loaded(NamedTuple):
    """A port, the ranks that have it, how busy their links are, and what is left of those of every rank."""

    port: Port
    ranks: Ints
    utilisation: Floats
    left: Floats


_Ports = list[_Loaded]


def _is_plane(topology: Topology) -> bool:
    shape = [size for size in topology.shape if size > 1]
    lines = all(dimension.structure.neighbours for dimension in topology.dimensions if dimension.size > 1)
    return len(shape) == 2 and lines and max(shape) <= MOST_DRAWN


def _plane_size(topology: Topology) -> tuple[float, float]:
    """Return inches: wide enough for the title, and at the same scale both ways."""
    across, up = (size for size in topology.shape[::-1] if size > 1)
    each = min(0.5, 9.0 / max(across, up))
    return max(4.5, each * (across + 1) + 1.6), max(2.5, each * (up + 1) + 1.0)


def _plane(axes: Axes, traffic: Traffic, ports: _Ports, scale: mpl.cm.ScalarMappable) -> None:
    """Draw coordinates as dots and links as arrows, the outer dimension across; wrap-around links leave the picture."""
    topology = traffic.links.topology
    up, across = (number for number, size in enumerate(topology.shape) if size > 1)
    shape = np.array([topology.shape[across], topology.shape[up]])
    starts, ways, colours = [], [], []
    for port, ranks, utilisation, left in ports:
        if port.dimension not in (across, up):
            continue
        way = np.array([port.dimension == across, port.dimension == up]) * float(port.offset)
        aside = _CHAIN * np.array([way[1], -way[0]])  # to the right
        coordinates = topology.coordinates(ranks)[:, [across, up]].astype(np.float64)
        round_the_end = ((coordinates + way < 0) | (coordinates + way >= shape)).any(axis=1)
        first = coordinates + aside + _GAP * way
        starts += [first, (coordinates + aside - (shape - 1) * way - (1 - _GAP) * way)[round_the_end]]
        stretch = np.repeat(((1 - 2 * _GAP) * way)[None], len(ranks), axis=0)
        ways += [stretch, stretch[round_the_end]]
        colours += [utilisation, utilisation[round_the_end]]
        middle = topology.coordinates(np.arange(topology.num_ranks))[:, [across, up]] + aside + 0.5 * way
        mark_changed(axes, middle[:, 0], middle[:, 1], left)
    x, y = np.concatenate(starts).T
    u, v = np.concatenate(ways).T
    axes.quiver(
        x, y, u, v, 100 * np.concatenate(colours), cmap=scale.cmap, norm=scale.norm, angles="xy", scale_units="xy",
        scale=1, units="xy", width=0.09, headwidth=2.4, headlength=2.4, headaxislength=2.4, minlength=0,
    )  # fmt: skip
    name_changed([axes], topology)
    grid = np.stack(np.meshgrid(np.arange(shape[0]), np.arange(shape[1])), axis=-1).reshape(-1, 2)
    axes.plot(grid[:, 0], grid[:, 1], "o", color="#222222", markersize=max(1.0, 40 / max(shape)), linestyle="")
    axes.set_aspect("equal")
    axes.set_xlim(-1, shape[0])
    axes.set_ylim(-1, shape[1])
    for spine in axes.spines.values():
        spine.set_visible(False)
    for axis, number in ((axes.xaxis, across), (axes.yaxis, up)):
        size = topology.shape[number]
        axis.set_ticks(range(0, size, 1 if size <= 16 else 4))
        axis.set_label_text(f"place along dimension {number} ({topology.dimensions[number].kind})")


def _panels(traffic: Traffic, ports: _Ports, scale: mpl.cm.ScalarMappable) -> tuple[Any, Any]:
    """Draw one panel for each dimension and direction, two in a row; links of pairs as a matrix of coordinates."""
    pictures = [_picture(traffic, link) for link in ports if link.port.role not in ("pair", "edge")]
    pictures += _matrices(traffic, ports)
    bars = _edges(traffic)
    if not pictures:
        figure, panel = plt.subplots(figsize=(6.5, 0.9 + 0.19 * len(bars)), layout="constrained")
        _bars(panel, bars, scale)
        name_changed([panel], traffic.links.topology)
        return figure, panel
    columns = min(2, len(pictures))
    rows = (pictures[start : start + columns] for start in range(0, len(pictures), columns))
    heights = [2.2 if max(len(picture.values) for picture in row) > 1 else 0.8 for row in rows]
    heights += [0.4 + 0.19 * len(bars)] if bars else []
    figure, axes = plt.subplots(
        len(heights), columns, figsize=(1.2 + 4 * columns, max(2.4, 0.9 + sum(heights))), height_ratios=heights,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for panel, (label, x_label, y_label, values, left) in zip(axes.flat, pictures, strict=False):
        panel.imshow(
            100 * values, cmap=scale.cmap, norm=scale.norm, aspect="auto", interpolation="nearest", origin="lower"
        )
        panel.set_title(label, fontsize="medium")
        panel.set_xlabel(x_label)
        panel.set_ylabel(y_label)
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(mpl.ticker.MaxNLocator(integer=True, nbins=8))
        if values.shape[0] == 1:
            panel.set_yticks([])
        line, coordinate = np.indices(left.shape, np.float64)
        mark_changed(panel, coordinate.ravel(), line.ravel(), left.ravel())
    for panel in list(axes.flat)[len(pictures) :]:
        panel.set_visible(False)
    if bars:
        _bars(figure.add_subplot(axes[0, 0].get_gridspec()[-1, :]), bars, scale)
    name_changed(figure.axes, traffic.links.topology)
    return figure, axes


class _Edge(NamedTuple):
    name: str
    busy: float
    left: float


def _edges(traffic: Traffic) -> list[_Edge]:
    """Return the busiest edges of graphs, the busiest first; of links that are alike, all."""
    links, count = traffic.links, traffic.links.topology.num_ranks
    found = [
        _Edge(links.name(number * count + rank), busy, float(links.left_of(number)[rank]))
        for number, (port, ranks, _, utilisation) in enumerate(traffic.ports())
        if port.role == "edge" and len(ranks)
        for rank, busy in zip(ranks.tolist(), utilisation.tolist(), strict=True)
    ]
    found.sort(key=lambda edge: -edge.busy)
    return found[:MOST_EDGES]


def _bars(panel: Axes, edges: Sequence[_Edge], scale: mpl.cm.ScalarMappable) -> None:
    names, busy, left = zip(*edges, strict=True)
    values = 100 * np.array(busy)
    panel.barh(range(len(names)), values, color=scale.to_rgba(values), height=0.8)
    mark_changed(panel, values, np.arange(float(len(names))), np.array(left))
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.invert_yaxis()
    panel.set_xlim(0, max(values.max(), 1e-9) * 1.02)
    panel.set_xlabel("utilisation of an edge [%]")
    panel.set_title(f"the {len(names)} busiest edges", fontsize=9)


class _Picture(NamedTuple):
    """Title, labels of both axes, utilisation and what is left of bandwidth: both (lines, coordinates)."""

    title: str
    x_label: str
    y_label: str
    values: Floats
    left: Floats


def _picture(traffic: Traffic, link: _Loaded) -> _Picture:
    """Utilisation of one port: a row for each line of its dimension, a column for each coordinate along it."""
    topology, port = traffic.links.topology, link.port
    if port.dimension >= len(topology.dimensions):
        return _Picture("injection", "rank", "", link.utilisation[None], link.left[None])
    at = topology.coordinates(np.arange(topology.num_ranks))
    others = [number for number in range(len(topology.shape)) if number != port.dimension]
    shape = tuple(topology.shape[number] for number in others)
    line = np.ravel_multi_index(tuple(at[:, others].T), shape, order="F") if others else np.zeros(len(at), np.int64)
    coordinate = at[:, port.dimension] // port.span
    left = np.ones((math.prod(shape), int(coordinate.max()) + 1))
    np.minimum.at(left, (line, coordinate), link.left)
    values = np.full(left.shape, np.nan)
    values[line[link.ranks], coordinate[link.ranks]] = link.utilisation
    label = f"{dimension_names(topology)[port.dimension]} ({traffic.links.kind_of(port)}): {port.role}"
    label += f", bundles over {port.span} coordinates" if port.span > 1 else ""
    along = f"bundle along dimension {port.dimension}" if port.span > 1 else f"place along dimension {port.dimension}"
    lines = f"along dimension {' and '.join(str(number) for number in others if topology.shape[number] > 1)}"
    return _Picture(label, along, lines if len(values) > 1 else "", values, left)


def _matrices(traffic: Traffic, ports: _Ports) -> list[_Picture]:
    """Utilisation of the links of pairs, the busiest of all lines: from a coordinate to a coordinate."""
    pictures = []
    topology = traffic.links.topology
    along = topology.coordinates(np.arange(topology.num_ranks))
    for number in sorted({each.port.dimension for each in ports if each.port.role == "pair"}):
        size = topology.shape[number]
        values, left = np.full((size, size), np.nan), np.ones((size, size))
        for port, ranks, utilisation, of_ranks in ports:
            if port.role == "pair" and port.dimension == number:
                most, least = np.zeros(size), np.ones(size)
                np.maximum.at(most, along[ranks, number], utilisation)
                np.minimum.at(least, along[:, number], of_ranks)
                ends = (np.arange(size) + port.offset) % size, np.arange(size)
                values[ends], left[ends] = most, least
        label = f"{dimension_names(topology)[number]} ({topology.dimensions[number].kind})"
        pictures.append(_Picture(label, "from coordinate", "to coordinate", values, left))
    return pictures
