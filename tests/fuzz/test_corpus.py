"""Inputs that once brought the software down, or kept it busy: each is refused in one message, soon and in little room.

Others stand where they belong: values and files of nonsense (an alias bomb, 40,000 brackets, dates, tags, long numbers,
words and zeros that YAML 1.1 reads otherwise, keys that stand twice at any depth, controls, what is beyond 64 bits) in
`nonsense.py`, put into every kind of file and option by `config/test_nonsense.py`, with files that are `like` one
another in a long chain; there, too, links, ranks, algorithms and keys that are given twice in two spellings. Damaged
checkpoint logs are in `study/test_search.py` and `validation/test_measure.py`.
"""

import gzip
import io
import json
import os
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest
from inputs import KINDS
from judge import Case, judge
from kineto_builder import Rank
from log_inputs import search_rows, signed
from mutations import Literal, Pairs, as_json, as_yaml, tree
from nonsense import HUGE
from pyarrow import parquet as pq
from recording_inputs import archived, chained
from seeds import SMALL
from trace_inputs import MEMORY, NETWORK, SYSTEM

import scaleout
from scaleout.config.documents import read_text
from scaleout.errors import ScaleoutError
from scaleout.interop.pytorch.files import recorded_files
from scaleout.interop.pytorch.kineto import read_kineto, shape_of, whole_of
from scaleout.study.sweep.shards import known_keys, read_shards, write_shard
from scaleout.validation.measure.checkpoint import MeasurementLog, measured

DEEP = "[" * 40_000
MINE = {"mine.yaml": as_yaml(tree(SMALL["transformer"])).encode()}
COLLECTIVE = ("collective", "all_reduce", "--topology", "h200-node-4")
GOODPUT = ("goodput", "mine.yaml", "--tokens", "1B", "--checkpoint", "10s", "--failures")
COMMANDS = {
    (*GOODPUT, "1/year", "--jitter", "1e-320"): "is next to nothing",
    (*GOODPUT, "1/year", "--jitter", "0_1"): "'0_1' is no number",
    (*GOODPUT, "1/year", "--seed", "\u0663"): "is no whole number",
    (*GOODPUT, "1/year", "--seed", "010"): "'010' is no whole number",
    (*GOODPUT, "1/year", "--stragglers", "0.01=1e306"): "from 1 to 1e+15",
    (*GOODPUT, "1/year", "--stragglers", "1e-320=2"): "--stragglers: give one share and factor",
    (*GOODPUT, "2000000/day", "--interval", "1s"): "never finishes an interval",
    ("run", "mine.yaml", "--slow", "1\xa0=2"): "--slow",
    ("run", "mine.yaml", "--placement", "strided:1\xa0"): "is not 1 whole number",
    ("buckets", "llama-3-8b", "--set", "data_parallel=8", "--bytes", "0.0"): "holds nothing",
    ("run", "mine.yaml", "--output", ""): "an empty name is no directory",
    ("run", "--trace", ""): "an empty name is no path",
    ("view", ""): "an empty name is no path",
    ("run", "mine.yaml", "--measure-next", ""): "an empty name is no file",
    ("run", "mine.yaml", "--topology", "h200-node-4", "--topology=h200-node-4"): "--topology is given twice",
    ("run", "mine.yaml", "--contention", "--no-contention"): "--contention or --no-contention is given twice",
    ("run", "mine.yaml", "--set", "device=h200", "--device", "h200"): "--device and --set device both name the device",
    ("measure", "host", "--plan", "--output", "out", "--dtype", "bf16"): "these rows have none, leave it out",
    ("run", "mine.yaml", "--set", "layers=100000000"): "give at most 10,000",
    ("run", "dlrm-128", "--set", "top_layers=1000000000"): "give at most 10,000",
    ("run", "mine.yaml", "--schedule", "chunked:1000000000000"): "2 to 1024",
    ("run", "mine.yaml", "--placement", "9223372036854775808,1,2,3"): "is no rank",
    ("run", "mine.yaml", "--placement", "random:9223372036854775808"): "is not 1 whole number",
    ("run", "mine.yaml", "--topology", "sierra-8", "--policy", "x" * 300 + ".yaml"): "(File name too long)",
    ("show", "x" * 300): "cannot be read (File name too long)",
    ("search", "gpt-3", "--global-batch", "1000000000", "--topology", "dgx-h200-1"): "tokens a step that are searched",
    ("search", "mine.yaml", "--workers", "1000000000"): "1<=x<=256",
    ("measure", "collectives", "--plan", "--output", "out", "--gpus", "1000000000"): "1<=x<=1024",
    ("operator", "gemm_reduce_scater"): "did you mean 'gemm_reduce_scatter'?",
    ("operator", "embedding_all_to_all", "--set", "work_groups=1"): "at most 131,072 are simulated",
    ("operator", "embedding_all_to_all", "--sweep", "pooling=1:1000000000000000000"): "a range goes from",
    ("operator", "gemm_reduce_scatter", "--topology", "a100-cluster-b-32", "--sweep", "slice_size=1,True"): "not True",
    ("track", "--set", "rows=1000000000"): "give at most 262,144",
    ("track", "--set", "depth=1000000000000"): "give at most 1,048,576",
    (*COLLECTIVE, "--bytes", "1MiB", "--chunks", "1000000000"): "nothing here cuts the buffer",
    (*COLLECTIVE, "--bytes", "1," * 1000 + "1"): "more than 1,000 sizes",
    (
        "collective",
        "all_to_all",
        "--topology",
        "torus(1024,1024,ndr)",
        "--bytes",
        "1MiB",
        "--network",
        "link",
    ): "ring of 1,024 ranks cross its links",
}


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments)[:50])
def test_a_command_line(tmp_path, scaleout, monkeypatch, arguments):
    assert judge(Case("command", MINE, arguments), None, tmp_path / "case").outcome == "refused"
    (tmp_path / "mine.yaml").write_bytes(MINE["mine.yaml"])
    monkeypatch.chdir(tmp_path)
    assert COMMANDS[arguments] in scaleout(*arguments)[2]


