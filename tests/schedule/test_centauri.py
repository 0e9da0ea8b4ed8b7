"""The operation tier and the schedule centauri: laws, Algorithm 1 by hand, and what is chosen."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import jobs, pipelines
from test_partition import check_conserved, columns_of
from test_workload_partition import CLUSTER, DEVICE, MACHINE, RINGS, chains, gather_then_product

from scaleout.cli import main
from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.errors import ConfigError
from scaleout.program.graph import COLLECTIVES, NodeKind
from scaleout.schedule import apply_schedule
from scaleout.schedule.centauri.operation_tier import Costs, candidates, even, finer, finish_s, granularity
from scaleout.schedule.centauri.schedule import plan
from scaleout.schedule.cost import ProgramCosts, Trial
from scaleout.schedule.overlap import in_program_order
from scaleout.simulation.contention import undisturbed
from scaleout.simulation.cost_model import CostModel
from scaleout.simulation.run import simulate
from scaleout.study.comparison import compare
from scaleout.validation.papers import centauri
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate

# ---- Algorithm 1

LEVELS = {"inter_s": 3.0, "inter_size": 2, "intra_size": 8}


@pytest.mark.parametrize(
    ("costs", "chunks"),
    [
        (Costs(9.0, 4.0, 4.0), [1]),  # hidden whole, lines 24 and 25
        (Costs(9.0, 4.0, 0.0), [1 / 8] * 8),  # nothing beside it: MAX_CHUNKS
        (Costs(9.0, 4.0, 1.5), [1 / 3] * 3),  # 2.67 chunks of what hides one
        (Costs(9.0, 4.0, 0.1), [1 / 8] * 8),
        (Costs(9.0, 4.0, 3.5, **LEVELS), [2 / 16, 14 / 16]),  # line 12: between nodes is hidden
        (Costs(60.0, 4.0, 1.0, **LEVELS), [8 / 16, 8 / 16]),  # line 16: 60 / 2 > 8 * 3
        (Costs(40.0, 4.0, 1.0, **LEVELS), [8 / 16, 1 / 16, 7 / 16]),  # line 19: 40 / 2 < 24
    ],
)
def test_algorithm_1_by_hand(costs, chunks):
    assert granularity(costs) == pytest.approx(chunks)
    assert sum(granularity(costs)) == pytest.approx(1)


costs_of = st.builds(
    Costs, st.floats(0, 10), st.floats(0, 10), st.floats(0, 10), st.floats(0, 10), st.integers(1, 6), st.integers(1, 8)
)


@given(costs_of, st.booleans())
def test_a_pipeline_is_within_its_bounds(costs, produces):
    """Never before the longer of the two, nor after one behind the other; even chunks without latency never lose."""
    for parts in (even(costs), granularity(costs)):
        assert sum(parts) == pytest.approx(1)
        assert min(parts) > 0
        found = finish_s(parts, costs, chunk_s=lambda part: part * costs.communication_s, produces=produces)
        whole = finish_s((1.0,), costs, chunk_s=lambda part: part * costs.communication_s, produces=produces)
        longest = max(costs.communication_s, costs.computation_s + costs.independent_s)
        assert found >= longest * (1 - 1e-9)
        assert found <= whole * (1 + 1e-9) + 1e-12


# ---- The schedule


@given(st.one_of(jobs(max_roles=2), pipelines(), chains().map(lambda program: (program, CLUSTER))))
@settings(max_examples=60)
def test_centauri_conserves_work_and_runs_to_its_end(job):
    program, topology = job
    before = columns_of(program)
    machine = Machine(DEVICE, topology, RINGS)
    found = apply_schedule(program, "centauri", machine=machine)
    assert columns_of(program) == before
    assert columns_of(apply_schedule(program, "centauri", machine=machine)) == columns_of(found)
    check_conserved(program, found, rounding_bytes=30 * max(map(len, program.graphs)))
    result = simulate(found, topology)
    assert result.makespan_s == simulate(found, topology).makespan_s


@given(st.one_of(jobs(max_roles=2), pipelines(), chains().map(lambda program: (program, CLUSTER))))
@settings(max_examples=60)
def test_a_trial_that_is_not_simulated_again_takes_what_it_would_take(job):
    """The same plan, decisions and times as when every trial is simulated."""
    program, topology = job
    found = plan(program, Machine(DEVICE, topology, RINGS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trial, "beside", lambda trial, old: trial)
        every = plan(program, Machine(DEVICE, topology, RINGS))
    assert columns_of(found.program) == columns_of(every.program)
    assert found.decisions == every.decisions
    assert (found.result is None) == (every.result is None)
    if found.result is not None:
        anew = simulate(in_program_order(found.program), topology, algorithms=RINGS)
        assert found.result.makespan_s == every.result.makespan_s == anew.makespan_s


def test_fsdp_on_two_nodes_gains_in_all_three_dimensions():
    """Groups: half the bytes out of a node. Chunks: layers start before all their parameters are there."""
    workload = load_workload("llama-big", {"zero": 3, "layers": 3, "batch_per_replica": 2})
    found = compare(workload, schedules=("overlap", "centauri"), algorithms=RINGS).outcomes[1]
    assert 1.15 < found.speedup < 15 / 16 / 25 * 32 * 1.2
    program = time_kernels(generate(workload), DEVICE)
    words = "\n".join(map(str, plan(program, MACHINE).decisions))
    assert "6 x all_gather of 1020 MiB over data: by levels 2 x 8, 36.6 ms, rather than" in words
    assert "cut into 8 chunks with the GEMMs next to it" in words


@pytest.mark.parametrize(("batch", "layers_ms"), [(2, 8 * 3.14), (8, 36.6)])
def test_gradients_are_reduced_in_chunks_where_a_step_is_shorter(batch, layers_ms):
    """Bound by links, the part within nodes of each layer (7/8 of 1070 MB at 300 GB/s) is beside that between them;
    bound by kernels, the last layer's reduction is the only one that shows. Neither gain can be more.
    """
    workload = load_workload("llama-big", {"zero": 3, "batch_per_replica": batch})
    decisions = compare(workload, schedules=("centauri",), algorithms=RINGS).outcomes[0].decisions
    (found,) = [each for each in decisions if each.choice == "reduced in chunks as they are made"]
    assert 0.7 * layers_ms < 1e3 * (found.alternatives_s["reduced whole"] - found.time_s) < layers_ms


def test_gradients_stay_whole_where_chunks_only_pay_their_latency():
    """Six nodes, whose groups are not divided, and bound by links: all but the end is hidden behind other layers."""
    changes = {"zero": 3, "layers": 6, "data_parallel": 48}
    found = compare(load_workload("llama-big", changes), topology=load_topology("a100-cluster-a-6"),
                    schedules=("centauri",), algorithms=RINGS).outcomes[0]  # fmt: skip
    decisions = [str(each) for each in found.decisions]
    assert not any("1020 MiB over data: by levels" in words for words in decisions)
    assert not any("reduce_scatter of 1020 MiB over data: cut" in words for words in decisions)


def test_dimensions_of_the_partition_space_are_added_one_by_one():
    """The paper's ablation: primitives change nothing of FSDP, groups halve the bytes of ports, chunks start early."""
    workload = load_workload("llama-big", {"zero": 3, "layers": 3, "batch_per_replica": 2})
    schedules = ("overlap", "centauri:primitive", "centauri:group", "centauri:workload", "centauri")
    found = compare(workload, schedules=schedules, algorithms=RINGS).outcomes
    seconds = [outcome.makespan_s for outcome in found]
    assert seconds[0] == seconds[1] > 1.05 * seconds[2] > 1.05 * seconds[3] >= 1.05 * seconds[4]
    words = ["\n".join(map(str, outcome.decisions)) for outcome in found]
    assert ["by levels" in each for each in words] == [False, False, True, True, True]
    assert ["cut into" in each for each in words] == [False, False, False, True, True]


