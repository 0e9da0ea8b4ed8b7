"""What commands print with --json: each a document of the published schema, and a name means one thing in all."""

import json
from pathlib import Path

import click
import jsonschema
import pytest
from click.testing import CliRunner

import scaleout
from scaleout.cli.verbs import scaleout as command_line
from scaleout.errors import ConfigError
from scaleout.report.documents import NAMES, document
from scaleout.report.keys import MODELS
from scaleout.report.vocabulary import DOCUMENTS, OBJECTS, vocabulary
from scaleout.study.sweep.columns import ABOUT, COLUMNS, DIMENSION_BYTES

NODE = "--topology dgx-h200-1"
LLAMA = f"llama-small --set layers=1 --set data_parallel=8 {NODE}"
SEARCH = f"search llama-small --set layers=2 {NODE} --top 2 --workers 1"
STUDY = "study {data}/study.yaml --output {data}"
COMMANDS = {
    "run": [
        f"run {LLAMA} --schedule baseline --schedule fused",
        f"run {LLAMA} --schedule overlap --network link",
        "run dlrm-128 --schedule fused --schedule baseline --set global_batch=1024 --device mi210",
        "run resnet-50 --schedule overlap",
    ],
    "search": [
        f"{SEARCH} --set zero=3 --schedule overlap --export torchtitan",
        SEARCH,
    ],
    "goodput": [f"goodput {LLAMA} --tokens 1B --checkpoint 10s"],
    "collective": [
        "collective all_reduce --bytes 1MiB,0B --topology torus-8x16",
        "collective all_to_all --bytes 1MiB --topology torus-8x16 --network link",
        "collective all_reduce --topology torus-8x16 --decide --bytes 1KiB:1MiB",
        "collective all_reduce --bytes 1KiB:64KiB --topology sierra-16 --compare",
    ],
    "buckets": [f"buckets {LLAMA} --bytes 16MiB:32MiB"],
    "strategies": [f"strategies {LLAMA} --strategy ddp --strategy zero-3"],
    "operator": ["operator embedding_all_to_all", "operator embedding_all_to_all --sweep slice_size=1:2"],
    "track": ["track"],
    "reproduce": ["reproduce F15-mean --vary"],
    "validate": ["validate {data}/rows.jsonl"],
    "diff": ["diff {data}/a.json {data}/a.json"],
    "study": [f"{STUDY}/out --no-report", f"{STUDY}/part --shard 1/2"],
    "import model": ["import model {data}/config.json"],
    "trace": [f"trace {LLAMA.replace(NODE, '')} --output {{data}}/traces"],
    "show": ["show h200", "show mi300x", "show torus-8x16 --break 0-1 --slow 3=1.2", "show sierra-16", "show graph-8",
             "show dgx-h200-16 --nic-down 5", "show fat_tree(4,2,ndr)", "show dlrm-dcnv2",
             "show llama-3-8b --set framework=fsdp2", "show resnet-50", "show ndr", "show topologies",
             "show {data}/small", "show {data}/small/llama-small.0.et", "show {data}/searched#1",
             *(f"show --keys {kind}" for kind in MODELS)],
    "list": ["list", "list workloads mixtral"],
}  # fmt: skip
"""Command to lines of it; those of `astra` and `import pytorch` are tested where their inputs are made."""

