"""Documents, timelines and tables of ours, changed: what `view`, `diff` and `run --plan` read back."""

import contextlib
import io
import json
import os
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pandas as pd
from judge import Case
from mutations import Grammar, as_json, as_yaml, file_of, other_bytes, tree
from seeds import SMALL

from scaleout.api.views import open_output
from scaleout.cli import main
from scaleout.cli.job import NamedJob
from scaleout.cli.plan import read_plan
from scaleout.cluster.topology.what_if import NetworkChanges
from scaleout.report.difference import read_side
from scaleout.report.pages.view import parts_of, timeline_of
from scaleout.study.sweep import shards

_COMMANDS = (
    "run dlrm.yaml --schedule baseline --schedule fused --output run",
    "run transformer.yaml --network link --slow 1=2 --bandwidth all=0.5x",
    "search transformer.yaml --topology h200-node-4 --global-batch 8 --workers 1 --top 2 --schedule overlap",
    "goodput transformer.yaml --tokens 1B --checkpoint 10s",
    "collective all_reduce --topology h200-node-4 --bytes 1KiB,1MiB",
    "collective all_reduce --topology h200-node-4 --bytes 1KiB,1MiB --decide",
    "collective all_reduce --topology sierra-8 --bytes 1MiB --compare",
    "collective all_to_all --topology graph-8 --bytes 1MiB --network link",
    "buckets dlrm.yaml --bytes 1MiB:4MiB",
    "strategies transformer.yaml --strategy ddp --strategy zero-3",
    "operator embedding_all_to_all --set batch=64 --sweep slice_size=1,2",
    "track --set rows=512 --set columns=256 --set depth=128",
    "trace dlrm.yaml --output traces",
    "diff run run",
    "study study.yaml --output study --workers 1 --timelines none --no-report",
)
"""What makes the seeds: 3 s in all."""
_STUDY = {"title": "s", "workload": "dlrm.yaml", "set": {"global_batch": [64, 128]}, "schedule": ["baseline", "fused"]}


class _Seeds(NamedTuple):
    documents: Grammar
    timelines: Grammar
    cases: bytes  # the table of a study
    rows: bytes  # and some of its rows, as they are kept until it is done


@cache
def _seeds():
    here = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for name in ("dlrm", "transformer"):
                Path(f"{name}.yaml").write_text(as_yaml(tree(SMALL[name])))
            Path("study.yaml").write_text(as_yaml(tree(_STUDY)))
            documents = [tree(json.loads(_printed(f"{command} --json"))) for command in _COMMANDS]
            events = json.loads(Path("run/timeline.json").read_text())["traceEvents"]
            cases = Path("study/cases.parquet").read_bytes()
            rows = next(Path("study", shards.FOLDER).glob("*.parquet")).read_bytes()
        finally:
            os.chdir(here)
    timelines = Grammar([tree({"traceEvents": events[:60]}), tree(events[:20])])
    return _Seeds(Grammar(documents), timelines, cases, rows)


def _printed(command):
    """What a command prints."""
    out, argv = io.StringIO(), sys.argv
    sys.argv = ["scaleout", *command.split()]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.suppress(SystemExit),
        ):
            main()
    finally:
        sys.argv = argv
    return out.getvalue()


def planned(random):
    """The summary of a search, changed."""
    searched = _COMMANDS.index(next(command for command in _COMMANDS if command.startswith("search")))
    return file_of(random, Grammar([_seeds().documents.seeds[searched]]), as_json)


def answered():
    """Documents of jobs as a grammar, and a timeline."""
    seeds = _seeds()
    jobs = [seed for seed, command in zip(seeds.documents.seeds, _COMMANDS, strict=True)
            if command.startswith(("run", "search", "collective", "goodput"))]  # fmt: skip
    return Grammar(jobs), as_json(seeds.timelines.seeds[0]).encode()


_OTHERS = ("plan.json", "side.json", "timeline.json", "both", "cases.parquet", "rows.parquet")


def outputs(random):
    """A document, a timeline, a folder of both, or a study's table; the name says who reads it back."""
    seeds = _seeds()
    what = random.choice(("summary.json",) * 3 + _OTHERS)
    if what.endswith("parquet"):
        return Case("output", {what: _table(random, seeds.cases if what == "cases.parquet" else seeds.rows)})
    if what == "timeline.json":
        return Case("output", {"timeline": file_of(random, seeds.timelines, as_json)})
    files = {"summary.json" if what == "both" else what: file_of(random, seeds.documents, as_json)}
    if what == "both":
        files["timeline.json"] = file_of(random, seeds.timelines, as_json)
    return Case("output", files)


def _table(random, content):
    """A study's table with bytes changed, or with columns and values changed."""
    if random.random() < 0.4:
        return other_bytes(random, content)
    frame = pd.read_parquet(io.BytesIO(content))
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        column = random.choice(list(frame.columns))
        what = random.randrange(4)
        if what == 0:
            frame = frame.drop(columns=column)
        elif what == 1:
            frame = frame.rename(columns={column: random.choice((*frame.columns, "x", "\x1b[31m"))})
        elif what == 2:
            frame[column] = random.choice(
                ("x", "\x1b[31m", None, -1, 1e300, float("nan"), float("inf"), True, 2**63 - 1)
            )
        else:
            frame = frame.iloc[: random.randint(0, len(frame))]
        frame = frame.loc[:, ~frame.columns.duplicated()]
        if frame.columns.empty:
            break
    out = io.BytesIO()
    frame.to_parquet(out)
    return out.getvalue()


def read_output(case):
    """Open what there is as `view` does and take all that its page shows, or read it as `diff` and ``--plan`` do."""
    (name, *_) = case.files
    if name == "plan.json":
        read_plan("plan.json#1", NamedJob(None, None, None, {}, NetworkChanges()), {})
        return
    if name == "side.json":
        read_side(Path(name), None, timeline=False)
        return
    if name == "rows.parquet":
        Path(shards.FOLDER).mkdir()
        Path(name).rename(Path(shards.FOLDER, name))
        shards.known_keys(Path())
        shards.read_shards(Path())
        return
    output = open_output(Path() if "." in name else Path(name))
    parts_of(output.page)
    for job in range(min(2, len(output.jobs))):
        output.controls(job)
    slices = output.page.slices
    if slices is not None:
        for window in (None, (0.0, slices.end / 3), (slices.end / 3, slices.end / 2)):
            json.dumps(timeline_of(slices, window), allow_nan=False)
