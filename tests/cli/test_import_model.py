"""`scaleout import model` and `scaleout search --export`: what they print, write and refuse."""

import json
from pathlib import Path

import pytest
import yaml

CONFIGS = {
    each["model"]: each["config"]
    for each in json.loads((Path(__file__).parents[1] / "interop/huggingface.json").read_text(encoding="utf-8"))[
        "models"
    ]
}
SMALL = CONFIGS["meta-llama/Llama-3.2-1B"] | {"num_hidden_layers": 2}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    return str(tmp_path)


def test_a_workload_is_printed_and_what_it_lacks_is_told(scaleout, folder):
    code, out, err = scaleout("import", "model", folder, "--set", "sequence=1024")
    assert code == 0
    assert (yaml.safe_load(out)["sequence"], yaml.safe_load(out)["layers"]) == (1024, 2)
    assert "not read, as they do not change what a step costs: " in err


@pytest.mark.parametrize(
    ("options", "told"), [((), True), (("--device", "a100-80g"), False), (("--set", "device=h200"), True)]
)
def test_a_device_that_is_not_the_topology_s_is_told(scaleout, folder, options, told):
    code, _, err = scaleout("import", "model", folder, "--topology", "dgx-a100-2", *options)
    assert code == 0
    assert ("topology dgx-a100-2 is a network of A100: its links" in err) == told


def test_a_workload_is_written_and_runs(scaleout, folder, tmp_path):
    file = str(tmp_path / "small.yaml")
    code, out, _ = scaleout("import", "model", folder, "--topology", "h200-node-4", "--output", file)
    assert code == 0
    assert "384,313,344" in out
    code, out, _ = scaleout("run", file, "--schedule", "overlap")
    assert code == 0
    assert "small on h200-node-4, ranks 4, device h200" in out


def test_who_runs_a_config_is_told_how_to_import_it(scaleout, folder, monkeypatch):
    monkeypatch.chdir(Path(folder).parent)
    for name in (f"{Path(folder).name}", "config.json"):
        code, _, err = scaleout("run", name)
        assert code == 2
        assert f"`scaleout import model {name}` makes a workload of a model's config.json" in err
    code, _, err = scaleout("run", f"{folder}/config.json")
    assert code == 2
    assert f"of a model's config.json `scaleout import model {folder}/config.json` makes a workload" in err


def test_what_is_chosen_is_told_and_the_command_names_the_sequence(scaleout, folder, tmp_path):
    """A length that the file says is none that is chosen in want of a key; a data type in want of one is."""
    file, written = tmp_path / "config.json", str(tmp_path / "small.yaml")
    plain = {key: value for key, value in SMALL.items() if key != "torch_dtype"}
    file.write_text(json.dumps(plain | {"max_position_embeddings": 2048}))
    _, out, _ = scaleout("import", "model", folder, "--output", written)
    told = " ".join(out.split())
    assert "dtype bf16" in told.partition("chosen, as no key of the HuggingFace llama config says it: ")[2]
    assert "note: sequence 2048, the longest that the file says the model takes; --set changes it" in told
    assert f"scaleout run {written} --set sequence=2048\n" in out
    _, out, _ = scaleout("import", "model", folder, "--output", written, "--set", "sequence=512")
    assert f"scaleout run {written}\n" in out
    file.write_text(json.dumps(SMALL))
    assert "dtype" not in scaleout("import", "model", folder)[2].partition("chosen, as no key")[2]


def test_json_has_counts_and_notes_and_nothing_else_is_printed(scaleout, folder):
    code, out, err = scaleout("import", "model", folder, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert {"keys", "notes", "parameters", "active_parameters", "flops_per_token", "ranks"} <= set(found)
    assert found["parameters"] == 384_313_344  # 128,256 x 2,048, two layers of 60,821,504, the last norm


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no/such.json",), "no/such.json: no such file; give a model's config.json, or the folder that holds it"),
        (("FOLDER", "--output", "model.txt"), "workloads are YAML files; give a name such as model.yaml"),
        (("FOLDER", "--set", "layers"), "--set 'layers': write it as key=value"),
        (("FOLDER", "--set", "frobnicate=1"), "unknown key 'frobnicate'"),
        (("FOLDER", "--topology", "nowhere"), "unknown topology 'nowhere'"),
    ],
)  # fmt: skip
def test_refusals(scaleout, folder, arguments, message):
    code, out, err = scaleout("import", "model", *(folder if each == "FOLDER" else each for each in arguments))
    assert (code, out) == (2, "")
    assert message in err


SEARCH = ("search", "llama-3-8b", "--set", "layers=4", "--set", "tensor_parallel=1", "--workers", "1", "--top", "3")


def test_the_fastest_plan_is_written_for_frameworks(scaleout, tmp_path):
    formats = ("--export", "torchtitan", "--export", "megatron", "--export", "deepspeed")
    code, out, _ = scaleout(*SEARCH, "--set", "zero=3", *formats, "--output", str(tmp_path))
    assert code == 0
    for file, text in {"plan.toml": "[parallelism]", "plan.sh": "MEGATRON_ARGS=(", "plan.json": '"stage": 3'}.items():
        assert text in (tmp_path / file).read_text()
        assert f"{file}  plan 1 as " in out


def test_without_a_directory_plans_are_printed(scaleout):
    code, out, err = scaleout(*SEARCH, "--set", "zero=3", "--export", "torchtitan")
    assert code == 0
    assert "plan 1 as TOML of torchtitan v0.2" in out
    assert "torchtitan: no flavor of torchtitan v0.2.2 has these sizes" in out
    code, out, err = scaleout(*SEARCH, "--set", "zero=3", "--export", "megatron", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["exports"]["megatron"]["text"].startswith("# llama-3-8b on 8 ranks: data 8")


def test_plans_that_a_framework_cannot_run_are_refused(scaleout):
    code, out, err = scaleout(*SEARCH, "--set", "zero=2", "--export", "torchtitan")
    assert code == 2
    assert "the fastest plans" in out  # which a file that cannot be written does not take away
    assert (
        "--export torchtitan: none of the 3 fastest plans can be written; plan 1: torchtitan shards parameters" in err
    )


def test_what_an_import_leaves_out_is_told_by_every_answer(scaleout, tmp_path):
    config = {
        "model_type": "qwen2_vl", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024, "vision_config": {"depth": 32},
    }  # fmt: skip
    (tmp_path / "q.json").write_text(json.dumps(config))
    workload = tmp_path / "q.yaml"
    assert scaleout("import", "model", tmp_path / "q.json", "--output", workload)[0] == 0
    told = "note: workload q leaves out vision_config of its model: no parameter nor kernel of it is counted"
    assert told in scaleout("run", workload)[1]
    assert "left; vision_config not counted" in scaleout("run", workload)[1]
    assert told in scaleout("goodput", workload, "--tokens", "1T", "--checkpoint", "10s")[1]
    assert "leaves out" not in scaleout("run", workload, "--set", "left_out=''")[1]
