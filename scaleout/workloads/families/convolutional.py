"""Convolutional networks, data-parallel: a list of layers to convolutions, their images and their parameter buffers.

Each convolution, linear layer and bias has its parameters in one buffer, each batch normalisation in two. Backward
makes a layer's gradients of weights first, so that their reduction overlaps with the rest of backward. For backward
each layer keeps its input, and a pool which pixels it took; a ReLU works in place. Left out: the softmax's few numbers,
biases' additions, which hide in the kernels before them, and memory of the gradients of activations and of cuDNN.

Source: He et al., CVPR 2016 (bottleneck blocks; they stride in the first window, of 1, torchvision in the second, of
3); Krizhevsky, arXiv:1404.5997 (AlexNet); Dryden et al., Aluminum, MLHPC 2018, II.C (synthetic step), III.A (order).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from scaleout.config.units import Count, CountOrZero, LayerCount, Seconds
from scaleout.config.validated import Config
from scaleout.program.graph import NONE, ExecutionGraph, GraphBuilder, NodeRole
from scaleout.program.operations import TimeSource, kernel
from scaleout.program.program import Program
from scaleout.workloads.config.family import DTYPE, Dtype, Moment, WholeModel
from scaleout.workloads.generate.autograd_tape import AutogradTape, Bucket, Cursor, Gradients
from scaleout.workloads.generate.axes import GradientSync
from scaleout.workloads.generate.layers import pointwise
from scaleout.workloads.generate.linear import Linear

_INDEX_BYTES = 8
"""Of each pixel that a pool makes, the index of the one that it is from."""

_EXPANSION = 4
"""Channels that leave a bottleneck block, over those inside."""


class Entry(Config):
    """One entry of `layers`; a pool without a window is over the whole image."""

    kind: Literal["convolution", "pool", "bottleneck", "linear"] = Field(
        description="convolution, pool, bottleneck (three convolutions and a shortcut), or linear"
    )
    channels: Count | None = Field(default=None, description="channels that it makes; a pool keeps those that enter it")
    window: Count | None = Field(
        default=None, description="pixels along a side of the window; of a pool the whole image if unset"
    )
    stride: Count = Field(default=1, description="pixels between windows")
    padding: CountOrZero | None = Field(default=None, description="half the window if unset")
    blocks: LayerCount = Field(default=1, description="how often it is repeated; the stride is the first one's")

    @model_validator(mode="after")
    def _is_complete(self) -> "Entry":
        if (self.channels is None) != (self.kind == "pool"):
            raise ValueError(f"a {self.kind} {'has the channels that enter it' if self.channels else 'needs channels'}")
        if self.kind == "convolution" and self.window is None:
            raise ValueError("a convolution needs a window, such as 3")
        return self


@dataclass(frozen=True)
class Convolution:
    """One convolution over a square image of `hw` pixels along a side, of which `hw_out` leave."""

    name: str
    c_in: int
    c_out: int
    window: int
    stride: int
    hw: int
    hw_out: int

    @property
    def num_parameters(self) -> int:
        """Weights, without a bias."""
        return self.c_in * self.c_out * self.window**2


@dataclass(frozen=True)
class Pool:
    """A pooling layer, over an image as a convolution's."""

    channels: int
    hw: int
    hw_out: int


@dataclass(frozen=True)
class FullyConnected:
    """A fully connected layer."""

    name: str
    inputs: int
    outputs: int
    is_last: bool


@dataclass(frozen=True)
class Bottleneck:
    """A residual block: three convolutions, and one beside them where the shape changes."""

    branch: tuple[Convolution, ...]
    shortcut: Convolution | None


Layer = Convolution | Pool | FullyConnected | Bottleneck


