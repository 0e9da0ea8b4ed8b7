"""What every collective algorithm is: a name, and for each kind it can do a function from placement to schedule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scaleout.collectives.step import Exchange, Fold, FoldedExchange, Schedule, Step
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
    unconditional : tuple of str
        Kinds for which it serves any group all the same.
    """

    name: str
    summary: str
    schedules: Mapping[str, Scheduler]
    condition: Callable[[Placement], str | None] = any_placement
    unconditional: tuple[str, ...] = ()

    def supports(self, kind: str, placement: Placement) -> str | None:
        """Return why the algorithm cannot do a kind of collective on a group, or None if it can."""
        if kind not in self.schedules:
            return f"does {', '.join(self.schedules)}, not {kind}"
        return None if kind in self.unconditional else self.condition(placement)


def folded(
    placement: Placement, core: Callable[[int, int], tuple[Step, ...]], *, added: Callable[[int], float]
) -> Schedule:
    """Carry out an all-reduce among a power of two of members, for all.

    Where there are ``r`` more, ``r`` members send all they have to a neighbour first, and get the sum back last.

    Parameters
    ----------
    placement : Placement
    core : function
        Number of members that take part, a power of two, and how many of them stand for two, to the steps.
    added : function
        Number of members that take part to what each adds up, as a fraction of the bytes.
    """
    taking_part = 1 << (placement.num_ranks.bit_length() - 1)
    extra = placement.num_ranks - taking_part
    if not extra:
        return Schedule(core(taking_part, 0), added=added(taking_part))
    steps = (Step(Fold(extra), 1.0), *core(taking_part, extra), Step(Fold(extra, back=True), 1.0))
    return Schedule(steps, added=1 + added(taking_part))


def exchange(bit: int, extra: int) -> Exchange | FoldedExchange:
    """Return the exchange by a bit, where so many members stand for two."""
    return FoldedExchange(bit, extra) if extra else Exchange(bit)


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
