"""Configs of public models: parameters and FLOPs as published, nothing passed over in silence, refusals by message.

`huggingface.json` beside this file has the configs, and says of each count where it is published and what it counts.
"""

import json
import re
from pathlib import Path

import pytest

from scaleout.errors import ConfigError
from scaleout.interop.models import import_model
from scaleout.interop.models.huggingface import ARCHITECTURES
from scaleout.program.graph import NONE, NodeRole
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import peaks

MODELS = json.loads((Path(__file__).parent / "huggingface.json").read_text(encoding="utf-8"))["models"]
CONFIGS = {each["model"]: each["config"] for each in MODELS}
each_model = pytest.mark.parametrize("model", MODELS, ids=[each["model"] for each in MODELS])
LLAMA = CONFIGS["meta-llama/Llama-3.1-8B"]


LLAMA4 = {
    "attention_bias": False, "attention_chunk_size": 8192, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
    "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40, "num_experts_per_tok": 1,
    "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16, "use_qk_norm": True,
    "vocab_size": 202048,
}  # fmt: skip
GEMMA3 = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
VICUNA = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096, "torch_dtype": "float16"}
QWEN2_VL = {
    "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944, "max_window_layers": 28,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 32768,
    "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 152064, "image_token_id": 151655,
}  # fmt: skip
MISTRAL_SMALL = {
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "sliding_window": None,
    "vocab_size": 131072,
}  # fmt: skip
SIGLIP = 416_866_032
"""Parameters of the encoder of Gemma 3, by its config: 27 layers of 1,152, 4,096 patches of 14 x 14."""


@pytest.fixture
def imported(tmp_path):
    def read(config, *, ranks=None, **changes):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config))
        return import_model(tmp_path, ranks=ranks, changes=changes)

    return read