class Convolutional(WholeModel):
    """A convolutional network whose step is data-parallel."""

    REFUSES: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"),
        "means nothing here; set data_parallel alone",
    )

    dtype: Dtype = Field(default="fp32", description=DTYPE)
    global_batch: Count | None = Field(default=None, description="samples of a step over all ranks (strong scaling)")
    batch_per_replica: Count | None = Field(default=None, description="samples of a step of a rank (weak scaling)")
    image: Count = Field(description="pixels along a side of an image")
    image_channels: Count = Field(default=3, description="channels of an image")
    layers: tuple[Entry, ...] = Field(description="layers from first to last")
    batch_norm: bool = Field(default=False, description="convolutions are normalised, and then have no bias")
    classifier_bias: bool = Field(default=True, description="whether the last linear layer has a bias")
    strided_window: Literal[1, 3] = Field(default=3, description="window that strides in a bottleneck")
    convolutions_only: bool = Field(
        default=False,
        description="a synthetic step: convolutions and the reductions of their gradients and of their normalisations; "
        "linear layers, all else that computes, and the optimizer are left out",
    )
    input_per_sample: Seconds = Field(
        default=0.0, description="time of a rank's input pipeline for a sample, beside the step where the host is free"
    )
    optimizer: Literal["sgd", "none"] = Field(
        default="sgd", description="what steps the parameters; none leaves it out"
    )

    @model_validator(mode="after")
    def _divides(self) -> "Convolutional":
        if (self.global_batch is None) == (self.batch_per_replica is None):
            raise ValueError("give one of global_batch (strong scaling) and batch_per_replica (weak scaling)")
        if self.global_batch is not None and self.global_batch < self.data_parallel:
            raise ValueError(
                f"global_batch {self.global_batch} is smaller than data_parallel {self.data_parallel}: a rank needs a "
                f"sample; use at most {self.global_batch} ranks, or give batch_per_replica instead"
            )
        if self.global_batch is not None and self.global_batch % self.data_parallel:
            raise ValueError(
                f"global_batch {self.global_batch} does not divide over data_parallel {self.data_parallel} ranks; "
                f"use a multiple of {self.data_parallel}"
            )
        if self.input_per_sample < 0:
            raise ValueError(f"input_per_sample {self.input_per_sample} s is negative; give a time of zero or more")
        assert self.built
        return self

    @property
    def samples(self) -> int:
        """Samples of a step, over all ranks."""
        return self.local_batch * self.data_parallel

    @property
    def local_batch(self) -> int:
        """Samples of a rank in a step."""
        return self.batch_per_replica or (self.global_batch or 0) // self.data_parallel

    @cached_property
    def built(self) -> tuple[Layer, ...]:
        """The layers with their images, in forward order."""
        return tuple(_built(self))

    @property
    def buffers(self) -> tuple[int, ...]:
        """Parameters of every buffer, in forward order."""
        return tuple(count for layer in self.built for count in self.buffers_of(layer))

    def buffers_of(self, layer: Layer) -> tuple[int, ...]:
        """Return the parameters of the buffers of a layer; backward makes their gradients in the opposite order."""
        if isinstance(layer, Bottleneck):
            parts = (*((layer.shortcut,) if layer.shortcut else ()), *layer.branch)
            return tuple(count for part in parts for count in self.buffers_of(part))
        if isinstance(layer, Convolution):
            return (layer.num_parameters, *((layer.c_out,) * (2 if self.batch_norm else 1)))
        if isinstance(layer, FullyConnected):
            bias = (layer.outputs,) if self.classifier_bias or not layer.is_last else ()
            return () if self.convolutions_only else (layer.inputs * layer.outputs, *bias)
        return ()

    def outputs_of(self, layer: Convolution) -> int:
        """Return the elements that a convolution makes on a rank."""
        return self.local_batch * layer.c_out * layer.hw_out**2

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""
        return sum(self.buffers)

    def moments(self) -> Iterator[Moment]:
        """Tell what a rank holds when backward begins; gradients have buffers that stay."""
        parameters = float(self.num_parameters * self.item_bytes)
        _, kept_bytes = self._written
        held = {"parameters": parameters, "gradients": parameters, "activations": kept_bytes}
        yield Moment(0, "the beginning of backward", held)

    def program(self) -> Program:
        """Write the graph that every rank runs, in one role."""
        groups = (self.mesh.groups("world"),)
        return Program(self.name, (self._written[0],), np.zeros(self.num_ranks, np.int64), groups)

    @cached_property
    def _written(self) -> tuple[ExecutionGraph, float]:
        """A step of a rank, and the bytes that its layers keep for backward."""
        graph = GraphBuilder()
        if self.input_per_sample:
            columns = {"time_source": TimeSource.GIVEN, "role": NodeRole.INPUT}
            graph.add((), name="input", phase="input", duration_s=self.input_per_sample * self.local_batch, **columns)
        gradients = Gradients(self.gradient_bucket, self.item_bytes)
        tape = AutogradTape(Cursor(graph), self.dtype, gradients)
        bucket = Bucket("dense", GradientSync(0, self.data_parallel))
        graph.enter("forward", NodeRole.FORWARD)
        x = NONE
        for layer in self.built:
            x = _write_layer(tape, x, layer, self, bucket)
        graph.enter("backward", NodeRole.BACKWARD)
        tape.backward(x)
        gradients.flush(graph, bucket)
        if self.optimizer == "sgd" and not self.convolutions_only:
            graph.enter("optimizer", NodeRole.OPTIMIZER)
            final = gradients.final if self.data_parallel > 1 else gradients.final[-1:]
            for node, count in zip(final, _steps(self), strict=True):
                graph.compute(kernel("sgd", dtype=self.dtype, parameters=count), after=(node,))
        return graph.build(), tape.kept_bytes


