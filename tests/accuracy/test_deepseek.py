"""DeepSeek-V3 as it was trained on 2,048 H800: its step, and a pair of passes that overlap, as published.

No constant was chosen on either. The first prediction, made before both were compared, is in
`traces/h800/predicted.jsonl`; since then a pair's passes take turns at their exchanges.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import scaleout
from scaleout.config.library import folder
from scaleout.program.graph import NodeKind
from scaleout.validation.measured.compare import compare_files

H800 = Path(folder("device")) / "h800"
FORWARD, BACKWARD = (8, 93), (7, 25)  # stage and micro-batch of a pair in the steady state of pipeline rank 7


def rows(name):
    return [json.loads(line) for line in (H800 / name).read_text().splitlines()]


def covered(spans):
    """Return the time that some of the spans cover."""
    ends = np.maximum.accumulate(np.sort(spans, axis=0)[:, 1])
    starts = np.sort(spans, axis=0)[:, 0]
    return float((ends - np.maximum(starts, np.concatenate(([-np.inf], ends[:-1])))).clip(0).sum())


@pytest.fixture(scope="module")
def pair():
    """Return start and end of the kernels, and of the exchanges, of a forward and a backward of four layers."""
    line = scaleout.run("deepseek-v3-h800", schedules=["overlap"]).outcomes[0].result.timelines[7]
    graph = line.graph
    back = np.array(["backward" in each or "recompute" in each for each in graph.phases])[graph.phase]
    chosen = np.zeros(len(graph), bool)
    for (stage, microbatch), is_back in ((FORWARD, False), (BACKWARD, True)):
        chosen |= (graph.stage == stage) & (graph.microbatch == microbatch) & (back == is_back)
    chosen &= line.end_s > line.start_s
    spans = np.stack([line.start_s, line.end_s], axis=1)
    return spans[chosen & (graph.kind == NodeKind.COMPUTE)], spans[chosen & (graph.kind == NodeKind.COLLECTIVE)]


def test_the_step_is_met():
    (row,) = compare_files([H800 / "steps.jsonl"]).rows
    assert row.error is not None
    assert abs(row.error) < 0.1


def test_the_pair_of_the_published_trace_is_met(pair):
    published = rows("published.jsonl")[1]
    kernels, exchanges = pair
    both = np.concatenate(pair)
    pair_ms = 1e3 * (both[:, 1].max() - both[:, 0].min())
    assert pair_ms == pytest.approx(published["pair_ms"], rel=0.1)
    assert 1e3 * covered(kernels) == pytest.approx(published["pair_compute_ms"], rel=0.1)
    assert 1e3 * covered(exchanges) == pytest.approx(published["pair_exchanges_ms"], rel=0.1)
    hidden = 1 - (covered(both) - covered(kernels)) / covered(exchanges)
    assert hidden == pytest.approx(published["pair_exchanges_hidden"], abs=0.1)


def test_the_first_prediction_was_within_a_tenth():
    first, published = rows("predicted.jsonl")[1], rows("published.jsonl")[1]
    assert first["step_s"] == pytest.approx(rows("steps.jsonl")[1]["measured_us"] / 1e6, rel=0.1)
    assert first["pair_ms"] == pytest.approx(published["pair_ms"], rel=0.1)
