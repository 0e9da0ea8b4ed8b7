"""`scaleout operator`: a fused compute + collective kernel, work-group by work-group, against its alternatives."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaleout.cli.options import Output, machine_options, output_options, parse_settings, set_option
from scaleout.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scaleout.schedule.fusion import Evaluation, FusedMachine

_SAMPLES = 64
"""Slices of a rank's timeline that are printed as JSON, evenly spread."""

_RANKS = 8
"""Ranks whose timelines are printed."""


@click.command()
@click.argument("name", metavar="OPERATOR")
@machine_options(device="h200", topology="h200-node-4")
@set_option("Set a key of the operator (`scaleout list operators` lists them)")
@click.option(
    "--sweep",
    metavar="KEY=VALUES",
    help="Simulate every value of a key: slice_size=1:64 (each double the last) or occupancy=0.25,0.5.",
)
@output_options("Write times, timelines and pictures here.", "timelines.png", "sweep.png")
def operator(
    name: str, device: str, topology: str, settings: tuple[str, ...], sweep: str | None, output: Output
) -> None:
    """Simulate a fused compute + collective kernel by work-group.

    OPERATOR is a name such as embedding_all_to_all (`scaleout list operators`); it runs on all ranks of the topology.
    The fused kernel's work-groups (thread blocks) stay resident and work through a list of tasks; a slice of the output
    leaves once all its tasks are done. Prints the unfused baseline, its kernels and its collective one after the other;
    the fused kernel with the slices for other ranks first (communication-aware order) and in the order of the ranks
    (oblivious); the baseline split into small kernels, overlapped with their collectives; and the ideal, a lower bound:
    the longer of the fastest kernels and of the links, each alone, hides the other.
    """
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.config.units import counted
    from scaleout.report.documents import document
    from scaleout.schedule.fusion import FusedMachine, defaults_of
    from scaleout.simulation.options import SimulationOptions
    from scaleout.study.provenance import provenance

    keys = parse_settings(settings)
    machine = FusedMachine(load_device(device), load_topology(topology))
    title = f"{name} on {counted(machine.ranks, 'rank')} of {machine.device.name}, {machine.topology.name}"
    model = provenance(machine.topology, machine.device, SimulationOptions()).models
    about: dict[str, Any] = {
        "operator": name,
        "device": machine.device.name,
        "topology": machine.topology.name,
        "ranks": machine.ranks,
        "settings": keys,
    }
    chosen = {f"set.{key}": value for key, value in keys.items()}
    asked: dict[str, Any] = {"operator": name, "device": device, "topology": topology, **chosen}
    if sweep is not None:
        key, values = parse_sweep(sweep)
        if key in keys:
            raise ConfigError(f"--sweep {key} and --set {key} both say what {key} is; give one of them")
        cases = [({**keys, key: value}, machine) for value in values]
        swept = _simulated(name, cases, quiet=output.as_json)[1]
        rows = [{key: value, **each} for value, each in zip(values, swept, strict=True)]
        about["defaults"] = {other: each for other, each in defaults_of(name, keys).items() if other != key}
        asked["sweep"] = {key: values}
        answer = _answer_of_sweep(key, rows, _facts(about, model))
        summary = document("operator", {**about, "sweep": rows}, inputs=asked, models=[model], answer=answer)
        output.give(summary, partial(_print_sweep, key, rows, title, answer), partial(_draw, key, rows, title))
        return
    about["defaults"] = defaults_of(name, keys)
    brackets = {} if machine.stores else machine.device.brackets
    devices = [replace(machine.device, work_groups=end) for ends in brackets.values() for end in ends]
    cases = [(keys, machine), *((keys, replace(machine, device=each)) for each in devices)]
    found, plain = _simulated(name, cases, quiet=output.as_json)
    fused_s = iter([each["fused_aware_s"] for each in plain[1:]])
    between = {key: [next(fused_s) for _ in ends] for key, ends in brackets.items()}
    about |= {**found.plain(), "fused_aware_between_s": between, "timeline": _timeline(found)}
    summary = document("operator", about, inputs=asked, models=[model], answer=_answer(found, _facts(about, model)))

    def write(folder: Path) -> dict[str, str]:
        from scaleout.report.plots.operators import draw_timelines

        draw_timelines(found, folder / "timelines.png", title=title)
        return {"timelines.png": "work-groups and slices over time"}

    output.give(summary, partial(_print, found, title, summary["answer"], between), write)


