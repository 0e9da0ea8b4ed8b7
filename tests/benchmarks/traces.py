"""`scaleout run --trace` as a whole process, beside the generated job: CPU seconds and memory. Asserts nothing.

    python tests/benchmarks/traces.py

GPT-3 on 128 GPUs (tensor 8, pipeline 16), written to Chakra in a temporary folder: 1.0 million nodes in 337 MB.
"""

import os
import subprocess
import sys
import tempfile

JOB = ("gpt-3-1024", "--set", "data_parallel=1")
RUN = ("--topology", "dgx-h200-16", "--schedule", "baseline", "--schedule", "overlap", "--json")
REPEATS = 3


def scaleout(*arguments: str) -> tuple[float, float]:
    """CPU seconds and the largest memory [MB] of a process."""
    with subprocess.Popen([sys.executable, "-m", "scaleout.cli", *arguments], stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"scaleout {' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        scaleout("trace", *JOB, "--output", folder)
        for label, arguments in (("traces", ("--trace", folder)), ("generated", JOB)):
            seconds, megabytes = zip(*(scaleout("run", *arguments, *RUN) for _ in range(REPEATS)), strict=True)
            print(f"{label}: {min(seconds):.2f} s, {max(megabytes):.0f} MB")


if __name__ == "__main__":
    main()
