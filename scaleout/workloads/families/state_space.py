"""Hybrids of state-space layers and attention: Mamba-2 mixers, attention and feed-forward networks in any order.

A mixer projects to values, gates, keys B and queries C of the state, and time steps; convolves them over time; scans
chunks of the sequence, whose work within chunks and on states are batched GEMMs (SSD); and projects back. Heads, inner
width and groups are cut over the tensor axis as attention's heads are.

Symbols: H heads of P channels; N state; G groups that share B and C; Q tokens of a chunk.
Source: Dao and Gu, Mamba-2, arXiv:2405.21060; Waleffe et al., arXiv:2406.07887 (hybrid, tensor parallelism).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from pydantic import Field, model_validator

from scaleout.config.units import Count
from scaleout.workloads.config.layered import ENDS
from scaleout.workloads.families.transformer import Transformer
from scaleout.workloads.generate import transformer as blocks
from scaleout.workloads.generate.attention import Heads, attend, kept_tokens
from scaleout.workloads.generate.autograd_tape import AutogradTape
from scaleout.workloads.generate.layers import activation, gemm, norm, phased, pointwise, residual
from scaleout.workloads.generate.linear import Linear
from scaleout.workloads.generate.units import Rank

KINDS = {"M": "mamba", "*": "attention", "-": "feed_forward"}
"""Letters of `pattern`, as Megatron-LM's hybrid layer pattern has them."""


class StateSpace(Transformer):
    """Mamba-2 mixers, attention and feed-forward networks, one a layer."""

    REFUSES: ClassVar[Mapping[str, str]] = {
        "context_parallel": "would cut the sequence that a scan carries its state along; set context_parallel to 1",
        "causal": "would leave scans, which see the tokens before, beside attention to all; leave it out",
        **dict.fromkeys(
            ("window", "full_attention_every", "post_norms", "halves", "predicted_ahead"),
            "is written for layers of attention and a feed-forward network, not for one or the other; leave it out",
        ),
    }

    heads: Count = Field(default=1, description="of attention, where the pattern has some")
    ffn: Count = Field(default=1, description="width of feed-forward networks, where the pattern has some")

    pattern: str = Field(description="a letter a layer: M a Mamba-2 mixer, * attention, - a feed-forward network")
    state_size: Count = Field(default=128, description="N")
    state_head_size: Count = Field(default=64, description="P")
    state_groups: Count = Field(default=8, description="G")
    expand: Count = Field(default=2, description="inner width over hidden")
    convolution: Count = Field(default=4, description="tokens that the convolution over time sees")
    chunk: Count = Field(default=256, description="Q; shorter sequences are one chunk")

    @model_validator(mode="after")
    def _has_a_letter_a_layer(self) -> "StateSpace":
        unknown = sorted(set(self.pattern) - set(KINDS))
        if unknown or len(self.pattern) != self.layers:
            raise ValueError(
                f"pattern {self.pattern!r} has {len(self.pattern)} letters for layers {self.layers}"
                f"{f', {unknown[0]!r} among them' if unknown else ''}; give one of {', '.join(KINDS)} for each layer"
            )
        if self.inner % self.state_head_size or self.state_heads % self.state_groups:
            raise ValueError(
                f"{self.inner} inner channels do not divide into heads of {self.state_head_size}, or those into "
                f"{self.state_groups} groups; choose state_head_size and state_groups that divide"
            )
        if self.mode != "decode" and self.sequence % min(self.chunk, self.sequence):
            raise ValueError(f"sequence {self.sequence} does not divide into chunks of {self.chunk}; choose a divisor")
        return self

    @property
    def inner(self) -> int:
        """Inner width of a mixer, H P."""
        return self.expand * self.hidden

    @property
    def state_heads(self) -> int:
        """H."""
        return self.inner // self.state_head_size

    @property
    def convolved(self) -> int:
        """Channels that the convolution sees: values, B and C."""
        return self.inner + 2 * self.state_groups * self.state_size

    @property
    def sizes(self) -> Mapping[str, int]:
        """Keys that the tensor axis cuts, and their sizes."""
        used = {"heads": "*", "kv_heads": "*", "ffn": "-", "vocabulary": ""}
        cut = {key: size for key, size in super().sizes.items() if used[key] in self.pattern}
        return cut | ({"state_groups": self.state_groups} if "M" in self.pattern else {})

    def layer_kind(self, layer: int) -> str:
        """Name what a layer is."""
        return KINDS[self.pattern[layer]]

    def cache_bytes(self, kind: str) -> int:
        """Bytes that a layer keeps between tokens: keys and values, or states and the convolution's last tokens."""
        if kind != "mamba":
            return super().cache_bytes(kind) if kind == "attention" else 0
        states = self.inner * self.state_size + (self.convolution - 1) * self.convolved
        return states // self.tensor_parallel * self.item_bytes

    def write_layer(self, tape: AutogradTape, x: int, rank: Rank[Any], number: int) -> int:
        """Write a mixer, attention or a feed-forward network, added to what it reads."""
        kind, label = self.layer_kind(number), f"layer_{number}"
        mixers = {
            "mamba": partial(mixer, rank=rank, label=label),
            "attention": partial(attend, heads=Heads(rank), label=label),
            "feed_forward": partial(blocks.feed_forward, rank=rank, label=label),
        }
        block = partial(blocks.tensor_parallel, rank=rank, block=mixers[kind], label=label)
        return phased(tape, x, partial(residual, branch=block, elements=rank.elements), phase=kind)

    def parameters_of(self, part: str) -> int:
        """Parameters of a part; a layer is a mixer, attention or a feed-forward network, each with a norm."""
        if part in ENDS:
            return super().parameters_of(part)
        if part == "mamba":
            projected = 2 * self.inner + 2 * self.state_groups * self.state_size + self.state_heads
            small = self.convolved * (self.convolution + 1) + 3 * self.state_heads + self.inner
            return self.hidden * (projected + self.inner) + small + self.norm_width
        own = self.attention_parameters if part == "attention" else self.feed_forward_parameters(part)
        return own + self.norm_width + self.addends_of(part)

    def addends_of(self, part: str) -> int:
        """Parameters of a layer of a kind that multiply nothing, but for those of a mixer, which are few."""
        if part == "mamba":
            return 0
        return self.attention_addends if part == "attention" else self.feed_forward_addends(part)

    def mixing_flops(self, kind: str) -> int:
        """Those of attention, or of a scan's batched GEMMs, chunks in full (SSD, Sec. 6)."""
        if kind != "mamba":
            return super().mixing_flops(kind) if kind == "attention" else 0
        chunk = 1 if self.mode == "decode" else min(self.chunk, self.sequence)
        return 2 * (chunk * (self.state_groups * self.state_size + self.inner) + 2 * self.inner * self.state_size)


