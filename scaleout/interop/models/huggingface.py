"""HuggingFace's `config.json` to the keys of a workload: the architectures of its language models that are known.

A config holds sizes by the names that its architecture gives them, and leaves out what equals the default of its class;
those defaults stand here. Layers are as the architecture's implementation in `transformers` has them, of which this is
a description: which projections have biases, how many norms there are, what is shared.

Source: huggingface.co/docs/transformers, pages of the models named; the papers of the models.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scaleout.config.units import MOST_WRITTEN
from scaleout.errors import ConfigError, shown
from scaleout.interop.models.fields import Fields, Keys

Reader = Callable[[Fields], Keys]

_FLAGS = frozenset(
    """
    use_cache is_decoder is_encoder_decoder norm_topk_prob seq_aux output_attentions output_hidden_states
    output_router_logits return_dict use_mrope reorder_and_upcast_attn residual_in_fp32 rescale_prenorm_residual
    norm_before_gate rms_norm tie_encoder_decoder torchscript use_bfloat16 for_llm_compressor summary_use_proj
    summary_proj_to_labels
    """.split()  # noqa: SIM905 - a list of strings hides them
)
_NUMBERS = frozenset(
    """
    initializer_range rms_norm_eps layer_norm_eps layer_norm_epsilon rope_theta rope_local_base_freq rotary_emb_base
    pretraining_tp chunk_size_feed_forward router_aux_loss_coef router_z_loss_coef routed_scaling_factor n_group
    topk_group aux_loss_alpha ep_size query_pre_attn_scalar original_max_position_embeddings initial_context_length
    experts_per_token swiglu_limit swiglu_alpha max_window_layers sliding_window_size n_ctx classifier_dropout
    time_step_floor time_step_max time_step_min qk_head_dim attn_scale floor_scale summary_first_dropout
    """.split()  # noqa: SIM905 - as above
)
_TEXTS = frozenset(
    """
    _name_or_path transformers_version cache_implementation problem_type attn_implementation _attn_implementation
    scoring_func topk_method tokenizer_class model_name name finetuning_task
    """.split()  # noqa: SIM905 - as above
)
NEUTRAL = frozenset(
    """
    architectures auto_map bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id
    rope_* output_* return_dict* id2label label2id _attn_implementation* summary_* task_specific_params scale_attn_*
    time_step_* pruned_heads _attn_implementation_autoset attn_temperature_tuning vision_start_token_id
    vision_end_token_id vision_token_id image_token_id video_token_id
    """.split()  # noqa: SIM905 - as above
).union(_FLAGS, _NUMBERS, _TEXTS)
"""Keys that change no size of a layer: names, tokens, constants of arithmetic, and those that repeat others.

