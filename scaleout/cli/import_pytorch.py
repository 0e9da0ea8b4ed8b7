"""`scaleout import pytorch`: recordings of PyTorch as Chakra traces."""

from pathlib import Path

import click

from scaleout.cli.options import FOLDER, NAME_OR_FILE, PATH, Whole, json_option
from scaleout.cli.printing import say, say_json


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
    if as_json:
        from scaleout.report.documents import document

        asked = {"paths": list(map(str, paths)), "allow_partial": allow_partial, "step": step, "device": device}
        inputs = {name: value for name, value in asked.items() if value is not None}
        say_json(document("import pytorch", report.summary(), inputs=inputs))
        return
    from scaleout.cli.console import print_table
    from scaleout.config.units import counted, format_bytes, format_seconds

    if report.by_group:
        print_table(
            "collectives",
            ("collective", "ranks", "bytes", "calls", *(("transfer", "waiting") if report.steps else ())),
            [
                [
                    row["kind"],
                    str(row["ranks"]),
                    "unknown" if row["bytes"] is None else format_bytes(row["bytes"]),
                    str(row["calls"]),
                    *(format_seconds(row[key] / row["calls"]) for key in ("transfer_s", "waiting_s") if key in row),
                ]
                for row in report.by_group
            ],
        )
    print_table(
        f"{report.name}: {counted(report.ranks, 'rank')} ({report.recorded_ranks} recorded) on {report.device}",
        ("step", "recorded"),
        [[str(each.step), format_seconds(each.recorded_s)] for each in report.steps] or [["one", "no time"]],
    )
    say(
        f"{report.kernels_kept:,} of {counted(report.kernels, 'kernel')} kept, {report.kernels_linked:,} linked to "
        f"launches; copies and memsets: {report.copies:,}"
    )
    say(
        f"{counted(report.collectives, 'call')} of collectives and messages, {report.collectives_sized:,} of known "
        f"size; waits between streams: {report.waits_linked:,} recorded, {report.waits_inferred:,} inferred"
    )
    for note in report.notes:
        say(f"note: {note}")
    more = (
        "replay them: scaleout run --trace" if report.steps else "simulate them: scaleout run --topology NAME --trace"
    )
    say(f"{counted(len(files), 'file')} in {output}; {more} {output}")
