"""Workload to what PyTorch's caching allocator reserves on its first pipeline rank, after two eager steps.

What is held (`Ledger`) is less than what is reserved: temporary results, gradients of weights, fragments, and blocks
that a collective on its own stream has used, which are free only when the GPU, not the host, has passed it. So all
allocations of a step are made in order (`CachingAllocator`), with the clocks of host and GPU (`Launches`).

What is allocated is what huggingface/nanotron does for a model like Llama (branch nouamane/bench2, 67c5ebb6; facts
only): sequence-parallel linear layers that gather into buffers of their own, packed projections copied batch first, of
which FlashAttention keeps the whole copy, as its rotation of queries is in place (flash_attn/layers/rotary.py), logits
in fp32, gradients added in fp32 after each backward, DDP's buckets (gradient_as_bucket_view is off), AdamW's states in
the first step, ZeRO-1's flattened lists. In the first step the next stage compiles its kernels, while the first one
issues the rest of its warm-up.

Symbols: E bytes of a micro-batch's whole activations between layers; P parameters of the rank; t tensor-parallel ranks.
Source: see `CachingAllocator` and `QUEUE`; docs/models/memory.md.
"""

import math
from collections import deque
from dataclasses import dataclass

from scaleout.workloads.families.transformer import Transformer
from scaleout.workloads.memory.allocator import Block, CachingAllocator
from scaleout.workloads.memory.launches import Launches

_KERNELS = 30, 48
"""Of a layer, forward and backward, counted in nanotron's code; only their order of magnitude matters."""
_STEPS = 2
"""Adam's states are there from the end of the first; a third one reserves no more (40 of 40 plans tried)."""
_STEADY = 12
"""Micro-batches after the warm-up that are played; more change nothing once host and GPU are a queue apart."""
_WORKSPACE_BYTES = 32 * 2**20
"""cuBLAS on Hopper (docs.nvidia.com/cuda/cublas, cublasSetWorkspace), one each of the threads of forward, backward."""
_BUCKETS_BYTES = 2**20, 25 * 2**20
"""Of DDP: the first, and all others."""
_FP32 = 4


@dataclass(frozen=True)
class Pace:
    """What a forward and a backward of a micro-batch take the host and the GPU [s]; whether the host polls messages."""

    host_s: tuple[float, float]
    gpu_s: tuple[float, float]
    polls: bool = False


def reserved_bytes(workload: Transformer, pace: Pace, room_bytes: float) -> float:
    """Return what the first pipeline rank has reserved at the end of a step; infinite where it has no room."""
    try:
        return float(_Rank(workload, pace, room_bytes).run())
    except MemoryError:
        return math.inf


@dataclass
class _Layer:
    """What a layer keeps for backward, in the order in which backward is done with it."""

    feed_forward: list[Block]  # product, SiLU, gate and up
    after_attention: list[Block]  # norm's output, input and statistics
    attention: list[Block]  # output with statistics; keys with values; queries
    before_attention: list[Block]  # norm's output, statistics, input


