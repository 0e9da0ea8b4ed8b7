"""Whole steps of networks over all GPUs, call by call as PyTorch runs them: the kinds that `scaleout validate` knows.

transformer_*: pre-norm layers without embedding and head, of Megatron-LM's cut: `tp` sums the two outputs of a layer
(backward: its two inputs), `tp_sp` gathers the sequence before and scatters the sum behind instead. dp_*, fsdp2_*:
whole layers on each GPU, their gradients reduced one parameter at a time, by DDP in buckets, or by FSDP2, a unit a
layer. moe_*: one expert a GPU, balanced. dlrm_*, embedding_all_to_all: tables on each GPU, sums of looked-up rows
exchanged. gemm_then_collective_chunked, all_gather_then_matmul: a product cut along its rows, and one behind a
gather. A time goes from the first call to the end of the last kernel, of the slowest rank.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from scaleout.validation.measure import networks
from scaleout.validation.measure.networks import Step
from scaleout.validation.measure.session import Session, slowest_of
from scaleout.validation.measure.stopwatch import elapsed_us

_WARM_UP = 5


def measure(row: Mapping[str, Any], session: Session) -> Mapping[str, Any]:
    """Time the step of a row as one of the processes."""
    if row["gpus"] != session.gpus:
        return {"error": f"the row is for {row['gpus']} GPUs, and {session.gpus} take part"}
    step = _STEPS[row["name"]](row)
    for _ in range(_WARM_UP):
        step()
    times = []
    for _ in range(session.repeats):
        session.barrier()
        times.append(elapsed_us(step))
    return {"times": {"step": times}}


def join(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Of each repeat the slowest rank."""
    times = slowest_of([each["times"] for each in found])["step"]
    return {
        "step_us": round(statistics.median(times), 1),
        "step_us_min": round(min(times), 1),
        "step_us_max": round(max(times), 1),
    }


Start = Callable[[torch.Tensor], Any]
"""From a part of a product to its collective, which has been started and can be waited for."""


def _start_all_reduce(part: torch.Tensor) -> Any:
    return dist.all_reduce(part, async_op=True)


def _start_reduce_scatter(part: torch.Tensor) -> Any:
    shard = part.new_empty(part.shape[0] // dist.get_world_size(), part.shape[1])
    return dist.reduce_scatter_tensor(shard, part, async_op=True)


def _start_all_gather(part: torch.Tensor) -> Any:
    whole = part.new_empty(part.shape[0] * dist.get_world_size(), part.shape[1])
    return dist.all_gather_into_tensor(whole, part, async_op=True)


def _start_all_to_all(part: torch.Tensor) -> Any:
    return dist.all_to_all_single(torch.empty_like(part), part, async_op=True)


_STARTS: Mapping[str, Start] = {
    "all_reduce": _start_all_reduce,
    "all_gather": _start_all_gather,
    "reduce_scatter": _start_reduce_scatter,
    "all_to_all": _start_all_to_all,
}


def _chunked(row: Mapping[str, Any]) -> Step:
    a, b = networks.weight(row["M"], row["K"]), networks.weight(row["K"], row["N"])
    start = _STARTS[row["collective"]]

    def step() -> None:
        works = [start(part @ b) for part in a.detach().chunk(row["chunks"])]
        for work in works:
            work.wait()

    return _without_gradients(step)


def _gather_then_product(row: Mapping[str, Any]) -> Step:
    a, b = networks.weight(row["M"] // dist.get_world_size(), row["K"]), networks.weight(row["K"], row["N"])
    whole = torch.empty(row["M"], row["K"], device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        dist.all_gather_into_tensor(whole, a.detach())
        whole @ b

    return _without_gradients(step)


def _without_gradients(step: Step) -> Step:
    def quiet() -> None:
        with torch.no_grad():
            step()

    return quiet


_STEPS: Mapping[str, Callable[[Mapping[str, Any]], Step]] = {
    "transformer_forward": lambda row: networks.transformer(row, backward=False),
    "transformer_forward_backward": lambda row: networks.transformer(row, backward=True),
    "dp_compute_only": networks.data_parallel,
    "dp_serial_allreduce_per_parameter": networks.data_parallel,
    "dp_ddp_overlap": networks.data_parallel,
    "fsdp2_fully_shard": networks.data_parallel,
    "moe_forward": lambda row: networks.experts(row, backward=False),
    "moe_forward_backward": lambda row: networks.experts(row, backward=True),
    "embedding_all_to_all": networks.embedding_exchange,
    "dlrm_forward": lambda row: networks.recommendation(row, backward=False),
    "dlrm_forward_backward_allreduce": lambda row: networks.recommendation(row, backward=True),
    "gemm_then_collective_chunked": _chunked,
    "all_gather_then_matmul": _gather_then_product,
}
"""Name of every step to what sets it up."""