def test_a_collective_on_a_long_line(tmp_path, scaleout, monkeypatch):
    """Of ranks one after another, as an edge list: ways of many hops, of which none closes a ring."""
    link = "{'bandwidth': '10 GB/s', 'latency': '1 us'}"
    files = {"net.edgelist": "".join(f"{rank} {rank + 1} {link}\n" for rank in range(20_000)).encode()}
    arguments = ("collective", "all_reduce", "--bytes", "1MiB", "--topology", "net.edgelist")
    assert judge(Case("command", files, arguments), None, tmp_path / "case") == ("refused", "")
    (tmp_path / "net.edgelist").write_bytes(files["net.edgelist"])
    monkeypatch.chdir(tmp_path)
    assert "links of a graph of many hops" in scaleout(*arguments)[2]


def test_a_collective_on_a_line_of_ranks_that_once_took_minutes(tmp_path, scaleout, monkeypatch):
    """Each distance is found once; an algorithm of too many hops is left out before they are followed, with reason."""
    link = "{'bandwidth': '10 GB/s', 'latency': '1 us'}"
    files = {"net.edgelist": "".join(f"{rank} {rank + 1} {link}\n" for rank in range(1100)).encode()}
    arguments = ("collective", "all_reduce", "--bytes", "1MiB", "--topology", "net.edgelist", "--json")
    assert judge(Case("command", files, arguments), None, tmp_path / "case") == ("accepted", "")
    (tmp_path / "net.edgelist").write_bytes(files["net.edgelist"])
    monkeypatch.chdir(tmp_path)
    for more in ((), ("--decide",)):
        out = scaleout(*arguments[:-1], *more)[1]
        assert "left out: direct, as messages along a graph of 1,101 ranks cross its links" in out


RECORDING = ("import", "pytorch", "job", "--output", "out", "--allow-partial")


def job(change, *, world=2, **facts):
    """A recording of one rank, of which something is changed, with more facts."""
    rank = Rank(0, world).step(3, 0, 10**6)
    change(rank)
    return {"job.rank0.json": json.dumps(rank.content() | facts).encode()}


def of_groups(count, size, *, stride=1):
    """As many collectives of a recording, each of a group of its own with so many ranks."""

    def add(rank):
        for number in range(count):
            told = {"Process Group Ranks": "...", "Group size": size - number, "Global rank start": 0}
            rank.collective(60 + 40 * number, 30, launch=8 + 40 * number, **told, **{"Global rank stride": stride})

    return add


