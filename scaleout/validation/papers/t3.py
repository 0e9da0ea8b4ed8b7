"""T3, tracking and triggering: the paper's figures, simulated.

Sub-layers are the GEMMs whose output is all-reduced under tensor parallelism: output projection (OP) and second
feed-forward layer (FC-2) in forward, input gradients of the first (FC-1) and of the input projection (IP) in backward.
Iterations are simulated bulk-synchronous, then scaled by the sub-layers' speed-ups (Sec. 5.1.2). Collectives are rings.

Source: Pati et al., T3: Transparent Tracking & Triggering for Fine-grained Overlap of Compute & Collectives, ASPLOS
2024; models: Table 2.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import fsum
from statistics import geometric_mean

from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.yaml_files import scaled
from scaleout.schedule.t3.gemm import stage
from scaleout.schedule.t3.memory import Traffic
from scaleout.schedule.t3.sublayer import CONFIGURATIONS, Outcome, Sublayer, TrackSettings, sublayer_of
from scaleout.simulation.result import Timeline
from scaleout.study.comparison import compare

DEVICE, FUTURE_DEVICE = "t3-gpu", "t3-gpu-2x"
RINGS = dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather"), "ring")


@dataclass(frozen=True)
class Model:
    """A row of Table 2: a workload, its changes, and the degrees of tensor parallelism."""

    name: str
    workload: str
    hidden: int
    tokens: int
    degrees: tuple[int, ...]
    changes: tuple[tuple[str, int], ...] = ()


_LARGE = (("sequence", 1024), ("batch_per_replica", 2))
MODELS = (
    Model("Mega-GPT-2", "mega-gpt-2", 3072, 16 * 1024, (8, 16)),
    Model("T-NLG", "t-nlg", 4256, 8 * 1024, (8, 16)),
)
LARGE_MODELS = (
    Model("GPT-3", "gpt-3", 12288, 2 * 1024, (32,), _LARGE),
    Model("PALM", "palm", 18432, 2 * 1024, (32,), _LARGE),
    Model("MT-NLG", "mt-nlg", 20480, 2 * 1024, (32,), _LARGE),
)
FUTURE_MODELS = (Model("1T", "future-1t", 25600, 2 * 1024, (64,)), Model("10T", "future-10t", 65536, 2 * 1024, (64,)))

SUBLAYERS: Mapping[str, int] = {"OP": 1, "FC-2": 4, "FC-1": 4, "IP": 3}
"""Sub-layer to its K over hidden size, before slicing."""

FORWARD = ("OP", "FC-2")
"""Sub-layers of the forward pass, whose weights are transposed (Sec. 5.2); the others are of the backward pass."""


@dataclass(frozen=True)
class Swept:
    """One sub-layer under every configuration."""

    model: str
    degree: int
    name: str
    outcomes: Mapping[str, Outcome]

    def speedup(self, configuration: str) -> float:
        """Time of the sequential configuration over another's."""
        return self.outcomes["sequential"].total_s / self.outcomes[configuration].total_s


def sublayer(model: Model, degree: int, name: str, device: Device) -> Sublayer:
    """Return a model's sub-layer under some degree of tensor parallelism."""
    depth = SUBLAYERS[name] * model.hidden // degree
    gemm = TrackSettings(rows=model.tokens, columns=model.hidden, depth=depth, transposed=name in FORWARD)
    return sublayer_of(gemm, device, load_topology(f"t3-ring-{degree}"))


def sweep(models: Iterable[Model], device: str = DEVICE, configurations: Sequence[str] = ()) -> list[Swept]:
    """Return all sub-layers of some models under configurations, all by default: Figs. 15, 16, 18 and 20."""
    found = load_device(device)
    wanted = {name: CONFIGURATIONS[name] for name in configurations or CONFIGURATIONS}
    return [
        Swept(model.name, degree, name, {key: of(sublayer(model, degree, name, found)) for key, of in wanted.items()})
        for model in models
        for degree in model.degrees
        for name in SUBLAYERS
    ]


@dataclass(frozen=True)
class Split:
    """A GEMM and an all-reduce that share the compute units, relative to both with all of them: a bar of Fig. 6."""

    model: str
    name: str
    units: int
    gemm_slowdown: float
    all_reduce_slowdown: float
    speedup: float


def splits(units: int) -> list[Split]:
    """Return Fig. 6 with `units` compute units for the all-reduce and the rest for the GEMM; 0: all for both."""
    device = load_device(DEVICE)
    rows = []
    for model in MODELS:
        for name in ("OP", "FC-2"):
            layer = sublayer(model, model.degrees[0], name, device)
            gemm_s, reduce_s = _times(layer, device.num_sms, device.num_sms)
            slow_gemm_s, slow_reduce_s = _times(layer, device.num_sms - units, units or device.num_sms)
            overlapped_s = max(slow_gemm_s, slow_reduce_s)
            slowdowns = slow_gemm_s / gemm_s, slow_reduce_s / reduce_s
            rows.append(Split(model.name, name, units, *slowdowns, (gemm_s + reduce_s) / overlapped_s))
    return rows


