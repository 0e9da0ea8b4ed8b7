"""Searches, studies and measurements that are ended at any moment, or run out of disk: the same answer in the end.

No process is left, and no file of somebody else is touched. `KILLS=N` says how often each is ended, twice by
default; moments are spread over the run and differ from run to run. Measurements are those of `no_gpu.py`.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

KILLS = int(os.environ.get("KILLS", "2"))
SCALEOUT, NO_GPU = (sys.executable, "-m", "scaleout.cli"), (sys.executable, str(Path(__file__).with_name("no_gpu.py")))

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads which processes there are")


def answer_of_search(output, printed):
    """Return what a search says, which is what it writes."""
    assert json.loads((output / "summary.json").read_text()) == json.loads(printed)
    return printed


def answer_of_study(output, printed):
    """Return the table of a study."""
    return (output / "cases.parquet").read_bytes()


def answer_of_measure(output, printed):
    """Return the rows that were measured, which two processes write in any order."""
    rows = (output / "kernels.jsonl").read_bytes().splitlines()
    return json.loads(rows[0])["provenance"]["gpu"], sorted(rows[1:])


@dataclass(frozen=True)
class Command:
    """A command that works in a folder with two processes of its own, and goes on where it was."""

    words: tuple[str, ...]
    answer: object  # from the folder and what it printed to what must be equal
    worker_is_missed: bytes  # what it says where one of its processes is killed
    again: tuple[str, ...] = ()  # what it is told besides to end what was cut off


COMMANDS = {
    "search": Command(
        (
            *(*SCALEOUT, "search", "llama-3-8b", "--topology", "dgx-h200-1", "--global-batch", "8", "--top", "3"),
            *("--workers", "2", "--json", "--set", "recompute=none", "--set", "zero=1", "--set", "layers=8"),
            *("--schedule", "overlap", "--simulations", "2"),
        ),
        answer_of_search,
        b"a worker process was killed, most likely for want of memory; give fewer --workers",
    ),
    "study": Command(
        (*SCALEOUT, "study", "STUDY", "--workers", "2", "--timelines", "none", "--no-report", "--json"),
        answer_of_study,
        b"a worker process was killed, most likely for want of memory; give fewer --workers",
    ),
    "measure": Command(
        (*NO_GPU, "measure", "kernels", "--rows", "ROWS"),
        answer_of_measure,
        b"measuring kernels ended early: process",
        ("--retry",),  # a row that was being measured counts as failed
    ),
}

STUDY = {
    "topology": ["torus-8x16", "switch-128"],
    "schedule": ["baseline", "overlap", "fused"],
    "cases": [
        {"workload": "dlrm-128", "set": {"global_batch": [128 * n for n in range(1, 9)]}},
        {"workload": "llama-3-8b", "set": {"data_parallel": [64, 128], "layers": [1, 2, 3, 4]}},
    ],
}
"""Of which the cases with 64 ranks fail."""
ROWS = [{"op": "gemm", "dtype": "bf16", "shape": {"M": size, "N": 4096, "K": 4096}} for size in range(256, 8192, 256)]


@pytest.fixture(scope="module")
def met():
    """Count what met a command at work."""
    found = Counter()
    yield found
    print(dict(found))  # noqa: T201 - pytest -s


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Files that commands read, by the words that stand for them."""
    folder = tmp_path_factory.mktemp("inputs")
    found = {"STUDY": folder / "killed.yaml", "ROWS": folder / "rows.jsonl"}
    found["STUDY"].write_text(json.dumps(STUDY))
    found["ROWS"].write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return found