ROW = {"workload": "llama-small", "changes": {"layers": 1, "data_parallel": 8}, "topology": "dgx-h200-1",
       "device": "h200", "schedule": "overlap", "measured_us": 1000}  # fmt: skip
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
         "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000,
         "max_position_embeddings": 128}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with what commands read."""
    folder = tmp_path_factory.mktemp("documents")
    (folder / "rows.jsonl").write_text(json.dumps(ROW) + "\n" + json.dumps({"id": "unknown"}) + "\n")
    (folder / "config.json").write_text(json.dumps(MODEL))
    printed(f"trace {LLAMA.replace(NODE, '')} --output {folder}/small")
    printed(f"{SEARCH} --output {folder}/searched")
    (folder / "a.json").write_text(printed(f"run {LLAMA} --schedule overlap"))
    (folder / "study.yaml").write_text(
        "title: two\nworkload: llama-small\nset: {layers: 1, data_parallel: 8, batch_per_replica: [1, 2]}\n"
        "topology: dgx-h200-1\nschedule: overlap\n"
    )
    return folder


def printed(line):
    """Standard output of a command with --json."""
    found = CliRunner().invoke(command_line, [*line.split(), "--json"], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


@pytest.mark.parametrize(
    ("command", "line"), [(command, line) for command, lines in COMMANDS.items() for line in lines]
)
def test_what_is_printed_is_of_the_schema(command, line, data):
    found = json.loads(printed(line.format(data=data)))
    jsonschema.validate(found, scaleout.schema(command))
    assert found["command"] == command
    assert found["version"] == scaleout.__version__
    assert found["schema"] == scaleout.schema(command)["$id"]
    assert found["inputs"]


def test_every_command_that_prints_json_has_a_schema():
    missing = set(DOCUMENTS) - set(COMMANDS)
    assert missing == {"astra", "import pytorch"}
    for command in DOCUMENTS:
        jsonschema.Draft202012Validator.check_schema(scaleout.schema(command))


def test_names_are_known_and_used():
    used = {name for each in (*OBJECTS.values(), *DOCUMENTS.values()) for name in f"{each.always} {each.maybe}".split()}
    assert used | {"schema", "version", "command", "inputs", "models"} == set(vocabulary())


def test_a_name_that_is_not_in_the_schema_is_refused():
    """The test of documents can fail: an unknown name, one that lacks, and one of another type."""
    line = f"run {LLAMA} --schedule overlap"
    found, schema = json.loads(printed(line)), scaleout.schema("run")
    for wrong in (
        {**found, "extra": 1},
        {name: value for name, value in found.items() if name != "ranks"},
        {**found, "ranks": "8"},
        {**found, "results": [{**found["results"][0], "makespan_s": {"data": 1.0}}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_names_that_issues_fixed_stay():
    rows = json.loads(printed(f"run {LLAMA} --schedule overlap"))
    assert {"workload", "topology", "device", "ranks", "results", "model"} <= rows.keys()
    assert {"schedule", "makespan_s", "compute_s", "communication_s", "exposed_communication_s", "idle_s", "speedup",
            "kernel_time_sources"} <= rows["results"][0].keys()  # fmt: skip


def test_a_name_within_the_package_gives_way_to_that_of_documents():
    found = document(
        "search", {"fastest": [{"step_s": 1.0, "memory_bytes": {"a": 2.0}}], "memory_bytes": 3.0}, inputs={}
    )
    assert found["fastest"] == [{"makespan_s": 1.0, "memory_by_kind_bytes": {"a": 2.0}}]
    assert found["memory_capacity_bytes"] == 3.0
    assert "memory_bytes" not in found
    assert set(NAMES) <= set(DOCUMENTS)


def test_an_unknown_command_has_no_schema():
    with pytest.raises(ConfigError, match="no documents of 'ran'; did you mean 'run'"):
        scaleout.schema("ran")
    assert scaleout.schema("import-model") == scaleout.schema("import model")


def test_the_published_schemas_are_those_of_the_code():
    """`python figures/schemas.py` writes them."""
    folder = Path(__file__).parents[2] / "docs" / "schema"
    assert {path.stem.replace("-", " ") for path in folder.glob("*.json")} == set(DOCUMENTS)
    for command in DOCUMENTS:
        assert json.loads((folder / f"{command.replace(' ', '-')}.json").read_text()) == scaleout.schema(command)


def kinds(schema, way=()):
    """Every name that stands within a schema, with its type and the command that it is of."""
    for name, each in schema.get("properties", {}).items():
        yield name, tuple(layers(each)), ".".join((*way, name))
        yield from kinds(each, (*way, name))
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from kinds(schema[inner], way)


def layers(schema):
    """The type of a value, then those of what it holds; names of an object within it are compared by themselves."""
    yield schema.get("type") if isinstance(schema.get("type"), str) else tuple(schema.get("type", ()))
    for inner in ("items", "additionalProperties"):
        if isinstance(schema.get(inner), dict):
            yield from layers(schema[inner])


def of_two_types(schemas):
    """Names that have one type in a schema and another in the same or another, and where."""
    found = {}
    for command, schema in schemas.items():
        for name, kind, where in kinds(schema, (command,)):
            found.setdefault(name, {}).setdefault(kind, where)
    return {name: list(places.values()) for name, places in found.items() if len(places) > 1}


def test_a_name_has_one_type_in_all_published_schemas():
    folder = Path(__file__).parents[2] / "docs" / "schema"
    schemas = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    assert not of_two_types(schemas)
    names = {name for command, schema in schemas.items() for name, *_ in kinds(schema)}
    assert {"answer", "makespan_s", "bound_by"} <= names <= set(vocabulary())
    schemas["goodput"]["properties"]["makespan_s"]["type"] = "integer"
    schemas["run"]["properties"]["results"]["items"]["properties"]["exposed_by_axis_s"]["additionalProperties"] = {}
    assert of_two_types(schemas) == {
        "makespan_s": ["astra.results.makespan_s", "goodput.makespan_s"],
        "exposed_by_axis_s": ["astra.results.exposed_by_axis_s", "run.results.exposed_by_axis_s"],
    }


def test_columns_of_studies_mean_what_names_of_documents_mean():
    """Texts of a row stand in one cell: lists joined, and the model as the line that `models` has."""
    assert {*COLUMNS, *ABOUT, DIMENSION_BYTES.rstrip(".")} <= set(vocabulary())
    for name, column in COLUMNS.items():
        if name not in ("decisions", "model"):
            kind = vocabulary()[name].type.removesuffix("?")
            assert kind == {"ranks": "integer", "fits": "boolean"}.get(name, "number"), name
            assert bool(column.unit) == (kind == "number"), name


def folders(command):
    """Whether a command writes a folder of results."""
    found = command_line.get_command(click.Context(command_line), command.split()[0])
    return any(isinstance(each, click.Option) and each.name == "output" for each in found.params)


@pytest.mark.parametrize(
    ("command", "line"),
    [(each, lines[each == "collective"]) for each, lines in COMMANDS.items() if each not in ("study", "trace")],
)
def test_the_file_of_results_has_what_is_printed(command, line, data, tmp_path):
    """`--output` beside `--json`: summary.json is the document."""
    if not folders(command):
        pytest.skip("writes no folder")
    text = printed(f"{line.format(data=data)} --output {tmp_path / 'out'}")
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == json.loads(text)


def test_columns_of_answers_are_names_of_documents_with_the_same_values():
    """A row of `to_frame()` is one of the document; what a document nests is spelt with a dot."""
    small = {"layers": 1, "data_parallel": 8}
    answers = [
        scaleout.run("llama-small", topology="dgx-h200-1", changes=small, schedules=["baseline", "fused"]),
        scaleout.collective("all_reduce", "1MiB", topology="torus-8x16"),
        scaleout.search("llama-small", topology="dgx-h200-1", changes={"layers": 2}, workers=1, top=2),
    ]
    for answer in answers:
        found, frame = answer.to_dict(), answer.to_frame()
        rows = next(found[name] for name in ("fastest", "results") if name in found)
        assert len(rows) == len(frame)
        assert {name.split(".")[0] for name in frame} <= set(vocabulary())
        for number, row in enumerate(rows):
            plain = {name: value for name, value in row.items() if isinstance(value, int | float | str)}
            assert len(plain) > 4
            assert {name: frame[name][number] for name in plain} == plain


def test_the_table_of_a_study_has_columns_of_its_document(data):
    """What a case has is what `run` says of it alone, under the same names."""
    cases = scaleout.sweep(
        workload="llama-small",
        topology="dgx-h200-1",
        schedule="overlap",
        set={"layers": 1, "data_parallel": 8},
        workers=1,
    ).to_frame()
    alone = json.loads(printed(f"run {LLAMA} --schedule overlap"))["results"][0]
    shared = {name for name, value in alone.items() if name in cases and isinstance(value, float)}
    assert len(shared) > 8
    assert {name: cases[name][0] for name in shared} == {name: alone[name] for name in shared}
