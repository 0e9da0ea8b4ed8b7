"""Files are written whole or not at all, on disks that fill up or cannot be written; other files are left alone."""

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from scaleout.config import writing
from scaleout.config.writing import RECORD, check_writable, into, replace_own, replacing, write_bytes, write_json
from scaleout.errors import ConfigError

SMALL = 1 << 16
"""Bytes that a file may have in the tests of a disk that fills up."""


@pytest.fixture
def small_disk():
    """Let no file of this process grow beyond `SMALL`: the first write beyond is cut short, the next one fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, ignored)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_disk_that_fills_up_leaves_the_file_that_was_there(tmp_path, small_disk):
    file = tmp_path / "summary.json"
    write_bytes(file, b"before")
    with pytest.raises(OSError, match=r"File too large: '.*/summary.json'"):
        write_bytes(file, bytes(2 * SMALL))
    assert content(tmp_path) == {"summary.json": b"before"}


def test_what_only_the_disk_knows_counts(tmp_path, monkeypatch):
    """Network file systems and quotas refuse what was written when it is to be kept."""

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writing.os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_bytes(tmp_path / "new", b"x")
    assert content(tmp_path) == {}


def test_an_exception_while_writing_leaves_nothing(tmp_path):
    with suppress(ZeroDivisionError), replacing(tmp_path / "new") as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert content(tmp_path) == {}


def test_no_json_holds_what_is_no_number(tmp_path):
    write_json(tmp_path / "new.json", {"step_s": float("nan"), "rates": [float("inf"), 1.0]}, indent=None)
    assert content(tmp_path) == {"new.json": b'{"step_s": null, "rates": [null, 1.0]}\n'}


def fill(folder, **sizes):
    with into(folder) as unfinished:
        for name, size_bytes in sizes.items():
            write_bytes(unfinished / name, bytes(size_bytes))


def test_a_set_of_files_comes_whole(tmp_path, small_disk):
    folder = tmp_path / "results"
    with pytest.raises(ConfigError, match=r"output directory '.*results' cannot be written \(File too large\); give"):
        fill(folder, a=3, b=2 * SMALL)
    assert not folder.exists()
    folder.mkdir()
    (folder / "a").write_bytes(b"before")
    (folder / "mine.txt").write_bytes(b"of the user")
    with pytest.raises(ConfigError, match="File too large"):
        fill(folder, a=3, b=2 * SMALL)
    assert content(folder) == {"a": b"before", "mine.txt": b"of the user"}
    fill(folder, a=3)
    assert content(folder) == {"a": bytes(3), "mine.txt": b"of the user"}


def give(folder, **contents):
    """Write a set of results."""
    with into(folder, recorded=True) as unfinished:
        for name, text in contents.items():
            write_bytes(unfinished / name, text.encode())


def results(folder):
    return {name: data.decode(errors="replace") for name, data in content(folder).items() if name != RECORD}


def test_results_take_the_place_of_those_before_and_of_nothing_else(tmp_path):
    (tmp_path / "notes").write_text("of the user")
    give(tmp_path, a="1", b="1")
    give(tmp_path, b="2", c="2")
    assert results(tmp_path) == {"b": "2", "c": "2", "notes": "of the user"}
    (tmp_path / "c").write_text("changed")
    give(tmp_path, a="3")
    assert results(tmp_path) == {"a": "3", "c": "changed", "notes": "of the user"}


@pytest.mark.parametrize("foreign", ["changed", "new", "link", "pipe", "no record"])
def test_a_file_that_is_no_result_is_not_overwritten(tmp_path, foreign):
    folder, name = tmp_path / "results", "fresh" if foreign in ("new", "link", "pipe") else "a"
    give(folder, a="1", b="1")
    file = folder / name
    if foreign in ("changed", "new"):
        file.write_text("of the user")
    elif foreign == "link":
        file.symlink_to(tmp_path / "nowhere")
    elif foreign == "pipe":
        os.mkfifo(file)
    else:
        (folder / RECORD).write_text("{")
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(ConfigError, match=f"results/{name}: is no file of an earlier run, or was changed since"):
        give(folder, c="2", **{name: "2"})
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / "b").read_text() == "1"


def test_a_run_that_is_killed_while_its_files_are_moved_leaves_none_that_is_nobodys(tmp_path, monkeypatch):
    give(tmp_path, a="1", b="1")
    monkeypatch.setattr(writing, "_move", lambda folder, files: files[0].replace(folder / files[0].name) and 1 / 0)
    with suppress(ZeroDivisionError):
        give(tmp_path, a="2", c="2")
    monkeypatch.undo()
    assert results(tmp_path) == {"a": "2", "b": "1"}
    give(tmp_path, c="3")
    assert results(tmp_path) == {"c": "3"}


def test_a_record_names_no_file_elsewhere(tmp_path):
    folder, mine = tmp_path / "results", tmp_path / "mine"
    mine.write_text("x")
    give(folder, a="1")
    (folder / RECORD).write_text('{"files": {"../mine": ["8cdc1683"], "a": ["83dcefb7"]}}')
    give(folder, b="2")
    assert mine.exists()
    assert results(folder) == {"b": "2"}


def test_two_runs_into_one_folder(scaleout, tmp_path):
    """The second replaces the first; a file that is its own input stays."""
    once = ("run", "dlrm-128", "--schedule", "baseline")
    assert scaleout(*once, "--network", "link", "--output", tmp_path)[0] == 0
    assert "links.png" in results(tmp_path)
    assert scaleout("track", "--output", tmp_path)[0] == 0
    assert {"summary.json", "traffic.png"} <= set(results(tmp_path))
    assert "links.png" not in results(tmp_path)
    mine = tmp_path / "summary.json"
    mine.write_text('{"1": [0, 1]}')
    code, out, err = scaleout(*once, "--output", tmp_path)
    assert (code, out) == (2, "")
    assert f"{mine}: is no file of an earlier run" in err
    assert mine.read_text() == '{"1": [0, 1]}'


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("run", "dlrm-128", "--schedule", "baseline"), "links-baseline.png"),
        (("run", "dlrm-128", "--format", "svg"), "breakdown.svg"),
        (("search", "llama-3-8b"), "pareto.png"),
        (("track",), "traffic.png"),
        (("reproduce", "F15-mean"), "reproductions.md"),
    ],
)
def test_a_file_in_the_place_of_a_picture_is_refused_before_the_work(scaleout, tmp_path, monkeypatch, command, name):
    """Before anything runs; other names are nobody's place."""
    for work in ("scaleout.api.runs.run", "scaleout.api.searches.search"):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("worked for nothing"))
    (tmp_path / name).write_text("mine")
    (tmp_path / "mine.png").write_text("mine")
    code, out, err = scaleout(*command, "--output", tmp_path)
    assert (code, out) == (2, "")
    assert f"{tmp_path / name}: is no file of an earlier run" in err
    assert (tmp_path / name).read_text() == "mine"