def started(command, inputs, output, *more):
    """Start a command as a process that leads its group, so that its workers can be told from others."""
    words = [str(inputs.get(word, word)) for word in command.words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    return subprocess.Popen([*words, "--output", str(output), *more], **pipes)


def ended(command, inputs, output, *more):
    """Run a command to its end; return its exit code, and what it printed and said."""
    with started(command, inputs, output, *more) as process:
        out, errors = process.communicate()
    assert not left_of(process)
    return process.returncode, out, errors


def alive(group):
    """Processes of a group, by /proc: the dead that nobody has waited for do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.parent.name, stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(rest[2]) == group and rest[0] not in "ZX":
            found.append(int(pid))
    return found


def left_of(process):
    """Processes of a group two seconds after its leader has ended, which are ended here."""
    until = time.monotonic() + 2
    while (left := alive(process.pid)) and time.monotonic() < until:
        time.sleep(0.02)
    if left:
        os.killpg(process.pid, signal.SIGKILL)
    return left


def foreign(folder):
    """Put files of somebody else into a folder, with names much like ours; return what they hold."""
    names = ("notes.txt", "plans.jsonl.bak", ".scaleout-outputs", "kernels.json", "cases.csv.bak", "unfinished")
    held = {folder / name: os.urandom(64) for name in names}
    for path, content in held.items():
        path.write_bytes(content)
    return held


def untouched(held):
    """Whether files still hold what they held."""
    return all(path.read_bytes() == content for path, content in held.items())


@pytest.fixture(scope="module", params=COMMANDS)
def undisturbed(request, inputs, tmp_path_factory):
    """Name of a command, its answer where nobody ends it, and the seconds that it takes."""
    command, output, since = COMMANDS[request.param], tmp_path_factory.mktemp("whole"), time.monotonic()
    code, printed, errors = ended(command, inputs, output)
    assert (code, errors) == (0, b"")
    return request.param, command.answer(output, printed), time.monotonic() - since


def unfinished(folder):
    """Files that were being written."""
    return set(folder.rglob(".*unfinished*"))


@pytest.mark.parametrize("number", range(KILLS))
def test_a_command_that_is_ended(tmp_path, inputs, undisturbed, met, number):
    """First by SIGKILL, of all or of one worker; then, as it resumes, by a signal that it answers."""
    name, answer, lasts_s = undisturbed
    command = COMMANDS[name]
    held = foreign(tmp_path)
    for part, how in enumerate((signal.SIGKILL, random.choice((signal.SIGTERM, signal.SIGINT, signal.SIGKILL)))):
        left, process = unfinished(tmp_path), started(command, inputs, tmp_path, *command.again)
        time.sleep(lasts_s * random.uniform(number, number + 1) / KILLS / (part + 1))
        workers = [pid for pid in alive(process.pid) if pid != process.pid]
        whom = random.choice(workers) if workers and number % 2 and how == signal.SIGKILL else process.pid
        if process.poll() is None:
            os.kill(whom, how)
            met[f"{how.name} of {'all' if whom == process.pid else 'a worker'}, {name}"] += 1
        _, errors = process.communicate()
        assert not left_of(process), f"processes outlive their command, ended by {how.name}"
        codes = {0, -how} if whom == process.pid else {0, 2}
        if how != signal.SIGKILL:  # -how is before our first line
            codes.add(128 + how)
            assert process.returncode == -how or unfinished(tmp_path) <= left
        assert process.returncode in codes, errors
        assert b"Traceback" not in errors or process.returncode == -how, errors
        assert process.returncode != 2 or command.worker_is_missed in errors
        assert untouched(held)
    code, printed, errors = ended(command, inputs, tmp_path, *command.again)
    assert (code, errors) == (0, b"")
    assert command.answer(tmp_path, printed) == answer
    assert untouched(held)


@pytest.fixture
def disk(tmp_path):
    """Mount a filesystem of some bytes, and change its size later: a function of bytes to its folder."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def sized(size):
        again = ("-o", f"{'remount,' if folder.is_mount() else ''}size={size}")
        done = subprocess.run(["mount", "-t", "tmpfs", *again, "none", str(folder)], capture_output=True, check=False)
        if done.returncode:
            pytest.skip("cannot mount a small disk here")
        return folder

    yield sized
    if folder.is_mount():
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("number", range(KILLS))
def test_a_disk_that_is_full(disk, inputs, undisturbed, met, number):
    """One message, no worker, and what was kept counts."""
    name, answer, _ = undisturbed
    command = COMMANDS[name]
    output = disk(4096 * random.randrange(8, 40)) / "output"
    output.mkdir()
    held = foreign(output)
    code, printed, errors = ended(command, inputs, output)
    assert code in (0, 2)
    if code:
        met[f"full disk, {name}"] += 1
        assert printed == b""
        assert errors.startswith(b"error: ")
        assert errors.count(b"\n") == 1
        assert b"No space left on device" in errors
    assert untouched(held)
    assert not unfinished(output)
    disk(64 * 2**20)
    code, printed, errors = ended(command, inputs, output, *command.again)
    assert (code, errors) == (0, b"")
    assert command.answer(output, printed) == answer
