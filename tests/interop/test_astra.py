"""`scaleout astra` on small inputs of our own: nanoseconds worked by hand, and every bad input by its message.

The network has 27 GB/s, which at 2**30 bytes a GB is 28.99 bytes a ns; latency 500 ns; endpoint delay 10 ns;
local memory 1000 GB/s.
"""

import json

import pytest
from astra_inputs import coll, comp, node, recv, send, times
from hypothesis import given
from hypothesis import strategies as st

from scaleout.config.yaml_files import read_yaml
from scaleout.interop.astra.inputs import plain_lists

# A send of 2899 bytes takes floor(500 h + 2899 / 28.991) = 500 h + 99 ns; of 11596 bytes in four parts, the same.
SEND = 599


def test_a_ring_all_reduce_by_hand(astra):
    """10, then six steps of 599 + 10, three of them with a reduction of 3 floor(2899 / 1000) = 6."""
    found = times(astra([[coll(0, "ALL_REDUCE", 11596)]] * 4, "--json"))
    assert found["time_ns"] == 10 + 6 * (SEND + 10) + 3 * 6 == 3682
    assert found["per_rank_ns"] == [3682] * 4
    assert found["exposed_communication_ns"] == 3682


@pytest.mark.parametrize(
    ("kind", "size", "algorithm", "expected"),
    [
        ("ALL_GATHER", 2899, "ring", 10 + 3 * 609),
        ("REDUCE_SCATTER", 11596, "ring", 10 + 3 * (609 + 6)),
        ("ALL_TO_ALL", 11596, "ring", 10 + 6 * 609),
        ("ALL_TO_ALL", 11596, "direct", 10 + 1099 + 10),  # the farthest is two hops away
        ("ALL_GATHER", 2899, "direct", 10 + 1099 + 10),
        ("REDUCE_SCATTER", 11596, "direct", 10 + 1099 + 10 + 6),
        ("ALL_TO_ALL", 11596, "direct1", 10 + 609 + 1109 + 609),  # distances 1, 2, 3 one after the other
        ("ALL_GATHER", 2899, "halvingDoubling", 10 + 1109 + 10 + 500 + 199),  # 2 hops, then twice the size over one
    ],
)
def test_collectives_of_four_on_a_ring_by_hand(astra, kind, size, algorithm, expected):
    assert times(astra([[coll(0, kind, size)]] * 4, "--json", algorithm=algorithm))["time_ns"] == expected


def test_a_double_binary_tree_by_hand(astra):
    """Tree 0 of four: root 3 above 1, which is above 0 and 2. Up: 1 -> 3 is two hops."""
    found = times(astra([[coll(0, "ALL_REDUCE", 2899)]] * 4, "--json", algorithm="doubleBinaryTree"))
    root = 10 + (SEND + 10 + 6) + (SEND + 500 + 10 + 6)
    middle = root + (SEND + 500 + 10 + 6)
    leaf = middle + SEND + 10
    assert found["per_rank_ns"] == [leaf, middle, leaf, root]


def test_a_tree_does_an_all_reduce_whatever_is_asked(astra):
    ends = [
        times(astra([[coll(0, kind, 2899)]] * 4, "--json", algorithm="doubleBinaryTree"))["per_rank_ns"]
        for kind in ("ALL_REDUCE", "ALL_GATHER", "ALL_TO_ALL")
    ]
    assert ends[0] == ends[1] == ends[2]


def test_halves_are_whole_bytes_and_an_odd_last_one_loses_a_byte(astra):
    """Of 11598 bytes among four: 5799 and 2899 down, then twice half of 2899: 2898, and 5796, back."""
    found = times(
        astra([[coll(0, "ALL_REDUCE", 11598)]] * 4, "--json", algorithm="halvingDoubling", kind="FullyConnected")
    )
    assert found["time_ns"] == 10 + (500 + 200 + 10) + 6 + (SEND + 10) + (SEND + 10) + (500 + 199 + 10)


def test_a_group_takes_the_one_algorithm_that_is_named_and_else_a_ring(astra):
    """Four of eight on a ring: direct over at most three hops, or three steps with a way back over three hops."""
    job = [[coll(0, "ALL_GATHER", 2899, pg_name="1")]] * 4 + [[comp(0, 0)]] * 4
    groups = {"1": [0, 1, 2, 3]}
    assert max(times(astra(job, "--json", groups=groups, algorithm="direct"))["per_rank_ns"][:4]) == 10 + 1599 + 10
    ring = times(astra(job, "--json", groups=groups))["per_rank_ns"][:4]
    two = times(astra(job, "--json", groups=groups, counts=[4, 2], algorithm=["direct", "direct"]))["per_rank_ns"][:4]
    assert max(ring) == 10 + (1599 + 10) + 2 * (SEND + 10)
    assert two == [10 + 3 * (SEND + 10)] * 4  # the wrap of the dimension of four is one hop


