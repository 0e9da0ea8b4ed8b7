"""The twelve tasks of a new user: every command and example of the guide, and whether the answer is the one it says."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

from scaleout.config.units import SECONDS, parse

GUIDE = Path(__file__).parents[1] / "docs" / "how-to" / "twelve-tasks.md"
TASKS = re.findall(r"^## (\d+)\. [^\n]*\n(.*?)(?=^## |\Z)", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
CONFIG = """
{"architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": 6656, "intermediate_size": 17920,
 "model_type": "llama", "num_attention_heads": 52, "num_hidden_layers": 60, "num_key_value_heads": 52,
 "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 32000,
 "max_position_embeddings": 2048}
"""
CLOSE = 0.01
"""How far a time may be from the one of the guide."""


def test_there_are_twelve():
    assert [int(number) for number, _ in TASKS] == list(range(1, 13))


@pytest.mark.parametrize("text", [pytest.param(text, id=number) for number, text in TASKS])
def test_a_task_has_its_answer(scaleout, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(CONFIG)
    for block in blocks(text, "yaml"):
        (tmp_path / "networks.yaml").write_text(block)
    printed = ""
    for line in (line for block in blocks(text, "sh") for line in block.splitlines()):
        code, out, err = scaleout(*shlex.split(line)[1:])
        assert code == 0, err
        printed += out
    for block in blocks(text, "python"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(block, {"__name__": "task"})
        printed += out.getvalue()
    (answer,) = re.findall(r"^Answer: (.*?)\n\n?\Z", text, re.MULTILINE | re.DOTALL)
    assert re.search(r"\d", answer) or "`" in answer
    for expected in re.findall(r"`([^`]+)`", answer):
        assert expected in printed
    for name, expected in re.findall(r"\b([\w-]+) ([\d.]+ (?:s|ms|us))\b", answer):
        found = re.findall(rf"│ {name}\s+(?:about )?([\d.]+ (?:s|ms|us))", printed)[-1]
        assert parse(found, SECONDS) == pytest.approx(parse(expected, SECONDS), rel=CLOSE)
    for expected in re.findall(r"MFU ([\d.]+)%", answer):
        assert float(re.findall(r"MFU ([\d.]+)%", printed)[-1]) == pytest.approx(float(expected), rel=CLOSE)


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
