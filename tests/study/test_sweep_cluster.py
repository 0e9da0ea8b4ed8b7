"""Studies on a cluster of Dask whose workers and scheduler are killed: no result is lost, and none differs.

All are killed at work. `tests/benchmarks/cluster.py` kills more of them, in a study of ten thousand cases.
"""

import logging
import os
import socket
import subprocess
import sys
import time

import pytest
import yaml

from scaleout.errors import ScaleoutError
from scaleout.study.sweep import execution
from scaleout.study.sweep.engine import Execution, execute
from scaleout.study.sweep.study import study_of
from scaleout.study.sweep.table import write_table
from scaleout.study.sweep.worker import Chunk

pytest.importorskip("distributed")
dask = pytest.importorskip("dask")
from dask_cluster import run_killed  # noqa: E402 - needs Dask, an extra

KILLS = 3

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


def test_kills_leave_no_trace(tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    words = ["--output", str(tmp_path / "killed"), "--no-report", "--timelines", "none"]
    command = [sys.executable, "-m", "scaleout.cli", "study", str(tmp_path / "study.yaml"), *words]
    run_killed(command, tmp_path / "killed", kills=KILLS, scheduler_kills=1, longest_s=0.6)
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


def test_an_interrupt_ends_workers_of_a_local_cluster_whatever_they_are_about(monkeypatch, tmp_path):
    """One that is asked to end would end its chunk first."""
    begun, ended = tmp_path / "begun", tmp_path / "ended"

    def slow(_chunk):
        begun.touch()
        time.sleep(2)
        ended.touch()

    def interrupted():
        with execution.cluster("local", 1) as pool:
            pool.submit(Chunk(()))
            while not begun.exists():
                time.sleep(0.01)
            raise KeyboardInterrupt

    monkeypatch.setattr(execution, "on_worker", slow)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not ended.exists()


def test_workers_of_a_local_cluster_print_no_tracebacks():
    """One that calls the scheduler as that ends would."""
    with execution.cluster("local", 1) as pool:
        levels = pool._client.run(lambda: logging.getLogger("distributed.worker").getEffectiveLevel())
    assert list(levels.values()) == [logging.CRITICAL]


def test_a_scheduler_that_does_not_answer_is_told(tmp_path, scaleout, monkeypatch):
    monkeypatch.setattr("scaleout.study.sweep.execution._ANSWER_S", 0.5)
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    words = ("study", tmp_path / "study.yaml", "--output", tmp_path / "out", "--cluster")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port in (9, silent.getsockname()[1]):
            code, _, err = scaleout(*words, f"tcp://127.0.0.1:{port}")
            assert code == 2
            assert "does not answer" in err
    for port in ("0", "65536", "9" * 30):
        code, _, err = scaleout(*words, f"tcp://127.0.0.1:{port}")
        assert code == 2
        assert err == f"error: --cluster tcp://127.0.0.1:{port}: there is no port {port}; give one from 1 to 65535\n"
    code, _, err = scaleout(*words, "kubernetes")
    assert code == 2
    assert "give local, slurm, or a scheduler's address" in err


def test_clusters_that_are_none_one_after_another_in_a_process():
    """Dask's own settings stay when those of a study end; in a process that has not imported Dask before."""
    addresses = ("tcp://", "tcp://127.0.0.1:x", "tcp://[::1", "tls://127.0.0.1:1", "ucx://x")
    program = (
        "from scaleout.errors import ConfigError\n"
        "from scaleout.study.sweep.execution import cluster\n"
        f"for address in {addresses}:\n"
        "    try:\n"
        "        with cluster(address, None): pass\n"
        "    except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert len(said) == len(addresses)
    for line, address in zip(said, addresses, strict=True):
        why = "does not answer" if address.startswith("tcp") else f"{address[:6]} cannot be used here"
        assert line.startswith(f"--cluster {address}: {why} (")
