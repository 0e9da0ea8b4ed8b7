"""Where the chunks of a study run: in this process, in others on this machine, or on a cluster of Dask.

A `Pool` takes chunks and hands back rows in whatever order they are done. It keeps nothing: what is not handed back is
run again by whoever asks next. Dask is imported where a cluster is asked for, and nowhere else.
"""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Protocol

from scaleout.errors import ConfigError, ScaleoutError
from scaleout.study.search.execution import pools_of
from scaleout.study.sweep.slurm import NO_DASHBOARD, Jobs
from scaleout.study.sweep.worker import Chunk, Done, on_worker, run_chunk

_QUEUED = 2
"""Chunks of each worker of a cluster: the one that runs, and one that waits for it."""
_TRIES = 25
"""Of a chunk that Dask gives up, each after some of its workers have died: those killed at random say nothing of it."""
_PATIENCE_S = 60.0
"""Until the first worker of a cluster has come, or a scheduler started here; jobs of Slurm may wait for days."""
_ANSWER_S = 5.0
"""Until a scheduler that is said to run already answers."""
_SILENT = ("distributed", "distributed.client", "tornado.application")
"""Loggers of Dask: what is lost is told in one message."""
_WATCHES = (
    "distributed.admin.tick.interval", "distributed.admin.system-monitor.interval",
    "distributed.worker.memory.monitor-interval",
)  # fmt: skip
"""How often Dask looks at itself in each process: several times a second, which takes two cores 3% of their time."""
_ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
_LOOK_S = 10.0
"""Between looks at jobs of Slurm."""


class Pool(Protocol):
    """Runs chunks, as many at a time as `free` says at first."""

    @property
    def free(self) -> int:
        """Chunks that it would take now."""

    def submit(self, chunk: Chunk) -> None:
        """Take a chunk."""

    def finished(self) -> list[Done]:
        """Wait until a chunk is done, and return all that are; `ScaleoutError` if what ran them is lost."""


class Here:
    """Runs chunks in this process, as they are taken."""

    def __init__(self) -> None:
        self._done: list[Done] = []

    @property
    def free(self) -> int:
        """One, unless one is done that was not asked for yet."""
        return 1 - len(self._done)

    def submit(self, chunk: Chunk) -> None:
        """Run a chunk."""
        self._done.append(run_chunk(chunk))

    def finished(self) -> list[Done]:
        """Return what is done."""
        found, self._done = self._done, []
        return found


class Processes:
    """Runs each chunk in one of some processes that is free."""

    def __init__(self, executors: list[Executor]) -> None:
        self._free = list(executors)
        self._running: dict[Future[Done], Executor] = {}

    @property
    def free(self) -> int:
        """Processes without a chunk."""
        return len(self._free)

    def submit(self, chunk: Chunk) -> None:
        """Hand a chunk to a process that is free."""
        executor = self._free.pop()
        self._running[executor.submit(run_chunk, chunk)] = executor

    def finished(self) -> list[Done]:
        """Wait for the next chunks that are done."""
        done, _ = wait(self._running, return_when=FIRST_COMPLETED)
        self._free += [self._running.pop(future) for future in done]
        return [future.result() for future in done]


class OnDask:
    """Runs chunks on the workers of a Dask cluster, and counts them anew each time: they come and go."""

    def __init__(self, client: Any, jobs: Jobs | None = None) -> None:
        self._client, self._jobs = client, jobs
        self._running: dict[Any, tuple[Chunk, int]] = {}  # future to its chunk, and which try of it that is
        self._looked_s = time.monotonic()
        self.workers = self._count()

    @property
    def free(self) -> int:
        """Chunks that keep all workers busy, less those that were taken."""
        return max(1, _QUEUED * self.workers) - len(self._running)

    def submit(self, chunk: Chunk) -> None:
        """Send a chunk to the scheduler."""
        self._try(chunk, 1)

    def _try(self, chunk: Chunk, number: int) -> None:
        if number > _TRIES:
            raise ScaleoutError(
                f"workers die again and again as they run case {chunk.cases[0].number} and those after it, most likely "
                f"for want of memory; what was done is kept: run the same command again with more memory a worker"
            )
        with _told():
            self._running[self._client.submit(on_worker, chunk, pure=False)] = chunk, number

    def finished(self) -> list[Done]:
        """Wait for the next chunks that are done, and see to the jobs meanwhile."""
        from distributed import KilledWorker  # noqa: PLC0415 - Dask is an extra
        from distributed import wait as first_of  # noqa: PLC0415

        found = list[Done]()
        while not found:
            self._tend()
            done = set[Any]()
            with _told(), suppress(TimeoutError):
                done = first_of(list(self._running), timeout=_LOOK_S, return_when=FIRST_COMPLETED).done
            for future in done:
                chunk, number = self._running.pop(future)
                try:
                    with _told():
                        found.append(future.result())
                except KilledWorker:  # or what kept the rows of a chunk that was done, and all that ran it again
                    self._try(chunk, number + 1)
        self.workers = self._count()
        return found

    def _tend(self) -> None:
        if self._jobs is not None and time.monotonic() - self._looked_s >= _LOOK_S:
            self._jobs.tend(self._count())
            self._looked_s = time.monotonic()

    def _count(self) -> int:
        with _told():
            return len(self._client.nthreads())


