"""One input to what became of it: accepted, refused, cut short as a long valid job, or failed, and why.

What must hold of every input: no exception but those of the program's error tree; a refusal takes at most 2 s of a
core and 500 MB, is one message that a terminal can show and that names its file, and leaves standard output empty; the
exit code is 0 or 2 (1 for what click says so of); an answer is JSON with finite numbers and positive times. A reader
has 2 s for whatever it takes as well; a command that is still at work after some seconds is a long valid job, and is
cut short.
"""

import contextlib
import io
import json
import math
import os
import resource
import shutil
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

from scaleout.cli import main
from scaleout.errors import ScaleoutError, printable

REFUSAL_S = 2.0
REFUSAL_BYTES = 500e6
CUT_S = 8.0
"""CPU time of a command after which it counts as a long valid job."""
_LONGEST_MESSAGE = 100_000


class Case(NamedTuple):
    """One input: files by name, and the command line that reads them, or the reader of its kind where there is none."""

    kind: str
    files: dict[str, bytes]
    arguments: tuple[str, ...] = ()


class Verdict(NamedTuple):
    """What became of an input: ``accepted``, ``refused``, ``cut`` or ``failed``; and why it failed."""

    outcome: str
    why: str = ""


class _Cut(BaseException):
    """Time is up; no handler of the program takes it for an error."""


def judge(case, read, folder):
    """Run a case in a folder, which is made and removed; `read` takes the case where it has no command line."""
    here = Path.cwd()
    folder.mkdir()
    try:
        os.chdir(folder)
        for name, content in case.files.items():
            Path(name).write_bytes(content)
        verdict = _judged(case, read)
        if verdict.why.startswith(("takes", "needs")):  # the first time may have compiled something, or filled a cache
            verdict = _judged(case, read)
        return verdict
    finally:
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)


def _judged(case, read):
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what is held now
    peak_bytes = _peak_bytes()
    since = time.process_time()
    answer = _answer_of(case, read)
    took_s = time.process_time() - since
    grew_bytes = _peak_bytes() - peak_bytes
    works = case.arguments or case.kind in _SIMULATED
    if answer.outcome == "refused" or (answer.outcome == "accepted" and not works):
        if took_s > REFUSAL_S:
            return Verdict("failed", f"takes {took_s:.1f} s")
        if grew_bytes > REFUSAL_BYTES:
            return Verdict("failed", f"needs {grew_bytes / 1e6:.0f} MB")
    return answer


def _peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_SIMULATED = ("measured rows",)
"""Kinds of which each input is also simulated when it is read: a table of 1,000 rows takes 8 s, and is no nonsense."""

_NAMING = (
    "workload", "topology", "fabric", "device", "library", "policy", "study", "kernel rows", "model config",
    "model arguments", "output", "measured rows", "rows to measure",
)  # fmt: skip
"""Kinds of which one file is read, which each refusal names; others contradict one another, or are options."""


def _answer_of(case, read):
    def cut(*_):
        raise _Cut

    before = signal.signal(signal.SIGPROF, cut)
    signal.setitimer(signal.ITIMER_PROF, CUT_S if case.arguments else 2 * REFUSAL_S)
    try:
        with warnings.catch_warnings():
            warnings.resetwarnings()
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("error", RuntimeWarning)  # numpy's: a number was infinite, or nothing was divided
            if case.arguments:
                return _of_command(case.arguments)
            warnings.simplefilter("ignore")
            return _of_reader(case, read)
    except _Cut:
        works = case.arguments or case.kind in _SIMULATED
        return Verdict("cut") if works else Verdict("failed", f"takes more than {2 * REFUSAL_S} s")
    except BaseException:  # whatever it is, it is no message
        return Verdict("failed", traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _of_reader(case, read):
    try:
        read(case)
    except ScaleoutError as error:
        if case.kind in _NAMING and not any(Path(name).stem in str(error) for name in case.files):
            return Verdict("failed", f"a message that names no file: {error}")
        return _fault_of_message(f"error: {error}") or Verdict("refused")
    return Verdict("accepted")


def _of_command(arguments):
    out, err = io.StringIO(), io.StringIO()
    argv, showwarning = sys.argv, warnings.showwarning
    sys.argv = ["scaleout", *arguments]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as stop:
                code = stop.code or 0
    finally:
        sys.argv, warnings.showwarning = argv, showwarning
    out, err = out.getvalue(), err.getvalue()
    asks_help = {"-h", "--help"} & set(arguments) and out.startswith("Usage: ")
    fault = _fault_of_streams(code, out, err, as_json="--json" in arguments and not asks_help)
    if fault:
        return Verdict("failed", f"{fault}\nexit code {code}\nstdout: {out[:2000]}\nstderr: {err[:2000]}")
    if code and "there is not enough memory for this" in err:
        return Verdict("cut")
    return Verdict("refused" if code else "accepted")


def _fault_of_message(message):
    if printable(message) != message:
        return Verdict("failed", f"a message with controls: {message[:2000]!r}")
    if len(message) > _LONGEST_MESSAGE:
        return Verdict("failed", f"a message of {len(message)} characters: {message[:2000]!r}")
    return None


def _fault_of_streams(code, out, err, *, as_json):
    said = [line for line in err.splitlines() if not line.startswith(("warning: ", "note: "))]
    errors = [line for line in said if line.startswith(("error: ", "Error: "))]
    partial = code and errors == said[:1] and ("failures" in out or '"failed_for"' in out or not as_json)
    faults = {
        "an exit code of nothing that is known": code not in (0, 1, 2),
        "controls in what is printed": printable(out) != out or printable(err) != err,
        "a message that is too long": len(err) > _LONGEST_MESSAGE,
        "an answer with something on standard error": not code and said,
        "a refusal that does not begin with its message": code and not err.startswith(_BEGINS),
        "a refusal of not one message": code and len(errors) != 1,
        "something printed before a refusal": code and out and not partial,
    }
    found = next((fault for fault, is_so in faults.items() if is_so), "")
    return found or (_fault_of_answer(out) if as_json and out else "")


_BEGINS = ("error: ", "Usage: ", "warning: ", "note: ")
_TIMES = ("makespan_s", "time_s", "step_s", "time_ns")


def _fault_of_answer(out):
    """Say what is wrong with JSON that was printed, one object or one a line."""
    try:
        values = [json.loads(out, parse_constant=_no_constant)]
    except ValueError:
        try:
            values = [json.loads(line, parse_constant=_no_constant) for line in out.splitlines()]
        except ValueError as error:
            return f"no JSON: {error}"
    while values:
        value = values.pop()
        if isinstance(value, dict):
            for key, one in value.items():
                times = one.values() if isinstance(one, dict) else [one]  # of several back ends
                if key in _TIMES and not all(_is_time(each, above=key == "makespan_s") for each in times):
                    return f"{key} is {one}"
                values.append(one)
        elif isinstance(value, list):
            values += value
        elif isinstance(value, float) and not math.isfinite(value):
            return f"a number that is {value}"
    return ""


def _is_time(value, *, above):
    return isinstance(value, int | float) and math.isfinite(value) and (value > 0 if above else value >= 0)


def _no_constant(name):
    raise ValueError(name)
