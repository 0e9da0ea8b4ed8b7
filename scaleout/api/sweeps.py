"""Many jobs that differ in a few keys to one table: what `scaleout study` keeps, as an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import pandas as pd

from scaleout.analysis.breakdown import MUCH
from scaleout.api.answer import Answer
from scaleout.config.reading import nearest
from scaleout.config.units import counted, format_seconds, format_share
from scaleout.errors import ConfigError, shown
from scaleout.study.sweep.cases import version
from scaleout.study.sweep.engine import Execution, execute
from scaleout.study.sweep.study import Study, load_study, study_of
from scaleout.study.sweep.table import (
    AS_FAST,
    best_of,
    cheapest_of,
    failures_of,
    measure_of,
    measured,
    notes_of,
    num_unfit,
)
from scaleout.study.sweep.views import check_column

if TYPE_CHECKING:
    from scaleout.report.plots.schedules import Axes

_SHORT = 100
"""Letters of why cases failed, in a line."""
_NAMED = 5
"""Workloads of the box, each with its fastest case, and cases that are as fast as one."""


@dataclass(frozen=True, eq=False, repr=False)
class SweepAnswer(Answer):
    """The cases of a study: a row of the table is one, with its inputs, results and the command that runs it alone.

    The document has the `top` fastest; the table has all.
    """

    study: Study
    cases: pd.DataFrame
    named: str = ""
    output: str = ""
    top: int = 5
    files: Mapping[str, str] = field(default_factory=dict)
    command: str = "study"

    @property
    def title(self) -> str:
        """What varies, and how many cases ran, and how many did not."""
        found = self._counts
        failed = f", {found['failed']:,} failed" if found["failed"] else ""
        return f"{self.study.title}: {counted(found['cases'], 'case')}, {found['ok']:,} simulated{failed}"

    def _in_line(self) -> str:
        """Return the title with why cases failed, in short."""
        why = [shorten(each["message"], _SHORT, placeholder=" ...") for each in failures_of(self.cases, 1)]
        return ": ".join([self.title, *why])

    @property
    def models(self) -> tuple[str, ...]:
        """What answered."""
        cases = self.cases
        return tuple(sorted(set(cases["model"][cases["status"] == "ok"]))) if "model" in cases else ()

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The keys of the study's file."""
        return {"study": self.named, **self.study.file.model_dump(mode="json", exclude_unset=True)}

    @cached_property
    def _counts(self) -> dict[str, int]:
        """How many cases there are, and what became of them."""
        counts = self.cases["status"].value_counts()
        became = {"ok": "ok", "failed": "failed", "left_out": "left out"}
        found = {name: int(counts.get(status, 0)) for name, status in became.items()}
        return {"cases": len(self.cases), **found, "unfit": num_unfit(self.cases)}

    @cached_property
    def _fastest(self) -> list[dict[str, Any]]:
        """The fastest cases of each workload."""
        return best_of(self.study, self.cases, self.top)

    def found(self) -> Mapping[str, Any]:
        """Return counts, the fastest cases of each workload, and what failed."""
        return {
            "study": self.study.name,
            "title": self.study.title,
            "version": version(),
            "output": self.output,
            **self._counts,
            "axes": {column: list(values) for column, values in self.study.axes.items()},
            "fastest_by": measure_of(self.cases),
            "fastest": self._fastest,
            "within_share": self.study.file.within,
            "cheapest_cases": cheapest_of(self.study, self.cases),
            "failures": failures_of(self.cases),
            "files": self.files,
            "notes": notes_of(self.cases),
        }

    def answer(self) -> Mapping[str, str]:
        """Return how many cases there are, and the fastest of each workload."""
        facts = {"cases": _told(self._counts)}
        if self._counts["failed"]:
            (most,) = failures_of(self.cases, 1)
            rest = self._counts["failed"] - most["cases"]
            facts["failed"] = f"{most['cases']:,}: {most['message']}" + (
                f"; {rest:,} for other reasons" if rest else ""
            )
        for each in self._fastest:
            if each["workload"] not in facts and len(facts) <= _NAMED + ("failed" in facts):
                words = f"{format_seconds(each['makespan_s'])}, case {each['case']}: {each['inputs']}{unfit(each)}"
                facts[each["workload"]] = words + self._alike(each) + self._beside(each)
        return facts

    def _alike(self, fastest: Mapping[str, Any]) -> str:
        """Name the cases that are as fast as the fastest of a workload."""
        cases = self.cases[self.cases["workload"] == fastest["workload"]]
        best = best_of(self.study, cases, _NAMED)
        ties = [each for each in best if each["case"] != fastest["case"] and each["slower_share"] < AS_FAST]
        return "".join(f"; as fast: case {each['case']}: {each['inputs']}{unfit(each)}" for each in ties)

    def _beside(self, fastest: Mapping[str, Any]) -> str:
        """Say of a fastest case with estimated kernels how much that is, and which is the fastest of the others."""
        if not (words := estimated(fastest)):
            return ""
        cases = self.cases
        known = cases[(cases["workload"] == fastest["workload"]) & (cases["roofline_share"].astype("float64") < MUCH)]
        others = "; ".join(
            f"the fastest with less: {format_seconds(each['makespan_s'])}, case {each['case']}: {each['inputs']}"
            for each in best_of(self.study, known)
        )
        return f"; {words} is a roofline estimate of kernels not measured" + (f"; {others}" if others else "")

    @property
    def notes(self) -> Sequence[str]:
        """Which networks are those of other devices."""
        return notes_of(self.cases)

    def to_frame(self) -> pd.DataFrame:
        """Return all cases, as `cases.parquet` has them."""
        return self.cases

    def columns(self) -> tuple[str, ...]:
        """Return inputs that vary, and what cases come to."""
        varied = [name for name, values in self.study.axes.items() if len(values) > 1]
        found = ("makespan_s", "speedup", "tokens_per_s_per_rank", "mfu", "exposed_share", "peak_memory_bytes", "fits")
        failed = ("status", "message") if set(self.cases["status"]) != {"ok"} else ()
        return ("case", *varied, *found, *self.study.columns, *failed)

    def plot(self, ax: "Axes | None" = None, *, x: str = "", y: str = "", colour: str = "", facet: str = "") -> "Axes":
        """Draw a result over an input: a line for each combination of the other inputs that vary, where `x` is numbers.

        `x` and `colour` are columns that vary: by default an input of numbers, with which there are the fewest lines,
        and the input with the most values of the others. `y` is a result, by default that by which the study ranks its
        cases: the makespan, or tokens or samples a second where steps are not of one size. `facet` has a panel for each
        of its values, of which the first is returned; more than 8 lines are divided over panels by default, where `ax`
        is not given. Where `x` is a result too, a line runs along an input. Inputs that follow from others, such as the
        data parallelism that is left on so many ranks, tell no lines apart, which the picture says, as it says which
        cases are left out as they do not fit into memory. `ConfigError` if one is no column of the table, `y` holds no
        numbers, or there are more lines than can be told apart.
        """
        from scaleout.report.plots.cases import Drawn, plot_cases  # noqa: PLC0415 - matplotlib takes half a second

        columns = [*self.cases.columns]
        for name in (x, y, colour, facet):
            if not (isinstance(name, str) and name in ("", *columns)):
                raise ConfigError(f"plot() knows no column {shown(name)}; {nearest(str(name), columns)}")
        cases = self.cases
        if not y:
            y = measure_of(cases)
            cases = cases.assign(**{y: measured(cases, y)})
        check_column(y, "numbers", self.study.kinds.get(y, "texts"), where="plot(y)")
        return plot_cases(self.study, cases, Drawn(x, y, colour, facet), ax)