def operators(count):
    """As many operators that call one another, and as many kernels that the innermost launches."""

    def add(rank):
        for number in range(count):
            rank.operator("c10d::x", 1 + number / 1000, 3000 - number / 1000)
            rank.kernel(500 + number / 10, 0.05, launch=5 + number / 10)

    return add


def on_streams(count):
    """As many streams of a kernel each, which wait for one another."""

    def add(rank):
        for number in range(count):
            rank.call("cudaEventRecord", 4 * number)
            rank.call("cudaStreamWaitEvent", 4 * number + 1)
            rank.kernel(4 * number + 2, 1, launch=4 * number + 2, stream=number)

    return add


def kernel_with(**changes):
    """A kernel with some of its event changed."""

    def add(rank):
        rank.kernel(10, 5, launch=2)
        rank.events[-1] |= changes

    return add


BLANKS = b'{"traceEvents": [' + b" " * 2**27
RECORDINGS = {
    "zipped blanks": ({"job.rank0.json.gz": gzip.compress(BLANKS, mtime=0)}, "more than 40 times its size"),
    "zipped values": ({"job.rank0.json.gz": gzip.compress(b"[" + b"{}," * 2**22, mtime=0)}, "4 values for each of"),
    "an event of 95 MB": (job(lambda rank: rank.kernel(9, 9, x=[[{"a": 0}] * 1000] * 10000)), "more than 1,000,000"),
    "an event of texts": (job(lambda rank: rank.kernel(9, 9, x=["ab"] * 1_100_000)), "more than 1,000,000 values"),
    "facts of 95 MB": (job(lambda rank: None, facts=[["1"] * 1000] * 19000), "more than 1,000,000 values"),
    "events of events": (job(lambda rank: rank.events.append([])), "[] is no event"),
    "an archive of blanks": ({"job.tar.gz": archived({"rank0.json": BLANKS})}, "more than 40 times its size"),
    "an archive of others": ({"job.tar.xz": archived({"x.bin": BLANKS}, mode="w:xz")}, "more than 40 times its size"),
    "an archive of zipped blanks": (
        {"job.tar": archived({"rank0.json.gz": gzip.compress(BLANKS, mtime=0)}, mode="w:")}, "more than 40 times"),
    "an archive of headers": ({"job.tar": chained(3000)}, "is a damaged archive (maximum recursion depth exceeded"),
    "deep": ({"job.rank0.json": b'{"traceEvents": ' + b"[" * 900 + b"]" * 900 + b"}"}, "more than 64 levels"),
    "a key twice": ({"job.rank0.json": b'{"traceEvents": [], "traceEvents": []}'}, "'traceEvents' stands twice"),
    "a huge number": ({"job.rank0.json": f'{{"traceEvents": [{HUGE}]}}'.encode()}, "takes more than 64 bits"),
    "less than no time": (job(kernel_with(dur=-5)), "begins 10 us after the first and lasts -5 us"),
    "centuries": (job(kernel_with(dur=1e17)), "a recording spans at most 1e+15 us"),
    "half a character": (job(kernel_with(name="\ud800")), "half of a surrogate pair"),
    "many groups": (job(of_groups(20, 2**20), world=2**20), "groups of more than 8,388,608 ranks in all"),
    "many calls": (job(operators(400)), "begins while 256 others of its thread run"),
    "many streams": (job(on_streams(1500)), "kernels on 1,500 streams; at most 1,024 are read"),
}  # fmt: skip
"""Files of a recording, and what is said."""


def test_a_long_recording_that_was_cut_off_is_not_read(tmp_path, monkeypatch):
    """As where the job was killed; spaces at the end are none of it."""
    whole = json.dumps({"traceEvents": [{"name": "x" * 100}] * 20_000}).encode()
    path = tmp_path / "job.rank0.json"
    path.write_bytes(whole + b" \n" * 100)
    assert len(list(recorded_files([path]))) == 1
    path.write_bytes(whole[:-50])
    monkeypatch.setattr("scaleout.interop.pytorch.files.read_long_json", None)
    with pytest.raises(ScaleoutError, match=r"ends in the midst of a value.*if the job was killed"):
        list(recorded_files([path]))


