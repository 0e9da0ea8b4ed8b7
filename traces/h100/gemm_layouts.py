"""Times of bf16 GEMMs whose sizes are multiples of 1, 2, 4 or 8, in the layouts of a linear layer's three products.

    python traces/h100/gemm_layouts.py OUT

Row-major in memory are x (tokens, in), y's gradient (tokens, out) and the weight (out, in). Layout `forward` multiplies
x by the transposed weight, `input_gradient` y's gradient by the weight, `weight_gradient` the transposed gradient of y
by x: of (M, K) by (K, N), K counts what is summed over. A row: median of 7 replays of a CUDA graph of 8 calls that
rotate through sets of data larger than the L2 cache.
"""

import json
import sys
from itertools import product
from pathlib import Path
from statistics import median

import torch

SETS, CALLS, REPLAYS = 4, 8, 7
SHAPES = ((4096, 4096), (14336, 4096), (4096, 14336))
LENGTHS = (1000, 1001, 1002, 1004, 2048, 2049, 2050, 2052, 4096, 4097, 4098, 4100, 8192, 8193, 8194, 8196)
LAYOUTS = ("forward", "input_gradient", "weight_gradient")


def factors(layout: str, m: int, n: int, k: int, groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (M, K) and (K, N) as they lie in memory in a layout; of groups in front."""
    shapes = ((k, m) if layout == "weight_gradient" else (m, k), (n, k) if layout == "forward" else (k, n))
    front = (groups,) if groups > 1 else ()
    left, right = (torch.randn(*front, *shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    return left.mT if layout == "weight_gradient" else left, right.mT if layout == "forward" else right


def microseconds(layout: str, m: int, n: int, k: int, groups: int = 1) -> float:
    """Return the time of one call."""
    data = [factors(layout, m, n, k, groups) for _ in range(SETS)]
    for left, right in data:
        torch.matmul(left, right)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in range(CALLS):
            torch.matmul(*data[call % SETS])
    found = []
    for _ in range(REPLAYS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / CALLS)
    return round(median(found[1:]), 3)


def main() -> None:
    """Write a row a call."""
    rows = [(layout, m, n, k, 1) for (m, n), k, layout in product(SHAPES, LENGTHS, LAYOUTS)]
    rows += [(layout, 4096 + more, 4096, 4096, 1) for more, layout in product((1, 2, 4), LAYOUTS)]
    rows += [(layout, 4096, 4096 + more, 4096, 1) for more, layout in product((1, 2, 4), LAYOUTS)]
    rows += [("weight_gradient", 4096, 8192, k, 4) for k in (680, 683, 1366, 1368, 2731, 2736)]
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        device, software = torch.cuda.get_device_name(), f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}"
        file.write(json.dumps({"provenance": {"device": device, "software": software}}) + "\n")
        for layout, m, n, k, groups in rows:
            us = microseconds(layout, m, n, k, groups)
            row = {"layout": layout, "groups": groups, "M": m, "N": n, "K": k, "us": us}
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
