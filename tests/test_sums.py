"""Floats are added up alike by every Python: `sum` rounds otherwise since 3.12, `math.fsum` is exact in all."""

import builtins
import sys

import pytest

COMMANDS = {
    "run": ("run", "dlrm-128"),
    "centauri": ("run", "llama-3-8b", "--set", "layers=2", "--schedule", "overlap", "--schedule", "centauri"),
    "experts": ("run", "mixtral-8x7b", "--set", "layers=2", "--schedule", "fused"),
    "search": (
        "search", "llama-3-8b", "--topology", "dgx-h200-1", "--global-batch", "8", "--top", "2", "--workers", "1",
        "--set", "recompute=none", "--set", "zero=1", "--schedule", "overlap", "--simulations", "1",
    ),
    "track": ("track",),
    "operator": ("operator", "embedding_all_to_all"),
}  # fmt: skip


@pytest.mark.parametrize("verb", COMMANDS)
def test_no_sum_of_floats_depends_on_the_version_of_python(scaleout, monkeypatch, verb):
    found, plain = set(), builtins.sum

    def watched(items, start=0):
        total = plain(items, start)
        where = sys._getframe(1).f_globals["__name__"]
        if isinstance(total, float) and where.startswith("scaleout.") and ".report." not in where:
            found.add(f"{where}, line {sys._getframe(1).f_lineno}")
        return total

    monkeypatch.setattr(builtins, "sum", watched)
    code, _, err = scaleout(*COMMANDS[verb])
    assert (code, err) == (0, "")
    assert not found, f"use math.fsum in {sorted(found)}"
