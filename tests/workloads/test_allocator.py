"""PyTorch's caching allocator, a queue of launches, and what an eager step reserves."""

import gzip
import json
import math
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaleout.config.validated import validate
from scaleout.workloads.families import FAMILIES
from scaleout.workloads.memory import Ledger
from scaleout.workloads.memory.allocator import CachingAllocator
from scaleout.workloads.memory.launches import QUEUE, Launches
from scaleout.workloads.memory.reserved import Pace, reserved_bytes

MIB = 2**20
RECORDED = Path(__file__).parents[2] / "traces" / "h100" / "allocations.json.gz"


def test_a_recording_of_pytorch_is_reserved_for_to_the_byte():
    """After each of 2,145 allocations on an H100 as much is reserved as PyTorch had asked the driver for."""
    recorded = json.loads(gzip.decompress(RECORDED.read_bytes()))
    memory = CachingAllocator(math.inf)
    memory.allocate(256)
    blocks, reserved = [], memory.reserved
    for event, number in recorded["events"]:
        if event == "segment":
            reserved += number
        elif event == "allocate":
            blocks.append(memory.allocate(number))
            assert memory.reserved == reserved
        else:
            memory.free(blocks[number])
    assert memory.reserved == recorded["reserved_bytes"]


def test_segments_and_splits_by_hand():
    """A small one cuts 2 MiB, a middle one 20, a large one has its own; what is left of a block is used."""
    memory = CachingAllocator(math.inf)
    small = memory.allocate(1)
    assert (small.size, memory.reserved) == (512, 2 * MIB)
    middle = memory.allocate(3 * MIB)
    assert (middle.size, memory.reserved) == (3 * MIB, 22 * MIB)
    rest = memory.allocate(16 * MIB)  # of the 17 left, of which 1 MiB is not cut off
    assert (rest.size, memory.reserved) == (17 * MIB, 22 * MIB)
    assert memory.allocate(11 * MIB).size == 12 * MIB
    assert memory.reserved == 34 * MIB
    memory.free(middle)
    memory.free(rest)
    assert memory.allocate(20 * MIB).size == 20 * MIB  # both, merged
    assert memory.reserved == 34 * MIB


def test_a_block_in_use_elsewhere_waits():
    """Freed at 1 s and used until 3 s, it is given again from 3 s on; before, another one is reserved."""
    memory = CachingAllocator(math.inf)
    first = memory.allocate(16 * MIB)
    memory.now_s = 1.0
    memory.free(first, 3.0)
    memory.now_s = 2.0
    second = memory.allocate(16 * MIB)
    assert (second is not first, memory.reserved) == (True, 32 * MIB)
    memory.now_s = 3.0
    assert memory.allocate(16 * MIB) is first


def test_without_room_what_is_free_goes_back_first():
    """Two of 40 MiB of 100: one of 60 fits when the free one has gone back, one of 80 never."""
    memory = CachingAllocator(100 * MIB)
    kept, free = memory.allocate(40 * MIB), memory.allocate(40 * MIB)
    memory.free(free, 9.0)
    memory.allocate(60 * MIB)
    assert (memory.reserved, memory.flushes, kept.free) == (100 * MIB, 1, False)
    with pytest.raises(MemoryError):
        memory.allocate(80 * MIB)


@given(st.integers(0, 2**32), st.integers(1, 400))
def test_laws_over_random_programs(seed, number):
    """Blocks never overlap, what is in use is at most what is reserved, and all freed, one block a segment is left."""
    random, memory, used = Random(seed), CachingAllocator(math.inf), []
    for _ in range(number):
        if used and random.random() < 0.45:
            memory.free(used.pop(random.randrange(len(used))))
        else:
            used.append(memory.allocate(random.choice([300, 70_000, 3 * MIB, 12 * MIB]) * random.randint(1, 9)))
        spans = sorted((block.address, block.address + block.size) for block in used)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert sum(block.size for block in used) <= memory.reserved
    for block in used:
        memory.free(block)
    memory.room_bytes = 0
    with pytest.raises(MemoryError):
        memory.allocate(1e12)
    assert memory.reserved == 0


