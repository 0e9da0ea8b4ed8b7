"""Recordings that others made, imported and replayed: what is kept of each, and how far the replay is off.

    python figures/public_recordings.py [--output DIR]

Writes public_recordings.md, a line for each recording: kernels in its files (counted here, not by the importer), kept,
and linked to the call that launched them; operators that a host execution trace tells more of; collectives, and those
of known size; and the replay beside the recorded time. The recordings are those of public repositories, and two jobs of
four H200; they are in the folder `shared` beside the checkout, and without it the page stays as it is.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from scaleout.config.writing import write_text
from scaleout.errors import ScaleoutError
from scaleout.interop.pytorch.files import recorded_files
from scaleout.interop.pytorch.load import load_recording
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, run
from scaleout.study.recording import described, replayed

SHARED = Path(__file__).parents[2] / "shared"
_HEAD = ("recording", "ranks", "kernels", "kept", "linked", "host operators", "collectives", "sized", "recorded",
         "replayed", "error")  # fmt: skip


def recordings(shared: Path) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Yield name and files of each recording: those of one job together."""
    public = shared / "traces" / "public"
    entries = [json.loads(line) for line in (public / "INDEX.jsonl").read_text().splitlines()]
    entries = [entry for entry in entries if not entry["kind"].startswith("reference")]
    for entry in sorted(entries, key=lambda entry: entry["path"]):
        owner, _, rest = entry["path"].partition("/")
        name = Path(rest).name.removesuffix(".gz").removesuffix(".json")
        folder = Path(rest).parent.name
        yield f"{owner.partition('+')[2]}: {name if folder in name else f'{folder}/{name}'}", (public / entry["path"],)
    for group in ("simple-add-pair", "sampled-128"):
        files = tuple(public / entry["path"] for entry in entries if entry["group"] == group)
        yield f"HolisticTraceAnalysis: {group}, {len(files)} files", files
    dlrm = shared / "traces" / "param-dlrm-8xV100"
    for name, files in {
        "DLRM on 8 V100, device traces": ("dlrm_kineto.tar.gz",),
        "DLRM on 8 V100, host traces": ("dlrm_pytorch_et.tar.gz",),
        "DLRM on 8 V100, both": ("dlrm_kineto.tar.gz", "dlrm_pytorch_et.tar.gz"),
    }.items():
        yield f"param: {name}", tuple(dlrm / file for file in files)
    yield "param: ResNet, 1 rank of 2, host trace", (shared / "traces/param-resnet-2gpu/resnet_2gpu_et.json.gz",)
    measured = shared / "measurements" / "h200-x4" / "traces"
    for job in sorted({path.name.partition(".")[0] for path in measured.iterdir()}):
        yield f"4 H200: {job}, device and host traces", (measured / job,)


def kernels_in(paths: Sequence[Path]) -> int:
    """Count the kernels in the files of a recording, by their category alone."""
    return sum(
        event.category == "kernel"
        for found in recorded_files(paths)
        if "nodes" not in found.content
        for event in (found.content["traceEvents"] if isinstance(found.content, dict) else found.content)
    )


def row(paths: Sequence[Path]) -> list[str]:
    """Return the cells of a recording after its name: what was kept and its replay, or why it is refused."""
    try:
        program, facts, report = load_recording(paths)
    except ScaleoutError as error:
        message = str(error).removeprefix(f"{paths[0]}: ").replace(f"{SHARED}/", "")
        return ["", f"{kernels_in(paths):,}", *[""] * 7, f"refused: {message}"]
    ranks = f"{report.ranks}" if report.ranks == report.recorded_ranks else f"{report.recorded_ranks} of {report.ranks}"
    counts = [f"{count:,}" for count in (report.kernels_kept, report.kernels_linked, report.operators_linked,
                                         report.collectives, report.collectives_sized)]  # fmt: skip
    if not report.steps:
        return [ranks, "0", *counts, "", "", f"modelled on {report.device}"]
    recorded_s = sum(step.recorded_s for step in report.steps)
    steps = described(program, facts, "no device").program
    topology, options = replayed(steps, SimulationOptions())
    replayed_s = run(Job(steps, "no device", topology, "recorded", options, traced=True)).makespan_s
    return [
        ranks, f"{kernels_in(paths):,}", *counts, f"{recorded_s * 1e3:.3f} ms",
        f"{replayed_s * 1e3:.3f} ms", f"{replayed_s / recorded_s - 1:+.2%}",
    ]  # fmt: skip


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("figures"))
    output = parser.parse_args().output
    if not (SHARED / "traces").exists():
        print(f"{SHARED} is not here, with the recordings: nothing is written")
        return
    output.mkdir(parents=True, exist_ok=True)
    lines = [" | ".join(["", name, *row(paths), ""]).strip() for name, paths in recordings(SHARED)]
    write_text(
        output / "public_recordings.md",
        "\n".join(
            [
                "# Recordings of others: what is kept, and their replays", "",
                "Made by `python figures/public_recordings.py`. Kernels are those in the files, kept, and linked to "
                "the call that launched them; host operators are those that a host execution trace tells more of; "
                "sized are the collectives of known bytes. Ranks that were not recorded are clones of the one that "
                "was. Kernels of host traces alone have no recorded time, and take what our model says.", "",
                f"| {' | '.join(_HEAD)} |", f"|{' --- |' * len(_HEAD)}", *lines, "",
            ]
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
