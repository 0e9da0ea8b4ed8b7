"""Check a refactor: record every number that scaleout computes at one commit, and compare it with another commit.

    python tests/benchmarks/refactor.py against COMMIT          # records COMMIT and this checkout, and compares
    python tests/benchmarks/refactor.py record BEFORE.json --repo OLD_CHECKOUT
    python tests/benchmarks/refactor.py record AFTER.json --commands BEFORE.json
    python tests/benchmarks/refactor.py compare BEFORE.json AFTER.json
    python tests/benchmarks/refactor.py between PYTHON PYTHON...  # this checkout under interpreters, each to the first

A recording maps each command line to what it printed (JSON, parsed, where the verb has `--json`; lines of text
otherwise), the tables and pages that it wrote under `--output`, or its message if it failed. Numbers are kept as `json`
prints them, so equal means equal to the last bit; of a list of more than 100 values only the hash is kept.

The commands are those of README.md and docs/**/*.md (blocks of ```sh), the figure scripts that write tables, every
shipped file shown and run, the jobs of the benchmarks, and, from the folder `shared` beside the repository's main
checkout (or --shared), measured rows, published tables and ASTRA-sim's recorded inputs. `--commands` runs those of an
earlier recording, so that what has left the README is still run; `--only TEXT`, repeatable, those that contain TEXT.
Left out, as they differ between two runs of one commit: figures/ranks.py, growth.py, benchmarks' times, the journal of
a search and UNSTEADY keys; and pictures, timelines and written traces. `compare` exits with 1 if anything differs.
"""

import argparse
import contextlib
import hashlib
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RENAMED: dict[str, str | None] = {
    "model_chunks": "virtual_stages",
    "temporaries": "transient_memory",
    "copies_at_end": "replicas_at_end",
    "with the products next to it": "with the GEMMs next to it",
    "products and the collectives next to them": "GEMMs and the collectives next to them",
    "put off to the end of backward": "deferred to the end of backward",
    "product_s": "gemm_s",
    "product_reads": "gemm_reads",
    "product_writes": "gemm_writes",
    "fused_product": "fused_gemm_slowdown",
    "the same product: 1.23 J": "the same GEMM: 1.23 J",
    "the Triton product of the baselines": "the Triton GEMM of the baselines",
    "three fused kernels over their own product alone": "three fused kernels over their own GEMM isolated",
    "the Triton tutorial's product over": "the Triton tutorial's GEMM over",
    "work_groups.product": "work_groups.gemm_slowdown",
    "generic Triton product": "generic Triton GEMM",
    "fusing costs the product": "fusing costs the GEMM",
    "put off into the bubble": "deferred into the bubble",
    "verdict": "explanation",
    "longer than the computation beside it": "longer than the concurrent kernels",
    "nothing independent beside it": "no independent kernel",
    "hidden_s": "overlapped_s",
    "least_s": "lower_bound_s",
    "gradients reduced over replicas beside backward": "gradients reduced over replicas during backward",
    "gradients of weights put off behind those of activations": "weight gradients deferred behind input gradients",
    "and cut into even chunks with their products": "and partitioned evenly with their GEMMs",
    "of a model chunk before the next chunk's": "of a virtual stage before the next stage's",
    "wire_bound_of_64MiB_s": "link_bound_of_64MiB_s",
    "data_intra": None,
    "data_inter": None,
}
"""Names that changed on purpose since BEFORE: old to new, as keys and as words of text; a key with None is gone."""

RENAMED_KEYS = {"products": "linear_dtype", "product": "gemm_slowdown", "verdict.hidden": "overlap"}
"""Keys alone that changed on purpose, where the old one is a word of texts as well, or "parent.key"."""

RENAMED_VALUES = {("context_exchange", "all_to_all"): "ulysses"}
"""Values of one key that changed on purpose."""

ADDED: set[str] = {"axis", "data", "framework", "framework_keys"}
"""Keys that AFTER has on purpose and BEFORE had not."""

REWORDED: dict[str, str] = {}
"""Words of command lines that changed on purpose: `--commands` runs the new ones and keeps the old line as the key."""

UNSTEADY = {"bounded", "evaluated", "too_large"}
"""Keys that differ between runs of one commit: what a search evaluates hangs on which worker is first."""

