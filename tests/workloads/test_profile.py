"""The key under which the profile of a part is kept holds all that changes the part, for every key of every family."""

import typing

import pytest
from pydantic import ValidationError
from strategies import examples

from scaleout.program.graph import NONE
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate.profile import NO_LAYERS, _Part, _profile, profile_key


def _has_layers(workload):
    return isinstance(workload, LayeredModel)


BASES = {
    "dense": ("llama-3-8b", {}),
    "sharded": ("llama-3-8b", {"zero": 3, "data_parallel": 4}),
    "cut": ("llama-3-8b", {"tensor_parallel": 2, "sequence_parallel": True, "context_parallel": 2}),
    "experts": ("mixtral-8x7b", {"expert_parallel": 2, "data_parallel": 4, "zero": 1}),
    "latent": ("deepseek-v3", {"batch_per_replica": 64}),
    "hybrid": ("mamba-2-hybrid-8b", {}),
    "diffusion": ("dit-xl-2", {}),
    "prefill": ("llama-3-8b", {"mode": "prefill"}),
}
"""Workloads, and how they are cut; families of layers that have none here are tried by a shipped workload of theirs."""
_TRIED = {load_workload(name).kind for name, _ in BASES.values()}
BASES |= {kind: (each.name, {}) for kind, each in examples().items() if kind not in _TRIED and _has_layers(each)}


def others(workload, key):
    """Other values that a key of a workload could have."""
    value, field = getattr(workload, key), type(workload).model_fields[key]
    words = [word for part in (field.annotation, *typing.get_args(field.annotation)) for word in typing.get_args(part)]
    found = [word for word in words if isinstance(word, str | int)]
    if isinstance(value, bool):
        found.append(not value)
    elif isinstance(value, int | float):
        found += [value * 2, value // 2, value + 1, 1]
    elif value is None:
        found += [1, 2, 4]
    return [None, *(other for other in found if other != value)]


def written(workload, kind):
    """What a part runs and holds, written anew; groups by name."""
    tied = workload.tied_parameters > 0 and workload.num_stages == 1 and kind in NO_LAYERS[:2]
    profile = _profile.__wrapped__(_Part((), kind, tied, workload.mode == "training", workload))
    tape = profile.tape
    found = [
        tape.kept_bytes, tape.recompute_bytes, tape.all_recompute_bytes, tape.operations_bytes,
        {name: count for name, count in tape.parameters.items() if count}, sorted(tape.weights),
    ]  # fmt: skip
    graphs = [profile.forward]
    if workload.mode == "training":
        backward, gradients = profile.backward
        graphs += [backward, *profile.split_backward]
        found += [gradients, profile.transient_bytes]
    for graph in graphs:
        kernels = [None if kernel == NONE else graph.kernels[kernel] for kernel in graph.kernel.tolist()]
        groups = [None if group == NONE else profile.families[group] for group in graph.group.tolist()]
        found.append((kernels, groups, graph.collective.tolist(), graph.bytes.tolist()))
    return found


def changed(workload, key):
    """Workloads in which a key has another value, where that can be."""
    for value in others(workload, key):
        try:
            yield type(workload).model_validate({**workload.given, key: value})
        except ValidationError:
            continue


@pytest.mark.parametrize(("name", "cut"), BASES.values(), ids=BASES)
def test_what_changes_a_part_changes_its_key(name, cut):
    """A key that the declared list leaves out may have any value: the part is the same, or what replaces the key is."""
    workload = load_workload(name, {"batch_per_replica": 4, "microbatch": 2} | cut)
    parts = [*NO_LAYERS, *sorted({workload.layer_kind(number) for number in range(workload.layers)})]
    before = {part: written(workload, part) for part in parts}
    tried = set()
    for key in type(workload).model_fields:
        for other in changed(workload, key):
            tried.add(key)
            for part in parts:
                layers = part not in NO_LAYERS
                if profile_key(other, layers=layers) == profile_key(workload, layers=layers):
                    assert written(other, part) == before[part], f"{key} {getattr(other, key)} changes {part}"
    assert {"gradient_bucket", "microbatch", "overlap_sends", "messages", "optimizer", "data_parallel", "zero"} <= (
        tried | {*workload.REFUSES}
    )
