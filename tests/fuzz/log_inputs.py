"""Checkpoint logs and measured rows, changed; those of a search with checksums that hold, so that they are read."""

import json
import tempfile
import zlib
from functools import cache
from pathlib import Path

from judge import Case
from mutations import Grammar, Pairs, as_json, file_of, other_bytes, tree
from seeds import SMALL, lines_of, only_file, rows_of

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.study.search.checkpoint import FILE, PlanLog
from scaleout.study.search.request import request_of
from scaleout.study.search.search import search
from scaleout.validation.measure import experiments
from scaleout.validation.measure.checkpoint import MeasurementLog, read
from scaleout.validation.measured.compare import compare_files

# ---- Checkpoint logs, measured rows


@cache
def _search_seed():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "mine.yaml").write_text(json.dumps(SMALL["transformer"]))
        asked = request_of(
            str(Path(folder, "mine.yaml")), load_topology("h200-node-4"), load_device("h200"),
            memory_bytes=None, changes={}, simulations=None,
        )  # fmt: skip
        with PlanLog(Path(folder), asked) as log:
            search(asked, workers=1, memory=log)
        lines = Path(folder, FILE).read_bytes().splitlines()
    return asked, [json.loads(line) for line in lines]


def signed(row):
    body = as_json(row).encode("utf-8", "surrogatepass")
    return body[:-1] + b', "crc32": "%08x"}\n' % zlib.crc32(body)


@cache
def search_rows():
    rows = [{key: value for key, value in row.items() if key != "crc32"} for row in _search_seed()[1]]
    return Grammar([tree(row) for row in rows])


@cache
def _plans():
    """Rows of plans alone: what a step gave is believed where its checksum holds."""
    return Grammar([row for row in search_rows().seeds if row[0][0] == "plan"])


def search_log(random):
    grammar = search_rows()
    kept = random.sample(grammar.seeds[1:], min(6, len(grammar.seeds) - 1))
    lines = [grammar.seeds[0], *(_plans().mutated(random) if random.random() < 0.4 else row for row in kept)]
    content = b"".join(map(signed, lines))
    return other_bytes(random, content, [content]) if random.random() < 0.2 else content


def read_search_log(_):
    asked = _search_seed()[0]
    with PlanLog(Path(), asked) as log:
        if len(log.estimates) % 8 == 5:
            search(asked, workers=1, memory=log)


def read_measure_log(_):
    for name in ("kernels", "collectives", "steps"):
        log = MeasurementLog(Path(), name)
        log.open({})
        log.remaining(experiments.plan(name, gpus=2, quick=True), experiments.EXPERIMENTS[name].keys)
        log.counts()


def measure_log(random):
    grammar = rows_of("traces/h200*/*.jsonl")
    row = as_json(grammar.mutated(random)).encode("utf-8", "surrogatepass")
    names = ("kernels.jsonl", "collectives.jsonl", "steps.jsonl", "kernels.failed.jsonl")
    files = {random.choice(names): lines_of(random, grammar), ".kernels.0.running": row}
    return Case("measure log", files)


def to_measure(random):
    name = random.choice(("kernels", "collectives", "steps", "host", "contention", "fused"))
    planned = experiments.plan(name, gpus=2, quick=True)[:40]
    grammar = Grammar([tree(json.loads(json.dumps(row))) for row in random.sample(planned, min(3, len(planned)))])
    return Case("rows to measure", {name: lines_of(random, grammar, first="", most=3)})


def read_to_measure(case):
    name = only_file(case).name
    experiments.chosen(experiments.check_rows(name, read(Path(name)), gpus=2), dtypes=[])


def read_measured(case):
    tables = "tables.json" in case.files
    compare_files([Path("tables.json" if tables else "rows.jsonl")], table="a" if tables else None)


ENVIRONMENT = {"gpu": "NVIDIA H200", "gpus": 2}
_MEASURED = "traces/h200*/*.jsonl"
DESCRIBED = {
    "id": "a", "group": "g", "workload": SMALL["transformer"], "changes": {"layers": 1}, "topology": "h200-node-4",
    "device": "h200", "schedule": "overlap", "host": "none", "network": "link", "clocks": "sustained", "source": "x",
    "measured": "812 ms",
}  # fmt: skip
"""A row that holds its workload."""


def measured_files(random):
    if random.random() < 0.2:
        tables = {"tables": [{"id": "a", "rows": [DESCRIBED]}, {"id": "b", "rows": [{"us": 1}]}]}
        return {"tables.json": file_of(random, Grammar([tree(tables)]), as_json)}
    row = random.choice((*rows_of(_MEASURED).seeds, tree(DESCRIBED)))
    few = {"layers": 2, "seq": 128, "workload": tree(SMALL["transformer"])}
    small = Pairs([key, few.get(key, value)] for key, value in row)
    files = {
        "rows.jsonl": lines_of(random, Grammar([small]), most=2),
        "environment.json": as_json(tree(ENVIRONMENT)).encode(),
    }
    if random.random() < 0.2:
        files["environment.json"] = file_of(random, Grammar([tree(ENVIRONMENT | {"topology": "../x.yaml"})]), as_json)
    return files
