"""Runs a study: its cases less those whose results are there already, in chunks of about five seconds.

What is done lies in the output folder's shards and nowhere else, so that a study that was interrupted, by whatever,
goes on where it was, and a study with more cases takes the results of those that it had. One process at a time runs the
whole of a study in a folder, or one of its parts (``--shard``).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import pandas as pd

from scaleout.config.checkpoint import locked
from scaleout.config.units import counted
from scaleout.config.workers import MOST_WORKERS
from scaleout.config.writing import STUDY, check_writable, write_text
from scaleout.errors import ConfigError, shown
from scaleout.study.sweep import execution
from scaleout.study.sweep.cases import Case, Resolver, parts_of
from scaleout.study.sweep.columns import BEFORE
from scaleout.study.sweep.execution import Pool
from scaleout.study.sweep.expressions import Expression
from scaleout.study.sweep.grid import Inputs
from scaleout.study.sweep.shards import FOLDER, known_keys, read_shards, write_shard
from scaleout.study.sweep.study import ASKS_FROM, Study, load_study, study_of
from scaleout.study.sweep.table import table_of_cases
from scaleout.study.sweep.worker import Chunk, Row

_FILES = ("cases.parquet", "cases.csv", "report.html")
"""Of a study's results, those of which another tool may have some."""
CHUNK_S = 5.0
"""What a chunk is to take: long beside what handing it over takes, short beside what is lost with a worker."""
_SHORTEST_S = 0.25
"""What one of the last chunks is to take, which become shorter so that workers end at about the same time."""
_TRIAL_S = 2.0
"""What runs in this process first: a study that is done by then needs no others, which take a second to start."""
_FIRST = 4
"""Cases of a chunk before anything is known of how long they take."""
_TOGETHER = 16
"""Cases in a row that parts of a study share among them, as those near each other run one program."""
_AHEAD = 20_000
"""Cases that are put in the order in which they run."""
_MOST_THERE = 100_000
"""Workers on a cluster."""
_MEMORY_COLUMNS = frozenset(BEFORE) - {"ranks"}
_number = attrgetter("number")


@dataclass(frozen=True)
class Execution:
    """How a study runs.

    Attributes
    ----------
    workers : int, optional
        Processes, or workers of a cluster; by default all cores here, and only this process for a study that is short.
    cluster : str
        ``local``, ``slurm`` or a scheduler's address of Dask; empty for none.
    shard : pair of int
        Which part of the study, from 1, and of how many; only a whole study, 1 of 1, has a table in the end.
    approved : bool
        Whether a study of a million cases or more may run.
    tell : function
        Called now and then with the cases that are done, all that are known of, and those that failed.
    """

    workers: int | None = None
    cluster: str = ""
    shard: tuple[int, int] = (1, 1)
    approved: bool = False
    tell: Callable[[int, int, int], None] = field(default=lambda *_told: None)

    def __post_init__(self) -> None:
        part, parts = self.shard
        if not 1 <= part <= parts:
            raise ConfigError(f"shard {part}/{parts}: give which part of how many, such as 1/8 to 8/8")
        most = MOST_WORKERS if self.cluster in ("", "local") else _MOST_THERE
        if self.workers is not None and not 1 <= self.workers <= most:
            raise ConfigError(f"{self.workers} workers: give 1 to {most:,}")

    @property
    def whole(self) -> bool:
        """Whether it is all of the study."""
        return self.shard == (1, 1)


def cases_of(study: Study, resolver: Resolver) -> Iterator[tuple[int, Inputs]]:
    """Yield number and inputs of the cases that constraints on inputs and ranks leave, in order."""
    constraints = [each for each in study.where if not each.names & _MEMORY_COLUMNS]
    kept: Iterator[tuple[int, Inputs]] = (pair for pair in study.every_case() if _holds(constraints, pair[1], resolver))
    sample = study.file.sample
    if sample is not None:
        kept = iter(sorted(islice(kept, int(sample.count)), key=lambda pair: pair[0]))
    for number, (_, inputs) in enumerate(kept):
        yield number, inputs


def _holds(constraints: Sequence[Expression], inputs: Inputs, resolver: Resolver) -> bool:
    columns = inputs
    if any("ranks" in each.names for each in constraints):
        columns = {**inputs, "ranks": resolver.ranks(inputs)}
    return not any(each(columns) is False for each in constraints)


