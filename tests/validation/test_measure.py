"""Measuring without a GPU: plans, rows that are kept, files that are written, and what is said where something lacks.

The GPUs here are a stand-in whose kernels take their bytes over a bandwidth and whose collectives take known terms.
"""

import ast
import json
import math
import sys
import types
from pathlib import Path

import pytest

import scaleout.validation.measure
from scaleout.analysis.uncertainty import spread_of
from scaleout.cluster.device.host import host_costs_s
from scaleout.cluster.device.kernel_times.measured import read_table
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError, GraphError, MeasurementError
from scaleout.network.collectives import BUS_FACTORS, KINDS
from scaleout.program.operations import OPERATIONS, kernel
from scaleout.validation.measure import experiments, machine_files, shapes
from scaleout.validation.measure.checkpoint import MeasurementLog, measured
from scaleout.validation.measure.experiments import EXPERIMENTS, Job
from scaleout.validation.measure.machine import backend
from scaleout.validation.measure.machine_files import fit, host_launch_us
from scaleout.validation.measure.shapes import NOT_MEASURED
from scaleout.validation.measured.compare import compare_files
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

FOLDER = Path(scaleout.validation.measure.__file__).parent


def keys_of(name):
    """Keys of the tables of a name, read without importing PyTorch."""
    found = []
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == name:
                found += [key.value for key in node.value.keys if key is not None]
    return found


def test_every_operation_can_be_measured_in_one_way():
    assert sorted([*keys_of("MAKERS"), *NOT_MEASURED]) == sorted(OPERATIONS)


def test_every_measured_operation_has_a_maker():
    measured = {op for op, _ in read_table(load_device("h200").kernel_files).rows}
    assert measured <= set(keys_of("MAKERS"))


def test_every_collective_can_be_measured():
    assert sorted(keys_of("CALLS")) == sorted(KINDS)


def test_every_planned_step_and_operator_has_its_code():
    assert {row["name"] for row in experiments.plan("steps", gpus=4)} == set(keys_of("_STEPS"))
    assert {row["op"] for row in experiments.plan("fused", gpus=4)} == set(keys_of("_OPERATORS"))
    steps = {*keys_of("STEPS"), "loop", "pace"}
    assert {row["step"] for row in experiments.plan("host", gpus=2)} == steps


def test_every_experiment_has_its_module():
    assert {f"{experiment.module}.py" for experiment in EXPERIMENTS.values()} <= {
        file.name for file in FOLDER.iterdir()
    }


def test_planning_imports_no_pytorch():
    assert "torch" not in sys.modules


# ---- Plans


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_plan_has_each_row_once_and_a_quick_one_fewer(name):
    rows, few = (experiments.plan(name, gpus=4, quick=quick) for quick in (False, True))
    assert len({json.dumps(row) for row in rows}) == len(rows) >= len(few) > 0
    for row in rows:
        assert not row.keys() - {*EXPERIMENTS[name].keys, "heads", "experts"}
    assert name in ("host",) or len(few) < len(rows)


def test_the_grid_has_every_operation_that_is_measured():
    assert {row["op"] for row in experiments.plan("kernels", gpus=1)} == set(OPERATIONS) - NOT_MEASURED


def test_the_convolutions_are_those_of_resnet_50():
    """Its 53 convolutions are of 23 shapes; together they do 4.09 GFLOP, multiply and add as one, an image."""
    repeats = {
        (64, 64, 3, 1, 56): 3,
        (64, 256, 1, 1, 56): 4,
        (256, 64, 1, 1, 56): 2,
        (128, 128, 3, 1, 28): 3,
        (128, 512, 1, 1, 28): 4,
        (512, 128, 1, 1, 28): 3,
        (256, 256, 3, 1, 14): 5,
        (256, 1024, 1, 1, 14): 6,
        (1024, 256, 1, 1, 14): 5,
        (512, 512, 3, 1, 7): 2,
        (512, 2048, 1, 1, 7): 3,
        (2048, 512, 1, 1, 7): 2,
    }
    layers = [layer for layer in shapes.CONVOLUTIONS if layer["hw"] not in (27, 13) and layer["kernel"] != 11]
    counts = [repeats.get(tuple(layer.values()), 1) for layer in layers]
    flops = sum(
        count * kernel("conv2d_fwd", dtype="fp32", batch=1, **layer).flops
        for count, layer in zip(counts, layers, strict=True)
    )
    assert sum(counts) == 53
    assert flops / 2 == pytest.approx(4.087e9, rel=0.001)


