"""The command line where there is no home, no standard output, no room, and no letter but those of ASCII."""

import os
import signal
import subprocess
import sys

import pytest

from scaleout.config.library import find

RUN = ("run", "dlrm-128", "--schedule", "baseline")


@pytest.fixture
def command(tmp_path):
    """Run a command line by a shell, in an environment with changes; return its exit code, output and error output."""

    def run(*arguments, shell="{}", program="-c 'from scaleout.cli import main; main()'", **changes):
        line = shell.format(" ".join((f"'{sys.executable}' {program}", *arguments)))
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
        ("{} --unknown 2> /dev/full", 2, ""),
        ("{} --set layers=x 2> /dev/full", 2, ""),
        ("{} > /dev/full 2> /dev/full", 2, ""),
    ],
)
def test_streams(command, shell, code, said):
    found, _, err = command("show", "dlrm-128", shell=shell)
    assert (found, err) == (code, said)


def test_a_folder_that_has_been_removed(command):
    code, out, err = command("run", "dlrm-128", "--output", "out", shell="mkdir gone; cd gone; rmdir ../gone; {}")
    assert (code, out) == (2, "")
    assert err.startswith("error: the folder that this process is in has been removed; go to another (")


@pytest.mark.parametrize(
    ("limit", "more", "said"),
    [
        ("-v 8000000", "", "reserves 70 GB of addresses, not of memory, and this process may have 8.19 GB"),
        ("-n 32", "", "takes up to 64 open files, and this process may have 32; raise `ulimit -n`"),
        ("-n 12", "--no-report", "may have no more files, pipes or processes; raise `ulimit -n`"),
    ],
)
def test_limits_of_a_process(command, tmp_path, limit, more, said):
    """A study's page is made by an engine that ends the process where it lacks room; its workers take pipes."""
    (tmp_path / "mine.yaml").write_text("title: t\nworkload: dlrm-128\nset: {global_batch: [512, 1024]}\n")
    words = ("study", "mine.yaml", "--output", "out", "--workers", "2", more)
    code, out, err = command(*words, shell=f"ulimit {limit}; {{}}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ")
    assert said in err


@pytest.mark.parametrize("home", ["/proc/nonexistent", ""])
def test_no_home(command, tmp_path, home):
    code, out, err = command(*RUN, HOME=home, XDG_CACHE_HOME=home, NUMBA_CACHE_DIR=home)
    assert (code, err.replace("compiling", "")) == (0, err)
    assert "baseline" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "setting",
    [{"NUMBA_DISABLE_JIT": "1"}, {"NUMBA_DISABLE_JIT": "x"}, {"NUMBA_NUM_THREADS": "0"}, {"NUMBA_OPT": "x"}],
)
def test_settings_of_numba_for_other_programs(command, setting):
    code, out, err = command("run", "gpt-3-1024", "--network", "link", **setting)
    assert code == 0
    assert "baseline" in out
    assert "NUMBA" not in err


def test_pictures_without_a_home(command):
    code, _, err = command(
        *RUN, "--output", "out", HOME="/dev/null", XDG_CACHE_HOME="/dev/null", MPLCONFIGDIR="/dev/null"
    )
    assert code == 0
    assert "matplotlib" not in err


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


@pytest.fixture
def struck(command, tmp_path):
    """Run a command line to which something happens as it imports a module; return as `command` does."""

    def run(*arguments, module, event, shell="{}"):
        hear = ("SIGHUP, signal.SIG_DFL", "SIGINT, signal.default_int_handler")  # which nohup and a shell's & ignore
        heard = "".join(f"signal.signal(signal.{each})\n" for each in hear) if shell == "{}" else ""
        program = (
            f"import os, signal, sys\n{heard}"
            "class Finder:\n"
            "    def find_spec(self, name, path, target=None):\n"
            f"        if name == {module!r}:\n"
            f"            {event}\n"
            "sys.meta_path.insert(0, Finder())\n"
            "from scaleout.cli import main; main()"
        )
        (tmp_path / "struck.py").write_text(program)
        return command(*arguments, program="struck.py", shell=shell)

    return run


