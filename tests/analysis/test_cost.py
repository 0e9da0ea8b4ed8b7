"""Prices and power of machines against a published bill, energies worked by hand, and what is not public."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.analysis.cost import bill, energy
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.cluster.topology.what_if import NetworkChanges, change_network
from scaleout.study.comparison import compare

H200 = load_device("h200")


def parts(text):
    return {row.name: row.count for row in bill(load_topology(text), H200).network}


PUBLISHED = {  # nodes: switches, and price of cables and connectors: the sheet of Cheah, H100 Freakonomics, August 2024
    128: (48, 2_621_440),
    256: (96, 5_242_880),
    1024: (384, 20_971_520),
}


@pytest.mark.parametrize(("nodes", "published"), PUBLISHED.items())
def test_the_published_bill_of_rails(nodes, published):
    found = bill(load_topology(f"switch(8,nvlink4) x switch({nodes},ndr)"), H200)
    rows = {row.name: row for row in found.network}
    assert rows["ndr switch"].count == published[0]
    assert rows["ndr cable"].dollars == published[1]
    assert found.device_dollars == nodes * 310_000
    assert found.dollars == found.device_dollars + published[1] + published[0] * 36_000


def test_three_levels_of_switches():
    """The sheet's 2,560 switches of 4,096 nodes are one network of all ports, not rails: 5 N / 64."""
    assert parts("switch(32768,ndr)") == {"ndr cable": 3 * 32768, "ndr switch": 2560}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("switch(8,nvlink4)", {}),  # NVSwitch is on the board
        ("ring(8,ndr)", {"ndr cable": 8}),
        ("ring(2,ndr)", {"ndr cable": 1}),
        ("mesh(4,ndr)", {"ndr cable": 3}),
        ("torus(4,4,ndr/4)", {"ndr cable": 8}),  # 32 links of a quarter
        ("fully_connected(4,ndr/3)", {"ndr cable": 2}),
        ("switch(8,nvlink4) x fat_tree(4,4,ndr,taper=2:1)", {"ndr cable": 128 + 64, "ndr switch": 4}),
        ("dragonfly(4,4,2,global_links=1,ndr,latency=1us/0s/0s)", {"ndr cable": 32 + 2 * 6 + 4, "ndr switch": 1}),
    ],
)
def test_parts_by_hand(expression, expected):
    """The tree: ports 128 + 2 x 64 at leaves and spines of 64; the dragonfly: 32 + 2 x 12 + 2 x 4 of them."""
    assert parts(expression) == pytest.approx(expected)


@given(st.sampled_from([2, 4, 8, 16, 32]), st.floats(1, 8), st.floats(1, 8))
def test_a_taper_is_never_dearer_and_bandwidth_never_cheaper(leaf, ratio, factor):
    full = load_topology("switch(8,nvlink4) x switch(128,ndr)")
    tapers = [change_network(full, NetworkChanges.of(taper={"ndr": f"{r}:1@{leaf}"})) for r in (1, ratio)]
    costs = [bill(topology, H200).network_dollars for topology in tapers]
    assert costs[1] <= costs[0] * (1 + 1e-12)
    faster = change_network(tapers[1], NetworkChanges.of(bandwidth={"ndr": f"{factor}x"}))
    assert bill(faster, H200).network_dollars >= costs[1] * (1 - 1e-12)


def test_what_is_not_public_is_not_guessed():
    bare = bill(load_topology("torus-8x16"), H200)
    assert bare.network_dollars is bare.dollars is None
    assert bare.unpriced[0] == "dimension 0 (ring), which names no link type"
    hdr = bill(load_topology("switch(8,nvlink3) x switch(16,hdr)"), load_device("a100-40g"))
    assert hdr.network_dollars is None
    assert hdr.unpriced == ("hdr cable", "hdr switch")
    assert hdr.device_dollars == 128 * 199_000 / 8
    v100 = bill(load_topology("dgx-h200-1"), load_device("v100"))
    assert v100.dollars is None
    assert v100.network_dollars == 0


