"""`scaleout import pytorch`: recordings of PyTorch as Chakra traces."""

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import FOLDER, NAME_OR_FILE, PATH, Whole, json_option
from scaleout.cli.printing import say, say_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scaleout.interop.pytorch.load import Report


@click.command()
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@click.option("--output", required=True, type=FOLDER, help="Directory for the traces, one file a rank.")
@click.option("--step", type=Whole(10**18, least=0), metavar="N", help="Read ProfilerStep#N alone; by default all.")
@click.option("--device", type=NAME_OR_FILE, help="Of host traces without device traces; by default h200.")
@click.option(
    "--allow-partial",
    is_flag=True,
    help="Go on where ranks are missing, a collective was seen by some of its ranks only, or kernels are unknown.",
)
@json_option
def pytorch(
    paths: tuple[Path, ...], output: Path, step: int | None, device: str | None, allow_partial: bool, as_json: bool
) -> None:
    """Read recordings of torch.profiler, and write them as Chakra traces.

    PATH is a file, a folder or an archive of the files of all ranks (plain or gzip), or the beginning of their names:
    what `prof.export_chrome_trace` wrote, and beside it what an ExecutionTraceObserver did. The traces are replayed by
    `scaleout run --trace DIRECTORY` and read by ASTRA-sim.
    """
    from scaleout.cluster.device.spec import load_device
    from scaleout.config.writing import check_writable
    from scaleout.interop.chakra.save import save_program
    from scaleout.interop.pytorch.load import load_recording

    check_writable(output)
    program, facts, report = load_recording(
        paths, step=step, device=None if device is None else load_device(device), allow_partial=allow_partial
    )
    files = save_program(program, output, name=report.name, facts=facts)
    answer = _answer(report, f"{len(files):,} in {output}")
    if as_json:
        from scaleout.report.documents import document

        asked = {"paths": list(map(str, paths)), "allow_partial": allow_partial, "step": step, "device": device}
        inputs = {name: value for name, value in asked.items() if value is not None}
        say_json(document("import pytorch", report.summary(), inputs=inputs, answer=answer))
        return
    _print(report, answer, output)


def _answer(report: "Report", written: str) -> dict[str, str]:
    """Say what was recorded, and how much of it the traces have."""
    from scaleout.config.units import counted, format_seconds

    return {
        "steps": ", ".join(f"{each.step} {format_seconds(each.recorded_s)}" for each in report.steps)
        or "one, without times",
        "kernels": f"{report.kernels_kept:,} of {report.kernels:,} kept, {report.kernels_linked:,} with launches",
        "copies": f"{report.copies:,} copies and memsets",
        "collectives": f"{counted(report.collectives, 'call')}, {report.collectives_sized:,} of known size",
        "waits": f"between streams: {report.waits_linked:,} recorded, {report.waits_inferred:,} inferred",
        "files": written,
    }


def _print(report: "Report", answer: "Mapping[str, str]", output: Path) -> None:
    from scaleout.cli.console import console, print_answer, print_table
    from scaleout.config.units import counted, format_seconds, format_sizes

    replay = f"scaleout run --trace {quote(str(output))}" + ("" if report.steps else " --topology NAME")
    print_answer(
        f"{report.name}: {counted(report.ranks, 'rank')} ({report.recorded_ranks} recorded) on {report.device}",
        answer,
    )
    say(f"{replay}\n")
    sized = [row["bytes"] for row in report.by_group if row["bytes"] is not None]
    sizes = dict(zip(sized, format_sizes(sized), strict=True))
    if report.by_group:
        print_table(
            "collectives",
            ("collective", "ranks", "bytes", "calls", *(("transfer", "waiting") if report.steps else ())),
            [
                [
                    row["kind"],
                    str(row["ranks"]),
                    sizes.get(row["bytes"], "unknown"),
                    str(row["calls"]),
                    *(format_seconds(row[key] / row["calls"]) for key in ("transfer_s", "waiting_s") if key in row),
                ]
                for row in report.by_group
            ],
        )
    for note in report.notes:
        console().print(f"note: {note}")