def test_a_direct_all_reduce_of_a_group_reduces_twice(astra):
    """The second wave of a group is reduced as the first is; that of all ranks is not."""
    job = [[coll(0, "ALL_REDUCE", 4 * 2899, pg_name="1")]] * 4 + [[comp(0, 0)]] * 4
    found = times(astra(job, "--json", groups={"1": [0, 1, 2, 3]}, algorithm="direct", kind="Switch"))
    wave = 1000 + 99 + 10 + 6
    assert found["time_ns"] == 10 + 2 * wave


def test_lines_of_some_dimensions_do_not_wait_for_each_other(astra):
    """In dimension 0 of 2 x 2 ranks 0 and 1 are done before 2 and 3 have come; these end together."""
    job = [[coll(0, "ALL_GATHER", 2899, involved_dim=[True, False])]] * 2
    late = [[comp(0, 9), coll(1, "ALL_GATHER", 2899, deps=[0], involved_dim=[True, False])]]
    found = times(astra([*job, *late * 2], "--json", counts=[2, 2]))
    assert found["per_rank_ns"] == [10 + SEND + 10] * 2 + [9000 + 10 + SEND + 10] * 2
    later = [[comp(0, 4), coll(1, "ALL_GATHER", 2899, deps=[0], involved_dim=[True, False])]]
    found = times(astra([*job, *late, *later], "--json", counts=[2, 2]))
    assert found["per_rank_ns"][:2] == [10 + SEND + 10] * 2
    assert found["per_rank_ns"][2:] == [9000 + 20, 9000 + 10 + SEND + 10]


def test_queues_beyond_the_first_half_go_round_backwards_and_in_turn(astra):
    """Two queues: the second all-gather of ranks 0, 1, 3 goes backwards, and so its longest hop is another's."""
    job = [[coll(0, "ALL_GATHER", 2899, pg_name="1"), coll(1, "ALL_GATHER", 2899, deps=[0], pg_name="1")]]
    others = [[comp(0, 0)]]
    ranks = [*job * 2, *others, *job, *others * 4]
    found = times(astra(ranks, "--json", "--num-queues-per-dim=2", groups={"1": [0, 1, 3]}))["per_rank_ns"]
    same = times(astra(ranks, "--json", groups={"1": [0, 1, 3]}))["per_rank_ns"]
    assert found[1] != same[1]
    assert max(found) == max(same) or found != same


def test_chunks_pass_a_queue_one_after_the_other_or_together(astra):
    job = [[coll(0, "ALL_REDUCE", 4 * 11596)]] * 4
    alone = 3682
    four = {"preferred-dataset-splits": 4}
    assert times(astra(job, "--json", system=four))["time_ns"] == 4 * alone
    assert times(astra(job, "--json", system=four | {"active-chunks-per-dimension": 4}))["time_ns"] == alone


def test_dimensions_follow_each_other(astra):
    """On 2 x 2 a reduce-scatter, an all-reduce of half, an all-gather; or twice an all-reduce of everything."""
    job, wide, narrow = [[coll(0, "ALL_REDUCE", 11596)]] * 4, 500 + 199 + 10, 500 + 99 + 10
    local = {"collective-optimization": "localBWAware"}
    found = times(astra(job, "--json", counts=[2, 2], system=local))
    assert found["time_ns"] == (10 + wide + 15) + (10 + 2 * narrow + 6) + (10 + wide)
    assert times(astra(job, "--json", counts=[2, 2]))["time_ns"] == 2 * (10 + 2 * wide + 15)


def test_computation_overlaps_and_is_not_exposed(astra):
    job = [[comp(0, 5), coll(1, "ALL_REDUCE", 11596)]] * 4
    found = times(astra(job, "--json"))
    assert found["time_ns"] == 5000
    assert found["exposed_communication_ns"] == 0


def test_ranks_that_come_late_hold_up_the_others_as_the_ring_makes_them(astra):
    """Rank 0 sends at 2010 and 2020, since what it waits for is there; 1 passes the first on to 2 at 2619."""
    late = [[comp(0, 2), coll(1, "ALL_GATHER", 2899, deps=[0])]]
    found = times(astra(late + [[coll(0, "ALL_GATHER", 2899)]] * 2, "--json"))
    assert found["per_rank_ns"] == [2030, 2020 + SEND + 10, 2619 + SEND + 10]