def _built(workload: Convolutional) -> Iterator[Layer]:
    hw, channels, flat = workload.image, workload.image_channels, False
    for number, entry in enumerate(workload.layers):
        name, width = f"{entry.kind}_{number}", entry.channels or 0
        if flat and entry.kind != "linear":
            raise ValueError(f"layers.{number}: a {entry.kind} cannot follow a linear layer; put it before")
        if entry.kind == "linear":
            inputs = channels if flat else channels * hw * hw
            yield FullyConnected(name, inputs, width, is_last=number == len(workload.layers) - 1)
            channels, flat = width, True
        elif entry.kind == "pool":
            out = 1 if entry.window is None else _side(hw, entry, number)
            yield Pool(channels, hw, out)
            hw = out
        elif entry.kind == "convolution":
            out = _side(hw, entry, number)
            yield Convolution(name, channels, width, entry.window or 1, entry.stride, hw, out)
            channels, hw = width, out
        else:
            for block in range(entry.blocks):
                stride, strided = entry.stride if block == 0 else 1, workload.strided_window
                found = _bottleneck(f"{name}_{block}", (channels, width), hw, stride=stride, strided=strided)
                yield found
                channels, hw = found.branch[-1].c_out, found.branch[-1].hw_out


def _side(hw: int, entry: Entry, number: int) -> int:
    """Pixels along a side of what leaves a window: ``(hw + 2 padding - window) // stride + 1``."""
    window = entry.window or 1
    around = (window - 1) // 2 if entry.padding is None else entry.padding
    out = (hw + 2 * around - window) // entry.stride + 1
    if out < 1:
        raise ValueError(f"layers.{number}: a window of {window} is larger than the image of {hw} that is left")
    return out