def _times(layer: Sublayer, gemm_units: int, other_units: int) -> tuple[float, float]:
    """Time of a GEMM and of the all-reduce of its output, each by some compute units."""
    staged = stage(layer.gemm, layer.device, isolated_s=layer.isolated_s, units=gemm_units)
    size = layer.gemm.output_bytes
    of_ring = (layer.ring.reduce_scatter_s, layer.ring.all_gather_s)
    reduce_s = fsum(collective_s(size, layer.device, units=other_units) for collective_s in of_ring)
    return staged.isolated_s, reduce_s


@dataclass(frozen=True)
class Breakdown:
    """Where the times of an iteration come from: a device, and whether each rank computes all heads of attention."""

    device: str = DEVICE
    whole_attention: bool = False


BREAKDOWNS: Mapping[str, Breakdown] = {
    "the simulated GPU": Breakdown(),
    "MI210": Breakdown("mi210"),
    "MI210, attention not sliced": Breakdown("mi210", whole_attention=True),
}
"""Readings of Sec. 5.1.2, where a run of BERT on one MI210 is scaled, and of Sec. 6.3, whose "non-sliced attention
operations" take 40 to 45% of it: as sliced as all else they take 3 to 9%, and 26 to 50% if they are not sliced."""


@dataclass(frozen=True)
class Iteration:
    """A whole training iteration or prompt phase, bulk-synchronous, and its sub-layers.

    `scaled_s` is what the GEMM and the reduce-scatter of each sub-layer take in it.
    """

    model: str
    degree: int
    mode: str
    total_s: float
    communication_s: float
    attention_s: float
    layers: int
    sublayers: tuple[Swept, ...]
    scaled_s: tuple[float, ...]

    def speedup(self, configuration: str) -> float:
        """Speed-up of the iteration, GEMMs and reduce-scatters as much faster as simulated (Sec. 5.1.2)."""
        saved_s = 0.0
        for time_s, each in zip(self.scaled_s, self.sublayers, strict=True):
            saved_s += time_s * (1 - each.outcomes[configuration].fused_s / each.outcomes["sequential"].fused_s)
        return float(self.total_s / (self.total_s - self.layers * saved_s))


def iterations(models: Iterable[Model], mode: str, breakdown: Breakdown = Breakdown()) -> list[Iteration]:
    """Return iterations of some models: Figs. 4 and 19. `mode` is training or prefill."""
    rows = []
    for model in models:
        for degree in model.degrees:
            changes = {"tensor_parallel": degree, "mode": mode, "dropout": mode == "training", **_ATTENTION}
            (outcome,) = compare(
                model.workload, topology=f"t3-ring-{degree}", device=breakdown.device, schedules=("baseline",),
                changes={**changes, **dict(model.changes)}, algorithms=RINGS,
            ).outcomes  # fmt: skip
            job, line = outcome.workload, outcome.result.timelines[0]
            assert job is not None
            one_degree = Model(model.name, model.workload, model.hidden, model.tokens, (degree,))
            swept = tuple(
                each
                for each in sweep([one_degree], configurations=("sequential", "t3", "t3-mca"))
                if mode == "training" or each.name in FORWARD
            )
            scatter_s = (
                next(line.duration_s[at] for at, name in enumerate(line.graph.names) if name == FIRST_REDUCED) / 2
            )
            device = load_device(breakdown.device)
            scaled_s = tuple(sublayer(one_degree, degree, each.name, device).isolated_s + scatter_s for each in swept)
            attention_s = _attention_s(line) * (degree if breakdown.whole_attention else 1)
            total_s = outcome.makespan_s + (attention_s * (1 - 1 / degree) if breakdown.whole_attention else 0.0)
            times_s = total_s, outcome.breakdown.communication_s, attention_s
            rows.append(Iteration(model.name, degree, mode, *times_s, job.layers, swept, scaled_s))
    return rows


_ATTENTION = {"attention": "unfused", "causal": False}
"""As BERT's, of which the paper scales a run (Sec. 5.1.2): its mask leaves no half of the scores unread."""
FIRST_REDUCED = "layer_0_attention_all_reduce"
ATTENTION = ("attention_scores", "attention_values", "softmax")


def _attention_s(line: Timeline) -> float:
    """Time of unfused attention on a rank: both products, softmax, and dropout of what that makes, there and back."""
    graph, found = line.graph, []
    calls = [graph.kernels[kernel] if kernel >= 0 else None for kernel in graph.kernel.tolist()]
    weights = next(call.sizes["tokens"] * call.sizes["keys"] for call in calls if call and call.op == "softmax_fwd")
    for name, call, time_s in zip(graph.names, calls, line.duration_s.tolist(), strict=True):
        if name.startswith(ATTENTION) or (name.startswith("dropout") and call and call.sizes["elements"] == weights):
            found.append(time_s)
    return fsum(found)


