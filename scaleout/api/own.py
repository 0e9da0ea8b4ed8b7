"""Schedules and collective algorithms of one's own, by decorators: usable by name wherever ours are, in this process.

They live in the tables that ours live in. Worker processes do not know them: sweep and search with ``workers=1``. That
they keep what all schedules and algorithms keep is for `scaleout.testing` to say.
"""

import inspect
import math
import operator
import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from scaleout.cluster.topology.placement import Placement
from scaleout.config.documents import LEAST_NUMBER
from scaleout.errors import ConfigError, shown
from scaleout.network.alpha_beta import cost
from scaleout.network.collectives import ALGORITHMS, Algorithm, check_kind
from scaleout.network.collectives.algorithm import Scheduler, any_placement
from scaleout.network.collectives.rounds import (
    Combined,
    Edges,
    Exchange,
    Fold,
    FoldedExchange,
    Messages,
    Pattern,
    Round,
    Shift,
    local_messages,
    uncombined,
)
from scaleout.network.collectives.rounds import Schedule as Rounds
from scaleout.network.flow import collective
from scaleout.program.program import Program
from scaleout.schedule import SCHEDULES, Pass, Schedule
from scaleout.schedule.decision import Decision, Planned
from scaleout.simulation.result import Result

P = TypeVar("P", bound=Pass)
S = TypeVar("S", bound=Scheduler)

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_MOST_REPEATS = 10**9
"""Of a round."""


def define_schedule(
    name: str,
    *,
    rewrites: bool = False,
    decides: bool = False,
    exclusive: bool = False,
    substitutes: bool = False,
    in_order: bool = False,
) -> Callable[[P], P]:
    """Return a decorator that makes a function a schedule of this name.

    The function takes a timed `Program` and the machine that it will run on, or None, and returns a program with its
    nodes on other streams or in other graphs; its first line of documentation is the summary. It can be joined to
    others by ``+``. Defining a name of your own again replaces it.

    Parameters
    ----------
    name : str
        Of small letters, digits and ``-``.
    rewrites : bool
        Whether it changes what the graphs hold, rather than only their streams.
    decides : bool
        Whether it weighs costs, needs a machine and may return a `Planned` with what it decided.
    exclusive : bool
        Whether no other schedule that rewrites can be joined to it.
    substitutes : bool
        Whether it replaces collectives by others.
    in_order : bool
        Whether a rank still runs the actions of its pipeline one after another, on which a search relies.

    Raises
    ------
    ConfigError
        If it is no such name, or one of scaleout's.

    Examples
    --------
    >>> import numpy, scaleout
    >>> @scaleout.define_schedule("everything-at-once", in_order=True)
    ... def everything_at_once(program, machine):
    ...     '''Every collective on a stream of its own beside the kernels.'''
    ...     return program.map_graphs(
    ...         lambda graph: graph.with_columns(stream=numpy.where(graph.collective >= 0, 1, 0))
    ...     )
    >>> scaleout.run("dlrm-128", schedules=["baseline", "everything-at-once"])["everything-at-once"].speedup > 1
    True
    """
    _check_free(name, name in SCHEDULES and isinstance(SCHEDULES[name].home, str), "schedule")

    def define(function: P) -> P:
        checked = _checked(function, f"schedule {name!r}", ("program", "machine"), (Program, Planned))
        SCHEDULES[name] = Schedule(
            _summary(function), checked, rewrites=rewrites, decides=decides, exclusive=exclusive,
            substitutes=substitutes, in_order=in_order,
        )  # fmt: skip
        return function

    return define