def test_lists_of_others_in_the_folder_of_a_recording_are_passed_over(tmp_path):
    tmp_path.joinpath("charmap.json").write_text('[["Cc", [0, 31]]]')
    tmp_path.joinpath("job.rank0.json").write_text('{"traceEvents": []}')
    assert [each.path.name for each in recorded_files([tmp_path])] == ["job.rank0.json"]
    for name, content in (("charmap", None), ("damaged", '[{"ph": "X", "ts": 1}, 5]')):
        path = tmp_path / f"{name}.json"
        path.write_text(content or path.read_text())
        with pytest.raises(ScaleoutError, match=rf"{name}\.json: .* is no event"):
            list(recorded_files([path if content is None else tmp_path]))


def test_a_folder_of_a_recording_that_cannot_be_listed_is_no_empty_one(tmp_path, monkeypatch):
    """As it is for who is not root: its ranks would be missing."""
    tmp_path.joinpath("closed").mkdir()
    tmp_path.joinpath("job.rank0.json").write_text("{}")
    scandir = os.scandir

    def refusing(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(ScaleoutError, match=r"closed: cannot be read \(Permission denied\)"):
        list(recorded_files([tmp_path]))


_ITSELF: list[object] = []
_ITSELF.append(_ITSELF)


@pytest.mark.parametrize("value", ["\ud800", 10**400, float("nan"), float("-inf"), _ITSELF], ids=ascii)
def test_a_value_of_a_sweep_that_no_table_holds(value):
    """Of a program: no file can have it."""
    for keys in ({"placement": value}, {"set": {"layers": [value, 2]}}, {"slow": {0: value}}, {"ideal": value}):
        with pytest.raises(ScaleoutError, match=r"^sweep\(\): (placement|set|slow|ideal)"):
            scaleout.sweep(workload="dlrm-128", workers=1, **keys)


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording(tmp_path, scaleout, monkeypatch, name):
    files, said = RECORDINGS[name]
    path = next(iter(files))
    arguments = (*RECORDING[:2], path, *RECORDING[3:])
    assert judge(Case("command", files, arguments), None, tmp_path / "case") == ("refused", "")
    (tmp_path / path).write_bytes(files[path])
    monkeypatch.chdir(tmp_path)
    assert said in scaleout(*arguments)[2]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"traceEvents": Rank().operator("a", 1, 1).operator("b", 3, 1).operator("c", 5, 1).events}, "kernels"),
        ({"schema": "1.1.1", "nodes": [{"id": 1}] * 3}, "nodes"),
    ],
)
def test_a_recording_of_too_many(tmp_path, scaleout, monkeypatch, content, said):
    monkeypatch.setattr("scaleout.interop.pytorch.kineto.MOST_EVENTS", 2)
    monkeypatch.setattr("scaleout.interop.pytorch.files.MOST_EVENTS", 2)
    tmp_path.joinpath("job.rank0.json").write_text(json.dumps(content))
    code, _, err = scaleout("import", "pytorch", tmp_path / "job", "--output", tmp_path / "out")
    assert (code, err.count("has more than 2 "), said in err) == (2, 1, True)


