"""A cluster of Dask whose workers and scheduler are killed while a study runs on it, for a test and a benchmark."""

import itertools
import random
import signal
import socket
import subprocess
import sys
import time

from distributed import Client

from scaleout.study.sweep.shards import known_keys


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


def run_killed(command, directory, *, kills, scheduler_kills, longest_s):
    """Run a study on a cluster until it ends, and return after how many cases it was lost with the scheduler.

    As many workers are killed while they are at work, shared out among the scheduler's lives, each after a pause of up
    to `longest_s` at random. `command` is that of the study but for ``--cluster``, `directory` its output.
    """
    chance, done, cluster = random.Random(7), [], Cluster()
    try:
        for lives in reversed(range(scheduler_kills + 1)):
            process = subprocess.Popen(
                [*command, "--cluster", cluster.address], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            mine = kills // (lives + 1)
            kills -= mine
            pauses = [chance.uniform(0.1, longest_s) for _ in range(mine)]
            strike(cluster, process, directory, pauses=pauses, chance=chance)
            if lives:
                cluster.kill_scheduler()
            err = process.communicate()[1]
            assert "Traceback" not in err, err
            lost = "the cluster is lost" in err or "does not answer" in err
            assert lost if lives else process.returncode == 0, err
            done.append(len(known_keys(directory)))
    finally:
        cluster.close()
    return done[:-1]


def strike(cluster, process, directory, *, pauses, chance):
    """Kill workers at work once the study has new results, each after a pause, and see others at work in the end."""

    def shards():
        return len([*directory.glob("shards/*.parquet")])

    def at_work(least=0):
        while not (names := cluster.at_work(client)) or shards() < least:
            assert process.poll() is None, f"the study ended before all were killed: {process.communicate()[1]}"
            time.sleep(0.05)
        return names

    with Client(cluster.address, timeout=60, set_as_default=False) as client:
        at_work(least=1 + shards())
        for pause_s in pauses:
            at_work()
            time.sleep(pause_s)
            cluster.kill_worker(chance.choice(at_work()))
        at_work()
