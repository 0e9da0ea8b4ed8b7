"""The guides to extending scaleout hold: each example runs as printed, and its entry alone puts it in use."""

import sys
from dataclasses import replace

import pytest
from guides import FOLDER, block, entry_of, module_of, section

from scaleout.cluster.device.kernel_times import MODELS, kernel_time
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.kinds import KINDS
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.network.collectives import ALGORITHMS, BUS_FACTORS
from scaleout.network.flow.collective import collective_cost as flow_cost
from scaleout.network.routes.links import links_of
from scaleout.program.operations import custom, kernel
from scaleout.schedule import SCHEDULES, Schedule
from scaleout.simulation.options import SimulationOptions
from scaleout.study.job import Job, run
from scaleout.study.search.request import request_of
from scaleout.study.search.search import search
from scaleout.workloads.families import FAMILIES, load_workload
from scaleout.workloads.generate.profile import profile_key

EXTEND, FAMILY, TRACES = "extend.md", "add-a-model-family.md", "chakra-and-astra-sim.md"
NODE = load_topology("dgx-h200-1")
MODEL = {"layers": 2, "data_parallel": 8, "device": "h200"}


@pytest.fixture
def printed(tmp_path, monkeypatch):
    """The module that is printed below a heading, forgotten after the test."""

    def of(guide, title, name):
        monkeypatch.setitem(sys.modules, name, None)
        return module_of(guide, title, tmp_path, name)

    return of


def step(*, topology=NODE, device="h200", schedule="overlap", workload="llama-small", changes=MODEL, **options):
    """One step of a small job of eight ranks."""
    device = load_device(device) if isinstance(device, str) else device
    job = Job(load_workload(workload, changes), device, topology, schedule, SimulationOptions(**options))
    return run(job).result


def test_a_collective_algorithm(printed, monkeypatch):
    name = "scaleout.network.collectives.my_ring"
    module = printed(EXTEND, "A collective algorithm", name)
    algorithm = entry_of(EXTEND, "A collective algorithm", my_ring=module)
    monkeypatch.setitem(ALGORITHMS, algorithm.name, algorithm)
    ring = Topology("ring", (Dimension("ring", 8, 1e9, 1e-6),))
    group = place(ring, range(8))
    cost = collective_cost("all_gather", 1e6, group, "my_ring")
    assert cost.time_s == pytest.approx(7 * (1e-6 + 1e6 / 8 / 1e9))
    assert cost.serialization_s == pytest.approx(BUS_FACTORS["all_gather"](8) * 1e-3)
    assert flow_cost("all_gather", 1e6, links_of(ring), range(8), "my_ring").time_s == pytest.approx(cost.time_s)
    with pytest.raises(ConfigError, match="cannot do all_gather on this group: it needs a power of two of ranks"):
        collective_cost("all_gather", 1e6, place(ring, range(6)), "my_ring")
    options = {"algorithms": {"all_gather": "my_ring"}, "changes": MODEL | {"zero": 3}, "topology": ring}
    assert step(**options).makespan_s > 0


def test_a_schedule(printed, monkeypatch):
    printed(EXTEND, "A schedule", "scaleout.schedule.my_pass")
    for name, entry in entry_of(EXTEND, "A schedule", Schedule=Schedule).items():
        monkeypatch.setitem(SCHEDULES, name, entry)
    baseline, found, overlapped = (step(schedule=name).makespan_s for name in ("baseline", "my-pass", "overlap"))
    assert overlapped <= found < baseline


def test_a_device(tmp_path):
    folder = tmp_path / "my-gpu"
    folder.mkdir()
    file = folder / "device.yaml"
    text = block(EXTEND, "A device", "yaml")
    file.write_text(text)
    device = load_device(str(file))
    assert (device.name, device.title) == ("my-gpu", "My GPU")
    assert step(device=str(file)).makespan_s > step().makespan_s
    keys = [line.partition(":")[0] for line in text.splitlines() if not line.startswith(" ")]
    for key in keys:  # nothing can be left out
        given = "".join(part for part in _top_level(text) if not part.startswith(f"{key}:"))
        file.write_text(given)
        with pytest.raises(ConfigError, match=key):
            load_device(str(file))