def test_a_long_recording_takes_little_memory(tmp_path):
    """Refused or not: of each event what is read is kept, and texts that stand in many are kept once."""
    rank = Rank().step(3, 0, 10**6)
    for at in range(1000, 900_000, 100):
        rank.operator("aten::mm", at, 80, dims=[[64, 32], [32, 16]], dtypes=["c10::BFloat16"] * 2)
        rank.kernel(at + 20, 50, launch=at + 10, grid=[1, 2, 3], block=[4, 5, 6], **{"est. achieved occupancy %": 5})
    size = rank.write(tmp_path).stat().st_size
    tracemalloc.start()
    (found,) = recorded_files([tmp_path])
    read_kineto(found.content, found.path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * size


def test_a_short_file_takes_little_memory_whatever_its_limit(tmp_path):
    """The memory of a limit of 1 GiB is not asked for, which a process may not have."""
    tmp_path.joinpath("timeline").write_bytes(b"[]")
    tracemalloc.start()
    assert read_text(tmp_path / "timeline", most_bytes=2**30) == "[]"
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


@pytest.mark.parametrize("text", ["\xb2", "--5", "-", "\u0665", "1_0", "9" * 20])
def test_a_number_of_a_recording_that_is_none(text):
    """A text of digits that Python takes for a number is none, or is read as it: nothing raises."""
    assert whole_of(text) == -1


@pytest.mark.parametrize("steps", ["9" * 5000, "\u0663"])
def test_a_step_whose_number_is_none_is_an_operator(tmp_path, steps):
    marked = Rank().step(3, 0, 400).event("user_annotation", f"ProfilerStep#{steps}", 1, 2)
    marked.kernel(10, 5, launch=2)
    files = {"job.rank0.json": json.dumps(marked.content()).encode()}
    assert judge(Case("command", files, RECORDING), None, tmp_path / "case") == ("accepted", "")


@pytest.mark.parametrize(
    ("column", "value"), [("key", None), ("makespan_s", float("nan")), ("makespan_s", None), ("x", "y")]
)
def test_a_shard_of_other_rows_is_left_out(tmp_path, column, value):
    row = {"key": "a", "status": "ok", "message": "", "makespan_s": 1.0, "ranks": 4}
    write_shard(tmp_path, [row])
    assert known_keys(tmp_path) == {"a"} == set(read_shards(tmp_path))
    table = pa.Table.from_pylist([{**row, column: value}])
    pq.write_table(table, next((tmp_path / "shards").iterdir()))
    with pytest.warns(UserWarning, match="damaged"):
        assert known_keys(tmp_path) == set()
    with pytest.warns(UserWarning, match="damaged"):
        assert read_shards(tmp_path) == {}


def test_a_tensor_has_no_thousands_of_dimensions():
    assert shape_of([9] * 300_000) is None


ROWS = {"us": 5.0, "op": "gemm", "dtype": "bf16", "M": 8, "N": 8, "K": 8}
STEP = {"name": "moe_forward", "gpus": 2, "hidden": 64, "ffn": 64, "tokens": 64, "topk": 2, "chunks": 1,
        "dtype": "bf16", "step_us": 5.0}  # fmt: skip
H200 = {"environment.json": b'{"gpu": "NVIDIA H200"}'}


def rows(**changes):
    """A measured row with some of its keys changed, and the GPU that it was measured on."""
    seed = STEP if set(changes) <= STEP.keys() else ROWS
    return {"rows.jsonl": as_json(tree(seed | changes)).encode(), **H200}


def parquet_of(**row):
    """Return the bytes of a table of one row."""
    held = io.BytesIO()
    pq.write_table(pa.table({name: [value] for name, value in row.items()}), held)
    return held.getvalue()


FILES = {
    "a trace of zeros, zipped": ("trace", {"w.0.et": gzip.compress(bytes(2**28), mtime=0)}, "100 times its size"),
    "a trace of empty nodes": ("trace", {"w.0.et": bytes(2**20)}, "empty"),
    "deep groups": ("astra", {"groups.json": DEEP.encode()}, "more than 64 levels"),
    "huge groups": ("astra", {"groups.json": f'{{"1": [{HUGE}]}}'.encode()}, "takes more than 64 bits"),
    "deep system": ("astra", {"system.json": DEEP.encode(), "groups.json": b"{}"}, "more than 64 levels"),
    "a huge network": ("astra", {"groups.json": b"{}", "network.yml": b"npus_count: [ " + HUGE.encode() + b" ]\n"},
                       "takes more than 64 bits"),
    "many splits": ("astra", {"groups.json": b"{}", "system.json": as_json(
        tree(SYSTEM | {"preferred-dataset-splits": 10**9})).encode()}, "must be at most 10,000"),
    "deep kernel rows": ("kernel rows", {"rows.jsonl": DEEP.encode()}, "more than 64 levels"),
    "a long rank of nccl-tests": ("option", {
        "policy": b"nccl_ring=a.txt", "a.txt": b"#  Rank  " + HUGE.encode()}, "no sizes and times"),
    "a list as a size": ("measured rows", rows(M=[8]), "M is [8]; give a whole number"),
    "an endless error bar": ("device", {
        "mine.yaml": b"like: h100\nspread:\n  machine: {value: 2147483648, source: x}\n"}, "give at most 7"),
    "many ranks": ("measured rows", rows(gpus=2 * 10**8), "gpus is 200000000; give a whole number, at most 1,048,576"),
    "many chunks": ("measured rows", rows(chunks=10**9), "chunks is 1000000000; give a whole number, at most 10,000"),
    "a number as a topology": ("measured rows", rows() | {"environment.json": b'{"topology": 5}'}, "topology is 5"),
    "measured twice": ("measured rows", {"rows.jsonl": b'{"workload": "dlrm-128", "topology": "torus-8x16", "device": '
                       b'"h200", "measured_us": 5, "measured": "1 s"}', **H200}, "both say what was measured"),
    "no text to measure": ("rows to measure", {"kernels": b"\xff"}, "is no text in UTF-8"),
    "deep rows to measure": ("rows to measure", {"kernels": DEEP.encode()}, "more than 64 levels"),
    "a list to measure": ("rows to measure", {"kernels": b'{"op": "add", "dtype": "bf16", "shape": {"elements": [1]}}'},
                          "size 'elements' is [1]; give a whole number"),
    "an operation twice": ("rows to measure", {"kernels": b'{"op": "add", "dtype": "bf16", "shape": {"op": 1}}'},
                           "has op 'add'; give a name, outside its shape"),
    "no collective": ("rows to measure", {"collectives": b'{"collective": 5.0, "ranks": 2, "bytes": 8}'},
                      "cannot measure collective 5.0"),
    "a text as a time": ("output", {
        "summary.json": b'{"command": "run", "inputs": {}, "results": [{"makespan_s": "1 s"}]}'},
        "results.0.makespan_s is '1 s', not number"),
    "a number as models": ("output", {"summary.json": b'{"command": "track", "inputs": {}, "models": 5}'}, "not array"),
    "a list as a process": ("output", {"timeline": b'[{"ph": "X", "pid": [], "ts": 1, "dur": 1}]'}, "`pid`"),
    "a list of numbers as a schedule": ("output", {
        "summary.json": b'{"command": "run", "inputs": {"workload": "dlrm-128", "schedule": 5}}'}, "inputs say 5"),
    "a number as a command": ("output", {"summary.json": b'{"command": 5, "inputs": {}}'}, "json: no documents of"),
    "a library like a list": ("library", {"mine.yaml": b"like: [" + b"x, " * 200 + b"x]"}, "mine.yaml: like is ['x', "),
    "a library like a long name": ("library", {"mine.yaml": b"like: " + b"x" * 5000}, "mine.yaml: like: 'xxx"),
    "a device with kernels of a long name": (
        "device", {"mine.yaml": b"like: h200\nkernels: [" + b"x" * 5000 + b"]"}, "mine.yaml: kernels: '"),
    "rows on a topology of a long name": (
        "measured rows",
        {"rows.jsonl": b'{"workload": "dlrm-128", "measured": "3 ms", "topology": "' + b"x/" * 3000 + b'"}'},
        "line 1: topology: '"),
    "no table": ("output", {"cases.parquet": b"PAR1"}, "is no table of a study"),
    "a text as a step of a study": ("output", {"cases.parquet": parquet_of(
        case=1, status="ok", makespan_s="1 s", timeline="", workload="dlrm-128", ranks=8)},
        "column 'makespan_s' is of type string"),
    "a text of a study that is none": ("output", {"cases.parquet": parquet_of(
        case=1, status="ok", makespan_s=1.0, timeline="eager", workload="dlrm-128", ranks=8)
        .replace(b"eager", b"\xffager")}, "is no table of a study"),
}  # fmt: skip
"""Kind of input, files, and what is said."""


@pytest.mark.parametrize("name", FILES)
def test_a_file(tmp_path, monkeypatch, name):
    kind, files, said = FILES[name]
    files = {"system.json": as_json(tree(SYSTEM)).encode(), "network.yml": as_yaml(tree(NETWORK)).encode(),
             "memory.json": as_json(tree(MEMORY)).encode(), **files} if kind == "astra" else files  # fmt: skip
    assert judge(Case(kind, files), KINDS[kind].read, tmp_path / "case") == ("refused", "")
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ScaleoutError) as caught:
        KINDS[kind].read(Case(kind, files))
    assert said in str(caught.value)


