"""Names to files: shipped names, the nearest name, the user's own files."""

import re

import pytest

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.library import FOLDERS, find, folder, name_of, names
from scaleout.errors import ConfigError
from scaleout.study.sweep.study import load_study
from scaleout.workloads.families import load_workload

each_kind = pytest.mark.parametrize("kind", FOLDERS)


@each_kind
def test_every_name_is_found(kind):
    assert names(kind) == sorted(names(kind))
    assert names(kind)
    for name in names(kind):
        file = f"{name}/device.yaml" if kind == "device" else f"{name}.yaml"
        assert find(kind, name) == folder(kind) / file
        assert name_of(find(kind, name)) == name
        assert find(kind, name).is_file()


def test_kinds_do_not_mix():
    assert "torus-8x16" in names("topology")
    assert "torus-8x16" not in names("workload")
    assert "h200" in names("device")
    assert "dlrm-128" in names("workload")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        (
            "topology",
            "t3-ring-1",
            "there are t3-ring-8, t3-ring-16, t3-ring-32, t3-ring-64; size the job for one of them",
        ),
        ("topology", "torus8x16", "unknown topology 'torus8x16'; did you mean 'torus-8x16'?"),
        ("workload", "llama-3-8", "unknown workload 'llama-3-8'; did you mean 'llama-3-8b'?"),
        ("device", "qqqqqq", "unknown device 'qqqqqq'; known: a100-40g,"),
        ("workload", "mine.yaml", "workload file 'mine.yaml' does not exist; give a file or one of the names"),
        ("device", "no/such", "device file 'no/such' does not exist"),
    ],
)
def test_what_is_not_there_is_refused(kind, name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        find(kind, name)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["mine.yaml", "mine.yml"])
def test_a_file_is_taken_as_it_is(tmp_path, name, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("a: 1\n")
    assert find("workload", name).name == name
    assert find("workload", f"./{name}").is_file()
    assert find("workload", str(tmp_path / name)) == tmp_path / name


@pytest.mark.parametrize(
    ("load", "kind", "key"),
    [(load_workload, "workload", "kind"), (load_topology, "topology", "dimensions"),
     (load_device, "device", "peak_flops"), (load_study, "study", "title")],
)  # fmt: skip
@pytest.mark.parametrize("given", ["kind: dlrm", "dimensions: []", "peak_flops: {}", "schema: x/1", "title: t"])
def test_a_file_of_another_kind_says_what_takes_it(tmp_path, load, kind, key, given):
    """It was told of the keys that it lacks, as if it had been meant to be such a file."""
    file = tmp_path / "given.yaml"
    file.write_text(given)
    words = rf"given.yaml: is no {kind} \(it has no key '{key}'\), but an? .*; (give|run|open) it "
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert bool(re.search(words, str(caught.value))) != given.startswith(key)


def test_a_folder_of_results_is_told_apart_from_traces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "A").mkdir()
    (tmp_path / "A" / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match="'A' is a folder of results here: open it by `scaleout view A`"):
        find("workload", "A")


def test_a_study_that_is_like_another_says_what_to_do(tmp_path):
    (tmp_path / "s.yaml").write_text("title: t\nlike: topologies\n")
    with pytest.raises(ConfigError, match="a study is like no other; copy its file, and change the copy"):
        load_study(str(tmp_path / "s.yaml"))


def test_a_file_like_another_is_of_its_kind_whatever_keys_it_has(tmp_path, scaleout):
    """Of a bandwidth it was once shown as a link type, which is like no other."""
    (tmp_path / "net.yaml").write_text("like: h200-node-4\nbandwidth: 1 GB/s\n")
    code, _, err = scaleout("show", tmp_path / "net.yaml")
    assert (code, "unknown key 'bandwidth'; known: backends, changes" in err) == (2, True)


def test_a_number_without_its_source_is_told_how_it_is_written(tmp_path, scaleout):
    (tmp_path / "mine.yaml").write_text("like: h200\nrent: 5 USD/h\npower: null\nsms: [1]\n")
    code, _, err = scaleout("show", tmp_path / "mine.yaml")
    assert code == 2
    assert "rent: has no source; write {value: ..., source: where it is from}, not '5 USD/h'" in err
    assert "sms: has no source" in err
