"""Workloads: all shipped ones load, what does not divide is refused by its key, models have their published size."""

import json
from pathlib import Path

import pytest
import yaml

from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config import library
from scaleout.config.keys import in_words
from scaleout.errors import ConfigError
from scaleout.program.operations import OPERATIONS, Family
from scaleout.workloads.families import FAMILIES, Dlrm, Moe, Transformer, load_workload
from scaleout.workloads.generate import generate

HEADER = {"description": "a test", "source": "none", "topology": "ring-128", "device": "h200"}
DLRM = {
    "kind": "dlrm", "data_parallel": 4, "global_batch": 64, "tables_per_rank": 3, "rows_per_table": 100,
    "embedding_dim": 8, "pooling": 5, "dense_features": 13, "mlp_width": 16, "bottom_layers": 2, "top_layers": 3,
    "interaction": "dot",
}  # fmt: skip
TRANSFORMER = {
    "kind": "transformer", "hidden": 64, "layers": 2, "heads": 8, "ffn": 96, "vocabulary": 120, "sequence": 32,
    "batch_per_replica": 1,
}  # fmt: skip
MOE = TRANSFORMER | {"kind": "moe", "experts": 8, "top_k": 2}


@pytest.fixture
def load(tmp_path: Path):
    def of(values, **changes):
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(HEADER | values))
        return load_workload(str(tmp_path / "mine.yaml"), changes)

    return of


@pytest.mark.parametrize("name", library.names("workload"))
def test_every_shipped_workload_loads_and_says_where_it_comes_from(name):
    workload = load_workload(name)
    assert workload.name == name
    assert type(workload) is FAMILIES[workload.kind]
    assert workload.description
    assert workload.source
    assert workload.num_ranks == workload.mesh.num_ranks
    assert workload.topology in library.names("topology")
    assert workload.device in library.names("device")


def test_defaults_and_changes(load):
    workload = load(TRANSFORMER, data_parallel=2, gradient_bucket="1MiB")
    assert isinstance(workload, Transformer)
    assert (workload.num_ranks, workload.dtype, workload.item_bytes, workload.gradient_bucket) == (2, "bf16", 2, 2**20)
    assert workload.key_value_heads == workload.heads
    assert isinstance(load(MOE), Moe)
    assert isinstance(load(DLRM), Dlrm)
    assert load(DLRM).dtype == "fp32"


def test_a_file_of_ones_own_needs_neither_source_nor_machine(tmp_path, scaleout):
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({"description": "mine"} | TRANSFORMER))
    code, _, err = scaleout("run", str(file), "--device", "h200")
    assert (code, err.count("no topology is given; give --topology NAME, or the key topology")) == (2, 1)
    code, _, err = scaleout("run", str(file), "--topology", "dgx-h200-1")
    assert (code, err.count("no device is given; give --device NAME, or the key device")) == (2, 1)
    assert scaleout("run", str(file), "--topology", "switch(1,nvlink4)", "--device", "h200")[0] == 0


@pytest.mark.parametrize(
    ("layers", "uneven", "virtual", "said"),
    [
        (
            126,
            [8] * 14 + [7] * 2,
            8,
            "choose virtual_stages of at most 7, or write stage_layers of 128 numbers, such as 1 ",
        ),
        (
            126,
            [8] * 14 + [7] * 2,
            7,
            "112 stages and 126; write stage_layers of 112 numbers, such as 2 for 14 and 1 for 98",
        ),
        (96, None, 4, "or choose virtual_stages 2 or 3 or 6 without stage_layers, or write stage_layers of 64 numbers"),
    ],
)
def test_many_stages_are_not_listed(layers, uneven, virtual, said):
    values = {"layers": layers, "stage_layers": uneven, "pipeline_parallel": 16, "virtual_stages": virtual}
    fixed = {"pipeline_schedule": "interleaved_1f1b", "batch_per_replica": 16, "microbatch": 1}
    with pytest.raises(ConfigError) as caught:
        load_workload("llama-3-405b", values | fixed)
    assert said in str(caught.value)
    assert "[1, 1" not in str(caught.value)


