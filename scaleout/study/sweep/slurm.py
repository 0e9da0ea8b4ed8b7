"""Workers of a study as jobs of Slurm, through dask-jobqueue, which starts and cancels them.

What it does not do is to see that a job has ended, by its time limit or by whatever befell its node: `Jobs.tend` asks
``squeue`` which are left and starts others in their place, until several in a row have ended before any worker came.
"""

import getpass
import shutil
import subprocess
from contextlib import ExitStack
from typing import Any

from scaleout.config.workers import signals_held
from scaleout.errors import ConfigError, ScaleoutError

_COMMANDS = ("sbatch", "squeue", "scancel")
_FRUITLESS = 3
"""Jobs that may end in a row without a worker before the study is given up, if it asked for no more at once."""
_ANSWERS_S = 60.0
"""In which squeue is to answer; one that does not is asked again later."""

NO_DASHBOARD = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""For schedulers: even then one listens for questions of its health, on any port but the one that all would take."""


class Jobs:
    """Jobs of Slurm, each a worker or several, as Dask's configuration says (``jobqueue.slurm``).

    Raises
    ------
    ConfigError
        If Slurm or dask-jobqueue is not there, the configuration lacks what a job is to have, or Slurm refuses a job.
    """

    def __init__(self, stack: ExitStack, count: int) -> None:
        missing = [name for name in _COMMANDS if shutil.which(name) is None]
        if missing:
            raise ConfigError(f"--cluster slurm: there is no {missing[0]} here; run this where jobs are submitted")
        try:
            import dask  # noqa: PLC0415 - an extra

            with signals_held():  # it has an interrupt exit as if all were well, wherever it is imported
                from dask_jobqueue import SLURMCluster  # noqa: PLC0415
        except ImportError:
            raise ConfigError(
                "--cluster slurm needs dask-jobqueue; install it: pip install 'scaleout[cluster]'"
            ) from None
        settings = dask.config.get("jobqueue.slurm", {})
        scheduler = {**NO_DASHBOARD, **(settings.get("scheduler-options") or {})}
        self._refusals = list[str]()
        try:
            # a process for each core: a worker runs one case at a time
            self.cluster = SLURMCluster(
                job_cls=_telling(self._refusals), processes=settings.get("cores"), scheduler_options=scheduler
            )
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"--cluster slurm: {str(error).splitlines()[0]}; say in ~/.config/dask/jobqueue.yaml what a job is to "
                f"have (cores, memory, walltime, queue)"
            ) from None
        stack.enter_context(self.cluster)
        self._count, self._fruitless = count, 0
        self._submit()

    def _submit(self) -> None:
        """Start as many jobs as are missing."""
        cluster = self.cluster

        async def submitted() -> None:
            await cluster

        cluster.scale(jobs=self._count)
        cluster.sync(submitted)
        if self._refusals:
            raise ConfigError(f"--cluster slurm: sbatch refuses a job: {self._refusals[0]}")

    def tend(self, workers: int) -> None:
        """Start jobs in place of those that have ended; `ScaleoutError` if they end before any worker comes."""
        if workers:
            self._fruitless = 0
        command = ["squeue", "--noheader", "--user", getpass.getuser(), "--format", "%A"]
        try:
            found = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWERS_S, check=True)
        except (OSError, subprocess.SubprocessError):
            return  # busy: nothing is known of the jobs
        left = set(found.stdout.split())
        ended = {name: job.job_id for name, job in self.cluster.workers.items() if job.job_id not in left}
        self._fruitless += 0 if workers else len(ended)
        if self._fruitless >= max(_FRUITLESS, self._count):
            raise ScaleoutError(
                f"--cluster slurm: {self._fruitless} jobs have ended before a worker came, the last of them "
                f"{max(ended.values(), key=int)}; its output says why (log-directory in ~/.config/dask/jobqueue.yaml, "
                f"or slurm-*.out here)"
            )
        for name in ended:
            self.cluster.workers.pop(name, None)
        if ended:
            self._submit()


def _telling(refusals: list[str]) -> Any:
    """Return the class of a job that puts what sbatch says against it into a list, where Dask would log it alone."""
    from dask_jobqueue.slurm import SLURMJob  # noqa: PLC0415 - an extra
    from distributed.deploy.spec import ProcessInterface  # noqa: PLC0415

    class Job(SLURMJob):  # type: ignore[misc]
        async def start(self) -> None:
            try:
                await super().start()
            except (OSError, RuntimeError) as error:
                refusals.append(" ".join((str(error).partition("stderr:\n")[2] or str(error)).split()))
                await ProcessInterface.start(self)  # without a number: nothing is there to cancel

    return Job
