"""Workload to what PyTorch's caching allocator reserves at its most on a rank, while an eager host issues a step.

What is held (`Ledger`) is less than what is reserved: parts of freed blocks fit nothing that comes after; logits stand
in the model's type and twice in fp32 before the loss keeps them once; DDP has buckets of its own; and blocks that a
collective on its own stream has used are free only when the GPU, not the host, has passed it. A host that is ahead of
its GPU takes new blocks meanwhile, up to what its queue of launches spans.

Symbols: E bytes of a micro-batch's whole activations between layers; P parameters of the rank.
Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp (record_stream, best fit), and its DistributedDataParallel
(gradient_as_bucket_view is off by default). The four constants were chosen on the reserved memory of nanotron's runs
(Ultra-Scale Playbook, github.com/vinjn/nanotron-ultrascale-playbook at 924e4d0), half of its table; see
docs/models/memory.md.
"""

from scaleout.program.operations import ITEM_BYTES
from scaleout.workloads.families.layered import HEAD, LayeredModel
from scaleout.workloads.memory import Ledger

_FRAGMENTS = 1.18
"""Reserved for activations over what they hold."""
_SMALL_BYTES = 0.4 * 2**30
"""Workspaces of libraries, and pools of small blocks."""
_HELD_A_LAYER, _HELD_AT_MOST = 1.4, 50.0
"""Blocks of E that wait for the GPU, of a layer and micro-batch in flight, and what the queue of launches spans."""


def reserved_bytes(workload: LayeredModel, rank: int, *, ahead: float) -> float:
    """Return the most that the allocator of a pipeline rank reserves.

    Of the forward's end, ``states + buckets + 1.18 activations + 6 logits + ahead min(1.4 layers in flight, 50) E``;
    or of the backward's end, ``states + buckets + gradients``, before these are added to those in fp32.

    Parameters
    ----------
    rank : int
        Of the pipeline.
    ahead : float
        From 0, the host waits for the GPU or is the slower, to 1, it is ahead by a micro-batch or more.
    """
    ledger, contents = Ledger.of(workload), [workload.contents[n] for n in workload.stages_of_ranks[rank].tolist()]
    held, in_flight = ledger.bytes_of(rank), sum(ledger.peak_of(rank).in_flight)
    states = sum(held[kind] for kind in ("parameters", "gradients", "optimizer_states"))
    buckets = held["parameters"] if workload.data_parallel > 1 else 0.0
    activations = held["activations"] + held["recomputed_activations"]
    layers = sum(workload.layers_of_stage[n] for n in workload.stages_of_ranks[rank].tolist())
    whole = workload.local_tokens * workload.hidden * workload.item_bytes
    waiting = min(_HELD_A_LAYER * layers * in_flight, _HELD_AT_MOST) * whole if workload.tensor_parallel > 1 else 0.0
    has_head = any(kind == HEAD for content in contents for kind, _ in content)
    before_loss = workload.logits * (workload.item_bytes + ITEM_BYTES["fp32"]) if has_head else 0
    forward = _FRAGMENTS * activations + before_loss + ahead * waiting
    backward = held["parameters"] + _FRAGMENTS * activations * (1 - 1 / max(in_flight, 1))
    return float(states + buckets + max(forward, backward) + _SMALL_BYTES)
