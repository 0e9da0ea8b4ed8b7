"""The measured rows of a folder to files for other verbs: `device.yaml`, `machine.yaml` and `nccl.yaml`.

A device's peak rates and memory are those of its data sheet if scaleout ships it, else the fastest that were measured.
A machine is one switch; its library's protocols are fitted to the runs that forced them, or to all runs. Collectives
are fitted to ``t = S + k h + f n / B + n / (p C)`` by reweighted least squares of relative errors, without negative
terms.

Symbols: S start-up; h latency of a round, of which a ring has k; n bytes of the whole buffer; f n bytes over a rank's
links; B their bandwidth; p ranks; C the rate at which a rank's own shard is copied.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import yaml

from scaleout.analysis.uncertainty import spread_of
from scaleout.cluster.device.host import host_costs_s
from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.checkpoint import Row
from scaleout.config.documents import read_json
from scaleout.config.library import find
from scaleout.config.writing import write_json, write_text
from scaleout.config.yaml_files import read_yaml
from scaleout.errors import ConfigError
from scaleout.network.collectives import BUS_FACTORS
from scaleout.program.graph import Bools, Floats
from scaleout.program.operations import kernel
from scaleout.validation.measure.checkpoint import MeasurementLog, measured
from scaleout.validation.measure.experiments import LARGEST, RINGS
from scaleout.validation.measured.rows import MACHINES

_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Traversals of the ring, each one round less than the ranks; rounds of other collectives count with their start-up."""
_REWEIGHTINGS = 30


class Terms(NamedTuple):
    """The terms, in seconds and bytes/s, and the median relative error; a rate without a term is infinite."""

    startup_s: float
    step_s: float
    bytes_per_s: float
    local_bytes_per_s: float
    median_error: float


def fit(rows: Iterable[Mapping[str, Any]]) -> Terms:
    """Fit rows with `collective`, `ranks`, `bytes` and `us`, at least four of them."""
    table = [(_terms(row), float(row["us"]) * 1e-6) for row in rows]
    terms, measured = np.array([each for each, _ in table]), np.array([seconds for _, seconds in table])
    used = np.asarray(terms.max(axis=0) > 0)
    found, errors = _reweighted(terms, measured, used)
    while (found < 0).any():
        used[int(found.argmin())] = False
        found, errors = _reweighted(terms, measured, used)
    rate, local = (1 / each if each > 0 else np.inf for each in found[2:])
    return Terms(float(found[0]), float(found[1]), float(rate), float(local), float(np.median(errors)))


def _terms(row: Mapping[str, Any]) -> tuple[float, float, float, float]:
    kind, ranks, size_bytes = row["collective"], row["ranks"], row["bytes"]
    steps = _ROUNDS.get(kind, 0) * (ranks - 1)
    return 1.0, float(steps), BUS_FACTORS[kind](ranks) * size_bytes, size_bytes / ranks


def _reweighted(terms: Floats, measured: Floats, used: Bools) -> tuple[Floats, Floats]:
    scale = np.maximum(terms.max(axis=0), 1.0)  # the columns differ by many orders of magnitude
    weights = 1 / measured
    errors = np.zeros(len(measured))
    found = np.zeros(4)
    for _ in range(_REWEIGHTINGS):
        part = np.linalg.lstsq((terms / scale)[:, used] * weights[:, None], measured * weights, rcond=None)[0]
        found = np.zeros(4)
        found[used] = part / scale[used]
        errors = np.abs(terms @ found / measured - 1)
        weights = 1 / measured / np.sqrt(np.maximum(errors, 0.02))
    return found, errors


_DIRECTIONS = ("no_grad", "forward", "backward")
_PLAIN = ("add", "attention", "gelu", "gemm", "layer_norm", "moe_repeat_topk", "moe_sum_topk", "relu")
_REDUCED = ("all_reduce_into_nothing", "nothing_into_all_reduce")
_GATHERED, _SCATTERED = ("all_gather_into_reduce_scatter",), ("reduce_scatter_into_all_gather",)
_EXCHANGED = ("all_to_all_into_all_to_all",)
_EXCHANGES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "all_reduce": (_REDUCED, _REDUCED),
    "all_gather": (_GATHERED, _SCATTERED),
    "reduce_scatter": (_SCATTERED, _GATHERED),
    "all_to_all": (_EXCHANGED, _EXCHANGED),
}
"""Collective to the measured calls whose sum is its time: forward or without gradients, and in backward."""