Those of one kind stand apart, and are refused with a value of another.
"""

_DROPOUTS = ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop")
_LEFT_OUT: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "quantization_config": ((None,), "weights are stored so; steps here run in `dtype`"),
    "attn_logit_softcapping": ((None, 0, 0.0), "a tanh of every score, within the kernel of attention"),
    "final_logit_softcapping": ((None, 0, 0.0), "a tanh of every logit, a pass over the logits"),
    "num_nextn_predict_layers": ((None, 0), "layers of multi-token prediction, which checkpoints hold besides"),
    "use_bidirectional_attention": ((None, False), "attention is causal here"),
    "partial_rotary_factor": ((None, 1.0, 1), "rotary positions are counted for the whole of each head"),
    "rotary_pct": ((None, 1.0, 1), "rotary positions are counted for the whole of each head"),
    "router_jitter_noise": ((None, 0, 0.0), "noise on the router's input, an element-wise kernel"),
    **dict.fromkeys(_DROPOUTS, ((None, 0, 0.0), "dropout of scores costs nothing within the kernel of attention")),
}

_GATED = {"silu": "swiglu", "swish": "swiglu"} | dict.fromkeys(
    ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu"), "geglu"
)
_PLAIN = dict.fromkeys((*_GATED, "relu", "relu2", "gelu_python"), "gelu")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "bf16"}


def _sizes(c: Fields, *, tied: bool = False) -> Keys:
    """Read the sizes that most decoders name alike; `tied` is the default of the class."""
    hidden, heads = c.count("hidden_size"), c.count("num_attention_heads")
    head = c.optional("head_dim")
    keys: Keys = {
        "kind": "transformer",
        "hidden": hidden,
        "layers": c.count("num_hidden_layers", most=MOST_WRITTEN),
        "heads": heads,
        "kv_heads": c.optional("num_key_value_heads") or heads,
        "ffn": c.count("intermediate_size"),
        "vocabulary": c.count("vocab_size"),
        "tied_embedding": c.flag("tie_word_embeddings", default=tied),
    }
    return keys | ({"head_size": head} if head and head * heads != hidden else {})


def _llama(c: Fields, *, tied: bool = False, act: str = "hidden_act") -> Keys:
    """Read a decoder of RMS norms, rotary positions and a gated feed-forward network without biases."""
    return _sizes(c, tied=tied) | {
        "activation": c.word(act, _GATED, "silu"),
        "norm": "rms_norm",
        "rotary": True,
    }


def _llama_with_biases(c: Fields) -> Keys:
    attention, feed_forward = c.flag("attention_bias", default=False), c.flag("mlp_bias", default=False)
    return _llama(c) | _biases("all" if attention else "none", feed_forward=feed_forward)


def _biases(attention: str, *, feed_forward: bool = False) -> Keys:
    if feed_forward:
        return {"biases": True} | ({} if attention == "all" else {"attention_biases": attention})
    return {} if attention == "none" else {"attention_biases": attention}


def _windows(c: Fields, layers: int, usual: Callable[[int], bool]) -> Keys:
    """Read which layers attend to a window; `usual` says of a layer's number whether the architecture's does."""
    window, types = c.optional("sliding_window"), c.any("layer_types", None)
    if types is None:
        windowed = [usual(number) for number in range(layers)]
    else:
        words = {"sliding_attention": True, "full_attention": False}
        if not isinstance(types, list) or len(types) != layers or not all(str(each) in words for each in types):
            raise c.refusal("layer_types", f"give one of {', '.join(words)} for each of the {layers} layers")
        windowed = [words[each] for each in types]
    if not any(windowed) or window is None:
        return {}
    if all(windowed):
        return {"window": window}
    every = windowed.index(False) + 1
    if windowed != [(number + 1) % every != 0 for number in range(layers)]:
        raise c.refusal(
            "layer_types" if types else "max_window_layers",
            "layers with a window and without follow in no pattern of one in so many; write the workload by hand",
        )
    return {"window": window, "full_attention_every": every}


def _mistral(c: Fields) -> Keys:
    keys = _llama(c)
    return keys | _windows(c, keys["layers"], lambda _: True)


def _qwen(c: Fields, keys: Keys) -> Keys:
    uses, first = c.flag("use_sliding_window", default=False), c.optional("max_window_layers") or 0
    if not uses:
        c.optional("sliding_window")
        c.any("layer_types", None)
        return keys
    return keys | _windows(c, keys["layers"], lambda number: number >= first)


def _qwen2(c: Fields) -> Keys:
    return _qwen(c, _llama(c) | {"attention_biases": "qkv"})


def _qwen3(c: Fields) -> Keys:
    keys = _llama(c) | {"query_key_norm": True}
    return _qwen(c, keys | _biases("all" if c.flag("attention_bias", default=False) else "none"))


def _experts(c: Fields, count: Sequence[str], *, width: str) -> Keys:
    """Read the experts of a layer; their number goes by one of some names."""
    name = next((key for key in count if key in c), count[0])
    return {
        "kind": "moe",
        "experts": c.count(name),
        "top_k": c.count("num_experts_per_tok"),
        "expert_ffn": c.count(width),
    }


def _qwen_experts(c: Fields) -> Keys:
    c.must_be("decoder_sparse_step", (1,), "layers without experts come first or nowhere; write the workload by hand")
    dense = c.any("mlp_only_layers", None)
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or dense != list(range(len(dense))):
        raise c.refusal("mlp_only_layers", "layers without experts come first or nowhere; write the workload by hand")
    keys = _experts(c, ("num_experts", "num_local_experts"), width="moe_intermediate_size")
    return keys | ({"dense_layers": len(dense)} if dense else {})


def _qwen2_moe(c: Fields) -> Keys:
    biases = "qkv" if c.flag("qkv_bias", default=True) else "none"
    keys = _llama(c) | _biases(biases) | _qwen_experts(c)
    shared = c.count("shared_expert_intermediate_size")
    if shared % keys["expert_ffn"]:
        raise c.refusal(
            "shared_expert_intermediate_size",
            f"a shared expert is as wide as some experts of {keys['expert_ffn']} together; write the workload by hand",
        )
    return _qwen(c, keys | {"shared_experts": shared // keys["expert_ffn"], "shared_gate": True})


def _qwen3_moe(c: Fields) -> Keys:
    return _qwen3(c) | _qwen_experts(c)


def _mixtral(c: Fields) -> Keys:
    keys = _mistral(c) | _experts(c, ("num_local_experts",), width="intermediate_size")
    return {key: value for key, value in keys.items() if key != "expert_ffn"}


def _deepseek(c: Fields) -> Keys:
    """Read latent attention, first dense layers, and experts with shared ones; V3's experts have a bias each."""
    c.must_be("moe_layer_freq", (1,), "every layer behind the dense ones has experts; write the workload by hand")
    c.any("head_dim", None)  # of the rotary part, which has a key of its own
    keys = _llama(c) | _biases("all" if c.flag("attention_bias", default=False) else "none")
    if "attention_biases" in keys:
        raise c.refusal("attention_bias", "latent attention is written without biases; set it to false")
    plain, rotary, value = (c.count(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    keys.pop("head_size", None)
    keys |= {
        "kv_heads": keys["heads"],
        "head_size": value,
        "latent": {
            "query_rank": c.optional("q_lora_rank"), "key_value_rank": c.count("kv_lora_rank"), "plain_dim": plain,
            "rotary_dim": rotary, "value_dim": value,
        },
    }  # fmt: skip
    keys |= _experts(c, ("n_routed_experts",), width="moe_intermediate_size")
    shared, dense = c.optional("n_shared_experts"), c.optional("first_k_dense_replace")
    keys |= {"shared_experts": shared} if shared else {}
    keys |= {"dense_layers": dense} if dense else {}
    corrected = c.values.get("model_type") == "deepseek_v3" or c.any("topk_method", None) == "noaux_tc"
    return keys | ({"router_bias": True} if corrected else {})


def _llama4(c: Fields) -> Keys:
    """Read a decoder all of whose layers have experts of which each token takes some, and one that all tokens take."""
    layers = c.count("num_hidden_layers", most=MOST_WRITTEN)
    every = "layers without experts come first or nowhere, not between others; write the workload by hand"
    c.must_be("interleave_moe_layer_step", (1,), every)
    c.must_be("moe_layers", (None, [], list(range(layers))), every)
    keys = _llama(c) | _biases("all" if c.flag("attention_bias", default=False) else "none")
    keys |= _experts(c, ("num_local_experts",), width="intermediate_size")
    for key in ("no_rope_layers", "layer_types"):
        c.any(key, None)
    c.note("left out: layers without rotary positions; rotary positions are counted in all")
    if c.flag("use_qk_norm", default=True):
        c.note("left out: use_qk_norm true: norms of queries and keys, which have no parameters")
    if (chunk := c.optional("attention_chunk_size")) is not None:
        c.note(f"left out: attention_chunk_size {chunk:,}: sequences longer than that attend to all of themselves here")
    return keys | {"ffn": c.count("intermediate_size_mlp"), "shared_experts": 1}


def _gpt_oss(c: Fields) -> Keys:
    keys = _llama(c) | _biases("all" if c.flag("attention_bias", default=True) else "none")
    keys |= _experts(c, ("num_local_experts", "num_experts"), width="intermediate_size")
    keys |= {"attention_sinks": True, "router_bias": True, "expert_biases": True}
    return keys | _windows(c, keys["layers"], lambda number: number % 2 == 0)


def _gemma(c: Fields) -> Keys:
    act = "hidden_activation" if c.values.get("hidden_activation") is not None else "hidden_act"
    c.any("hidden_act", None)
    keys = _llama(c, tied=True, act=act) | {"activation": "geglu"}
    return keys | _biases("all" if c.flag("attention_bias", default=False) else "none")


def _gemma2(c: Fields) -> Keys:
    keys = _gemma(c) | {"post_norms": True}
    return keys | _windows(c, keys["layers"], lambda number: number % 2 == 0)


def _gemma3(c: Fields) -> Keys:
    keys = _gemma(c) | {"post_norms": True, "query_key_norm": True}
    period = c.optional("sliding_window_pattern") or c.optional("_sliding_window_pattern") or 6
    return keys | _windows(c, keys["layers"], lambda number: (number + 1) % period != 0)


def _drops(c: Fields, *names: str) -> Keys:
    return {"dropout": True} if max(c.number(name, 0.0, most=1) for name in names) > 0 else {}


def _phi(c: Fields) -> Keys:
    keys = _sizes(c) | {"activation": c.word("hidden_act", _PLAIN, "gelu_new"), "norm": "layer_norm", "rotary": True}
    norms = {"query_key_norm": True} if c.flag("qk_layernorm", default=False) else {}
    parallel = {"halves": "parallel_of_one_norm", "biases": True, "head_bias": True}
    return keys | norms | parallel | _drops(c, "resid_pdrop", "embd_pdrop")


def _phi3(c: Fields) -> Keys:
    keys = _mistral(c) | _drops(c, "resid_pdrop", "embd_pdrop")
    return keys | _biases("all" if c.flag("attention_bias", default=False) else "none")


def _neox(c: Fields) -> Keys:
    keys = _sizes(c) | {"activation": c.word("hidden_act", _PLAIN, "gelu"), "norm": "layer_norm", "rotary": True}
    if c.flag("use_parallel_residual", default=True):
        keys["halves"] = "parallel"
    biases = "all" if c.flag("attention_bias", default=True) else "none"
    return keys | _biases(biases, feed_forward=True) | _drops(c, "hidden_dropout", "hidden_dropout_prob")


def _gpt2(c: Fields) -> Keys:
    c.must_be("add_cross_attention", (False,), "a decoder that reads an encoder is not written; set it to false")
    hidden = c.count("n_embd")
    return {
        "kind": "transformer",
        "hidden": hidden,
        "layers": c.count("n_layer", most=MOST_WRITTEN),
        "heads": c.count("n_head"),
        "ffn": c.optional("n_inner") or 4 * hidden,
        "activation": c.word("activation_function", _PLAIN, "gelu_new"),
        "norm": "layer_norm",
        "biases": True,
        "vocabulary": c.count("vocab_size"),
        "positions": c.count("n_positions"),
        "tied_embedding": c.flag("tie_word_embeddings", default=True),
        **_drops(c, "resid_pdrop", "embd_pdrop"),
    }


def _mamba2(c: Fields) -> Keys:
    c.must_be("use_bias", (False,), "projections of mixers are written without biases; set it to false")
    c.must_be("use_conv_bias", (True,), "convolutions of mixers are written with a bias; set it to true")
    hidden, heads, expand = c.count("hidden_size"), c.count("num_heads"), c.count("expand", 2)
    head = c.count("head_dim", 64)
    if heads * head != expand * hidden:
        raise c.refusal("num_heads", f"{heads} heads of {head} are not expand {expand} x hidden_size {hidden}; mend it")
    c.any("hidden_act", None)
    c.optional("intermediate_size")  # which repeats others
    layers = c.count("num_hidden_layers", most=MOST_WRITTEN)
    return {
        "kind": "state_space",
        "hidden": hidden,
        "layers": layers,
        "pattern": "M" * layers,
        "state_size": c.count("state_size", 128),
        "state_head_size": head,
        "state_groups": c.count("n_groups", 8),
        "expand": expand,
        "convolution": c.count("conv_kernel", 4),
        "chunk": c.count("chunk_size", 256),
        "norm": "rms_norm",
        "vocabulary": c.count("vocab_size"),
        "tied_embedding": c.flag("tie_word_embeddings", default=False),
    }


class Architecture(NamedTuple):
    """How the config of an architecture is read, and the name of its longest sequence."""

    read: Reader
    longest: str = "max_position_embeddings"
    # sizes of its class, which the config of a model's part leaves out; that of a whole model has all of its sizes
    sizes: Mapping[str, int] = {}


_SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"
)  # fmt: skip


def _defaults(*sizes: int) -> dict[str, int]:
    return dict(zip(_SIZES, sizes, strict=True))


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(_llama_with_biases, sizes=_defaults(4096, 11008, 32, 32, 32, 32000)),
    "llama4_text": Architecture(_llama4),
    "mistral": Architecture(_mistral, sizes=_defaults(4096, 14336, 32, 32, 8, 32000)),
    "mixtral": Architecture(_mixtral),
    "qwen2": Architecture(_qwen2),
    "qwen3": Architecture(_qwen3),
    "qwen2_moe": Architecture(_qwen2_moe),
    "qwen3_moe": Architecture(_qwen3_moe),
    "deepseek_v2": Architecture(_deepseek),
    "deepseek_v3": Architecture(_deepseek),
    "gpt_oss": Architecture(_gpt_oss),
    "gemma": Architecture(_gemma),
    "gemma2": Architecture(_gemma2),
    "gemma3_text": Architecture(_gemma3, sizes=_defaults(2304, 9216, 26, 8, 4, 262208) | {"head_dim": 256}),
    "phi": Architecture(_phi),
    "phi3": Architecture(_phi3),
    "gpt_neox": Architecture(_neox),
    "gpt2": Architecture(_gpt2, "n_positions"),
    "mamba2": Architecture(_mamba2),
}
"""`model_type` of a config to how it is read."""