def _told(found: Mapping[str, int]) -> str:
    """Say how many cases there are, and what became of them."""
    told = [f"{found['ok']:,} simulated", f"{found['failed']:,} failed"]
    if found["unfit"]:
        rest = found["ok"] - found["unfit"]
        told[0] += f", of which {f'{rest:,} fit' if rest else 'none fits'} into memory"
    if found["left_out"]:
        told.append(f"{found['left_out']:,} left out")
    return f"{found['cases']:,}: {', '.join(told)}"


def unfit(case: Mapping[str, Any]) -> str:
    """Say that a fastest case does not fit."""
    return "" if case.get("fits", True) else " (does not fit into memory, as none does)"


def estimated(case: Mapping[str, Any]) -> str:
    """Say how much of a case's kernel time is an estimate, where that is much."""
    share = case.get("roofline_share", 0.0)
    return f"{format_share(share)} of kernel time" if share >= MUCH else ""


def sweep(
    study: str | Mapping[str, Any] | None = None,
    *,
    directory: str | Path | None = None,
    workers: int | None = None,
    cluster: str = "",
    approved: bool = False,
    **keys: Any,
) -> SweepAnswer:
    """Run many jobs that differ in a few keys.

    Parameters
    ----------
    study : str or mapping, optional
        The name of a shipped study, a file, or the keys of a file.
    directory : str or Path, optional
        Where results are kept, so that they are not run again; without one they are in memory alone.
    workers, cluster : optional
        Processes, or workers of a Dask cluster: ``local``, ``slurm`` or a scheduler's address.
    approved : bool
        Whether a study of a million cases or more may run.
    **keys
        Keys of a study's file, instead of `study`: `workload`, `topology`, `device`, `gpus`, `schedule` and others are
        a value or a list, `set`, `bandwidth`, `latency` and others map keys to a value or a list; lists make a grid.

    Raises
    ------
    ScaleoutError
        If the study is wrong, or what runs it is lost; a case that fails is a row.

    Examples
    --------
    >>> import scaleout
    >>> answer = scaleout.sweep(
    ...     workload="dlrm-128", set={"global_batch": [1024, 4096]}, schedule=["baseline", "fused"], workers=1
    ... )
    >>> len(answer.to_frame())
    4
    """
    if isinstance(study, str):
        if keys:
            raise TypeError(f"sweep() takes a study or keys of one, such as {next(iter(keys))}; give one of them")
        asked = load_study(study)
    else:
        asked = study_of({"title": "sweep", **(study or {}), **keys}, name="sweep", where="sweep()")
    how = Execution(workers=workers, cluster=cluster, approved=approved)
    cases = execute(asked, None if directory is None else Path(directory), how)
    assert cases is not None, "it is whole"
    named = study if isinstance(study, str) else asked.name
    return SweepAnswer(asked, cases, named, "" if directory is None else str(directory))
