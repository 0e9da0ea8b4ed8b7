"""Diffusion transformers: patches of a latent image as tokens, and a condition that scales and shifts every block.

Each half of a block normalises without parameters, is modulated by the condition (adaLN-Zero: a GEMM of the condition
gives six vectors a block), and is gated before it is added. Attention sees all tokens. One pass is a training step of
noise prediction, or one denoising step (`prefill`). Pipelines send the condition along with the activations; its bytes,
one token's, are left out.

Source: Peebles and Xie, DiT, arXiv:2212.09748, Table 1 and Sec. 3.2.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from pydantic import Field, model_validator

from scaleout.config.units import Count
from scaleout.workloads.config.layered import EMBEDDING, ENDS, HEAD
from scaleout.workloads.families.transformer import Transformer
from scaleout.workloads.generate import transformer as blocks
from scaleout.workloads.generate.attention import Heads, attend
from scaleout.workloads.generate.autograd_tape import AutogradTape
from scaleout.workloads.generate.layers import COPY_IN, SUM_OUT, Layer, exchange, phased, pointwise, residual
from scaleout.workloads.generate.linear import Linear
from scaleout.workloads.generate.units import Rank

FREQUENCIES = 256
"""Sines and cosines that a time step is told in; DiT's code."""


class DiffusionTransformer(Transformer):
    """A transformer over patches with adaptive normalisation."""

    REFUSES: ClassVar[Mapping[str, str]] = {
        "context_parallel": "balances causal attention, which this is not; set context_parallel to 1",
        "sequence_parallel": "would cut the tokens that one condition modulates; set sequence_parallel to false",
        "causal": "is of decoders, and patches attend to all others; leave it out",
        "vocabulary": "counts words, and patches have none; leave it out",
        "latent": "is attention of low rank; give latent_size for the image",
        **dict.fromkeys(
            (
                "window",
                "full_attention_every",
                "predicted_ahead",
                "attention_sinks",
                "query_key_norm",
                "post_norms",
                "halves",
                "attention_biases",
                "head_bias",
                "positions",
            ),
            "is of decoders; leave it out",
        ),
    }

    causal: bool = Field(default=False, description="false: patches attend to all others")

    latent_size: Count = Field(description="rows and columns of the latent image")
    channels: Count = Field(default=4, description="of the latent image")
    patch: Count = Field(default=2, description="rows and columns of a patch")
    classes: Count = Field(default=1000, description="labels that condition the image; one more stands for none")

    @model_validator(mode="after")
    def _cuts_patches(self) -> "DiffusionTransformer":
        patches = (self.latent_size // self.patch) ** 2
        if self.latent_size % self.patch or self.sequence != patches:
            raise ValueError(
                f"latent_size {self.latent_size} in patches of {self.patch} gives {patches} tokens, and sequence is "
                f"{self.sequence}; choose a patch that divides, and sequence as the number of patches"
            )
        if self.mode == "decode":
            raise ValueError("mode decode makes one token at a time; a denoising step is mode prefill")
        return self

    @property
    def pixels(self) -> int:
        """Elements of a patch."""
        return self.patch**2 * self.channels

    def parameters_of(self, part: str) -> int:
        """Parameters of a part; positions are fixed, and norms have none."""
        h, biases = self.hidden, int(self.biases)
        if part == EMBEDDING:
            return (self.pixels + 1) * h + (FREQUENCIES + 1) * h + (h + 1) * h + (self.classes + 1) * h
        if part == HEAD:
            return 2 * h * (h + 1) + (h + 1) * 2 * self.pixels
        attention = self.attention_parameters + 4 * h * biases
        feed_forward = self.feed_forward_parameters(part) + (self.gates * self.ffn + h) * biases
        return attention + feed_forward + 6 * h * (h + 1)

    def active_parameters_of(self, part: str) -> int:
        """Parameters of a part that multiply a token, and a token's share of those that multiply the condition."""
        h, images = self.hidden, self.sequence
        if part in ENDS:
            patches, condition = (1, FREQUENCIES * h + h * h) if part == EMBEDDING else (2, 2 * h * h)
            return patches * self.pixels * h + condition // images
        return self.attention_parameters + self.feed_forward_parameters(part) + 6 * h * h // images

    def write_embedding(self, tape: AutogradTape, x: int, rank: Rank[Any]) -> int:
        """Project patches, and make the condition of time step and label."""
        tape.enter("embedding")
        images, of = self.microbatch_size, partial(Linear, bucket=rank.dense, bias=True)
        rows = self.classes + 1

        def label_gradient(dy: int) -> int:
            dw = tape.kernel("embedding_bwd", dy, tokens=images, hidden=self.hidden, vocab=rows)
            tape.accumulate_gradient(lambda node: node, dw, rows * self.hidden, rank.dense)
            return dw

        tape.hold(rows * self.hidden, rank.dense)
        tape.push(label_gradient, scratch_bytes=rows * self.hidden * tape.item_bytes)
        tape.kernel("embedding_fwd", x, name="label", tokens=images, hidden=self.hidden)
        node = of(name="time_1", tokens=images, inputs=FREQUENCIES, outputs=self.hidden).write(tape, None)
        node = pointwise(tape, node, ("silu_fwd", "silu_bwd"), name="time", elements=images * self.hidden)
        of(name="time_2", tokens=images, inputs=self.hidden, outputs=self.hidden).write(tape, node)
        patches = of(name="patches", tokens=self.local_tokens, inputs=self.pixels, outputs=self.hidden)
        return patches.write(tape, None)

    def write_layer(self, tape: AutogradTape, x: int, rank: Rank[Any], number: int) -> int:
        """Write the modulation, then attention and the feed-forward network, each modulated, gated and added."""
        label = f"layer_{number}"
        x = modulation(tape, x, rank, vectors=6, label=label)
        heads = Heads(rank)
        halves: Mapping[str, Layer] = {
            "attention": partial(attend, heads=heads, label=f"{label}_attention"),
            "feed_forward": partial(blocks.feed_forward, rank=rank, label=f"{label}_feed_forward"),
        }
        for phase, block in halves.items():
            branch = partial(_modulated, rank=rank, block=block, label=f"{label}_{phase}")
            x = phased(tape, x, partial(residual, branch=branch, elements=rank.elements), phase=phase)
        return x

    def write_head(self, tape: AutogradTape, x: int, rank: Rank[Any]) -> int:
        """Modulate, project to the noise and its variance, and compare in training."""
        x = modulation(tape, x, rank, vectors=2, label="head")
        x = _shifted(tape, x, rank)
        made = 2 * self.pixels
        x = Linear(
            name="head", tokens=self.local_tokens, inputs=self.hidden, outputs=made, bucket=rank.dense, bias=True
        ).write(tape, x)
        if self.mode != "training":
            return x
        return pointwise(tape, x, ("add", "add"), name="noise_loss", elements=self.local_tokens * made)


def modulation(tape: AutogradTape, x: int, rank: Rank[DiffusionTransformer], *, vectors: int, label: str) -> int:
    """Make vectors that scale, shift and gate from the condition of each image, on every tensor-parallel rank."""
    model = rank.workload
    gemm = Linear(
        name=f"{label}_modulation", tokens=model.microbatch_size, inputs=model.hidden, outputs=vectors * model.hidden,
        bucket=rank.dense, bias=True,
    )  # fmt: skip
    return gemm.write(tape, x)


def _shifted(tape: AutogradTape, x: int, rank: Rank[DiffusionTransformer]) -> int:
    """Normalise without parameters, then scale and shift."""
    tokens, hidden = rank.tokens, rank.workload.hidden
    kernels = ("layer_norm_fwd", "layer_norm_bwd")
    x = pointwise(tape, x, kernels, makes=rank.elements, tokens=tokens, hidden=hidden)
    tape.save_for_backward(rank.elements)
    x = pointwise(tape, x, ("mul_scalar", "add"), name="shift", makes=rank.elements, elements=rank.elements)
    tape.save_for_backward(rank.elements)
    return x


def _modulated(tape: AutogradTape, x: int, rank: Rank[DiffusionTransformer], block: Layer, label: str) -> int:
    """Run a block on its modulated input, its weights cut over the tensor axis, and gate what it makes."""
    buffer = rank.activations
    x = _shifted(tape, x, rank)
    if buffer.degree == 1:
        x = block(tape, x)
    else:
        x = block(tape, exchange(tape, x, COPY_IN, buffer, name=label))
        x = exchange(tape, x, SUM_OUT, buffer, name=label)
    x = pointwise(tape, x, ("mul_scalar", "add"), name="gate", makes=rank.elements, elements=rank.elements)
    tape.save_for_backward(rank.elements)
    return x