def _percent(ratio: float) -> float:
    return 100 * (ratio - 1)


MODES = {"train": "training", "prompt": "prefill"}


def _figure_4(breakdown: Breakdown = Breakdown()) -> Mapping[str, float]:
    def largest(models: Iterable[Model], mode: str) -> float:
        return max(100 * each.communication_s / each.total_s for each in iterations(models, mode, breakdown))

    large = (*LARGE_MODELS, *FUTURE_MODELS)
    return {
        "T4-train": largest(MODELS, "training"),
        "T4-prompt": largest(MODELS, "prefill"),
        "T4-large-train": largest(large, "training"),
        "T4-large-prompt": largest(large, "prefill"),
    }


def _figure_6() -> Mapping[str, float]:
    ideal, eight, sixteen = (splits(units) for units in (0, 8, 16))
    return {
        "T6-ideal": geometric_mean(each.speedup for each in ideal),
        "T6-72-8": _percent(geometric_mean(each.all_reduce_slowdown for each in eight)),
        "T6-72-8-speedup": geometric_mean(each.speedup for each in eight),
        "T6-64-16-ar": _percent(geometric_mean(each.all_reduce_slowdown for each in sixteen)),
        "T6-64-16-gemm": _percent(geometric_mean(each.gemm_slowdown for each in sixteen)),
        "T6-64-16-speedup": geometric_mean(each.speedup for each in sixteen),
    }


def _figure_16() -> Mapping[str, float]:
    rows = sweep(MODELS)

    def over(configuration: str, of: Callable[[list[float]], float]) -> float:
        return _percent(of([each.speedup(configuration) for each in rows]))

    def scatter(degree: int) -> float:
        return _percent(
            geometric_mean(
                each.outcomes["ideal"].reduce_scatter_s / each.outcomes["ideal-nmc"].reduce_scatter_s
                for each in rows
                if each.degree == degree
            )
        )

    return {
        "T16-ideal-geomean": over("ideal", geometric_mean),
        "T16-ideal-max": over("ideal", max),
        "T16-ideal-min": over("ideal", min),
        "T16-nmc-rs-tp8": scatter(8),
        "T16-nmc-rs-tp16": scatter(16),
        "T16-t3-geomean": over("t3", geometric_mean),
        "T16-t3-max": over("t3", max),
        "T16-mca-geomean": over("t3-mca", geometric_mean),
        "T16-mca-max": over("t3-mca", max),
        "T16-mca-over-t3": _percent(geometric_mean(_over(each, "t3-mca", "t3") for each in rows)),
        "T16-mca-over-t3-max": _percent(max(_over(each, "t3-mca", "t3") for each in rows)),
        "T16-mca-below-ideal": over("ideal", geometric_mean) - over("t3-mca", geometric_mean),
        "T16-nmc-extra": 100 * max(each.speedup("ideal-nmc") - each.speedup("ideal") for each in rows),
        "T16-fc1-worst": float(_bypassing_hurts(rows, "T-NLG", 16, "FC-1")),
    }


def _over(row: Swept, configuration: str, other: str) -> float:
    """Speed-up of one configuration over another."""
    return row.speedup(configuration) / row.speedup(other)


def _bypassing_hurts(rows: Sequence[Swept], *of: object) -> bool:
    """Whether of all sub-layers one is the furthest below ideal under T3-MCA, as its GEMM takes longer than alone."""
    worst = min(rows, key=lambda each: _over(each, "t3-mca", "ideal"))
    outcomes = worst.outcomes
    slower = outcomes["t3-mca"].gemm_s > outcomes["sequential"].gemm_s
    return (worst.model, worst.degree, worst.name) == of and _over(worst, "t3-mca", "ideal") < 1 and slower


def _figure_18() -> Mapping[str, float]:
    rows = sweep(MODELS, configurations=("sequential", "t3-mca"))
    pairs = [(each.degree, each.outcomes["sequential"].traffic, each.outcomes["t3-mca"].traffic) for each in rows]
    saved = [100 * (1 - after.total / before.total) for _, before, after in pairs]

    def ratio(of: Callable[[Traffic], float], *degrees: int) -> float:
        return geometric_mean(of(before) / of(after) for degree, before, after in pairs if degree in degrees)

    def by_degree(claim: str, of: Callable[[Traffic], float]) -> dict[str, float]:
        return {claim: ratio(of, 8, 16), f"{claim}-tp8": ratio(of, 8), f"{claim}-tp16": ratio(of, 16)}

    writes = by_degree("T18-writes", lambda traffic: traffic.gemm_writes + traffic.scatter_writes)
    return {
        "T18-mean": fsum(saved) / len(saved),
        "T18-max": max(saved),
        **by_degree("T18-rs-reads", lambda traffic: traffic.scatter_reads),
        **{claim: _percent(value) for claim, value in writes.items()},
        **by_degree("T18-gemm-reads", lambda traffic: traffic.gemm_reads),
    }