@pytest.mark.parametrize(
    ("config", "parameters"),
    [  # the Hub's counts of the whole models, less the encoder of pictures and what projects to the hidden size
        ({"model_type": "gemma3", "text_config": GEMMA3}, 4_300_079_472 - SIGLIP - 1152 * (2560 + 1)),
        (  # gemma-3-12b-it
            {"model_type": "gemma3", "text_config": GEMMA3 | {"hidden_size": 3840, "intermediate_size": 15360,
             "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 48}},
            12_187_325_040 - SIGLIP - 1152 * (3840 + 1),
        ),
        (  # gemma-3-27b-it
            {"model_type": "gemma3", "text_config": GEMMA3 | {"hidden_size": 5376, "intermediate_size": 21504,
             "num_attention_heads": 32, "num_key_value_heads": 16, "num_hidden_layers": 62, "head_dim": 128}},
            27_432_406_640 - SIGLIP - 1152 * (5376 + 1),
        ),
        (QWEN2_VL | {"model_type": "qwen2_vl"}, 8_291_375_616 - 675_759_104),
        ({"model_type": "qwen2_5_vl", "text_config": QWEN2_VL | {"model_type": "qwen2_5_vl_text"}},
         8_292_166_656 - 676_550_144),
        # the text model has a count of its own: Mistral-Small-24B-Base-2501; Vicuna 7B and 64 more words; Qwen3 8B
        ({"model_type": "mistral3", "text_config": MISTRAL_SMALL}, 23_572_403_200),
        ({"model_type": "llava", "text_config": VICUNA}, 6_738_415_616 + 64 * 2 * 4096),
        ({"model_type": "qwen3_vl", "text_config": CONFIGS["Qwen/Qwen3-8B"] | {"model_type": "qwen3_vl_text"}},
         8_190_735_360),
        ({"model_type": "llama4", "text_config": LLAMA4}, 107_769_861_120),  # the model card: 109B with the encoder
    ],
)  # fmt: skip
def test_of_models_that_read_pictures_the_language_model_is_read(imported, config, parameters):
    found = imported(config | {"vision_config": {"model_type": "eye"}, "image_token_index": 7})
    assert found.workload.num_parameters == parameters
    told = f"left out: vision_config (eye): the workload is the language model of {config['model_type']} alone"
    assert any(note.startswith(told) for note in found.notes)
    assert found.keys["left_out"] == "vision_config (eye)"
    assert not [note for note in found.notes if note.startswith("unknown") and "text_config" in config]


def test_sizes_that_a_part_leaves_to_its_class_are_told(imported):
    found = imported({"model_type": "gemma3", "text_config": GEMMA3})
    assert any("not in text_config, so those of the class gemma3_text: num_attention_heads 8" in n for n in found.notes)
    with pytest.raises(ConfigError, match="num_attention_heads is missing"):
        imported(GEMMA3)


@each_model
def test_parameters_are_those_that_are_published(imported, model):
    assert imported(model["config"]).workload.num_parameters == model["parameters"]


def test_the_counts_are_of_every_architecture_that_is_read_but_gemma_1():
    """Gemma 1 is Gemma 2 without norms behind and without windows; Llama 4 is always part of another model."""
    assert {config["model_type"] for config in CONFIGS.values()} | {"gemma", "llama4_text"} == set(ARCHITECTURES)
    assert len(MODELS) >= 15


def scales(workload):
    """Parameters of norms, which `flops_per_token` counts as those that multiply a token, and a count of GEMMs not."""
    of_heads = 2 * workload.head_dim * workload.query_key_norm * (workload.norm_width // workload.hidden)
    return (workload.layers * workload.num_norms + 1) * workload.norm_width + workload.layers * of_heads


@pytest.mark.parametrize("model", [each for each in MODELS if "forward_flops" in each], ids=lambda each: each["model"])
def test_flops_are_those_that_a_counter_counts(imported, model):
    """Forward once, training three times, and both attend to all 1,024 tokens: eager attention computes masked scores.

    6 FLOPs for each parameter of a matrix and 12 L H Q T for attention (PaLM, arXiv:2204.02311, appendix B) are three
    times what the counter counts in GEMMs.
    """
    workload = imported(model["config"], sequence=1024, window=None, full_attention_every=None).workload
    forward = model["forward_flops"] / 1024
    assert workload.flops_per_token == pytest.approx(3 * (forward + 2 * scales(workload)), rel=1e-12)


@pytest.mark.parametrize("model", [each for each in MODELS if "active" in each], ids=lambda each: each["model"])
def test_active_parameters_are_those_that_are_published(imported, model):
    assert imported(model["config"]).workload.active_parameters == pytest.approx(model["active"], rel=2e-3)


@pytest.mark.parametrize(
    ("name", "published", "embedding"),
    [
        ("Qwen/Qwen3-30B-A3B", 3_353_032_704, 151936 * 2048),  # model card: 3.3B activated, with the embedding
        ("deepseek-ai/DeepSeek-V3", 37_552_282_624, 129280 * 7168),  # arXiv:2412.19437: 37B, with the embedding
        ("mistralai/Mixtral-8x7B-v0.1", 12_879_925_248, 32000 * 4096),  # arXiv:2401.04088: 13B, with the embedding
    ],
)
def test_active_parameters_with_the_embedding_are_those_that_are_published(imported, name, published, embedding):
    assert imported(CONFIGS[name]).workload.active_parameters + embedding == published


def test_flops_of_experts_are_those_that_their_authors_print(imported):
    """DeepSeek-V3 takes 250 GFLOP a token at 4,096 (arXiv:2505.09343, Table 2); scores that are masked do not count."""
    workload = imported(CONFIGS["deepseek-ai/DeepSeek-V3"], sequence=4096).workload
    masked = 3 * 61 * (2 * 4096 * 128 * (192 + 128)) / 2  # half of the scores and values of 128 heads, three times
    assert workload.flops_per_token - masked == pytest.approx(250e9, abs=0.5e9)


def short(config):
    """A config, and the keys that cut it to four layers of 256 tokens."""
    cut = {"pattern": "MMMM"} if config["model_type"] == "mamba2" else {}
    layer_types = {"layer_types": config["layer_types"][:4]} if "layer_types" in config else {}
    size = "n_layer" if config["model_type"] == "gpt2" else "num_hidden_layers"
    return config | layer_types | {size: 4}, {"sequence": 256, **cut}


@each_model
def test_a_rank_that_holds_all_layers_holds_all_parameters(imported, model):
    """What is counted and what is written on the tape, of which memory and the optimizer follow, agree."""
    config, cut = short(model["config"])
    workload = imported(config, ranks=1, **cut).workload
    assert peaks(workload)[0].bytes_of["parameters"] == workload.num_parameters * workload.item_bytes
    calls = [call for graph in generate(workload).graphs for call in graph.kernels]
    assert [dict(call.shape)["parameters"] for call in calls if call.op == "adamw_fused"] == [workload.num_parameters]


@each_model
def test_gradients_of_all_parameters_are_reduced(imported, model):
    """Each of two replicas all-reduces as many bytes of gradients as there are parameters."""
    config, cut = short(model["config"])
    workload = imported(config, ranks=2, **cut).workload
    (graph,) = generate(workload).graphs
    reduced = int(graph.bytes[(graph.collective != NONE) & graph.has_role(NodeRole.GRADIENTS)].sum())
    assert reduced == workload.num_parameters * workload.gradient_bytes


@each_model
def test_every_model_is_cut_over_tensor_ranks(imported, model):
    """With a part of the heads each, ranks hold no less than their part of the parameters, and less than all."""
    config, cut = short(model["config"])
    sizes = imported(config, **cut).workload.sizes.values()
    degree = max(n for n in (1, 2, 4) if all(size % n == 0 for size in sizes))
    cut |= {"tensor_parallel": degree, "sequence_parallel": degree > 1, "data_parallel": 1}
    workload = imported(config, **cut).workload
    held = peaks(workload)[0].bytes_of["parameters"] / workload.item_bytes
    assert workload.num_parameters / degree <= held < workload.num_parameters * (1.001 if degree == 1 else 0.8)
    assert generate(workload).num_ranks == degree


@each_model
def test_no_key_of_a_public_config_is_unknown(imported, model):
    assert not [note for note in imported(model["config"]).notes if note.startswith("unknown")]


@each_model
def test_the_file_that_is_written_is_the_workload(imported, model, tmp_path):
    found = imported(model["config"])
    (tmp_path / "config.yaml").write_text(found.text)
    assert load_workload(str(tmp_path / "config.yaml")) == found.workload
    assert all(f"# {note}\n" in found.text for note in found.notes)


def test_windows_leave_out_keys(imported):
    """GPT-OSS: every other layer sees 128 keys, which is in FLOPs, kernels and what is cached."""
    config = CONFIGS["openai/gpt-oss-20b"]
    workload = imported(config, sequence=1024).workload
    kinds = [workload.layer_kind(number) for number in range(4)]
    assert kinds == ["moe_windowed", "moe"] * 2
    assert workload.mixing_flops("moe_windowed") * 8 == workload.mixing_flops("moe")
    decode = imported(config, sequence=1024, mode="decode", batch_per_replica=8).workload
    assert decode.cache_bytes("moe") == 1025 / 128 * decode.cache_bytes("moe_windowed")
    ops = {call.op: dict(call.shape) for graph in generate(workload).graphs for call in graph.kernels}
    assert ops["attention_window_bwd"]["window"] == 128
    assert ops["attention_gqa_bwd"]["causal"] == 1


def test_layers_with_and_without_windows_may_follow_in_a_period(imported):
    """Gemma 3: five with a window, one without; Qwen 2 with windows has none in its first layers, which is none."""
    workload = imported(CONFIGS["google/gemma-3-1b-it"]).workload
    assert (workload.window, workload.full_attention_every) == (512, 6)
    qwen = CONFIGS["Qwen/Qwen2.5-7B"]
    assert imported(qwen).workload.window is None
    assert imported(qwen | {"use_sliding_window": True, "max_window_layers": 0}).workload.window == 131072
    with pytest.raises(ConfigError, match="max_window_layers 3: layers with a window and without follow in no pattern"):
        imported(qwen | {"use_sliding_window": True, "max_window_layers": 3})


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"frobnicate": 3}, "unknown: frobnicate 3: what it changes in a layer, the workload lacks"),
        ({"attn_logit_softcapping": 50.0}, "left out: attn_logit_softcapping 50.0: a tanh of every score"),
        ({"torch_dtype": "float32"}, "torch_dtype float32 is how weights are stored; the workload trains in bf16"),
        ({"architectures": ["LlamaForTokenClassification"]}, "the workload has the head of a language model instead"),
        ({"rope_theta": 5e5}, "not read, as they do not change what a step costs: .*rope_theta"),
    ],
)
def test_what_is_ignored_is_told(imported, config, told):
    notes = imported(LLAMA | config).notes
    assert any(re.search(told, note) for note in notes), notes


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        (None, {"model_type": "falcon"}, r"config.json: model_type 'falcon' is no architecture that is read"),
        (None, {"model_type": "deepseek_v32"}, "the nearest is deepseek_v3, which model_type can be if its layers are"),
        (None, {"model_type": "kimi_k9", "architectures": ["KimiForCausalLM"]}, "model_type 'kimi_k9' is no archit"),
        (
            None,
            {"architectures": ["X"]},
            'config.json: key model_type, the architecture, is missing or no text; add "model_type": "llama", '
            "or whichever it is; known are deepseek_v2",
        ),
        (
            None,
            {"architectures": ["Qwen2ForCausalLM"]},
            'key model_type, the architecture, is missing or no text; add "model_type": "qwen2", whose class',
        ),
        (None, {"model_type": "llava", "text_config": {}}, "text_config: key model_type, the architecture, is missing"),
        (
            None,
            {"model_type": "mllama", "text_config": {"model_type": "mllama_text_model"}},
            "text_config: model_type 'mllama_text_model' is no architecture that is read; known are deepseek_v2",
        ),
        (
            None,
            {"model_type": "llama4", "text_config": LLAMA4 | {"interleave_moe_layer_step": 2}},
            "text_config: interleave_moe_layer_step 2: layers without experts come first or nowhere, not between",
        ),
        (None, [1], r"holds \[1\], not an object; give a model's config.json"),
        ("meta-llama/Llama-3.1-8B", {"hidden_size": None}, "hidden_size is None; give a whole number above zero"),
        ("meta-llama/Llama-3.1-8B", {"hidden_size": "big"}, "hidden_size is 'big'; give a whole number"),
        ("meta-llama/Llama-3.1-8B", {"num_hidden_layers": -1}, "num_hidden_layers is -1; give a whole number"),
        ("mistralai/Mistral-7B-v0.1", {"num_hidden_layers": 2**31}, "give a whole number of at most 10,000"),
        ("meta-llama/Llama-3.1-8B", {"hidden_act": "xielu"}, "hidden_act 'xielu': known are silu"),
        ("meta-llama/Llama-3.1-8B", {"attention_bias": 1}, "attention_bias is 1; give true or false"),
        ("meta-llama/Llama-3.1-8B", {"num_attention_heads": 31}, "hidden 4096 does not divide by heads 31"),
        ("openai/gpt-oss-20b", {"layer_types": ["full"]}, "layer_types .*: give one of sliding_attention, full"),
        ("Qwen/Qwen3-30B-A3B", {"mlp_only_layers": [5]}, r"mlp_only_layers \[5\]: layers without experts come first"),
        ("Qwen/Qwen3-30B-A3B", {"decoder_sparse_step": 2}, "decoder_sparse_step 2: layers without experts come first"),
        ("Qwen/Qwen1.5-MoE-A2.7B", {"shared_expert_intermediate_size": 100}, "a shared expert is as wide as some"),
        ("deepseek-ai/DeepSeek-V3", {"moe_layer_freq": 2}, "moe_layer_freq 2: every layer behind the dense ones"),
        ("deepseek-ai/DeepSeek-V3", {"attention_bias": True}, "attention_bias True: latent attention is written"),
        ("openai-community/gpt2", {"add_cross_attention": True}, "a decoder that reads an encoder is not written"),
        ("mistralai/Mamba-Codestral-7B-v0.1", {"num_heads": 64}, "64 heads of 64 are not expand 2 x hidden_size 4096"),
        ("mistralai/Mamba-Codestral-7B-v0.1", {"use_bias": True}, "use_bias True: projections of mixers are written"),
    ],
)  # fmt: skip
def test_what_no_workload_can_have_is_refused(imported, name, config, message):
    with pytest.raises(ConfigError, match=message):
        imported(CONFIGS[name] | config if name else config)


