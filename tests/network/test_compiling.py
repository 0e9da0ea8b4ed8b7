"""Compiled functions are kept once a machine, whatever the state of the folder that keeps them."""

import logging
import os
import subprocess
import sys

import pytest

from scaleout.network.flow import compiling

SOURCE = "from scaleout.network.flow.compiling import compiled\n\n\n@compiled\ndef twice(x):\n    return 2 * x\n"
CALL = """
import numpy as np
from doubling import twice
print(twice(np.int64(21)), sum(twice.stats.cache_hits.values()), twice.stats.cache_path)
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call `twice` in a process of its own, from a package whose own folder cannot be written to.

    A file stands in the way of each folder, which stops the superuser too. Returns the answer, how often code was found
    and where it is kept.
    """
    (tmp_path / "doubling.py").write_text(SOURCE)
    (tmp_path / "__pycache__").write_text("")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "file" / "home"))
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)

    def start(before=""):
        command = [sys.executable, "-c", before + CALL]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def answer(process=None, **options):
        process = process or start(**options)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        result, hits, folder = out.split()
        return int(result), int(hits), folder

    answer.start = start
    return answer


def test_the_first_folder_that_can_be_written_keeps_the_code(call, tmp_path, monkeypatch):
    assert call() == (42, 0, "None")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "kept"))
    result, hits, folder = call()
    assert (result, hits) == (42, 0)
    assert folder.startswith(str(tmp_path / "user"))
    assert call() == (42, 1, folder)


def test_several_processes_may_start_at_once(call, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "missing" / "kept"))
    assert {call(process)[0] for process in [call.start() for _ in range(3)]} == {42}
    assert call()[:2] == (42, 1)


def one_more(x):
    return x + 1


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A function that is compiled nowhere yet, kept in a folder of its own."""
    monkeypatch.setattr(compiling.numba.core.config, "CACHE_DIR", str(tmp_path))
    return lambda: compiling.compiled(one_more)


def hits(function):
    """How often code was found where it is kept, as the function answers."""
    assert function(41) == 42
    return sum(function.stats.cache_hits.values())


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("damage", ["empty", "cut", "garbage", "a bit", "missing"])
def test_damaged_code_is_compiled_anew(fresh, tmp_path, suffix, damage):
    assert hits(fresh()) == 0
    (path,) = tmp_path.rglob(f"*{suffix}")
    content = path.read_bytes()
    path.unlink()
    bit = bytearray(content)
    bit[-100] ^= 1  # where it neither ends the program nor is noticed by pickle
    damaged = {"empty": b"", "cut": content[: len(content) // 2], "garbage": b"garbage", "a bit": bytes(bit)}
    if damage != "missing":
        path.write_bytes(damaged[damage])
    assert hits(fresh()) == 0
    assert hits(fresh()) == 1


def test_no_code_runs_with_a_bit_damaged(fresh, tmp_path):
    fresh()(41)
    (path,) = tmp_path.rglob("*.nbc")
    content = path.read_bytes()
    for at in range(1, len(content), len(content) // 16):
        path.write_bytes(content[:at] + bytes([content[at] ^ 16]) + content[at + 1 :])
        function = fresh()
        assert function._cache.load_overload((compiling.numba.int64,), function.targetctx) is None
        fresh()(41)


def test_a_folder_that_can_be_written_no_longer_stops_no_run(fresh, tmp_path):
    function = fresh()
    lock = tmp_path.joinpath(function._cache.cache_path) / "compiling.lock"
    lock.mkdir(parents=True)
    assert ready(function)


@pytest.mark.parametrize("step", ["_save_index", "_save_data"])
def test_an_interrupt_while_code_is_kept_leaves_nothing_broken(fresh, monkeypatch, step):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(compiling.numba.core.caching.IndexDataCacheFile, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            fresh()(41)
    assert not fresh()._cache.has((compiling.numba.int64,), fresh().targetctx.codegen().magic_tuple())
    assert hits(fresh()) == 0
    assert hits(fresh()) == 1


def test_a_full_disk_does_not_stop_a_run(fresh, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compiling.numba.core.caching.IndexDataCacheFile, "_save_data", full)
    assert hits(fresh()) == hits(fresh()) == 0


def test_a_change_of_a_file_near_it_compiles_it_anew(fresh, monkeypatch):
    assert hits(fresh()) == 0
    monkeypatch.setattr(compiling, "_stamp", lambda _: "another")
    assert hits(fresh()) == 0
    assert hits(fresh()) == 1


def ready(function, *, worth_it=False):
    return compiling.is_ready(function, (1,), what="a sum", worth_it=worth_it)


def test_who_compiles_says_so_and_others_find_the_code(fresh, caplog):
    function = fresh()
    assert ready(function)
    assert ready(function)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"compiling a sum, up to a minute; kept in {function.stats.cache_path}"
    assert ready(fresh())
    assert len(caplog.records) == 1
    assert compiling.is_ready(fresh(), (1.0,), what="a sum", worth_it=True)
    assert len(caplog.records) == 2  # other types need other code


def test_while_another_process_compiles_this_one_does_not(fresh, caplog):
    function = fresh()
    with compiling._alone(compiling.Path(function.stats.cache_path)) as alone:
        assert alone
        assert not ready(function, worth_it=True)
    assert not caplog.records
    assert ready(function)


def test_who_does_not_compile_finds_only_what_others_have(fresh, caplog):
    asked = {"what": "a sum", "worth_it": True, "compiles": False}
    assert not compiling.is_ready(fresh(), (1,), **asked)
    assert not caplog.records
    assert ready(fresh())
    assert compiling.is_ready(fresh(), (1,), **asked)


def test_without_a_folder_it_must_be_worth_it(fresh, monkeypatch, caplog):
    def nowhere(_):
        raise RuntimeError("no locator available")

    monkeypatch.setattr(compiling._Cache, "__init__", lambda *_: nowhere(_))
    compiling._say_slow.cache_clear()
    function = fresh()
    assert not ready(function)
    assert not ready(function)
    assert not compiling.is_ready(function, (1,), what="another", worth_it=False, compiles=False)
    (record,) = caplog.records
    assert "a sum runs in plain Python" in record.getMessage()
    assert "set NUMBA_CACHE_DIR" in record.getMessage()
    assert ready(function, worth_it=True)
    assert "kept in no folder, as none can be written" in caplog.text


def test_a_program_that_has_numba_compile_nothing_is_told():
    code = "import scaleout.network.flow.compiling"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stderr.splitlines()[-1].startswith("scaleout.errors.ConfigError: NUMBA_DISABLE_JIT is set")