@contextmanager
def _told() -> Iterator[None]:
    """Say in a message what of a cluster is lost."""
    from concurrent.futures import CancelledError  # noqa: PLC0415

    from distributed.comm.core import CommClosedError  # noqa: PLC0415 - Dask is an extra

    try:
        yield
    except (CancelledError, CommClosedError, OSError, TimeoutError) as error:
        raise ScaleoutError(
            f"the cluster is lost ({type(error).__name__}); what was done is kept: start a cluster, and run the same "
            f"command again"
        ) from None


@contextmanager
def processes(workers: int) -> Iterator[Pool]:
    """Yield a pool of processes on this machine; one is this process."""
    if workers == 1:
        yield Here()
        return
    with pools_of(workers) as executors:
        yield Processes(executors)


@contextmanager
def cluster(where: str, workers: int | None) -> Iterator[Pool]:
    """Yield a pool on a Dask cluster: ``local``, ``slurm``, or the address of a scheduler.

    Raises
    ------
    ConfigError
        If Dask is not installed, there is no such cluster, or its scheduler does not answer.
    """
    try:
        import dask  # noqa: PLC0415 - an extra
        from distributed import Client  # noqa: PLC0415 - which adds its defaults, to stay when the settings end
    except ImportError:
        raise ConfigError(f"--cluster {where} needs Dask; install it: pip install 'scaleout[cluster]'") from None
    settings = {
        "distributed.comm.timeouts.connect": f"{_PATIENCE_S:g}s",
        "distributed.deploy.lost-worker-timeout": "1000d",  # `Jobs.tend` replaces jobs, once Slurm has no more of them
        "distributed.worker.daemon": True,
        "distributed.worker.profile.enabled": False,  # which samples the stacks of all threads
        **dict.fromkeys(_WATCHES, "1s"),
        _ENVIRONMENT: _environment(dask.config.get(_ENVIRONMENT)),
    }
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(settings))
        jobs = Jobs(stack, workers or 1) if where == "slurm" else None
        address = jobs.cluster if jobs else stack.enter_context(_local(workers)) if where == "local" else where
        if isinstance(address, str) and not address.startswith(("tcp://", "tls://", "ucx://")):
            raise ConfigError(f"--cluster {where}: give local, slurm, or a scheduler's address as tcp://host:8786")
        if isinstance(address, str):
            _check_spoken(address)
        try:
            if address == where:
                with ThreadPoolExecutor(1) as thread:  # in a notebook this one has a loop that runs
                    thread.submit(asyncio.run, _check_answers(address)).result()
            client = stack.enter_context(Client(address, timeout=_PATIENCE_S))
            if jobs is None:
                client.wait_for_workers(1, timeout=_PATIENCE_S)
        except (OSError, TimeoutError, ValueError) as error:
            raise ConfigError(f"--cluster {where}: does not answer ({error}); start it, or give another") from None
        yield OnDask(client, jobs)


def _environment(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the environment of workers' processes: they begin to log before they are told anything else.

    Without Dask's own threshold, with which each larger array is new memory of the system: it takes 4% of the time.
    """
    kept = {name: value for name, value in given.items() if name != "MALLOC_TRIM_THRESHOLD_"}
    return {**kept, "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "critical"}


def _check_spoken(address: str) -> None:
    """Refuse an address that this process cannot speak to, for which a client of Dask would wait."""
    from distributed.comm.registry import get_backend  # noqa: PLC0415 - Dask is an extra
    from distributed.security import Security  # noqa: PLC0415

    kind, why = address.partition("://")[0], ""
    try:
        get_backend(kind).get_connector()
        if kind == "tls" and Security().get_connection_args("client").get("ssl_context") is None:
            why = "no certificate is given, by distributed.comm.tls in ~/.config/dask"
    except (OSError, ValueError, TypeError, ImportError) as error:
        why = str(error)
    if why:
        raise ConfigError(f"--cluster {address}: {kind}:// cannot be used here ({why}); give a tcp:// one")
    port = address.rpartition(":")[2]
    if port.isdecimal() and not 0 < int(port[:9]) < 2**16:
        raise ConfigError(f"--cluster {address}: there is no port {port}; give one from 1 to 65535")


async def _check_answers(address: str) -> None:
    """Raise an error if nothing answers that speaks as Dask does: a client would wait for its first words for ever."""
    from distributed.comm import connect  # noqa: PLC0415 - Dask is an extra
    from distributed.security import Security  # noqa: PLC0415

    given = Security().get_connection_args("client")
    try:
        comm = await asyncio.wait_for(connect(address, timeout=_ANSWER_S, **given), _ANSWER_S)
        await comm.close()
    except TimeoutError:
        raise TimeoutError(f"nothing in {_ANSWER_S:g} s") from None
    except Exception as error:  # whatever its decoders raise of what is not Dask's
        raise OSError(str(error) or type(error).__name__) from None


@contextmanager
def _local(workers: int | None) -> Iterator[Any]:
    """Yield a cluster of processes here; an exception, such as an interrupt, ends them whatever they are about."""
    from distributed import LocalCluster  # noqa: PLC0415 - an extra

    count = workers or cores()
    made = LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None, scheduler_kwargs=NO_DASHBOARD)
    with made:
        try:
            yield made
        except BaseException:
            for nanny in made.workers.values():
                nanny.auto_restart = False
                with suppress(ProcessLookupError, TypeError):  # it has ended, or not begun
                    os.kill(nanny.pid, signal.SIGKILL)
            raise


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
