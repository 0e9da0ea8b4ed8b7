"""Collectives of PyTorch's DDP and FSDP in the order in which two H200 ran them, `traces/h200-pair/profiles.jsonl`.

Its `provenance` says how it was recorded.
"""

import itertools
import json
from collections import defaultdict

import pytest

from scaleout.cluster.device.annotate import time_kernels
from scaleout.cluster.device.host import issue
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.topology import load_topology
from scaleout.program.graph import NodeKind
from scaleout.schedule import apply_schedule
from scaleout.simulation.run import simulate
from scaleout.validation.measured.rows import Row, workload_of
from scaleout.validation.measured.steps import layers
from scaleout.workloads.generate import generate

H200 = load_device("h200")
PAIR = Machine(H200, load_topology("h200-node-4")).of(2)
PROFILES = H200.kernel_files[0].parents[1] / "h200-pair" / "profiles.jsonl"
LAYERS = Row({"hidden": 2048, "layers": 12, "seq": 1024}, where="profiles", id="profile", source="profiles")
MIB = 2**20


def measured():
    """Run to its collectives by begin: kind, bytes, stream, begin and end in us."""
    runs = defaultdict(list)
    for row in map(json.loads, PROFILES.read_text(encoding="utf-8").splitlines()[1:]):
        runs[row["run"]].append(
            (row["collective"], row["bytes"], row["stream"], row["begin_us"], row["begin_us"] + row["us"])
        )
    return {run: sorted(rows, key=lambda row: row[3]) for run, rows in runs.items()}


MEASURED = measured()


def simulated(**keys):
    """Kind and bytes of the collectives of a simulated step, by begin."""
    values = layers(LAYERS, data_parallel=2, batch_per_replica=4, **keys)
    timed = issue(time_kernels(generate(workload_of(values, LAYERS, PAIR)), H200), H200, host="eager")
    (line,) = simulate(apply_schedule(timed, "overlap", machine=PAIR), PAIR.topology).timelines
    nodes = [node for node in range(len(line.graph)) if line.graph.kind[node] == NodeKind.COLLECTIVE]
    nodes.sort(key=lambda node: line.start_s[node])
    return [(line.graph.operation(node), int(line.graph.bytes[node])) for node in nodes]


def fsdp(**keys):
    return simulated(zero=3, **keys)


def ddp(bucket_mib):
    return simulated(gradient_bucket=bucket_mib * MIB, copied_buckets=True)


def calls(run):
    return [(kind, size) for kind, size, *_ in MEASURED[run]]


def test_fsdp_gathers_and_reduces_in_the_order_of_pytorch():
    """In backward a layer is gathered before the one behind it is reduced: A A R A R ... A R R."""
    found = fsdp()
    assert found == calls("fsdp2_fully_shard")
    letters = "".join(kind[0] for kind, _ in found)
    assert letters == "a" * 12 + "a" + "ar" * 11 + "r"


def test_another_order_of_fsdp_would_be_seen():
    """A layer that is gathered when its own backward begins, as Centauri's baseline has it: A R A R ... A R."""
    late = fsdp(prefetch_backward=0)
    assert sorted(late) == sorted(calls("fsdp2_fully_shard"))
    assert late != calls("fsdp2_fully_shard")


@pytest.mark.parametrize("bucket_mib", [25, 100])
def test_ddp_fills_buckets_as_pytorch_does(bucket_mib):
    """From the last layer on, each reduced once it holds the limit; with a limit given, no smaller first bucket."""
    run = calls(f"dp_ddp_overlap {bucket_mib} MiB")
    assert ddp(bucket_mib) == run
    assert ddp(2 * bucket_mib) != run


def overlap_us(rows):
    """Time that kernels of pairs of collectives spend side by side."""
    pairs = itertools.combinations(rows, 2)
    return sum(max(0.0, min(one[4], two[4]) - max(one[3], two[3])) for one, two in pairs)


@pytest.mark.parametrize("run", [run for run in MEASURED if run != "two communicators"])
def test_kernels_of_one_communicator_follow_each_other_whatever_their_streams(run):
    """So a group has one stream here: FSDP's gathers and reductions are on two, and never side by side."""
    assert overlap_us(MEASURED[run]) == 0
    assert len({row[2] for row in MEASURED[run]}) == (1 if "ddp" in run else 2)


def test_kernels_of_two_communicators_do_not():
    """The same calls of a group of their own each: half of their time is side by side, and all end sooner."""
    one, two = MEASURED["one communicator"], MEASURED["two communicators"]
    assert calls("one communicator") == calls("two communicators")
    assert overlap_us(two) > 0.4 * sum(row[4] - row[3] for row in two)
    assert two[-1][4] < 0.8 * one[-1][4]