DAMAGED = {
    "step_s NaN": ("step_s", Literal("NaN"), "'NaN' is no finite number"),
    "step_s huge": ("step_s", Literal(HUGE), "takes more than 64 bits"),
    "memory_bytes a number": ("memory_bytes", 5, "no estimate of a plan"),
    "exposed_s a list": ("exposed_s", [], "no estimate of a plan"),
    "mfu deep": ("mfu", Literal("[" * 100 + "]" * 100), "more than 64 levels"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_line_of_a_log_of_plans_is_left_out(tmp_path, monkeypatch, name):
    """Though its checksum holds."""
    key, value, said = DAMAGED[name]
    header, row = search_rows().seeds[0], next(row for row in search_rows().seeds if row[0][0] == "plan")
    estimate = Pairs([one, value if one == key else own] for one, own in dict(row)["estimate"])
    changed = Pairs([one, estimate if one == "estimate" else own] for one, own in row)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plans.jsonl").write_bytes(signed(header) + signed(changed))
    with pytest.warns(UserWarning, match=r"plans.jsonl, line 2: damaged") as told:
        KINDS["search log"].read(None)
    assert said in str(told[0].message)


def test_a_mark_that_is_no_row_is_left_out(tmp_path):
    log = MeasurementLog(tmp_path, "kernels")
    for text in ("[1]", DEEP, HUGE, "\xff", '{"op": "add"'):
        (tmp_path / ".kernels.0.running").write_text(text, encoding="latin-1")
        log.open({})
        assert measured(log.failed) == []


def test_astra_sim_adds_up_to_what_64_bits_hold(astra):
    from astra_inputs import coll, comp

    late = [comp(0, 2**63), coll(1, "ALL_REDUCE", 8, deps=[0])]
    code, out, err = astra([late, [coll(1, "ALL_REDUCE", 8)]])
    assert (code, out) == (2, "")
    assert "beyond what whole nanoseconds of 64 bits are added up to" in err


def test_a_kernel_of_a_trace_has_its_operation_once():
    from scaleout.interop.chakra.vocabulary import parse_kernel

    with pytest.raises(ScaleoutError, match="write it as operation, dtype and sizes"):
        parse_kernel("gemm bf16 M=8 op=8", flops=1, size_bytes=1)


def test_the_page_names_the_limits():
    from pathlib import Path

    from scaleout import errors
    from scaleout.api import views
    from scaleout.cli import collective
    from scaleout.config import documents, library, long_json, units, yaml_files
    from scaleout.interop.chakra import framing
    from scaleout.interop.pytorch import communication, files, kineto
    from scaleout.network.collectives import disjoint_rings
    from scaleout.network.routes import routing
    from scaleout.study.edits import recorded, repeats
    from scaleout.study.sweep import shards
    from scaleout.workloads.config import training

    page = Path(__file__).parents[2].joinpath("docs/threat-model.md").read_text()
    table = page.partition("## Limits")[2].partition("## Not")[0]
    mib = 2**20
    for limit in (
        f"a YAML file | {yaml_files.MOST_BYTES // mib} MiB", f"counted again | {yaml_files.MOST_VALUES:,} |",
        f"an output of nccl-tests | {documents.MOST_BYTES // mib} MiB", f"one another | {documents.MOST_LEVELS} |",
        f"texts too | {documents.MOST_VALUES:,} |", f"beside its events | {long_json.MOST_VALUES:,} |",
        f"numbers | {documents.LARGEST_INTEGER.bit_length() + 1} bits",
        f"unit | {documents.LEAST_NUMBER:g} to {documents.LARGEST_NUMBER:g},",
        f"workload | 2^{units.MOST_COUNT.bit_length() - 1} |", f"rows | {units.MOST_WRITTEN:,} |",
        f"row | {documents.MAX_RANKS:,} |", f"step | {training.MOST_PASSES:,} |",
        f"unpacked | {files.MOST_BYTES // 2**30} GiB |", f"host trace | {kineto.MOST_EVENTS:,} |",
        f"streams of a recording | {kineto._MOST_STREAMS:,} |",
        f"unpacks to {files.MOST_TIMES} times its size, and to {files.VALUES_A_BYTE} values for each of its bytes",
        f"call one another | {kineto._MOST_CALLERS} |", f"for each | {communication.MOST_NAMED:,} |",
        f"divides by | {recorded._MOST_TIMES:,} |", f"after an edit | {repeats.MOST_NODES:,} |",
        f"`like` | {library._LONGEST_CHAIN} |", f"to {framing._MOST_TIMES} times its size",
        f"collective` | {collective._MOST_SIZES:,} |", f"at a time | {routing._MOST_CROSSED:,} |",
        f"multiplied | {routing._MOST_COMPARED:,} |", f"are searched | {disjoint_rings._MOST_MEMBERS:,} |",
        f"a shard of it | {views._MOST_VALUES:,}, and {shards._MOST_VALUES:,} |",
        f"a message | {errors._MOST_LINES} lines of {errors._LONGEST_LINE:,} characters",
    ):  # fmt: skip
        assert limit in table, limit
