"""Validated files: what is wrong is said in the user's words, and the nearest known key is named."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scaleout.config import documents, reading
from scaleout.config.units import BytesPerSecond
from scaleout.config.validated import Config, nearest, read_yaml, validate
from scaleout.errors import ConfigError
from scaleout.simulation.options import NETWORKS
from scaleout.workloads.config.frameworks import FRAMEWORKS
from scaleout.workloads.families import FAMILIES


class Link(Config):
    bandwidth: BytesPerSecond
    latency: float = 0.0


class Cluster(Config):
    name: str
    links: tuple[Link, ...] = ()
    spare: Link | None = None
    by_name: dict[str, Link] | None = None


def refused(values):
    with pytest.raises(ConfigError) as caught:
        validate(Cluster, values, where="mine.yaml")
    return str(caught.value)


def test_good_values_pass_and_are_frozen():
    cluster = validate(Cluster, {"name": "a", "links": [{"bandwidth": "8 Gb/s"}]}, where="mine.yaml")
    assert cluster.links[0].bandwidth == 1e9
    with pytest.raises(ValidationError, match="frozen"):
        cluster.name = "b"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "a", "linsk": []}, "mine.yaml: unknown key 'linsk'; did you mean 'links'?"),
        ({"name": "a", "zzz": 1}, "unknown key 'zzz'; known: by_name, links, name, spare"),
        ({"name": "a", "links": [{"bandwith": 1}]}, "unknown key 'links.0.bandwith'; did you mean 'bandwidth'?"),
        ({"name": "a", "spare": {"bandwidth": 1, "latncy": 1}}, "unknown key 'spare.latncy'; did you mean 'latency'?"),
        ({"name": "a", "by_name": {"x": {"bandwidth": 1, "latncy": 1}}}, "did you mean 'latency'?"),
        ({}, "mine.yaml: key 'name' is missing; add it"),
        ({"name": "a", "links": [{}]}, "key 'links.0.bandwidth' is missing; add it"),
        ({"name": "a", "links": [{"bandwidth": "8 furlongs"}]}, "links.0.bandwidth: '8 furlongs': unknown unit"),
        ({"name": ["a"]}, "name: must be a text, not ['a']"),
    ],
)
def test_what_is_refused_and_what_is_said(values, message):
    assert message in refused(values)


def test_every_fault_has_a_line():
    said = refused({"linsk": [], "spare": {"latency": "x"}})
    assert len(said.splitlines()) == 4  # name missing, spare.bandwidth missing, spare.latency no number, linsk unknown
    for word in ("'name' is missing", "'spare.bandwidth' is missing", "spare.latency:", "unknown key 'linsk'"):
        assert word in said


def test_nearest_names_one_or_all():
    assert nearest("allreduce", ["all_reduce", "barrier"]) == "did you mean 'all_reduce'?"
    assert nearest("fsdp", ["sequence", "zero"]) == (
        "did you mean 'zero' (1 is Megatron's distributed optimizer, 3 shards as FSDP; "
        "PyTorch's FSDP as it runs is framework=fsdp2)?"
    )
    assert nearest("global_batch", ["batch_per_replica", "microbatch"]) == (
        "did you mean 'batch_per_replica' (sequences of a step of each replica: the global batch over data_parallel)?"
    )
    # what begins so goes before what is spelt nearly so
    assert nearest("a100", ["a100-40g", "a100-80g", "v100"]) == "did you mean 'a100-40g' or 'a100-80g'?"
    assert nearest("tp", ["ffn"]) == "known: ffn"
    assert nearest("xyz", ["b", "a"]) == "known: a, b"


def test_words_of_other_tools_are_of_keys_that_models_have():
    """So a key that is renamed takes its hints along; no word is a key's own name, for which none would ask."""
    keys = {key for family in FAMILIES.values() for key in family.model_fields}
    assert set(reading._SAID_ELSEWHERE) <= {*keys, *FRAMEWORKS, *NETWORKS}
    words = {word for words in reading._SAID_ELSEWHERE.values() for word in words}
    assert not words & (keys - {"global_batch"})  # DLRM's own; transformers have none
    for known in (keys, FRAMEWORKS, NETWORKS):  # of each a word means one
        meant = [word for name, words in reading._SAID_ELSEWHERE.items() if name in known for word in words]
        assert len(set(meant)) == len(meant)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"- 1\n- 2\n", "holds no mapping of keys to values"),
        (b"", "holds no mapping of keys to values"),
        (b"a: [1\n", "not valid YAML"),
        (b"a: \xff\n", "is no text in UTF-8"),
    ],
)
def test_files_that_are_no_mapping_are_refused(tmp_path, content, message):
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_yaml(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read \(No such file or directory\); give an existing file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path)


def test_yaml_runs_no_code(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("a: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_yaml(path)


@given(text=st.text("0123456789eE+-. ", max_size=60), piece=st.integers(1, 70))
def test_huge_numbers_are_found_wherever_a_text_is_cut(text, piece):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "_PIECE", piece)
        assert (documents.decoder_of(text) is documents._CAREFUL) == bool(
            re.search(r"[0-9]{19}|[eE][+]?[0-9]{3}", text)
        )
