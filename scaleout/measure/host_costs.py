"""Measured host times of calls to the `host_launch` of a device file.

Of the steps that make a call the median; a linear layer's backward makes two products, so that of `gemm` is half of
it; a sum over ranks comes with the identity whose backward it is; what heads are copied by is counted with attention.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

_WITH_ATTENTION = {"heads_cat_backward": 0.0, "heads_to_rows_backward": 0.0}
_DIRECTIONS = ("no_grad", "forward", "backward")
_PLAIN = ("add", "attention", "gelu", "gemm", "layer_norm", "moe_repeat_topk", "moe_sum_topk", "relu")
_PARTS = {"gemm_backward": 0.5}
_EXCHANGES: Mapping[str, Mapping[str, tuple[tuple[str, str], ...]]] = {
    "all_reduce": {
        "forward": (("all_reduce_into_nothing", "forward"), ("nothing_into_all_reduce", "forward")),
        "backward": (("nothing_into_all_reduce", "backward"), ("all_reduce_into_nothing", "backward")),
        "no_grad": (("all_reduce_into_nothing", "no_grad"), ("nothing_into_all_reduce", "no_grad")),
    },
    "all_gather": {
        "forward": (("all_gather_into_reduce_scatter", "forward"),),
        "backward": (("reduce_scatter_into_all_gather", "backward"),),
        "no_grad": (("all_gather_into_reduce_scatter", "no_grad"),),
    },
    "reduce_scatter": {
        "forward": (("reduce_scatter_into_all_gather", "forward"),),
        "backward": (("all_gather_into_reduce_scatter", "backward"),),
        "no_grad": (("reduce_scatter_into_all_gather", "no_grad"),),
    },
    "all_to_all": {direction: (("all_to_all_into_all_to_all", direction),) for direction in _DIRECTIONS},
}
"""Collective and direction to the measured calls that together are one."""


def host_launch_us(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the microseconds of each call that a device file's `host_launch` names, of those that were measured."""
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        times[row["call"], row["direction"]].append(float(row["us"]))
    known = {key: median(values) for key, values in times.items()}
    found: dict[str, float] = {}
    for call in _PLAIN:
        for direction in _DIRECTIONS:
            if (call, direction) in known:
                name = f"{call}_{direction}"
                found[name] = known[call, direction] * _PARTS.get(name, 1.0)
    for kind, directions in _EXCHANGES.items():
        for direction, calls in directions.items():
            if all(call in known for call in calls):
                found[f"{kind}_{direction}"] = sum(known[call] for call in calls)
    for direction in _DIRECTIONS:
        if f"gelu_{direction}" in found:
            found[f"pointwise_{direction}"] = found[f"gelu_{direction}"]
    if ("start", "backward") in known:
        found |= {
            "start_backward": known["start", "backward"],
            "heads_cat_backward": 0.0,
            "heads_to_rows_backward": 0.0,
        }
    loops = {call: us for (call, direction), us in known.items() if direction == "loop"}
    found |= {f"{call}_loop": us for call, us in loops.items()}
    exchanges = [loops[kind] for kind in _EXCHANGES if kind in loops]
    if exchanges:
        found["collective_loop"] = median(exchanges)
    return {name: round(max(us, 0.0), 2) for name, us in sorted(found.items())}
