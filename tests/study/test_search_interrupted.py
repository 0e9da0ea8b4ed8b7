"""An interrupted search: what it has found is its answer, and it goes on from its log."""

import json

import jsonschema
import pytest

import scaleout
from scaleout.api.searches import SearchInterrupted
from scaleout.report.vocabulary import schema
from scaleout.study.search import scheduled

SMALL = {
    "layers": 4, "hidden": 512, "heads": 4, "kv_heads": 4, "ffn": 1024, "sequence": 2048, "vocabulary": 3000,
}  # fmt: skip
ASKED = {"topology": "dgx-h200-1", "changes": SMALL, "global_batch": 16, "top": 3, "workers": 1}


def test_every_stage_says_what_its_steps_are():
    """Each has a name of its own and never counts back: of two bars of one name the second would be the first anew."""
    told, last = {}, ""

    def tell(done, total, what, _best):
        nonlocal last
        what = what.partition(",")[0]
        if what.startswith("plans judged") and what != last:
            assert what not in told
        told[what], last = (done, total), what

    asked = {**ASKED, "global_batch": 8}  # what other tests search is known to this process
    scaleout.search("llama-3-8b", **asked, schedules=["overlap"], simulations=2, tell=tell)
    assert list(told)[:3] == ["groups of plans weighed for bounds", "plans judged", "simulations of the fastest plans"]
    assert "plans judged again" in told
    assert "simulations under overlap" in told
    assert all(done <= total for done, total in told.values())


def test_what_is_found_is_the_answer():
    def tell(_done, _total, _what, best):
        if best.fastest:
            raise KeyboardInterrupt

    with pytest.raises(SearchInterrupted) as found:
        scaleout.search("llama-3-8b", **ASKED, tell=tell)
    answer, whole = found.value.answer, scaleout.search("llama-3-8b", **ASKED)
    assert answer.plans.fastest[0].choice in {each.choice for each in whole.plans.evaluated}
    left, total = (int(word.replace(",", "")) for word in answer.not_tried.split()[:3:2])
    assert 0 < left < total
    assert total == whole.plans.counts.enumerated - whole.plans.counts.indivisible
    document = answer.to_dict()
    assert document["not_tried"] == answer.not_tried
    jsonschema.validate(document, schema("search"))
    assert "not_tried" not in whole.to_dict()
    assert answer.to_dict()["fastest"][0]["run"].startswith("scaleout run llama-3-8b")


def test_schedules_that_were_not_tried_are_said(monkeypatch, tmp_path):
    """Where the interrupt comes among the simulations, the fastest are those simulated; the same search goes on."""
    simulated, under = scheduled.simulated, []

    def struck(prepared, program):
        under.append(prepared.job.schedule)
        if under.count("overlap") == 2:
            raise KeyboardInterrupt
        return simulated(prepared, program)

    wanted = {"schedules": ["overlap"], "simulations": 4, "directory": tmp_path}
    with monkeypatch.context() as patched:
        patched.setattr(scheduled, "simulated", struck)
        with pytest.raises(SearchInterrupted) as found:
            scaleout.search("llama-3-8b", **ASKED, **wanted)
    answer = found.value.answer
    assert answer.not_tried == "3 of 4 simulations under overlap"
    assert len(answer.plans.fastest) == 3
    whole = scaleout.search("llama-3-8b", **ASKED, **wanted)
    assert whole.to_dict() == scaleout.search("llama-3-8b", **ASKED, **{**wanted, "directory": None}).to_dict()


def test_an_interrupt_before_any_plan_has_no_answer(monkeypatch):
    def struck(*_given):
        raise KeyboardInterrupt

    monkeypatch.setattr("scaleout.study.search.search._weigh", struck)
    with pytest.raises(KeyboardInterrupt) as found:
        scaleout.search("llama-3-8b", **ASKED)
    assert type(found.value) is KeyboardInterrupt


def test_the_command_line_prints_what_is_found(scaleout, monkeypatch):
    def struck(*_given):
        raise KeyboardInterrupt

    monkeypatch.setattr("scaleout.api.searches.fastest_step", struck)
    sizes = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    asked = ("search", "llama-3-8b", "--topology", "dgx-h200-1", *sizes, "--global-batch", "16", "--workers", "1")
    code, out, err = scaleout(*asked)
    assert (code, err.strip()) == (
        130, "interrupted; nothing is kept; with --output plans are, and the same command goes on",
    )  # fmt: skip
    assert "not tried  error bars and explanation of the fastest; below is the best until then" in out
    assert "scaleout run llama-3-8b" in out
    assert "the fastest plans" in out
    code, out, _ = scaleout(*asked, "--json")
    assert (code, json.loads(out)["not_tried"]) == (130, "error bars and explanation of the fastest")