def test_the_energy_of_a_step_by_hand():
    """Idle draws 113 W; a node of 8 has 10.2 kW, of which GPUs take 700 W each; two switches and 128 cables."""
    topology = load_topology("dgx-h200-16")
    found = compare("llama-3-8b", topology=topology, schedules=["baseline"],
                    changes={"tensor_parallel": 8, "data_parallel": 16})  # fmt: skip
    (outcome,) = found.outcomes
    step_s = outcome.makespan_s
    assert outcome.energy.node_j == pytest.approx(128 * (1275 - 700) * step_s)
    assert outcome.energy.network_j == pytest.approx((2 * 747 + 128 * 17) * step_s)
    assert 128 * 113 * step_s < outcome.energy.device_j <= 128 * 700 * step_s
    flops = outcome.result.program.total_flops
    assert outcome.energy.device_j > 128 * 113 * step_s + 1.12e-12 * flops * 0.9  # attention's cost more, nothing less
    assert found.summary()["results"][0]["energy"]["total_j"] == outcome.energy.total_j
    assert energy(outcome.result, dataclasses.replace(H200, power=None), topology) is None


def test_a_clock_at_the_limit_draws_the_limit():
    kept = compare("llama-3-8b", topology="dgx-h200-1", schedules=["baseline"], clocks="sustained",
                   changes={"tensor_parallel": 1, "data_parallel": 8, "batch_per_replica": 4})  # fmt: skip
    (outcome,) = kept.outcomes
    assert outcome.energy.device_j == pytest.approx(8 * 700 * outcome.makespan_s, rel=0.02)


def test_a_tree_of_links_that_a_nodes_price_has_in_it_is_not_free():
    """NVSwitch is in the price of a node of eight; what would join 64 nodes of them is not."""
    assert bill(load_topology("switch(8,nvlink4)"), load_device("h200")).network_dollars == 0
    tree = bill(load_topology("fat_tree(8,64,nvlink4,latency=0.6us/2.1us)"), load_device("h200"))
    assert (tree.network_dollars, tree.network_w) == (None, None)
    assert "above a node" in " ".join(tree.unpriced)


def test_a_rented_machine_says_what_steps_and_tokens_cost(scaleout, tmp_path):
    """By hand: 8 devices for 4 dollars an hour, and tokens by what a second trains on; a file of two lines has it."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("like: h100\nrent: {value: 4 USD/h, source: my contract}\n")
    job = ("run", "llama-3-8b", "--set", "data_parallel=8", "--topology", "dgx-h100-1", "--schedule", "overlap")
    code, out, _ = scaleout(*job, "--device", mine, "--json")
    found = json.loads(out)
    row = found["results"][0]
    assert code == 0
    assert (found["cost"]["rent_dollars_per_hour"], found["cost"]["rent_source"]) == (pytest.approx(32), "my contract")
    assert row["step_dollars"] == pytest.approx(32 / 3600 * row["makespan_s"])
    assert row["dollars_per_million_tokens"] == pytest.approx(1e6 * row["step_dollars"] / (8 * 8192))
    _, out, _ = scaleout(*job, "--device", "b200")
    assert "rent      not known: no price of b200 " in out


def test_mfu_names_its_peak(scaleout):
    """With GEMMs in fp8 MFU is still a share of the peak of bf16, which nothing said."""
    job = ("run", "llama-3-8b", "--set", "data_parallel=8", "--set", "linear_dtype=fp8_delayed")
    job = (*job, "--topology", "dgx-h100-1", "--device", "h100", "--schedule", "overlap")
    assert "of 990 TFLOP/s in bf16" in scaleout(*job)[1]
    found = json.loads(scaleout(*job, "--json")[1])["mfu_peak"]
    assert (found["dtype"], found["flops_per_s"]) == ("bf16", 989.5e12)
    assert "H100 datasheet" in found["source"]
