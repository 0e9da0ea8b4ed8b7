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
        return run_inputs({**inputs, "schedule": list(schedules) or inputs.get("schedule", ())}, tell)
    except ConfigError as error:
        raise ConfigError(f"--plan {text}: {error}") from None


def read_plan(text: str, job: NamedJob, options: Stated) -> "Mapping[str, Any]":
    """Return the inputs of a plan; `ConfigError` as `plan_inputs`, or if the line says what the plan does."""
    if job != NamedJob(None, None, None, {}, type(job.changes)()) or options:
        raise ConfigError(
            f"--plan {text} says workload, machine and options; leave out all but --schedule and --output, or change "
            f"the command that `scaleout search` prints for the plan"
        )
    return plan_inputs(text)


def plan_inputs(text: str) -> "Mapping[str, Any]":
    """Return the inputs of a plan that a search has written: ``FILE#2`` is its second, FILE its folder or summary.json.

    Raises
    ------
    ConfigError
        If there is no such plan.
    """
    from scaleout.config.documents import read_json, whole

    name, sign, number = text.rpartition("#")
    which = whole(number)
    if not sign or not which:
        raise ConfigError(f"--plan {shown(text)}: write FILE#1, the number of a plan, from 1, in a folder of `search`")
    path = Path(name) / _SUMMARY if Path(name).is_dir() else Path(name)
    summary = read_json(path)
    plans = summary.get("fastest") if isinstance(summary, dict) else None
    if not (isinstance(plans, list) and all(isinstance(each, dict) and "inputs" in each for each in plans)):
        raise ConfigError(f"{path}: is no {_SUMMARY} of `scaleout search --output`; give one")
    if which > len(plans):
        raise ConfigError(f"--plan {text}: {path} has {len(plans)} plans; give 1 to {len(plans)}")
    inputs = plans[which - 1]["inputs"]
    if not (isinstance(inputs, dict) and isinstance(inputs.get("workload"), str)):
        raise ConfigError(f"{path}: plan {which} has no inputs; search again")
    return inputs
