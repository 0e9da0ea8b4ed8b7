"""Marks of a timeline: nothing that is there is left out, whatever the window; numbers worked by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import scaleout
from scaleout.errors import ConfigError
from scaleout.report.pages import view
from scaleout.report.pages.document import facts_of, tables_of
from scaleout.report.pages.slices import PIXELS, slices_of

spans = st.lists(
    st.tuples(st.integers(0, 2), st.floats(0, 1e6), st.floats(0, 1e3) | st.floats(0, 1e-3), st.sampled_from("abc")),
    max_size=60,
)


def timeline(rows):
    events = [
        {"ph": "X", "pid": 0, "tid": tid, "ts": ts, "dur": dur, "cat": cat, "name": cat} for tid, ts, dur, cat in rows
    ]
    return slices_of({"traceEvents": events}, where="test")


@given(rows=spans, window=st.tuples(st.floats(0, 1), st.floats(1e-9, 1)))
def test_every_slice_of_a_window_is_in_one_mark(rows, window):
    found, (first, length) = timeline(rows), window
    last = first + length
    marks = found.marks((first, last), found.processes)
    inside = [
        (ts / 1e6, ts / 1e6 + dur / 1e6) for _, ts, dur, _ in rows if ts / 1e6 + dur / 1e6 >= first and ts / 1e6 <= last
    ]
    assert sum(mark["count"] for mark in marks) == len(inside)
    busy = sum((mark["end_s"] - mark["start_s"]) * mark["busy"] for mark in marks)
    assert busy <= sum(end - start for start, end in inside) * (1 + 1e-9) + 1e-12
    for track in range(len(found.tracks)):
        assert sum(mark["track"] == track for mark in marks) <= 1.5 * PIXELS + len(rows)


def test_short_neighbours_are_one_mark_that_says_how_busy_it_is():
    rows = [(0, 100.0, 1.0, "a"), (0, 102.0, 2.0, "b"), (0, 5000.0, 5000.0, "c")]
    joined, alone = sorted(timeline(rows).marks((0.0, 0.01), ("process 0",)), key=lambda mark: mark["start_s"])
    assert (joined["count"], joined["kind"], joined["busy"]) == (2, "b", pytest.approx(0.75))
    assert (joined["start_s"], joined["end_s"]) == (pytest.approx(100e-6), pytest.approx(104e-6))
    assert (alone["count"], alone["name"]) == (1, "c")


def test_zooming_in_parts_them():
    rows = [(0, 100.0, 1.0, "a"), (0, 102.0, 2.0, "b")]
    assert [mark["name"] for mark in timeline(rows).marks((99e-6, 105e-6), ("process 0",))] == ["a", "b"]


def test_what_is_no_timeline():
    with pytest.raises(ConfigError, match="is no timeline"):
        slices_of({"a": 1}, where="x")


def test_a_page_shows_the_answer_in_its_order_and_all_else_behind_it():
    answer = {"step": "1 s", "ranks": "all", "speed": "fast"}
    document = {"models": ["a network"], "workload": "x", "ranks": 8, "answer": answer, "results": []}
    assert facts_of(document) == [*answer.items(), ("workload", "x"), ("model", "a network")]


def test_a_document_without_an_answer_has_its_names_and_tables():
    """Such as those of older releases."""
    row = {"schedule": "overlap", "makespan_s": 1.0, "exposed_communication_s": 0.1}
    document = {"models": ["a network"], "workload": "x", "ranks": 8, "results": [row]}
    assert facts_of(document) == [("workload", "x"), ("ranks", "8"), ("model", "a network")]
    assert [table.title for table in tables_of(document)] == ["results"]


def test_facts_of_a_foreign_document_are_few_and_short():
    answer = {f"name {number}" + "x" * 10**4: "y" * 10**6 for number in range(200)}
    facts = facts_of({"answer": answer, "results": []})
    assert len(facts) == 100
    assert {len(words) for fact in facts for words in fact} == {2004}
    assert facts_of({"answer": ["no", "mapping"], "ranks": 1}) == [("ranks", "1")]


def test_a_page_says_its_tables_in_the_words_of_the_terminal():
    row = {"schedule": "overlap", "bounds": [{"operation": "all_reduce", "busy_shares": {"ndr": 1.0}}]}
    document = {"memory": {"memory_by_kind_bytes": {"gradients": 0.0}}, "results": [row]}
    table = tables_of(document)[1]
    assert table.title == "what bounds each collective"
    assert "busy share (ndr)" in table.columns


def test_lists_of_ranks_stand_in_their_row_and_long_texts_in_a_table_of_their_own():
    """Once `members of waits` and `waits for of waits` were tables with a row a rank."""
    waits = [{"members": [0, 1, 2, 4], "waits_for": [5], "until": "kernels", "idle_s": 0.0113}]
    quantities = {f"q{number}_s": 1.0 for number in range(20)}
    runs = [
        {
            "schedule": "overlap",
            "waits": waits,
            "run": "scaleout run " + "x" * 80,
            "decisions": ["a", "b"],
            **quantities,
        }
    ]
    found = {table.title: table for table in tables_of({"results": runs})}
    assert [*found] == ["results", "who waits for whom", "how to run each", "what the schedule decided"]
    assert found["results"].upright
    (row,) = found["who waits for whom"].rows
    assert found["who waits for whom"].columns == ["schedule", "ranks", "wait for", "until", "idle"]
    assert [cell.text for cell in row] == ["overlap", "0-2, 4", "5", "kernels", "11.3 ms"]
    assert found["how to run each"].columns == ["schedule", "run"]
    assert not found["what the schedule decided"].upright


def test_the_memory_of_a_job_and_what_would_make_it_fit_are_tables():
    """The tables of a what-if once did not say that its job does not fit."""
    advice = [{"set": {"zero": 3}, "ranks": 8, "fits": True, "makespan_s": 1.0}]
    held = {"fits": False, "peak_memory_bytes": 2.0**38, "memory_by_kind_bytes": {"activations": 2.0**37}}
    memory, fitting = tables_of({"memory": {**held, "advice": advice}, "results": []})
    assert [*zip(memory.columns, (cell.text for cell in memory.rows[0]), strict=True)] == [
        ("fits", "no"), ("peak memory", "256 GiB"), ("memory by kind (activations)", "128 GiB")
    ]  # fmt: skip
    assert (fitting.title, fitting.columns) == ("what would make it fit", ["zero", "ranks", "fits", "makespan"])
    assert [table.title for table in tables_of({"memory": {**held, "advice": []}})] == ["memory"]


def test_more_rows_than_fit_as_columns_are_rows_that_can_be_sorted():
    """Up to twelve plans of a search once stood side by side, wider than the page, their times below their keys."""
    quantities = {f"q{number}_s": 1.0 for number in range(20)}
    plans = [
        {"plan": {"zero": number}, **quantities, "makespan_s": 9.0 - number, "peak_memory_bytes": 1e9, "mfu": 0.5}
        for number in range(7)
    ]
    (many,), (few,) = tables_of({"fastest": plans}), tables_of({"fastest": plans[:6]})
    assert (many.upright, few.upright) == (False, True)
    assert many.columns[:5] == ["number", "makespan", "MFU", "peak memory", "zero"]
    assert [row[1].key for row in many.rows] == [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0]


def test_plans_have_their_number_and_words_for_what_is_within_them():
    plan = {"plan": {"tensor_parallel": 2}, "memory_by_kind_bytes": {"kv_cache": 0, "optimizer_states": 8e9}}
    table, run = tables_of({"fastest": [{**plan, "bubble_s": 1e-3, "bubble": 0.1, "run": ["x"]}] * 2})
    assert table.title == "the fastest plans"
    assert table.columns == ["number", "tensor parallel", "memory by kind (optimizer states)", "bubble time", "bubble"]
    assert [row[0].text for row in run.rows] == ["1", "2"]


def test_a_straggler_is_told_in_the_words_of_the_terminal():
    """Its page had a schedule and a makespan that were those of the unchanged step, and blamed a link."""
    settings = {"data_parallel": 8, "zero": 3, "tensor_parallel": 1, "layers": 8, "batch_per_replica": 1}
    answer = scaleout.run(
        "llama-3-8b",
        changes=settings,
        topology="dgx-h200-1",
        network_changes={"slow": {5: 1.5}},
        schedules=["overlap"],
    )
    document = answer.to_dict()
    facts = facts_of(document)
    assert "slow 5=1.5 costs" in dict(facts)["unchanged"]
    assert dict(facts)["model"].endswith(", slow 5=1.5")
    assert not [words for name, words in facts if name in ("schedule", "makespan")]
    (table,) = (each for each in tables_of(document) if each.title == "what bounds each collective")
    told = [row[table.columns.index("bound by")].text for row in table.rows]
    assert told == [row.words for row in answer.outcomes[0].bounds]
    assert "waits for rank 5" in told


def test_labels_of_time_keep_their_places_and_a_distance():
    """A label at the end of the axis that is moved inwards lay on the next one."""
    axis = view._TIME_AXIS.to_dict()
    assert axis["labelFlush"] is False
    assert axis["labelSeparation"] > 0


def test_what_a_decision_weighed_stands_in_one_cell():
    """Each decision weighs other things, which are no columns of all."""
    decision = {"about": "gradients", "choice": "whole", "time_s": 0.02, "alternatives_s": {"in chunks": 0.03}}
    results = [
        {"schedule": "centauri", "decisions": [decision, {"about": "model tier", "choice": "nothing to choose"}]}
    ]
    table = tables_of({"results": results})[1]
    assert table.title == "what the schedule decided"
    assert table.columns == ["schedule", "about", "choice", "time", "alternatives"]
    assert [cell.text for cell in table.rows[0]] == ["centauri", "gradients", "whole", "20 ms", "in chunks 30 ms"]