def define_algorithm(
    name: str, kind: str, *, condition: Callable[[Placement], str | None] = any_placement
) -> Callable[[S], S]:
    """Return a decorator that makes a function a collective algorithm of this name, for one kind of collective.

    The function takes the placement of a group and returns rounds of messages, a `Schedule` of
    `scaleout.network.collectives.rounds`. Decorators of one name and several kinds make one algorithm; to define a kind
    again replaces it. `auto` takes it where it is the fastest, and where a communication library serves the network,
    only if the library names it.

    Parameters
    ----------
    name : str
        Of small letters, digits and ``_``.
    kind : str
        Such as ``all_gather``.
    condition : function, optional
        From a placement to the reason why the algorithm cannot serve it, or None if it can.

    Raises
    ------
    ConfigError
        If it is no such name or kind, or the name is one of scaleout's.

    Examples
    --------
    >>> import scaleout
    >>> from scaleout.network.collectives.rounds import Ring, Round, Schedule
    >>> @scaleout.define_algorithm("one_way_ring", "all_gather")
    ... def one_way_ring(placement):
    ...     '''Each rank sends to the next, p - 1 times.'''
    ...     p = placement.num_ranks
    ...     return Schedule((Round(Ring(), 1 / p, repeat=p - 1),))
    >>> answer = scaleout.collective("all_gather", "1MiB", topology="ring-128", algorithm="one_way_ring")
    >>> len(answer.to_frame())
    1
    """
    check_kind(kind)
    before = ALGORITHMS.get(name)
    _check_free(name, before is not None and not isinstance(before, _Own), "collective algorithm")

    def define(function: S) -> S:
        schedules: dict[str, Scheduler] = dict(before.schedules) if before is not None else {}
        what = f"collective algorithm {name!r}"
        checked = _checked(function, what, ("placement",), (Rounds,))

        def rounds(placement: Placement) -> Rounds:
            made: Rounds = checked(placement)
            _check_rounds(made, placement, what)
            return made

        schedules[kind] = rounds
        ALGORITHMS[name] = _Own(name, _summary(function), schedules, _reasons(condition, f"{what}: its condition"))
        cost.forget()
        collective.forget()
        return function

    return define


class _Own(Algorithm):
    """An algorithm that a user defined, and may define again."""


