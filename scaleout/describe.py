"""Files to facts: what a workload, topology, device or trace means, as plain values for tables and JSON."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from scaleout import chakra
from scaleout.collectives import KINDS
from scaleout.device import load_device
from scaleout.generators import generate
from scaleout.graph import NodeKind
from scaleout.kernels import leave_one_out
from scaleout.network.bound import wire_bound
from scaleout.placement import place
from scaleout.topology import load_topology
from scaleout.units import format_bytes, format_bytes_per_s, format_flops_per_s, format_seconds
from scaleout.workload import load_workload

_MEBIBYTES_64 = 64 * 2.0**20


def workload(name_or_file: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Describe a workload: its keys, and what its step comes to."""
    job = load_workload(name_or_file, changes)
    program = generate(job)
    kinds: Counter[str] = Counter()
    payload: Counter[str] = Counter()
    graph = program.graphs[0]
    for node in range(len(graph)):
        kinds[graph.operation(node)] += 1
        if graph.kind[node] != NodeKind.COMPUTE:
            payload[graph.operation(node)] += int(graph.bytes[node])
    return {
        "workload": job.name,
        "description": job.description,
        "source": job.source,
        "ranks": job.num_ranks,
        "flops": program.total_flops,
        "flops_per_rank": graph.total_flops,
        "payload_bytes_per_rank": dict(payload),
        "nodes_per_rank": len(graph),
        "operations": dict(kinds.most_common()),
        "keys": job.model_dump(mode="json", exclude={"name", "description", "source"}),
    }


def topology(name_or_file: str) -> dict[str, Any]:
    """Describe a topology: its dimensions, and the least time that 64 MiB of each collective over all ranks takes."""
    found = load_topology(name_or_file)
    everyone = place(found, range(found.num_ranks))
    kinds = [kind for kind in KINDS if kind != "send"]
    return {
        "topology": found.name,
        "ranks": found.num_ranks,
        "dimensions": [
            {
                "kind": dimension.kind,
                "size": dimension.size,
                "bandwidth": format_bytes_per_s(dimension.bytes_per_s),
                "latency": format_seconds(dimension.latency_s),
            }
            for dimension in found.dimensions
        ],
        "startup": format_seconds(found.startup_s),
        "wire_bound_of_64MiB": {kind: format_seconds(wire_bound(kind, _MEBIBYTES_64, everyone)) for kind in kinds},
        "source": found.source,
    }


def device(name_or_file: str) -> dict[str, Any]:
    """Describe a device: its rates with their sources, and how well its measured kernels predict each other."""
    found = load_device(name_or_file)
    facts: dict[str, Any] = {
        "device": found.name,
        "title": found.title,
        "peak": {dtype: format_flops_per_s(rate) for dtype, rate in found.peak_flops_per_s.items()},
        "memory": f"{format_bytes(found.memory_bytes)} at {format_bytes_per_s(found.memory_bytes_per_s)}",
        "l2": format_bytes(found.l2_bytes),
        "sms": found.num_sms,
        "links": f"{format_bytes_per_s(found.link_bytes_per_s)} each way",
        "sources": dict(found.sources),
    }
    if not found.kernel_files:
        facts["kernel_times"] = (
            f"roofline, with the efficiency that the nearest kernel reached on {found.efficiency_from}"
        )
        return facts
    facts["leave_one_out_error"] = [
        {
            "operation": row.op,
            "dtype": row.dtype,
            "shapes": row.num_shapes,
            "median": f"{row.median:.1%}",
            "p90": f"{row.p90:.1%}",
        }
        for row in leave_one_out(found)
    ]
    return facts


def trace(path: str) -> dict[str, Any]:
    """Describe a Chakra trace file: its metadata, its nodes by type, and its totals."""
    metadata, nodes = chakra.read(path)
    types = Counter(chakra.NodeType(node.type).name for node in nodes)
    return {
        "trace": path,
        "version": metadata.version,
        "metadata": chakra.to_dict(metadata).get("attr", []),
        "nodes": len(nodes),
        "types": dict(types.most_common()),
        "dependencies": sum(len(node.data_deps) + len(node.ctrl_deps) for node in nodes),
        "duration": format_seconds(sum(node.duration_micros for node in nodes) / 1e6),
        "communication_bytes": sum(chakra.get(node, "comm_size", int, default=0) for node in nodes),
    }
