"""Strategies: the same job as frameworks run it, what each sets, and what cannot be."""

import json
import shlex

import pytest
from click.testing import CliRunner

from scaleout.cli import main
from scaleout.cli.verbs import scaleout as command_line
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.study.strategies import STRATEGIES, follow, side_by_side
from scaleout.workloads.families import load_workload

DEVICE, CLUSTER = load_device("a100-80g"), load_topology("a100-cluster-a-2")
PIPELINE = {
    "layers": 4, "tensor_parallel": 4, "pipeline_parallel": 2, "data_parallel": 2, "batch_per_replica": 4,
    "microbatch": 1,
}  # fmt: skip


def job(**changes):
    return load_workload("llama-big", {"layers": 2, **changes})


def followed(name, workload):
    return follow(name, workload, topology=CLUSTER, device=DEVICE)


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("changes", [{}, PIPELINE], ids=["data", "pipeline"])
def test_every_strategy_runs_the_same_products(name, changes):
    workload = job(**changes)
    plain, found = followed("ddp", workload), followed(name, workload)
    assert found.outcome is not None, found.reason
    assert found.outcome.result.program.total_flops == plain.outcome.result.program.total_flops
    assert found.outcome.makespan_s > 0


def test_what_strategies_set():
    pipeline = job(**PIPELINE)
    keys = {name: strategy.keys(pipeline) for name, strategy in STRATEGIES.items()}
    assert keys["zero-3"]["zero"] == 3
    assert keys["megatron"]["pipeline_schedule"] == "interleaved_1f1b"
    assert not keys["megatron"]["overlap_gradient_reduce"]
    assert keys["megatron-core"]["overlap_gradient_reduce"]
    assert keys["megatron-core"]["overlap_parameter_gather"]
    assert keys["breadth-first"]["microbatch_group"] == pipeline.num_microbatches
    assert "pipeline_schedule" not in STRATEGIES["megatron"].keys(job(**{**PIPELINE, "layers": 2}))
    assert followed("zero-1", pipeline).outcome.workload.zero == 1


def test_sharding_holds_less_and_overlap_takes_less():
    found = {name: followed(name, job(batch_per_replica=4)) for name in ("ddp", "zero-1", "zero-2", "zero-3")}
    held = [each.outcome.fit.peak.total_bytes for each in found.values()]
    assert held == sorted(held, reverse=True)
    pipeline = {name: followed(name, job(**PIPELINE)) for name in ("megatron", "megatron-core")}
    assert pipeline["megatron-core"].outcome.makespan_s < pipeline["megatron"].outcome.makespan_s


def test_a_strategy_that_cannot_be_says_why_and_the_others_run():
    odd = job(stage_layers=(1, 3), **{**PIPELINE, "pipeline_schedule": "1f1b", "data_parallel": 2})
    found = followed("zero-2", odd)
    assert found.outcome is not None or found.reason
    with pytest.raises(ConfigError, match=r"unknown strategy 'fsdp'; did you mean"):
        followed("fsdp", job())
    with pytest.raises(ConfigError, match="strategies are of training, and llama-big runs in mode 'prefill'"):
        followed("ddp", job(mode="prefill"))


def test_speed_ups_are_over_the_first():
    found = [followed(name, job()) for name in ("ddp", "zero-3")]
    comparison = side_by_side(found, device=DEVICE)
    first, second = comparison.outcomes
    assert (first.schedule, first.speedup) == ("ddp", 1)
    assert second.speedup == pytest.approx(first.makespan_s / second.makespan_s)


def test_the_command_prints_and_writes(capsys, monkeypatch, tmp_path):
    arguments = ["strategies", "llama-big", "--set", "layers=1", "--strategy", "ddp", "--strategy", "centauri"]
    monkeypatch.setattr("sys.argv", ["scaleout", *arguments, "--json", "--output", str(tmp_path / "out")])
    main()
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["strategy"] for row in rows] == ["ddp", "centauri"]
    assert rows[1]["decisions"]
    assert all(row["fits"] for row in rows)
    assert (tmp_path / "out" / "breakdown.png").exists()


@pytest.mark.parametrize(
    "degrees", ["--set data_parallel=16", "--set data_parallel=4 --set pipeline_parallel=4 --set batch_per_replica=8"]
)
def test_each_line_gives_the_step_and_the_same_strategies_are_named(degrees):
    """Five of ten took 936 ms, and nothing said that they were one program; none said how to run it."""
    words = ["llama-3-8b", *degrees.split(), "--set", "layers=8", "--set", "zero=1", "--topology", "dgx-h200-2"]
    found = CliRunner().invoke(command_line, ["strategies", *words, "--json"], catch_exceptions=False)
    rows = json.loads(found.stdout)["results"]
    same = {row["strategy"]: row["same_as"] for row in rows if "same_as" in row}
    assert same["breadth-first"] == "ddp"
    assert ("megatron" in same) == ("pipeline" not in degrees)
    assert "zero-3" not in same
    times_s = {row["strategy"]: row["makespan_s"] for row in rows if "run" in row}
    assert len(times_s) > 7
    assert all(times_s[name] == times_s[first] for name, first in same.items())
    for row in rows:
        if "run" in row:
            again = CliRunner().invoke(command_line, [*shlex.split(row["run"])[1:], "--json"], catch_exceptions=False)
            (result,) = json.loads(again.stdout)["results"]
            assert result["makespan_s"] == row["makespan_s"], row["run"]
            assert result["mfu"] == row["mfu"]
    printed = CliRunner().invoke(command_line, ["strategies", *words], catch_exceptions=False).stdout
    best = min(rows, key=lambda row: row.get("makespan_s", 1e9))
    assert f"\n{best['run']}\n" in printed
    assert "memory    fits: " in printed


def test_the_command_refuses_what_does_not_train(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["scaleout", "strategies", "dlrm-128"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    assert "'dlrm-128' is of kind dlrm; strategies train models of layers" in capsys.readouterr().err