def test_stages_fall_back_to_equal_ones(load):
    uneven = TRANSFORMER | {"stage_layers": [2, 0], "pipeline_parallel": 2}
    assert load(uneven).stage_layers == (2, 0)
    assert load(uneven, stage_layers=None).stage_layers == ()


REFUSED = [
    (DLRM, {"global_batch": 66}, "global_batch 66 does not divide over data_parallel 4 ranks; use a multiple of 4"),
    (DLRM, {"tensor_parallel": 2}, "tensor_parallel 2 means nothing for a dlrm; set data_parallel alone"),
    (DLRM, {"expert_parallel": 2}, "expert_parallel 2 means nothing for a dlrm"),
    (DLRM, {"interaction": "outer"}, "interaction: must be 'dot', 'cat', 'sum' or 'dcn', not 'outer'"),
    (TRANSFORMER, {"heads": 7}, "hidden 64 does not divide by heads 7"),
    (TRANSFORMER, {"kv_heads": 3}, "heads 8 does not divide by kv_heads 3"),
    (TRANSFORMER, {"tensor_parallel": 16}, "heads 8 does not divide over tensor_parallel 16 ranks; choose a"),
    (TRANSFORMER, {"kv_heads": 2, "tensor_parallel": 4}, "kv_heads 2 does not divide over tensor_parallel 4"),
    (TRANSFORMER, {"ffn": 98, "tensor_parallel": 4}, "ffn 98 does not divide over tensor_parallel 4"),
    (TRANSFORMER, {"vocabulary": 121, "tensor_parallel": 4}, "vocabulary 121 does not divide over tensor_parallel 4"),
    (
        TRANSFORMER,
        {"mode": "decode", "tensor_parallel": 4, "sequence_parallel": True},
        "sequence_parallel: 1 tokens do not divide over tensor_parallel 4",
    ),
    (
        TRANSFORMER,
        {"expert_parallel": 2, "data_parallel": 2},
        "expert_parallel 2 needs experts; a model of kind transformer has",
    ),
    (MOE, {"experts": 6, "expert_parallel": 4, "data_parallel": 4}, "experts 6 do not spread over expert_parallel 4"),
    (MOE, {"expert_parallel": 4, "data_parallel": 6}, "expert_parallel 4 does not divide data_parallel 6"),
    (MOE, {"top_k": 9}, "top_k 9 is more than the 8 experts there are"),
    (
        MOE,
        {"mode": "decode", "top_k": 1, "batch_per_replica": 9},
        "9 tokens x top_k 1 x expert_parallel 1 do not spread evenly over 8 experts; choose batch_per_replica 16 or "
        "another multiple of 8, or give a capacity_factor",
    ),
    (
        MOE,
        {"mode": "decode", "top_k": 1, "batch_per_replica": 6, "microbatch": 2},
        "2 tokens x top_k 1 x expert_parallel 1 do not spread evenly over 8 experts; choose microbatch 8 or another",
    ),
    (
        MOE,
        {"mode": "decode", "top_k": 1, "batch_per_replica": 6, "tensor_parallel": 2, "sequence_parallel": True}
        | {"data_parallel": 2, "expert_parallel": 2},
        "3 tokens x top_k 1 x expert_parallel 2 do not spread evenly over 8 experts; choose batch_per_replica 8 or",
    ),
    (MOE, {"sequence": 33, "top_k": 1}, "33 tokens x top_k 1 x expert_parallel 1 do not spread evenly over 8 experts"),
    (MOE, {"heads": 7}, "hidden 64 does not divide by heads 7"),
    (TRANSFORMER, {"pipeline_parallel": 4}, "4 stages are more than layers 2"),
    (TRANSFORMER, {"pipeline_parallel": 2, "layers": 3}, "layers 3 do not divide over 2 stages"),
    (
        TRANSFORMER,
        {"pipeline_parallel": 2, "stage_layers": [1, 2]},
        "stage_layers has 2 stages and 3 layers, and the job 2 stages and 2; write `--set 'stage_layers=[1, 1]'`",
    ),
    (TRANSFORMER, {"rank_order": None}, "rank_order: must be a list, not null"),
    (TRANSFORMER, {"pipeline_schedule": "1f1c"}, "unknown pipeline_schedule '1f1c'; did you mean '1f1b'?"),
    (
        TRANSFORMER,
        {"virtual_stages": 2},
        "pipeline_schedule '1f1b' cuts the model of a rank into 1 virtual stages,",
    ),
    (TRANSFORMER, {"microbatch": 2}, "microbatch 2 does not divide batch_per_replica 1"),
    (TRANSFORMER, {"context_parallel": 3}, "sequence 32 does not divide over context_parallel 3 ranks"),
    (TRANSFORMER, {"context_parallel": 2, "mode": "decode"}, "context_parallel 2 cuts sequences; decode has one"),
    (TRANSFORMER, {"shard_ranks": 2}, "shard_ranks 2 shards nothing with zero 0"),
    (
        TRANSFORMER,
        {"overlap_parameter_gather": True},
        "with zero 0 stepped parameters are gathered by nobody; set zero",
    ),
    (
        TRANSFORMER,
        {"overlap_parameter_gather": True, "zero": 3},
        "with zero 3 stepped parameters are gathered layer by layer anyway",
    ),
    (TRANSFORMER, {"shard_ranks": 2, "zero": 3, "data_parallel": 3}, "shard_ranks 2 does not divide the 3 ranks"),
    (TRANSFORMER, {"rank_order": ["tensor", "data"]}, "rank_order tensor, data does not name each axis once"),
    (TRANSFORMER, {"layers": 0}, "layers: must be greater than 0, not 0"),
    (TRANSFORMER, {"layers": 2.5}, "layers: must be a whole number"),
    (TRANSFORMER, {"hiden": 64}, "unknown key 'hiden'; did you mean 'hidden'?"),
    (TRANSFORMER, {"experts": 8}, "unknown key 'experts'"),
    (
        TRANSFORMER,
        {"dtype": "int8"},
        "dtype: must be fp32, tf32, bf16 or fp16, not 'int8'; fp8 is of GEMMs alone: linear_dtype",
    ),
    (TRANSFORMER, {"gradient_bucket": "25 MeB"}, "gradient_bucket: '25 MeB': unknown unit 'MeB' for a size"),
    (TRANSFORMER, {"kind": "transfomer"}, "kind 'transfomer' is no kind of workload; did you mean 'transformer'?"),
    (TRANSFORMER, {"kind": ["dlrm"]}, "kind ['dlrm'] is no kind of workload"),
    (TRANSFORMER, {"kind": None}, f"key 'kind' is missing; add one of {', '.join(FAMILIES)}"),
    (
        TRANSFORMER,
        {"kind": None, "title": "two cases"},
        "is no workload (it has no key 'kind'), but a study; run it by",
    ),
    (TRANSFORMER, {"kind": None, "schema": "scaleout/run/3"}, "but an answer of scaleout; open it by `scaleout view`"),
]


