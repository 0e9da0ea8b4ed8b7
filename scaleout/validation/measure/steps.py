"""Whole steps of networks over all GPUs, call by call as PyTorch runs them: the kinds that `scaleout validate` knows.

Weights are small random numbers in bf16 (recommendation models: fp32). transformer_*: pre-norm layers of Megatron-LM
without embedding and head; `tp_sp` adds sequence parallelism. dp_*, fsdp2_*: whole layers on each GPU, gradients
reduced per parameter, by DDP in buckets, or by FSDP2, one unit per layer. moe_*: one expert per GPU, balanced. dlrm_*,
embedding_all_to_all: tables on each GPU. gemm_then_collective_chunked, all_gather_then_matmul: a GEMM cut along its
rows, and one after a gather. A time is from the first call to the end of the last kernel, on the slowest rank.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from scaleout.validation.measure.exchange import EXCHANGES, MODES, attention, exchange
from scaleout.validation.measure.session import Session, elapsed_us, slowest_of, summed_up

Step = Callable[[], Any]
Row = Mapping[str, Any]

_ROWS = 200_000
"""Rows of each embedding table."""
_DENSE_FEATURES, _BOTTOM_LAYERS = 256, 3


def weight(*shape: int) -> nn.Parameter:
    """Return small random numbers that require a gradient."""
    return nn.Parameter(torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02)


class _Layer(nn.Module):  # type: ignore[misc]
    """A rank's part of a pre-norm layer: sequence first, heads of size 128, four times as wide inside."""

    def __init__(self, hidden: int, ranks: int, mode: str) -> None:
        super().__init__()
        self.into, self.out = MODES[mode]
        self.norms = nn.ModuleList(nn.LayerNorm(hidden, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self.qkv, self.project = weight(3 * hidden // ranks, hidden), weight(hidden, hidden // ranks)
        self.widen, self.narrow = weight(4 * hidden // ranks, hidden), weight(hidden, 4 * hidden // ranks)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = exchange(self.norms[0](x), *self.into)
        y = functional.linear(attention(functional.linear(y, self.qkv)), self.project)
        x = x + exchange(y, *self.out)
        y = exchange(self.norms[1](x), *self.into)
        y = functional.linear(functional.gelu(functional.linear(y, self.widen)), self.narrow)
        return x + exchange(y, *self.out)


def _layers(row: Row, ranks: int) -> nn.Sequential:
    return nn.Sequential(*(_Layer(row["hidden"], ranks, row["mode"]) for _ in range(row["layers"])))


def _passes(network: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, parameters: list[nn.Parameter]) -> Step:
    """Return a step that drops the gradients of the one before, then runs forward and backward.

    Its gradient is random: GEMMs of a gradient of ones draw less power, so that experts' steps took 5 to 8% less.
    """
    with torch.no_grad():
        gradient = torch.randn_like(network(x))

    def step() -> None:
        x.grad = None
        for parameter in parameters:
            parameter.grad = None
        torch.autograd.backward(network(x), gradient)

    return step


def transformer(row: Row, *, backward: bool) -> Step:
    """Tensor-parallel layers."""
    ranks = dist.get_world_size()
    network = _layers(row, ranks)
    cut = ranks if row["mode"] == "tp_sp" else 1
    x = torch.randn(row["seq"] // cut, row["batch"], row["hidden"], device="cuda", dtype=torch.bfloat16)
    x.requires_grad_(backward)
    return _step(network, x, list(network.parameters()), backward=backward)


def _step(
    network: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, parameters: list[nn.Parameter], *, backward: bool
) -> Step:
    return _passes(network, x, parameters) if backward else _without_gradients(lambda: network(x))


def data_parallel(row: Row) -> Step:
    """Whole layers on each GPU; the row's name says how gradients are reduced."""
    network: nn.Module = _layers(row, 1)
    parameters = list(network.parameters())
    x = torch.randn(row["seq"], row["batch"], row["hidden"], device="cuda", dtype=torch.bfloat16).requires_grad_()
    if row["name"] == "dp_ddp_overlap":
        device = torch.cuda.current_device()
        network = nn.parallel.DistributedDataParallel(
            network, device_ids=[device], bucket_cap_mb=row["bucket_mb"], gradient_as_bucket_view=False
        )
    elif row["name"] == "fsdp2_fully_shard":
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - loads what only this step needs

        for layer in network.children():
            fully_shard(layer)
        fully_shard(network)
        parameters = list(network.parameters())

    inner = _passes(network, x, parameters)

    def step() -> None:
        inner()
        if row["name"] == "dp_serial_allreduce_per_parameter":
            for parameter in parameters:
                dist.all_reduce(parameter.grad)

    return step


def experts(row: Row, *, backward: bool) -> Step:
    """A mixture-of-experts layer, one expert per GPU, balanced; chunks of tokens run one after the other."""
    top_k, chunks = row["topk"], row["chunks"]
    wide, narrow = weight(row["ffn"], row["hidden"]), weight(row["hidden"], row["ffn"])

    def one(x: torch.Tensor) -> torch.Tensor:
        y = exchange(x.repeat_interleave(top_k, dim=0), "all_to_all", "all_to_all")
        y = functional.linear(functional.gelu(functional.linear(y, wide)), narrow)
        y = exchange(y, "all_to_all", "all_to_all")
        return y.view(-1, top_k, row["hidden"]).sum(dim=1)

    def network(x: torch.Tensor) -> torch.Tensor:
        return one(x) if chunks == 1 else torch.cat([one(part) for part in x.chunk(chunks)])

    x = torch.randn(row["tokens"], row["hidden"], device="cuda", dtype=torch.bfloat16).requires_grad_(backward)
    return _step(network, x, [wide, narrow], backward=backward)


class _Tables:
    """A rank's embedding tables, looked up in one call for the whole batch."""

    def __init__(self, row: Row) -> None:
        self.batch, self.tables, self.dim = row["batch"], row["tables_per_gpu"], row["dim"]
        self.ranks = dist.get_world_size()
        self.weight = nn.Parameter(torch.randn(self.tables * _ROWS, self.dim, device="cuda") * 0.02)
        local = self.batch // self.ranks
        first = torch.arange(self.tables, device="cuda").repeat_interleave(local).repeat(self.ranks) * _ROWS
        bags = (self.tables * self.batch, row["pooling"])
        self.indices = torch.randint(_ROWS, bags, device="cuda") + first[:, None]

    def pooled(self, *, sparse: bool) -> torch.Tensor:
        """Sums of the looked-up rows, by receiver: (R, tables, batch / R, dim)."""
        sums = functional.embedding_bag(self.indices, self.weight, mode="sum", sparse=sparse)
        return sums.view(self.ranks, self.tables, self.batch // self.ranks, self.dim)

    def vectors(self, received: torch.Tensor) -> torch.Tensor:
        """Received vectors in the order of samples: (batch / R, R * tables, dim)."""
        return received.permute(2, 0, 1, 3).reshape(self.batch // self.ranks, -1, self.dim)


def embedding_exchange(row: Row) -> Step:
    """Pooling, the all-to-all, and the permutation into sample order."""
    tables = _Tables(row)

    def step() -> None:
        tables.vectors(EXCHANGES["all_to_all"](tables.pooled(sparse=False), False)[0])

    return _without_gradients(step)


def _perceptron(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias=False, device="cuda"), nn.ReLU()]
    return nn.Sequential(*layers)


def recommendation(row: Row, *, backward: bool) -> Step:
    """A DLRM with pairwise dot products; backward has sparse gradients of tables and an all-reduce per parameter."""
    tables, wide = _Tables(row), row["mlp"]
    features = row["tables_per_gpu"] * tables.ranks + 1
    bottom = _perceptron([_DENSE_FEATURES, *[wide] * (_BOTTOM_LAYERS - 1), row["dim"]])
    top = _perceptron([row["dim"] + features * (features - 1) // 2, *[wide] * (row["top_layers"] - 1), 1])
    lower, upper = torch.tril_indices(features, features, offset=-1, device="cuda")
    triangle = lower * features + upper
    dense = torch.randn(row["batch"] // tables.ranks, _DENSE_FEATURES, device="cuda")
    parameters = [*bottom.parameters(), *top.parameters()]

    def network(x: torch.Tensor) -> torch.Tensor:
        received = exchange(tables.pooled(sparse=backward), "all_to_all", "all_to_all")
        below = bottom(x)
        vectors = torch.cat((below[:, None, :], tables.vectors(received)), dim=1)
        gemms = torch.bmm(vectors, vectors.transpose(1, 2)).view(x.shape[0], -1)[:, triangle]
        return top(torch.cat((below, gemms), dim=1))

    inner = _step(network, dense, [*parameters, tables.weight], backward=backward)

    def step() -> None:
        inner()
        if backward:
            for parameter in parameters:
                dist.all_reduce(parameter.grad)

    return step


_WARM_UP = 5


def measure(row: Mapping[str, Any], session: Session) -> Mapping[str, Any]:
    """Time the step of a row as one of the processes."""
    step = _STEPS[row["name"]](row)
    for _ in range(_WARM_UP):
        step()
    times = []
    for _ in range(session.repeats):
        session.barrier()
        times.append(elapsed_us(step))
    return {"times": {"step": times}}


def join(found: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the slowest rank's time of each repeat, summed up."""
    return summed_up(slowest_of(found)["step"], "step_us", digits=1)


def _chunked(row: Mapping[str, Any]) -> Step:
    a, b = weight(row["M"], row["K"]), weight(row["K"], row["N"])
    start = EXCHANGES[row["collective"]]

    def step() -> None:
        works = [start(part @ b, True)[1] for part in a.detach().chunk(row["chunks"])]
        for work in works:
            work.wait()

    return _without_gradients(step)


def _gather_then_gemm(row: Mapping[str, Any]) -> Step:
    a, b = weight(row["M"] // dist.get_world_size(), row["K"]), weight(row["K"], row["N"])
    whole = torch.empty(row["M"], row["K"], device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        dist.all_gather_into_tensor(whole, a.detach())
        whole @ b

    return _without_gradients(step)


def _without_gradients(step: Step) -> Step:
    quiet: Step = torch.no_grad()(step)
    return quiet


_STEPS: Mapping[str, Callable[[Mapping[str, Any]], Step]] = {
    "transformer_forward": lambda row: transformer(row, backward=False),
    "transformer_forward_backward": lambda row: transformer(row, backward=True),
    "dp_compute_only": data_parallel,
    "dp_serial_allreduce_per_parameter": data_parallel,
    "dp_ddp_overlap": data_parallel,
    "fsdp2_fully_shard": data_parallel,
    "moe_forward": lambda row: experts(row, backward=False),
    "moe_forward_backward": lambda row: experts(row, backward=True),
    "embedding_all_to_all": embedding_exchange,
    "dlrm_forward": lambda row: recommendation(row, backward=False),
    "dlrm_forward_backward_allreduce": lambda row: recommendation(row, backward=True),
    "gemm_then_collective_chunked": _chunked,
    "all_gather_then_matmul": _gather_then_gemm,
}
"""Name of a step to the function that sets it up."""
