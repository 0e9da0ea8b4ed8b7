"""Files to facts: what a workload, topology or device means, as plain values for tables and JSON.

Numbers are in SI units, and the end of a fact's name says which: `_s`, `_bytes`, `_bytes_per_s`, `_flops_per_s`; an
`_error` is a fraction.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from scaleout.cluster.device.kernel_times.interpolated import leave_one_out
from scaleout.cluster.device.sections import Power
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.communication_library import Library, Protocol
from scaleout.cluster.topology.faults import name_link
from scaleout.cluster.topology.link_type import load_link_type, sources_of
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import Dimension, Topology, load_topology
from scaleout.cluster.topology.what_if import NetworkChanges, change_network, names_of
from scaleout.config.units import format_bytes, format_seconds
from scaleout.network.alpha_beta.lower_bound import lower_bound_s
from scaleout.network.collectives import ALGORITHMS, KINDS
from scaleout.program.graph import NodeKind
from scaleout.report.drawing import link_names
from scaleout.study.sweep.study import load_study
from scaleout.workloads.config.family import ModelFamily
from scaleout.workloads.config.frameworks import FRAMEWORKS
from scaleout.workloads.config.layered import LayeredModel
from scaleout.workloads.families import load_workload
from scaleout.workloads.generate import generate
from scaleout.workloads.memory import peak

_MEBIBYTES_64 = 64 * 2.0**20


def workload(name_or_file: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Describe a workload: its keys, and what its step comes to."""
    job = load_workload(name_or_file, changes)
    program = generate(job)
    operations: Counter[str] = Counter()
    payload: Counter[str] = Counter()
    for count, graph in zip(program.ranks_of_role.tolist(), program.graphs, strict=True):
        for node in range(len(graph)):
            name = graph.operation(node)
            operations[name] += count
            if graph.kind[node] in (NodeKind.COLLECTIVE, NodeKind.SEND):
                payload[name] += count * int(graph.bytes[node])
    return {
        "workload": job.name,
        "description": job.description,
        "source": job.source,
        "ranks": job.num_ranks,
        **(_framework(job) if isinstance(job, LayeredModel) and job.framework else {}),
        "parameters": job.num_parameters,
        "matrix_flops": program.total_flops,
        "matrix_flops_per_rank": program.total_flops // job.num_ranks,
        "payload_per_rank_bytes": {name: size // job.num_ranks for name, size in payload.items()},
        "peak_memory_bytes": dict(peak(job).bytes_of),
        **job.facts,
        **(_buffers(job) if job.buffers else {}),
        "nodes_per_rank": {name: count / job.num_ranks for name, count in operations.most_common()},
        "keys": job.model_dump(mode="json", exclude={"name", "description", "source"}),
    }


def _framework(job: LayeredModel) -> dict[str, Any]:
    """Which framework runs a job, and each key that it sets or that the workload gives instead."""
    assert job.framework is not None
    framework = FRAMEWORKS[job.framework]
    rows = [
        {
            "key": key,
            "value": getattr(job, key),
            "set_by": "the workload" if key in job.model_fields_set else job.framework,
            "source": setting.source,
            "framework_value": setting.value,
        }
        for key, setting in framework.applying(job.given).items()
        if key in type(job).model_fields
    ]
    return {"framework": f"{job.framework} ({framework.summary}; {framework.source})", "framework_keys": rows}


def _buffers(job: ModelFamily) -> dict[str, Any]:
    """How many parameter buffers there are, and how many from each power of two of bytes on."""
    sizes = Counter((count * job.item_bytes).bit_length() - 1 for count in job.buffers)
    return {
        "parameter_buffers": len(job.buffers),
        "buffers_from": {format_bytes(1 << power): count for power, count in sorted(sizes.items())},
    }


def topology(name_or_file: str, changes: NetworkChanges | None = None) -> dict[str, Any]:
    """Describe a topology: its dimensions, and the least time that 64 MiB of each collective over all ranks takes."""
    found = change_network(load_topology(name_or_file), changes or NetworkChanges())
    everyone = place(found, range(found.num_ranks))
    kinds = [kind for kind in KINDS if kind != "send"]
    used = found.library.resource_use if found.library else None
    return {
        "topology": found.name,
        "ranks": found.num_ranks,
        **({"changes": list(found.altered)} if found.altered else {}),
        "dimensions": [
            _dimension(dimension, names) for dimension, names in zip(found.dimensions, names_of(found), strict=True)
        ],
        "link_names": [name for number in range(len(found.dimensions)) for name in link_names(found, number)],
        "library": found.library.name if found.library else "none: collectives have no costs of protocols",
        **({"library_reason": found.library_reason} if found.library_reason else {}),
        "startup_s": found.startup_s,
        **({"changed_links": _changes(found)} if found.changes else {}),
        **({"slow_ranks": {str(rank): factor for rank, factor in found.slow_ranks}} if found.slow_ranks else {}),
        **({"protocols": _protocols(found.library)} if found.library else {}),
        **({"contention": used.model_dump(exclude={"source"})} if used else {}),
        **({"backends": [_backend(*entry) for entry in found.backends]} if found.backends else {}),
        "link_bound_of_64MiB_s": {kind: lower_bound_s(kind, _MEBIBYTES_64, everyone) for kind in kinds},
        "source": found.source,
    }


def study(name_or_file: str) -> dict[str, Any]:
    """Describe a study: what varies, and what is computed and drawn of its cases."""
    found = load_study(name_or_file)
    return {
        "study": found.name,
        "title": found.title,
        **({"description": found.description} if found.description else {}),
        **({"source": found.source} if found.source else {}),
        "cases": found.size,
        "varies": {name: ", ".join(map(str, values)) for name, values in found.axes.items()},
        "baseline": {name: str(value) for name, value in found.baseline.items()},
        **({"where": "; ".join(found.file.where)} if found.file.where else {}),
        "columns": dict(found.columns),
        "views": [{"kind": view.kind, "x": view.x, "y": view.y, "title": view.title} for view in found.views],
    }


def link_type(name_or_file: str) -> dict[str, Any]:
    """Describe a link type: its numbers with their sources."""
    found = load_link_type(name_or_file)
    parts = {"cable": found.cable, "switch": found.switch}
    return {
        "link_type": name_or_file,
        "link": found.link,
        "bandwidth_bytes_per_s": found.bytes_per_s,
        "latency_s": found.latency_s,
        "library": found.library,
        **{name: part.model_dump(exclude_none=True) for name, part in parts.items() if part},
        **({"included": found.included} if found.included else {}),
        "sources": dict(sources_of(name_or_file)),
    }


def _dimension(found: Dimension, names: Sequence[str]) -> dict[str, Any]:
    """Say what a dimension is; what its kind does not have is left out."""
    fabric, host_bytes_per_s = found.fabric, found.through_host_bytes_per_s
    optional = {
        "radices": found.radices,
        "oversubscription": found.oversubscription,
        "in_network_reduction": found.in_network_reduction,
        "through_host_bytes_per_s": host_bytes_per_s if math.isfinite(host_bytes_per_s) else None,
        "global_links": found.global_links,
        "level_latency": ", ".join(map(format_seconds, found.level_latency_s)),
    }
    return {
        "names": ", ".join(names),
        "kind": found.kind,
        "size": found.size,
        "bandwidth_bytes_per_s": found.bytes_per_s,
        "latency_s": found.latency_s,
        **{key: value for key, value in optional.items() if value},
        **({"switches": len(fabric.switches), "links": len(fabric.links)} if fabric else {}),
    }


def _protocols(found: Library) -> list[dict[str, Any]]:
    """What each protocol of a communication library takes, a row a kind of link."""
    return [
        {
            "protocol": protocol.name,
            "collectives": ", ".join(protocol.collectives) + _served(protocol),
            "link": hop.link,
            "startup_s": protocol.actual.startup_s,
            "latency_s": hop.latency_s,
            "efficiency": hop.efficiency,
        }
        for protocol in found.protocols
        for hop in protocol.actual.hops
    ]


def _served(protocol: Protocol) -> str:
    """Say which algorithms a protocol alone serves, as NCCL calls them where it does; nothing where it serves all."""
    names = [ALGORITHMS[name].nccl for name in protocol.algorithms if name in ALGORITHMS and ALGORITHMS[name].nccl]
    words = names or list(protocol.algorithms)
    return f" by {' or '.join(words)}" if words else ""


def _backend(name: str, found: Library) -> dict[str, Any]:
    several = any(protocol.concurrent for protocol in found.protocols)
    return {
        "backend": name,
        "library": found.name,
        "all_reduce": ", ".join(found.algorithms_for("all_reduce")),
        "calls": "block the host" if found.blocks_host else "side by side" if several else "one at a time",
    }


def _changes(found: Topology) -> dict[str, str]:
    """Name each changed link, and say what is left of it."""
    return {
        name_link(found.dimensions, change): f"{change.factor:g} of its bandwidth" if change.factor else "broken"
        for change in found.changes
    }


def _power(found: Power) -> dict[str, float]:
    per = {"flop": found.energy, "sent_byte": found.sent}
    joules = {f"{kind}_joules_per_{unit}": value for unit, values in per.items() for kind, value in values}
    joules["joules_per_byte"] = joules.pop("byte_joules_per_flop")
    return found.model_dump(exclude={"energy", "sent"}) | joules


def device(name_or_file: str) -> dict[str, Any]:
    """Describe a device: its rates with their sources, and how well its measured kernels predict each other."""
    found = load_device(name_or_file)
    facts: dict[str, Any] = {
        "device": found.name,
        "title": found.title,
        "peak_flops_per_s": dict(found.peak_flops_per_s),
        "memory_size_bytes": found.memory_bytes,
        "memory_reserved_bytes": found.reserved_bytes,
        "memory_bandwidth_bytes_per_s": found.memory_bytes_per_s,
        "l2_bytes": found.l2_bytes,
        "sms": found.num_sms,
        "link_bandwidth_each_way_bytes_per_s": found.link_bytes_per_s,
        "host_launch_s": dict(found.host_launch_s),
        "launch_gap_s": found.launch_gap_s,
        **({"work_groups": found.work_groups.model_dump()} if found.work_groups else {}),
        **({"power": _power(found.power)} if found.power else {}),
        **({"rent_dollars_per_hour": found.rent_per_s * 3600} if found.rent_per_s is not None else {}),
        "sources": dict(found.sources),
    }
    if not found.kernel_files:
        how = f"roofline, with the efficiency that the nearest kernel reached on {found.efficiency_from}"
        how += ", times the calibration of its class" if found.calibration else ""
        return {**facts, "kernel_times": how, "calibration": dict(found.calibration)}
    if found.calibration:
        facts["calibration"] = dict(found.calibration)
    facts["leave_one_out_error"] = [
        {
            "operation": row.op,
            "dtype": row.dtype,
            "shapes": row.num_shapes,
            "median_error": float(row.median),
            "p90_error": float(row.p90),
        }
        for row in leave_one_out(found)
    ]
    return facts