@pytest.mark.parametrize(("values", "changes", "message"), REFUSED)
def test_what_is_refused_and_what_is_said(load, values, changes, message):
    load(values)  # fine without the change
    with pytest.raises(ConfigError) as caught:
        load(values, **changes)
    assert message in str(caught.value)
    assert "mine.yaml" in str(caught.value)


def test_a_missing_key_and_a_missing_workload(load):
    with pytest.raises(ConfigError, match="key 'hidden' is missing; add it"):
        load({key: value for key, value in TRANSFORMER.items() if key != "hidden"})
    with pytest.raises(ConfigError, match=r"unknown workload 'llama-3-7b'; did you mean 'llama-3-\d+b'"):
        load_workload("llama-3-7b")


def optimizer_parameters(workload):
    """Parameters that one rank's optimizer kernel steps."""
    graph = generate(workload).graphs[0]
    (step,) = (call for call in graph.kernels if call.op in ("adamw_fused", "sgd"))
    return step.sizes["parameters"]


def model_parameters(w):
    """Parameters of a decoder: written from the model's shapes alone, nothing cut.

    Attention has q and o of h x h, and k and v of h x (h / heads * kv_heads); a feed-forward network has 2 matrices
    h x f, SwiGLU 3; an RMS norm h, a layer norm 2 h, two a layer and one at the end; a table of V x h in, one out.
    """
    h = w.hidden
    kv = h // w.heads * (w.kv_heads or w.heads)
    network = (3 if w.activation == "swiglu" else 2) * h * w.ffn
    if w.kind == "moe":
        network = w.experts * network + h * w.experts
    scale = 2 * h if w.norm == "layer_norm" else h
    tables = (1 if w.tied_embedding else 2) * w.vocabulary * h
    return w.layers * (2 * h * h + 2 * h * kv + network + 2 * scale) + scale + tables


