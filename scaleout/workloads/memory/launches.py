"""When an eager host has issued its kernels, and when its GPU has run them: one clock each.

A host issues a kernel after a kernel, and is at most a queue of launches ahead of its GPU. A GPU may stand still, as a
message waits for a peer: then the queue fills up, and the host waits with it. It knows nothing of memory.
"""

import math
from collections import deque

QUEUE = 1022
"""Kernels that are issued and not yet run, at most. Measured on an H100 (driver 580.159.04, PyTorch 2.11): behind a
kernel of seconds the host issues 1,022 point-wise kernels before a call blocks; events and waits between streams do not
count, and with one connection (CUDA_DEVICE_MAX_CONNECTIONS=1) kernels of all streams share the 1,022."""


class Launches:
    """Clocks of a host and its GPU.

    Attributes
    ----------
    host_s : float
        When the host has issued the last kernel.
    done_s : float
        When the GPU will have run the last kernel; infinite while it stands still.
    """

    def __init__(self) -> None:
        self.host_s, self.done_s = 0.0, 0.0
        self._gpu_s, self._queue, self._stands = 0.0, deque[float](), False

    def issue(self, number: int, host_s: float, gpu_s: float) -> list[float] | None:
        """Issue some kernels of equal times; return when those that stood still will be done, if they go on now."""
        gone_on = None
        for _ in range(number):
            self.host_s += host_s
            if len(self._queue) >= QUEUE:
                gone_on = self.go_on(gpu_s) or gone_on
                self.host_s = max(self.host_s, self._queue.popleft())
            if self._stands:
                self.done_s = math.inf
            else:
                self._gpu_s = self.done_s = max(self._gpu_s, self.host_s) + gpu_s
            self._queue.append(self.done_s)
            while self._queue and self._queue[0] <= self.host_s:
                self._queue.popleft()
        return gone_on

    def stand_still(self) -> None:
        """Let the GPU wait, for nobody knows how long, behind what was issued."""
        self._stands = True

    def go_on(self, gpu_s: float) -> list[float] | None:
        """Let a GPU that stands still go on from now, kernel after kernel; return when each of them is done."""
        if not self._stands:
            return None
        self._stands, self._gpu_s = False, max(self.host_s, self._gpu_s)
        stood = [done_s for done_s in self._queue if done_s == math.inf]
        self._queue = deque(done_s for done_s in self._queue if done_s != math.inf)
        ends = [self._gpu_s + gpu_s * number for number in range(1, len(stood) + 1)]
        self._queue.extend(ends)
        self._gpu_s = self.done_s = ends[-1] if ends else self._gpu_s
        return ends

    def wait(self) -> None:
        """Let the host wait for the GPU."""
        assert not self._stands
        self.host_s = max(self.host_s, self._gpu_s)
        self._queue.clear()
