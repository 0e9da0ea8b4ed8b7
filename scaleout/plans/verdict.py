"""The fastest plan explained: what it hides and what it cannot, and whether schedules change which plan is best."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scaleout.plans.best import BASELINE, Choice, Found, Question
from scaleout.plans.evaluate import Estimate
from scaleout.plans.hidden import Hidden, hidden_by_family
from scaleout.plans.processes import pool_of
from scaleout.plans.search import Answer
from scaleout.plans.under_schedule import estimate_under, run_plan


@dataclass(frozen=True)
class Verdict:
    """The fastest plan and its schedule, and what there is to compare with.

    Attributes
    ----------
    fastest : Found
    hidden : tuple of Hidden
        What it hides of each family of groups.
    same : tuple of Found
        Its plan under `baseline` and every schedule asked for.
    other : tuple of Found
        Likewise the plan that is fastest under `baseline`; empty if that is the same plan.
    """

    fastest: Found
    hidden: tuple[Hidden, ...]
    same: tuple[Found, ...]
    other: tuple[Found, ...]

    @property
    def gain(self) -> float:
        """How many times as fast the fastest is as the best plan under `baseline`."""
        return (self.other or self.same)[0].estimate.step_s / self.fastest.estimate.step_s

    def summary(self) -> dict[str, Any]:
        """Return the numbers as plain values."""
        return {
            "plan": self.fastest.plan._asdict(),
            "schedule": self.fastest.schedule,
            "hidden": [asdict(each) for each in self.hidden],
            "same_plan": _rows(self.same),
            "best_plan_under_baseline": _rows(self.other),
            "gain_over_best_under_baseline": self.gain,
        }


def _rows(compared: Sequence[Found]) -> list[dict[str, Any]]:
    return [
        {
            "plan": found.plan._asdict(),
            "schedule": found.schedule,
            "step_s": found.estimate.step_s,
            "gain": compared[0].estimate.step_s / found.estimate.step_s,
        }
        for found in compared
    ]


def verdict(question: Question, answer: Answer, *, workers: int) -> Verdict:
    """Explain the fastest plan of an answer that has one."""
    fastest, simple = answer.fastest[0], answer.best_under(BASELINE)
    assert simple is not None, "every search evaluates plans under baseline"
    schedules = (BASELINE, *question.schedules)
    choices = [(plan, schedule) for plan in dict.fromkeys((fastest.plan, simple.plan)) for schedule in schedules]
    known = {found.choice: found.estimate for found in answer.evaluated}
    new = [choice for choice in choices if choice not in known]
    with pool_of(workers) as pool:
        looked = pool.submit(_hidden, question, fastest.choice)
        known |= dict(zip(new, pool.map(_estimate, [question] * len(new), new), strict=True))
        hidden = looked.result()
    found = [Found(plan, known[plan, schedule], schedule) for plan, schedule in choices]
    return Verdict(fastest, hidden, tuple(found[: len(schedules)]), tuple(found[len(schedules) :]))


def _hidden(question: Question, choice: Choice) -> tuple[Hidden, ...]:
    plan, schedule = choice
    return hidden_by_family(run_plan(question, plan, schedule)[0])


def _estimate(question: Question, choice: Choice) -> Estimate:
    plan, schedule = choice
    return estimate_under(question, plan, schedule)