def _top_level(text):
    """Keys of a YAML file, each with what lies below it."""
    parts = []
    for line in text.splitlines(keepends=True):
        if line.startswith(" "):
            parts[-1] += line
        else:
            parts.append(line)
    return parts


def test_a_kind_of_dimension(printed, monkeypatch, tmp_path):
    module = printed(EXTEND, "A kind of dimension", "scaleout.cluster.topology.kinds.hypercube")
    kind = entry_of(EXTEND, "A kind of dimension", Hypercube=module.Hypercube)
    monkeypatch.setitem(KINDS, kind.name, kind)
    entry = "bandwidth: 25 GB/s, bandwidth_source: x, latency: 1 us, latency_source: x"
    for size in (8, 6):
        (tmp_path / f"{size}.yaml").write_text(f"source: x\ndimensions: [{{kind: hypercube, size: {size}, {entry}}}]\n")
    assert step(topology=load_topology(str(tmp_path / "8.yaml"))).makespan_s > 0
    with pytest.raises(ConfigError, match="a hypercube has a power of two of ranks, not 6; give another size"):
        load_topology(str(tmp_path / "6.yaml"))


def test_a_model_of_kernel_times(printed, monkeypatch):
    """Put before the others, as the guide says."""
    module = printed(EXTEND, "A model of kernel times", "scaleout.cluster.device.kernel_times.my_model")
    entry, others = entry_of(EXTEND, "A model of kernel times", my_model=module), dict(MODELS)
    monkeypatch.setattr("scaleout.cluster.device.kernel_times.MODELS", entry | others)
    device = replace(load_device("h200"), kernel_models=("my_model", "analytical"))
    moved = custom(dtype="bf16", flops=0, bytes=10**9)
    assert kernel_time(load_device("h200"), moved).source == "roofline"
    assert kernel_time(device, moved) == (pytest.approx(1e9 / device.memory_bytes_per_s), "my_model")
    assert kernel_time(device, kernel("gemm", dtype="bf16", M=1024, N=1024, K=1024)).source != "my_model"
    assert step(device=device).makespan_s != step().makespan_s


def test_a_model_family(printed, monkeypatch, tmp_path):
    title = "A complete family"
    module = printed(FAMILY, title, "scaleout.workloads.families.mixer")
    for name, family in entry_of(FAMILY, title, Mixer=module.Mixer).items():
        monkeypatch.setitem(FAMILIES, name, family)
    file = tmp_path / "mixer.yaml"
    file.write_text(block(FAMILY, title, "yaml"))
    workload = load_workload(str(file))
    assert workload.num_parameters == 1024 * (768 + 8 * 1024 + 1000)
    assert step(workload=str(file), changes={}).makespan_s > 0
    request = request_of(str(file), NODE, load_device("h200"), top=1)
    assert search(request, workers=1).fastest
    with pytest.raises(ConfigError, match="tensor_parallel 2 is not written for a mixer"):
        load_workload(str(file), {"tensor_parallel": 2})
    assert profile_key(load_workload(str(file), {"optimizer": "none"})) == profile_key(workload)


def test_traces_that_you_write(printed, monkeypatch, tmp_path, scaleout):
    monkeypatch.chdir(tmp_path)
    title = "Traces that you write"
    printed(TRACES, title, "my_traces")
    code, answer, error = scaleout(*block(TRACES, title, "text").split()[1:])
    assert code == 0, error
    assert "ranks 4, device h200" in answer
    assert "all_reduce over 1, 2, bound by nvlink" in answer
    assert "roofline 85.1%, given 14.9%" in answer  # 250 us are given, the rest takes what the device's bound is


@pytest.mark.parametrize("guide", [EXTEND, FAMILY])
def test_every_block_of_python_is_run_here(guide):
    text = (FOLDER / guide).read_text(encoding="utf-8")
    tested = ["A model of kernel times", "A collective algorithm", "A schedule", "A kind of dimension"]
    titles = tested if guide == EXTEND else ["A complete family"]
    assert text.count("```python") == sum(section(guide, title).count("```python") for title in titles) == len(titles)
