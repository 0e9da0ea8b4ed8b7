"""Studies on a cluster of Dask whose workers and scheduler are killed: no result is lost, and none differs.

`KILLS=20 SCHEDULER_KILLS=3 pytest tests/study/test_sweep_cluster.py` kills more than the few of every day.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest
import yaml

from scaleout.study.sweep.engine import Execution, execute
from scaleout.study.sweep.study import study_of
from scaleout.study.sweep.table import write_table

pytest.importorskip("distributed")
KILLS, SCHEDULER_KILLS = int(os.environ.get("KILLS", "3")), int(os.environ.get("SCHEDULER_KILLS", "1"))

STUDY = {
    "title": "For killing",
    "topology": ["torus-8x16", "switch-128", "ring-128"],
    "schedule": ["baseline", "overlap", "fused"],
    "cases": [
        {"workload": "dlrm-128", "set": {"global_batch": [128 * n for n in range(1, 21)]}},
        {"workload": "llama-3-8b", "set": {"data_parallel": [64, 128], "layers": list(range(1, 2 + KILLS))}},
    ],
}
"""Of which the cases with 64 ranks fail."""


class Cluster:
    """A scheduler and two workers, each a process that can be killed, and is then started again."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler = self.start_scheduler()
        self.workers = [self.start_worker() for _ in range(2)]

    def start(self, module, *words):
        command = [sys.executable, "-m", f"distributed.cli.{module}", *words, "--no-dashboard"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start_scheduler(self):
        return self.start("dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port))

    def start_worker(self):
        return self.start("dask_worker", self.address, "--nthreads", "2", "--no-nanny", "--death-timeout", "60")

    def kill_worker(self, which):
        self.kill(self.workers[which])
        self.workers[which] = self.start_worker()

    def kill_scheduler(self):
        self.kill(self.scheduler)
        self.scheduler = self.start_scheduler()

    @staticmethod
    def kill(process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self):
        for process in (*self.workers, self.scheduler):
            self.kill(process)


@pytest.fixture
def cluster():
    found = Cluster()
    yield found
    found.close()


def test_kills_leave_no_trace(tmp_path, cluster):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    words = ["--output", str(tmp_path / "killed"), "--cluster", cluster.address, "--no-report", "--timelines", "none"]
    command = [sys.executable, "-m", "scaleout.cli", "study", str(tmp_path / "study.yaml"), *words]
    chance, deaths, struck = random.Random(7), KILLS, 0
    for round_ in range(SCHEDULER_KILLS + 1):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        mine = deaths // (SCHEDULER_KILLS + 1 - round_)
        deaths -= mine
        time.sleep(3.0)
        for _ in range(mine):
            if process.poll() is None:
                cluster.kill_worker(chance.randrange(2))
                struck += 1
                time.sleep(chance.uniform(0.2, 1.0))
        if round_ < SCHEDULER_KILLS and process.poll() is None:
            cluster.kill_scheduler()
            struck += 1
        err = process.communicate(timeout=300)[1]
        assert process.returncode == 0 or "the cluster is lost" in err or "does not answer" in err, err
        assert "Traceback" not in err
    if process.returncode:
        assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0
    print(f"{struck} processes were killed at work")  # noqa: T201 - pytest -s
    undisturbed = execute(study_of(STUDY, name="study", where=""), None, Execution(workers=1))
    write_table(undisturbed, tmp_path / "undisturbed.parquet")
    assert (tmp_path / "killed" / "cases.parquet").read_bytes() == (tmp_path / "undisturbed.parquet").read_bytes()


def test_a_scheduler_that_does_not_answer_is_told(tmp_path, scaleout, monkeypatch):
    monkeypatch.setattr("scaleout.study.sweep.execution._PATIENCE_S", 0.5)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    words = ("study", tmp_path / "study.yaml", "--output", tmp_path / "out", "--cluster")
    code, _, err = scaleout(*words, "tcp://127.0.0.1:9")
    assert code == 2
    assert "does not answer" in err
    code, _, err = scaleout(*words, "kubernetes")
    assert code == 2
    assert "give local, slurm, or a scheduler's address" in err
