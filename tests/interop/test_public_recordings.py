"""Recordings of public repositories keep every kernel that their index counts, and replay as recorded."""

import json
from pathlib import Path

import pytest

from scaleout.errors import TraceError
from scaleout.interop.pytorch.load import load_recording
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, run
from scaleout.study.recording import described, replayed

SHARED = Path(__file__).parents[3] / "shared"
PUBLIC = SHARED / "traces" / "public"
ENTRIES = [json.loads(line) for line in (PUBLIC / "INDEX.jsonl").read_text().splitlines()] if PUBLIC.exists() else []
DEVICE = [entry for entry in ENTRIES if entry["kind"].startswith("kineto")]

pytestmark = pytest.mark.skipif(not ENTRIES, reason="the public recordings are not beside this checkout")


def recorded_and_replayed_s(program, facts, report):
    steps = described(program, facts, "no device").program
    topology, options = replayed(steps, SimulationOptions())
    makespan_s = run(Job(steps, "no device", topology, "recorded", options, traced=True)).makespan_s
    return sum(step.recorded_s for step in report.steps), makespan_s


@pytest.mark.parametrize("entry", DEVICE, ids=lambda entry: Path(entry["path"]).name)
def test_every_kernel_is_kept_and_replays(entry):
    if not entry["kernels"]:
        with pytest.raises(TraceError, match="nothing ran on the GPU"):
            load_recording((PUBLIC / entry["path"],))
        return
    program, facts, report = load_recording((PUBLIC / entry["path"],))
    assert (report.kernels, report.kernels_kept) == (entry["kernels"], entry["kernels"])
    assert report.copies == entry["memcpy_memset"]
    assert report.collectives == entry["nccl_kernels"]
    assert report.collectives_sized >= entry["nccl_with"].get("In msg nelems", 0)
    assert report.waits_linked <= entry["cuda_sync_events"]
    recorded_s, replayed_s = recorded_and_replayed_s(program, facts, report)
    assert replayed_s == pytest.approx(recorded_s, rel=0.001)


@pytest.mark.parametrize("job", ["moe_ep4_h4096_f14336_t4096", "transformer_tp4_h4096_l4_s2048_b2"])
def test_jobs_of_four_gpus_replay_with_their_host_traces(job):
    program, facts, report = load_recording((SHARED / "measurements" / "h200-x4" / "traces" / job,))
    assert report.kernels == report.kernels_kept == report.kernels_linked
    assert report.operators_linked > 0
    assert not [note for note in report.notes if "left out" in note]
    assert report.collectives == report.collectives_sized
    recorded_s, replayed_s = recorded_and_replayed_s(program, facts, report)
    assert replayed_s == pytest.approx(recorded_s, rel=0.005)
