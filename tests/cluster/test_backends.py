"""Back ends and policies: closed forms of their algorithms, what a call costs besides, who serves what, and why not."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaleout.cluster.topology.backends import read_runs, with_policy
from scaleout.cluster.topology.communication_library import Hop, Library, Protocol, Terms
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.errors import ConfigError
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.study.comparison import compare

ALPHA, BETA = 3e-6, 1 / 8e9


def switch(num_ranks):
    return Topology("switch", (Dimension("switch", num_ranks, 1 / BETA, ALPHA),))


def log2(p):
    """Rounds of a power of two of members, and two more to fold the others in and out."""
    whole = p.bit_length() - 1
    return whole, (0 if p == 1 << whole else 1)


def ring(p, n):
    return 2 * (p - 1) * ALPHA + 2 * (p - 1) / p * n * BETA


def recursive_doubling(p, n):
    whole, extra = log2(p)
    return (whole + 2 * extra) * (ALPHA + n * BETA)


def rabenseifner(p, n):
    whole, extra = log2(p)
    taking_part = 1 << whole
    return 2 * whole * ALPHA + 2 * (taking_part - 1) / taking_part * n * BETA + 2 * extra * (ALPHA + n * BETA)


@pytest.mark.parametrize("closed_form", [ring, recursive_doubling, rabenseifner])
@given(p=st.integers(2, 70), n=st.integers(1, 2**30))
@settings(max_examples=60, deadline=None)
def test_all_reduce_takes_what_its_closed_form_says_whatever_the_ranks(closed_form, p, n):
    cost = collective_cost("all_reduce", n, place(switch(p), range(p)), closed_form.__name__)
    assert cost.time_s == pytest.approx(closed_form(p, n))


def test_reduce_scatter_by_halving_still_needs_a_power_of_two():
    with pytest.raises(ConfigError, match="needs a power of two of ranks, not 6"):
        collective_cost("reduce_scatter", 1e6, place(switch(6), range(6)), "rabenseifner")


def test_a_staged_buffer_is_copied_there_and_back():
    terms = Terms(7e-6, (Hop("", 1e-6, 0.5),), staging_bytes_per_s=20e9)
    topology = replace(switch(4), library=Library("toy", (Protocol("P", ("all_reduce",), terms),)))
    cost = collective_cost("all_reduce", 1e6, place(topology, range(4)), "recursive_doubling")
    assert cost.time_s == pytest.approx(7e-6 + 2 * (ALPHA + 1e-6 + 1e6 * BETA / 0.5) + 2 * 1e6 / 20e9)


@pytest.mark.parametrize(
    ("algorithm", "num_ranks", "added"),
    [
        ("ring", 6, 5 / 6),
        ("rabenseifner", 8, 7 / 8),
        ("rabenseifner", 6, 1 + 3 / 4),  # two of the six hand all they have to others first
        ("recursive_doubling", 8, 3),  # everyone adds up everything
        ("recursive_doubling", 6, 1 + 2),
    ],
)
def test_what_arrives_is_added_up_at_a_rate_of_its_own(algorithm, num_ranks, added):
    def time_s(terms, kind="all_reduce", algorithm=algorithm, count=num_ranks):
        topology = replace(switch(count), library=Library("toy", (Protocol("P", (kind,), terms),)))
        return collective_cost(kind, 1e6, place(topology, range(count)), algorithm).time_s

    slow = Terms(adding_bytes_per_s=2e9)
    assert time_s(slow) - time_s(Terms()) == pytest.approx(added * 1e6 / 2e9)
    assert time_s(slow, "all_gather", "ring") == time_s(Terms(), "all_gather", "ring")


def served(topology, size_bytes, num_ranks):
    return collective_cost("all_reduce", size_bytes, place(topology, range(num_ranks)))


def test_back_ends_of_sierra_cost_what_their_files_say():
    """Worked by hand: 64 GPUs of 16 nodes, 1 KiB."""
    sierra = load_topology("sierra-64")
    nccl = served(with_policy(sierra, "nccl_ring"), 1024, 64)
    hops_s = 126 * (0.75 * 0.4e-6 + 0.25 * 2.4e-6)
    assert nccl.time_s == pytest.approx(13.6e-6 + hops_s + 2 * 63 / 64 * 1024 / (25e9 * 0.25))
    transfer = served(with_policy(sierra, "host_transfer"), 1024, 64)
    bytes_s = 1024 * (2 / (0.133 * 75e9) + 4 / 6e9 + 2 / 60e9 + 6 / 28e9)
    assert transfer.time_s == pytest.approx(50e-6 + 2 * 2e-6 + 4 * 13e-6 + bytes_s)
    # 64 shards of 64 KiB are the last that NCCL sends in LL.
    policy = with_policy(sierra, "nccl_ring")
    assert [served(policy, size, 64).protocol for size in (2**22, 2**22 + 64)] == ["LL", "Simple"]


def test_racks_of_sierra_share_the_links_above_them():
    """128 GPUs are two racks: the first and the last exchange, of half the buffer, cross through a 2:1 taper.

    Static routes fill 57.5% of it. The other exchanges between nodes move a quarter, an eighth, ... there and back.
    """
    sierra = with_policy(load_topology("sierra-128"), "host_transfer")
    within, across = (served(sierra, 2**30, ranks).serialization_s for ranks in (64, 128))
    taper, nodes = 3.48, 6e9
    assert within == pytest.approx(2**30 * (15 / 8 / nodes + 3 / 32 / 9.975e9 + 2 / 60e9 + 63 / 64 / 28e9))
    exchanges = (taper + 15 / 16) / nodes + 3 / 64 / 9.975e9
    assert across == pytest.approx(2**30 * (exchanges + 2 / 60e9 + 127 / 128 / 28e9))


def test_nccl_trees_reach_the_bandwidth_of_rings_on_many_nodes():
    """Both move 2 n over a node's two rails, trees at 0.9 of the rate; latencies are those of ten levels, not 4094."""
    sierra = load_topology("sierra-2048")
    ring, tree = (with_policy(sierra, name) for name in ("nccl_ring", "nccl_tree"))
    assert served(tree, 2**33, 2048).time_s < 1.15 * served(ring, 2**33, 2048).time_s
    small = served(tree, 4, 2048)
    assert small.algorithm == "hierarchical_tree"
    levels = 2 * 10
    assert small.time_s == pytest.approx(14.4e-6 + 6 * 0.5e-6 + levels * 5e-6, rel=0.1)
    assert served(tree, 4, 4).algorithm == "double_binary_tree"