PUBLISHED = [
    ("llama-3-8b", {"zero": 0}, 8.03e9),  # Meta's model card: 8.03B
    ("llama-3-70b", {"zero": 0}, 70.6e9),
    ("mixtral-8x7b", {"zero": 0, "expert_parallel": 1}, 46.7e9),  # arXiv:2401.04088: 47B; 46.7B on the model card
    ("gpt-3", {}, 175e9),  # arXiv:2005.14165
    ("mt-nlg", {}, 530e9),  # arXiv:2201.11990
]


@pytest.mark.parametrize(("name", "changes", "published"), PUBLISHED)
def test_the_optimizer_steps_every_parameter_and_models_have_their_published_size(name, changes, published):
    workload = load_workload(name, changes)
    expected = model_parameters(workload)
    assert expected == pytest.approx(published, rel=0.01)
    # Every rank of a tensor-parallel group has all norms, and its part of everything else.
    tp = workload.tensor_parallel
    norms = (2 * workload.layers + 1) * workload.hidden * (2 if workload.norm == "layer_norm" else 1)
    assert tp * optimizer_parameters(workload) == expected + (tp - 1) * norms


def test_experts_are_shared_out_and_the_rest_is_not():
    workload = load_workload("mixtral-8x7b", {"zero": 0})  # one expert of 8 on each rank
    expert = 3 * 4096 * 14336
    assert optimizer_parameters(workload) == model_parameters(workload) - 32 * 7 * expert


def test_dlrm_parameters():
    """682 -> 682 -> 682 -> 92, then 92 -> 682 -> 38 times 682 -> 682 -> 1; tables update in their own kernel."""
    bottom = 682 * 682 * 2 + 682 * 92
    top = 92 * 682 + 38 * 682 * 682 + 682 * 1
    assert optimizer_parameters(load_workload("dlrm-128")) == bottom + top


SIZES = [
    ("llama-3-8b", 8.03e9, 8.03e9 - 128256 * 4096),
    ("llama-3-70b", 70.6e9, 70.6e9 - 128256 * 8192),
    ("mixtral-8x7b", 46.7e9, 12.9e9 - 32000 * 4096),
    ("gpt-3", 175e9, 175e9),
    ("deepseek-v3", 671e9, 37e9),
    ("llama-3-405b", 405.85e9, 405.85e9 - 128256 * 16384),  # Hub, safetensors.total of Llama-3.1-405B: 405,853,388,800
    ("qwen-3-32b", 32.8e9, 32.8e9 - 151936 * 5120),
    ("qwen-3-235b-a22b", 235e9, 22e9 - 151936 * 4096),
    ("gpt-oss-120b", 116.83e9, 5.13e9),
]
"""Model to its published parameters, and to those that multiply a token: the embedding is a look-up."""


@pytest.mark.parametrize(("name", "parameters", "active"), SIZES)
def test_models_have_the_size_that_was_published(name, parameters, active):
    workload = load_workload(name)
    assert workload.num_parameters == pytest.approx(parameters, rel=3e-3)
    assert workload.active_parameters == pytest.approx(active, rel=0.015)


def test_flops_of_a_token():
    """Six for each parameter that multiplies it, and 12 l h s of attention (PaLM, arXiv:2204.02311, appendix B)."""
    gpt = load_workload("gpt-3")
    assert gpt.flops_per_token == 6 * gpt.active_parameters + 12 * gpt.layers * gpt.hidden * gpt.sequence
    assert load_workload("gpt-3", {"mode": "prefill"}).flops_per_token == gpt.flops_per_token / 3
    # Narayanan et al., arXiv:2104.04473: 96 b s l h^2 (1 + s / 6h + v / 16 l h), with every layer computed again.
    layers = 72 * gpt.layers * gpt.hidden**2 * (1 + gpt.sequence / (6 * gpt.hidden))
    head = 6 * gpt.vocabulary * gpt.hidden
    norms = 6 * (2 * gpt.layers + 1) * gpt.norm_width
    assert gpt.flops_per_token == pytest.approx(layers + head + norms, rel=1e-12)


