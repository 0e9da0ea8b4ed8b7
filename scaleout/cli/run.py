"""`scaleout run`: simulate a job under several schedules and say where the time goes."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import (
    SIMULATION,
    NamedJob,
    job_options,
    json_option,
    output_option,
    print_files,
    simulation_options,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaleout.simulation.options import SimulationOptions
    from scaleout.study.comparison import Comparison


@click.command()
@job_options(required=False, faults=True)
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="S",
    help="Such as baseline, overlap or fused, as `scaleout list schedules` names them, or several joined by +; "
    "repeatable. Speed-ups are over the first.",
)
@simulation_options(*SIMULATION)
@click.option(
    "--trace", "trace_path", metavar="DIR", help="Run the Chakra traces in a directory instead of a workload."
)
@output_option("Write tables, timeline and figure here.")
@json_option
def run(
    job: NamedJob,
    schedules: tuple[str, ...],
    options: "SimulationOptions",
    trace_path: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Simulate WORKLOAD, a name or file, under several schedules and print where the time goes.

    Examples: scaleout run dlrm-128 --output results; scaleout run llama-3-8b --set tensor_parallel=8
    --set data_parallel=16 --topology dgx-h200-16; scaleout run dlrm-128 --break 3-4 --slow 5=1.3.

    --degrade, --break and --slow name ranks by their numbers in the topology.
    """
    from scaleout.errors import ConfigError
    from scaleout.study.comparison import compare

    if job.workload is None and trace_path is None:
        raise ConfigError(
            "give a workload, such as `scaleout run dlrm-128` (`scaleout list workloads`), or --trace DIR"
        )
    if job.workload is not None and trace_path is not None:
        raise ConfigError(f"give either the workload {job.workload} or --trace {trace_path}, not both")
    if trace_path is None:
        workload, topology, device = job.load()
        comparison = compare(workload, topology=topology, device=device, schedules=schedules, options=options)
    else:
        comparison = _compare_trace(trace_path, job, schedules, options)
    written = _write(comparison, output)
    if as_json:
        click.echo(json.dumps(comparison.summary(), indent=2))
        return
    from scaleout.cli.tables import print_comparison

    print_comparison(comparison)
    print_files(written)


def _compare_trace(path: str, job: NamedJob, schedules: "Sequence[str]", options: "SimulationOptions") -> "Comparison":
    """Simulate traces on the network that they ran on or shall run on; kernels take their time on a device given."""
    from scaleout.cluster.device.annotate import time_kernels
    from scaleout.cluster.device.spec import load_device
    from scaleout.config import library
    from scaleout.errors import ConfigError
    from scaleout.interop import chakra
    from scaleout.study.comparison import DEFAULT_SCHEDULES, compare_program
    from scaleout.study.job import check_traced

    check_traced(options)
    if job.settings:
        raise ConfigError("--set changes a workload, which a trace has none of; leave it out")
    loaded = chakra.load_program(path)
    program, traced_on = loaded.program, loaded.facts.get("device", "as traced")
    if job.topology is None and "topology" not in loaded.facts:
        raise ConfigError(f"{path}: the trace does not say on which network it ran; give --topology")
    device = load_device(job.device or traced_on) if job.device or traced_on in library.names("device") else traced_on
    if job.device is not None:
        program = time_kernels(program, load_device(job.device), recompute=True)
    topology = job.load_topology(loaded.facts.get("topology", ""))
    schedules = schedules or DEFAULT_SCHEDULES
    return compare_program(program, topology=topology, device=device, schedules=schedules, options=options)


def _write(comparison: "Comparison", output: Path | None) -> list[tuple[Path, str]]:
    if output is None:
        return []
    from scaleout.report.files import write

    return write(comparison, output)