def test_a_workload_is_measured_in_exactly_its_kernels():
    rows = shapes.of_workload("llama-3-8b", {"tensor_parallel": 8})
    program = generate(load_workload("llama-3-8b", {"tensor_parallel": 8}))
    wanted = {call for graph in program.graphs for call in graph.kernels}
    assert {kernel(row["op"], dtype=row["dtype"], **row["shape"]) for row in rows} == wanted
    assert len(rows) == len(wanted)


def test_rows_are_chosen_by_pattern_and_dtype():
    rows = experiments.chosen(experiments.plan("kernels", gpus=1), only=("attention_*", "gemm"), dtypes=("fp16",))
    assert {row["op"] for row in rows} == {"gemm"}
    with pytest.raises(ConfigError, match="--only gem: nothing to measure is named so; did you mean 'gemm'"):
        experiments.chosen(rows, only=("gem",))
    with pytest.raises(ConfigError, match="--dtype bf61: nothing to measure is of it"):
        experiments.chosen(rows, dtypes=("bf61",))


def test_a_call_that_a_graph_cannot_hold_is_profiled():
    row = {"op": "embedding_bwd", "dtype": "bf16", "shape": {"tokens": 8, "hidden": 64, "vocab": 100}}
    assert shapes.checked(row)["method"] == "kernel_durations"


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ({"op": "add"}, ConfigError, "needs the keys op, dtype and shape, not op"),
        ({"op": "ad", "dtype": "bf16", "shape": {}}, GraphError, "unknown operation 'ad'"),
        (
            {"op": "add", "dtype": "bf16", "shape": {"elements": 1}, "method": "stopwatch"},
            ConfigError,
            "unknown method 'stopwatch'; use graph_replay or kernel_durations",
        ),
    ],
)
def test_rows_that_are_no_kernel_are_refused(row, error, message):
    with pytest.raises(error, match=message):
        experiments.check_rows("kernels", {"x": row}, gpus=1)


ROW = {"collective": "all_reduce", "ranks": 4, "bytes": 1024}


def test_rows_of_collectives_pass():
    row = ROW | {"algorithm": "Ring", "protocol": "LL"}
    assert experiments.check_rows("collectives", {"x": row}, gpus=4) == [row]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"proto": "LL"}, "has the keys collective, ranks, bytes, and at most algorithm and protocol"),
        ({"collective": "all_reduse"}, "cannot measure collective 'all_reduse'; did you mean 'all_reduce'"),
        ({"ranks": 8}, "the row has ranks 8; this machine can measure 2 to 4"),
        ({"ranks": 1}, "the row has ranks 1;"),
        ({"bytes": 2}, "the row has 2 bytes; give a whole number, at least two a rank"),
    ],
)
def test_rows_that_cannot_be_measured_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        experiments.check_rows("collectives", {"x": ROW | changes}, gpus=4)


def test_rows_of_steps_have_the_keys_of_planned_ones():
    row = experiments.plan("steps", gpus=2)[0]
    assert experiments.check_rows("steps", {"x": row}, gpus=2) == [row]
    with pytest.raises(ConfigError, match=r"has the keys .*layers.*; this one has name"):
        experiments.check_rows("steps", {"x": {"name": "transformer_forward"}}, gpus=2)
    with pytest.raises(ConfigError, match="x: the row is for 2 GPUs; 4 take part, say --gpus 2"):
        experiments.check_rows("steps", {"x": row}, gpus=4)


# ---- Rows that are kept


def test_what_was_measured_is_not_measured_again(tmp_path):
    keys = EXPERIMENTS["collectives"].keys
    log = MeasurementLog(tmp_path, "collectives")
    rows = [ROW, ROW | {"protocol": "LL"}, ROW | {"bytes": 2048}, ROW | {"bytes": 4096}]
    log.open({"gpu": "toy"})
    assert log.remaining(rows, keys) == rows
    for row in rows[:2]:
        log.begin(row, 0)
        log.end(row, [{"us": 9.1}], 0)
    log.end(rows[2], [{"error": "out of memory"}], 0)
    assert log.counts() == (2, 1)
    assert log.remaining(rows, keys) == rows[3:]
    assert log.remaining(rows, keys, retry=True) == rows[2:]
    assert not list(tmp_path.glob("*.running"))