def test_a_file_may_be_like_another(tmp_path):
    (tmp_path / "mine.yaml").write_text("like: gpt-3\nlayers: 48\n")
    (tmp_path / "again.yaml").write_text("like: ./mine.yaml\ntensor_parallel: 8\ntopology: dgx-h200-1\n")
    workload = load_workload(str(tmp_path / "again.yaml"))
    assert (workload.name, workload.layers, workload.tensor_parallel, workload.hidden) == ("again", 48, 8, 12288)
    (tmp_path / "mine.yaml").write_text("like: ./again.yaml\n")
    with pytest.raises(ConfigError, match="like leads back to this file"):
        load_workload(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("like: [gpt-3]\n")
    with pytest.raises(ConfigError, match="give the name or file of a workload"):
        load_workload(str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("like: gpt-4\n")
    with pytest.raises(ConfigError, match="unknown workload 'gpt-4'"):
        load_workload(str(tmp_path / "mine.yaml"))


def test_old_names_of_keys_and_values_are_read_with_a_warning(load):
    for old, new, value in (
        ("products", "linear_dtype", "fp8_rowwise"),
        ("temporaries", "transient_memory", True),
        ("copies_at_end", "replicas_at_end", True),
    ):
        with pytest.warns(FutureWarning, match=f"key '{old}' is now '{new}'"):
            assert getattr(load(TRANSFORMER, **{old: value}), new) == value
    changes = {"context_exchange": "all_to_all", "pipeline_schedule": "interleaved_1f1b", "pipeline_parallel": 1}
    with pytest.warns(FutureWarning, match="context_exchange 'all_to_all' is now 'ulysses'"):
        assert load(TRANSFORMER, context_exchange="all_to_all").context_exchange == "ulysses"
    with pytest.warns(FutureWarning, match="key 'model_chunks' is now 'virtual_stages'"):
        found = load(TRANSFORMER | {"virtual_stages": 1}, **changes | {"model_chunks": 2, "context_exchange": "ring"})
    assert found.virtual_stages == 2  # a change wins over the file, whatever it calls the key
    with pytest.raises(ConfigError, match="'products' is the old name of 'linear_dtype'; give the new one alone"):
        load(TRANSFORMER, products="same", linear_dtype="same")


def test_decode_leaves_out_the_sequence_parallelism_of_a_trainer(tmp_path):
    """Servers do two all-reduces a layer; who asks for it, in a file or by option, has it."""
    decode = {"mode": "decode", "batch_per_replica": 64}
    assert load_workload("llama-3-70b").sequence_parallel
    assert load_workload("llama-3-70b", {"mode": "prefill"}).sequence_parallel
    assert not load_workload("llama-3-70b", decode).sequence_parallel
    assert load_workload("llama-3-70b", decode | {"sequence_parallel": True}).sequence_parallel
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump({"like": "llama-3-70b", **decode}))
    assert not load_workload(mine).sequence_parallel
    mine.write_text(yaml.safe_dump({"like": "llama-3-70b", **decode, "sequence_parallel": True}))
    assert load_workload(mine).sequence_parallel
    assert load_workload(mine, {"mode": "decode"}).sequence_parallel


def test_inference_leaves_out_how_training_shards_and_says_so(tmp_path):
    """No server gathers parameters for each token; who asks for it, in a file or by option, has it."""
    trains = {"like": "llama-3-8b", "tensor_parallel": 1, "data_parallel": 8, "framework": "fsdp2", "shard_ranks": 4}
    base, mine = tmp_path / "trains.yaml", tmp_path / "mine.yaml"
    base.write_text(yaml.safe_dump(trains | {"replicas_at_end": True}))
    assert load_workload(base).zero == 3
    assert not load_workload(base).left_by_mode
    for mode in ("decode", "prefill"):
        served = load_workload(base, {"mode": mode})
        assert (served.zero, served.framework, served.shard_ranks) == (0, None, None)
        assert served.left_by_mode == {"framework": "fsdp2", "shard_ranks": 4, "replicas_at_end": True}
        assert "all_gather" not in {
            graph.operation(node) for graph in generate(served).graphs for node in range(len(graph))
        }
        asked = load_workload(base, {"mode": mode, "zero": 3})
        assert asked.zero == 3
        assert "zero" not in asked.left_by_mode
    mine.write_text(yaml.safe_dump({"like": str(base), "mode": "decode", "zero": 3}))
    assert load_workload(mine).zero == 3
    assert load_workload(mine, {"mode": "prefill"}).zero == 3  # it is a server's own
    assert load_workload(mine).left_by_mode["framework"] == "fsdp2"


def test_keys_in_messages_are_written_as_a_file_would_hold_them():
    values = {"gradient_bucket": 1e12, "clip_gradients": True, "buffer_passes": ("clear", "copy"), "of_another": 2.0}
    told = in_words(Transformer, values)
    assert told == "gradient_bucket 1 TB, clip_gradients true, buffer_passes clear, copy, of_another 2"


@pytest.mark.parametrize("name", library.names("workload"))
def test_shipped_workloads_have_the_ranks_of_their_topology_and_a_source(name):
    job = load_workload(name)
    assert load_topology(job.topology).num_ranks == job.num_ranks
    assert job.source
    assert load_device(job.device).name == job.device


def test_inference_leaves_out_the_passes_of_training_and_says_so():
    """A trainer's micro-batch of 1 read the weights of decode 64 times; what the user sets stays."""
    alone = {"mode": "decode", "pipeline_parallel": 1, "data_parallel": 64, "batch_per_replica": 64}
    served = load_workload("deepseek-v3", alone)
    assert (served.num_microbatches, served.pipeline_schedule, served.stage_layers) == (1, "1f1b", ())
    assert list(served.left_by_mode) == ["zero", "microbatch", "pipeline_schedule", "stage_layers"]
    whole = load_workload("deepseek-v3", {"mode": "prefill"})  # its 16 stages are those that are written
    assert len(whole.stage_layers) == 16
    assert "stage_layers" not in whole.left_by_mode
    asked = load_workload("deepseek-v3", {**alone, "microbatch": 16, "stage_layers": [61]})
    assert (asked.num_microbatches, asked.stage_layers) == (4, (61,))
    assert list(asked.left_by_mode) == ["zero", "pipeline_schedule"]
    cut = load_workload("megatron-175b", {"mode": "prefill"})
    assert (cut.virtual_stages, cut.num_microbatches) == (None, 1)
    kept = load_workload("llama-3-405b", {"mode": "prefill"})
    assert kept.stage_layers
    assert "pipeline_schedule" not in kept.left_by_mode  # it is the plain one


def test_tf32_is_fp32_but_for_gemms_and_convolutions(load):
    for values in (TRANSFORMER, MOE, DLRM):
        fp32, tf32 = (generate(load(values, dtype=dtype)).graphs[0] for dtype in ("fp32", "tf32"))
        of = {(before.op, before.dtype, now.dtype) for before, now in zip(fp32.kernels, tf32.kernels, strict=True)}
        in_tf32 = {op for op, _, dtype in of if dtype == "tf32"}
        assert in_tf32
        assert all(OPERATIONS[op].family in (Family.GEMM, Family.CONVOLUTION) for op in in_tf32)
        assert all((before, now) == ("fp32", "fp32") for op, before, now in of if op not in in_tf32 and before != "u8")
        assert [each.bytes for each in fp32.kernels] == [each.bytes for each in tf32.kernels]
        assert fp32.bytes.tolist() == tf32.bytes.tolist()


def test_tf32_is_refused_on_a_device_without_a_rate_for_it(scaleout):
    code, _, err = scaleout("run", "dlrm-128", "--device", "mi210", "--set", "dtype=tf32", "--schedule", "baseline")
    assert code == 2
    assert "device 'mi210' states no peak rate for tf32; use one of fp64, fp32" in err


def test_tf32_takes_less_than_fp32_on_h200(scaleout):
    def step_s(dtype):
        job = ("run", "dlrm-128", "--set", f"dtype={dtype}", "--schedule", "baseline", "--json")
        return json.loads(scaleout(*job)[1])["results"][0]["makespan_s"]

    assert step_s("bf16") < step_s("tf32") < step_s("fp32")