def test_another_name_for_a_class_that_is_read(imported):
    """Kimi K2 is DeepSeek V3's class with other sizes."""
    config = CONFIGS["deepseek-ai/DeepSeek-V3"] | {"architectures": ["DeepseekV3ForCausalLM"]}
    plain, kimi = imported(config), imported(config | {"model_type": "kimi_k2"})
    assert any("model_type 'kimi_k2' has the class of deepseek_v3 (architectures)" in note for note in kimi.notes)
    told = "description", "source"
    assert {key: kimi.keys[key] for key in kimi.keys if key not in told} == {
        key: plain.keys[key] for key in plain.keys if key not in told
    }
    with pytest.raises(ConfigError, match="kv_lora_rank"):
        imported({key: value for key, value in config.items() if key != "kv_lora_rank"} | {"model_type": "kimi_k2"})


def test_a_path_of_no_config_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"config.json: no such file; give a model's config.json, or the folder"):
        import_model(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"files that end in '.bin' are not read; give one in .json"):
        import_model(tmp_path / "model.bin")


def test_ranks_that_a_plan_does_not_divide_are_refused(imported):
    with pytest.raises(ConfigError, match="kv_heads 8 does not divide over tensor_parallel 16 ranks"):
        imported(LLAMA, ranks=16, tensor_parallel=16, data_parallel=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"microbatch": "1 TFLOP/s"}, "microbatch: must be"),
        ({"kind": []}, r"kind \[\] is no kind of workload"),
        ({"kind": "dlrm"}, "unknown key 'rotary'"),
    ],
)
def test_a_change_that_fits_no_workload_is_refused(imported, changes, message):
    with pytest.raises(ConfigError, match=message):
        imported(CONFIGS["mistralai/Mixtral-8x7B-v0.1"], **changes)


def test_experts_of_an_import_are_one_kernel_and_the_note_says_so(imported):
    """A kernel an expert took decode of Qwen3 30B-A3B 18.5 ms instead of 10.9."""
    model = next(config for config in CONFIGS.values() if config["model_type"] == "mixtral")
    found = imported(model)
    assert found.workload.grouped_experts
    assert found.keys["grouped_experts"]
    assert any("chosen, as no key" in note and "grouped_experts true" in note for note in found.notes)
    apart = imported(model, grouped_experts=False)
    assert not apart.workload.grouped_experts
    assert not any("grouped_experts" in note for note in apart.notes)
    assert "grouped_experts" not in imported(LLAMA).keys
