"""What the processes that measure together share: one process a GPU, groups of NCCL, and how they agree.

Torch's own process group of NCCL carries what is measured; beside it one of gloo lets the processes tell each other
what they found, also after one of them ran out of memory.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

Group = Any
_PATIENCE = timedelta(seconds=120)
"""How long a process waits for the others before it gives up."""

Times = Mapping[str, Sequence[float]]
"""Name of a time to its microseconds, one for each repeat."""


@dataclass
class Session:
    """One of the processes.

    Attributes
    ----------
    rank, gpus : int
        This process and its GPU; how many there are.
    repeats : int
        How often each time is taken.
    folder : str
        Where the rows go; NCCL's logs are there, too.
    """

    rank: int
    gpus: int
    repeats: int
    folder: str
    _control: Group = None
    _groups: dict[Any, tuple[Group, list[int]]] = field(default_factory=dict)

    def meet(self) -> None:
        """Join the others.

        Raises
        ------
        RuntimeError
            If they do not come.
        """
        dist.init_process_group(
            "nccl",
            init_method=f"file://{self.folder}/.rendezvous",
            rank=self.rank,
            world_size=self.gpus,
            timeout=_PATIENCE,
            device_id=torch.device("cuda", self.rank),
        )
        self._control = dist.new_group(backend="gloo", timeout=_PATIENCE)
        dist.barrier()

    def part(self) -> None:
        """Leave."""
        dist.destroy_process_group()

    def exchange(self, found: Any) -> list[Any]:
        """Return what all processes found, in their order."""
        if self.gpus == 1:
            return [found]
        everyone: list[Any] = [None] * self.gpus
        dist.all_gather_object(everyone, found, group=self._control)
        return everyone

    def barrier(self) -> None:
        """Wait for all, and for their devices: a sum over the devices lets everyone go at once."""
        if self.gpus > 1:
            dist.all_reduce(torch.zeros(1, device="cuda"))
        torch.cuda.synchronize()

    def slowest(self, group: Group) -> Callable[[float], float]:
        """Return the function that agrees on the longest time of a group's processes."""

        def agree(us: float) -> float:
            longest = torch.tensor([us], device="cuda")
            dist.all_reduce(longest, dist.ReduceOp.MAX, group=group)
            return float(longest)

        return agree

    def group(
        self, size: int, *, algorithm: str | None = None, protocol: str | None = None, max_ctas: int | None = None
    ) -> tuple[Group, list[int]]:
        """Make all groups of a size side by side, as many as fit; return the one of this process and its ranks.

        NCCL reads `NCCL_ALGO` and `NCCL_PROTO` when a communicator is made, and takes at most `max_ctas` blocks.
        """
        key = (size, algorithm, protocol, max_ctas)
        if key not in self._groups:
            for name, value in (("NCCL_ALGO", algorithm), ("NCCL_PROTO", protocol)):
                os.environ.pop(name, None)
                if value:
                    os.environ[name] = value
            mine: tuple[Group, list[int]] = (None, [])
            for first in range(0, self.gpus - size + 1, size):
                ranks = list(range(first, first + size))
                group = dist.new_group(ranks, pg_options=_options(max_ctas), timeout=_PATIENCE)
                if self.rank in ranks:
                    mine = group, ranks
                    dist.all_reduce(torch.ones(1, device="cuda"), group=group)
                    torch.cuda.synchronize()
            self._groups[key] = mine
        return self._groups[key]


def _options(max_ctas: int | None) -> Any:
    options = dist.ProcessGroupNCCL.Options()
    if max_ctas is not None:
        options.config.max_ctas = max_ctas
        options.config.min_ctas = min(max_ctas, 1)
    return options


def slowest_of(found: Sequence[Times]) -> dict[str, list[float]]:
    """Join the times of the processes: of each repeat that of the slowest."""
    return {name: [max(each) for each in zip(*(times[name] for times in found), strict=True)] for name in found[0]}