@pytest.mark.skipif(sys.platform == "win32", reason="limits the files that are open")
@pytest.mark.parametrize("most", range(4, 16, 2))
def test_where_hardly_a_file_can_be_opened_nothing_unfinished_is_left(tmp_path, most):
    code = (
        "import resource, pathlib\n"
        "from scaleout.config.writing import into, write_bytes\n"
        "from scaleout.errors import ConfigError\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))\n"
        "held = []\n"
        "try:\n"
        f"    with into(pathlib.Path({str(tmp_path / 'results')!r}), recorded=True) as folder:\n"
        "        write_bytes(folder / 'a', b'1')\n"
        f"        held += [open('/dev/null') for _ in range({most})]\n"
        "except OSError: pass\n"
        "except ConfigError: pass\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_a_file_stops_all(tmp_path):
    (tmp_path / "b").mkdir()
    with pytest.raises(ConfigError, match="b is a folder there"):
        fill(tmp_path, a=3, b=3)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_figures_are_whole_or_absent(tmp_path, small_disk):
    """Pillow, left to write to the file, takes a cut write for a whole one."""
    import matplotlib.pyplot as plt
    import numpy as np

    from scaleout.report.plots.schedules import save

    figure, axes = plt.subplots(figsize=(8, 8))
    axes.imshow(np.random.default_rng(0).random((400, 400)), interpolation="nearest")
    with pytest.raises(OSError, match="File too large"):
        save(figure, tmp_path / "noise.png")
    assert content(tmp_path) == {}


def test_a_link_is_written_through_and_rights_are_kept(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_bytes(b"before")
    file.chmod(0o640)
    link.symlink_to(file)
    write_bytes(link, b"after")
    assert link.is_symlink()
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"after", 0o640)


# ---- Before the work


def test_a_folder_that_can_be_made_leaves_no_trace(tmp_path):
    check_writable(tmp_path / "some" / "where")
    assert content(tmp_path) == {}


@pytest.mark.parametrize("name", ["/", "/.", "//", "link"])
def test_the_root_of_the_file_system_is_no_folder_for_output(tmp_path, monkeypatch, name):
    """Which root may write to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(ConfigError, match="is the root of the file system; give a folder in it"):
        check_writable(Path(name))


VERBS = {
    "run": ("run", "dlrm-128"),
    "search": ("search", "llama-3-8b"),
    "operator": ("operator", "embedding_all_to_all"),
    "track": ("track",),
    "trace": ("trace", "llama-3-8b"),
    "reproduce": ("reproduce", "t3"),
    "validate": ("validate", __file__),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_refuses_before_it_works(scaleout, tmp_path, verb, monkeypatch):
    """What is asked for is never looked at: no workload is loaded, no row is read."""
    for name in ("scaleout.workloads.families.load_workload", "scaleout.cluster.device.spec.load_device"):
        monkeypatch.setattr(name, None)
    (tmp_path / "file").write_text("")
    code, out, err = scaleout(*VERBS[verb], "--output", tmp_path / "file" / "results")
    assert (code, out) == (2, "")
    assert "cannot be written (Not a directory); give another one" in err


def mounted(folder, *options):
    """Mount a file system in memory on a folder, or skip the test: only root may."""
    command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting takes the rights of root")


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="mounting takes the rights of root")
@pytest.mark.parametrize("verb", ["run", "track"])
def test_a_disk_of_little_room(scaleout, tmp_path, verb):
    """Either all files are there and whole, or those of before are, whatever room there is."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted(disk, "size=1m")
    ballast, before = disk / "ballast", None
    try:
        for kibibytes in (1000, 150, 30, 0):
            ballast.unlink(missing_ok=True)
            ballast.write_bytes(bytes(max(shutil.disk_usage(disk).free - (kibibytes << 10), 0)))
            code, _, err = scaleout(*VERBS[verb], "--output", disk / "results")
            found = content(disk / "results") if (disk / "results").exists() else None
            if code:
                assert "No space left on device" in err
                assert found == before
            for name, data in (found or {}).items():
                assert not name.startswith(".") or name == RECORD
                if name.endswith(".json"):
                    json.loads(data)
                if name.endswith(".png"):
                    assert data.endswith(b"IEND\xaeB`\x82")
            before = found
        assert code
        assert before
        with pytest.raises(ConfigError, match=r"cannot be written \(No space left on device\)"):
            check_writable(disk / "new")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(ConfigError, match=r"cannot be written \(Read-only file system\)"):
            check_writable(disk / "new")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("content", ["of the user", ""])
def test_only_a_file_of_ours_is_replaced(tmp_path, content):
    file = tmp_path / "next.jsonl"
    replace_own(file, "ours: 1\n", mark="ours: ")
    replace_own(file, "ours: 2\n", mark="ours: ")
    assert file.read_text() == "ours: 2\n"
    file.write_text(content)
    with pytest.raises(ConfigError, match="there is another file, which this would replace"):
        replace_own(file, "ours: 3\n", mark="ours: ")
    assert file.read_text() == content


def test_a_pipe_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe or a device"):
        write_bytes(tmp_path / "pipe", b"x")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("content", ["mine", '{"schema": "another/1"}', None])
def test_a_foreign_answer_is_found_before_the_work(tmp_path, content):
    """As the minutes of a search would be for nothing; one of ours may be the same as what is to be written."""
    path = tmp_path / "summary.json"
    path.mkdir() if content is None else path.write_text(content)
    with pytest.raises(ConfigError, match=r"summary\.json: is no file of an earlier run"):
        check_writable(tmp_path, own=RECORD)
    check_writable(tmp_path)
    if content is not None:
        path.write_text('{\n  "schema": "scaleout/run/3"}')
        check_writable(tmp_path, own=RECORD)
