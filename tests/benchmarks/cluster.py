"""A large study on a cluster of Dask on this machine, undisturbed and with processes killed. Reports.

    python tests/benchmarks/cluster.py [--cases 10000] [--kills 20] [--scheduler-kills 3]
    python tests/benchmarks/cluster.py --kills 0

Runs the same study three times: in one process, on `--cluster local` with two workers, and, unless no worker is to be
killed, on a cluster whose workers and scheduler are killed at random while they are at work. Says what two workers are
worth beside one process, by wall time, and by processor time: what the one process takes over what all processes of
the cluster take, start-up, scheduler and the writing of results included, is what two cores can reach at the most. Both
want two idle cores: with others at work a case takes up to twice the processor time, and not the same in both runs, and
Dask's loops take theirs by the second. Ends with an error if a table differs from that of one process by a byte.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil  # comes with Dask
import yaml
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))
from dask_cluster import run_killed

WORKERS = 2
_BANDWIDTHS = ["0.25x", "0.5x", "1x", "2x", "4x"]
_SCHEDULES = ["baseline", "overlap", "fused", "centauri"]


def study_of(cases: int) -> dict[str, object]:
    """Return a study of about so many cases, each a step of DLRM on 128 ranks."""
    batches = max(1, cases // (len(_BANDWIDTHS) * len(_SCHEDULES)))
    return {
        "title": "Many batches", "workload": "dlrm-128", "topology": "torus-8x16",
        "set": {"global_batch": [128 * (number + 1) for number in range(batches)]},
        "bandwidth": {"all": _BANDWIDTHS}, "schedule": _SCHEDULES,
    }  # fmt: skip


class Watched:
    """What a command takes: wall time, processor time of all its processes, and the most memory that they hold."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = self.most_bytes = 0.0
        self._over = threading.Event()

    def __enter__(self) -> "Watched":
        self._begin_s, self._before = time.perf_counter(), os.times()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s, after = time.perf_counter() - self._begin_s, os.times()
        spent = (after.children_user, after.children_system, -self._before.children_user, -self._before.children_system)
        self.cpu_s = sum(spent)
        self._over.set()
        self._thread.join()

    def __str__(self) -> str:
        return f"{self.wall_s:.1f} s, {self.cpu_s:.1f} s, {self.most_bytes / 1e9:.2f} GB"

    def _look(self) -> None:
        me = psutil.Process()
        while not self._over.wait(2.0):
            held = 0
            for each in me.children(recursive=True):
                try:
                    held += each.memory_full_info().pss
                except psutil.Error:  # has ended
                    continue
            self.most_bytes = max(self.most_bytes, held)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, count in (("cases", 10_000), ("kills", 20), ("scheduler-kills", 3)):
        parser.add_argument(f"--{name}", type=int, default=count)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "study.yaml").write_text(yaml.safe_dump(study_of(given.cases)))

        def command(name: str) -> list[str]:
            words = ["--output", str(folder / name), "--no-report", "--timelines", "none"]
            return [sys.executable, "-m", "scaleout.cli", "study", str(folder / "study.yaml"), *words]

        def ran(name: str, *more: str) -> Watched:
            with Watched() as watched:
                subprocess.run([*command(name), *more], check=True, stdout=subprocess.DEVNULL)
            return watched

        say = Console().print
        say(f"{given.cases:,} cases: wall and processor time, and the most memory that all processes have held")
        alone = ran("alone", "--workers=1")
        say(f"one process: {alone}")
        cluster = ran("cluster", "--cluster=local", f"--workers={WORKERS}")
        say(f"{WORKERS} workers of Dask: {cluster}")
        say(f"efficiency of {WORKERS} cores by wall time: {alone.wall_s / WORKERS / cluster.wall_s:.0%}")
        say(f"what it can be by processor time: {alone.cpu_s / cluster.cpu_s:.0%}")
        names = ["alone", "cluster"]
        if given.kills:
            names.append("killed")
            with Watched() as killed:
                done = run_killed(
                    command("killed"), folder / "killed",
                    kills=given.kills, scheduler_kills=given.scheduler_kills, longest_s=2.0,
                )  # fmt: skip
            say(f"{given.kills} workers killed, and {given.scheduler_kills} schedulers after {done} cases: {killed}")
        tables = [(folder / name / "cases.parquet").read_bytes() for name in names]
    say(f"all tables are equal, byte for byte: {len(set(tables)) == 1}")
    if len(set(tables)) != 1:
        sys.exit(1)


if __name__ == "__main__":
    main()