def test_a_row_that_took_its_process_with_it_counts_as_failed(tmp_path):
    log = MeasurementLog(tmp_path, "steps")
    log.open({})
    log.begin({"name": "dp_ddp_overlap"}, 0)
    log.open({})
    assert [row["error"] for row in measured(log.failed)] == ["its process ended while it was measured"]
    log.open({})
    assert log.counts() == (0, 1)


def test_a_last_line_that_was_cut_off_is_dropped(tmp_path):
    log = MeasurementLog(tmp_path, "steps")
    log.open({})
    log.end({"name": "a"}, [{"us": 1}], 0)
    with log.rows.open("a", encoding="utf-8") as file:
        file.write('{"name": "b", "u')
    log.open({})
    log.end({"name": "c"}, [{"us": 2}], 0)
    assert [row["name"] for row in measured(log.rows)] == ["a", "c"]


def test_a_line_that_is_no_row_is_named(tmp_path):
    (tmp_path / "steps.jsonl").write_text('{}\nnonsense\n{"us": NaN}\n{}\n', encoding="utf-8")
    with pytest.warns(UserWarning, match=r"line \d: damaged \((Expecting value|'NaN' is no finite number).*left out"):
        assert MeasurementLog(tmp_path, "steps").counts() == (2, 0)


def test_rows_of_somebody_else_are_left_alone(tmp_path):
    (tmp_path / "steps.jsonl").write_text('{"us": 1.0}\n{"without": "an end"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"steps.jsonl: does not begin with a provenance; give another folder"):
        MeasurementLog(tmp_path, "steps").open({})
    assert (tmp_path / "steps.jsonl").read_text(encoding="utf-8") == '{"us": 1.0}\n{"without": "an end"}'


def test_a_damaged_row_is_measured_again(tmp_path):
    log = MeasurementLog(tmp_path, "steps")
    log.open({"gpu": "toy"})
    for name in ("a", "b"):
        log.end({"name": name}, [{"us": 12.5}], 0)
    log.rows.write_bytes(log.rows.read_bytes().replace(b'"b", "us": 12.5', b'"b", "us": 11.5'))
    with pytest.warns(UserWarning, match="line 3: damaged .it is not what its checksum says.; left out"):
        assert log.remaining([{"name": "a"}, {"name": "b"}], ["name"]) == [{"name": "b"}]


def test_a_time_that_is_no_number_failed(tmp_path):
    log = MeasurementLog(tmp_path, "steps")
    log.open({})
    log.end({"name": "a"}, [{"us": math.nan}], 0)
    assert log.counts() == (0, 1)


# ---- What is missing


def test_missing_pytorch_ends_with_a_message(monkeypatch, scaleout, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = scaleout("measure", "kernels", "--output", tmp_path)
    assert code == 2
    assert "measuring needs PyTorch; install it with `pip install 'scaleout[measure]'`" in err


class Machine:
    """GPUs on which kernels run at 1 TB/s and collectives by the terms below; some rows fail, or end it all."""

    def __init__(self, gpus=2, name="Toy 9000", fails=(), ends_after=math.inf):
        self.number, self.name, self.fails, self.ends_after = gpus, name, fails, ends_after
        self.asked = []

    def gpus(self):
        return self.number

    def environment(self):
        sizes = {"memory_bytes": 16 * 2**30, "l2_bytes": 2**22, "sms": 10}
        return {"gpu": self.name, "gpus": self.number, "torch": "2", "nccl": "2.99.1", "date": "2026-11-21", **sizes}

    def launch(self, job: Job):
        log = MeasurementLog(Path(job.folder), job.experiment)
        for number, row in enumerate(job.rows):
            log.begin(row, 0)
            if number >= self.ends_after:
                raise MeasurementError("process 0 terminated with signal SIGABRT")
            self.asked.append(row)
            failed = row.get("op") in self.fails
            log.end(row, [{"error": "CUDA out of memory"} if failed else FOUND[job.experiment](row)], 0)
            yield


def time_kernel(row):
    call = kernel(row["op"], dtype=row["dtype"], **row["shape"])
    return {"us": 1 + call.flops / 1e8 + call.bytes / 1e6, "us_min": 1.0}


S_US, H_US, B, C = 10.0, 1.0, 300e9, 600e9


def time_collective(row):
    steps = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}.get(row["collective"], 0) * (row["ranks"] - 1)
    wire_s = BUS_FACTORS[row["collective"]](row["ranks"]) * row["bytes"] / B
    return {"us": S_US + H_US * steps + 1e6 * (wire_s + row["bytes"] / row["ranks"] / C), "note": "CUDA graph of 20"}


FOUND = {
    "kernels": time_kernel,
    "collectives": time_collective,
    "host": lambda row: {"call": "gelu", "direction": "forward", "us": 5.0},
    "steps": lambda row: {"step_us": 1000.0},
}


@pytest.fixture
def measure(monkeypatch, scaleout, tmp_path):
    """Run `scaleout measure` on a stand-in's GPUs."""

    def run(machine, *arguments):
        monkeypatch.setattr("scaleout.validation.measure.machine.backend", lambda: machine)
        return scaleout("measure", *arguments, "--output", tmp_path / "toy")

    return run


def test_missing_gpus_are_said(measure):
    code, _, err = measure(Machine(gpus=0), "kernels")
    assert (code, "PyTorch finds none; run this on the machine that has it" in err) == (2, True)
    code, _, err = measure(Machine(gpus=1), "collectives")
    assert (code, "measuring collectives needs 2 GPUs or more, and there are 1" in err) == (2, True)
    code, _, err = measure(Machine(gpus=2), "steps", "--gpus", "4")
    assert (code, "--gpus 4: PyTorch finds 2 here; ask for 1 to 2" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all", "--workload", "llama-3-8b"), "are for one kind of measurement"),
        (("steps", "--workload", "llama-3-8b"), "--workload says which kernels to measure, not steps"),
        (("kernels", "--set", "layers=2"), "--set changes a workload; name it with --workload"),
        (("kernels", "--workload", "x", "--rows", "y"), "both say what to measure"),
        (("kernels", "--rows", "nowhere.jsonl"), "--rows nowhere.jsonl: no such file"),
        (("kernels", "--workload", "lama"), "unknown workload 'lama'"),
    ],
)
def test_options_that_do_not_fit_are_refused(measure, arguments, message):
    code, _, err = measure(Machine(), *arguments)
    assert code == 2
    assert message in err