def host_launch_us(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the microseconds of each measured call of a device file's `host_launch`, the median over steps.

    A linear layer's backward makes two GEMMs, so `gemm_backward` is half of it; copies of heads count with attention.
    """
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        times[row["call"], row["direction"]].append(float(row["us"]))
    known = {key: median(values) for key, values in times.items()}
    found = {
        f"{call}_{direction}": us
        for (call, direction), us in known.items()
        if call in _PLAIN and direction in _DIRECTIONS
    }
    if "gemm_backward" in found:
        found["gemm_backward"] *= 0.5
    for (kind, (forward, backward)), direction in itertools.product(_EXCHANGES.items(), _DIRECTIONS):
        calls = [(call, direction) for call in (backward if direction == "backward" else forward)]
        if all(call in known for call in calls):
            found[f"{kind}_{direction}"] = fsum(known[call] for call in calls)
    found |= {name.replace("gelu", "pointwise"): us for name, us in found.items() if name.startswith("gelu_")}
    found |= {f"start_{direction}": us for (call, direction), us in known.items() if call == "start"}
    if "start_backward" in found:
        found |= {"heads_cat_backward": 0.0, "heads_to_rows_backward": 0.0}
    loops = {call: us for (call, direction), us in known.items() if direction == "loop"}
    found |= {f"{call}_loop": us for call, us in loops.items()}
    exchanges = [loops[kind] for kind in _EXCHANGES if kind in loops]
    if exchanges:
        found["collective_loop"] = median(exchanges)
    return {name: round(max(us, 0.0), 2) for name, us in sorted(found.items())}


_LAYER = {"layer_norm": 2, "gemm": 4, "attention": 1, "gelu": 1, "add": 2}
"""Calls of a layer of the step `pace`, and how many; in backward a linear layer makes two GEMMs."""


def paces(rows: Iterable[Row], host_from: str) -> dict[str, float]:
    """Return the pace of a host, forward and backward: what the layers of the step `pace` take over what they cost.

    Forward and without gradients one thread makes the calls, so that its pace is the mean of both.
    """
    measured_us = {row["direction"]: float(row["us"]) for row in rows if row["call"] == "layer"}
    costs_s = host_costs_s(load_device(host_from), alone=True)
    found = {}
    for direction, us in measured_us.items():
        gemms = 2 if direction == "backward" else 1
        counts = _LAYER | {"gemm": gemms * _LAYER["gemm"]}
        found[direction] = us * 1e-6 / fsum(count * costs_s[f"{call}_{direction}"] for call, count in counts.items())
    if not found:
        return {}
    forward = fsum(found[direction] for direction in ("no_grad", "forward")) / 2
    return {"host_ratio": round(forward, 2), "host_ratio_backward": round(found["backward"], 2)}


def _said(rows: Iterable[Row]) -> str:
    """Say the pace of a host, if it was measured."""
    known = paces(rows, _HOST_FROM)
    if not known:
        return ""
    return "; its host takes {host_ratio:g} times as long as that of {}, {host_ratio_backward:g} in backward".format(
        _HOST_FROM, **known
    )


def _host_of(rows: Iterable[Row], where: str) -> dict[str, Any]:
    """Return the keys of a host whose pace was measured: its ratios, and how far off steps are that know them."""
    known = paces(rows, _HOST_FROM)
    if not known:
        return {}
    spread, sources = spread_of(load_device(_HOST_FROM)), load_device(_HOST_FROM).sources
    ends = {
        f"host_{end}": _sourced(getattr(spread, f"paced_host_{end}"), sources[f"spread.paced_host_{end}"])
        for end in ("faster", "slower")
    }
    source = f"{where}: host, the mean over a while of whole layers, over what {_HOST_FROM}'s calls cost"
    return {
        "host_from": _HOST_FROM, **{key: _sourced(ratio, source) for key, ratio in known.items()}, "spread": ends,
    }  # fmt: skip


_HOST_FROM = "h200"
"""The device whose file has the costs of calls of PyTorch."""


DEVICE, MACHINE, LIBRARY = "device.yaml", "machine.yaml", "nccl.yaml"
_LINK = "nvlink"
_STREAMS = ("copy_d2d", "clone", "add")
"""Operations whose fastest call gives the memory's bandwidth."""
_MESSAGE_LIMIT_BYTES = 512 * 2**10
_LEAST_ROWS = 4
"""Fewest rows for a fit of four terms."""


def write_files(folder: Path, environment: Mapping[str, Any]) -> dict[Path, str]:
    """Write the files for which a folder has enough rows, and the environment; return each with its description."""
    where = f"measured on {environment['gpu']}, {environment.get('date', 'no date')}, by scaleout measure"
    rows = {name: measured(MeasurementLog(folder, name).rows) for name in ("kernels", "collectives", "host")}
    machine, library = machine_files(environment, rows["collectives"], where=where)
    files = {
        DEVICE: (device_file(environment, rows, where=where), f"the device, for --device{_said(rows['host'])}"),
        LIBRARY: (library, "what its communication library takes"),
        MACHINE: (machine, "its GPUs and links, for --topology"),
    }
    written: dict[Path, str] = {}
    for name, (values, meaning) in files.items():
        if values is not None:
            text = yaml.safe_dump(values, sort_keys=False, width=110)
            write_text(folder / name, text)
            written[folder / name] = meaning
    names = {"device": DEVICE, "topology": MACHINE}
    known = {key: name for key, name in names.items() if (folder / name).is_file()}
    write_json(folder / "environment.json", {**environment, **known})
    return written


def _shipped(environment: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the shipped device and topology of a GPU, or None."""
    return next((names for gpu, names in MACHINES.items() if str(environment["gpu"]).startswith(gpu)), None)


def device_file(
    environment: Mapping[str, Any], rows: Mapping[str, Sequence[Row]], *, where: str
) -> dict[str, Any] | None:
    """Return the content of a device file; None if there are too few rows, or of an unknown GPU."""
    names = _shipped(environment)
    known = load_device(names[0]) if names else None
    host = _host_of(rows["host"], where)
    if not rows["kernels"]:
        like = (
            names[0] if names else next((name for gpu, name in _LIKE.items() if gpu in str(environment["gpu"])), None)
        )
        return {"name": environment["gpu"], "like": like, **host} if host and like else None
    rates = _known_rates(known) if known else _measured_rates(rows["kernels"], where)
    if rates is None:
        return None
    values: dict[str, Any] = {"name": environment["gpu"], "vendor": str(environment["gpu"]).split()[0], **rates}
    for key, name, unit in (("memory", "memory_bytes", " B"), ("l2", "l2_bytes", " B"), ("sms", "sms", "")):
        if name in environment:
            value = f"{environment[name]}{unit}" if unit else environment[name]
            values[key] = _sourced(value, f"{where}: the driver, through PyTorch")
    messages = [row for row in rows["collectives"] if row["collective"] == "send"]
    fastest = max((row["bytes"] / row["us"] * 1e6 for row in messages), default=0.0)
    if known is None:
        source = f"{where}: the fastest message from GPU to GPU" if fastest else f"{where}: no other GPU was measured"
        values["link_bandwidth"] = _sourced(f"{fastest / 1e9:.4g} GB/s", source)
    values["kernels"] = ["kernels.jsonl"]
    launches = host_launch_us(rows["host"])
    if known and host:
        values |= host
    elif launches:
        values["host_launch"] = {name: _sourced(f"{us} us", f"{where}: host") for name, us in launches.items()}
    elif known and known.host_launch_s:
        values["host_launch"] = {
            name: _sourced(f"{seconds * 1e6:.2f} us", f"not measured here; as {known.name}")
            for name, seconds in known.host_launch_s.items()
        }
    if known and known.launch_gap_s and (host or launches):
        values["launch_gap"] = _sourced(f"{known.launch_gap_s * 1e9:.10g} ns", known.sources["launch_gap"])
    return values


_LIKE = {"H200": "h200", "H100": "h100", "A100": "a100-80g", "B200": "b200"}
"""Part of a GPU's name in its driver to the device that a file of its host alone is like."""


def _sourced(value: Any, source: str) -> dict[str, Any]:
    return {"value": value, "source": source}


def _known_rates(known: Device) -> dict[str, Any]:
    peaks = {
        dtype: _sourced(f"{rate / 1e12:.10g} TFLOP/s", known.sources[f"peak_flops.{dtype}"])
        for dtype, rate in known.peak_flops_per_s.items()
    }
    rates = {
        "memory_bandwidth": f"{known.memory_bytes_per_s / 1e9:.10g} GB/s",
        "memory": f"{known.usable_bytes / 2**30:.10g} GiB",
        "l2": f"{known.l2_bytes / 2**20:.10g} MiB",
        "sms": known.num_sms,
        "link_bandwidth": f"{known.link_bytes_per_s / 1e9:.10g} GB/s",
    }
    return {"peak_flops": peaks, **{key: _sourced(value, known.sources[key]) for key, value in rates.items()}}


def _measured_rates(kernels: Iterable[Row], where: str) -> dict[str, Any] | None:
    """Rates of the fastest GEMMs and copies; None if either is missing."""
    peaks: dict[str, tuple[float, str]] = {}
    stream = (0.0, "")
    for row in kernels:
        call = kernel(row["op"], dtype=row["dtype"], **row["shape"])
        text = f"{where}: the fastest {row['op']}, {', '.join(f'{key} {value}' for key, value in row['shape'].items())}"
        if row["op"] in ("gemm", "gemm_fp8"):
            peaks[row["dtype"]] = max(peaks.get(row["dtype"], (0.0, "")), (call.flops / row["us"] * 1e6, text))
        if row["op"] in _STREAMS and row.get("method") == "graph_replay" and call.bytes > _CACHED_BYTES:
            stream = max(stream, (call.bytes / row["us"] * 1e6, text))
    if not peaks or not stream[0]:
        return None
    return {
        "peak_flops": {dtype: _sourced(f"{rate / 1e12:.4g} TFLOP/s", text) for dtype, (rate, text) in peaks.items()},
        "memory_bandwidth": _sourced(f"{stream[0] / 1e9:.4g} GB/s", stream[1]),
    }


_CACHED_BYTES = 100e6
"""Smaller copies may be in a cache."""


def machine_files(
    environment: Mapping[str, Any], rows: Sequence[Row], *, where: str
) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the content of a topology file and of a library file; None where there are too few rows."""
    free = [row for row in rows if "protocol" not in row and row["collective"] in RINGS]
    if len(free) < _LEAST_ROWS:
        return None, None
    found = {name: fit(forced) for name in LARGEST if len(forced := _forced(rows, name)) >= _LEAST_ROWS}
    best = max(found.values(), key=lambda terms: terms.bytes_per_s) if found else fit(free)
    dimension = {
        "kind": "switch",
        "size": environment["gpus"],
        "bandwidth": f"{best.bytes_per_s / 1e9:.4g} GB/s",
        "bandwidth_source": f"{where}: fit, median error {best.median_error:.1%}",
        "latency": "0 us" if found else f"{best.step_s * 1e6:.4g} us",
        "latency_source": "in the protocols' own" if found else f"{where}: fit, a step of a ring",
    }
    machine: dict[str, Any] = {
        "source": f"{where}: NCCL {environment.get('nccl', '')} on {environment['gpus']} GPUs",
    }
    if not found:
        machine["startup"] = f"{best.startup_s * 1e6:.4g} us"
        machine["startup_source"] = f"{where}: fit, before the first step"
        return {**machine, "dimensions": [dimension]}, None
    dimension["link"] = _LINK
    library = {"name": f"NCCL {environment.get('nccl', '')}", **_library(rows, found, where, best)}
    return {**machine, "library": LIBRARY, "dimensions": [dimension]}, _as_known(library, environment, best)


def _forced(rows: Iterable[Row], protocol: str) -> list[Row]:
    least = {"LL": 0, "LL128": 2**18, "Simple": 2**20}[protocol]
    return [row for row in rows if row.get("protocol") == protocol and least <= row["bytes"] <= LARGEST[protocol]]


def _library(rows: Sequence[Row], found: Mapping[str, Terms], where: str, best: Terms) -> dict[str, Any]:
    protocols = [_protocol(name, list(RINGS), terms, best, where) for name, terms in found.items()]
    free = [row for row in rows if "protocol" not in row]
    messages = [row for row in free if row["collective"] in ("all_to_all", "send")]
    trees = [row for row in free if row["collective"] in ("broadcast", "reduce")]
    small = [row for row in messages if _message_bytes(row) <= _MESSAGE_LIMIT_BYTES]
    large = [row for row in messages if _message_bytes(row) > _MESSAGE_LIMIT_BYTES]
    parts = (("p2p small", ["all_to_all", "send"], small), ("p2p", ["all_to_all", "send"], large),
             ("tree", ["broadcast", "reduce"], trees))  # fmt: skip
    for name, kinds, some in parts:
        if len(some) >= _LEAST_ROWS:
            protocol = _protocol(name, kinds, fit(some), best, where)
            limit = {"largest_message": "512 KiB"} if name == "p2p small" and len(large) >= _LEAST_ROWS else {}
            protocols.append({**protocol, **limit})
    return {
        "source": f"{where}; the fastest protocol is taken where it does not say what the library expects",
        "algorithms": {
            "all_reduce": ["ring"], "all_gather": ["ring"], "reduce_scatter": ["ring"], "all_to_all": ["direct"],
            "broadcast": ["double_binary_tree", "scatter_all_gather"], "reduce": ["double_binary_tree"],
            "send": ["point_to_point"],
        },
        "protocols": protocols,
    }  # fmt: skip


def _as_known(library: dict[str, Any], environment: Mapping[str, Any], best: Terms) -> dict[str, Any]:
    """Add what is shipped for NCCL on this GPU and not measured here: its expected times, and its contention."""
    names = _shipped(environment)
    if names is None:
        return library
    known = load_topology(names[1])
    file = find("topology", names[1])
    shipped_library = file.parent / str(read_yaml(file)["library"])
    contention = read_yaml(shipped_library).get("contention")
    scale = known.dimensions[0].bytes_per_s / best.bytes_per_s
    expected = (
        {each.name: each.modelled for each in known.library.protocols[:3] if each.modelled} if known.library else {}
    )
    for protocol in library["protocols"]:
        terms = expected.get(protocol["name"])
        if terms is not None:
            hop = next(hop for hop in terms.hops if hop.link == _LINK)
            link = {"latency": f"{hop.latency_s * 1e6:.4g} us", "efficiency": round(hop.efficiency * scale, 4)}
            protocol["expected"] = {"startup": f"{terms.startup_s * 1e6:.4g} us", "links": {_LINK: link}}
    return {**library, **({"contention": contention} if contention else {})}


def _message_bytes(row: Row) -> float:
    return float(row["bytes"] / row["ranks"] if row["collective"] == "all_to_all" else row["bytes"])


def _protocol(name: str, kinds: list[str], terms: Terms, best: Terms, where: str) -> dict[str, Any]:
    efficiency = min(1.0, terms.bytes_per_s / best.bytes_per_s)
    step = {"latency": f"{terms.step_s * 1e6:.4g} us", "efficiency": round(efficiency, 4)}
    local = terms.local_bytes_per_s
    return {
        "name": name,
        "collectives": kinds,
        "startup": f"{terms.startup_s * 1e6:.4g} us",
        **({"local_bandwidth": f"{local / 1e9:.4g} GB/s"} if local < float("inf") else {}),
        "links": {_LINK: step},
        "source": f"{where}: fit, median error {terms.median_error:.1%}",
    }


def check_folder(folder: Path, environment: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a folder holds measurements of another machine."""
    file = folder / "environment.json"
    if not file.is_file():
        return
    known = read_json(file)
    for key in ("gpu", "gpus", "torch", "nccl"):
        if known.get(key) != environment.get(key):
            raise ConfigError(
                f"{folder}: holds measurements of another machine: {key} {known.get(key)!r} there and "
                f"{environment.get(key)!r} here; give another folder"
            )
