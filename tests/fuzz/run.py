"""Fuzz at length: `python tests/fuzz/run.py --minutes 60 --workers 2` prints a table, and keeps every failure.

Input number N of a seed is the same one every time. A failure is kept as a file; `--again FILE` runs it again.
Ctrl-C ends it after the inputs at hand, with the table of what was judged.
"""

import argparse
import base64
import json
import multiprocessing
import resource
import signal
import sys
import tempfile
import time
import traceback
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

from inputs import KINDS, case_of, kind_of  # noqa: E402
from judge import Case, judge  # noqa: E402

import scaleout  # noqa: E402

_MEMORY_BYTES = 4 * 10**9
_STUCK_S = 600.0
"""By the clock, for an input whose time of a core did not end it: a busy machine gives little of it."""
_PER_PROCESS = 50_000
"""Inputs of a process: the next ones go to a new one, as memory of hundreds of thousands of inputs is in pieces."""
_OUTCOMES = ("accepted", "refused", "cut", "failed")


def _save(folder, case, number, verdict):
    """Keep an input and what became of it, as JSON that `--again` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: base64.b64encode(zlib.compress(content)).decode() for name, content in case.files.items()}
    values = {"kind": case.kind, "number": number, "arguments": case.arguments, "files": files, **verdict._asdict()}
    path = folder / f"{verdict.outcome}-{case.kind.replace(' ', '-')}-{number}.json"
    path.write_text(json.dumps(values, indent=1))
    return path


def _read(path):
    values = json.loads(path.read_text())
    files = {name: zlib.decompress(base64.b64decode(content)) for name, content in values["files"].items()}
    return Case(values["kind"], files, tuple(values["arguments"]))


def _where(why):
    """Return what tells failures apart: of a traceback its last place in the package, and the exception."""
    lines = why.strip().splitlines()
    places = [line.strip() for line in lines if "/scaleout/" in line and line.strip().startswith("File ")]
    return f"{places[-1] if places else ''} {lines[0 if not places else -1][:120]}"


def _work(numbers, counts, at, *, seed, kind, until, save):
    """Judge inputs until the time is up; runs in a process. `counts` is a queue of what became of each kind."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    found, took_s, places = Counter(), Counter(), Counter()
    cuts = 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number in numbers:
                if time.monotonic() >= until.value:
                    break
                at.value = number
                name = kind or kind_of(number)
                since = time.process_time()
                case = case_of(seed, number, name)
                verdict = judge(case, KINDS[name].read, Path(folder, "case"))
                took_s[name] += time.process_time() - since
                found[name, verdict.outcome] += 1
                cuts += verdict.outcome == "cut"
                if verdict.outcome == "failed":
                    places[where := _where(verdict.why)] += 1
                    if places[where] <= 3:
                        path = _save(save, case, number, verdict)
                        print(f"{path}: {where}", flush=True)
                elif verdict.outcome == "cut" and cuts <= 20:
                    _save(save, case, number, verdict)
        except BaseException:
            found["the fuzzer", "failed"] += 1
            print(f"input {at.value}: {traceback.format_exc()}", flush=True)
    counts.put((found, took_s, places))


class _Running(NamedTuple):
    process: multiprocessing.Process
    at: object  # the number of the input that it judges
    number: int  # which it judged when last seen
    since: float  # seconds on the clock


def fuzz(numbers, *, seed=0, kind=None, minutes=float("inf"), workers=1, save=Path("fuzz-failures")):
    """Judge inputs in worker processes; return how often each kind had each outcome, CPU time, and where it failed."""
    context = multiprocessing.get_context("fork")
    counts = context.SimpleQueue()
    until = context.Value("d", time.monotonic() + 60 * minutes, lock=False)

    def stop(*_):
        until.value = 0.0

    for number in (signal.SIGINT, signal.SIGTERM):  # which a terminal sends to the workers as well, that inherit this
        signal.signal(number, stop)
    total, took_s, places = Counter(), Counter(), Counter()
    chosen = {"seed": seed, "kind": kind, "until": until, "save": save}
    left = [numbers[worker::workers] for worker in range(workers)]
    running = {}
    while running or (any(left) and time.monotonic() < until.value):
        for worker in range(workers):
            if worker not in running and left[worker] and time.monotonic() < until.value:
                given, left[worker] = left[worker][:_PER_PROCESS], left[worker][_PER_PROCESS:]
                at = context.Value("q", -1)
                process = context.Process(target=_work, args=(given, counts, at), kwargs=chosen)
                process.start()
                running[worker] = _Running(process, at, -1, time.monotonic())
        while not counts.empty():
            for sums, found in zip((total, took_s, places), counts.get(), strict=True):
                sums.update(found)
        for worker, (process, at, number, since) in list(running.items()):
            if at.value != number:
                running[worker] = _Running(process, at, at.value, time.monotonic())
            stuck = process.is_alive() and time.monotonic() - since > _STUCK_S
            if stuck or process.exitcode is not None:
                process.kill()
                process.join()
                del running[worker]
            if stuck or process.exitcode:
                total[kind or kind_of(at.value), "failed"] += 1
                places[f"input {at.value} ends or blocks its process ({process.exitcode})"] += 1
        time.sleep(0.2)
    while not counts.empty():
        for sums, found in zip((total, took_s, places), counts.get(), strict=True):
            sums.update(found)
    return total, took_s, places


def _table(total, took_s):
    rows = [("kind", "inputs", *_OUTCOMES, "a CPU second")]
    for kind in (*KINDS, "the fuzzer"):
        found = [total[kind, outcome] for outcome in _OUTCOMES]
        if sum(found):
            rows.append((kind, str(sum(found)), *map(str, found), f"{sum(found) / (took_s[kind] or 1):.0f}"))
    sums = [sum(total[kind, outcome] for kind in (*KINDS, "the fuzzer")) for outcome in _OUTCOMES]
    rows.append(("all", str(sum(sums)), *map(str, sums), f"{sum(sums) / (sum(took_s.values()) or 1):.0f}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for kind, *cells in rows:
        print(kind.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--inputs", type=int, default=10**12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="Number of the first input.")
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--save", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--again", type=Path, metavar="FILE", help="Run an input that was kept once more.")
    given = parser.parse_args()
    if given.again:
        case = _read(given.again)
        with tempfile.TemporaryDirectory() as folder:
            verdict = judge(case, KINDS[case.kind].read, Path(folder, "case"))
        print(case.arguments or case.kind, verdict.outcome, verdict.why, sep="\n")
        return verdict.outcome == "failed"
    scaleout.run("gpt-3-1024", network="link")  # compiles the core; the signal that cuts an input would end in LLVM
    numbers = range(given.first, given.first + given.inputs)
    total, took_s, places = fuzz(
        numbers, seed=given.seed, kind=given.kind, minutes=given.minutes, workers=given.workers, save=given.save
    )
    _table(total, took_s)
    for place, count in places.most_common():
        print(f"{count:6d}  {place}")
    return any(total[kind, "failed"] for kind in (*KINDS, "the fuzzer"))


if __name__ == "__main__":
    sys.exit(main())
