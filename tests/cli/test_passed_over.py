"""No option is passed over in silence, and no output replaces what it was made of."""

import json
from pathlib import Path

import click
import pytest

from scaleout.api.views import open_output
from scaleout.cli.verbs import scaleout as command_line
from scaleout.errors import ScaleoutError


def test_what_is_read_is_not_replaced_and_no_option_is_passed_over(tmp_path, scaleout, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert scaleout("run", "dlrm-128", "--schedule", "baseline", "--output", "o")[0] == 0
    before = {path.name: path.read_bytes() for path in tmp_path.joinpath("o").iterdir()}
    for a in ("o", "o/summary.json"):
        code, out, err = scaleout("diff", a, "o", "--output", "o/")
        assert (code, out) == (2, "")
        assert "it would replace o" in err
    assert {path.name: path.read_bytes() for path in tmp_path.joinpath("o").iterdir()} == before
    for plan in ("o#1", "o/summary.json#1", "./o/#x"):
        assert "it would replace" in scaleout("run", "--plan", plan, "--output", "o")[2]
    for path in ("o", "o/summary.json"):
        with pytest.raises(ScaleoutError, match=f"--topology is for traces, and {path} holds none"):
            open_output(Path(path), topology="nonsense")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("show", "--keys", "device", "--set", "layers=2"),
            "prints keys, whatever their values; leave out what sets some",
        ),
        (
            ("show", "--keys", "workload", "--nodes", "5"),
            "prints keys, whatever their values; leave out what sets some",
        ),
        (("operator", "embedding_all_to_all", "--sweep", "pooling=1,2", "--set", "pooling=3"), "both say what pooling"),
        (("trace", "llama-3-8b", "--output", "t", "--set", "topology=nonsense"), "unknown topology 'nonsense'"),
        (("trace", "llama-3-8b", "--output", "t", "--set", "device=h100", "--device", "h200"), "both name the device"),
        (("import", "pytorch", ".", "--output", "t", "--step", "1", "--step", "2"), "--step is given twice"),
        (("buckets", "llama-3-8b", "--set", "mode=decode"), "buckets are of training, and llama-3-8b serves"),
        (("study", "topologies", "--output", "t", "--no-report", "--width", "page"), "are of the report's pictures"),
        (("measure", "fused", "--plan", "--output", "t", "--gpus", "1"), "measuring fused needs 2 GPUs or more"),
    ],
)
def test_an_option_that_would_be_passed_over_is_refused(tmp_path, scaleout, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = scaleout(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert not list(tmp_path.iterdir())


COLLECTIVE = "collective all_reduce --topology h200-node-4 --json --bytes"


@pytest.mark.parametrize(
    ("once", "twice"),
    [
        (f"{COLLECTIVE} 1MiB", f"{COLLECTIVE} 1MiB,1024KiB"),
        (f"{COLLECTIVE} 1MiB --algorithm ring", f"{COLLECTIVE} 1MiB --algorithm ring --algorithm ring"),
        ("operator gemv_all_reduce --json --sweep tile_rows=16,32",
         "operator gemv_all_reduce --json --sweep tile_rows=16,32,16"),
        ("buckets dlrm-128 --json --bytes 1MiB --algorithm ring",
         "buckets dlrm-128 --json --bytes 1MiB,1MiB --algorithm ring --algorithm ring"),
        ("run dlrm-128 --json --schedule fused", "run dlrm-128 --json --schedule fused --schedule fused"),
        ("strategies small.yaml --json --strategy ddp", "strategies small.yaml --json --strategy ddp --strategy ddp"),
        ("reproduce F15-mean --json", "reproduce F15-mean F15-mean --json"),
        ("validate rows.jsonl --json", "validate rows.jsonl rows.jsonl --json"),
    ],
    ids=lambda words: words.partition(" ")[0],
)  # fmt: skip
def test_what_is_compared_is_compared_once(tmp_path, scaleout, monkeypatch, once, twice):
    """A name, size or file that is given twice stands once, in the answer and in its inputs."""
    monkeypatch.chdir(tmp_path)
    row = {"workload": "dlrm-128", "topology": "torus-8x16", "device": "h200", "measured_us": 500}
    Path("rows.jsonl").write_text(json.dumps(row))
    Path("small.yaml").write_text("like: llama-3-8b\nlayers: 2\n")
    found = scaleout(*once.split())
    assert found[0] == 0
    assert scaleout(*twice.split()) == found


@pytest.mark.parametrize("option", ["--topology", "--device"])
@pytest.mark.parametrize("verb", ["run", "search", "buckets", "strategies", "trace", "goodput"])
def test_an_empty_name_is_not_the_one_of_the_file(tmp_path, scaleout, verb, option):
    if (verb, option) == ("trace", "--topology"):
        pytest.skip("is no option of it")
    code, out, err = scaleout(verb, "llama-small", option, "", "--output", str(tmp_path / "o"))
    assert (code, out) == (2, "")
    assert "an empty name is none; give one, or leave the option out" in err


def test_numbers_of_options_are_written_as_in_files():
    """Click's own types take NaN, infinity, digits of any script and numbers of any length."""
    found, groups = [], [command_line]
    while groups:
        group = groups.pop()
        for name in group.list_commands(click.Context(group)):
            command = group.get_command(click.Context(group), name)
            groups += [command] if isinstance(command, click.Group) else []
            found += [(name, each.opts[0], type(each.type)) for each in command.params]
    assert len(found) > 200
    plain = (click.types.IntParamType, click.types.FloatParamType, click.IntRange, click.FloatRange)
    assert [each for each in found if each[2] in plain] == []
