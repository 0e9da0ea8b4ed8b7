"""Traffic to pictures: how busy every link of a network is; darker is busier, on one scale in all pictures.

Two rings or meshes are drawn as a grid with a link to each neighbour both ways, switches and fat trees as `trees`;
other topologies as one panel for each dimension and direction, coordinates along it against its lines; edges of graphs
as bars, the busiest first.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    ports = [(port, ranks, utilisation) for port, ranks, _, utilisation in traffic.ports() if len(ranks)]
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


_Ports = list[tuple[Port, Ints, Floats]]


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
    for port, ranks, utilisation in ports:
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
    x, y = np.concatenate(starts).T
    u, v = np.concatenate(ways).T
    axes.quiver(
        x, y, u, v, 100 * np.concatenate(colours), cmap=scale.cmap, norm=scale.norm, angles="xy", scale_units="xy",
        scale=1, units="xy", width=0.09, headwidth=2.4, headlength=2.4, headaxislength=2.4, minlength=0,
    )  # fmt: skip
    for number, port in enumerate(traffic.links.ports):
        if port.dimension in (across, up):
            way = np.array([port.dimension == across, port.dimension == up]) * float(port.offset)
            at = topology.coordinates(np.arange(topology.num_ranks))[:, [across, up]]
            middle = at + _CHAIN * np.array([way[1], -way[0]]) + 0.5 * way
            mark_changed(axes, middle[:, 0], middle[:, 1], traffic.links.left_of(number))
    name_changed(axes, topology)
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
    pictures = [_picture(traffic, *link) for link in ports if link[0].role not in ("pair", "edge")]
    pictures += _matrices(traffic, ports)
    bars = _edges(traffic)
    if not pictures:
        figure, panel = plt.subplots(figsize=(6.5, 0.9 + 0.19 * len(bars)), layout="constrained")
        _bars(panel, bars, scale)
        return figure, panel
    columns = min(2, len(pictures))
    rows = (pictures[start : start + columns] for start in range(0, len(pictures), columns))
    heights = [2.2 if max(len(picture[3]) for picture in row) > 1 else 0.8 for row in rows]
    heights += [0.4 + 0.19 * len(bars)] if bars else []
    figure, axes = plt.subplots(
        len(heights), columns, figsize=(1.2 + 4 * columns, max(2.4, 0.9 + sum(heights))), height_ratios=heights,
        layout="constrained", squeeze=False,
    )  # fmt: skip
    for panel, (label, x_label, y_label, values) in zip(axes.flat, pictures, strict=False):
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
    for panel in list(axes.flat)[len(pictures) :]:
        panel.set_visible(False)
    if bars:
        _bars(figure.add_subplot(axes[0, 0].get_gridspec()[-1, :]), bars, scale)
    return figure, axes


def _edges(traffic: Traffic) -> list[tuple[str, float]]:
    """Return names and utilisation of the busiest edges of graphs, the busiest first; of links that are alike, all."""
    links, count = traffic.links, traffic.links.topology.num_ranks
    found = [
        (float(busy), links.name(number * count + int(rank)))
        for number, (port, ranks, _, utilisation) in enumerate(traffic.ports())
        if port.role == "edge" and len(ranks)
        for rank, busy in zip(ranks.tolist(), utilisation.tolist(), strict=True)
    ]
    found.sort(key=lambda edge: -edge[0])
    return [(name, busy) for busy, name in found[:MOST_EDGES]]


def _bars(panel: Axes, edges: Sequence[tuple[str, float]], scale: mpl.cm.ScalarMappable) -> None:
    names, busy = zip(*edges, strict=True)
    values = 100 * np.array(busy)
    panel.barh(range(len(names)), values, color=scale.to_rgba(values), height=0.8)
    panel.set_yticks(range(len(names)), names, fontsize=7)
    panel.invert_yaxis()
    panel.set_xlim(0, max(values.max(), 1e-9) * 1.02)
    panel.set_xlabel("utilisation of an edge [%]")
    panel.set_title(f"the {len(names)} busiest edges", fontsize=9)


_Picture = tuple[str, str, str, Floats]
"""Title, labels of both axes, and utilisation (lines, coordinates)."""


def _picture(traffic: Traffic, port: Port, ranks: Ints, utilisation: Floats) -> _Picture:
    """Utilisation of one port: a row for each line of its dimension, a column for each coordinate along it."""
    topology = traffic.links.topology
    if port.dimension >= len(topology.dimensions):
        return "injection", "rank", "", utilisation[None]
    at = topology.coordinates(ranks)
    others = [number for number in range(len(topology.shape)) if number != port.dimension]
    shape = tuple(topology.shape[number] for number in others)
    line = np.ravel_multi_index(tuple(at[:, others].T), shape, order="F") if others else np.zeros(len(ranks), np.int64)
    coordinate = at[:, port.dimension] // port.span
    values = np.full((math.prod(shape), int(coordinate.max()) + 1), np.nan)
    values[line, coordinate] = utilisation
    label = f"{dimension_names(topology)[port.dimension]} ({traffic.links.kind_of(port)}): {port.role}"
    label += f", bundles over {port.span} coordinates" if port.span > 1 else ""
    along = f"bundle along dimension {port.dimension}" if port.span > 1 else f"place along dimension {port.dimension}"
    lines = f"along dimension {' and '.join(str(number) for number in others if topology.shape[number] > 1)}"
    return label, along, lines if len(values) > 1 else "", values


def _matrices(traffic: Traffic, ports: _Ports) -> list[_Picture]:
    """Utilisation of the links of pairs, the busiest of all lines: from a coordinate to a coordinate."""
    pictures = []
    for number in sorted({port.dimension for port, _, _ in ports if port.role == "pair"}):
        size = traffic.links.topology.shape[number]
        values = np.full((size, size), np.nan)
        for port, ranks, utilisation in ports:
            if port.role == "pair" and port.dimension == number:
                coordinate = traffic.links.topology.coordinates(ranks)[:, number]
                most = np.zeros(size)
                np.maximum.at(most, coordinate, utilisation)
                values[(np.arange(size) + port.offset) % size, np.arange(size)] = most
        topology = traffic.links.topology
        label = f"{dimension_names(topology)[number]} ({topology.dimensions[number].kind})"
        pictures.append((label, "from coordinate", "to coordinate", values))
    return pictures
