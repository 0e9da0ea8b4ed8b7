"""Kineto JSON by hand: a rank's host calls and GPU work, event by event, times in microseconds."""

import gzip
import json
from pathlib import Path

HOST, GPU = 100, 0
_OLD_NAMES = {"kernel": "Kernel", "cuda_runtime": "Runtime", "cpu_op": "Operator", "gpu_memcpy": "Memcpy"}
COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


class Rank:
    """What one rank did; `offset_us` is what its clock shows beyond that of rank 0."""

    def __init__(self, rank=0, world_size=1, *, offset_us=0.0, device="NVIDIA H200", old_names=False):
        self.rank, self.world_size, self.offset_us = rank, world_size, offset_us
        self.device, self.old_names = device, old_names
        self.events = []
        self.correlation = 0

    def event(self, category, name, at, lasts, *, pid=HOST, tid=1, **args):
        name_of = _OLD_NAMES if self.old_names else {}
        where = {"ph": "X", "cat": name_of.get(category, category), "name": name, "pid": pid, "tid": tid}
        self.events.append({**where, "ts": at + self.offset_us, "dur": lasts, "args": args})
        return self

    def call(self, name, at, lasts=1.0, *, thread=1, correlation=None):
        """Call CUDA; return the correlation of the call."""
        if correlation is None:
            self.correlation += 1
            correlation = self.correlation
        self.event("cuda_runtime", name, at, lasts, tid=thread, correlation=correlation)
        return correlation

    def kernel(self, start, lasts, *, launch=None, stream=7, name="mm", thread=1, **args):
        """Run a kernel, which was launched at `launch` (by no recorded call where None)."""
        correlation = 0
        if launch is not None:
            correlation = self.call("cudaLaunchKernel", launch, thread=thread)
        else:
            self.correlation += 1
            correlation = self.correlation
        self.event("kernel", name, start, lasts, pid=GPU, tid=stream, device=0, stream=stream, correlation=correlation,
                   **args)  # fmt: skip
        return correlation

    def graph(self, launch, kernels):
        """Launch a CUDA graph of kernels, each of a start, a duration and a stream."""
        correlation = self.call("cudaGraphLaunch", launch)
        for start, lasts, stream in kernels:
            self.event("kernel", "mm", start, lasts, pid=GPU, tid=stream, device=0, stream=stream,
                       correlation=correlation)  # fmt: skip

    def copy(self, start, lasts, *, launch, returns, stream=7):
        """Copy memory by a call of the host that returns at a moment."""
        correlation = self.call("cudaMemcpyAsync", launch, returns - launch)
        return self.event("gpu_memcpy", "Memcpy DtoH", start, lasts, pid=GPU, tid=stream, device=0, stream=stream,
                          correlation=correlation)  # fmt: skip

    def collective(self, start, lasts, *, launch=None, kind="allreduce", elements=1000, group=None, name=COLLECTIVE,
                   stream=20, told=True, **more):  # fmt: skip
        """Run a collective of float32, with PyTorch's metadata on its kernel, or without."""
        members = list(range(self.world_size)) if group is None else group
        args = {
            "Collective name": kind, "In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float",
            "Group size": len(members), "Process Group Name": "0" if group is None else str(group),
            "Process Group Ranks": str(members), **more,
        } if told else {}  # fmt: skip
        return self.kernel(start, lasts, launch=launch, stream=stream, name=name, **args)

    def operator(self, name, at, lasts, *, dims=None, dtypes=None, thread=1, **args):
        if dims is not None:
            args |= {"Input Dims": dims, "Input type": dtypes or ["float"] * len(dims)}
        return self.event("cpu_op", name, at, lasts, tid=thread, **args)

    def step(self, number, at, lasts):
        return self.event("user_annotation", f"ProfilerStep#{number}", at, lasts)

    def content(self):
        """Return the JSON value of the file."""
        info = {"backend": "nccl", "rank": self.rank, "world_size": self.world_size}
        return {
            "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": self.device}], "distributedInfo": info,
            "traceEvents": self.events,
        }  # fmt: skip

    def write(self, folder, *, zipped=False, name="job"):
        """Write the file of the rank; return its path."""
        text = json.dumps(self.content()).encode()
        path = Path(folder, f"{name}.rank{self.rank}.kineto.json{'.gz' if zipped else ''}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text, mtime=0) if zipped else text)
        return path
