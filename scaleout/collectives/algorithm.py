"""What every collective algorithm is: a name, and for each kind it can do a function from placement to schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scaleout.collectives.step import Schedule, Step
from scaleout.placement import Placement

Scheduler = Callable[[Placement], Schedule]


def any_placement(placement: Placement) -> str | None:
    """Put no condition on the group."""
    del placement
    return None


def power_of_two(placement: Placement) -> str | None:
    """Demand a power of two of ranks."""
    count = placement.num_ranks
    return None if count & (count - 1) == 0 else f"needs a power of two of ranks, not {count}"


def several_dimensions(placement: Placement) -> str | None:
    """Demand a regular grid of two dimensions or more."""
    if not placement.regular:
        return "needs a group that is a regular grid in the topology"
    return None if len(placement.extents) > 1 else "needs a group that extends along two dimensions or more"


@dataclass(frozen=True)
class Algorithm:
    """A collective algorithm.

    Attributes
    ----------
    name : str
        As the user writes it.
    summary : str
        One line for `scaleout list`.
    schedules : mapping of str to function
        Kind of collective to the function from a placement of two ranks or more to the schedule.
    condition : function
        Placement to the reason why the algorithm cannot serve it, or None.
    """

    name: str
    summary: str
    schedules: Mapping[str, Scheduler]
    condition: Callable[[Placement], str | None] = any_placement

    def supports(self, kind: str, placement: Placement) -> str | None:
        """Return why the algorithm cannot do a kind of collective on a group, or None if it can."""
        if kind not in self.schedules:
            return f"does {', '.join(self.schedules)}, not {kind}"
        return self.condition(placement)


def then(first: Scheduler, second: Scheduler) -> Scheduler:
    """Compose two functions from placement to schedule: the steps of the second after those of the first."""

    def schedule(placement: Placement) -> Schedule:
        return Schedule(first(placement).steps + second(placement).steps)

    return schedule


def along(placement: Placement, number: int) -> Placement:
    """Return the part of a group that lies along one of its extents: a line of the grid."""
    return Placement((placement.extents[number],), placement.startup_s)


def on_dimension(schedule: Schedule, number: int, *, fraction: float) -> tuple[Step, ...]:
    """Carry the steps of a line over to all lines of a grid along one extent, on a fraction of the bytes."""
    return tuple(replace(step, fraction=step.fraction * fraction, dimensions=(number,)) for step in schedule.steps)
