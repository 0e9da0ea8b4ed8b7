"""Whole steps of plain PyTorch at sizes drawn at random, predicted before they were measured; half were held out."""

import json
import statistics
from dataclasses import replace
from pathlib import Path

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, run
from scaleout.workloads.families import FAMILIES
from scaleout.workloads.memory import peak

ROWS = Path(__file__).parents[2] / "traces" / "h200-pair" / "drawn-steps.jsonl"
OPTIONS = SimulationOptions(host="eager", clocks="sustained")


LATER = ROWS.with_name("drawn-steps-later.jsonl")
FOUR = ROWS.parents[1] / "h100-four" / "drawn-steps.jsonl"


def rows(file=ROWS):
    """All rows, with the workload of each."""
    found = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    common = {"description": "drawn", "source": "drawn", "device": "h200", "topology": "h200-node-4"}
    return [(row, FAMILIES[row["keys"]["kind"]].model_validate(common | row["keys"])) for row in found]


def error(row, workload):
    topology = load_topology(str(ROWS.with_name("machine.yaml")))
    if row["gpus"] == 1:
        topology = replace(topology, dimensions=(replace(topology.dimensions[0], size=1),))
    job = Job(workload, load_device("h200"), topology, "overlap", options=OPTIONS)
    return run(job).result.makespan_s * 1e6 / row["step_us"] - 1


def test_half_of_all_rows_was_held_out_and_all_were_predicted():
    assert len(rows()) == 69
    assert sum(row["held"] for row, _ in rows()) == 34
    assert all(row["predicted_us"] > 0 for row, _ in rows())


def test_held_steps_that_the_device_bounds():
    """3.8% in the mean before the open half was looked at. Their hosts took less than 0.6 of the step."""
    bound = [
        (row, workload)
        for row, workload in rows()
        if row["held"] and max(row["host_us"]) < 0.6 * row["step_us"] and "decode" not in row["name"]
    ]
    errors = {row["name"]: error(row, workload) for row, workload in bound}
    assert len(errors) >= 15
    assert statistics.fmean(map(abs, errors.values())) < 0.045, errors
    assert max(map(abs, errors.values())) < 0.08, errors


def test_steps_that_were_drawn_later_and_that_the_device_bounds():
    """Predicted with what the first draw had mended: 4.6% in the mean but for one step of decode."""
    bound = [each for each in rows(LATER) if max(each[0]["host_us"]) < 0.66 * each[0]["step_us"]]
    errors = {row["name"]: error(row, workload) for row, workload in bound if "decode" not in row["name"]}
    assert len(errors) == 12
    assert statistics.fmean(map(abs, errors.values())) < 0.05, errors


def test_a_compiled_loss_is_one_kernel_each_way():
    """The row held out of the compiled: +43% with the casts and reductions of an eager loss."""
    ((row, workload),) = [each for each in rows() if each[0]["name"] == "compiled-0"]
    assert abs(error(row, workload)) < 0.09


def test_peaks_of_training_steps():
    """Of the half held out 22% off in the mean with gradients all through a step."""
    for held, most in ((True, 0.03), (False, 0.065)):
        errors = {
            row["name"]: peak(workload).total_bytes / row["peak_bytes"] - 1
            for row, workload in rows()
            if row["held"] == held and row["keys"].get("framework") and row["keys"].get("mode") is None
        }
        assert len(errors) >= 20
        assert statistics.fmean(map(abs, errors.values())) < most, errors


def test_steps_on_four_gpus_that_the_device_bounds():
    """All 34 were predicted before they were measured; these 27 were 2.5% off in the mean, 6.2% the worst."""
    bound = [row for row, _ in rows(FOUR) if max(row["host_us"]) < 0.66 * row["step_us"]]
    before = [row["predicted_us"] / row["step_us"] - 1 for row in bound]
    assert len(before) == 27
    assert statistics.fmean(map(abs, before)) < 0.025
    options = {"device": load_device("h100"), "topology": load_topology("h200-node-4")}
    for row, workload in rows(FOUR):
        if row in bound:
            job = Job(workload, options["device"], options["topology"], "overlap", options=OPTIONS)
            now = run(job).result.makespan_s * 1e6 / row["step_us"] - 1
            assert abs(now) < 0.065, row["name"]


def test_peaks_of_steps_on_four_gpus():
    """FSDP2's were up to 40% too small, without gradients of the logits in fp32; SiLU's output was not kept."""
    errors = {
        row["name"]: peak(workload).total_bytes / row["peak_bytes"] - 1
        for row, workload in rows(FOUR)
        if row["keys"]["framework"] == "fsdp2" or "tensor_parallel" in row["keys"]
    }
    assert len(errors) == 25
    assert statistics.fmean(map(abs, errors.values())) < 0.035, errors
    assert max(map(abs, errors.values())) < 0.08, errors
