"""Convolutional networks: one training step, data-parallel, with a reduction for every buffer of parameters or bucket.

Backward makes the gradient of a layer's weights first, whose reduction starts at once, and then that of its input, so
that the reduction has all the rest of backward beside it. The optimizer steps the parameters of each reduction when
that is done. What the host reads and decodes for the next step is one node on a stream of its own.

A normalisation, an activation and the sum of a block are kernels of their own, as cuDNN's are. Left out: the
softmax's few numbers, and biases' additions, which hide in the kernels before them.

Source: Dryden et al., Aluminum, MLHPC 2018, Sec. III.A (order of backward) and II.C (the synthetic step).
"""

import numpy as np

from scaleout.program.graph import INPUT, NONE, GraphBuilder
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import Program
from scaleout.workloads.config.convolutional import Bottleneck, Convolution, Convolutional, Layer, Linear, Pool
from scaleout.workloads.generate.autograd_tape import AutogradTape, Bucket, Cursor, Gradients
from scaleout.workloads.generate.axes import Sharing
from scaleout.workloads.generate.layers import pointwise
from scaleout.workloads.generate.linear import linear


def generate(workload: Convolutional) -> Program:
    """Write the graph that every rank runs, in one role."""
    graph = GraphBuilder()
    if workload.input_per_sample:
        input_s = workload.input_per_sample * workload.local_batch
        graph.add((), name="input", phase=INPUT, duration_s=input_s, time_source=TimeSource.GIVEN)
    gradients = Gradients(workload.gradient_bucket, workload.item_bytes)
    tape = AutogradTape(Cursor(graph), workload.dtype, gradients)
    bucket = Bucket("dense", Sharing(0, workload.data_parallel))
    graph.phase = "forward"
    x = NONE
    for layer in workload.built:
        x = _layer(tape, x, layer, workload, bucket)
    graph.phase = "backward"
    tape.backward(x)
    gradients.flush(graph, bucket)
    if workload.optimizer == "sgd" and not workload.convolutions_only:
        graph.phase = "optimizer"
        for node, count in zip(_reduced(gradients, workload), _steps(workload), strict=True):
            graph.compute(kernel("sgd", dtype=workload.dtype, parameters=count), after=(node,))
    groups = (workload.mesh.groups("world"),)
    return Program(workload.name, (graph.build(),), np.zeros(workload.num_ranks, np.int64), groups)


def _reduced(gradients: Gradients, workload: Convolutional) -> list[int]:
    """Nodes after which the gradients of each step of the optimizer are final."""
    return gradients.final if workload.data_parallel > 1 else [gradients.final[-1]]


def _steps(workload: Convolutional) -> list[int]:
    """Parameters that each step of the optimizer updates: those of a reduction, in the order of backward."""
    if workload.data_parallel == 1:
        return [workload.num_parameters]
    counts, filled = [], 0
    for count in reversed(workload.buffers):
        filled += count
        if filled * workload.item_bytes >= workload.gradient_bucket:
            counts.append(filled)
            filled = 0
    return [*counts, filled] if filled else counts


def _layer(tape: AutogradTape, x: int, layer: Layer, workload: Convolutional, bucket: Bucket) -> int:
    if isinstance(layer, Bottleneck):
        return _bottleneck(tape, x, layer, workload, bucket)
    if isinstance(layer, Convolution):
        return _activated(tape, _convolution(tape, x, layer, workload, bucket), layer, workload)
    if workload.convolutions_only:
        return x
    if isinstance(layer, Pool):
        elements = workload.local_batch * layer.channels * layer.hw**2
        return pointwise(tape, x, "pool_fwd", "pool_bwd", name="pool", elements=elements)
    return _linear(tape, x, layer, workload, bucket)


def _linear(tape: AutogradTape, x: int, layer: Linear, workload: Convolutional, bucket: Bucket) -> int:
    batch = workload.local_batch
    x = linear(tape, x, tokens=batch, inputs=layer.inputs, outputs=layer.outputs, bucket=bucket, name=layer.name)
    _learn(tape, workload.buffers_of(layer)[1:], bucket)
    if layer.is_last:
        return x
    return pointwise(tape, x, "relu_fwd", "relu_bwd", name=f"{layer.name}_relu", elements=batch * layer.outputs)


def _learn(tape: AutogradTape, counts: tuple[int, ...], bucket: Bucket) -> None:
    """Let backward learn buffers whose gradients come with that of the output here."""

    def backward(dy: int) -> int:
        for count in reversed(counts):
            tape.accumulate_gradient(lambda node: node, dy, count, bucket)
        return dy

    tape.push(backward)


def _convolution(tape: AutogradTape, x: int, layer: Convolution, workload: Convolutional, bucket: Bucket) -> int:
    """A convolution with its normalisation or bias; the gradient of the weights comes before that of the input."""
    shape = {
        "batch": workload.local_batch, "c_in": layer.c_in, "c_out": layer.c_out, "kernel": layer.window,
        "stride": layer.stride, "hw": layer.hw,
    }  # fmt: skip

    def weights(node: int) -> int:
        return tape.kernel("conv2d_bwd_weight", node, name=f"{layer.name}_weight_gradient", **shape)

    def backward(dy: int) -> int:
        tape.accumulate_gradient(weights, dy, layer.num_parameters, bucket)
        if x == NONE:
            return dy
        return tape.kernel("conv2d_bwd_data", dy, name=f"{layer.name}_input_gradient", **shape)

    tape.push(backward)
    y = tape.kernel("conv2d_fwd", x, name=layer.name, **shape)
    _learn(tape, workload.buffers_of(layer)[1:], bucket)
    if not workload.batch_norm or workload.convolutions_only:
        return y
    elements = _elements(layer, workload)
    return pointwise(tape, y, "batch_norm_fwd", "batch_norm_bwd", name=f"{layer.name}_norm", elements=elements)


def _elements(layer: Convolution, workload: Convolutional) -> int:
    return workload.local_batch * layer.c_out * layer.hw_out**2


def _activated(tape: AutogradTape, x: int, layer: Convolution, workload: Convolutional) -> int:
    if workload.convolutions_only:
        return x
    name = f"{layer.name}_relu"
    return pointwise(tape, x, "relu_fwd", "relu_bwd", name=name, elements=_elements(layer, workload))


def _bottleneck(tape: AutogradTape, x: int, block: Bottleneck, workload: Convolutional, bucket: Bucket) -> int:
    """``relu(branch(x) + shortcut(x))``; backward goes through the branch first, then the shortcut, and adds up."""
    *first, last = block.branch
    branch, shortcut = tape.branch(), tape.branch()

    def add(node: int, other: int, name: str) -> int:
        if workload.convolutions_only:
            return tape.graph.join((node, other), name=name)
        return tape.kernel("add", node, other, name=name, elements=_elements(last, workload))

    def backward(dy: int) -> int:
        return add(branch.backward(dy), shortcut.backward(dy), "residual_gradient")

    beside = x if block.shortcut is None else _convolution(shortcut, x, block.shortcut, workload, bucket)
    y = x
    for part in first:
        y = _activated(branch, _convolution(branch, y, part, workload, bucket), part, workload)
    y = _convolution(branch, y, last, workload, bucket)
    tape.push(backward)
    return _activated(tape, add(y, beside, "residual"), last, workload)
