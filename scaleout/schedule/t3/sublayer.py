"""A sliced GEMM and its all-reduce, as T3 configures them.

| configuration | GEMM and reduce-scatter | then |
|---|---|---|
| sequential | one after the other | all-gather |
| split | concurrent, some compute units for each | all-gather by these units |
| ideal | concurrent, no contention | all-gather |
| ideal-nmc | the same, additions near the memory | all-gather |
| t3 | tracked and triggered, memory round-robin | all-gather |
| t3-mca | tracked and triggered, memory compute-first | all-gather |

Source: T3, Sec. 5.3; `split`: Sec. 3.2.1 and Fig. 6.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from scaleout.cluster.device.spec import Device
from scaleout.errors import ConfigError
from scaleout.schedule.t3.gemm import TRIGGER_BYTES, Gemm, Staged, constants_of, regions_of, stage
from scaleout.schedule.t3.memory import COMPUTE_FIRST, ROUND_ROBIN, Policy, Traffic, threshold_of
from scaleout.schedule.t3.overlap import Overlapped, overlap
from scaleout.schedule.t3.ring import Ring, all_gather_s, all_gather_traffic, reduce_scatter_s, reduce_scatter_traffic


@dataclass(frozen=True)
class Sublayer:
    """A GEMM whose output is reduced over a ring.

    Attributes
    ----------
    isolated_s : float
        What the GEMM takes isolated.
    trigger_bytes : float
        Most that copy engines send as one.
    policy : Policy, optional
        Of the memory, instead of a configuration's own.
    split_units : int
        Compute units for the collective under `split`.
    """

    gemm: Gemm
    ring: Ring
    device: Device
    isolated_s: float
    trigger_bytes: float = TRIGGER_BYTES
    policy: Policy | None = None
    split_units: int = 8


@dataclass(frozen=True)
class Outcome:
    """How long a sub-layer takes under a configuration, and what its memory moves.

    `reduce_scatter_s` is what the reduce-scatter takes isolated, of which `fused_s - gemm_s` is exposed.
    """

    gemm_s: float
    reduce_scatter_s: float
    all_gather_s: float
    fused_s: float
    traffic: Traffic
    overlapped: Overlapped | None = None

    @property
    def total_s(self) -> float:
        """GEMM, reduce-scatter and all-gather."""
        return self.fused_s + self.all_gather_s


def _parts(layer: Sublayer, *, units: int | None = None, others: int | None = None) -> tuple[Staged, Outcome]:
    """Return the GEMM, and it and its collectives one after the other, on all units or a share for each."""
    device = layer.device
    size, all_units = layer.gemm.output_bytes, device.num_sms
    staged = stage(layer.gemm, device, units=units, isolated_s=layer.isolated_s)
    gemm_s = staged.isolated_s(device.memory_bytes_per_s)
    scatter_s = reduce_scatter_s(size, layer.ring, device, units=others or all_units)
    traffic = Traffic(float(staged.read_bytes.sum()), float(staged.write_bytes.sum()))
    traffic += reduce_scatter_traffic(size, layer.ring.ranks) + all_gather_traffic(size, layer.ring.ranks)
    gather_s = all_gather_s(size, layer.ring, device, units=others or all_units)
    return staged, Outcome(gemm_s, scatter_s, gather_s, gemm_s + scatter_s, traffic)


def sequential(layer: Sublayer) -> Outcome:
    """One after the other."""
    return _parts(layer)[1]


def split(layer: Sublayer) -> Outcome:
    """Concurrent, `split_units` for the collective and the others for the GEMM; no dependencies, no contention."""
    units = layer.device.num_sms - layer.split_units
    if not 0 < units < layer.device.num_sms:
        raise ConfigError(
            f"{layer.split_units} of {layer.device.num_sms} compute units for the collective leave {units} for the "
            f"GEMM; give each at least one"
        )
    _, found = _parts(layer, units=units, others=layer.split_units)
    return replace(found, fused_s=max(found.gemm_s, found.reduce_scatter_s))


def ideal(layer: Sublayer) -> Outcome:
    """Concurrent, each as fast as isolated."""
    found = _parts(layer)[1]
    return replace(found, fused_s=max(found.gemm_s, found.reduce_scatter_s))


def ideal_nmc(layer: Sublayer) -> Outcome:
    """As `ideal`, with additions near the memory."""
    _, found = _parts(layer)
    size, ranks = layer.gemm.output_bytes, layer.ring.ranks
    scatter_s = reduce_scatter_s(size, layer.ring, layer.device, units=layer.device.num_sms, near_memory=True)
    traffic = replace(found.traffic, scatter_reads=0.0, scatter_writes=0.0)
    traffic += reduce_scatter_traffic(size, ranks, near_memory=True)
    return replace(found, reduce_scatter_s=scatter_s, fused_s=max(found.gemm_s, scatter_s), traffic=traffic)


def track_and_trigger(layer: Sublayer, policy: Policy = ROUND_ROBIN) -> Outcome:
    """Tracked and triggered, the memory under a policy."""
    device, gemm, size = layer.device, layer.gemm, layer.gemm.output_bytes
    isolated, found = _parts(layer)
    policy = layer.policy or policy
    if policy == COMPUTE_FIRST:
        policy = replace(policy, threshold=threshold_of(_intensity(isolated, device)))
    staged = stage(gemm, device, bypassed=True, isolated_s=layer.isolated_s)
    _check_tracker(staged, device)
    done = overlap(
        staged,
        regions_of(staged, size, layer.ring.ranks, trigger_bytes=layer.trigger_bytes),
        ring=layer.ring,
        constants=constants_of(device),
        policy=policy,
        memory_bytes_per_s=device.memory_bytes_per_s,
    )
    traffic = done.traffic + all_gather_traffic(size, layer.ring.ranks)
    return replace(found, gemm_s=done.gemm_s, fused_s=done.end_s, traffic=traffic, overlapped=done)


def _intensity(staged: Staged, device: Device) -> float:
    """Share of the GEMM's first stage, alone, in which the memory is busy."""
    memory_s = float(staged.read_bytes[0] + staged.write_bytes[0]) / device.memory_bytes_per_s
    return memory_s / (memory_s + float(staged.compute_s[0]))


def _check_tracker(staged: Staged, device: Device) -> None:
    constants = constants_of(device)
    needed = int(staged.tiles.max()) * constants.waves_per_tile
    if needed > constants.tracker_entries:
        raise ConfigError(
            f"the tracker of device {device.name!r} follows {constants.tracker_entries} wavefronts, and a stage has "
            f"{needed} ({int(staged.tiles.max())} work-groups of {constants.waves_per_tile}), "
            f"{needed - constants.tracker_entries} too many; raise stages.tracker_entries in its file"
        )


CONFIGURATIONS: Mapping[str, Callable[[Sublayer], Outcome]] = {
    "sequential": sequential,
    "split": split,
    "ideal": ideal,
    "ideal-nmc": ideal_nmc,
    "t3": track_and_trigger,
    "t3-mca": lambda layer: track_and_trigger(layer, COMPUTE_FIRST),
}
"""Name to what it makes of a sub-layer."""