def _check_free(name: str, taken: bool, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{shown(name)} is no name of a {what}; take small letters, digits and - or _")
    if taken:
        raise ConfigError(f"{what} {name!r} is one of scaleout's; take another name")


def _checked(function: Any, what: str, takes: tuple[str, ...], makes: tuple[type, ...]) -> Any:
    """Return a function that is refused in one message where it does not take or make what it should."""
    if not callable(function):
        raise ConfigError(f"{what}: {shown(function)} is no function; put the decorator on one")
    try:
        inspect.signature(function).bind(*takes)
    except TypeError as error:
        raise ConfigError(f"{what}: its function takes {' and '.join(takes)}, in this order ({error})") from None
    except ValueError:  # one of C, that does not say what it takes
        pass

    @wraps(function)
    def checked(*given: Any) -> Any:
        made = function(*given)
        if not isinstance(made, makes):
            wanted = " or ".join(each.__name__ for each in makes)
            raise ConfigError(f"{what}: its function returned an object of type {type(made).__name__}; return {wanted}")
        if isinstance(made, Planned):
            _check_planned(made, what)
        program = made.program if isinstance(made, Planned) else made
        if isinstance(program, Program):
            program.check_roles()
        return made

    return checked


def _check_planned(made: Planned, what: str) -> None:
    """Refuse a plan whose fields are none of theirs."""
    decisions = made.decisions if isinstance(made.decisions, tuple) else (made.decisions,)
    fields: list[tuple[str, object, Any]] = [
        ("program", made.program, Program),
        *[("decision", each, Decision) for each in decisions],
    ]
    fields += [("result", made.result, Result | None), ("whole", made.whole, Planned | None)]
    for name, given, wanted in fields:
        if not isinstance(given, wanted):
            raise ConfigError(f"{what}: the {name} of what it planned is {shown(given)}; give a {name}")


def _reasons(condition: Callable[[Placement], str | None], what: str) -> Callable[[Placement], str | None]:
    """Return a condition that is refused where it returns anything but a reason or None."""
    if not callable(condition):
        raise ConfigError(f"{what} {shown(condition)} is no function of a placement; give one, or none")

    def reason(placement: Placement) -> str | None:
        found = condition(placement)
        if not (found is None or (isinstance(found, str) and found)):
            raise ConfigError(f"{what} returned {shown(found)}; return the reason why it cannot, or None if it can")
        return found

    return reason


def _check_rounds(made: Rounds, placement: Placement, what: str) -> None:
    """Refuse rounds that no collective has: they would take no time, infinite time, or reach nobody."""
    shape = placement.shape if placement.regular else (placement.num_ranks,)
    if placement.num_ranks > 1 and not (isinstance(made.rounds, tuple) and made.rounds):
        raise ConfigError(f"{what}: its rounds are {shown(made.rounds)}; return a tuple of one or more")
    if not isinstance(made.pipelined, bool):
        raise ConfigError(f"{what}: pipelined is {shown(made.pipelined)}; give True or False")
    if not (made.added is None or (_is_number(made.added) and 0 <= made.added <= placement.num_ranks)):
        raise ConfigError(f"{what}: added is {shown(made.added)}; give buffers from 0 to the number of ranks, or None")
    if not (_is_number(made.surplus) and 0 <= made.surplus < math.inf):
        raise ConfigError(f"{what}: surplus is {shown(made.surplus)}; give buffers that all members send, from 0")
    for number, round_ in enumerate(made.rounds):
        fault = _fault_of_round(round_, shape) if isinstance(round_, Round) else "is no Round"
        if not fault and type(uncombined(round_.pattern)).__module__ != Round.__module__:
            along = shape if round_.dimensions is None else [shape[each] for each in round_.dimensions]
            fault = _fault_of_messages(local_messages(round_, placement), math.prod(along))
        if fault:
            raise ConfigError(f"{what}: round {number} on a group of shape {shape}: {shown(round_)} {fault}")


def _fault_of_round(round_: Round, shape: tuple[int, ...]) -> str:
    """Return what is wrong with a round on a group of a shape; nothing if it can be."""
    try:
        hash(round_)  # by which rounds that are alike are found
    except TypeError:
        return "holds a list, an array or a mapping; give tuples"
    chosen = tuple(range(len(shape))) if round_.dimensions is None else round_.dimensions
    if not (_is_number(round_.fraction) and LEAST_NUMBER <= round_.fraction <= 1):
        return f"sends no part of the buffer; give a fraction from {LEAST_NUMBER:g} to 1"
    if not (_within(round_.repeat, 1, _MOST_REPEATS) and _within(round_.chain, -_MOST_REPEATS, _MOST_REPEATS)):
        return f"has no whole number of repeats from 1 to {_MOST_REPEATS:,}, or of a chain"
    there = isinstance(chosen, tuple) and chosen and all(_within(each, 0, len(shape) - 1) for each in chosen)
    if not there or len(set(chosen)) < len(chosen):
        return f"runs over dimensions that are not there; give some of {', '.join(map(str, range(len(shape))))}"
    return _fault_of_pattern(round_.pattern, tuple(shape[number] for number in chosen))


def _fault_of_pattern(pattern: Pattern, shape: tuple[int, ...]) -> str:
    """Return what is wrong with who sends to whom on a grid; nothing of a pattern of one's own."""
    p, good, fault = math.prod(shape), True, ""
    match pattern:
        case Combined(inner):
            fault = _fault_of_pattern(inner, shape)
        case Shift(offsets):
            good = isinstance(offsets, tuple) and len(offsets) == len(shape) and any(offsets)
            good = good and all(_within(offset, 0, size - 1) for offset, size in zip(offsets, shape, strict=True))
            fault = "shifts by no distances within the group; give one a dimension, not all of them 0"
        case Exchange(bit) | FoldedExchange(bit):
            extra = pattern.extra if isinstance(pattern, FoldedExchange) else 0
            left = p - extra if _within(extra, 0, p // 2) else 0
            good = left > 0 and left & (left - 1) == 0 and _within(bit, 0, left.bit_length() - 2)
            fault = f"exchanges over no bit of the numbers of {left} of {p} members, a power of two"
        case Fold(extra):
            good, fault = _within(extra, 1, p // 2), f"folds no pairs of {p} members"
        case Edges(sources, destinations):
            ends = (*sources, *destinations) if isinstance(sources, tuple) and isinstance(destinations, tuple) else ()
            good = len(ends) > 0 and len(sources) == len(destinations) and all(_within(each, 0, p - 1) for each in ends)
            good = good and all(map(operator.ne, sources, destinations))
            fault = f"has no messages between two of members 0 to {p - 1} each"
        case _:
            good, fault = callable(getattr(pattern, "messages", None)), f"has {shown(pattern)} for a pattern; give one"
    return fault if not good or isinstance(pattern, Combined) else ""


def _fault_of_messages(made: object, p: int) -> str:
    """Return what is wrong with the messages of a pattern of one's own between p members."""
    if not (isinstance(made, Messages) and all(isinstance(each, np.ndarray) and each.ndim == 1 for each in made)):
        return "has a pattern whose messages are no `Messages` of arrays; return them"
    good = 0 < len(made.sources) == len(made.destinations) == len(made.weights) and made.weights.dtype.kind == "f"
    for ends in (made.sources, made.destinations):
        good = good and ends.dtype.kind in "iu" and bool(((ends >= 0) & (ends < p)).all())
    good = good and bool(((made.weights > 0) & (made.weights <= 1) & (made.sources != made.destinations)).all())
    fault = f"has no messages between two of members 0 to {p - 1} each, or of no share above 0 and up to 1"
    return "" if good or p == 1 else fault


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _within(value: object, least: int, most: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(least <= value <= most)


def _summary(function: Callable[..., object]) -> str:
    lines = (function.__doc__ or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else function.__name__