_SAME: Mapping[str, str] = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
"""Language models within others, to the architecture whose layers they have."""
_LANGUAGE_MODELS = ("text_config", "llm_config", "language_config")
"""Keys of the config of a language model within another."""
_OF_THE_WHOLE = ("torch_dtype", "dtype", "tie_word_embeddings", "quantization_config")
"""Keys that such a config leaves to the whole model's."""


def _of_class(architectures: Any) -> str:
    """Return the architecture whose class a config names, such as DeepseekV3ForCausalLM; empty if none is read."""
    named = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    classes = {name.replace("_", "") + "forcausallm": name for name in ARCHITECTURES}
    return classes.get(named.lower(), "")


def _known_near(kind: str) -> str:
    """Say which architectures are read, the nearest of them, and what else can be done."""
    import difflib  # noqa: PLC0415 - only for messages

    known = sorted({*ARCHITECTURES, *_SAME})
    near = difflib.get_close_matches(kind[:100], known, n=1, cutoff=0.65)
    nearest = f"; the nearest is {near[0]}, which model_type can be if its layers are the same" if near else ""
    return (
        f"known are {', '.join(known)}{nearest}. For another decoder write a workload file: `scaleout show "
        f"llama-3-8b` prints the keys of one, to copy and change"
    )


def _without_kind(values: Mapping[str, Any], where: str, c: Fields) -> ConfigError:
    """Say that a config, or that of the language model within it, names no architecture, and which it may be."""
    place = c.where if isinstance(values.get("model_type"), str) else where
    same = _of_class(c.any("architectures", None))
    told = "whose class architectures names" if same else f"or whichever it is; {_known_near('')}"
    add = f'add "model_type": "{same or "llama"}", {told}'
    return ConfigError(f"{place}: key model_type, the architecture, is missing or no text; {add}")


