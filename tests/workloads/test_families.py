"""A family of models that only the table of kinds names: it runs, is counted and is searched like the shipped ones."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
from strategies import examples

from scaleout.analysis.efficiency import mfu_of
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.units import Count
from scaleout.errors import ConfigError
from scaleout.study.job import Job, run
from scaleout.study.search.evaluate import evaluate
from scaleout.study.search.request import request_of
from scaleout.study.search.search import search
from scaleout.workloads import families
from scaleout.workloads.config.layered import EMBEDDING, LayeredModel
from scaleout.workloads.generate import generate
from scaleout.workloads.generate.autograd_tape import AutogradTape
from scaleout.workloads.generate.layers import phased, residual
from scaleout.workloads.generate.linear import Linear
from scaleout.workloads.generate.units import Rank
from scaleout.workloads.memory import peak
from scaleout.workloads.pipeline import PIPELINES

FILE = """
kind: mixer
description: a linear map a layer, wide ones in turn
source: this test
topology: dgx-h200-1
device: h200
layers: 16
hidden: 1024
sequence: 2048
width: 2048
pipeline_parallel: 4
data_parallel: 2
batch_per_replica: 8
microbatch: 1
"""


class Mixer(LayeredModel):
    """Layers of one linear map and of two, in turn."""

    REFUSES: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("tensor_parallel", "context_parallel", "sequence_parallel"), "is not written for a mixer; leave it out"
    )

    width: Count

    def write_embedding(self, tape: AutogradTape, x: int, rank: Rank[Any]) -> int:
        return self._map("patches", rank).write(tape, None)

    def write_layer(self, tape: AutogradTape, x: int, rank: Rank[Any], number: int) -> int:
        branch = partial(self._mix, rank=rank, wide=self.layer_kind(number) == "wide")
        return phased(tape, x, partial(residual, branch=branch, elements=rank.elements), phase="mixer")

    def write_head(self, tape: AutogradTape, x: int, rank: Rank[Any]) -> int:
        return self._map("head", rank).write(tape, x)

    def _map(self, name: str, rank: Rank[Any]) -> Linear:
        return Linear(name=name, tokens=self.local_tokens, inputs=self.hidden, outputs=self.hidden, bucket=rank.dense)

    def _mix(self, tape: AutogradTape, x: int, rank: Rank[Any], *, wide: bool) -> int:
        if not wide:
            return self._map("mix", rank).write(tape, x)
        x = replace(self._map("up", rank), outputs=self.width).write(tape, x)
        return replace(self._map("down", rank), inputs=self.width).write(tape, x)

    def layer_kind(self, layer: int) -> str:
        return "wide" if layer % 2 else "narrow"

    def parameters_of(self, part: str) -> int:
        return self.hidden * (2 * self.width if part == "wide" else self.hidden)

    def active_parameters_of(self, part: str) -> int:
        return self.parameters_of(part)


@pytest.mark.parametrize("kind", families.FAMILIES)
def test_every_family_has_a_shipped_workload_that_runs(kind):
    """Written, timed and simulated on the device and topology that it names; what it says of itself is above zero."""
    workload = examples()[kind]
    program = generate(workload)
    assert type(workload) is families.FAMILIES[kind]
    assert program.num_ranks == workload.num_ranks
    assert program.total_flops > 0 < workload.num_parameters
    assert (peak(workload).bytes_of["parameters"] if isinstance(workload, LayeredModel) else 1) > 0
    result = run(Job(workload, load_device(workload.device), load_topology(workload.topology), "overlap")).result
    assert result.makespan_s > 0


@pytest.fixture
def mixer(tmp_path, monkeypatch):
    monkeypatch.setitem(families.FAMILIES, "mixer", Mixer)
    file = tmp_path / "mixer.yaml"
    file.write_text(FILE)
    return lambda **changes: families.load_workload(str(file), changes)


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("schedule", PIPELINES)
def test_flops_and_parameters_are_those_of_the_parts(mixer, schedule, zero, recompute):
    workload = mixer(pipeline_schedule=schedule, zero=zero, recompute=recompute)
    tokens = workload.tokens * workload.data_parallel
    embedding = 2 * workload.parameters_of(EMBEDDING)  # its input needs no gradient
    passes = 4 / 3 if recompute == "full" else 1.0
    needed = (workload.flops_per_token - embedding) * tokens
    assert needed <= generate(workload).total_flops <= needed * passes
    held = peak(mixer(pipeline_schedule=schedule, zero=0, recompute=recompute)).bytes_of["parameters"]
    share = workload.num_parameters * workload.item_bytes / workload.pipeline_parallel
    assert held == pytest.approx(share * PIPELINES[schedule].layout.copies, rel=0.2)  # of the fullest rank


def test_it_is_timed_and_searched(mixer, tmp_path):
    workload, device = mixer(), load_device("h200")
    topology = load_topology(workload.topology)
    found = evaluate(workload, topology, device)
    assert 0 < found.mfu == mfu_of(workload, device, found.step_s) < 1
    request = request_of(str(tmp_path / "mixer.yaml"), topology, device, top=3)
    answer = search(request, workers=1)
    assert answer.fastest
    assert all(each.plan.tensor_parallel == each.plan.context_parallel == 1 for each in answer.fastest)


def test_what_it_does_not_support_is_refused(mixer):
    with pytest.raises(ConfigError, match="tensor_parallel 2 is not written for a mixer; leave it out"):
        mixer(tensor_parallel=2)