MODULES = ["click", "numpy", "matplotlib"]
"""What is imported first; for a simulation; and as the folder for output is being filled."""


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_at_any_moment_leaves_nothing(struck, tmp_path, name, module):
    """Twice, as a terminal that is closed sends it."""
    number = getattr(signal, name)
    times = 1 if name == "SIGINT" else 2
    event = f"for _ in range({times}): os.kill(os.getpid(), {int(number)})"
    code, out, err = struck(*RUN, "--output", "results", module=module, event=event)
    kept = "; nothing is written to results" * (module == "matplotlib")
    assert (code, out, err.strip()) == (128 + number, "", f"interrupted{kept}")
    assert [path.name for path in tmp_path.iterdir()] == ["struck.py"]


def test_an_interrupt_that_python_makes_another_error_of_is_one(command, tmp_path):
    """As Python 3.11 does of what is raised while a class gives its attributes their names, as pydantic's."""
    (tmp_path / "struck.py").write_text(
        "import os, signal\n"
        "import scaleout.cli.verbs as verbs\n"
        "class Attribute:\n"
        "    def __set_name__(self, owner, name):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        for _ in range(10**6): pass\n"
        "verbs.run_verb = lambda: type('Owner', (), {'x': Attribute()})\n"
        "from scaleout.cli import main\n"
        "main()\n"
    )
    assert command(program="-m struck") == (143, "", "interrupted\n")


def test_an_interrupt_of_a_text_that_is_executed_is_one(command, tmp_path):
    """As where a dataclass is made; `python -m` then ends by SIGINT itself, whatever the exit code."""
    program = "import scaleout.cli.verbs as verbs\nverbs.run_verb = lambda: exec('raise KeyboardInterrupt')\n"
    (tmp_path / "struck.py").write_text(program + "from scaleout.cli import main\nmain()\n")
    assert command(program="-m struck") == (130, "", "interrupted\n")


def test_a_signal_that_is_ignored_stays_so(struck):
    event = "os.kill(os.getpid(), signal.SIGHUP)"
    code, out, err = struck("show", "dlrm-128", module="click", event=event, shell="trap '' HUP; {}")
    assert (code, err) == (0, "")
    assert "dlrm-128" in out


@pytest.mark.parametrize("module", [*MODULES, "pyarrow"])
@pytest.mark.parametrize(
    "event",
    [
        "raise MemoryError",
        "raise ImportError('x.so: failed to map segment from shared object')",
        "raise OSError(12, 'Cannot allocate memory')",
    ],
)
def test_no_memory_for_an_import(struck, tmp_path, module, event):
    code, out, err = struck(*RUN, "--output", "results", module=module, event=event)
    assert (code, out) == (2, "")
    assert err == "error: there is not enough memory for this; give smaller sizes or fewer ranks\n"
    assert [path.name for path in tmp_path.iterdir()] == ["struck.py"]


def test_a_library_that_does_not_fit_another(struck, tmp_path):
    """As pyarrow 26 beside NumPy 1.26, which its own requirements allow."""
    event = "raise ImportError('pyarrow requires NumPy 2.0 or newer, found 1.26.4')"
    code, out, err = struck(*RUN, "--output", "results", module="pyarrow", event=event)
    assert (code, out) == (2, "")
    assert err.startswith("error: a library cannot be loaded (pyarrow requires NumPy 2.0 or newer, found 1.26.4);")
    assert [path.name for path in tmp_path.iterdir()] == ["struck.py"]


def test_words_that_click_quotes_are_cut(scaleout):
    code, out, err = scaleout("run", "dlrm-128", "x" * 120_000)
    assert (code, out) == (2, "")
    assert "unexpected extra argument (xxx" in err
    assert len(err) < 3000
