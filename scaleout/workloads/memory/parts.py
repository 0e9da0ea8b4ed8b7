"""Parts of a model to what they hold: activations that layers keep for backward, and parameters.

Without a backward, what a part would keep for one is counted. See `generate.profile`.
"""

from dataclasses import dataclass, replace

from scaleout.workloads.families.layered import LayeredModel
from scaleout.workloads.generate.profile import StageProfile, profiles_of


@dataclass(frozen=True)
class Held:
    """What a part of a model holds on a rank.

    Attributes
    ----------
    kept_bytes : float
        Activations of one micro-batch, from its forward to the end of its backward.
    recompute_bytes, all_recompute_bytes : float
        What backward recomputes: the most of a part at a time, and of all parts together.
    parameters : tuple of int
        Of the dense bucket, and of the experts'.
    transient_bytes : float
        The most that backward makes beyond what is kept when it begins.
    weights : frozenset of (int, int)
        Outputs and inputs of the weights of which placeholders of gradients are held.
    """

    kept_bytes: float = 0.0
    recompute_bytes: float = 0.0
    all_recompute_bytes: float = 0.0
    parameters: tuple[int, int] = (0, 0)
    transient_bytes: float = 0.0
    weights: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def of(cls, profile: StageProfile, workload: LayeredModel) -> "Held":
        """Take it from a profile."""
        tape = profile.tape
        return cls(
            tape.kept_bytes,
            tape.recompute_bytes,
            tape.all_recompute_bytes,
            (tape.parameters.get("dense", 0), tape.parameters.get("experts", 0)),
            profile.transient_bytes if workload.transient_memory else 0.0,
            frozenset(tape.weights) if workload.placeholder_gradients else frozenset(),
        )

    def __add__(self, other: "Held") -> "Held":
        return Held(
            self.kept_bytes + other.kept_bytes,
            max(self.recompute_bytes, other.recompute_bytes),
            self.all_recompute_bytes + other.all_recompute_bytes,
            (self.parameters[0] + other.parameters[0], self.parameters[1] + other.parameters[1]),
            max(other.transient_bytes, self.transient_bytes - other.kept_bytes),  # backward begins with the other
            self.weights | other.weights,
        )

    def times(self, count: int) -> "Held":
        """Return what as many parts hold."""
        dense, experts = self.parameters
        if count == 0:
            return Held()
        parameters = (count * dense, count * experts)
        return replace(
            self,
            kept_bytes=count * self.kept_bytes,
            all_recompute_bytes=count * self.all_recompute_bytes,
            parameters=parameters,
        )


Units = tuple[tuple[Held, int], ...]
"""Parts of a stage in order, each with how many of it follow one another."""


def units_of_stages(workload: LayeredModel) -> list[Units]:
    """Return the embedding, the layers of each kind, and the head, as far as each stage has them."""
    profile_of, contents = profiles_of(workload, backward=True), workload.contents
    held = {
        kind: Held.of(profile_of(kind), workload)
        for kind in dict.fromkeys(kind for content in contents for kind, _ in content)
    }
    return [tuple((held[kind], count) for kind, count in content) for content in contents]
