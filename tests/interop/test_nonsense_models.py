"""Nonsense in every key of a model's file, field by field: one message that names file and key, or a value that is one.

The table is that of `nonsense.py`; seeds are those of the fuzzer. A text is nonsense for words and numbers alike.
"""

import json
import re
from pathlib import Path

import pytest
import yaml
from model_files import BRIDGE, SCRIPT, TOML
from nonsense import ALWAYS

from scaleout.errors import ScaleoutError, printable
from scaleout.interop.models import import_model

YAML = yaml.safe_dump(BRIDGE | {"model": {**BRIDGE["model"], "activation_func": "silu"}}, sort_keys=False)
CONFIG = {
    "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 128,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "num_local_experts": 8,
    "num_experts_per_tok": 2, "hidden_act": "silu", "tie_word_embeddings": False, "sliding_window": 16,
}  # fmt: skip
NUMBERS = ["0", "-1", "1.5", "8192.9", "1e3", "1e18", "1099511627777", "5 B", "1 s"]
NONE = {"null", "~", "#", "# comment", "NULL "}

FORMS = {
    "job.toml": (TOML, "{} = ", "\n", re.findall(r"(?m)^(\w+) =", TOML)),
    "train.sh": (SCRIPT, "--{} ", " ", re.findall(r"--([\w-]+) ", SCRIPT)),
    "run.yaml": (YAML, "{}:", "\n", re.findall(r"(?m)^ *(\w+):", YAML)),
    "config.json": (json.dumps(CONFIG, indent=1), '"{}": ', "\n", list(CONFIG)),
}
"""File to its text, what stands before and behind the value of a key, and its keys."""
LEFT = ("nnodes", "nproc_per_node", "bf16")
"""The launcher's, which are not the model's, and one without a value."""
ALLOWED = {
    "job.toml": {"0x10", "0b11", "[]", "0", "-1"},
    "train.sh": {"0", "[1]", "5,5", "1,000"},  # of a window to the left and to the right
    "run.yaml": NONE | {"0"},
    "config.json": {"null", "0"},
}
"""Values that say that a file leaves something out, and what TOML has for numbers."""
OTHERS = re.compile("not valid (TOML|YAML|JSON)|stands twice|divide|multiple|cannot be|more than|too many")
"""Said of files that cannot be read, and of numbers that are such, but do not go with others."""
FLAGS = {"true", "false", "True", "FALSE"}
WITH_UNIT = re.compile(r"\d+\s[A-Za-z%]|1\xa0")
"""Of a script's value the first word is read; a number behind it would be of it, but a word may be the next command."""


def others(name, key):
    """Return texts of a file with nonsense behind one key."""
    text, before, behind, _ = FORMS[name]
    begin = text.index(before.format(key)) + len(before.format(key))
    end = text.index(behind, begin)
    comma = "," if text[end - 1] == "," else ""
    values = [value for value in (*ALWAYS, *NUMBERS) if value not in ALLOWED[name] and len(value) < 200_000]
    if name == "config.json":
        values = [*values, *map(json.dumps, values)]
    if name == "train.sh":
        values = [value for value in values if value.strip() and not WITH_UNIT.match(value) and value[0] not in "#\"'("]
    if key in ("gated_linear_unit", "tie_word_embeddings", "overlap_grad_reduce"):
        values = [value for value in values if value not in FLAGS]
    return [
        (value, text[:begin] + (" " if name == "run.yaml" else "") + value + comma + text[end:]) for value in values
    ]


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, (*_, keys) in FORMS.items() for key in keys if key not in LEFT]
)
def test_nonsense_behind_a_key_of_a_model_is_refused(name, key, tmp_path):
    path = tmp_path / name
    taken = []
    for value, text in others(name, key):
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            import_model(path, ranks=16)
        except ScaleoutError as error:
            said = str(error)
            assert printable(said) == said
            assert len(said) < 12_000
            assert name in said, value[:50]
            assert key.replace("-", "_") in said or OTHERS.search(said), said[:200]
        else:
            taken.append(value[:50])
    assert not taken


_NO_NUMBER = [True, False, -1, -0.5, 1e308, "x", "1", "", [], [0], {}, {"a": 1}]
UNMODELLED = {
    ("mixtral", "attention_dropout"): _NO_NUMBER,
    ("phi", "resid_pdrop"): [*_NO_NUMBER, 1.5],
    ("phi", "partial_rotary_factor"): _NO_NUMBER,
    ("gemma2", "attn_logit_softcapping"): _NO_NUMBER,
    ("deepseek_v3", "num_nextn_predict_layers"): _NO_NUMBER,
    ("deepseek_v3", "quantization_config"): [True, False, 0, 1, "", "x", [], [1]],
    ("deepseek_v3", "moe_layer_freq"): [True, 2, "1"],
    ("gemma3_text", "use_bidirectional_attention"): [0, 1, "x", [], {}],
    ("qwen3", "sliding_window"): [True, -1, 1.5, "x", []],
    ("qwen3_moe", "decoder_sparse_step"): [True, 2, "1"],
    ("qwen3_moe", "mlp_only_layers"): [False, 0, "", {}, [1]],
    ("mamba2", "use_conv_bias"): [1, 1.0, False],
    ("mamba2", "use_bias"): [0, 0.0, True],
    ("mamba2", "intermediate_size"): [True, -1, "x"],
    ("llama", "use_cache"): [0, 1, "yes", [], {}],
    ("llama", "rms_norm_eps"): [True, "x", [], {"a": 1}],
    ("llama", "transformers_version"): [5, True, [], {}],
}
"""Of keys that change no layer, too: model and key to values that it cannot have."""


@pytest.mark.parametrize(("kind", "key"), UNMODELLED)
def test_what_is_left_out_of_a_model_must_be_of_its_kind(kind, key, tmp_path):
    models = json.loads(Path(__file__).with_name("huggingface.json").read_text(encoding="utf-8"))["models"]
    config = next(each["config"] for each in models if each["config"]["model_type"] == kind)
    path = tmp_path / "config.json"
    for value in UNMODELLED[kind, key]:
        path.write_text(json.dumps(config | {key: value}), encoding="utf-8")
        with pytest.raises(ScaleoutError, match=key):
            import_model(path, ranks=16)