class _Rank:
    """The first stage of a pipeline, allocating."""

    def __init__(self, workload: Transformer, pace: Pace, room_bytes: float) -> None:
        self.w, self.pace = workload, pace
        self.memory, self.clocks = CachingAllocator(room_bytes), Launches()
        self.layers, self.ends = workload.layers_of_stage[0], workload.num_stages == 1
        self.t, self.whole = workload.tensor_parallel, workload.local_tokens * workload.hidden * workload.item_bytes
        self.shard, self.gate = self.whole / self.t, workload.item_bytes * workload.local_tokens * workload.ffn / self.t
        self.queries = workload.item_bytes * workload.local_tokens * workload.heads * workload.head_dim / self.t
        self.keys = self.queries * workload.key_value_heads / workload.heads
        self.statistics = _FP32 * workload.local_tokens / self.t
        self.owners = workload.data_parallel if workload.zero else 1
        self.parameters = self._sizes()
        self.gradients: list[Block] = []
        self.gathered: set[str] = set()
        self.buckets: list[Block] = []
        self.backward = False

    # ---- Allocating and issuing

    def _new(self, size_bytes: float) -> Block:
        self.memory.now_s = self.clocks.host_s
        return self.memory.allocate(size_bytes)

    def _done(self, *blocks: Block, sent: bool = False) -> None:
        """Free blocks, of which a collective on its own stream may still use those that were `sent`."""
        self.memory.now_s = self.clocks.host_s
        for block in blocks:
            self.memory.free(block, self.clocks.done_s if sent and self.t > 1 else 0.0)

    def _issue(self, kernels: int) -> None:
        if self.t == 1:
            return  # no block ever waits
        host_s, gpu_s = (
            each[self.backward] / (self.layers * _KERNELS[self.backward])
            for each in (self.pace.host_s, self.pace.gpu_s)
        )
        self._reschedule(self.clocks.issue(kernels, host_s, gpu_s))

    def _go_on(self) -> None:
        self._reschedule(self.clocks.go_on(self.pace.gpu_s[0] / (self.layers * _KERNELS[0])))

    def _reschedule(self, ends: list[float] | None) -> None:
        """Let blocks that wait for a GPU that stood still be free as it goes on."""
        if not ends:
            return
        times, stood = self.memory.waiting_s, self.memory.waiting_s.count(math.inf)
        numbers = iter(range(1, stood + 1))
        self.memory.reschedule(
            [ends[max(len(ends) * next(numbers) // stood - 1, 0)] if time == math.inf else time for time in times]
        )

    def _wait(self) -> None:
        self._go_on()
        self.clocks.wait()

    def _gather(self, name: str) -> None:
        """Gather into a buffer that is there from its first use on."""
        if self.t > 1 and name not in self.gathered:
            self.gathered.add(name)
            self._new(self.whole)

    # ---- Parameters

    def _sizes(self) -> list[float]:
        """Return the parameters of each tensor of the rank, in the order of its modules."""
        w, t = self.w, self.t
        heads, keys = w.heads * w.head_dim, w.key_value_heads * w.head_dim
        self.weights = {
            "qkv": w.hidden * (heads + 2 * keys) / t, "out": w.hidden * heads / t,
            "gate_up": 2 * w.hidden * w.ffn / t, "down": w.hidden * w.ffn / t, "table": w.hidden * w.vocabulary / t,
        }  # fmt: skip
        qkv, out, gate_up, down, _ = self.weights.values()
        layer = [w.hidden, qkv, out, w.hidden, gate_up, down]
        head = [w.hidden, *([] if w.tied_embedding else [self.weights["table"]])] if self.ends else []
        return [self.weights["table"], *layer * self.layers, *head]

    def _states(self) -> None:
        item, total = self.w.item_bytes, sum(self.parameters)
        for size in self.parameters:
            self._new(item * size)
        self._new(_FP32 * total)  # gradients
        self._new(_FP32 * total / self.owners)  # parameters in fp32
        for _ in range(2):
            self._new(_WORKSPACE_BYTES)
        self._fill_buckets()

    def _fill_buckets(self) -> None:
        """Allocate DDP's buckets, last parameters first; after the first step they are made anew."""
        if self.w.data_parallel == 1:
            return
        self._done(*self.buckets)
        self.buckets, filled, number = [], 0.0, 0
        for size in reversed(self.parameters):
            filled += self.w.item_bytes * size
            if filled >= _BUCKETS_BYTES[min(number, 1)]:
                self.buckets.append(self._new(filled))
                filled, number = 0.0, number + 1
        if filled:
            self.buckets.append(self._new(filled))

    def _optimizer(self, *, first: bool) -> None:
        if first:
            for size in self.parameters:
                for _ in range(2):
                    self._new(_FP32 * size / self.owners)
                self._new(_FP32)
            self._fill_buckets()
        if self.w.zero and self.w.data_parallel > 1:
            part = self.w.item_bytes * sum(self.parameters) / self.w.data_parallel
            self._done(*[self._new(part) for _ in range(1 + self.w.data_parallel)])

    # ---- Forward

    def _forward(self) -> tuple[list[_Layer], list[Block]]:
        """Return what the layers keep, and the last activations, norm's output and softmax of a head."""
        self.backward, layers = False, []
        x = self._new(self.whole)
        self._issue(2)
        if self.t > 1:  # other ranks' tokens are masked, and the sum is scattered
            masked = self._new(self.whole)
            self._issue(1)
            self._done(x)
            x = self._new(self.shard)
            self._issue(1)
            self._done(masked, sent=True)
        for _ in range(self.layers):
            x, kept = self._layer(x)
            layers.append(kept)
        if self.ends:
            return layers, [x, *self._head()]
        self._done(x, sent=True)
        return layers, []

    def _layer(self, x: Block) -> tuple[Block, _Layer]:
        w, packed = self.w, self.queries + 2 * self.keys
        alike = self.keys == self.queries
        normed, before = self._new(self.shard), self._new(self.statistics)
        self._issue(1)
        self._gather("inputs")
        projected = self._new(packed)
        self._issue(3)
        heads = self._new(packed if alike else self.queries)  # copied batch first; kept whole, as queries are a part
        self._issue(1)
        side_by_side = self._new(2 * self.keys)
        keys = self._new(2 * self.keys)
        self._issue(2)
        self._done(side_by_side)
        self._issue(9)  # rotations, lengths of sequences
        attended, logs = self._new(self.queries), self._new(_FP32 * w.local_tokens * w.heads / self.t)
        self._issue(1)
        out = self._projected(copied=w.microbatch_size > 1)
        self._done(projected)
        middle = self._new(self.shard)
        self._issue(1)
        normed_2, after = self._new(self.shard), self._new(self.statistics)
        self._issue(1)
        gate_up = self._new(2 * self.gate)
        self._issue(3)
        silu, product = self._new(self.gate), self._new(self.gate)
        self._issue(2)
        down = self._projected(copied=False)
        y = self._new(self.shard)
        self._issue(1)
        self._done(down, out)
        return y, _Layer(
            [product, silu, gate_up], [normed_2, middle, after], [attended, logs, keys, heads], [normed, before, x]
        )

    def _projected(self, *, copied: bool) -> Block:
        """Project, and scatter the sum over tensor-parallel ranks."""
        copy = self._new(self.queries) if copied else None
        partial = self._new(self.whole)
        self._issue(1 + copied)
        if copy is not None:
            self._done(copy)
        if self.t == 1:
            return partial
        scattered = self._new(self.shard)
        self._issue(1)
        self._done(partial, sent=True)
        return scattered

    def _head(self) -> list[Block]:
        normed = self._new(self.shard)
        self._gather("inputs")
        self._issue(1)
        logits = self._new(self.w.item_bytes * self.w.logits)
        self._issue(3)
        single = self._new(_FP32 * self.w.logits)
        self._issue(1)
        self._done(logits)
        softmax = self._new(_FP32 * self.w.logits)
        self._issue(12)
        self._done(single)
        return [normed, softmax]

    # ---- Backward

    def _backward(self, layers: list[_Layer], kept: list[Block], *, last: bool) -> None:
        self.backward = True
        dy = self._head_backward(*kept) if kept else self._new(self.shard)
        for layer in reversed(layers):
            dy = self._attention_backward(self._feed_forward_backward(dy, layer), layer)
            if last:
                self._reduce(sum(self.parameters) / self.layers)
        if self.t > 1:
            gathered = self._new(self.whole)
            self._issue(1)
            masked = self._new(self.whole)
            self._issue(1)
            self._done(gathered, sent=True)
            self._weight("table")
            self._done(masked)
        else:
            self._weight("table")
        self._done(dy, sent=True)
        if last:
            self._reduce(self.weights["table"])
        self._done(*self.gradients)
        self.gradients = []
        self._issue(6 * self.layers)

    def _weight(self, name: str) -> None:
        """Make the gradient of a weight, which is added to that in fp32 after the backward."""
        self.gradients.append(self._new(self.w.item_bytes * self.weights[name]))
        self._issue(1)

    def _reduce(self, parameters: float) -> None:
        """Flatten the gradients of some parameters for a reduce-scatter, bucket by bucket."""
        if not self.w.zero or self.w.data_parallel == 1:
            return
        buckets = max(int(self.w.item_bytes * parameters // _BUCKETS_BYTES[1]), 1)
        part = _FP32 * parameters / buckets / self.w.data_parallel
        for _ in range(buckets):
            self._done(*[self._new(part) for _ in range(1 + self.w.data_parallel)])

    def _inputs_gradient(self, made: Block, weight: str, *kept: Block) -> Block:
        """Make the gradient of a gathered input from that of the output, scatter it, and make that of the weight."""
        self._gather("inputs")
        whole = self._new(self.whole)
        self._issue(2)
        part = whole
        if self.t > 1:
            part = self._new(self.shard)
            self._issue(1)
        self._weight(weight)
        if self.t > 1:
            self._done(whole, sent=True)
        self._done(made, *kept)
        return part

    def _norm_backward(self, part: Block, dy: Block, *kept: Block) -> Block:
        """Make the gradient of a norm's input, and add that of the residual."""
        made = self._new(self.shard)
        self._issue(4)
        self._done(part, *kept)
        added = self._new(self.shard)
        self._issue(1)
        self._done(made)
        self._done(dy, sent=True)
        return added

    def _head_backward(self, x: Block, normed: Block, softmax: Block) -> Block:
        self._issue(4)
        logits = self._new(self.w.item_bytes * self.w.logits)
        self._issue(1)
        self._done(softmax)
        part = self._inputs_gradient(logits, "table")
        dy = self._new(self.shard)
        self._issue(3)
        self._done(part, normed, x)
        return dy

    def _feed_forward_backward(self, dy: Block, layer: _Layer) -> Block:
        product, silu, gate_up = layer.feed_forward
        self._gather("gradients")
        made = self._new(self.gate)
        self._issue(3)
        self._weight("down")
        self._done(product)
        of_silu, of_up = self._new(self.gate), self._new(self.gate)
        self._issue(2)
        self._done(made, silu)
        of_gate = self._new(self.gate)
        self._issue(1)
        self._done(of_silu)
        both = self._new(2 * self.gate)
        self._issue(1)
        self._done(of_gate, of_up, gate_up)
        normed, middle, statistics = layer.after_attention
        return self._norm_backward(self._inputs_gradient(both, "gate_up", normed), dy, middle, statistics)

    def _attention_backward(self, dy: Block, layer: _Layer) -> Block:
        attended, logs, keys, heads = layer.attention
        several, packed = self.w.microbatch_size > 1, self.queries + 2 * self.keys
        self._gather("gradients")
        made = self._new(self.queries)
        self._issue(3)
        copy = self._new(self.queries) if several else None
        self._weight("out")
        if copy is not None:
            self._done(copy)
            batch_first = self._new(self.queries)
            self._issue(1)
            self._done(made)
            made = batch_first
        of_queries, of_keys, of_values = self._new(self.queries), self._new(self.keys), self._new(self.keys)
        summed = self._new(2 * self.queries)  # in fp32
        self._issue(3)
        self._done(summed, made, attended, logs)
        side_by_side = self._new(2 * self.keys)
        self._issue(2)
        self._done(of_keys, of_values, keys)
        self._issue(2)
        self._done(heads)
        apart = self._new(2 * self.keys)
        self._issue(1)
        self._done(side_by_side)
        together = self._new(packed)
        self._issue(2)
        self._done(of_queries, apart)
        tokens_first = self._new(packed)
        self._issue(1)
        self._done(together)
        normed, statistics, x = layer.before_attention
        return self._norm_backward(self._inputs_gradient(tokens_first, "qkv", normed), dy, statistics, x)

    # ---- Steps

    def run(self) -> int:
        """Play the steps; return what is reserved at the end."""
        self._states()
        for number in range(_STEPS):
            self._step(first=number == 0)
            self._wait()
            self._optimizer(first=number == 0)
        return self.memory.reserved

    def _step(self, *, first: bool) -> None:
        """Play micro-batches one forward, one backward; the first stage begins with a forward for each other stage.

        The host waits for no message but where it polls, and in the first step for the first one, as its communicator
        is made. Behind the second one the GPU stands still while the next stage compiles, until the warm-up is issued.
        """
        stages, number = self.w.num_stages, self.w.batch_per_replica // self.w.microbatch_size
        left = min(number, stages - 1 + _STEADY)
        flying: deque[tuple[list[_Layer], list[Block]]] = deque()
        for each in range(min(stages - 1, left)):
            flying.append(self._forward())
            left -= 1
            if self.pace.polls or (first and each == 0):
                self._wait()
            elif first and each == 1 and self.t > 1:
                self.clocks.stand_still()
        while left or flying:
            if left:
                flying.append(self._forward())
                left -= 1
            if self.pace.polls and stages > 1:
                self._wait()
            self._go_on()
            layers, kept = flying.popleft()
            self._backward(layers, kept, last=not left and not flying)