def test_a_dimension_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"unknown dimension 'groups' of centauri's .* did you mean 'group'\?"):
        apply_schedule(gather_then_product(1e-6), "centauri:groups", machine=MACHINE)
    with pytest.raises(ConfigError, match=r"unknown dimension 'groups' of centauri's .* did you mean 'group'\?"):
        apply_schedule(gather_then_product(1e-6), "centauri:model-groups", machine=MACHINE)


def test_without_groups_the_model_tier_moves_gathers_and_nothing_goes_by_levels():
    """Data parallelism over two nodes of A100, as Sec. 5.1 partitions it."""
    keys = {"layers": 2, "data_parallel": 16}
    schedules = ("centauri:model", "centauri:model-group")
    found = compare("llama-small", topology="a100-cluster-a-2", changes=keys, schedules=schedules, algorithms=RINGS)
    found = found.outcomes
    by_levels, without = ([str(each) for each in outcome.decisions] for outcome in found)
    assert any("by levels" in words for words in by_levels)
    assert not any("by levels" in words for words in without)
    assert any(words.startswith("model tier: zero 1") for words in without)
    assert found[0].makespan_s < found[1].makespan_s


def test_levels_are_taken_where_they_are_shorter_beside_each_other():
    """32 nodes: one after another levels take longer than one flat ring, but two networks carry two gathers at once."""
    workload = load_workload("llama-big", {"zero": 1, "layers": 3, "data_parallel": 256})
    cluster = load_topology("a100-cluster-b-32")
    machine = Machine(DEVICE, cluster, RINGS)
    program_costs = ProgramCosts(generate(workload), CostModel(machine))
    gathered = (0, "all_gather", 1_070_110_720)
    levels_s = program_costs.levels_s(*gathered)
    assert max(levels_s) < program_costs.whole_s(*gathered) < sum(levels_s)
    assert not program_costs.by_levels(*gathered)
    found = compare(workload, topology=cluster, schedules=("overlap", "centauri"), algorithms=RINGS).outcomes[1]
    words = "\n".join(map(str, found.decisions))
    assert "collectives over nodes: by levels that are shorter side by side" in words
    assert "all_gather of 1020 MiB over data: by levels 32 x 8" in words