def _language_model_of(values: Mapping[str, Any], where: str) -> tuple[Fields, str, str]:
    """Return the config of the language model within a model that reads pictures or sound, and its architecture.

    Of other models that is all of it; else with what is left out, in words.
    """
    key = next((key for key in _LANGUAGE_MODELS if isinstance(values.get(key), Mapping)), None)
    parts = [each for each in values if each.endswith("_config") and each not in (key, "quantization_config")]
    parts = [each for each in parts if isinstance(values[each], Mapping)]
    if key is None:
        c = Fields({name: value for name, value in values.items() if name not in parts}, where)
    else:
        own = {name: values[name] for name in _OF_THE_WHOLE if name in values} | values[key]
        c = Fields(own, f"{where}: {key}")
    kind = c.any("model_type", None) if isinstance(values.get("model_type"), str) else None
    named: str = _SAME.get(kind, kind) if isinstance(kind, str) else ""
    if named and named not in ARCHITECTURES and (same := _of_class(c.values.get("architectures"))):
        c.note(f"model_type {shown(kind)} has the class of {same} (architectures), and is read as it")
        c.values["model_type"] = named = same
    if kind is None:
        raise _without_kind(values, where, c)
    if named not in ARCHITECTURES:
        raise ConfigError(f"{c.where}: model_type {shown(kind)} is no architecture that is read; {_known_near(named)}")
    left_out = ""
    if parts or key is not None:
        said = [f"{each} ({found})" if (found := values[each].get("model_type")) else each for each in parts]
        left_out = ", ".join(said) or "all but the language model"
        whose = f"the workload is the language model of {values['model_type']} alone"
        c.note(f"left out: {left_out}: {whose}, with neither the parameters nor the kernels of what feeds it")
    if key is not None:
        others = [name for name in values if name not in (key, *parts, *_OF_THE_WHOLE, "model_type", "architectures")]
        if others:
            c.note(f"not read, as they are not the language model's: {', '.join(others)}")
        missing = {name: size for name, size in ARCHITECTURES[named].sizes.items() if name not in c}
        if missing:
            c.values |= missing
            told = ", ".join(f"{name} {size}" for name, size in missing.items())
            c.note(f"not in {key}, so those of the class {named}: {told}")
    return c, named, left_out


