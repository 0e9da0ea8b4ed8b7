"""Framework presets: what they set, that given keys win, and that each is a job that runs."""

import json

import pytest
import yaml

import scaleout
from scaleout.api.again import run_inputs
from scaleout.cli import main
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.study.comparison import compare
from scaleout.study.search.request import request_of
from scaleout.study.search.space import Plan, workload_of
from scaleout.workloads.config.frameworks import FRAMEWORKS, Setting
from scaleout.workloads.families import Transformer, load_workload

each_framework = pytest.mark.parametrize("name", FRAMEWORKS)
SPLIT = {"tensor_parallel": 2, "pipeline_parallel": 2, "data_parallel": 2, "batch_per_replica": 4, "microbatch": 1}


def llama(**changes):
    found = load_workload("llama-3-8b", changes)
    assert isinstance(found, Transformer)
    return found


def having(key, **changes):
    """A model that has the key: some are of experts alone."""
    return (
        llama(**changes)
        if key in Transformer.model_fields
        else load_workload("mixtral-8x7b", {"expert_parallel": 2} | changes)
    )


@each_framework
@pytest.mark.parametrize("changes", [{}, SPLIT], ids=["data-parallel", "three axes"])
def test_a_preset_sets_what_it_says_and_nothing_else(name, changes):
    plain, found = llama(**changes), llama(framework=name, **changes)
    sets = FRAMEWORKS[name].values(found.given)
    sets = {key: value for key, value in sets.items() if key in Transformer.model_fields}
    assert sets
    assert found.model_dump() == plain.model_dump() | sets | {"framework": name}
    assert not sets.keys() & found.model_fields_set


@each_framework
def test_every_setting_is_of_a_key_and_says_where_it_is_from(name):
    framework = FRAMEWORKS[name]
    assert framework.summary
    assert framework.source
    for setting in framework.settings:
        assert setting.source
        model = having(setting.key, **SPLIT, **_beside(setting))
        assert getattr(model, setting.key) == setting.value  # is valid, and not changed


def _beside(setting: Setting):
    more = {"zero": 1} if setting.key in ("overlap_parameter_gather", "replicas_at_end") else {}
    return more | {setting.key: setting.value}


@each_framework
def test_given_keys_win(name):
    for key, value in FRAMEWORKS[name].values(llama(**SPLIT).given).items():
        if isinstance(value, bool):
            changes = (
                SPLIT | {"zero": 1, key: not value} if key == "overlap_parameter_gather" else SPLIT | {key: not value}
            )
            assert getattr(having(key, framework=name, **changes), key) is not value


def test_a_framework_wins_over_the_file_below_and_keys_beside_or_above_it_win(tmp_path):
    base = {"like": "llama-3-8b", "clip_gradients": False, "optimizer_kernels": "unfused", "loss": "in_place"}
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    mine = {"like": "./base.yaml", "framework": "megatron", "optimizer_kernels": "unfused"}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    found = load_workload(str(tmp_path / "mine.yaml"), {"loss": "fused"})
    assert (found.clip_gradients, found.optimizer_kernels, found.loss) == (True, "unfused", "fused")
    again = load_workload(str(tmp_path / "mine.yaml"), {"framework": "megatron", "clip_gradients": False})
    assert (again.clip_gradients, again.optimizer_kernels) == (False, "unfused")  # it is the file's own


@pytest.mark.parametrize(("name", "zero"), [("fsdp2", 3), ("maxtext", 3), ("megatron", 1), ("deepspeed", 1)])
def test_a_framework_that_shards_parameters_does_so_whatever_the_file_shards(name, zero):
    assert load_workload("llama-3-8b").zero == 1
    assert load_workload("llama-3-8b", {"framework": name}).zero == zero


def test_old_names_of_keys_win_as_well():
    keys = {"framework": "maxtext", "shard_ranks": 2, "copies_at_end": False}
    with pytest.warns(FutureWarning, match="replicas_at_end"):
        assert not llama(**keys).replicas_at_end


def test_settings_that_hang_on_other_keys():
    assert not llama(framework="megatron").sequence_parallel
    assert llama(framework="megatron", **SPLIT).sequence_parallel
    assert llama(framework="megatron", dtype="fp16").gradient_dtype is None
    assert not llama(framework="megatron", fused_accumulation=False).placeholder_gradients
    assert not llama(framework="megatron", **SPLIT).overlap_sends
    assert llama(framework="megatron", pipeline_schedule="interleaved_1f1b", **SPLIT).overlap_sends
    assert llama(framework="fsdp2", pipeline_schedule="interleaved_1f1b", **SPLIT).messages == "as_made"
    assert [llama(framework="deepspeed", zero=zero).gradient_dtype for zero in range(4)] == ["fp32", None, None, None]
    in_bf16, in_fp32 = {"framework": "deepspeed", "zero": 1}, {"gradient_dtype": "fp32"}
    assert llama(**in_bf16, **in_fp32).all_reduced_gradients
    others = [in_bf16, {**in_bf16, "zero": 2, **in_fp32}, {**in_bf16, "framework": "deepspeed-2021", **in_fp32}]
    assert not any(llama(**each).all_reduced_gradients for each in others)
    assert llama(framework="maxtext", shard_ranks=4).replicas_at_end
    assert not llama(framework="maxtext", shard_ranks=8).replicas_at_end
    assert llama(framework="nanotron", **SPLIT).overlap_gradient_reduce


