"""What others wrote into `--output`: each verb refuses to replace it before its work, whichever of its files it is."""

import shutil

import golden
import pytest

import scaleout as api
from scaleout.cli.options import Output
from scaleout.errors import ConfigError

_TWO_LAYERS = "--set layers=2 --set tensor_parallel=8 --set data_parallel=1 --topology dgx-h200-1"
_VERBS = {
    "run": f"run llama-3-8b {_TWO_LAYERS} --schedule baseline --schedule overlap",
    "run, over links": "run dlrm-128 --schedule baseline --schedule fused --network link",
    "run, in stages": "run llama-3-8b --set layers=2 --set pipeline_parallel=2 --set tensor_parallel=4 --set "
    "data_parallel=1 --topology dgx-h200-1",
    "search": "search llama-3-8b --set layers=4 --global-batch 16 --topology dgx-h200-1 --set zero=0 "
    "--set recompute=none --set tensor_parallel=1 --set pipeline_parallel=1 --workers 1 --export torchtitan "
    "--export megatron --export deepspeed",
    "collective": "collective all_reduce --bytes 1MiB --topology ring(8,nvlink4) --network link",
    "collective, over sizes": "collective all_reduce --bytes 1MiB:4MiB --topology dgx-h200-2",
    "collective, compared": "collective all_reduce --topology sierra-2048 --compare --policy nccl_ring+host_transfer",
    "operator": golden.COMMANDS["operator"],
    "buckets": golden.COMMANDS["buckets"],
    "goodput": golden.COMMANDS["goodput"],
    "strategies": golden.COMMANDS["strategies"],
    "track": golden.COMMANDS["track"],
    "validate": "validate rows.jsonl",
    "reproduce": golden.COMMANDS["reproduce"],
    "diff": "diff one other",
}


@pytest.mark.parametrize("verb", _VERBS)
def test_another_file_in_the_place_of_any_is_refused_before_the_work(scaleout, tmp_path, monkeypatch, verb):
    monkeypatch.chdir(tmp_path)
    golden.write_files(tmp_path)
    if verb == "diff":
        for folder, bandwidth in (("one", "1x"), ("other", "0.5x")):
            made = f"run llama-3-8b {_TWO_LAYERS} --bandwidth nvlink={bandwidth} --output {folder}"
            assert scaleout(*made.split())[0] == 0
    arguments = _VERBS[verb].split()
    code, _, said = scaleout(*arguments, "--output", "written")
    assert code == 0, said
    written = sorted(each.name for each in (tmp_path / "written").iterdir() if not each.name.startswith("."))
    assert "summary.json" in written
    monkeypatch.setattr(Output, "give", lambda *_: pytest.fail("the work was done"))
    late = []
    for name in written:
        shutil.rmtree(tmp_path / "mine", ignore_errors=True)
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / name).write_text("mine", encoding="utf-8")
        try:
            code, _, said = scaleout(*arguments, "--output", "mine")
        except pytest.fail.Exception:
            late.append(name)
        else:
            assert code == 2
            assert name in said
        assert (tmp_path / "mine" / name).read_text(encoding="utf-8") == "mine"
    assert not late


def test_the_plans_of_a_search_are_kept(scaleout, tmp_path):
    """Another answer would take the place of its summary, by which a plan is named and run."""
    search = [*_VERBS["search"].split(), "--output", tmp_path / "plans"]
    assert scaleout(*search)[0] == 0
    before = {each.name: each.read_bytes() for each in (tmp_path / "plans").iterdir()}
    code, _, said = scaleout(*f"run llama-3-8b {_TWO_LAYERS} --output {tmp_path}/plans".split())
    assert code == 2
    assert f"{tmp_path}/plans has the plans of a search; give another --output" in said
    with pytest.raises(ConfigError, match="has the plans of a search"):
        api.run("dlrm-128", schedules=["baseline"]).write(tmp_path / "plans")
    assert {each.name: each.read_bytes() for each in (tmp_path / "plans").iterdir()} == before
    assert scaleout(*search)[0] == 0