def read(values: Mapping[str, Any], where: str) -> tuple[Keys, list[str], int | None]:
    """Return the keys of a workload, what the user is to be told, and the longest sequence of a config.

    Raises
    ------
    ConfigError
        If the architecture is not known, or the model has something that no workload can have.
    """
    c, kind, left_out = _language_model_of(values, where)
    architecture = ARCHITECTURES[kind]
    keys = architecture.read(c)
    longest = c.optional(architecture.longest)
    keys |= _dtype(c)
    keys |= {"left_out": left_out} if left_out else {}
    _head(c)
    if not isinstance(c.values.get("quantization_config"), Mapping | None):
        raise c.refusal("quantization_config", "give a mapping, or leave it out")
    c.left_out(_LEFT_OUT)
    c.check_kinds({"true or false": _FLAGS, "a number": _NUMBERS, "a text": _TEXTS})
    c.finish(NEUTRAL)
    return keys, c.notes, longest


def _dtype(c: Fields) -> Keys:
    """Read the data type, if it is there; 32 bits are how weights are stored, and training mixes precisions."""
    name = "dtype" if "dtype" in c else "torch_dtype"
    found = {"dtype": c.word(name, _DTYPES, "bfloat16")} if c.values.get(name) is not None else {}
    if c.values.get(name) == "float32":
        c.note(f"{name} float32 is how weights are stored; the workload trains in bf16 (--set dtype=fp32 for fp32)")
    return found


_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def _head(c: Fields) -> None:
    """Tell of a head that is not that of a language model."""
    named = c.any("architectures", None)
    if isinstance(named, list) and named and not str(named[0]).endswith(_HEADS):
        c.note(f"architectures {shown(named[0])}: the workload has the head of a language model instead")
