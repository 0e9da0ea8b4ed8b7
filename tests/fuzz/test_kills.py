"""Searches that are killed at any moment: no worker is left, and the same command ends in the same answer.

`KILLS=N` says how often, twice by default; moments are spread over the run and differ from run to run.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KILLS = int(os.environ.get("KILLS", "2"))
SEARCH = (
    "search", "llama-3-8b", "--topology", "dgx-h200-1", "--global-batch", "8", "--top", "3", "--workers", "2", "--json",
    "--set", "recompute=none", "--set", "zero=1", "--schedule", "overlap", "--simulations", "2",
)  # fmt: skip

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads which processes there are")


def started(output, *, kibibytes="unlimited", asked=SEARCH):
    """Start a command as a process that leads its group, so that its workers can be told from others.

    No file of it may grow beyond some KiB.
    """
    limited = ["bash", "-c", f'ulimit -f {kibibytes}; exec "$@"', "-"]
    command = [sys.executable, "-c", "from scaleout.cli import main; main()", *asked, "--output", str(output)]
    return subprocess.Popen(limited + command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


def alive(group):
    """Processes of a group, by /proc: the dead that nobody has waited for do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.parent.name, stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(rest[2]) == group and rest[0] not in "ZX":
            found.append(pid)
    return found


def end(process, how):
    """Send a process a signal; two seconds later none of its group is left, and nobody holds its pipes."""
    process.send_signal(how)
    process.wait()
    until = time.monotonic() + 2
    while (left := alive(process.pid)) and time.monotonic() < until:
        time.sleep(0.02)
    if left:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not left, f"workers {left} outlive their command"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The answer of a search that nobody kills, and the seconds that it takes."""
    since = time.monotonic()
    with started(tmp_path_factory.mktemp("whole")) as process:
        answer, errors = process.communicate()
    assert (process.returncode, errors) == (0, b"")
    return json.loads(answer), time.monotonic() - since


@pytest.mark.parametrize("number", range(KILLS))
def test_a_search_that_is_killed(tmp_path, whole, number):
    answer, lasts_s = whole
    for part, how in enumerate((signal.SIGKILL, signal.SIGTERM)):  # the second time as it resumes
        left = set(tmp_path.glob(".*unfinished*"))  # by SIGKILL, after which nothing can be put in order
        process = started(tmp_path)
        time.sleep(lasts_s * random.uniform(number, number + 1) / KILLS / (part + 1))
        end(process, how)
        if how == signal.SIGTERM and process.returncode != -how:  # which it is before our first line
            assert process.returncode in (0, 128 + how)
            assert set(tmp_path.glob(".*unfinished*")) <= left
    with started(tmp_path) as process:
        out, errors = process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert json.loads(out) == answer
    assert json.loads((tmp_path / "summary.json").read_text()) == answer


def test_a_disk_that_is_full(tmp_path, whole):
    """One message, no worker, and what was kept counts."""
    with started(tmp_path, kibibytes=66) as process:
        out, errors = process.communicate()
    assert (process.returncode, out) == (2, b"")
    assert errors.decode() == f"error: {tmp_path / 'plans.jsonl'}: cannot be read or written (File too large)\n"
    assert not alive(process.pid)
    with started(tmp_path) as process:
        out, errors = process.communicate()
    assert (process.returncode, errors) == (0, b"")
    assert json.loads(out) == whole[0]


def test_a_worker_that_is_killed(tmp_path):
    """As the system does where memory runs out."""
    with started(tmp_path) as process:
        while len(workers := [pid for pid in alive(process.pid) if int(pid) != process.pid]) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        os.kill(int(workers[0]), signal.SIGKILL)
        _, errors = process.communicate()
    assert process.returncode == 2
    assert errors.startswith(
        b"error: a worker process was killed, most likely for want of memory; give fewer --workers"
    )
    assert not alive(process.pid)


# ---- Measurements, on a machine with a GPU

ROWS = [{"op": "gemm", "dtype": "bf16", "shape": {"M": size, "N": 4096, "K": 4096}} for size in range(256, 4096, 256)]


def has_gpu():
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.mark.skipif(not has_gpu(), reason="measures on a GPU, and there is none")
@pytest.mark.parametrize("number", range(KILLS))
def test_a_measurement_that_is_killed(tmp_path, number):
    """What was measured stays, what was being measured counts as failed, and nothing is measured twice."""
    rows, output = tmp_path / "rows.jsonl", tmp_path / "machine"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    asked = ("measure", "kernels", "--rows", str(rows))
    process = started(output, asked=asked)
    time.sleep(random.uniform(1, 25))
    end(process, random.choice((signal.SIGKILL, signal.SIGTERM)))
    log = output / "kernels.jsonl"
    kept = [line for line in log.read_bytes().split(b"\n")[:-1] if b'"us"' in line] if log.exists() else []
    with started(output, asked=(*asked, "--retry")) as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    lines = [line for line in log.read_bytes().splitlines() if b'"us"' in line]
    assert lines[: len(kept)] == kept
    measured = [json.loads(line)["shape"]["M"] for line in lines]
    assert sorted(measured) == [row["shape"]["M"] for row in ROWS]
