"""Timelines in Chrome's trace format to the marks that a picture of one window of time can show.

What is shorter than a pixel is joined with its neighbours on the same track into one mark, which says how many slices
it stands for and how much of its time is busy: nothing that is there is left out, and no mark says more than is there.
Knows neither charts nor pages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from scaleout.config.units import counted
from scaleout.errors import ConfigError
from scaleout.program.graph import Floats, Ints

PIXELS = 1000
"""A slice is drawn by itself from this part of the window on."""
MOST_TRACKS = 24
"""That are drawn at once."""
_PHASES = "phase"
_OTHER = "other"
_BY_COLOUR = {"thread_state_running": "compute"}


class Track(NamedTuple):
    """A stream, or messages, or phases, of ranks that do the same; `process` says which ranks under which schedule."""

    process: str
    name: str


@dataclass(frozen=True, eq=False)
class Slices:
    """All slices of a timeline, in columns of shape (N,), and the tracks that they lie on."""

    tracks: tuple[Track, ...]
    kinds: tuple[str, ...]  # compute, each kind of collective and message, phase
    track: Ints
    kind: Ints
    start_s: Floats
    end_s: Floats
    events: Sequence[Mapping[str, Any]]

    @cached_property
    def end(self) -> float:
        """End of the last slice [s]."""
        return float(self.end_s.max(initial=0.0))

    @cached_property
    def processes(self) -> tuple[str, ...]:
        """Ranks under a schedule, in the order of the timeline."""
        return tuple(dict.fromkeys(track.process for track in self.tracks))

    def marks(self, window: tuple[float, float], processes: Sequence[str]) -> list[dict[str, Any]]:
        """Return what is drawn of a window [s] on the tracks of some processes, at most 1.5 `PIXELS` marks a track.

        A mark has its `track` (a number), `start_s`, `end_s`, `kind`, `count` of slices, and `busy`, the part of its
        time that they take; of several slices the kind is that which takes most.
        """
        first, last = window
        wanted = np.array([track.process in processes for track in self.tracks], bool)
        here = np.flatnonzero(wanted[self.track] & (self.end_s >= first) & (self.start_s <= last))
        pixel = (last - first) / PIXELS
        short = self.end_s[here] - self.start_s[here] < pixel
        found = [self._mark(node) for node in here[~short].tolist()]
        rest = here[short]
        cell = np.floor((self.start_s[rest] - first) / (2 * pixel)).astype(np.int64) if pixel else np.zeros_like(rest)
        order = np.lexsort((self.start_s[rest], cell, self.track[rest]))
        rest, cell = rest[order], cell[order]
        begins = np.flatnonzero(np.diff(cell, prepend=np.nan) != 0) if len(rest) else np.zeros(0, np.int64)
        changes = np.flatnonzero(np.diff(self.track[rest])) + 1
        for nodes in np.split(rest, np.union1d(begins[1:], changes)) if len(rest) else ():
            found.append(self._mark(int(nodes[0])) if len(nodes) == 1 else self._joined(nodes))
        return found

    def _mark(self, node: int) -> dict[str, Any]:
        event = self.events[node]
        about = event.get("args")
        return {
            "track": int(self.track[node]), "start_s": float(self.start_s[node]), "end_s": float(self.end_s[node]),
            "kind": self.kinds[self.kind[node]], "count": 1, "busy": 1.0, "name": str(event.get("name", "")),
            "about": about if isinstance(about, Mapping) else {},
        }  # fmt: skip

    def _joined(self, nodes: Ints) -> dict[str, Any]:
        length_s = self.end_s[nodes] - self.start_s[nodes]
        start_s, end_s = float(self.start_s[nodes].min()), float(self.end_s[nodes].max())
        busy = float(length_s.sum()) / (end_s - start_s) if end_s > start_s else 1.0
        most = int(np.bincount(self.kind[nodes], length_s).argmax())
        return {
            "track": int(self.track[nodes[0]]), "start_s": start_s, "end_s": end_s, "kind": self.kinds[most],
            "count": len(nodes), "busy": min(1.0, busy),
            "name": f"{counted(len(nodes), 'slice')}", "about": {},
        }  # fmt: skip


def slices_of(trace: Any, *, where: str) -> Slices:
    """Read the slices of a trace, an object with `traceEvents` or a list of events; `ConfigError` if it is none."""
    events = trace.get("traceEvents") if isinstance(trace, Mapping) else trace
    if not isinstance(events, list) or not all(isinstance(each, Mapping) for each in events):
        raise ConfigError(
            f"{where}: is no timeline (an object with `traceEvents`); give one of `scaleout run --output`"
        )
    if not all(isinstance(each.get(key), int | str | None) for each in events for key in ("pid", "tid")):
        raise ConfigError(f"{where}: a process or thread of the timeline (`pid`, `tid`) is no number or name; mend it")
    named: dict[tuple[Any, ...], str] = {}
    for each in events:
        about = each.get("args")
        if each.get("ph") == "M" and isinstance(about, Mapping):
            key = (each.get("pid"),) if each.get("name") == "process_name" else (each.get("pid"), each.get("tid"))
            if each.get("name") in ("process_name", "thread_name"):
                named[key] = str(about.get("name"))
    whole = [each for each in events if each.get("ph") == "X"]
    if not all(isinstance(each.get(key), int | float) for each in whole for key in ("ts", "dur")):
        raise ConfigError(f"{where}: a slice of the timeline has no time (`ts`, `dur`); write the file again")
    numbers: dict[tuple[Any, ...], int] = {}
    kinds: dict[str, int] = {}
    track = [numbers.setdefault((each.get("pid"), each.get("tid")), len(numbers)) for each in whole]
    kind = [kinds.setdefault(_kind(each), len(kinds)) for each in whole]
    tracks = [Track(named.get(key[:1], f"process {key[0]}"), named.get(key, f"track {key[1]}")) for key in numbers]
    processes = {name: place for place, name in enumerate(dict.fromkeys(track.process for track in tracks))}
    order = sorted(range(len(tracks)), key=lambda number: _place(tracks[number], processes))
    place = np.argsort(np.array(order, np.int64)) if order else np.zeros(0, np.int64)
    start_s = np.array([each["ts"] for each in whole], np.float64) / 1e6
    return Slices(
        tuple(tracks[number] for number in order), tuple(kinds), place[np.array(track, np.int64)],
        np.array(kind, np.int64), start_s, start_s + np.array([each["dur"] for each in whole], np.float64) / 1e6, whole,
    )  # fmt: skip


def _place(track: Track, processes: Mapping[str, int]) -> tuple[int, str]:
    """Order of a track: processes as they come, and in each its tracks by name, the phases first."""
    return processes[track.process], "" if track.name == f"{_PHASES}s" else track.name


def _kind(event: Mapping[str, Any]) -> str:
    found = _BY_COLOUR.get(str(event.get("cname"))) or event.get("cat")
    return str(found or _OTHER)
