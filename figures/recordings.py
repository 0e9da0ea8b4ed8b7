"""Recorded jobs replayed, and measured edits of them predicted from the recording of the job before the edit.

    python figures/recordings.py [--output DIR]

Five jobs of plain PyTorch on two H200 (traces/h200-pair/recordings): FSDP2, DDP, tensor parallel, a mixture of experts
and DLRM. Writes recordings.md: the replay of each beside its recorded steps, and for each edit of traces/h200-pair/
edits.jsonl that `--edit` can express the measured ratio of its step to that of the base beside the predicted one.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

from scaleout.cluster.device.spec import load_device
from scaleout.config.writing import write_text
from scaleout.interop.pytorch.load import load_recording
from scaleout.simulation.options import SimulationOptions
from scaleout.study.edits import Recorded, edited
from scaleout.study.job import Job, run
from scaleout.study.recording import described, replayed

MEASURED = Path(__file__).parent.parent / "traces" / "h200-pair"
JOBS = {
    "fsdp": "FSDP2, Llama of 8 layers, 4096 wide, 3 sequences of 4096",
    "ddp": "DDP, the same model, 4 sequences of 2048",
    "tp": "tensor and sequence parallel, 4 layers, 8192 wide, 2 sequences of 4096",
    "moe": "8 experts over 2 GPUs, 4 layers, 4 sequences of 2048",
    "dlrm": "DLRM, 32 tables a GPU, batch 2048",
}
EDITS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("fsdp", "mbs1"): {"batch": "3->1"},
    ("fsdp", "mbs6"): {"batch": "3->6"},
    ("fsdp", "seq8192"): {"sequence": "4096->8192", "batch": "3->2"},
    ("fsdp", "seq2048"): {"sequence": "4096->2048", "batch": "3->6"},
    ("fsdp", "layers4"): {"layers": "8->4"},
    ("fsdp", "accum4"): {"accumulate": "1->4"},
    ("fsdp", "recompute"): {"recompute": "full"},
    ("ddp", "mbs1"): {"batch": "4->1"},
    ("ddp", "mbs8"): {"batch": "4->8"},
    ("ddp", "seq8192"): {"sequence": "2048->8192", "batch": "4->1"},
    ("ddp", "layers4"): {"layers": "8->4"},
    ("ddp", "bucket5"): {"bucket": "5 MiB"},
    ("ddp", "bucket100"): {"bucket": "100 MiB"},
    ("ddp", "one-bucket"): {"bucket": "20000 MiB"},
    ("ddp", "accum4"): {"accumulate": "1->4"},
    ("ddp", "no-sync"): {"data": "2->1"},
    ("tp", "mbs1"): {"batch": "2->1"},
    ("tp", "mbs4"): {"batch": "2->4"},
    ("tp", "seq8192"): {"sequence": "4096->8192", "batch": "2->1"},
    ("tp", "seq2048"): {"sequence": "4096->2048"},
    ("tp", "layers2"): {"layers": "4->2"},
    ("moe", "mbs2"): {"batch": "4->2"},
    ("moe", "mbs8"): {"batch": "4->8"},
    ("moe", "seq8192"): {"sequence": "2048->8192", "batch": "4->1"},
    ("moe", "layers2"): {"layers": "4->2"},
    ("moe", "chunks2"): {"chunks": "2"},
    ("moe", "chunks4"): {"chunks": "4"},
    ("dlrm", "batch1024"): {"batch": "2048->1024"},
    ("dlrm", "batch4096"): {"batch": "2048->4096"},
    ("dlrm", "chunks4"): {"chunks": "4"},
}
"""Part and variant of a measured row to the edits that make the base's recording of it."""


def step_s(recording: Recorded, edits: Mapping[str, str]) -> float:
    """Return the makespan of an edited recording."""
    assert recording.device is not None
    program = edited(recording, edits).program
    topology, options = replayed(program, SimulationOptions())
    return run(Job(program, recording.device, topology, "recorded", options, traced=True)).makespan_s


def main() -> None:
    """Write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("figures"))
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in (MEASURED / "edits.jsonl").read_text().splitlines()]
    measured = {(row["part"], row["variant"]): row["step_us"] for row in rows}
    device = load_device("h200")
    replays, changes, errors = [], [], []
    for part, what in JOBS.items():
        program, facts, report = load_recording([MEASURED / "recordings" / f"{part}-base"])
        recording = described(program, facts, device)
        recorded_s = sum(step.recorded_s for step in report.steps)
        base_s = step_s(recording, {})
        replays.append(
            f"| {part} | {what} | {recorded_s / len(report.steps) * 1e3:.1f} ms | "
            f"{base_s / len(report.steps) * 1e3:.1f} ms | {base_s / recorded_s - 1:+.2%} | "
            f"{report.kernels_linked:,} of {report.kernels_kept:,} |"
        )
        for (job, variant), edits in EDITS.items():
            if job != part:
                continue
            ratio = measured[part, variant] / measured[part, "base"]
            predicted = step_s(recording, edits) / base_s
            errors.append(abs(predicted / ratio - 1))
            text = " ".join(f"--edit '{key}={value}'" for key, value in edits.items())
            changes.append(f"| {part} | `{text}` | {ratio:.3f} | {predicted:.3f} | {predicted / ratio - 1:+.1%} |")
    write_text(
        output / "recordings.md",
        "\n".join(
            [
                "# Recordings: replays and what-ifs", "",
                "Made by `python figures/recordings.py`. Steps are means of those recorded; kernels linked are those "
                "whose launch was recorded, the others were launched before the recording began.", "",
                "| job | what | recorded step | replayed | error | kernels linked |",
                "| --- | --- | --- | --- | --- | --- |",
                *replays, "",
                "Ratios of a step after an edit to the step before: measured by running both, and predicted from the "
                "recording of the job before the edit alone.", "",
                "| job | edit | measured | predicted | error |", "| --- | --- | --- | --- | --- |", *changes, "",
                f"Mean error {mean(errors):.1%}, worst {max(errors):.1%} of {len(errors)} edits.", "",
            ]
        ),
    )  # fmt: skip


if __name__ == "__main__":
    main()
