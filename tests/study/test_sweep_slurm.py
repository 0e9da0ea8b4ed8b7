"""Studies on Slurm, of which stand-ins of its commands start each job as a process of this machine."""

import json
import os
import stat
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from scaleout.study.sweep.engine import Execution, execute
from scaleout.study.sweep.study import study_of
from scaleout.study.sweep.table import write_table

if find_spec("dask_jobqueue") is None:  # to import it here replaces the handler of interrupts of all tests
    pytest.skip("dask-jobqueue is not installed", allow_module_level=True)

STUDY = {
    "title": "For Slurm",
    "workload": "dlrm-128",
    "topology": ["torus-8x16", "switch-128", "ring-128"],
    "schedule": ["baseline", "overlap"],
    "set": {"global_batch": [128 * n for n in range(1, 13)]},
}
COMMANDS = {
    # a job is a session of its own, whose leader is its shell: its number is the job's
    "sbatch": """
        echo "$@" >> $SLURM_FAKE/submitted
        if [ -e $SLURM_FAKE/refuses ]; then echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1; fi
        cp $1 $SLURM_FAKE/job.$$.sh
        if [ -e $SLURM_FAKE/fails ]; then echo false > $SLURM_FAKE/job.$$.sh; fi
        setsid bash $SLURM_FAKE/job.$$.sh > $SLURM_FAKE/out.$$ 2>&1 < /dev/null &
        echo $! >> $SLURM_FAKE/jobs
        echo "Submitted batch job $!"
    """,
    "squeue": """
        while read -r job; do if kill -0 $job 2> /dev/null; then echo $job; fi; done < $SLURM_FAKE/jobs
    """,
    "scancel": """
        echo $1 >> $SLURM_FAKE/cancelled
        kill -KILL -- -$1
    """,
}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A folder with sbatch, squeue and scancel, first on the path, and what a job is to have."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, lines in COMMANDS.items():
        (folder / name).write_text("#!/usr/bin/env bash\n" + "\n".join(map(str.strip, lines.strip().splitlines())))
        (folder / name).chmod(stat.S_IRWXU)
    (folder / "jobqueue.yaml").write_text(
        yaml.safe_dump({"jobqueue": {"slurm": {"cores": 1, "memory": "2GB", "walltime": "00:10:00"}}})
    )
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    (folder / "jobs").touch()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_FAKE", str(folder))
    monkeypatch.setenv("DASK_CONFIG", str(folder))
    yield folder
    for job in numbers(folder / "jobs"):
        subprocess.run(["kill", "-KILL", "--", f"-{job}"], check=False, stderr=subprocess.DEVNULL)


def numbers(path: Path):
    return path.read_text().split() if path.exists() else []


def command(slurm, *more):
    """Return the words of a study on two jobs, which looks at them ten times a second."""
    program = (
        "import sys; from scaleout.study.sweep import execution; execution._LOOK_S = 0.1; "
        "from scaleout.cli import main; main()"
    )
    words = ["study", str(slurm / "study.yaml"), "--output", str(slurm / "out"), "--cluster", "slurm"]
    return [sys.executable, "-c", program, *words, "--workers", "2", "--no-report", "--timelines", "none", *more]


def run(slurm, *more):
    return subprocess.run(command(slurm, *more), capture_output=True, text=True, timeout=240, check=False)


def assert_undisturbed(slurm):
    """Hold the table to that of this process, byte for byte."""
    write_table(execute(study_of(STUDY, name="study", where=""), None, Execution(workers=1)), slurm / "here.parquet")
    assert (slurm / "out" / "cases.parquet").read_bytes() == (slurm / "here.parquet").read_bytes()


def test_jobs_do_a_study_and_are_cancelled(slurm):
    done = run(slurm, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 72
    jobs = numbers(slurm / "jobs")
    assert len(jobs) == 2
    assert set(numbers(slurm / "cancelled")) == set(jobs)
    assert_undisturbed(slurm)


def test_a_job_that_ends_is_replaced(slurm):
    """Both jobs are killed as soon as they are there, and two others do the study."""
    process = subprocess.Popen(command(slurm), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while len(killed := numbers(slurm / "jobs")) < 2 and process.poll() is None:
        time.sleep(0.05)
    for job in killed:
        subprocess.run(["kill", "-KILL", "--", f"-{job}"], check=True)
    err = process.communicate(timeout=240)[1]
    assert process.returncode == 0, err
    assert len(numbers(slurm / "jobs")) == 4
    assert_undisturbed(slurm)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fails", "jobs have ended before a worker came, the last of them "),
        ("refuses", "--cluster slurm: sbatch refuses a job: sbatch: error: invalid partition specified: gpu"),
    ],
)
def test_jobs_that_bring_no_worker_are_told(slurm, fault, message):
    (slurm / fault).touch()
    done = run(slurm)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_a_machine_without_slurm_is_told(slurm, scaleout, monkeypatch, name):
    (slurm / name).unlink()
    monkeypatch.setenv("PATH", str(slurm))
    code, out, err = scaleout("study", slurm / "study.yaml", "--output", slurm / "out", "--cluster", "slurm")
    assert (code, out) == (2, "")
    assert err.strip() == f"error: --cluster slurm: there is no {name} here; run this where jobs are submitted"


def test_a_configuration_without_cores_is_told(slurm):
    (slurm / "jobqueue.yaml").unlink()
    done = run(slurm)
    assert done.returncode == 2
    assert "say in ~/.config/dask/jobqueue.yaml what a job is to have" in done.stderr
    assert "Traceback" not in done.stderr
