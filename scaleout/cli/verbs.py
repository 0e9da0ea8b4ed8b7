"""The verbs of the command line, one file a verb.

What a verb needs is imported when it runs, so that `scaleout --help` answers at once.
"""

import atexit
import errno
import gc
import io
import os
import sys
import warnings
from io import StringIO

from scaleout.config.collector import SELDOM

gc.set_threshold(*SELDOM)  # before click is imported, which makes many objects
import click  # noqa: E402

from scaleout.cli.lazy import LazyGroup  # noqa: E402

if "_SCALEOUT_COMPLETE" in os.environ:
    from scaleout.cli import completion  # noqa: F401 - how bash completes

VERBS = {
    "run": ("run:run", "Simulate a step of WORKLOAD, and print where the time goes."),
    "study": ("study:study", "Run jobs that differ in a few keys, as a file says, to one table and report."),
    "search": ("search:search", "Find the fastest parallelisation plans that fit the memory."),
    "view": ("view:view", "Open an output in the browser: timeline, tables, the network with its loads, and what-ifs."),
    "goodput": ("goodput:goodput", "Say how long training WORKLOAD takes, and what is lost on the way."),
    "collective": ("collective:collective", "Print the time and bandwidths of a collective on a topology."),
    "diff": ("diff:diff", "Compare two results or recordings: what takes longer in B than in A."),
    "buckets": ("buckets:buckets", "Find the best size of DDP's gradient buckets for WORKLOAD."),
    "operator": ("operator:operator", "Simulate a fused compute + collective kernel by work-group."),
    "trace": ("trace:trace", "Write WORKLOAD as Chakra execution traces."),
    "import": ("importing:import_from", "Read jobs and models of other tools."),
    "astra": ("astra:astra", "Simulate ASTRA-sim's own inputs as ASTRA-sim 2.0 does."),
    "list": ("list:list_names", "List the names that other verbs take, with what each is; by default of all kinds."),
    "show": (
        "show:show",
        "Describe a workload, topology, link type, device, study, Chakra trace (.et, or a directory) or plan (FILE#1).",
    ),
    "validate": ("validate:validate", "Predict measured runs, and print the errors."),
    "measure": ("measure:measure", "Measure kernels, collectives and steps on this machine's GPUs."),
    "reproduce": ("reproduce:reproduce", "Simulate the experiments of four papers, and compare."),
    "track": ("track:track", "Simulate T3's track-and-trigger of a GEMM and its collective."),
    "strategies": ("strategies:strategies", "Compare strategies of training frameworks on one WORKLOAD."),
}
"""Verb to its file under `scaleout.cli` with the command in it, and the first line of that command's help."""
_LIMITS = {errno.EMFILE: "`ulimit -n`", errno.ENFILE: "the system's limit", errno.EAGAIN: "`ulimit -u`"}
"""What the system refuses to a process that has all that it may have, and where it is allowed more."""


@click.group(cls=LazyGroup, table=VERBS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="scaleout")
def scaleout() -> None:
    """Predict how long a training or inference step takes on a cluster, where the time goes, and what would change it.

    Start with: scaleout run dlrm-128
    """


def run_verb() -> None:
    """Run the verb that the process's arguments name, and turn the user's errors into one message and exit code 2.

    Raises
    ------
    KeyboardInterrupt, MemoryError, OSError
        Where the process is interrupted, or there is no memory left; `scaleout.cli.main` says so.
    """
    from scaleout.cli import wants_memory
    from scaleout.cli.printing import say
    from scaleout.errors import ScaleoutError

    _open_streams()
    warnings.showwarning = _say  # what users are told of old names, as one line
    os.environ["MPLBACKEND"] = "agg"  # pictures are files, whatever a notebook that started this process shows
    for name in [each for each in os.environ if each.startswith("NUMBA_") and each != "NUMBA_CACHE_DIR"]:
        del os.environ[name]  # set for another program; some values end numba as it is imported
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # to look for any would read all that is installed
    atexit.register(gc.freeze)  # as the process ends, nothing that is left needs to be looked at
    try:
        scaleout.main(prog_name="scaleout", standalone_mode=False)
        sys.stdout.flush()
    except ScaleoutError as error:
        say(f"error: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        words = StringIO()
        if isinstance(error, click.NoSuchOption):
            from scaleout.cli.hints import with_hint

            error = with_hint(error)
        error.show(words)
        say(ScaleoutError(words.getvalue().rstrip()), err=True)
        sys.exit(error.exit_code)
    except click.Abort as error:  # what click makes of an interrupt
        raise KeyboardInterrupt(*getattr(error.__cause__, "args", ())) from None
    except (BrokenPipeError, SystemExit):  # click makes the second of the first: the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor may the interpreter's last flush fail
        sys.exit(0)
    except OSError as error:
        if wants_memory(error):
            raise
        what = f"{error.filename}: cannot be read or written" if error.filename else "cannot write the output"
        if error.errno == errno.ENOENT and not error.filename:  # what the system says of its name
            what = "the folder that this process is in has been removed; go to another"
        if error.errno in _LIMITS:
            what = f"this process may have no more files, pipes or processes; raise {_LIMITS[error.errno]}"
        say(f"error: {ScaleoutError(f'{what} ({error.strerror or error})')}", err=True)
        sys.exit(2)


def _open_streams() -> None:
    """See that there is somewhere to print to, and that no name is beyond what a terminal can show."""
    for name in ("stdin", "stdout", "stderr"):  # in this order, so that a closed one gets its own number back
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _say(message: Warning | str, *_: object, **__: object) -> None:
    from scaleout.cli.printing import say

    say(f"warning: {message}", err=True)
