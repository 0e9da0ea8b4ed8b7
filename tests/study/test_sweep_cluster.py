"""Studies on a cluster of Dask whose workers and scheduler are killed: no result is lost, and none differs.

All are killed at work. `KILLS=20 SCHEDULER_KILLS=3 pytest tests/study/test_sweep_cluster.py` kills more than the
few of every day.
"""

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest
import yaml

from scaleout.errors import ScaleoutError
from scaleout.study.sweep import execution
from scaleout.study.sweep.engine import Execution, execute
from scaleout.study.sweep.shards import known_keys
from scaleout.study.sweep.study import study_of
from scaleout.study.sweep.table import write_table

Client = pytest.importorskip("distributed").Client
dask = pytest.importorskip("dask")
KILLS, SCHEDULER_KILLS = int(os.environ.get("KILLS", "3")), int(os.environ.get("SCHEDULER_KILLS", "1"))

STUDY = {
    "title": "For killing",
    "topology": "torus-8x16",
    "cases": [
        {
            "workload": "dlrm-128",
            "set": {"global_batch": [128, 256, 384]},
            "schedule": ["baseline", "overlap", "fused"],
        },
        {
            "workload": "llama-3-8b",
            "set": {
                "tensor_parallel": 2,
                "pipeline_parallel": 8,
                "data_parallel": [4, 8],
                "microbatch": 1,
                "batch_per_replica": [160 + n for n in range(16 + 6 * KILLS)],
            },
        },
    ],
}
"""Of which the cases with 64 ranks fail; those of many micro-batches take longer than all that lies between kills."""


class Cluster:
    """A scheduler and two workers, each a process that can be killed, and is then started again."""

    def __init__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.names = map("worker-{}".format, itertools.count())
        self.workers = {}
        self.start_all()

    def start_all(self):
        self.scheduler = self.start("dask_scheduler", "--host", "127.0.0.1", "--port", str(self.port))
        for _ in range(2):
            self.start_worker()

    def start(self, module, *words):
        command = [sys.executable, "-m", f"distributed.cli.{module}", *words, "--no-dashboard"]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def start_worker(self):
        words = ("--name", name := next(self.names), "--nthreads", "2", "--no-nanny", "--death-timeout", "60")
        self.workers[name] = self.start("dask_worker", self.address, *words)

    def at_work(self, client):
        """Return the workers that chunks were given to."""
        names = {address: worker["name"] for address, worker in client.scheduler_info()["workers"].items()}
        return [names[address] for address, chunks in client.processing().items() if chunks and address in names]

    def kill_worker(self, name):
        self.kill(self.workers.pop(name))
        self.start_worker()

    def kill_scheduler(self):
        """Kill the scheduler; its workers end with it."""
        self.close()
        self.start_all()

    @staticmethod
    def kill(process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def close(self):
        for process in (self.scheduler, *self.workers.values()):
            self.kill(process)
        self.workers.clear()


@pytest.fixture
def cluster():
    found = Cluster()
    yield found
    found.close()


def shards_of(directory):
    return [*directory.glob("shards/*.parquet")]


def strike(cluster, process, directory, *, deaths, chance, last):
    """Kill workers at work once a study has results, and in the end, unless it is the last time, the scheduler."""

    def at_work(least=0):
        while not (names := cluster.at_work(client)) or len(shards_of(directory)) < least:
            assert process.poll() is None, f"the study ended before all were killed: {process.communicate()[1]}"
            time.sleep(0.05)
        return names

    with Client(cluster.address, timeout=60, set_as_default=False) as client:
        at_work(least=1 + len(shards_of(directory)))
        for _ in range(deaths):
            at_work()
            time.sleep(chance.uniform(0.1, 0.6))
            cluster.kill_worker(chance.choice(at_work()))
        if not last:
            at_work()
    if not last:
        cluster.kill_scheduler()


def test_kills_leave_no_trace(tmp_path, cluster):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    words = ["--output", str(tmp_path / "killed"), "--cluster", cluster.address, "--no-report", "--timelines", "none"]
    command = [sys.executable, "-m", "scaleout.cli", "study", str(tmp_path / "study.yaml"), *words]
    chance, deaths, done = random.Random(7), KILLS, []
    for round_ in range(SCHEDULER_KILLS + 1):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        mine = deaths // (SCHEDULER_KILLS + 1 - round_)
        deaths -= mine
        strike(cluster, process, tmp_path / "killed", deaths=mine, chance=chance, last=round_ == SCHEDULER_KILLS)
        err = process.communicate(timeout=600)[1]
        assert process.returncode == 0 or "the cluster is lost" in err or "does not answer" in err, err
        assert "Traceback" not in err
        done.append(len(known_keys(tmp_path / "killed")))
    assert process.returncode == 0
    print(f"{KILLS} workers and {SCHEDULER_KILLS} schedulers were killed at work; cases done by then: {done}")  # noqa: T201
    undisturbed = execute(study_of(STUDY, name="study", where=""), None, Execution(workers=1))
    write_table(undisturbed, tmp_path / "undisturbed.parquet")
    assert (tmp_path / "killed" / "cases.parquet").read_bytes() == (tmp_path / "undisturbed.parquet").read_bytes()


def test_a_chunk_whose_workers_always_die_is_given_up(monkeypatch):
    """Cases that take more memory than there is must not be tried for ever."""
    monkeypatch.setattr(execution, "_TRIES", 2)
    monkeypatch.setattr(execution, "on_worker", lambda _chunk: os._exit(1))
    how = Execution(workers=1, cluster="local")
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}), pytest.raises(ScaleoutError) as raised:
        execute(study_of(STUDY, name="study", where=""), None, how)
    assert "workers die again and again as they run case" in str(raised.value)


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