def test_a_host_is_a_queue_ahead_at_most():
    """By hand: kernels of 1 s issued in no time; the one behind a full queue waits for the first to be run."""
    clocks = Launches()
    clocks.issue(QUEUE, 0.0, 1.0)
    assert (clocks.host_s, clocks.done_s) == (0.0, QUEUE)
    clocks.issue(1, 0.0, 1.0)
    assert (clocks.host_s, clocks.done_s) == (1.0, QUEUE + 1)


def test_a_gpu_that_stands_still_goes_on_when_the_queue_is_full():
    """Until then nobody knows when its kernels are done; from then on they are, one after another."""
    clocks = Launches()
    clocks.stand_still()
    assert clocks.issue(QUEUE, 0.5, 1.0) is None
    assert clocks.done_s == math.inf
    ends = clocks.issue(1, 0.5, 1.0)
    start_s = 0.5 * (QUEUE + 1)
    assert ends == [start_s + number for number in range(1, QUEUE + 1)]
    assert clocks.host_s == start_s + 1


KEYS = {
    "name": "small", "description": "a test", "source": "none", "topology": "h100-pod-64", "device": "h100",
    "kind": "transformer", "framework": "nanotron", "activation": "swiglu", "norm": "rms_norm", "rotary": "fused",
    "attention": "flash2", "separate_projections": False, "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 16,
    "ffn": 8192, "vocabulary": 32768, "sequence": 4096, "microbatch": 1, "batch_per_replica": 16,
    "tied_embedding": True,
}  # fmt: skip


def small(**changes):
    return validate(FAMILIES["transformer"], {**KEYS, **changes}, where="test")


PLANS = [
    {},
    {"tensor_parallel": 4},
    {"tensor_parallel": 2, "data_parallel": 4, "zero": 1},
    {"pipeline_parallel": 4, "tensor_parallel": 2, "data_parallel": 2},
    {"kv_heads": 4, "tensor_parallel": 4, "data_parallel": 2, "tied_embedding": False},
]
SLOW_HOST, SLOW_GPU = Pace((1.0, 2.0), (0.1, 0.2)), Pace((0.1, 0.2), (1.0, 2.0))


@pytest.mark.parametrize("plan", PLANS)
def test_reserved_is_more_than_held_and_an_early_host_takes_more(plan):
    """Persistent state and activations are in it; an early host reserves more, but only where ranks exchange."""
    workload = small(**plan)
    held = Ledger.of(workload).bytes_of(0)
    late, early = (reserved_bytes(workload, pace, math.inf) for pace in (SLOW_HOST, SLOW_GPU))
    kinds = ("parameters", "gradients", "optimizer_states", "activations")
    assert sum(held[kind] for kind in kinds) < late <= early
    assert (late < early) == (workload.tensor_parallel > 1)
    assert early < 2.5 * sum(held[kind] for kind in kinds) + 4 * 2**30


def test_micro_batches_that_wait_in_the_warm_up_hold_two_blocks_a_layer():
    """By hand: behind the second forward the GPU stands still, so two more forwards of four keep their partial sums.

    A host that polls its messages is never ahead. AdamW's states, which the first step's blocks are left to, are few.
    """
    plan = small(pipeline_parallel=4, tensor_parallel=4, data_parallel=2, zero=1, microbatch=8, batch_per_replica=128)
    host_s, gpu_s = (1.0, 2.0), (0.5, 1.0)
    waits, polls = (reserved_bytes(plan, Pace(host_s, gpu_s, polls), math.inf) for polls in (False, True))
    partial_sums = 2 * 2 * plan.layers_of_stage[0] * 8 * 4096 * 2048 * 2
    assert waits - polls == pytest.approx(partial_sums, rel=0.3)


def test_a_plan_without_room_is_infinite():
    """Even where everything that is free goes back."""
    assert reserved_bytes(small(), SLOW_HOST, 4 * 2**30) == math.inf