def run_study(
    study: str | Mapping[str, Any],
    *,
    directory: str | Path | None = None,
    workers: int | None = None,
    cluster: str = "",
    approved: bool = False,
) -> pd.DataFrame:
    """Run a study, and return the table of its cases, a row a case.

    Parameters
    ----------
    study : str or mapping
        The name of a shipped study, a file, or the keys of a file.
    directory : str or Path, optional
        Where results are kept, so that they are not run again; without one they are in memory alone.
    workers, cluster, approved
        As in `Execution`.

    Raises
    ------
    ScaleoutError
        If the study is wrong, or what runs it is lost; a case that fails is a row. See `execute`.
    """
    asked = (
        load_study(study)
        if isinstance(study, str)
        else study_of(study, name=str(study.get("title", "study")), where="run_study()")
    )
    how = Execution(workers=workers, cluster=cluster, approved=approved)
    cases = execute(asked, None if directory is None else Path(directory), how)
    assert cases is not None, "it is whole"
    return cases


def execute(study: Study, directory: Path | None = None, execution: Execution | None = None) -> pd.DataFrame | None:
    """Run what is left of a study, and return the table of its cases; None of a part of it.

    Parameters
    ----------
    directory : Path, optional
        Where results are kept; without one they are in memory alone.

    Raises
    ------
    ConfigError
        If the study has a million cases or more and was not approved, no case is left by its constraints, another
        process works in the directory, or it cannot be written.
    ScaleoutError
        If what runs the cases is lost; what was done is kept.
    OSError
        If the disk is full.
    """
    how = execution or Execution()
    _check_size(study, how)
    with ExitStack() as stack:
        if directory is not None:
            directory = directory.absolute()  # a folder named ~ is no home
            check_writable(directory, own=STUDY)
            directory.mkdir(parents=True, exist_ok=True)
            _lock(stack, directory, how)
            _own(directory, study)
        run = _Run(study, directory, how)
        run.finish()
        if not how.whole:
            return None
        if not run.cases:
            raise ConfigError(f"study {study.name!r}: its constraints leave no case of {study.size:,}; change `where`")
        cases = table_of_cases(study, sorted(run.cases, key=_number), run.rows())
        cases.attrs["title"] = study.title
        return cases


def _check_size(study: Study, how: Execution) -> None:
    size = study.size if study.file.sample is None else min(study.size, int(study.file.sample.count))
    if size >= ASKS_FROM and not how.approved:
        raise ConfigError(
            f"study {study.name!r} has {counted(size, 'case')}; give --yes if that is meant, or take some at random: "
            f"sample: {{count: 1000}}"
        )


def _lock(stack: ExitStack, directory: Path, how: Execution) -> None:
    """Hold the part of the study, and see that nobody runs the whole, or, for the whole, any part."""
    part, parts = how.shard
    if how.whole:
        others = sorted(path.name[1 : -len(".lock")] for path in directory.glob(".study-*-of-*.lock"))
        stack.enter_context(locked(directory, "study"))
    else:
        others = ["study"]
        stack.enter_context(locked(directory, f"study-{part}-of-{parts}"))
    for name in others:
        with locked(directory, name):
            pass


def _own(directory: Path, study: Study) -> None:
    """Refuse the folder of another study, whose table this one would replace, and foreign files of its names."""
    path = directory / STUDY
    name = path.read_text(encoding="utf-8", errors="surrogateescape").strip() if path.exists() else ""
    if name and name != study.name:
        raise ConfigError(
            f"{directory} has the results of study {shown(name)}; give another --output, or delete {path} to put those "
            f"of {shown(study.name)} in their place"
        )
    there = [] if name or (directory / FOLDER).is_dir() else [each for each in _FILES if (directory / each).exists()]
    if there:
        raise ConfigError(f"{directory / there[0]}: is no file of a study; move it, or give another --output")
    if not name:
        write_text(path, f"{study.name}\n")