def test_messages_of_one_rank_follow_each_other(astra):
    job = [[send(0, 1, 2899), send(1, 2, 2899, tag=1)], [recv(0, 0, 2899)], [recv(0, 0, 2899, tag=1)]]
    assert times(astra(job, "--json"))["per_rank_ns"] == [2 * SEND, SEND, 2 * SEND]


def test_rendezvous_asks_first(astra):
    """A receiver's request of 8192 bytes takes 500 + floor(8192 / 28.991) = 782 ns."""
    job = [[send(0, 1, 2899)], [comp(0, 3), recv(1, 0, 2899, deps=[0])]]
    assert times(astra(job, "--json", "--rendezvous-protocol"))["time_ns"] == 3000 + 782 + SEND
    assert times(astra(job, "--json", "--rendezvous-protocol=false"))["time_ns"] == 3000


def test_contention_makes_messages_wait_for_the_link_to_a_rank(astra):
    """Two ranks send to a third over a switch: up side by side, down one after the other (99 ns apart)."""
    job = [[recv(0, 1, 2899), recv(1, 2, 2899)], [send(0, 0, 2899)], [send(0, 0, 2899)]]
    assert times(astra(job, "--json", kind="Switch"))["per_rank_ns"] == [1099] * 3
    assert times(astra(job, "--json", "--backend=aware", kind="Switch"))["per_rank_ns"] == [1297, 1198, 1297]


def test_a_group_is_a_ring_over_its_ranks_whatever_is_asked(astra):
    """Ranks 0 and 1 of a ring are a hop apart both ways; the delay of a group is 10 ns."""
    job = [[coll(0, "ALL_GATHER", 2899, pg_name="1")]] * 2 + [[comp(0)]] * 2
    found = times(astra(job, "--json", groups={"1": [0, 1]}, algorithm="direct", system={"endpoint-delay": 1000}))
    assert found["per_rank_ns"] == [10 + SEND + 10] * 2 + [1000] * 2


@pytest.mark.parametrize(("kind", "hops"), [("Switch", 2), ("FullyConnected", 1)])
@pytest.mark.parametrize("members", [[0, 1, 2], [0, 3, 4], [2, 0, 4]])
def test_members_of_a_group_are_equally_far_on_a_switch(astra, kind, hops, members):
    """However far apart their numbers are: 10 ns, then two steps of a send and 10 ns."""
    job = [[coll(0, "ALL_GATHER", 2899, pg_name="1")] if rank in members else [comp(0)] for rank in range(5)]
    found = times(astra(job, "--json", kind=kind, groups={"1": members}))
    assert {found["per_rank_ns"][rank] for rank in members} == {10 + 2 * (500 * hops + 99 + 10)}


def test_members_that_start_as_before_end_as_before(astra):
    """An all-gather and 10 us later another, rank 0 late by 2 us each time: see the one that holds up the others."""
    gathers = [coll(1, "ALL_GATHER", 2899, deps=[0]), coll(3, "ALL_GATHER", 2899, deps=[2])]
    late = [comp(0, 2), comp(2, 10, deps=[0]), *gathers]
    other = [coll(1, "ALL_GATHER", 2899), comp(2, 10), gathers[1]]
    found = times(astra([late, other, other], "--json"))
    assert found["per_rank_ns"] == [10000 + 2030, 10000 + 2020 + SEND + 10, 10000 + 2619 + SEND + 10]


def test_the_roofline_times_computation(astra):
    job = [[comp(0, num_ops=10**9, tensor_size=10**6), comp(1, num_ops=10**6, tensor_size=10**8)]] * 2
    none = [[*nodes, comp(2, num_ops=10**9, tensor_size=0)] for nodes in job]  # without a tensor it is skipped
    for each in (job, none):
        found = times(astra(each, "--json", system={"roofline-enabled": 1, "peak-perf": 100}))
        assert found["time_ns"] == 10000 + 100000  # 1e9 / 100 TFLOP/s, and 1e8 B / 1000 GB/s


