"""The command line where there is no home, no standard output, no room, and no letter but those of ASCII."""

import os
import subprocess
import sys

import pytest

from scaleout.config.library import find

RUN = ("run", "dlrm-128", "--schedule", "baseline")


@pytest.fixture
def command(tmp_path):
    """Run a command line by a shell, in an environment with changes; return its exit code, output and error output."""

    def run(*arguments, shell="{}", **changes):
        program = f"'{sys.executable}' -c 'from scaleout.cli import main; main()'"
        line = shell.format(" ".join((program, *arguments)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **changes}
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line], capture_output=True, env=environment, cwd=tmp_path, check=False
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run


@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{} >&-", 0, ""),
        ("{} <&- >&- 2>&-", 0, ""),
        ("{} --json >&-", 0, ""),
        ("{} | head -n 1", 0, ""),
        ("{} --json | head -n 1", 0, ""),
        ("{} > /dev/full", 2, "error: cannot write the output (No space left on device)\n"),
        ("{} --json > /dev/full", 2, "error: cannot write the output (No space left on device)\n"),
        ("{} --unknown 2>&-", 2, ""),
    ],
)
def test_streams(command, shell, code, said):
    found, _, err = command("show", "dlrm-128", shell=shell)
    assert (found, err) == (code, said)


@pytest.mark.parametrize("home", ["/proc/nonexistent", ""])
def test_no_home(command, tmp_path, home):
    code, out, err = command(*RUN, HOME=home, XDG_CACHE_HOME=home, NUMBA_CACHE_DIR=home)
    assert (code, err.replace("compiling", "")) == (0, err)
    assert "baseline" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("terminal", "written"),
    [({"PYTHONIOENCODING": "ascii"}, False), ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, True)],
)
def test_names_that_a_terminal_has_no_letters_for(command, tmp_path, terminal, written):
    file = tmp_path / "m\u00f6d\u2014\u6a21$\\frac$.yaml"
    file.write_bytes(find("workload", "dlrm-128").read_bytes())
    output = ["--output", "results"] if written else []
    code, out, err = command("run", f"'{file}'", "--schedule", "baseline", *output, **terminal)
    assert code == 0, err
    assert "frac$ on torus-8x16" in out
    if written:
        assert (tmp_path / "results" / "breakdown.png").stat().st_size > 10_000


def test_the_back_end_of_a_notebook_is_not_ours(command, tmp_path):
    """Jupyter's kernels hand theirs to what they start, where it may not be installed."""
    code, _, err = command(*RUN, "--output", "results", MPLBACKEND="module://of_a_notebook")
    assert (code, err) == (0, "")
    assert (tmp_path / "results" / "breakdown.png").exists()