def test_a_plan_needs_no_gpu(measure):
    code, out, _ = measure(None, "fused", "--plan", "--gpus", "2", "--only", "gemv_*")
    assert code == 0
    assert [json.loads(line)["M"] for line in out.splitlines()] == [8192, 16384, 32768, 65536]


# ---- From the command to files that other commands take


def test_measured_files_run_a_workload(measure, scaleout, tmp_path):
    machine = Machine(fails=("rms_norm_bwd",))
    job = ("--workload", "llama-3-8b", "--set", "layers=2", "--set", "data_parallel=2", "--set", "tensor_parallel=1")
    code, out, err = measure(machine, "kernels", *job)
    assert (code, err) == (0, "")
    assert "1 failed" in out
    assert "failed: rms_norm_bwd bf16" in out
    assert "CUDA out of memory" in out
    folder = tmp_path / "toy"
    for what in (("kernels", "--only", "clone", "--quick"), ("collectives",)):
        assert measure(machine, *what)[0] == 0
    device, topology = load_device(folder / "device.yaml"), load_topology(str(folder / "machine.yaml"))
    assert device.memory_bytes_per_s == pytest.approx(1e12, rel=0.01)
    assert device.sources["memory_bandwidth"].startswith("measured on Toy 9000, 2026-11-21, by scaleout measure: the")
    assert (device.num_sms, device.memory_bytes, topology.num_ranks) == (10, 16 * 2**30, 2)
    assert topology.dimensions[0].bytes_per_s == pytest.approx(B, rel=0.01)
    changes = [text for text in job[2:] if text != "--set"]
    run = [part for text in changes for part in ("--set", text)]
    files = ("--device", folder / "device.yaml", "--topology", folder / "machine.yaml")
    code, out, err = scaleout("run", "llama-3-8b", *run, *files, "--schedule", "baseline", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["results"][0]["kernel_time_sources"]["measured"] > 0.9


def test_an_interrupted_run_goes_on(measure, tmp_path):
    ending = Machine(ends_after=3)
    code, _, err = measure(ending, "kernels", "--only", "gelu_*", "--quick")
    assert code == 2
    assert "measuring kernels ended early: process 0 terminated with signal SIGABRT. 3 rows were measured" in err
    again = Machine()
    code, out, _ = measure(again, "kernels", "--only", "gelu_*", "--quick")
    assert code == 0
    assert "2 rows measured, 0 failed, 4 were there already" in out  # three, and the one that ended the process
    assert not [row for row in again.asked if row in ending.asked]
    read_table((tmp_path / "toy" / "kernels.jsonl",))  # and the file is one that a device can name


def test_rows_of_another_machine_stay_apart(measure):
    assert measure(Machine(), "host")[0] == 0
    code, _, err = measure(Machine(name="Toy 9001"), "host")
    assert code == 2
    assert "holds measurements of another machine: gpu 'Toy 9000' there and 'Toy 9001' here" in err


def test_all_of_one_gpu_leaves_out_what_needs_more(measure):
    machine = Machine(gpus=1)
    code, out, _ = measure(machine, "all", "--quick")
    assert code == 0
    assert [line.split(":")[0] for line in out.splitlines() if "rows measured" in line] == ["kernels", "host", "steps"]


def test_a_known_gpu_keeps_the_rates_of_its_data_sheet(tmp_path):
    environment = {"gpu": "NVIDIA H200", "gpus": 2, "nccl": "2.28.9", "date": "today"}
    row = {"op": "add", "dtype": "bf16", "shape": {"elements": 2**20}, "method": "graph_replay", "us": 9.0}
    (tmp_path / "kernels.jsonl").write_text('{"provenance": {}}\n' + json.dumps(row) + "\n", encoding="utf-8")
    rows = [row | time_collective(row) for row in experiments.plan("collectives", gpus=2, quick=True)]
    (tmp_path / "collectives.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    machine_files.write_files(tmp_path, environment)
    known, found = load_device("h200"), load_device(tmp_path / "device.yaml")
    assert found.peak_flops_per_s == known.peak_flops_per_s
    assert found.sources["peak_flops.bf16"] == known.sources["peak_flops.bf16"]
    assert found.host_launch_s["gemm_forward"] == known.host_launch_s["gemm_forward"]
    assert found.sources["host_launch.gemm_forward"] == "not measured here; as h200"
    library, shipped = load_topology(str(tmp_path / "machine.yaml")).library, load_topology("h200-node-4").library
    assert library.resource_use == shipped.resource_use
    assert library.protocols[0].modelled.startup_s == shipped.protocols[0].modelled.startup_s


def test_validate_takes_the_machine_that_was_measured(scaleout, tmp_path):
    (tmp_path / "device.yaml").symlink_to(load_device("h200").kernel_files[0].parent / "device.yaml")
    step = {"name": "all_gather_then_matmul", "gpus": 2, "M": 8192, "N": 4096, "K": 1024, "dtype": "bf16"}
    (tmp_path / "steps.jsonl").write_text(json.dumps({**step, "step_us": 181.4}) + "\n", encoding="utf-8")
    environment = {"gpu": "NVIDIA H200", "topology": "machine.yaml"}
    (tmp_path / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    slow = {"kind": "switch", "size": 2, "bandwidth": "1 GB/s", "bandwidth_source": "-", "latency": "1 us"}
    machine = {"source": "-", "dimensions": [{**slow, "latency_source": "-"}]}
    (tmp_path / "machine.yaml").write_text(json.dumps(machine), encoding="utf-8")
    code, out, err = scaleout("validate", tmp_path / "steps.jsonl", "--json")
    assert (code, err) == (0, "")
    (row,) = json.loads(out)["rows"]
    assert row["predicted_us"] > 8192 * 1024 * 2 / 2 / 1e9 * 1e6  # half of the tensor over 1 GB/s


PAIR = load_device("h200").kernel_files[0].parents[1] / "h200-pair"
"""Two H200 that `scaleout measure` measured; the kernels of the device file do not come from these runs."""


def test_steps_of_a_measured_pair_are_met():
    families = compare_files([PAIR / "steps.jsonl"]).families
    limits = {"transformer": 0.06, "mixture of experts": 0.08, "DLRM": 0.08, "data parallel": 0.08}
    for name, limit in limits.items():
        assert families[name].coverage == 1
        assert families[name].mean_absolute_error < limit, name


def test_collectives_of_a_measured_pair_are_met_by_the_protocol_that_was_forced():
    found = compare_files([PAIR / "collectives.jsonl"]).accuracy
    assert (found.coverage, found.num_rows) == (1, 234)
    assert found.mean_absolute_error < 0.1  # of rows whose protocol is not the fastest, many times that else


# ---- Numbers


def test_the_fit_finds_the_terms_that_made_the_times():
    sizes = [1024 * 4**power for power in range(10)]
    kinds = [(kind, ranks) for kind in ("all_reduce", "all_gather", "reduce_scatter") for ranks in (2, 4)]
    rows = [{"collective": kind, "ranks": ranks, "bytes": size} for kind, ranks in kinds for size in sizes]
    found = fit([row | time_collective(row) for row in rows])
    assert found[:4] == pytest.approx((S_US * 1e-6, H_US * 1e-6, B, C), rel=1e-6)
    assert found.median_error < 1e-9


def test_a_term_that_would_be_negative_is_left_out():
    rows = [{"collective": "send", "ranks": 2, "bytes": 2**power, "us": 2**power / 1e3} for power in range(10, 20)]
    found = fit(rows)
    assert found.startup_s >= 0
    assert 1 / (1 / found.bytes_per_s + 0.5 / found.local_bytes_per_s) == pytest.approx(1e9, rel=0.01)


def test_host_times_become_those_of_a_device_file():
    def row(call, direction, us):
        return {"call": call, "direction": direction, "us": us}

    rows = [
        row("gemm", "forward", 40.0), row("gemm", "forward", 42.0), row("gemm", "backward", 90.0),
        row("gelu", "forward", 18.0), row("all_reduce_into_nothing", "forward", 100.0),
        row("nothing_into_all_reduce", "forward", 29.0), row("start", "backward", 300.0), row("gemm", "loop", 14.0),
        row("start", "no_grad", 50.0),
        row("all_reduce", "loop", 27.0), row("all_to_all", "loop", 29.0), row("whole", "both", 1e4),
    ]  # fmt: skip
    assert host_launch_us(rows) == {
        "gemm_forward": 41.0, "gemm_backward": 45.0, "gelu_forward": 18.0, "pointwise_forward": 18.0,
        "all_reduce_forward": 129.0, "start_backward": 300.0, "start_no_grad": 50.0, "heads_cat_backward": 0.0,
        "heads_to_rows_backward": 0.0, "gemm_loop": 14.0, "all_reduce_loop": 27.0, "all_to_all_loop": 29.0,
        "collective_loop": 28.0,
    }  # fmt: skip


@pytest.mark.parametrize(("gpu", "like"), [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100")])
def test_the_pace_of_a_host_alone_makes_a_device(tmp_path, gpu, like):
    """No kernel need be measured: half a minute of layers that take 1.8 times as long, without gradients 1.6."""
    ours = host_costs_s(load_device("h200"), alone=True)
    counts = {"layer_norm": 2, "gemm": 4, "attention": 1, "gelu": 1, "add": 2}
    rows = []
    for direction, ratio, gemms in (("no_grad", 1.6, 4), ("forward", 1.8, 4), ("backward", 1.2, 8)):
        us = sum(count * ours[f"{call}_{direction}"] for call, count in (counts | {"gemm": gemms}).items()) * 1e6
        rows.append({"step": "pace", "call": "layer", "direction": direction, "us": ratio * us})
    lines = ['{"provenance": {}}', *map(json.dumps, rows)]
    (tmp_path / "host.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = machine_files.write_files(tmp_path, {"gpu": gpu, "gpus": 1, "date": "today"})
    assert said[tmp_path / "device.yaml"].endswith("takes 1.7 times as long as that of h200, 1.2 in backward")
    known, found = load_device(like), load_device(tmp_path / "device.yaml")
    assert found.host_launch_s["rms_norm_forward_alone"] == pytest.approx(1.7 * ours["rms_norm_forward"])
    assert found.host_launch_s["gemm_backward"] == pytest.approx(1.2 * known.host_launch_s["gemm_backward"])
    assert (found.kernel_files, found.spread.step_slower) == (known.kernel_files, spread_of(known).step_slower)
    assert spread_of(found).host_slower == spread_of(known).paced_host_slower < spread_of(known).host_slower


def test_a_module_in_the_place_of_pytorch_is_asked(monkeypatch):
    workers = types.ModuleType("scaleout.validation.measure.workers")
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "scaleout.validation.measure.workers", workers)
    assert backend() is workers
