"""Peaks of plans a second: of a shape that was seen before, and of one that was not.

python tests/benchmarks/memory.py
"""

import time

from scaleout.workloads.families import load_workload
from scaleout.workloads.memory import peak

for name in ("megatron-22b", "megatron-175b", "megatron-530b", "megatron-1t"):
    plans = [load_workload(name, {"data_parallel": degree, "zero": 1}) for degree in range(1, 21)]
    seconds = []
    for plan in plans:
        begin = time.perf_counter()
        peak(plan)
        seconds.append(time.perf_counter() - begin)
    print(f"{name}: first {seconds[0] * 1e3:.1f} ms, then {min(seconds[1:]) * 1e3:.2f} ms")