def test_what_a_framework_sets_follows_the_keys_that_a_plan_changes():
    base = llama(framework="megatron", clip_gradients=False)
    plan = Plan(2, 1, 2, 2, 1, 1, "interleaved_1f1b", 2, "none", 1, sequence_parallel=False)
    found = workload_of(plan, base, 8)
    assert (found.overlap_sends, found.sequence_parallel, found.clip_gradients) == (True, False, False)
    again = workload_of(plan._replace(pipeline_schedule="1f1b", virtual_stages=None), found, 8)
    assert not again.overlap_sends
    assert workload_of(plan, llama(), 8) == llama().model_copy(update={**plan._asdict(), "batch_per_replica": 4})


@pytest.mark.parametrize("name", ["megatorn", 3, ["megatron"]])
def test_an_unknown_framework_is_named_with_the_nearest(name):
    with pytest.raises(
        ConfigError, match=r"unknown framework .*; (did you mean 'megatron'|known: deepspeed, deepspeed-2021)"
    ):
        llama(framework=name)


@each_framework
def test_each_preset_runs(name):
    device, topology = load_device("h200"), load_topology("dgx-h200-1")
    job = llama(framework=name, layers=4, **SPLIT)
    found = compare(job, topology=topology, device=device, schedules=("baseline", "overlap"))
    assert 0 < found.outcomes[1].makespan_s <= found.outcomes[0].makespan_s * (1 + 1e-9)


def test_show_says_what_the_framework_set_and_list_names_it(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["scaleout", "show", "llama-3-8b", "--json", "--set", "framework=fsdp1",
                                     "--set", "flat_gradients=false"])  # fmt: skip
    main()
    shown = json.loads(capsys.readouterr().out)
    assert shown["framework"].startswith("fsdp1 (PyTorch's FullyShardedDataParallel")
    rows = {row["key"]: row for row in shown["framework_keys"]}
    assert (rows["zero"]["value"], rows["zero"]["set_by"]) == (3, "fsdp1")
    flat = rows["flat_gradients"]
    assert (flat["value"], flat["set_by"], flat["framework_value"]) == (False, "the workload", True)
    monkeypatch.setattr("sys.argv", ["scaleout", "list", "frameworks", "--json"])
    main()
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["listed"]["frameworks"]] == list(FRAMEWORKS)


def test_a_search_times_a_framework_as_a_run_does():
    """Blocks know no copies in and out of FSDP2's buffers; what is shown of plans has them all the same."""
    keys = {"framework": "fsdp2", "layers": 4, "recompute": "none", "tensor_parallel": 1}
    answer = scaleout.search("llama-3-8b", topology="dgx-h200-1", changes=keys, top=2, workers=1)
    best = answer.plans.fastest[0]
    (ran,) = run_inputs(answer.jobs[best.choice]).outcomes
    assert ran.makespan_s == best.estimate.step_s
    assert ran.workload.layout_copies
    assert "plans are chosen without layout_copies of framework fsdp2" in answer.model.notes[-1]


def test_an_export_says_what_its_own_step_takes():
    """Read back by `import model`: torchtitan clips gradients, keeps them in fp32 and norms in several kernels."""
    keys = {"layers": 32, "zero": 3, "recompute": "none", "tensor_parallel": 1, "context_parallel": 1}
    answer = scaleout.search("llama-3-8b", topology="dgx-h200-1", changes=keys, top=1, workers=1, schedules=["overlap"])
    export = answer.export("torchtitan")
    found, plan_s = export.read_back, answer.plans.fastest[0].estimate.step_s
    assert 1.05 < found.makespan_s / plan_s < 1.3
    assert found.differs["framework"] == "fsdp2"
    assert (found.differs["norm"], found.differs["clip_gradients"]) == ("rms_norm_unfused", True)
    assert answer.export("deepspeed").read_back is None


def test_by_default_a_search_has_the_batch_of_the_workload():
    own, twice = (
        request_of("llama-3-8b", load_topology(name), load_device("h200")) for name in ("dgx-h200-1", "dgx-h200-2")
    )
    assert own.batch == twice.batch == 8