def mixer(tape: AutogradTape, x: int, rank: Rank[Any], label: str) -> int:
    """Project, convolve, scan, gate and normalise, and project back, for a rank's heads."""
    model: StateSpace = rank.workload
    degree, tokens = model.tensor_parallel, model.local_tokens
    inner, heads, convolved = model.inner // degree, model.state_heads // degree, model.convolved // degree
    of = partial(Linear, tokens=tokens, bucket=rank.dense)
    into = of(
        name=f"{label}_in", inputs=model.hidden, outputs=inner + convolved + heads, kept_tokens=kept_tokens(rank),
        gathered="input" if model.sequence_parallel else "",
    )  # fmt: skip
    x = into.write(tape, x)
    learnt = convolved * (model.convolution + 1) + 3 * heads

    def convolution_gradient(dy: int) -> int:
        dx = tape.kernel("silu_bwd", dy, name="convolution_gradient", elements=tokens * convolved)
        tape.accumulate_gradient(lambda node: node, dx, learnt, rank.dense)
        return dx

    # A depthwise convolution over a few tokens and SiLU are one kernel, which reads and writes each channel once.
    tape.hold(learnt, rank.dense)
    tape.push(convolution_gradient, makes=tokens * convolved)
    tape.save_for_backward(tokens * convolved)
    x = tape.kernel("silu_fwd", x, name="convolution", elements=tokens * convolved)
    tape.save_for_backward(tokens * (inner + convolved))
    x = _step(tape, x, model) if model.mode == "decode" else _scan(tape, x, model)
    x = activation(tape, x, "swiglu", elements=tokens * inner)  # the gate
    x = norm(tape, x, "rms_norm", (tokens, inner), bucket=rank.dense)
    out = of(
        name=f"{label}_out", inputs=inner, outputs=model.hidden, saved=False,
        gathered="gradient" if model.sequence_parallel else "",
    )  # fmt: skip
    return out.write(tape, x)


def _step(tape: AutogradTape, x: int, model: StateSpace) -> int:
    """One token: every state decays, takes the token's and is read."""
    states = model.microbatch_size * model.inner // model.tensor_parallel * model.state_size
    return pointwise(tape, x, ("add", "add"), name="state_step", elements=states)


def _scan(tape: AutogradTape, x: int, model: StateSpace) -> int:
    """Chunks of the sequence: C B^T and its GEMM with the values within them, states made, passed on and read."""
    chunk = min(model.chunk, model.sequence)
    chunks = model.local_tokens // chunk
    groups, heads = (of // model.tensor_parallel * chunks for of in (model.state_groups, model.state_heads))
    size, state = model.state_head_size, model.state_size
    x = gemm(tape, x, (chunk, chunk, state), name="chunk_scores", groups=groups)
    x = gemm(tape, x, (chunk, size, chunk), name="chunk_values", groups=heads)
    x = gemm(tape, x, (state, size, chunk), name="chunk_states", groups=heads)
    x = pointwise(tape, x, ("add", "add"), name="state_passing", elements=heads * state * size)
    tape.save_for_backward(heads * state * size, 4)
    return gemm(tape, x, (chunk, size, state), name="state_outputs", groups=heads)