def test_replay_takes_the_recorded_time_of_everything(astra):
    """A collective of 7 us, then computation of 5; none of it is exposed. Receives hold up no one."""
    job = [[coll(0, "ALL_REDUCE", 8, micros=7), comp(1, 5, deps=[0]), recv(2, 1, 8, micros=6)]] * 2
    found = times(astra(job, "--json", system={"replay-only": 1}))
    assert (found["time_ns"], found["exposed_communication_ns"]) == (12000, 0)


def test_an_access_to_remote_memory_takes_latency_and_bytes_and_the_slot_of_communication(astra, tmp_path):
    """300 + floor(1000 / 3) ns, then the all-reduce."""
    (tmp_path / "memory.json").write_text(
        json.dumps({"memory-type": "PER_NPU_MEMORY_EXPANSION", "remote-mem-latency": 300, "remote-mem-bw": 3})
    )
    job = [[node(0, "MEM_LOAD", tensor_size=1000), coll(1, "ALL_REDUCE", 11596)]] * 4
    found = times(astra(job, "--json", f"--remote-memory-configuration={tmp_path / 'memory.json'}"))
    assert found["time_ns"] == 633 + 3682


def test_invalid_nodes_take_no_time(astra):
    job = [[node(0, "INVALID"), coll(1, "ALL_REDUCE", 11596, deps=[0])]] * 4
    assert times(astra(job, "--json"))["time_ns"] == 3682


def test_lines_and_table_and_notes(astra):
    code, out, err = astra([[coll(0, "ALL_REDUCE", 11596)]] * 4, "--comm-scale", "2.0", "--logging-folder=log")
    assert code == 0
    assert "sys[3] finished, 3682 cycles, exposed communication 3682 cycles." in out
    assert "finish [ns]" in out
    assert out.endswith("note: --comm-scale 2 has no effect, in ASTRA-sim and here\n")
    assert not err


def test_dimensions_without_an_algorithm_take_no_part_and_a_note_says_so(astra):
    code, out, err = astra([[coll(0, "ALL_GATHER", 2899)]] * 4, "--json", counts=[2, 2], algorithm=["ring"])
    assert (code, json.loads(out)["time_ns"]) == (0, 10 + SEND + 10)
    assert "has 1 of 2 dimensions" in " ".join(json.loads(out)["notes"])
    assert not err


