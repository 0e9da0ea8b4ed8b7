"""Plans of a search as jobs to run: ``run --plan FILE#1``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleout.cli.job import NamedJob
from scaleout.cli.options import Stated
from scaleout.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scaleout.api.runs import RunAnswer
    from scaleout.study.job import Tell

_SUMMARY = "summary.json"


def run_plan(
    text: str, job: NamedJob, options: Stated, schedules: "Sequence[str]", tell: "Tell | None" = None
) -> "RunAnswer":
    """Simulate a plan that a search has written, under its own schedule if no others are given; see `read_plan`."""
    from scaleout.api.again import run_inputs

    inputs = read_plan(text, job, options)
    try:
        return run_inputs({**inputs, "schedule": list(schedules) or inputs.get("schedule", ())}, tell, unchanged=True)
    except ConfigError as error:
        raise ConfigError(f"--plan {text}: {error}") from None


def read_plan(text: str, job: NamedJob, options: Stated) -> "Mapping[str, Any]":
    """Return the inputs of a plan with what the line gives besides.

    Raises
    ------
    ConfigError
        As `plan_inputs`, or if the line gives what the plan sets.
    """
    from scaleout.cli.options import beside_a_plan

    plan = _plan_of(text)
    given, keys = job.given(options), plan.get("plan")
    fixed = {*plan["inputs"], *(f"set.{key}" for key in (keys if isinstance(keys, dict) else ()))}
    twice = [key for key in given if key in fixed]
    if twice:
        what = ", ".join("WORKLOAD" if key == "workload" else f"--{key.replace('.', ' ', 1)}" for key in twice)
        raise ConfigError(
            f"--plan {text}: the plan sets what {what} would; leave that out, or change the command that `scaleout "
            f"search` prints for the plan. Beside a plan there may be {beside_a_plan()}"
        )
    return {**plan["inputs"], **given}


def plan_inputs(text: str) -> "Mapping[str, Any]":
    """Return the inputs of a plan that a search has written: ``FILE#2`` is its second, FILE its folder or summary.json.

    ``FILE#a`` is the first that the Pareto front alone has.

    Raises
    ------
    ConfigError
        If there is no such plan.
    """
    inputs: Mapping[str, Any] = _plan_of(text)["inputs"]
    return inputs


def _plan_of(text: str) -> "Mapping[str, Any]":
    """Return the row of a plan in the file that a search has written; `ConfigError` if there is none."""
    from scaleout.config.documents import read_json
    from scaleout.report.documents import check_version

    name, sign, label = text.rpartition("#")
    if not (sign and label.isascii() and label.isalnum() and label != "0"):
        raise ConfigError(
            f"--plan {shown(text)}: write FILE#1, the number of a plan, from 1, or its letter, in a folder of `search`"
        )
    path = Path(name) / _SUMMARY if Path(name).is_dir() else Path(name)
    summary = read_json(path)
    plans = summary.get("fastest") if isinstance(summary, dict) else None
    if not (isinstance(plans, list) and all(isinstance(each, dict) and "inputs" in each for each in plans)):
        raise ConfigError(f"{path}: is no {_SUMMARY} of `scaleout search --output`; give one")
    check_version(summary, where=str(path))
    labelled = _labelled(plans, summary.get("front"))
    if label not in labelled:
        more = list(labelled)[len(plans) :]
        letters = f", or {more[0]} to {more[-1]} of the Pareto front" if more else ""
        raise ConfigError(f"--plan {text}: {path} has {len(plans)} plans; give 1 to {len(plans)}{letters}")
    row = labelled[label]
    if not (isinstance(row["inputs"], dict) and isinstance(row["inputs"].get("workload"), str)):
        raise ConfigError(f"{path}: plan {label} has no inputs; search again")
    return row


def labels_in(folder: Path) -> list[str]:
    """Return what the plans of a search are called in its folder, or none where it holds no search."""
    from scaleout.config.documents import read_json

    summary = read_json(folder / _SUMMARY)
    plans = summary.get("fastest") if isinstance(summary, dict) and summary.get("command") == "search" else None
    if not (isinstance(plans, list) and all(isinstance(each, dict) and "inputs" in each for each in plans)):
        return []
    return list(_labelled(plans, summary.get("front")))


def _labelled(plans: "Sequence[Mapping[str, Any]]", front: Any) -> "dict[str, Mapping[str, Any]]":
    """Return the rows of plans by what tables and pictures call them: a number, or letters of the front alone."""
    from scaleout.study.search.search import letters

    known = [each["inputs"] for each in plans]
    rows = [each for each in (front if isinstance(front, list) else ()) if isinstance(each, dict) and "inputs" in each]
    others = [row for row in rows if row["inputs"] not in known]
    numbered = {str(number): row for number, row in enumerate(plans, start=1)}
    return numbered | {letters(number): row for number, row in enumerate(others)}