def _figure_19(breakdown: Breakdown = Breakdown()) -> Mapping[str, float]:
    found = {}
    for label, mode in MODES.items():
        rows = iterations(MODELS, mode, breakdown)
        for short, configuration in (("t3", "t3"), ("mca", "t3-mca")):
            speedups = [each.speedup(configuration) for each in rows]
            found[f"T19-{label}-{short}-max"] = _percent(max(speedups))
            found[f"T19-{label}-{short}-geomean"] = _percent(geometric_mean(speedups))
    return found


def _large() -> Mapping[str, float]:
    speedups = [each.speedup("t3-mca") for each in sweep(LARGE_MODELS, configurations=("sequential", "t3-mca"))]
    found = {"T-large-geomean": _percent(geometric_mean(speedups)), "T-large-max": _percent(max(speedups))}
    for label, mode in MODES.items():
        found[f"T-large-{label}"] = _percent(max(each.speedup("t3-mca") for each in iterations(LARGE_MODELS, mode)))
    return found


def future() -> list[tuple[Swept, Swept]]:
    """Return Fig. 20: OP and FC-2 of all models, today and with twice the compute units."""
    configurations = ("sequential", "t3-mca")
    today, then = (sweep((*MODELS, *LARGE_MODELS), device, configurations) for device in (DEVICE, FUTURE_DEVICE))
    rows = zip(today, then, strict=True)
    return [(now, later) for now, later in rows if now.name in FORWARD]


def dominates(row: Swept) -> bool:
    """Whether compute does: the GEMM takes longer than its all-reduce."""
    found = row.outcomes["sequential"]
    return found.gemm_s > found.reduce_scatter_s + found.all_gather_s


def _figure_20() -> Mapping[str, float]:
    def grows(name: str) -> float:
        ratios = [
            then.speedup("t3-mca") / now.speedup("t3-mca")
            for now, then in future()
            if now.name == name and (name == "OP" or dominates(now))
        ]
        return geometric_mean(ratios) if ratios else math.nan  # of which no trend holds

    return {
        "T20-fc2": float(grows("FC-2") > 1),
        "T20-op": float(grows("OP") < 1),
        "T20-large-train-range": float(_grows_with_degree()),
    }


def _grows_with_degree(breakdown: Breakdown = Breakdown()) -> bool:
    """Whether iterations of both models gain more at the higher degree."""
    rows = iterations(MODELS, "training", breakdown)
    speedups = {(each.model, each.degree): each.speedup("t3-mca") for each in rows}
    return all(speedups[model.name, 16] > speedups[model.name, 8] for model in MODELS)


FIGURES: Mapping[str, Callable[[], Mapping[str, float]]] = {
    "T4": _figure_4,
    "T6": _figure_6,
    "T16": _figure_16,
    "T18": _figure_18,
    "T19": _figure_19,
    "T": _large,
    "T20": _figure_20,
}

_RING = ("topologies/t3-ring-*.yaml", "dimensions.0.bandwidth", 2.0)
_UNLOADED = ("traces/t3-gpu*/device.yaml", "stages.memory_latency", 0.5)
READINGS: Mapping[str, tuple[tuple[str, str, float], ...]] = {
    "75 GB/s each way, latency under load": (),
    "75 GB/s each way, unloaded latency": (_UNLOADED,),
    "150 GB/s each way, latency under load": (_RING,),
    "150 GB/s each way, unloaded latency": (_RING, _UNLOADED),
}
"""Reading of Table 1's ring, "150 GB/s bi-directional", and of the memory's latency, to what files are scaled by."""


def broken_down(breakdown: Breakdown) -> Mapping[str, float]:
    """Return the numbers of whole iterations under a reading of where their times come from."""
    found = dict(_figure_4(breakdown)) | dict(_figure_19(breakdown))
    for label, mode in MODES.items():
        found[f"T-large-{label}"] = _percent(
            max(each.speedup("t3-mca") for each in iterations(LARGE_MODELS, mode, breakdown))
        )
    return found | {"T20-large-train-range": float(_grows_with_degree(breakdown))}


def read_as(reading: str) -> Mapping[str, float]:
    """Return the numbers of all figures under a reading."""
    with ExitStack() as stack:
        for files, key, factor in READINGS[reading]:
            stack.enter_context(scaled(files, key, factor))
        return {claim: value for figure in FIGURES.values() for claim, value in figure().items()}
