"""`scaleout run`: simulate a job under several schedules and say where the time goes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import (
    algorithm_option,
    change_links,
    change_ranks,
    contention_option,
    injection_option,
    json_option,
    link_options,
    parse_algorithms,
    parse_settings,
    policy_option,
    set_option,
)

if TYPE_CHECKING:
    from scaleout.cluster.machine import Machine
    from scaleout.cluster.topology.topology import Topology
    from scaleout.program.program import Program
    from scaleout.study.comparison import Comparison


@click.command()
@click.argument("workload", required=False)
@click.option("--topology", metavar="T", help="Name or file of the network; by default the workload's.")
@click.option("--device", metavar="D", help="Name or file of the device; by default the workload's.")
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="S",
    help="Such as baseline, overlap or fused, as `scaleout list schedules` names them, or several joined by +; "
    "repeatable. Speed-ups are over the first.",
)
@set_option
@algorithm_option
@click.option("--host", default="none", show_default=True, help="How the host issues a step: none (at once) or eager.")
@click.option(
    "--clocks",
    default="alone",
    show_default=True,
    help="Clocks of kernels: alone, sustained at the power limit, or from_rest: a few steps, cool at first.",
)
@click.option("--network", default="alpha_beta", show_default=True, help="Network model: alpha_beta or link.")
@injection_option
@policy_option
@contention_option
@link_options
@click.option("--slow", multiple=True, metavar="RANK=FACTOR", help="Slow a rank's kernels: 5=1.3; repeatable.")
@click.option(
    "--placement",
    default="linear",
    show_default=True,
    metavar="P",
    help="Where ranks lie: linear, transposed, order:1,0, strided:8, random:SEED, a list of places, or a file of one.",
)
@click.option(
    "--trace", "trace_path", metavar="DIR", help="Run the Chakra traces in a directory instead of a workload."
)
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Write tables, timeline and figure here."
)
@json_option
def run(
    workload: str | None,
    topology: str | None,
    device: str | None,
    schedules: tuple[str, ...],
    settings: tuple[str, ...],
    algorithms: tuple[str, ...],
    network: str,
    injection: str | None,
    policy: str | None,
    contention: bool,
    host: str,
    clocks: str,
    degrade: tuple[str, ...],
    broken: tuple[str, ...],
    slow: tuple[str, ...],
    placement: str,
    trace_path: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Simulate WORKLOAD, a name or file, under several schedules and print where the time goes.

    Examples: scaleout run dlrm-128 --output results; scaleout run llama-3-8b --set tensor_parallel=8
    --set data_parallel=16 --topology dgx-h200-16; scaleout run dlrm-128 --break 3-4 --slow 5=1.3.

    --degrade, --break and --slow name ranks by their places in the topology.
    """
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.config.units import BYTES_PER_S, parse
    from scaleout.errors import ConfigError
    from scaleout.study.comparison import DEFAULT_SCHEDULES, compare, compare_program
    from scaleout.workloads.config import load_workload

    chosen = parse_algorithms(algorithms)
    limit = None if injection is None else parse(injection, BYTES_PER_S)
    if workload is None and trace_path is None:
        raise ConfigError(
            "give a workload, such as `scaleout run dlrm-128` (`scaleout list workloads`), or --trace DIR"
        )
    if workload is not None and trace_path is not None:
        raise ConfigError(f"give either the workload {workload} or --trace {trace_path}, not both")
    if workload is not None:
        job = load_workload(workload, parse_settings(settings))
        cluster = load_topology(topology or job.topology)
        comparison = compare(
            job,
            topology=change_ranks(change_links(cluster, degrade, broken), slow),
            device=device,
            schedules=schedules,
            algorithms=chosen,
            network=network,
            host=host,
            placement=placement,
            injection_bytes_per_s=limit,
            contention=contention,
            clocks=clocks,
            policy=policy,
        )
    else:
        if clocks != "alone":
            raise ConfigError("--clocks is for workloads: a trace's kernels say how long they took; leave it out")
        if host != "none":
            raise ConfigError("--host is for workloads: a trace's kernels say when they ran; leave it out")
        if policy is not None:
            raise ConfigError("--policy is for workloads; leave it out, or give --algorithm all_reduce=NAME")
        if settings:
            raise ConfigError("--set changes a workload, which a trace has none of; leave it out")
        program, cluster, traced_on = _load_trace(str(trace_path), topology, device)
        network_of_trace = change_ranks(change_links(cluster, degrade, broken), slow)
        comparison = compare_program(
            program,
            topology=network_of_trace,
            device=traced_on,
            schedules=schedules or DEFAULT_SCHEDULES,
            algorithms=chosen,
            network=network,
            placement=placement,
            injection_bytes_per_s=limit,
            machine=_machine(device, traced_on, network_of_trace),
        )
    written = _write(comparison, output)
    if as_json:
        click.echo(json.dumps(comparison.summary(), indent=2))
        return
    from scaleout.cli.tables import print_comparison

    print_comparison(comparison)
    for path, meaning in written:
        click.echo(f"{path}  {meaning}")


def _load_trace(path: str, topology: str | None, device: str | None) -> "tuple[Program, Topology, str]":
    """Load a program from traces, the network that it ran on or shall run on, and the name of its device."""
    from scaleout.cluster.device.annotate import time_kernels
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.errors import ConfigError
    from scaleout.interop import chakra

    loaded = chakra.load_program(path)
    program, facts = loaded.program, loaded.facts
    topology = topology or facts.get("topology")
    if topology is None:
        raise ConfigError(f"{path}: the trace does not say on which network it ran; give --topology")
    if device is not None:
        program = time_kernels(program, load_device(device), recompute=True)
    return program, load_topology(topology), device or facts.get("device", "as traced")


def _machine(device: str | None, traced_on: str, topology: "Topology") -> "Machine | None":
    """Return what a trace's program will run on, if its device is one that we know."""
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.machine import Machine
    from scaleout.config import library

    known = device is not None or traced_on in library.names("device")
    return Machine(load_device(device or traced_on), topology) if known else None


def _write(comparison: "Comparison", output: Path | None) -> list[tuple[Path, str]]:
    if output is None:
        return []
    from scaleout.report.files import write

    return write(comparison, output)
