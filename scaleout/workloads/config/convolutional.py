"""Convolutional networks, data-parallel: a list of layers to convolutions, their images and their parameter buffers.

A network is convolutions, pools, stages of bottleneck blocks and linear layers, in the order of the file. Each
convolution, linear layer and bias has its parameters in one buffer, each batch normalisation in two, scale and bias.
The batch is the job's (strong scaling) or a replica's (weak scaling).

Source: He et al., Deep Residual Learning, CVPR 2016 (bottleneck blocks; they stride in the first window, of 1, and
torchvision in the second, of 3); Krizhevsky, arXiv:1404.5997 (AlexNet as one tower).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field, model_validator

from scaleout.config.units import Seconds
from scaleout.config.validated import Config
from scaleout.workloads.config.parallel import Count, Dtype, Parallel

_EXPANSION = 4
"""Channels that leave a bottleneck block, over those inside."""


class Entry(Config):
    """One entry of `layers`; a pool without a window is over the whole image."""

    kind: Literal["convolution", "pool", "bottleneck", "linear"]
    channels: Count | None = None
    window: Count | None = None
    stride: Count = 1
    padding: int | None = Field(default=None, ge=0, strict=True, description="half the window if unset")
    blocks: Count = 1

    @model_validator(mode="after")
    def _is_complete(self) -> "Entry":
        if (self.channels is None) != (self.kind == "pool"):
            raise ValueError(f"a {self.kind} {'has the channels that enter it' if self.channels else 'needs channels'}")
        if self.kind == "convolution" and self.window is None:
            raise ValueError("a convolution needs a window, such as 3")
        return self


@dataclass(frozen=True)
class Convolution:
    """One convolution over a square image, with what stands behind it.

    Attributes
    ----------
    name : str
    c_in, c_out, window, stride : int
    hw, hw_out : int
        Pixels along a side of what enters and of what leaves.
    """

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
    """A pooling layer."""

    channels: int
    hw: int
    hw_out: int


@dataclass(frozen=True)
class Linear:
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


Layer = Convolution | Pool | Linear | Bottleneck


class Convolutional(Parallel):
    """A convolutional network whose step is data-parallel."""

    kind: Literal["convolutional"]
    dtype: Dtype = "fp32"
    global_batch: Count | None = Field(default=None, description="samples of a step over all ranks (strong scaling)")
    batch_per_replica: Count | None = Field(default=None, description="samples of a step of a rank (weak scaling)")
    image: Count = Field(description="pixels along a side of an image")
    image_channels: Count = 3
    layers: tuple[Entry, ...]
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
    optimizer: Literal["sgd", "none"] = "sgd"

    @model_validator(mode="after")
    def _divides(self) -> "Convolutional":
        for key in ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel"):
            if getattr(self, key) != 1:
                raise ValueError(f"{key} {getattr(self, key)} means nothing here; set data_parallel alone")
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
        if isinstance(layer, Linear):
            bias = (layer.outputs,) if self.classifier_bias or not layer.is_last else ()
            return () if self.convolutions_only else (layer.inputs * layer.outputs, *bias)
        return ()

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""
        return sum(self.buffers)


def _built(workload: Convolutional) -> Iterator[Layer]:
    hw, channels, flat = workload.image, workload.image_channels, False
    last = len(workload.layers) - 1
    for number, entry in enumerate(workload.layers):
        name = f"{entry.kind}_{number}"
        if entry.kind == "linear":
            inputs = channels if flat else channels * hw * hw
            yield Linear(name, inputs, entry.channels or 0, number == last)
            channels, flat = entry.channels or 0, True
            continue
        if flat:
            raise ValueError(f"layers.{number}: a {entry.kind} cannot follow a linear layer; put it before")
        if entry.kind == "pool":
            out = 1 if entry.window is None else _side(hw, entry.window, entry.stride, entry.padding, number)
            yield Pool(channels, hw, out)
            hw = out
        elif entry.kind == "convolution":
            found = _convolution(name, (channels, entry.channels or 0), hw, entry, number)
            yield found
            channels, hw = found.c_out, found.hw_out
        else:
            for block in range(entry.blocks):
                stride = entry.stride if block == 0 else 1
                found_block = _bottleneck(
                    f"{name}_{block}",
                    (channels, entry.channels or 0),
                    hw,
                    stride=stride,
                    strided=workload.strided_window,
                )
                yield found_block
                channels, hw = found_block.branch[-1].c_out, found_block.branch[-1].hw_out


def _side(hw: int, window: int, stride: int, padding: int | None, number: int) -> int:
    """Pixels along a side of what leaves a window: ``(hw + 2 padding - window) // stride + 1``."""
    around = (window - 1) // 2 if padding is None else padding
    out = (hw + 2 * around - window) // stride + 1
    if out < 1:
        raise ValueError(f"layers.{number}: a window of {window} is larger than the image of {hw} that is left")
    return out


def _convolution(name: str, channels: tuple[int, int], hw: int, entry: Entry, number: int) -> Convolution:
    window = entry.window or 1
    return Convolution(
        name, *channels, window, entry.stride, hw, _side(hw, window, entry.stride, entry.padding, number)
    )


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