def _simulated(
    name: str, cases: "Sequence[tuple[dict[str, Any], FusedMachine]]", *, quiet: bool
) -> "tuple[Evaluation, list[dict[str, Any]]]":
    """Return what the first case found, and what each of them did as plain values."""
    from scaleout.cli.progress import progress
    from scaleout.schedule.fusion import evaluate_operator, plan_operator

    for keys, machine in cases if len(cases) > 1 else ():  # so that a wrong one is refused before any is simulated
        plan_operator(name, keys, machine)
    found = None
    plain = []
    with progress(kept="nothing is kept", quiet=quiet) as tell:
        for number, (keys, machine) in enumerate(cases):
            tell(number, len(cases), "operators simulated")
            each = evaluate_operator(name, keys, machine)
            found = found or each
            plain.append(each.plain())
    assert found is not None
    return found, plain


def _timeline(found: "Evaluation") -> list[dict[str, Any]]:
    """Return each simulated rank's order of shards, when it is done, and some of its slices."""
    rows = []
    for order, run in found.runs.items():
        for rank in run.ranks:
            slices = len(rank.arrival_s)
            chosen = sorted({round(k * (slices - 1) / (_SAMPLES - 1)) for k in range(_SAMPLES)})
            rows.append(
                {
                    "order": order,
                    "rank": rank.rank,
                    "shards": list(rank.shards),
                    "done_s": rank.done_s,
                    "last_sent_s": rank.last_sent_s,
                    "slices": [
                        {
                            "slice": k,
                            "shard": rank.shards[k * len(rank.shards) // slices],
                            "work_group": int(rank.execution.issuer[k]),
                            "issued_s": float(rank.execution.issued_s[k]),
                            "arrival_s": float(rank.arrival_s[k]),
                        }
                        for k in chosen
                    ],
                }
            )
    return rows


def _facts(about: "Mapping[str, Any]", model: str) -> dict[str, str]:
    """Say what the keys of the operator are, those that were set and those that were not, and what answered."""
    given, own = (", ".join(f"{key} {each}" for key, each in about[of].items()) for of in ("settings", "defaults"))
    return {**({"set": given} if given else {}), "by default": own, "model": model}


def _ways(found: "Evaluation") -> dict[str, float]:
    """Return how long each way that overlaps compute and communication takes, the fused kernel first."""
    from scaleout.config.units import counted

    plain = found.plain()
    return {
        "fused, communication-aware order": plain["fused_aware_s"],
        "fused, oblivious order": plain["fused_oblivious_s"],
        f"split into {counted(found.chunks, 'kernel')}": found.split_s,
    }


def _answer(found: "Evaluation", facts: "Mapping[str, str]") -> dict[str, str]:
    """Say what the fused kernel comes to, and other facts."""
    from scaleout.config.units import format_seconds, format_share, format_times
    from scaleout.program.fastest import is_faster

    ways, baseline_s, plain = _ways(found), found.baseline_s, found.plain()
    fused_s, best = plain["fused_aware_s"], min(ways, key=lambda way: ways[way])
    faster = {"faster": f"{best}: {format_seconds(ways[best])}, {format_times(baseline_s / ways[best])}"}
    return {
        "fused": f"{format_seconds(fused_s)}, {format_times(baseline_s / fused_s)} as fast as bulk-synchronous",
        "saved": format_share(plain["saving"]),
        **(faster if is_faster(ways[best], fused_s) else {}),
        "ideal": f"{format_seconds(found.ideal_s)}, {format_times(baseline_s / found.ideal_s)}",
        **facts,
    }


def _print(
    found: "Evaluation", title: str, answer: "Mapping[str, str]", between: "Mapping[str, Sequence[float]]"
) -> None:
    from scaleout.cli.console import print_answer, print_facts, print_table
    from scaleout.config.units import format_seconds, format_times

    print_answer(title, answer)
    plain, baseline_s = found.plain(), found.baseline_s
    ideal = "ideal: the longer of its parts hides the other"
    rows = [["bulk-synchronous", format_seconds(baseline_s), "1.00x"], *_parts(found.plan.baseline_s)]
    for label, seconds in (*_ways(found).items(), (ideal, found.ideal_s)):
        rows.append([label, format_seconds(seconds), format_times(baseline_s / seconds)])
    rows += _parts(found.ideal_parts_s)
    print_table("ways to compute it", ("", "time", "speed-up"), rows)
    if between:
        ends = [
            [key, *(f"{format_seconds(each)} ({format_times(baseline_s / each)})" for each in sorted(times))]
            for key, times in between.items()
        ]
        print_table("fused, by what was not measured", ("key of work_groups", "at the least", "at the most"), ends)
    print_table(
        "timeline",
        ("order", "rank", "last slice sent", "all tasks done", "all slices arrived", "done"),
        [
            [
                order,
                "all" if len(run.ranks) == 1 else str(rank.rank),
                *map(format_seconds, (rank.last_sent_s, float(rank.execution.free_s.max()), rank.there_s, rank.done_s)),
            ]
            for order, run in found.runs.items()
            for rank in run.ranks[:_RANKS]
        ],
        left=2,
    )
    keys = ("logical_work_groups", "work_groups", "slices", "sent_bytes", "skew_oblivious")
    print_facts({key: plain[key] for key in keys})


def _parts(parts_s: "Mapping[str, float]") -> list[list[str]]:
    """Return rows of the parts of a time, each alone."""
    from scaleout.config.units import format_seconds

    return [[f"  {part}", format_seconds(seconds), ""] for part, seconds in parts_s.items()]


def _answer_of_sweep(key: str, rows: list[dict[str, Any]], facts: "Mapping[str, str]") -> dict[str, str]:
    """Say which value of a key is the best, and other facts."""
    from scaleout.config.units import format_seconds, format_share

    best = max(rows, key=lambda row: row["saving"])
    found = f"{key} {best[key]}: {format_seconds(best['fused_aware_s'])}, {format_share(best['saving'])} saved"
    return {"best": found, **facts}


def _print_sweep(key: str, rows: list[dict[str, Any]], title: str, answer: "Mapping[str, str]") -> None:
    from scaleout.cli.console import print_answer, print_table
    from scaleout.config.units import format_seconds, format_share

    times = ("baseline_s", "fused_aware_s", "fused_oblivious_s", "kernel_split_s", "ideal_s")
    columns = (key, *(time.removesuffix("_s").replace("_", " ") for time in times), "saved")
    print_answer(title, answer)
    cells = [
        [f"{row[key]}", *(format_seconds(row[time]) for time in times), format_share(row["saving"])] for row in rows
    ]
    print_table(f"by {key}", columns, cells)


def _draw(key: str, rows: list[dict[str, Any]], title: str, folder: Path) -> dict[str, str]:
    """Draw all times where the values are numbers."""
    from scaleout.report.plots.operators import draw_sweep

    if not all(isinstance(row[key], int | float) for row in rows):
        return {}
    draw_sweep(key, rows, folder / "sweep.png", title=title)
    return {"sweep.png": f"times against {key}"}


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Turn ``slice_size=1:64`` into its doublings, ``occupancy=0.5,1`` into its values, or raise `ConfigError`."""
    key, separator, value = text.partition("=")
    if not separator or not key or not all(value.split(",")):
        raise ConfigError(f"--sweep {shown(text)}: write it as key=values, such as slice_size=1:64")
    first, colon, last = value.partition(":")
    if not colon:
        parsed = [parse_settings([f"{key}={part}"], option="--sweep") for part in value.split(",")]
        return key, list({repr(one): one for each in parsed for one in each.values()}.values())
    from scaleout.config.documents import whole

    low, high = whole(first), whole(last)
    if low is None or high is None or not 0 < low <= high:
        raise ConfigError(f"--sweep {shown(text)}: a range goes from a smaller whole number above zero to a larger one")
    values = [low]
    while values[-1] * 2 <= high:
        values.append(values[-1] * 2)
    return key, values