def test_more_chunks_than_algorithm_1_has_are_taken_where_a_step_is_shorter():
    """It counts what is independent of a collective as its own to hide behind; other collectives are beside it, too."""
    workload = load_workload("llama-big", {"zero": 3})
    found = compare(workload, schedules=("centauri",), algorithms=RINGS).outcomes[0]
    (decision,) = [each for each in found.decisions if each.choice == "halves, quarters and eighths too"]
    assert decision.time_s == found.makespan_s
    assert decision.time_s < 0.995 * decision.alternatives_s["as Algorithm 1 has them"]


@given(costs_of)
def test_finer_ways_are_those_of_algorithm_1_and_even_ones(costs):
    ways = finer(costs)
    assert ways[: len(candidates(costs))] == candidates(costs)
    assert {len(way) for way in ways} >= {1, 2, 4, 8}
    assert all(sum(way) == pytest.approx(1) for way in ways)


def test_an_all_reduce_over_nodes_becomes_scatter_and_gather_by_levels():
    """Data parallelism: 2 n / 16 over each port instead of 2 n 15/16 / 8."""
    program = time_kernels(generate(load_workload("llama-small", {"layers": 1})), DEVICE)
    planned = plan(program, MACHINE)
    scheduled, decisions = planned.program, planned.decisions
    assert any("reduce_scatter and all_gather by levels 2 x 8" in words for words in map(str, decisions))
    kinds = {COLLECTIVES[kind] for graph in scheduled.graphs for kind in graph.collective if kind >= 0}
    assert kinds == {"reduce_scatter", "all_gather"}


def test_one_node_has_no_levels_and_says_why():
    node = load_topology("dgx-a100-1")
    program = time_kernels(generate(load_workload("llama-small", {"layers": 1, "zero": 3, "data_parallel": 8})), DEVICE)
    decisions = plan(program, Machine(DEVICE, node)).decisions
    assert all(not each.choice.startswith("by levels") for each in decisions)
    assert any("its links have one bandwidth" in words for words in map(str, decisions))