FIGURES = ("aluminum", "centauri", "centauri_pods", "fidelity", "fused_fig15", "fused_operators", "nccl", "pipelines")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SCHEDULES = (
    *("baseline", "overlap", "concurrent", "blocking-tp", "fused", "fused-oblivious", "track-and-trigger", "async-tp"),
    *("centauri", "centauri:model", "out-of-order", "coconet", "overlap+fused"),
)
PIPELINES = ("gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "dualpipe", "dualpipe_v")
SCHEDULED = (
    "llama-3-8b --set tensor_parallel=8 --set data_parallel=16 --topology dgx-h200-16",
    *("mixtral-8x7b", "dlrm-128", "resnet-50"),
    "llama-big --topology a100-cluster-a-6 --set layers=6 --set zero=3 --set data_parallel=48",
    "llama-big --topology a100-cluster-a-6 --set tensor_parallel=4 --set pipeline_parallel=3 --set data_parallel=4 "
    "--set layers=30 --set batch_per_replica=6 --set microbatch=1 --set pipeline_schedule=interleaved_1f1b",
)
BATCHES = ("scaleout astra", "scaleout show", "scaleout collective")  # short: up to BATCH of them share a process
TEXT_ONLY = ("trace",)  # verbs without `--json`
BATCH, LONG_LIST = 60, 100


def checkout_commands(repo: Path) -> Iterator[str]:
    """Yield what the pages say, the figures' tables, and every shipped file shown and run, under schedules too."""
    for page in (repo / "README.md", *sorted((repo / "docs").rglob("*.md"))):
        for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            yield from re.findall(r"(?:^|/)(scaleout .*)$", block.replace("\\\n", " "), re.MULTILINE)
    yield from (f"python figures/{name}.py --output {name}" for name in FIGURES)
    yield "scaleout reproduce --output reproductions"
    folders = ("workloads", "topologies", "traces")
    workloads, topologies, devices = (sorted(file.stem for file in (repo / name).glob("*.yaml")) for name in folders)
    yield from (f"scaleout show {name}" for name in (*workloads, *topologies, *devices))
    yield from (f"scaleout run {name} --schedule baseline" for name in workloads)
    yield from (f"scaleout run {job} --schedule {schedule}" for job in SCHEDULED for schedule in SCHEDULES)
    yield from (f"scaleout run gpt-3-1024 --schedule overlap --set pipeline_schedule={name}" for name in PIPELINES)
    for name in sorted({*topologies} - {"dragonfly-1056", "fat-tree-131072", "torus-64x64x32"}):  # those take long
        yield from (f"scaleout collective {kind} --bytes 64MiB --topology {name}" for kind in COLLECTIVES)
    for machine in ("mi210 --topology mi210-pair", "mi210 --topology mi210-node", "h200 --topology h200-node-4"):
        yield f"scaleout operator embedding_all_to_all --set batch=2048 --set tables=256 --device {machine}"


def shared_commands(shared: Path, unpacked: Path) -> Iterator[str]:
    """Yield what reads the rows beside the repository: measured, published, and ASTRA-sim's inputs."""
    for file in sorted((shared / "measurements").rglob("*.jsonl")):
        yield f"scaleout validate ../shared/{file.relative_to(shared)}"
    tables, reference = shared / "validation" / "tables.json", shared / "reference" / "astra-sim" / "reference.json"
    for table in json.loads(tables.read_bytes())["tables"] if tables.exists() else ():
        yield f"scaleout validate ../shared/validation/tables.json --table {table['id']}"
    rows = json.loads(reference.read_bytes()) if reference.exists() else {}
    for row in (row for category in ("collectives", "graphs", "edge_cases") for row in rows.get(category, ())):
        case, groups = f"../astra-sim/cases/{row['case']}", unpacked / "cases" / row["case"] / "comm_group.json"
        line = f"scaleout astra --workload-configuration=../astra-sim/{row['workload_prefix']} "
        line += f"--system-configuration={case}/system.json --network-configuration={case}/network.yml"
        line += f" --comm-group-configuration={case}/comm_group.json" if groups.exists() else ""
        yield " ".join([line, f"--backend={row['backend']}", *row.get("extra_flags", ())])


def with_json(lines: Iterable[str]) -> list[str]:
    """Return commands, each once, with `--json` where the verb has it."""
    found: dict[str, None] = {}
    for line in lines:
        words = line.split()
        plain = words[0] == "python" or words[1] in TEXT_ONLY or "--json" in words
        found[" ".join(words if plain else [*words, "--json"])] = None
    return list(found)


def option(line: str, name: str) -> str | None:
    words = line.split()
    return words[words.index(name) + 1] if name in words else None


def grouped(lines: list[str]) -> list[list[str]]:
    """Return what shares a process: those that write to or read from one folder, and batches of short ones."""
    groups: dict[object, list[str]] = {}
    for number, line in enumerate(lines):
        folder = option(line, "--trace") or option(line, "--output")
        key = (line.split()[1], number // BATCH) if line.startswith(BATCHES) and not folder else folder or line
        groups.setdefault(key, []).append(line)
    return list(groups.values())


def run_lines(lines: list[str], repo: Path) -> dict[str, Any]:
    """Run commands one after the other in this process, here; return what each printed and wrote."""
    import scaleout
    from scaleout.cli import main as command_line

    assert Path(scaleout.__file__).is_relative_to(repo), f"{scaleout.__file__} is not of {repo}"
    found: dict[str, Any] = {}
    for line in lines:
        words = [REWORDED.get(word, word) for word in shlex.split(line)]
        output, error, code = io.StringIO(), io.StringIO(), 0
        if words[0] == "python":
            done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
            code, _, _ = done.returncode, output.write(done.stdout), error.write(done.stderr)
        else:
            sys.argv = words
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
                try:
                    command_line()
                except SystemExit as stop:
                    code = int(stop.code or 0)
                except Exception as fault:  # a bug: recorded, and the others still run
                    code, _ = 1, error.write(f"{type(fault).__name__}: {fault}")
        found[line] = {"printed": parsed(output.getvalue()), "written": read_folder(option(line, "--output"))}
        found[line] |= {"exit": code, "message": error.getvalue().splitlines()} if code else {}
    return found


def parsed(text: str) -> Any:
    """Return JSON as values, anything else as lines."""
    try:
        return shortened(json.loads(text))
    except json.JSONDecodeError:
        return [" ".join(line.split()) for line in text.splitlines()]


def shortened(value: Any) -> Any:
    """Replace long lists of plain values by their hash."""
    if isinstance(value, dict):
        return {key: shortened(each) for key, each in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > LONG_LIST and not any(isinstance(each, dict | list) for each in value):
        return f"{len(value)} values, sha256 {hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()}"
    return [shortened(each) for each in value]


def read_folder(name: str | None) -> dict[str, Any]:
    """Return the tables and pages in a folder; of Parquet the columns."""
    found: dict[str, Any] = {}
    for file in sorted(Path(name).rglob("*")) if name else ():
        if file.suffix in {".json", ".csv", ".md"} and "timeline" not in file.name:
            found[str(file)] = parsed(file.read_text(encoding="utf-8"))
        elif file.suffix == ".parquet":
            import pandas as pd

            table = pd.read_parquet(file)
            found[str(file)] = {str(column): shortened(table[column].tolist()) for column in table}
    return found


def record(out: Path, options: argparse.Namespace, *, repo: Path, commands: Path | None = None) -> None:
    """Run all commands of a checkout, or those of an earlier recording, and write what they gave."""
    find = ["git", "-C", str(repo), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    shared = options.shared or Path(subprocess.check_output(find, text=True)).parents[1] / "shared"
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(options.jobs) as pool:
        work, unpacked = Path(name), Path(name) / "astra-sim"
        (work / "shared").symlink_to(shared.resolve())
        for archive in (shared / "reference" / "astra-sim").glob("*.tar.xz"):
            shutil.unpack_archive(archive, unpacked, filter="data")
        planned = with_json([*checkout_commands(repo), *shared_commands(shared, unpacked)])
        lines = json.loads(commands.read_bytes()) if commands else planned
        lines = [line for line in lines if any(text in line for text in options.only)]
        environment = {**os.environ, "PYTHONPATH": str(repo), "MPLBACKEND": "agg", "COLUMNS": "250"}

        def run(number: int, group: list[str]) -> dict[str, Any]:
            place, begin = work / str(number), time.perf_counter()
            place.mkdir()
            written = {Path(option(line, name) or ".").parts[:1] for line in group for name in ("--output", "--trace")}
            for folder in ("figures", "topologies", "traces", "workloads"):
                if (folder,) in written:  # `study topologies --output topologies` is no change of the checkout
                    shutil.copytree(repo / folder, place / folder)
                else:
                    (place / folder).symlink_to(repo / folder)
            line = [sys.executable, "-P", str(Path(__file__).resolve()), "lines", str(repo)]
            pipes = {"input": json.dumps(group), "stdout": subprocess.PIPE, "text": True}
            done = subprocess.run(line, cwd=place, env=environment, check=True, **pipes)
            print(f"{time.perf_counter() - begin:6.1f} s {len(group):3d} {group[0][:120]}", file=sys.stderr, flush=True)
            return json.loads(done.stdout)

        parts = pool.map(run, itertools.count(), grouped(lines))
        found = {line: value for part in parts for line, value in part.items()}
    out.write_text(json.dumps({line: found[line] for line in lines}, indent=1) + "\n", encoding="utf-8")
    print(f"{out}: {len(lines)} commands")


def renamed(value: Any, parent: str = "") -> Any:
    """Return what BEFORE recorded under a key, in today's names."""
    if isinstance(value, dict):
        return {
            RENAMED_KEYS.get(key) or RENAMED_KEYS.get(f"{parent}.{key}") or renamed(key): (
                RENAMED_VALUES.get((key, str(each))) or renamed(each, key)
            )
            for key, each in value.items()
            if RENAMED.get(key, key) is not None
        }
    if isinstance(value, list):
        return [renamed(each) for each in value]
    if isinstance(value, str):
        for old, new in RENAMED.items():
            value = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new or old, value)
    return value


def differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield every leaf that differs: its path, what it was, what it is."""
    if isinstance(before, dict) and isinstance(after, dict):
        if before.keys() == after.keys() and list(before) != list(after):
            yield f"{path} (order)", list(before), list(after)
        for key in dict.fromkeys([*before, *after]):
            if key not in UNSTEADY and (key in before or key not in ADDED):
                yield from differences(before.get(key, "nothing"), after.get(key, "nothing"), f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from differences(old, new, f"{path}/{index}")
    elif type(before) is not type(after) or repr(before) != repr(after):
        yield path, before, after


def compare(before: Path, after: Path, only: list[str]) -> int:
    """Print every difference, and how many commands differ; return the exit code."""
    old, new = json.loads(before.read_bytes()), json.loads(after.read_bytes())
    lines = [line for line in old if any(text in line for text in only)]
    found = {line: list(differences(renamed(old[line]), new.get(line, "not recorded"))) for line in lines}
    different = {line: leaves for line, leaves in found.items() if leaves}
    for line, leaves in different.items():
        print(line, *(f"  {path}: {json.dumps(was)} -> {json.dumps(now)}" for path, was, now in leaves), sep="\n")
    print(f"{len(different)} of {len(lines)} commands differ, in {sum(map(len, found.values()))} values")
    return int(bool(different))


def against(commit: str, options: argparse.Namespace, repo: Path) -> int:
    """Record a commit in a worktree of its own, and this checkout, and compare them."""
    with tempfile.TemporaryDirectory() as name:
        tree, before, after = (Path(name) / part for part in ("tree", "before.json", "after.json"))
        git = ["git", "-C", str(repo), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            record(before, options, repo=tree)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
        record(after, options, repo=repo, commands=before)
        return compare(before, after, options.only)


def between(pythons: list[str], options: argparse.Namespace) -> int:
    """Record this checkout under several interpreters, with what is installed for each, and compare with the first."""
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / f"{number}.json" for number in range(len(pythons))]
        for python, file in zip(pythons, files, strict=True):
            line = [python, __file__, "record", str(file), f"--jobs={options.jobs}"]
            line += [f"--shared={options.shared}"] if options.shared else []
            subprocess.run([*line, *(f"--only={text}" for text in options.only)], check=True)
        different = 0
        for python, file in zip(pythons[1:], files[1:], strict=True):
            print(f"{pythons[0]} and {python}:")
            different |= compare(files[0], file, options.only)
    return different


def main() -> int:
    here = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("record", "compare", "against", "between", "lines"))
    parser.add_argument("what", nargs="+", help="OUT.json; BEFORE.json AFTER.json; COMMIT; or interpreters")
    parser.add_argument("--repo", type=Path, default=here, help="checkout to record; by default this one")
    parser.add_argument("--commands", type=Path, help="recording whose commands are run")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="only commands with this text")
    parser.add_argument("--jobs", type=int, default=2, help="commands that run at a time")
    parser.add_argument("--shared", type=Path, help="folder of measured rows, published tables, ASTRA-sim's inputs")
    options = parser.parse_args()
    options.only = options.only or [""]
    if options.verb == "between":
        return between(options.what, options)
    if len(options.what) != 1 + (options.verb == "compare"):
        parser.error(f"{options.verb} takes {1 + (options.verb == 'compare')} of what")
    paths = [Path(name).resolve() for name in options.what]
    if options.verb == "compare":
        return compare(*paths, options.only)
    if options.verb == "against":
        return against(options.what[0], options, here)
    if options.verb == "record":
        record(*paths, options, repo=options.repo.resolve(), commands=options.commands)
    else:  # `lines REPO`: a process of `record`, the commands on its standard input
        print(json.dumps(run_lines(json.load(sys.stdin), *paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
