"""A job to when every rank has finished, by an event loop; or to a message of who waits for whom.

Ranks with the same graph are simulated once, as long as they do the same at the same time.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from scaleout.config.reading import nearest
from scaleout.errors import ConfigError, SimulationError, TraceError
from scaleout.interop.astra.clock import Clock
from scaleout.interop.astra.fabric import AwareFabric, UnawareFabric
from scaleout.interop.astra.instance import CollectiveInstance, Mail, describe_group
from scaleout.interop.astra.job import Job, Options, load
from scaleout.interop.astra.network import Lines
from scaleout.interop.astra.plan import Plan, Turns, dimensions_of, plan_collective, plan_group
from scaleout.interop.astra.progress import Unit
from scaleout.interop.astra.trace import EVERYONE, Task, Work


class History(NamedTuple):
    """When ranks that did the same at the same time did what."""

    ranks: tuple[int, ...]
    graph: int  # which of the job's graphs they run, of N tasks
    start_ns: tuple[int, ...]  # (N,); a collective starts for a rank when the rank arrives at it
    end_ns: tuple[int, ...]  # (N,)


class Outcome(NamedTuple):
    """When ranks finished, and what they did until then."""

    job: Job
    per_rank_ns: tuple[int, ...]  # (R,) when each finished
    compute_ns: tuple[int, ...]  # (R,) time in which each computed
    communication_ns: tuple[int, ...]  # (R,) time in which a collective or send held its slot
    notes: tuple[str, ...]  # options and values that have no effect
    histories: tuple[History, ...]
    num_runs: Mapping[tuple[Plan, tuple[int, ...]], int]  # collectives and their members, and how often they ran

    @property
    def time_ns(self) -> int:
        """When the last rank finished."""
        return max(self.per_rank_ns)

    @property
    def exposed_ns(self) -> tuple[int, ...]:
        """Time of each rank until it finished in which it did not compute, (R,); replayed communication computes."""
        replayed = self.communication_ns if self.job.system.replay_only else (0,) * len(self.per_rank_ns)
        times = zip(self.per_rank_ns, self.compute_ns, replayed, strict=True)
        return tuple(max(0, end - compute - communicate) for end, compute, communicate in times)


def run(options: Options) -> Outcome:
    """Read the files that the options name and simulate them.

    Raises
    ------
    ConfigError, TraceError
        If a file cannot be used.
    SimulationError
        If the ranks cannot finish.
    """
    return simulate(load(options))


def simulate(job: Job) -> Outcome:
    """Simulate a job.

    Raises
    ------
    ConfigError
        If a collective cannot run on the network.
    SimulationError
        If the ranks cannot finish.
    """
    return _Simulation(job).run()


class _Simulation:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.clock = Clock()
        backend = AwareFabric if job.aware else UnawareFabric
        self.fabric: AwareFabric | UnawareFabric = backend(job, self.clock, self.end)
        self.mail = Mail(self.clock, self.fabric.carry, rendezvous=job.rendezvous)
        self.instances: dict[tuple[str, int], CollectiveInstance] = {}
        self.num_runs: Counter[tuple[Plan, tuple[int, ...]]] = Counter()
        self.everyone = tuple(range(job.network.num_ranks))
        self.plan_world: Callable[..., Plan] = lru_cache(maxsize=None)(partial(plan_collective, job))
        self.lines: Callable[[tuple[int, ...]], Lines] = lru_cache(maxsize=None)(partial(Lines, job.network))
        self.plan_group: Callable[[str, int, int, Turns], Plan] = lru_cache(maxsize=None)(partial(plan_group, job))
        _check_peers(job)
        self.units = _units(job)

    def run(self) -> Outcome:
        for unit in self.units:
            self.advance(unit)
        self.clock.run()
        leaves = [leaf for unit in self.units for leaf in unit.leaves()]
        if any(unit.left for unit in leaves):
            raise SimulationError(explain(leaves, list(self.instances.values())))
        self.mail.check()
        by_rank = {rank: unit for unit in leaves for rank in unit.ranks}
        ordered = [by_rank[rank] for rank in self.everyone]
        return Outcome(
            job=self.job,
            per_rank_ns=tuple(unit.finish_ns for unit in ordered),
            compute_ns=tuple(unit.compute_ns for unit in ordered),
            communication_ns=tuple(unit.communication_ns for unit in ordered),
            notes=self.job.notes,
            histories=tuple(
                History(unit.ranks, self.job.graph_of[unit.ranks[0]], tuple(unit.start_ns), tuple(unit.end_ns))
                for unit in leaves
            ),
            num_runs=self.num_runs,
        )

    def advance(self, unit: Unit) -> None:
        """Start all tasks that can start, in the successors of the unit once it has any."""
        while not unit.successors and (index := unit.startable(self.clock.now_ns)) is not None:
            self.start(unit, index)
        for successor in unit.successors:
            self.advance(successor)

    def end(self, unit: Unit, index: int) -> None:
        """End a task of a unit, or of all units that it has been split into."""
        for leaf in unit.leaves():
            leaf.end(index, self.clock.now_ns)
            self.advance(leaf)

    def start(self, unit: Unit, index: int) -> None:
        task = unit.graph.tasks[index]
        if task.work == Work.COLLECTIVE:
            self.join(unit, index)
            return
        done = partial(self.end, unit, index)
        if task.work == Work.SEND:
            self.mail.send(unit.ranks[0], task, done)
        elif task.work == Work.RECV:
            self.mail.receive(unit.ranks[0], task, done)
        elif task.work == Work.NOTHING:
            unit.end(index, self.clock.now_ns)
        else:
            self.clock.at(self.clock.now_ns + task.duration_ns, done)

    def join(self, unit: Unit, index: int) -> None:
        task = unit.graph.tasks[index]
        groups = self.groups(unit, task)
        units = unit.split([ranks for _, _, ranks in groups])
        for one, (group, members, _) in zip(units, groups, strict=True):
            number = one.num_collectives[task.group]
            one.num_collectives[task.group] += 1
            self.register(one, index, (group, number), members)

    def register(self, unit: Unit, index: int, key: tuple[str, int], members: tuple[int, ...]) -> None:
        task = unit.graph.tasks[index]
        instance = self.instances.get(key)
        if instance is None:
            instance = CollectiveInstance(*key, members, task, self.plan(task, len(members), unit))
            self.instances[key] = instance
        instance.register(unit, index, self.clock.now_ns)
        unit.turns = instance.plan.turns
        if instance.is_complete:
            del self.instances[key]
            self.num_runs[instance.plan, members] += 1
        self.fabric.registered(instance, unit, index)

    def groups(self, unit: Unit, task: Task) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
        """Return the instances of a collective of a unit: a key, all members, and those of the unit.

        A group of all ranks has them in order. Where only some dimensions take part, each line is an instance of its
        own, but lines that the unit has as a whole are one.
        """
        if task.group != EVERYONE:
            members = self.job.groups[task.group]
            for rank in unit.ranks:
                if rank not in members:
                    raise ConfigError(
                        f"rank {rank}, {task}: pg_name is {task.group!r}, but that group is {list(members)}, without "
                        f"rank {rank}; name a group of the rank"
                    )
            return [(task.group, self.everyone if self.is_world(members) else members, unit.ranks)]
        lines = self.lines(dimensions_of(self.job, task.kind, task.involved))
        if len(lines) == 1:
            return [(EVERYONE, self.everyone, unit.ranks)]
        here: dict[int, list[int]] = {}
        for rank in unit.ranks:
            here.setdefault(lines.first_of[rank], []).append(rank)
        whole = [rank for ranks in here.values() if len(ranks) == lines.size for rank in ranks]
        pooled = [(f"lines of rank {whole[0]}", tuple(sorted(whole)), tuple(whole))] if whole else []
        return pooled + [
            (f"line of rank {first}", lines.of(first), tuple(ranks))
            for first, ranks in here.items()
            if len(ranks) < lines.size
        ]

    def is_world(self, members: tuple[int, ...]) -> bool:
        """Whether a group is that of all ranks, in whatever order."""
        return len(members) == len(self.everyone)

    def plan(self, task: Task, num_members: int, unit: Unit) -> Plan:
        if task.group != EVERYONE and num_members < len(self.everyone):
            return self.plan_group(task.kind, task.size_bytes, num_members, unit.turns)
        involved = task.involved if task.group == EVERYONE else ()
        return self.plan_world(task.kind, task.size_bytes, involved=involved, turns=unit.turns)


def _units(job: Job) -> list[Unit]:
    """Ranks of the same graph are one unit, unless it names single ranks."""
    by_graph: dict[int, list[int]] = {}
    for rank, number in enumerate(job.graph_of):
        by_graph.setdefault(number, []).append(rank)
    units = []
    for number, ranks in by_graph.items():
        graph = job.graphs[number]
        units += [Unit([rank], graph) for rank in ranks] if graph.has_messages else [Unit(ranks, graph)]
    return sorted(units, key=lambda unit: unit.ranks[0])


def _check_peers(job: Job) -> None:
    """Check that sends, receives and collectives name ranks and groups that there are."""
    num_ranks = job.network.num_ranks
    first_of: dict[int, int] = {}
    for rank, number in enumerate(job.graph_of):
        graph = job.graphs[number]
        if first_of.setdefault(number, rank) < rank and not graph.has_messages:
            continue
        for task in graph.tasks:
            if task.work in (Work.SEND, Work.RECV) and (not 0 <= task.peer < num_ranks or task.peer == rank):
                verb = "sends to" if task.work == Work.SEND else "receives from"
                raise TraceError(
                    f"rank {rank}, {task}: {verb} rank {task.peer}; name another rank from 0 to {num_ranks - 1}"
                )
            if task.kind and task.group != EVERYONE and task.group not in job.groups:
                hint = nearest(task.group, job.groups) if job.groups else "give them by --comm-group-configuration"
                raise ConfigError(f"rank {rank}, {task}: pg_name {task.group!r} is no communicator group; {hint}")


_MOST_LINES = 6


def explain(units: Sequence[Unit], instances: Sequence[CollectiveInstance]) -> str:
    """Say what the ranks that did not finish wait for, the collectives first."""
    stuck = sum(len(unit.ranks) for unit in units if unit.left)
    total = sum(len(unit.ranks) for unit in units)
    by_rank = {rank: unit for unit in units for rank in unit.ranks}
    lines = [_instance(instance, by_rank) for instance in instances]
    running = [(unit, unit.graph.tasks[index]) for unit in units for index in unit.running]
    lines += [
        f"rank {rank} waits for {task} from rank {task.peer} (tag {task.tag}, {task.size_bytes} bytes), which "
        f"{_state(by_rank[task.peer])}"
        for unit, task in running
        for rank in unit.ranks
        if task.work == Work.RECV
    ]
    lines += [
        f"rank {unit.ranks[0]} waits until rank {task.peer} receives {task}"
        for unit, task in running
        if task.work == Work.SEND
    ]
    shown = lines[:_MOST_LINES]
    if len(lines) > len(shown):
        shown.append(f"... and {len(lines) - len(shown)} more")
    from scaleout.config.units import counted  # noqa: PLC0415 - pydantic takes longer to import than a small run

    return (
        f"{stuck} of {counted(total, 'rank')} cannot finish; every member of a group must issue its "
        f"collectives in the same "
        f"order, and every receive needs a send of the same tag and size:\n  " + "\n  ".join(shown)
    )


def _instance(instance: CollectiveInstance, by_rank: dict[int, Unit]) -> str:
    arrived = sorted(rank for unit, _, _ in instance.arrived for rank in unit.ranks)
    missing = [rank for rank in instance.members if rank not in set(arrived)]
    first = missing[0]
    return (
        f"{_ranks(arrived)} wait{'s' * (len(arrived) == 1)} in {instance.task} ({instance.task.kind} of "
        f"{describe_group(instance.group)}) for {_ranks(missing)}; rank {first} {_state(by_rank[first])}"
    )


def _state(unit: Unit) -> str:
    """Say what a rank does instead."""
    if not unit.left:
        return "has finished and never arrives"
    if unit.running:
        return f"is in {unit.graph.tasks[min(unit.running)]}"
    return "waits itself"


def _ranks(ranks: Sequence[int]) -> str:
    names = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank{'s' * (len(ranks) > 1)} {names}"