AR = [coll(0, "ALL_REDUCE", 11596)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"ranks": [AR] * 4, "flags": ["--num-queue-per-dim=2"]}, ["--num-queues-per-dim"]),
        ({"ranks": [AR] * 4, "flags": ["--backend=ns3"]}, ["'ns3'", "unaware or aware"]),
        (
            {"ranks": [AR] * 4, "flags": ["--num-queues-per-dim=0"]},
            ["--num-queues-per-dim", "0 is not in"],
        ),
        ({"ranks": [AR] * 4, "flags": ["--injection-scale=0.01"]}, ["--injection-scale 0.01", "endpoint delay 0"]),
        ({"ranks": [AR] * 4, "flags": ["--injection-scale=nan"]}, ["--injection-scale", "'nan' is no number"]),
        ({"ranks": [AR] * 4, "flags": ["--compute-scale=nan"]}, ["--compute-scale", "'nan' is no number"]),
        ({"ranks": [AR] * 4, "system": {"active-chunk-per-dimension": 1}}, ["did you mean 'active-chunks-per"]),
        ({"ranks": [AR] * 4, "network": {"bandwith": [1.0]}}, ["unknown key 'bandwith'", "'bandwidth'"]),
        ({"ranks": [AR] * 4, "network": {"latency": [1.0, 2.0]}}, ["one entry in every list", "latency has 2"]),
        ({"ranks": [AR] * 4, "network": {"topology": ["Mesh"]}}, ["topology", "'Ring'"]),
        ({"ranks": [AR] * 4, "network": {"npus_count": [1]}}, ["npus_count", "at least 2, not [1]"]),
        ({"ranks": [AR] * 4, "drop": ["preferred-dataset-splits"]}, ["'preferred-dataset-splits' is missing"]),
        ({"ranks": [AR] * 4, "drop": ["all-reduce-implementation"]}, ["no all-reduce-implementation"]),
        ({"ranks": [AR] * 4, "system": {"endpoint-delay": 0}}, ["endpoint-delay 0 aborts"]),
        ({"ranks": [AR] * 4, "system": {"local-mem-bw": 5e-324}}, ["local-mem-bw", "must be from 1e-09 to 1e+15"]),
        ({"ranks": [AR] * 4, "system": {"model-shared-bus": 1}}, ["model-shared-bus", "set it to 0"]),
        ({"ranks": [AR] * 4, "system": {"boost-mode": "x"}}, ["boost-mode: must be 0 or 1, not 'x'"]),
        ({"ranks": [AR] * 4, "system": {"L": [1]}}, ["L: must be a number of at least 0, not [1]"]),
        ({"ranks": [AR] * 4, "system": {"intra-dimension-scheduling": {}}}, ["must be a name, not {}"]),
        ({"ranks": [AR] * 4, "system": {"all-reduce-implementation-custom": ["x"]}}, ["not supported"]),
        ({"ranks": [AR] * 4, "system": {"roofline-enabled": 1}}, ["peak-perf"]),
        ({"ranks": [AR] * 4, "algorithm": "rings"}, ["unknown algorithm 'rings'", "'ring'"]),
        ({"ranks": [AR] * 4, "algorithm": ["oneRing", "ring"], "counts": [2, 2]}, ["only one in the list"]),
        ({"ranks": [AR] * 4, "algorithm": ["ring", "ring"], "counts": [4]}, ["2 entries", "1 dimensions"]),
        ({"ranks": [AR] * 6, "algorithm": "halvingDoubling"}, ["power of two", "6"]),
        ({"ranks": [AR] * 6, "algorithm": "doubleBinaryTree"}, ["power of two", "6"]),
        ({"ranks": [[coll(0, "ALL_TO_ALL", 99)]] * 4, "algorithm": "halvingDoubling"}, ["cannot do all-to-all"]),
        ({"ranks": [[coll(0, "ALL_REDUCE", 6)]] * 4, "algorithm": "halvingDoubling"}, ["messages of 0 bytes"]),
        (
            {"ranks": [[coll(0, "ALL_REDUCE", 99, involved_dim=[False, True])]] * 4, "counts": [2, 2]}
            | {"algorithm": ["oneRing"]},
            ["involved_dim [False, True]", "involve one"],
        ),
        (
            {"ranks": [[coll(0, "ALL_REDUCE", 99, involved_dim=[True])]] * 4, "counts": [2, 2]},
            ["involved_dim [True], but runs in 2 dimensions", "of each dimension"],
        ),
        (
            {"ranks": [[comp(0, num_ops=0, tensor_size=8)]] * 2, "system": {"roofline-enabled": 1, "peak-perf": 100}},
            ["num_ops 0 and tensor_size 8", "no time"],
        ),
        ({"ranks": [AR] * 2, "flags": ["--backend", "aware"]}, ["Ring of 2 ranks", "use FullyConnected"]),
        (
            {
                "ranks": [[coll(0, "ALL_REDUCE", 99, pg_name="1")]] * 3 + [[comp(0)]],
                "groups": {"1": [0, 1, 2]},
                "algorithm": "halvingDoubling",
            },
            ["in a communicator group", "power of two", "3"],
        ),
        ({"ranks": [[coll(0, "ALL_GATHER", 0)]] * 4}, ["all-gather of 0 bytes"]),
        ({"ranks": [[coll(0, "BARRIER", 0)]] * 4}, ["BARRIER", "does not support"]),
        ({"ranks": [[coll(0, "GATHER", 8)]] * 4}, ["is a GATHER, which ASTRA-sim does not support"]),
        ({"ranks": [[node(0, "METADATA")]] * 4}, ["METADATA_NODE"]),
        ({"ranks": [[node(0, "MEM_STORE", tensor_size=8)]] * 2}, ["MEM_STORE_NODE", "PER_NPU_MEMORY_EXPANSION"]),
        ({"ranks": [[send(0, 1, 0)], [recv(0, 0, 0)]]}, ["sends 0 bytes"]),
        ({"ranks": [[coll(0, "ALL_REDUCE", 8, pg_name="1")], [comp(0)]], "groups": {"1": [0]}}, ["nobody to talk to"]),
        ({"ranks": [[coll(0, "ALL_REDUCE", 99, is_cpu_op=True)]] * 4}, ["is_cpu_op is true"]),
        ({"ranks": [AR] * 3, "counts": [4]}, ["w.3.et", "ranks 0 to 3"]),
        ({"ranks": [AR] * 4, "counts": [3]}, ["w.3.et", "ranks 0 to 2"]),
        ({"ranks": [AR] * 4, "counts": [2, 2], "flags": ["--backend", "aware"]}, ["2 dimensions", "only one"]),
        ({"ranks": [AR] * 3 + [[comp(0)]]}, ["3 of 4 ranks", "for rank 3", "finished and never arrives"]),
        ({"ranks": [AR] * 3 + [[coll(0, "ALL_REDUCE", 8)]]}, ["rank 0 issues", "but rank 3 node", "of 8 bytes"]),
        ({"ranks": [AR] * 3 + [[coll(0, "ALL_TO_ALL", 11596)]]}, ["an all-reduce", "an all-to-all"]),
        ({"ranks": [[recv(0, 1, 8, tag=7)], [comp(0)]]}, ["rank 0 waits for", "from rank 1 (tag 7, 8 bytes)"]),
        ({"ranks": [[send(0, 1, 8, tag=7)], [comp(0)]]}, ["rank 0 sends 1 message of 8 bytes to rank 1", "tag 7"]),
        ({"ranks": [[send(0, 5, 8)], [comp(0)]]}, ["rank 0", "sends to rank 5", "0 to 1"]),
        ({"ranks": [[comp(1, deps=[0])], [comp(0)]]}, ["depends on node 0, which the trace does not hold"]),
        ({"ranks": [[comp(0, deps=[1]), comp(1, deps=[0])]] * 2}, ["cycle"]),
        ({"ranks": [[coll(0, "ALL_REDUCE", 8, pg_name="2")]] * 2, "groups": {"1": [0, 1]}}, ["pg_name '2'"]),
        ({"ranks": [[coll(0, "ALL_REDUCE", 8, pg_name="1")]] * 3, "groups": {"1": [0, 1]}}, ["without rank 2"]),
        ({"ranks": [AR] * 2, "groups": {"1": [0, 2]}}, ["rank 2", "0 to 1"]),
        ({"ranks": [AR] * 2, "groups": {"0": [0, 1]}}, ["'0'", "above 0"]),
        (
            {
                "ranks": [[coll(0, "ALL_REDUCE", 8, pg_name="1")]] * 2 + [[comp(0)]] * 2,
                "groups": {"1": [0, 1]},
                "algorithm": "doubleBinaryTree",
            },
            ["doubleBinaryTree crashes in communicator groups"],
        ),
        (
            {
                "ranks": [
                    [coll(0, "ALL_REDUCE", 8, pg_name="1"), coll(1, "ALL_REDUCE", 8, pg_name="2")],
                    [coll(0, "ALL_REDUCE", 8, pg_name="2"), coll(1, "ALL_REDUCE", 8, pg_name="1")],
                ],
                "groups": {"1": [0, 1], "2": [0, 1]},
            },
            ["2 of 2 ranks cannot finish", "rank 0 waits in node 0 ('n0') (all-reduce of group '1') for rank 1"],
        ),
    ],
)
def test_what_astra_sim_takes_in_silence_is_refused(astra, arguments, words):
    arguments = dict(arguments)
    code, out, err = astra(arguments.pop("ranks"), *arguments.pop("flags", []), **arguments)
    assert code == 2, (out, err)
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