@pytest.mark.parametrize(
    ("tensor", "pipeline", "zero"),
    [(1, 1, 0), (1, 1, 3), (2, 1, 1), (2, 1, 3), (4, 1, 0), (1, 2, 2), (2, 2, 0), (1, 4, 0)],
)
def test_what_does_not_pay_beside_kernels_is_left_as_it_was(tensor, pipeline, zero):
    """On four H200 chunks and overlap cost what they take from kernels; a plan knows, and no step is longer for it."""
    changes = {
        "layers": 4, "tensor_parallel": tensor, "pipeline_parallel": pipeline, "data_parallel": 4 // tensor // pipeline,
        "zero": zero, "batch_per_replica": 4, "microbatch": 1, "sequence_parallel": tensor > 1,
    }  # fmt: skip
    workload = load_workload("llama-3-8b", changes)
    found = compare(workload, topology="h200-node-4", schedules=("baseline", "overlap", "centauri")).outcomes
    assert found[2].makespan_s <= min(found[0].makespan_s, found[1].makespan_s)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("workload=K", "gemm cannot be cut along K, a contraction dimension (CD), along which parts would have to"),
        ("workload=heads", "gemm has no dimension 'heads' that it can be cut along; cut along M or N"),
        ("group=M", "centauri:group=M: only GEMMs are cut along a dimension that is named; give workload=M"),
    ],
)
def test_what_products_cannot_be_cut_along(scaleout, option, message):
    code, out, err = scaleout("run", "llama-small", "--set", "layers=1", "--schedule", f"centauri:{option}")
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("along", ["M", "N"])
def test_products_are_cut_along_the_dimension_that_is_named(along):
    """Rows of activations along M, columns of parameters along N; under FSDP alone there are no rows to cut."""
    workload = load_workload("llama-big", {"zero": 3, "layers": 3, "batch_per_replica": 2})
    program = time_kernels(generate(workload), DEVICE)
    graph = apply_schedule(program, f"centauri:workload={along}", machine=MACHINE).graphs[0]
    chunks = {name.split("_all_gather")[0] for name in graph.names if "_chunk_" in name}
    assert chunks == ({"parameters"} if along == "N" else set())


def test_urgent_collectives_stay_urgent():
    """What layers wait for goes first where a rank may choose, as under overlap."""
    changes = {"layers": 2, "tensor_parallel": 2, "data_parallel": 8, "sequence_parallel": True, "zero": 1}
    program = time_kernels(generate(load_workload("llama-small", changes)), DEVICE)
    for schedule in ("overlap", "centauri", "out-of-order", "coconet"):
        graph = apply_schedule(program, schedule, machine=MACHINE).graphs[0]
        assert len(set(graph.priority[graph.kind == NodeKind.COLLECTIVE].tolist())) > 1, schedule


def test_without_a_machine_there_is_nothing_to_weigh():
    with pytest.raises(ConfigError, match="centauri weighs what collectives cost; say which device and network"):
        apply_schedule(gather_then_product(1e-6), "centauri")


# ---- The paper's figures


def test_flat_rings_take_the_port_for_longer_than_levels_do():
    """FSDP on two nodes: 15/16 n at 25 GB/s against 1/2 n at 16 GB/s, and 7/8 n at 300 GB/s within a node beside it."""
    base, chosen = (centauri.fsdp("big", 2, name) for name in ("zero-3", "centauri"))
    port_s, node_s = 1 / 2 / 16, 7 / 8 / 300
    ratio = chosen.isolated_s / base.communication_s * (15 / 16 / 25)
    assert 0.98 * port_s < ratio < 1.02 * (port_s + node_s)


def test_a_plan_that_changes_nothing_is_overlap():
    """Priorities as well: all-to-alls of experts go before gradients, where both wait for a dimension."""
    changes = {"zero": 3, "layers": 2, "tensor_parallel": 1, "data_parallel": 16, "batch_per_replica": 1}
    job = load_workload("mixtral-8x7b", changes | {"sequence_parallel": False, "expert_parallel": 8})
    found = compare(job, topology="dgx-h200-2", schedules=("overlap", "centauri:primitive")).outcomes
    plain, planned = (outcome.result.program.graphs[0] for outcome in found)
    assert (plain.priority == planned.priority).all()
    assert len(set(plain.priority.tolist())) > 1
    assert found[0].makespan_s == found[1].makespan_s


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_plan_gains_more_than_the_share_of_communication_allows(data):
    """Sec. 5.4: at the most min(1 / alpha, 1 / (1 - alpha)), for random jobs on both clusters."""
    tensor, pipeline = data.draw(st.sampled_from([(1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)]))
    zero = data.draw(st.sampled_from([0, 1, 2, 3] if pipeline == 1 else [0, 1]))
    changes = {
        "layers": data.draw(st.sampled_from([1, 2])) * 2 * pipeline, "tensor_parallel": tensor,
        "pipeline_parallel": pipeline, "data_parallel": 16 // tensor // pipeline, "sequence_parallel": tensor > 1,
        "zero": zero, "batch_per_replica": 4, "microbatch": 1 if pipeline > 1 else data.draw(st.sampled_from([1, 4])),
        "vocabulary": data.draw(st.sampled_from([0, 32000])),
    }  # fmt: skip
    on, size = (data.draw(st.sampled_from("AB")), 2), data.draw(st.sampled_from(["small", "medium"]))
    speedup, bound = centauri.bound_of(centauri.step("centauri", size, on=on, **changes))
    assert speedup <= bound * (1 + 1e-9)