@given(exponent=st.integers(2, 30), nodes=st.sampled_from([2, 4, 8, 16]))
@settings(max_examples=40, deadline=None)
def test_the_fastest_of_several_is_the_least_of_each(exponent, nodes):
    sierra = load_topology("sierra-64")
    both = served(with_policy(sierra, "nccl_ring+host_transfer"), 2**exponent, 4 * nodes)
    names = ("nccl_ring", "host_transfer")
    isolated = {name: served(with_policy(sierra, name), 2**exponent, 4 * nodes) for name in names}
    assert both.time_s == min(cost.time_s for cost in isolated.values())
    assert both.time_s == isolated[both.backend].time_s


def test_fastest_leaves_out_what_blocks_the_host():
    sierra = load_topology("sierra-64")
    for exponent in range(2, 31, 4):
        assert served(with_policy(sierra, "fastest"), 2**exponent, 64).backend != "cuda_aware_mpi"


def test_a_table_decides_whether_or_not_it_is_right(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(
        "source: made up\nrules:\n- {ranks: 32, backend: nccl_ring}\n- {size: 64 KiB, backend: host_transfer}\n"
        "- {backend: nccl_ring}\n"
    )
    topology = with_policy(load_topology("sierra-64"), str(file))
    chosen = [served(topology, size, ranks).backend for size, ranks in ((4, 32), (4, 64), (2**16, 64), (2**17, 64))]
    assert chosen == ["nccl_ring", "host_transfer", "host_transfer", "nccl_ring"]


NCCL_TESTS = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
{ranks}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               ({time})  (GB/s)  (GB/s)            ({time})  (GB/s)  (GB/s)
{rows}
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 7.5
"""
ROW = "{size:>12} {count:>12}     float     sum      -1 {us:>8}    0.05    0.08      0 {us:>8}    0.05    0.08      0"


def printed(ranks, times, time="us"):
    """What nccl-tests print of a run."""
    listed = "\n".join(f"#  Rank {rank:2d} Group  0 Pid 1 on node device 0 [0x00] NVIDIA V100" for rank in range(ranks))
    rows = "\n".join(ROW.format(size=size, count=size // 4, us=f"{us:.2f}") for size, us in times.items())
    return NCCL_TESTS.format(ranks=listed, rows=rows, time=time)


def write(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_a_policy_is_learned_from_what_nccl_tests_print(tmp_path):
    slow = {1024: 100, 2048: 200, 4096: 400}
    fast = {1024: 200, 2048: 200.5, 4096: 201}
    ours = write(tmp_path, "nccl.txt", printed(64, slow) + printed(8, slow))
    theirs = write(tmp_path, "ht.txt", printed(64, fast) + printed(8, dict.fromkeys(slow, 500)))
    topology = with_policy(load_topology("sierra-64"), f"nccl_ring={ours},host_transfer={theirs}")
    assert [served(topology, size, 64).backend for size in (4, 1024, 3000, 2**20)] == [
        "nccl_ring", "nccl_ring", "host_transfer", "host_transfer",
    ]  # fmt: skip
    # 16 ranks are nearer to 8, 32 to 64.
    assert [served(topology, 4096, ranks).backend for ranks in (16, 32)] == ["nccl_ring", "host_transfer"]
    # What it costs stays the machine's.
    assert served(topology, 4096, 64).time_s == served(with_policy(topology, "host_transfer"), 4096, 64).time_s


def test_times_are_found_as_nccl_tests_print_them(tmp_path):
    text = """#  Rank  0 Group  0 Pid 1 on node device 0 [0x00] NVIDIA H100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   6759.0  158.86  297.86      0   6737.4  159.37  298.82      0
  2147483648     536870912     float     sum      -1    12646  169.81  318.40      0    12641  169.88  318.52      0
  4294967296    1073741824     float     sum      -1    24361  176.31  330.58    N/A    24365  176.27  330.51    N/A
  8589934592    2147483648     float                     N/A     N/A     N/A    N/A    47743  179.92  337.35    N/A
"""
    (run,) = read_runs(Path(write(tmp_path, "nccl.txt", text)), "nccl")
    # From 10 ms on they have no point; without a check of values, and without a time out of place, there is N/A.
    assert run.seconds == pytest.approx((6759e-6, 12646e-6, 24361e-6, 47743e-6))


TIMES = {1024: 100.0, 2048: 200.0}


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (printed(64, TIMES), printed(64, {1024: 1.0}), "host_transfer on 64 ranks lacks sizes that others have: 2048"),
        (printed(64, TIMES), printed(8, TIMES), "nccl_ring has no run on 8 ranks, and that of host_transfer has"),
        (printed(64, TIMES) + printed(8, TIMES, "ms"), printed(64, TIMES), "line 90: units B, .* are not those of"),
        (printed(64, TIMES).replace("(us)", "(ms)", 1), printed(64, TIMES), "have different units, ms and us"),
        (printed(64, TIMES) * 2, printed(64, TIMES), "nccl_ring on 64 ranks was run more than once"),
        (printed(0, TIMES), printed(64, TIMES), "a run does not say its ranks; keep the lines '#  Rank"),
        ("# nothing\n", printed(64, TIMES), "no sizes and times; give a file that nccl-tests printed"),
        ("1024 256 float sum -1 1.00 2.00 3.00 0\n", printed(64, TIMES), "line 1: no line before it names the units"),
        (printed(4, TIMES).replace("2048", "two"), printed(4, TIMES), "'two .* is no size and time in B, elements, us"),
        (printed(4, {1024: 0.0}), printed(4, TIMES), "size and time must be above zero"),
        (printed(4, {1024: 7.0}).replace("7.00", "nan"), printed(4, TIMES), "'nan us' is not a time"),
        (printed(4, TIMES).replace("0.05    0.08      0 ", ""), printed(4, TIMES), "is no size and time in B"),
    ],
)  # fmt: skip
def test_benchmarks_that_cannot_be_compared_are_refused(tmp_path, ours, theirs, message):
    policy = f"nccl_ring={write(tmp_path, 'a.txt', ours)},host_transfer={write(tmp_path, 'b.txt', theirs)}"
    with pytest.raises(ConfigError, match=message):
        with_policy(load_topology("sierra-64"), policy)


@pytest.mark.parametrize(
    ("topology", "policy", "message"),
    [
        ("sierra-64", "nccl_rings", "'sierra-64' has no back end 'nccl_rings'; did you mean 'nccl_ring'"),
        ("torus-8x16", "nccl_ring", "topology 'torus-8x16' names no back ends; add 'backends' to its file"),
        ("sierra-64", "nccl_ring+cuda_aware_mpi", "cuda_aware_mpi blocks the host, .*; take it on its own"),
        ("sierra-64", "missing.yaml", "policy file 'missing.yaml' does not exist"),
        ("sierra-64", "nccl_ring=missing.txt", "benchmark 'missing.txt' does not exist"),
        ("sierra-64", "nccl_ring=", "'nccl_ring=' is no benchmark of a back end; write nccl_ring=runs.txt"),
        ("sierra-64", "smoke=runs.txt", "has no back end 'smoke'"),
    ],
)
def test_a_policy_that_the_machine_does_not_know_is_refused(topology, policy, message):
    with pytest.raises(ConfigError, match=message):
        with_policy(load_topology(topology), policy)


def test_tables_without_an_answer_are_refused(tmp_path):
    file = write(tmp_path, "rules.yaml", "source: x\nrules: [{size: 1 KiB, backend: nccl_ring}]\n")
    topology = with_policy(load_topology("sierra-64"), file)
    with pytest.raises(ConfigError, match="the table has no back end for 2048 B on 64 ranks"):
        served(topology, 2048, 64)
    with pytest.raises(ConfigError, match="a table without rules"):
        with_policy(topology, write(tmp_path, "none.yaml", "source: x\nrules: []\n"))


def test_nothing_overlaps_what_blocks_the_host():
    for outcome in compare("resnet-50", policy="cuda_aware_mpi", schedules=("baseline", "overlap")).outcomes:
        parts = outcome.breakdown
        assert parts.exposed_communication_s == pytest.approx(parts.communication_s)
        assert outcome.makespan_s == pytest.approx(parts.compute_s + parts.communication_s)


def test_a_run_says_which_back_end_served_each_reduction():
    (outcome,) = compare("resnet-50", policy="nccl_ring+host_transfer", schedules=("overlap",)).outcomes
    line = outcome.result.timelines[0]
    reduced = {int(size): name for size, name in zip(line.graph.bytes, line.algorithm, strict=True) if name}
    assert reduced[256] == "host_transfer: recursive_doubling"
    assert reduced[4 * 512 * 512 * 9] == "nccl_ring: ring"


def test_host_transfers_overlap_their_latencies_and_nccl_takes_one_at_a_time():
    def makespans(policy):
        comparison = compare("resnet-50", policy=policy, schedules=("overlap", "concurrent"))
        return [outcome.makespan_s for outcome in comparison.outcomes], comparison.outcomes[1].breakdown

    (one, many), parts = makespans("nccl_ring")
    assert many == pytest.approx(one)
    (one, many), parts = makespans("host_transfer")
    assert many < 0.95 * one
    # Bytes still follow one another on the links: no round is shorter than these.
    sizes = [4 * count for count in (2**20, 2**19)]
    serial = [
        served(with_policy(load_topology("sierra-64"), "host_transfer"), size, 64).serialization_s for size in sizes
    ]
    assert many > math.fsum(serial)
    assert parts.communication_s > 0
    serial = compare("resnet-50", policy="host_transfer", schedules=("baseline",)).outcomes[0]
    assert serial.makespan_s == pytest.approx(serial.breakdown.compute_s + serial.breakdown.communication_s)


@pytest.mark.parametrize("name", ["sierra-8", "sierra-64", "sierra-2048"])
def test_a_topology_like_another_differs_in_its_nodes(name):
    topology = load_topology(name)
    assert topology.num_ranks == int(name.removeprefix("sierra-"))
    assert topology.library == load_topology("sierra-64").library
    assert [name for name, _ in topology.backends][:2] == ["nccl_ring", "nccl_tree"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("like: mine.yaml\n", "like leads back to this file"),
        ("like: 3\n", "like is 3; give the name or file of a topology"),
        ("nodes: 3\nsource: x\n", "key 'dimensions' is missing"),
        ("like: fat-tree-131072\nnodes: 4\n", "4 nodes are no multiple of the 1024 below a switch of the top level"),
        ("like: leaf-spine-64\nnodes: 4\n", "4 nodes are no multiple of the 16 below a switch"),
        ("like: graph-8\nnodes: 4\n", "nodes cannot resize a dimension of levels or links"),
    ],
)
def test_topologies_that_are_like_nothing_are_refused(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_topology("mine.yaml")


@pytest.mark.parametrize("schedule", ["centauri", "overlap+coconet"])
def test_a_policy_and_a_schedule_that_takes_its_all_reduces_away_are_refused(schedule):
    with pytest.raises(ConfigError, match=r"policy 'nccl_ring' says who serves all-reduces, which .* replaces"):
        compare("resnet-50", schedules=("baseline", schedule), policy="nccl_ring")
