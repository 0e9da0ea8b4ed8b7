"""A simulation that stopped to the words of who waits for whom.

Knows what units and meetings are, and nothing of time.
"""

from collections.abc import Sequence

from scaleout.astra.meeting import Meeting, describe_group
from scaleout.astra.progress import Unit
from scaleout.astra.trace import Work

_MOST_LINES = 6


def explain(units: Sequence[Unit], meetings: Sequence[Meeting]) -> str:
    """Say what the ranks that did not finish wait for, the collectives first."""
    stuck = sum(len(unit.ranks) for unit in units if unit.left)
    total = sum(len(unit.ranks) for unit in units)
    by_rank = {rank: unit for unit in units for rank in unit.ranks}
    lines = [_meeting(meeting, by_rank) for meeting in meetings]
    lines += [
        f"rank {rank} waits for {unit.graph.tasks[index]} from rank {unit.graph.tasks[index].peer} (tag "
        f"{unit.graph.tasks[index].tag}, {unit.graph.tasks[index].size_bytes} bytes), which "
        f"{_state(by_rank[unit.graph.tasks[index].peer])}"
        for unit in units
        for index in unit.running
        for rank in unit.ranks
        if unit.graph.tasks[index].work == Work.RECV
    ]
    lines += [
        f"rank {unit.ranks[0]} waits until rank {unit.graph.tasks[index].peer} receives {unit.graph.tasks[index]}"
        for unit in units
        for index in unit.running
        if unit.graph.tasks[index].work == Work.SEND
    ]
    shown = lines[:_MOST_LINES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} more")
    return (
        f"{stuck} of {total} ranks cannot finish; every member of a group must issue its collectives in the same "
        f"order, and every receive needs a send of the same tag and size:\n  " + "\n  ".join(shown)
    )


def _meeting(meeting: Meeting, by_rank: dict[int, Unit]) -> str:
    came = sorted(rank for unit, _, _ in meeting.came for rank in unit.ranks)
    missing = [rank for rank in meeting.members if rank not in set(came)]
    first = missing[0]
    return (
        f"{_ranks(came)} wait{'s' * (len(came) == 1)} in {meeting.task} ({meeting.task.kind} of "
        f"{describe_group(meeting.group)}) for {_ranks(missing)}; rank {first} {_state(by_rank[first])}"
    )


def _state(unit: Unit) -> str:
    """Say what a rank does instead."""
    if not unit.left:
        return "has finished and never comes"
    if unit.running:
        return f"is in {unit.graph.tasks[min(unit.running)]}"
    return "waits itself"


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {names}"