def test_no_plan_beats_its_computation_or_its_communication():
    for steps in (*centauri.figure_12().values(), *centauri.figure_8().values()):
        base, chosen = steps["zero-3"], steps["centauri"]
        assert max(chosen.computation_s, chosen.isolated_s) <= chosen.step_s <= base.step_s


def test_on_the_large_cluster_a_plan_is_chosen_and_gains_less_with_the_batch():
    pairs = [
        [centauri.fsdp("big", batch, name, on=("B", 32)) for name in ("zero-3", "centauri")] for batch in (2, 4, 8)
    ]
    found = [centauri.gain(*pair) for pair in pairs]
    assert found == sorted(found, reverse=True)
    assert found[-1] > 1


@pytest.mark.parametrize(("microbatch", "by_equation"), [(1, 6), (2, 6), (4, 6), (8, 3)])
def test_micro_batches_are_launched_together_as_by_equation_or_better(microbatch, by_equation):
    """At TP4 + PP3 + DP4 as many as the pipeline has stages at micro-batches of 8 (Sec. 5.2: 4), and 6 at smaller."""
    chosen = centauri.pipelined(centauri.DEGREES["TP4 PP3 DP4"], microbatch, "centauri")
    assert chosen.job.microbatch_group == 6
    named = [name for each in chosen.decisions for name in each.alternatives_s]
    assert ("in groups of 3, as equation (2) names" in named) == (by_equation == 3)


def test_the_command_says_what_was_decided(capsys, monkeypatch):
    arguments = ["llama-big", "--set", "zero=3", "--set", "layers=1", "--schedule", "centauri"]
    rings = ["--algorithm", "all_gather=ring", "--algorithm", "reduce_scatter=ring"]
    monkeypatch.setattr("sys.argv", ["scaleout", "run", *arguments, *rings, "--json"])
    main()
    (found,) = json.loads(capsys.readouterr().out)["results"]
    gathers = next(each for each in found["decisions"] if each["about"] == "all_gather of 1020 MiB over data")
    assert gathers["choice"] == "by levels 2 x 8"
    assert gathers["time_s"] < gathers["alternatives_s"]["by the whole group"]
    monkeypatch.setattr("sys.argv", ["scaleout", "run", *arguments, *rings, "-v"])
    main()
    assert "what centauri decided" in capsys.readouterr().out


def test_what_chunks_and_products_take_from_each_other_is_weighed():
    """Ignoring it, GPT-3's tensor-parallel collectives were cut, and its step took 2.6% longer."""
    changes = {"tensor_parallel": 8, "data_parallel": 2, "sequence_parallel": True, "layers": 2}
    found = compare("gpt-3", topology="dgx-h200-2", device="h200", schedules=("overlap", "centauri"), changes=changes)
    assert found.outcomes[1].speedup > 0.999


def test_without_contention_the_estimate_has_none_either():
    """What is decided then is what a library that takes nothing from the device would have decided."""
    changes = {"tensor_parallel": 8, "data_parallel": 2, "sequence_parallel": True, "layers": 2}
    job = {"topology": "dgx-h200-2", "device": "h200", "schedules": ("centauri",), "changes": changes}
    with_it, without = (compare("gpt-3", **job, contention=contention).outcomes[0] for contention in (True, False))
    silent = compare("gpt-3", **{**job, "topology": undisturbed(load_topology("dgx-h200-2"))}).outcomes[0]
    assert without.decisions == silent.decisions != with_it.decisions
    assert without.makespan_s == silent.makespan_s
