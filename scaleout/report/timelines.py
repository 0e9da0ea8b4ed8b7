"""Timelines of some cases of a study, for Perfetto, each a file that is named by the key of its case."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pandas as pd

from scaleout.config.writing import write_json
from scaleout.report.perfetto import trace_events
from scaleout.study.comparison import compare_job
from scaleout.study.sweep.cases import Resolver
from scaleout.study.sweep.engine import cases_of
from scaleout.study.sweep.study import Study
from scaleout.study.sweep.table import best_of
from scaleout.study.sweep.worker import OK, job_of

FOLDER = "timelines"
"""Of an output folder."""
MOST = 20
"""Timelines of a study that asks for the best ones."""

Which = Literal["best", "all", "none"]


def write_timelines(cases: pd.DataFrame, study: Study, directory: Path, which: Which) -> pd.DataFrame:
    """Write timelines of some cases, and return the table with their files in its column ``timeline``.

    The best are the fastest case of each workload, by `best_of`, `MOST` at the most, evenly over the study. A
    file that is there is of the same case, whose key is its name, and is left. `OSError` if the disk is full.
    """
    if which == "none":
        return cases
    numbers = set(_best(cases, study) if which == "best" else cases.loc[cases["status"] == OK, "case"].tolist())
    resolver = Resolver()
    files = [""] * len(cases)
    for number, inputs in cases_of(study, resolver):
        if number not in numbers:
            continue
        case = resolver.resolve(number, inputs)
        name = f"{FOLDER}/{case.key}.json"
        if not (directory / name).exists():
            job = job_of(case)
            (directory / FOLDER).mkdir(exist_ok=True)
            write_json(directory / name, trace_events(compare_job(job, [job.schedule])), indent=None)
        files[number] = name
    return cases.assign(timeline=files)


def _best(cases: pd.DataFrame, study: Study) -> Sequence[int]:
    """Return the numbers of the fastest cases, at most `MOST` of them."""
    found = sorted(int(each["case"]) for each in best_of(study, cases))
    return found if len(found) <= MOST else [found[place * len(found) // MOST] for place in range(MOST)]