DOCUMENTED = """topology: [ Ring, Switch ] # inner to outer
npus_count: [8,16 ]
# GB/s, and ns
bandwidth: [ 25.0, 12.5 ]  # of a link

latency: ["Ring", 0]
"""


def test_network_files_of_the_usual_form_are_read_without_yaml(tmp_path):
    (tmp_path / "network.yml").write_text(DOCUMENTED)
    lists = plain_lists(tmp_path / "network.yml")
    assert lists == {
        "topology": ["Ring", "Switch"],
        "npus_count": [8, 16],
        "bandwidth": [25.0, 12.5],
        "latency": ["Ring", 0],
    }
    assert repr(lists) == repr(read_yaml(tmp_path / "network.yml"))


ADDED = [*" \t\n\r#,:[]{}\"'|&-+~_=01.eE", " #", "\x85", "\x07", "\u2028", "- 8", "---\n", "topology: [ Ring ]\n"]
ADDED += ["08", "0x1", "1_0", "1:30", "1e3", "5.", ".5", "yes", "Ring", "null"]
CHANGES = st.tuples(st.integers(0, len(DOCUMENTED)), st.integers(0, 3), st.sampled_from(ADDED))


@given(changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_what_is_read_without_yaml_is_what_yaml_reads(changes, tmp_path_factory):
    text = DOCUMENTED
    for at, dropped, added in changes:
        text = text[:at] + added + text[at + dropped :]
    path = tmp_path_factory.getbasetemp() / "network.yml"
    path.write_text(text, encoding="utf-8", newline="")
    lists = plain_lists(path)
    if lists:
        assert repr(lists) == repr(read_yaml(path))