class _Run:
    """A study as it runs; `cases` are those that were looked at, done or not."""

    def __init__(self, study: Study, directory: Path | None, how: Execution) -> None:
        self.study, self.directory, self.how = study, directory, how
        self.cases: list[Case] = []
        self._kept: dict[str, Row] = {}  # without a directory
        self._known = known_keys(directory) if directory else set()
        self._constraints = tuple(each.text for each in study.where if each.names & _MEMORY_COLUMNS)
        self._pending = self._left()
        self._near = 0  # cases until others are put in order
        self._counts = {"done": 0, "failed": 0}
        self._pace_s = 0.0

    def _left(self) -> Iterator[tuple[Case, bool]]:
        """Yield the cases of this part that have no result yet, each key once, and if they are the last of a group."""
        resolver, (part, parts) = Resolver(), self.how.shard
        mine = (pair for pair in cases_of(self.study, resolver) if pair[0] // _TOGETHER % parts == part - 1)
        while window := list(islice(mine, _AHEAD)):
            self._near = len(window)
            for group in together(window):
                for place, (number, inputs) in enumerate(group, start=1):
                    case = resolver.resolve(number, inputs)
                    self.cases.append(case)
                    if case.key in self._known:
                        self._counts["done"] += 1
                    else:
                        self._known.add(case.key)
                        yield case, place == len(group)
                    self._near -= 1

    def rows(self) -> list[Row]:
        """Return all rows that are there."""
        return list((read_shards(self.directory) if self.directory else self._kept).values())

    def finish(self) -> None:
        """Run all that is left: at first here, then on what it was asked for, or on all cores."""
        if self.how.cluster:
            with execution.cluster(self.how.cluster, self.how.workers) as pool:
                self._on(pool, workers=max(1, pool.free))
            return
        workers = self.how.workers or execution.cores()
        if self.how.workers is None and workers > 1:
            self._on(execution.Here(), workers=1, until_s=_TRIAL_S)
        first = next(self._pending, None)
        if first is None:
            return
        self._pending = chain([first], self._pending)
        with execution.processes(workers) as pool:
            self._on(pool, workers=workers)

    def _on(self, pool: Pool, *, workers: int, until_s: float = float("inf")) -> None:
        """Run chunks on a pool until none is left, or they have taken so long; what is done is written at once."""
        taken, spent_s = 0, 0.0
        while True:
            while pool.free > 0 and spent_s < until_s:
                cases = self._next(self._length(workers, trial=until_s))
                if not cases:
                    break
                pool.submit(Chunk(cases, self._constraints))
                taken += 1
            if not taken:
                return
            done = pool.finished()
            taken -= len(done)
            spent_s += sum(each.seconds for each in done)
            for each in done:
                pace_s = each.seconds / len(each.rows)
                self._pace_s = pace_s if not self._pace_s else (self._pace_s + pace_s) / 2
            self._keep([row for each in done for row in each.rows])

    def _next(self, length: int) -> tuple[Case, ...]:
        """Take about so many of the cases that are left, to the end of a group if that is near."""
        chosen = list[Case]()
        for case, is_last in self._pending:
            chosen.append(case)
            if len(chosen) >= (length if is_last else length + length // 2):
                break
        return tuple(sorted(chosen, key=_number))

    def _length(self, workers: int, *, trial: float) -> int:
        """Cases of the next chunk: about `CHUNK_S`, and less where few are left for the workers."""
        if not self._pace_s:
            return _FIRST
        shortest, longest = (int(each / self._pace_s) for each in (_SHORTEST_S, min(CHUNK_S, trial / 2)))
        return max(1, min(longest, max(shortest, self._near // (2 * workers))))

    def _keep(self, rows: list[Row]) -> None:
        if self.directory is None:
            self._kept |= {row["key"]: row for row in rows}
        else:
            write_shard(self.directory, rows)
        self._counts["done"] += len(rows)
        self._counts["failed"] += sum(row["status"] == "failed" for row in rows)
        self.how.tell(self._counts["done"], max(len(self.cases), self.study.size), self._counts["failed"])


def together(cases: Iterable[tuple[int, Inputs]]) -> list[list[tuple[int, Inputs]]]:
    """Return cases in groups, each of one network, or each of one workload, whichever are more.

    These are then shared out among workers, so that each makes few of them, and all of the others.
    """
    of_network: dict[object, list[tuple[int, Inputs]]] = {}
    of_workload: dict[object, list[tuple[int, Inputs]]] = {}
    for case in cases:
        parts = parts_of(case[1])
        of_network.setdefault(parts.network, []).append(case)
        of_workload.setdefault(parts.workload, []).append(case)
    return list((of_network if len(of_network) > len(of_workload) else of_workload).values())
