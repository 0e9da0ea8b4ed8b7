"""Nonsense in every kind of file and option ends in one message that says where, and that a terminal can show."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from nonsense import FILES, HUGE, LONG, VALUES

import scaleout as package
from scaleout.cli.console import console, print_table
from scaleout.cli.options import parse_settings
from scaleout.cluster.device.kernel_times.measured import read_table
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.backends import load_table
from scaleout.cluster.topology.communication_library import load_library
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.documents import number as number_of
from scaleout.config.documents import parse_json, read_json, read_json_lines, to_json, whole
from scaleout.config.units import Count
from scaleout.config.validated import Config, validate
from scaleout.config.yaml_files import parse_value, read_yaml
from scaleout.errors import ConfigError, ScaleoutError, printable
from scaleout.interop.astra.inputs import read_groups, read_network, read_remote_memory, read_system
from scaleout.schedule.fusion import OPERATORS
from scaleout.schedule.t3.sublayer import TrackSettings
from scaleout.validation.measured.rows import read_rows
from scaleout.workloads.families import load_workload

ROOT = Path(package.__file__).parents[1]
DLRM = (ROOT / "workloads/dlrm-128.yaml").read_text()
TORUS = (ROOT / "topologies/torus-8x16.yaml").read_text()
DEVICE = yaml.safe_load((ROOT / "traces/h200/device.yaml").read_text()) | {"kernels": [], "efficiency_from": "h200"}
NETWORK = "topology: [ Ring ]\nnpus_count: [ 8 ]\nbandwidth: [ 50.0 ]\nlatency: [ 500.0 ]\n"
SYSTEM = {"preferred-dataset-splits": 4, "all-reduce-implementation": ["ring"], "endpoint-delay": 10}
GEMM = {"op": "gemm", "dtype": "bf16", "shape": {"M": 8, "N": 8, "K": 8}, "us": 5.0, "method": "x", "launches": 1}
LIBRARY = """
name: mine
source: nobody
protocols:
- {name: simple, collectives: [all_reduce], startup: 1 us, links: {"": {latency: 1 us, efficiency: 0.9}}, source: x}
"""


def said(read, *arguments):
    """What a reader says of nonsense: one message, short and printable."""
    with pytest.raises(ScaleoutError) as caught:
        read(*arguments)
    message = str(caught.value)
    assert message
    assert len(message) < 12_000
    assert printable(message) == message
    return message


def written(folder, text, *, name="mine.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def without(text, key):
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{key}:"))


def device(*way):
    """The device file with `@` in the place of a number."""
    values = json.loads(json.dumps(DEVICE))
    section = values
    for key in way[:-1]:
        section = section[key]
    section[way[-1]] = "at"
    return yaml.safe_dump(values).replace(": at\n", ": @\n")


FIELDS = {
    **{
        f"workload {key}": (f"{without(DLRM, key)}\n{key}: @\n", kind, load_workload)
        for key, kind in (("global_batch", "count"), ("mlp_width", "count"), ("data_parallel", "count"),
                          ("gradient_bucket", "size"), ("top_layers", "count"))
    },
    **{
        f"topology {key}": (TORUS.replace(old, f"{key}: @", 1), kind, load_topology)
        for old, key, kind in (("size: 8", "size", "count"), ("bandwidth: 200 Gb/s", "bandwidth", "rate"),
                               ("latency: 700 ns", "latency", "time"))
    },
    "topology slow": (TORUS + "\nchanges: {slow: {5: @}}\n", "number", load_topology),
    "topology slow rank": (TORUS + "\nchanges: {slow: {@: 1.5}}\n", "count", load_topology),
    "topology degrade": (TORUS + "\nchanges: {degrade: {0-1: @}}\n", "number", load_topology),
    **{
        f"device {' '.join(way)}": (device(*way), kind, load_device)
        for *way, kind in (
            ("memory_bandwidth", "value", "rate"), ("memory", "value", "size"), ("sms", "value", "count"),
            ("launch_gap", "value", "time"), ("memory_bandwidth", "rate"), ("power", "exponent", "value", "number"),
            ("work_groups", "memory_share", "value", "number"), ("work_groups", "most_per_sm", "value", "count"),
            ("work_groups", "flag", "value", "time"), ("peak_flops", "bf16", "value", "number"),
        )
    },
    "library startup": (LIBRARY.replace("startup: 1 us", "startup: @"), "time", load_library),
    "library efficiency": (LIBRARY.replace("efficiency: 0.9", "efficiency: @"), "number", load_library),
    "policy size": ("source: x\nrules: [{size: @, backend: x}]\n", "size", load_table),
    "policy ranks": ("source: x\nrules: [{ranks: @, backend: x}]\n", "count", load_table),
    **{
        f"network {key}": (re.sub(rf"{key}: .*", f"{key}: [ @ ]", NETWORK), "count", read_network)
        for key in ("npus_count",)
    },
}  # fmt: skip
"""Field to a file with `@` in its place, the kind of field, and what reads the file."""

NONE = {"null", "~", "#", "# comment", "NULL ", "..."}
"""Values that are none: a field that may be left out takes them."""
ALLOWED = {
    "policy size": NONE,
    "policy ranks": NONE,
    "topology slow rank": {"0"},
    "topology latency": {"[]"},
    "network npus_count": {"8.0", "1e3"},  # as ASTRA-sim takes them
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_value_of_a_file_is_refused(field, tmp_path):
    text, kind, read = FIELDS[field]
    taken = []
    for number, value in enumerate(VALUES[kind]):
        path = written(tmp_path, text.replace("@", value, 1), name=f"mine-{number}.yaml")
        as_path = path if read in (load_library, load_table, read_network) else str(path)
        if value in ALLOWED.get(field, ()):
            continue
        try:
            message = said(read, as_path)
        except pytest.fail.Exception:
            taken.append(value[:50])
        else:
            assert path.name in message, message[:200]
    assert not taken


SETTINGS = {
    "global_batch": ("count", lambda given: load_workload("dlrm-128", given)),
    "gradient_bucket": ("size", lambda given: load_workload("dlrm-128", given)),
    "capacity_factor": ("number", lambda given: load_workload("deepseek-v3", given)),
    "rows": ("count", lambda given: validate(TrackSettings, given, where="track")),
    "trigger": ("size", lambda given: validate(TrackSettings, given, where="track")),
    "occupancy": ("number", lambda given: validate(OPERATORS["embedding_all_to_all"].settings, given, where="x")),
    "row_latency": ("time", lambda given: validate(OPERATORS["embedding_all_to_all"].settings, given, where="x")),
}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_value_of_set_is_refused(key):
    kind, load = SETTINGS[key]
    taken = []
    for value in VALUES[kind]:
        try:
            said(lambda text: load(parse_settings([text])), f"{key}={value}")
        except pytest.fail.Exception:
            taken.append(value[:50])
    assert set(taken) <= (NONE | {"", "''", "---"} if key in ("capacity_factor", "occupancy", "row_latency") else set())


@pytest.mark.parametrize("number", range(len(FILES["yaml"])))
def test_a_file_of_nonsense_is_refused(number, tmp_path):
    if LONG in FILES["yaml"][number] and "like" in FILES["yaml"][number]:
        return  # a name that no file can have: see the test of it
    path = written(tmp_path, FILES["yaml"][number])
    for read in (load_workload, load_topology, load_device):
        assert path.name in said(read, str(path)) or "nowhere" in FILES["yaml"][number]
    said(load_library, path)
    said(load_table, path)
    said(read_network, path)


@pytest.mark.parametrize("number", range(len(FILES["json"])))
def test_json_of_nonsense_is_refused(number, tmp_path):
    text = FILES["json"][number]
    path = written(tmp_path, text, name="mine.json")
    for read in (read_system, read_remote_memory, lambda file: read_groups(file, num_ranks=8)):
        if text != "\ufeff{}" or read is read_system:
            assert "mine.json" in said(read, path)
    assert "mine.json" in said(lambda file: read_table((file,)), path)


ROW_VALUES = [
    "true", "false", '"5"', '"x"', "[]", "{}", "[[1]]", "[true]", "[null]", "[1, 2]", '["a"]', "0", "-1", "-8192",
    "1e306", "1e-320", "[1e300]", "1099511627777000", '"yes"', '"010"', "[[]]", '{"a": 1}', "[{}]",
    '"\\u001b[31m"', f'"{LONG}"',
    "NaN", "Infinity", "[NaN]", "1e400", "-1e400", HUGE, "9223372036854775808", "01", "+1", ".5", "0x10", "1_0",
    "'a'", "",
    "[" * 40_000,
]  # fmt: skip


@pytest.mark.parametrize("key", [*GEMM, "M"])
def test_a_kernel_row_names_its_line(key, tmp_path):
    values = ROW_VALUES if key != "method" else [value for value in ROW_VALUES if not value.startswith('"')]
    values = [*values, "8192.9", "8.0"] if key in ("M", "launches") else values
    for number, value in enumerate(values):
        row = json.dumps({**GEMM, "shape": {**GEMM["shape"], "M": "@"}} if key == "M" else {**GEMM, key: "@"})
        path = written(tmp_path, '{"provenance": {}}\n\n' + row.replace('"@"', value), name=f"{number}.jsonl")
        assert f"{number}.jsonl, line 3" in said(lambda file: read_table((file,)), path), value[:50]


@pytest.mark.parametrize("key", ["us", "bytes"])
def test_a_measured_number_has_bounds(key, tmp_path):
    for value in ("true", '"5"', "0", "-5", "1e-320", "1e306", "[]"):
        (row,) = read_rows(written(tmp_path, f'{{"{key}": {value}}}', name="rows.jsonl"))
        assert "rows.jsonl, line 1" in said(row.number, key)


@pytest.mark.parametrize("key", [key for key in SYSTEM if not key.startswith("all")])
def test_a_number_of_system_json_is_refused(key, tmp_path):
    for value in ("true", '"5"', "-5", "1e306", "[]", "NaN", "1.5", HUGE):
        text = json.dumps({**SYSTEM, key: "@"}).replace('"@"', value)
        assert "mine.json" in said(read_system, written(tmp_path, text, name="mine.json"))


TWICE = [
    ("--slow", "5=1.3", "05=1.4"), ("--slow", "5=1.3", " 5=1.4"), ("--slow", "5=1.3", "5=1.3"),
    ("--degrade", "0-1=.5", "1-0=.6"),
    ("--break", "0-1", "1-0"), ("--break", "0-1", "0-1"), ("--algorithm", "all_reduce=ring", "all-reduce=direct"),
    ("--set", "global_batch=2048", " global_batch =2048"),
]  # fmt: skip


@pytest.mark.parametrize(("option", "first", "second"), TWICE)
def test_nothing_is_given_twice_in_two_spellings(scaleout, option, first, second):
    code, out, err = scaleout("run", "dlrm-128", option, first, option, second)
    assert (code, out) == (2, "")
    assert "twice" in err or "05=1.4: write a rank" in err


OPTIONS = [
    *(("run", "dlrm-128", "--injection", rate, "--network", "link") for rate in (
        "1e306 B/s", "1e-320 B/s", "5", "0", "NaN")),
    *(("run", "dlrm-128", "--placement", order) for order in (
        HUGE, "99999999999999999999,1", "strided:08", "random:-1", "random:" + HUGE, "order:01,0", "order:0,0",
        "/dev/zero")),
    *(("run", "dlrm-128", "--slow", slow) for slow in ("5=nan", "5=1e400", "5=1e300", "٣=2", "5=2 # two")),
    *(("run", "dlrm-128", "--degrade", link) for link in (
        "0-1=nan", "0-1=00.5", "0-1=1e-320", "0-1=1e-320 B/s", "00-1=0.5")),
    *(("collective", "all_reduce", "--topology", "torus-8x16", "--bytes", sizes) for sizes in (
        "1e306", "-1", "0.5", "1:1e400", "8192.9", "010", ",".join(["1"] * 5000))),
    *(("collective", "all_reduce", "--topology", "torus-8x16", "--bytes", "1MiB", "--group", group) for group in (
        "0-" + HUGE, "00-7", "٣", "0-7-9", "-", "")),
    *(("search", "mega-gpt-2", "--top", top) for top in ("010", "1_0", HUGE, "0", "٣", "\x1b[31m")),
    *(("run", name) for name in ("\x1b[31m", LONG[:100_000], "a\x00b", "\x85", "nowhere/\x1b[31m.yaml", "\udcff")),
    ("run", "--\x1b[31m"), ("\x1b[31m",), ("show", "\x1b]0;title\x07"), ("run", "dlrm-128", "--set", "\x1b[31m=1"),
]  # fmt: skip


@pytest.mark.parametrize("arguments", OPTIONS, ids=lambda arguments: ascii(" ".join(arguments))[-60:])
def test_an_option_of_nonsense_ends_in_a_message(scaleout, arguments):
    code, out, err = scaleout(*arguments)
    assert (code, out) == (2, "")
    assert len(err) < 12_000
    assert printable(err) == err


def test_a_bomb_takes_neither_time_nor_memory(tmp_path):
    for number, text in enumerate(text for text in FILES["yaml"] if "*a" in text or "[" * 1000 in text):
        written(tmp_path, text, name=f"{number}.yaml")
        script = (
            "import pathlib, re, sys; from scaleout.cli import main\n"
            f"sys.argv = ['scaleout', 'run', '{number}.yaml']\n"
            "try: main()\n"
            "finally:\n"
            "    status = pathlib.Path('/proc/self/status').read_text()\n"
            "    assert int(re.search('VmHWM:\\\\s*([0-9]+)', status)[1]) < 500_000\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
        )
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.startswith("error: ")
        assert "Traceback" not in done.stderr


def test_a_name_that_no_file_can_have_is_cut(scaleout, tmp_path):
    code, out, err = scaleout("run", written(tmp_path, f"like: {LONG}"))
    assert (code, out) == (2, "")
    assert "mine.yaml: like: unknown workload 'xxx" in err
    assert len(err) < 12_000
    for like in ("x" * 300 + ".yaml", "/dev/zero"):
        code, out, err = scaleout("run", path := written(tmp_path, f"like: {like}"))
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {path}: like: ")
        assert "cannot be read (" in err
    for key in (f"library: {'x' * 300}", "backends: {a: /dev/zero}"):
        code, out, err = scaleout("show", path := written(tmp_path, f"like: h200-node-4\n{key}"))
        assert (code, out, err.startswith(f"error: {path}: ")) == (2, "", True)


def test_a_chain_of_files_ends(tmp_path):
    for number in range(3000):
        written(tmp_path, f"like: {number + 1}.yaml\n", name=f"{number}.yaml")
    for load in (load_workload, load_topology):
        assert "like leads through more than 16 files" in said(load, str(tmp_path / "0.yaml"))
    for number in range(20):
        after = DEVICE | {"host_from": f"{tmp_path}/{number + 1}.yaml", "host_ratio": {"value": 1, "source": "x"}}
        written(tmp_path, yaml.safe_dump(after), name=f"{number}.yaml")
    assert "host_from leads through more than 16 files" in said(load_device, str(tmp_path / "0.yaml"))


def test_show_takes_what_run_takes(summary_of, tmp_path, scaleout):
    written(tmp_path, "like: dlrm-128\n", name="job.yaml")
    written(tmp_path, "like: job.yaml\n", name="other.yaml")
    written(tmp_path, "like: dgx-h200-16\nnodes: 4\n", name="net.yaml")
    assert summary_of("show", tmp_path / "other.yaml")["ranks"] == 128
    assert summary_of("show", tmp_path / "net.yaml")["ranks"] == 32
    scaleout("trace", "dlrm-128", "--output", tmp_path / "traces")
    for path in (tmp_path / "traces", tmp_path / "traces" / "dlrm-128"):
        assert summary_of("show", path)["ranks"] == 128


@pytest.fixture
def summary_of(scaleout):
    def of(*arguments):
        code, out, err = scaleout(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5), ("+5", 5), ("1_000", 1000), ("1e3", 1000.0), (".5", 0.5), ("true", True), ("TRUE", True),
        ("null", None), ("", None), ("yes", "yes"), ("010", "010"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"),
        ("'5'", "5"),
        ("[1, a]", [1, "a"]),
        ("{a: {b: 1}}", {"a": {"b": 1}}), ("{a: &x [1], b: *x}", {"a": [1], "b": [1]}),
        ("{<<: {a: 1, b: 2}, b: 3}", {"a": 1, "b": 3}),
        ("5 GB/s", "5 GB/s"), ("5 # five", 5), ("-0", 0), ("9223372036854775807", 2**63 - 1),
    ],
)  # fmt: skip
def test_values_are_those_of_json(text, value):
    found = parse_value(text, where="here")
    assert (type(found), found) == (type(value), value)


def test_shipped_files_are_read_as_yaml_reads_them():
    for path in [*ROOT.glob("workloads/*.yaml"), *ROOT.glob("topologies/**/*.yaml"), *ROOT.glob("traces/*/*.yaml")]:
        assert read_yaml(path) == yaml.safe_load(path.read_text())


def test_json_never_holds_what_is_no_json():
    values = {"a": [1.5, float("nan")], "b": (float("inf"), {"c": -float("inf")}), "d": "NaN"}
    assert json.loads(to_json(values)) == {"a": [1.5, None], "b": [None, {"c": None}], "d": "NaN"}


def test_lines_of_json_are_numbered_as_in_the_file(tmp_path):
    path = written(tmp_path, '\ufeff{"a": "\u2028"}\r\n\n{"b": [1]}', name="rows.jsonl")
    assert [(where.rpartition(", ")[2], row) for where, row in read_json_lines(path)] == [
        ("line 1", {"a": "\u2028"}), ("line 3", {"b": [1]}),
    ]  # fmt: skip
    assert read_json(written(tmp_path, '{"a": {"b": [[1]]}}', name="one.json")) == {"a": {"b": [[1]]}}


def test_brackets_in_strings_are_no_levels():
    text = json.dumps({"[" * 100 + '"': "\\" * 3 + "{" * 100})
    assert parse_json(text, where="here") == json.loads(text)
    with pytest.raises(ConfigError, match="more than 64 levels"):
        parse_json("[" * 65 + "]" * 65, where="here")
    assert parse_json("[" * 64 + "]" * 64, where="here")


def test_long_messages_are_cut_in_the_middle():
    message = str(ConfigError(f"file.yaml: {LONG}; mend it\n" * 100))
    assert message.startswith("file.yaml: xxx")
    assert "; mend it" in message
    assert len(message) < 100_000


class Ranks(Config):
    ranks: tuple[Count, ...]


def test_of_many_faults_the_first_are_said():
    message = said(lambda: validate(Ranks, {"ranks": ["x"] * 10_000}, where="mine"))
    assert "ranks.19" in message
    assert "and 9980 more" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{a: 1, a: 2}", "key 'a' stands twice, line 1"),
        ("a: {b: 1,\n  b: 2}", "key 'b' stands twice, line 2"),
        ("{5: 1, 5: 2}", "key 5 stands twice"),
        ("[" * 65 + "]" * 65, "more than 64 levels"),
        ("- " * 40_000, "more than 64 levels"),
        (next(text for text in FILES["yaml"] if "*h" in text), "more than 200,000 values, by its aliases"),
        ("[" + "1," * 200_001 + "]", "more than 200,000 values, line 1"),
        ("&a [*a]", "alias 'a' of nothing that stands whole before it"),
        ("!!int 5", "tag 'tag:yaml.org,2002:int', of which none is read"),
        (HUGE, "takes more than 64 bits"),
        ("1e400", "'1e400' is no finite number"),
        (".nan", "'nan' is no finite number"),
        ("a\n--- b", "a second document, line 2"),
        ("? [1]\n: 2", "a key that is no plain value"),
        ('"\\q"', "found unknown escape character"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_said_of_a_value_that_is_not_read(text, message):
    assert message in said(lambda: parse_value(text, where="here"))
    assert said(lambda: parse_value(text, where="here")).startswith("here: not valid YAML (")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"b": [{"a": 1, "a": 2}]}', "key 'a' stands twice"),
        ('{"a": NaN}', "'NaN' is no finite number"),
        ('{"a": -1e999}', "'-1e999' is no finite number"),
        ('{"a": 9223372036854775808}', "takes more than 64 bits"),
        ('{"a": ' + HUGE + "}", "takes more than 64 bits"),
        ("[" * 40_000, "more than 64 levels"),
        ('{"a": 1} {"b": 2}', "Extra data"),
        ('{"a": 01}', "Expecting ',' delimiter"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_said_of_json_that_is_not_read(text, message):
    assert message in said(lambda: parse_json(text, where="here"))


def test_a_message_holds_nothing_that_a_terminal_obeys():
    assert str(ConfigError("a\x1b[31m\x85\u202e\ud800\tb\nc")) == r"a\x1b[31m\x85\u202e\ud800\tb" + "\nc"


def test_a_table_holds_nothing_that_a_terminal_obeys(scaleout, tmp_path):
    path = written(
        tmp_path, f'like: dlrm-128\nname: "a\\e[31m"\ndescription: "b\\e]0;x\\a"\n{"schedules: [baseline]"}\n'
    )
    for verb in ("show", "run"):
        code, out, err = scaleout(verb, path)
        assert (code, err) == (0, "")
        assert printable(out) == out
        assert r"a\x1b[31m" in out


@pytest.mark.parametrize("text", ["010", "0_1", "٣", "+5", " 5", "1e3", "5.0", "-1", "", HUGE])
def test_what_is_no_whole_number_of_an_option(text):
    assert whole(text) is None


@pytest.mark.parametrize("text", ["010", "00.5", "nan", "inf", "1e400", "٣", "1:30", "0x1", "", " 5", "5 # five"])
def test_what_is_no_number_of_an_option(text):
    assert number_of(text) is None
    assert (number_of("1_0.5e-1"), number_of(".5"), number_of("-5"), whole("10")) == (1.05, 0.5, -5.0, 10)


def test_a_line_beside_tables_holds_nothing_that_a_terminal_obeys(capsys):
    console().print("a\x1b[31m")
    print_table("b\x1b[31m", ("c\x1b[31m",), [["d\x1b[31m"]])
    out = capsys.readouterr().out
    assert printable(out) == out
    assert all(rf"{letter}\x1b[31m" in out for letter in "abcd")
