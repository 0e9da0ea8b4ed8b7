"""What a rank holds all through a step: parameters, gradients, optimizer states, buffers, the cache of inference.

Each is divided as ZeRO, or its hybrid, says. Source: Rajbhandari et al., ZeRO, arXiv:1910.02054; FSDP, arXiv:2304.11277
(gathered units); Liu et al., arXiv:2310.01889 (what a ring holds).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from scaleout.program.operations import ITEM_BYTES
from scaleout.workloads.families.layered import LayeredModel
from scaleout.workloads.generate.axes import GradientSync
from scaleout.workloads.memory.parts import Units
from scaleout.workloads.pipeline import PIPELINES

_SHARDED_FROM = {"optimizer_states": 1, "gradients": 2, "parameters": 3}
"""Level of ZeRO from which on a kind is sharded."""

_STATES_OF_OPTIMIZER = {"adamw": 2, "none": 0}
"""Numbers in fp32 that an optimizer keeps for each parameter."""

Shares = tuple[GradientSync, GradientSync]
"""Who shares the parameters that are no expert's, and the experts'."""


def standing(
    workload: LayeredModel, units: Sequence[Units], sharing: Shares, *, cached_bytes: int
) -> Mapping[str, float]:
    """Return the bytes of all kinds but activations that a rank holds; its layers cache some bytes of a sequence."""
    sequences = workload.batch_per_replica // PIPELINES[workload.pipeline_schedule].copies
    trains = workload.mode == "training"
    item_bytes = {
        "parameters": workload.item_bytes,
        "gradients": workload.gradient_bytes if trains else 0,
        "optimizer_states": _state_bytes(workload) if trains else 0,
    }
    held = [(part.parameters, count) for stage in units for part, count in stage]
    totals = [sum(count * parameters[bucket] for parameters, count in held) for bucket in range(2)]
    found = {
        kind: float(
            sum(
                size * -(-total // (_divided(workload, kind, share) if workload.zero >= _SHARDED_FROM[kind] else 1))
                for total, share in zip(totals, sharing, strict=True)
            )
        )
        for kind, size in item_bytes.items()
    }
    shapes = frozenset().union(*(part.weights for stage in units for part, _ in stage))
    found["gradients"] += float(workload.item_bytes * sum(outputs * inputs for outputs, inputs in shapes))
    return found | {
        "communication_buffers": _buffers(workload, units, sharing),
        "kv_cache": 0.0 if trains else float(sequences * cached_bytes),
    }


def _divided(workload: LayeredModel, kind: str, share: GradientSync) -> int:
    """Return into how many parts a kind is divided; gradients that wait for the end of the step are whole shards."""
    whole = kind == "parameters" or (kind == "gradients" and workload.replicas_at_end)
    return share.shards if whole else share.owners


def _state_bytes(workload: LayeredModel) -> int:
    """Return the bytes of an optimizer's states of one parameter, a copy of it in fp32 included."""
    states = _STATES_OF_OPTIMIZER[workload.optimizer]
    single = ITEM_BYTES["fp32"]
    copies = int(states > 0 and workload.master_weights and workload.item_bytes < single)
    return single * (states + copies)


def _buffers(workload: LayeredModel, units: Sequence[Units], sharing: Shares) -> float:
    """Return the bytes of the buffers that a rank communicates from and into; those of one layer take turns."""
    if workload.transient_memory:
        exchanged = passed_on = 0  # what is exchanged is kept, or made by backward
    else:
        exchanged = workload.exchanged_bytes
        passed_on = 2 * workload.local_tokens * workload.hidden * workload.item_bytes if workload.num_stages > 1 else 0
    if workload.sequence_parallel:
        passed_on //= workload.tensor_parallel
    whole = _whole_bytes(workload, units, sharing)
    gathered = (
        max(_widest(stage, 1 + max(workload.prefetch, workload.gathered_ahead)) for stage in whole)
        if workload.zero == 3
        else 0
    )
    if workload.zero == 3 and not workload.reshard_after_forward:
        gathered = sum(map(sum, whole))
    bucket = 0.0
    if workload.zero >= 2 and workload.mode == "training":
        ratio = workload.gradient_bytes / workload.item_bytes
        everything, largest = ratio * sum(map(sum, whole)), ratio * max(map(max, filter(None, whole)), default=0)
        least = 0.0 if math.isinf(workload.bucket_bytes) else workload.bucket_bytes  # a layer's, largest
        bucket = min(everything, max(least, largest))
    return exchanged + passed_on + gathered + bucket


def _whole_bytes(workload: LayeredModel, units: Sequence[Units], sharing: Shares) -> list[list[int]]:
    """Return the bytes of those parameters of each unit of each stage that are sharded, before they are."""
    sharded = [share.shards > 1 for share in sharing]
    return [
        [
            workload.item_bytes * sum(n for n, is_sharded in zip(part.parameters, sharded, strict=True) if is_sharded)
            for part, count in stage
            for _ in range(count)
        ]
        for stage in units
    ]


def _widest(sizes: Sequence[int], width: int) -> int:
    """Return the largest sum of as many neighbours."""
    ends = np.cumsum([0, *sizes])
    width = min(width, len(sizes))
    return int((ends[width:] - ends[:-width]).max()) if width else 0
