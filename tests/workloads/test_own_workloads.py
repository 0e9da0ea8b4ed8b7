"""What a newcomer writes for a model of his own: the fewest keys, an encoder, heads and tables that differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.config import library
from scaleout.errors import ConfigError
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

ENCODER = {
    "kind": "transformer", "hidden": 256, "layers": 2, "heads": 4, "ffn": 1024, "vocabulary": 1000, "sequence": 512,
    "batch_per_replica": 2, "causal": False,
}  # fmt: skip
DLRM = {
    "kind": "dlrm", "data_parallel": 2, "global_batch": 64, "embedding_dim": 8, "dense_features": 13,
    "bottom_mlp": [16, 8], "top_mlp": [16, 1], "interaction": "dot",
    "tables": [{"rows": 1000}, {"rows": 50, "pooling": 20}, {"rows": 2000, "pooling": 5}],
}  # fmt: skip


def written(folder, keys):
    """Write a file of some keys, and load it."""
    path = folder / "mine.yaml"
    path.write_text("\n".join(f"{key}: {value}" for key, value in keys.items()).replace("'", ""))
    return load_workload(str(path))


def flops_of(job, *words):
    """FLOPs of kernels whose operation has some words."""
    (graph,) = generate(job).graphs
    return sum(int(graph.flops[node]) for node in range(len(graph)) if all(w in graph.operation(node) for w in words))


@pytest.mark.parametrize("keys", [ENCODER, DLRM], ids=["encoder", "dlrm"])
def test_a_workload_of_one_s_own_needs_no_description(keys, tmp_path):
    assert written(tmp_path, keys).description == ""


def test_what_is_like_another_is_not_called_that_nor_has_its_source(tmp_path):
    """They say what it is that the file changes."""
    job = written(tmp_path, {"like": "mixtral-8x7b", "experts": 64, "top_k": 6})
    assert (job.description, job.source) == ("mixtral-8x7b with other values: experts, top_k", "")


def test_every_shipped_workload_says_what_it_is():
    assert all(load_workload(name).description and load_workload(name).source for name in library.names("workload"))


@given(seq=st.sampled_from([128, 512]), kv_heads=st.sampled_from([1, 4]))
def test_an_encoder_s_attention_has_the_flops_that_a_mask_saves(tmp_path_factory, seq, kv_heads):
    keys = {**ENCODER, "sequence": seq, "kv_heads": kv_heads}
    folder = tmp_path_factory.mktemp("own")
    encoder, decoder = (written(folder, {**keys, "causal": causal}) for causal in (False, True))
    for way in ("fwd", "bwd"):
        assert flops_of(encoder, "attention", way) == 2 * flops_of(decoder, "attention", way) > 0
    assert flops_of(encoder, "gemm") == flops_of(decoder, "gemm")
    assert encoder.num_parameters == decoder.num_parameters


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({**ENCODER, "context_parallel": 2}, "context_parallel 2 balances causal attention, and causal is false"),
        ({**ENCODER, "mode": "decode"}, "with causal false, choose prefill"),
        ({**ENCODER, "window": 8}, "window is of decoders, where causal is true"),
        ({**ENCODER, "heads": 5}, "a head's width is their quotient, unless head_size gives another"),
        ({**DLRM, "tables": 3}, "tables: lists tables that differ, as [{rows: 1000000, pooling: 20}]"),
        ({**DLRM, "rows_per_table": [10, 20]}, "rows_per_table: is one number for all tables; where they differ"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_said_with_what_does(keys, words, tmp_path):
    with pytest.raises(ConfigError) as refused:
        written(tmp_path, keys)
    assert words in str(refused.value)


def test_heads_of_a_width_of_their_own(tmp_path):
    job = written(tmp_path, {**ENCODER, "heads": 7, "kv_heads": 1, "head_size": 64})
    assert job.score_dim == 64


@pytest.mark.parametrize("key", ["1", "true", "null", "1.5"])
def test_a_key_that_is_no_text_is_refused_above_another_workload_too(tmp_path, key):
    """The fuzzer found that the words of what it changes were joined before its keys were looked at."""
    (tmp_path / "mine.yaml").write_text(f"like: llama-3-8b\nlayers: 4\n{key}: 2\n")
    with pytest.raises(ConfigError, match="key"):
        load_workload(str(tmp_path / "mine.yaml"))