def _bottleneck(name: str, channels: tuple[int, int], hw: int, *, stride: int, strided: int) -> Bottleneck:
    """A block of so many channels before and inside; one beside the branch where the shape changes."""
    enters, width = channels
    leaves, small = _EXPANSION * width, -(-hw // stride)
    between = small if strided == 1 else hw
    branch = (
        Convolution(f"{name}_a", enters, width, 1, stride if strided == 1 else 1, hw, between),
        Convolution(f"{name}_b", width, width, 3, stride if strided == 3 else 1, between, small),
        Convolution(f"{name}_c", width, leaves, 1, 1, small, small),
    )
    changes = enters != leaves or stride > 1
    return Bottleneck(
        branch, Convolution(f"{name}_shortcut", enters, leaves, 1, stride, hw, small) if changes else None
    )


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


def _write_layer(tape: AutogradTape, x: int, layer: Layer, workload: Convolutional, bucket: Bucket) -> int:
    if isinstance(layer, Bottleneck):
        return _write_bottleneck(tape, x, layer, workload, bucket)
    if isinstance(layer, Convolution):
        return _write_activated(tape, _write_convolution(tape, x, layer, workload, bucket), layer, workload)
    if workload.convolutions_only:
        return x
    if isinstance(layer, Pool):
        elements, made = (workload.local_batch * layer.channels * hw**2 for hw in (layer.hw, layer.hw_out))
        y = pointwise(tape, x, ("pool_fwd", "pool_bwd"), name="pool", elements=elements)
        tape.save_for_backward(elements)
        tape.save_for_backward(made, _INDEX_BYTES)
        return y
    return _write_linear(tape, x, layer, workload, bucket)


def _write_linear(tape: AutogradTape, x: int, layer: FullyConnected, workload: Convolutional, bucket: Bucket) -> int:
    batch = workload.local_batch
    x = Linear(name=layer.name, tokens=batch, inputs=layer.inputs, outputs=layer.outputs, bucket=bucket).write(tape, x)
    _accumulate(tape, workload.buffers_of(layer)[1:], bucket)
    if layer.is_last:
        return x
    return pointwise(tape, x, ("relu_fwd", "relu_bwd"), name=f"{layer.name}_relu", elements=batch * layer.outputs)


def _accumulate(tape: AutogradTape, counts: tuple[int, ...], bucket: Bucket) -> None:
    """Let backward accumulate gradients of buffers that are made with that of the output here."""

    def backward(dy: int) -> int:
        for count in reversed(counts):
            tape.accumulate_gradient(lambda node: node, dy, count, bucket)
        return dy

    tape.push(backward)


def _write_convolution(tape: AutogradTape, x: int, layer: Convolution, workload: Convolutional, bucket: Bucket) -> int:
    """A convolution with its normalisation or bias; the gradient of the weights comes before that of the input."""
    shape = {
        "batch": workload.local_batch, "c_in": layer.c_in, "c_out": layer.c_out, "kernel": layer.window,
        "stride": layer.stride, "hw": layer.hw,
    }  # fmt: skip

    def weights(node: int) -> int:
        name, role = f"{layer.name}_weight_gradient", NodeRole.WEIGHT_GRADIENT
        return tape.kernel("conv2d_bwd_weight", node, name=name, role=role, **shape)

    def backward(dy: int) -> int:
        tape.accumulate_gradient(weights, dy, layer.num_parameters, bucket)
        if x == NONE:
            return dy
        name, role = f"{layer.name}_input_gradient", NodeRole.ACTIVATION_GRADIENT
        return tape.kernel("conv2d_bwd_data", dy, name=name, role=role, **shape)

    tape.push(backward)
    tape.save_for_backward(workload.local_batch * layer.c_in * layer.hw**2)
    y = tape.kernel("conv2d_fwd", x, name=layer.name, role=NodeRole.WEIGHTS, **shape)
    _accumulate(tape, workload.buffers_of(layer)[1:], bucket)
    if not workload.batch_norm or workload.convolutions_only:
        return y
    elements = workload.outputs_of(layer)
    tape.save_for_backward(elements)
    return pointwise(tape, y, ("batch_norm_fwd", "batch_norm_bwd"), name=f"{layer.name}_norm", elements=elements)


def _write_activated(tape: AutogradTape, x: int, layer: Convolution, workload: Convolutional) -> int:
    if workload.convolutions_only:
        return x
    elements = workload.outputs_of(layer)
    return pointwise(tape, x, ("relu_fwd", "relu_bwd"), name=f"{layer.name}_relu", elements=elements)


def _write_bottleneck(tape: AutogradTape, x: int, block: Bottleneck, workload: Convolutional, bucket: Bucket) -> int:
    """``relu(branch(x) + shortcut(x))``; backward goes through the branch first, then the shortcut, and adds up."""
    *first, last = block.branch
    branch, shortcut = tape.branch(), tape.branch()

    def add(node: int, other: int, name: str) -> int:
        if workload.convolutions_only:
            return tape.graph.join((node, other), name=name)
        return tape.kernel("add", node, other, name=name, elements=workload.outputs_of(last))

    def backward(dy: int) -> int:
        return add(branch.backward(dy), shortcut.backward(dy), "residual_gradient")

    shortcut_y = x if block.shortcut is None else _write_convolution(shortcut, x, block.shortcut, workload, bucket)
    y = x
    for part in first:
        y = _write_activated(branch, _write_convolution(branch, y, part, workload, bucket), part, workload)
    y = _write_convolution(branch, y, last, workload, bucket)
    tape.push(backward)
    # The input is kept once, for the branch and for the convolution beside it.
    enters = workload.local_batch * block.shortcut.c_in * block.shortcut.hw**2 if block.shortcut else 0
    tape.kept_bytes += branch.kept_bytes + shortcut.kept_bytes - enters * tape.item_bytes
    return _write_activated(tape, add(y, shortcut_y, "residual"), last, workload)
