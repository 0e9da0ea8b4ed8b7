"""`scaleout run`: simulate a job under several schedules and say where the time goes."""

import gc
from functools import partial
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import (
    SIMULATION,
    NamedJob,
    Output,
    change_ranks,
    job_options,
    output_options,
    pairs_of,
    simulation_options,
)
from scaleout.errors import ConfigError, ScaleoutError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaleout.interop.chakra.load import LoadedTrace
    from scaleout.simulation.options import SimulationOptions
    from scaleout.study.comparison import Comparison


@click.command()
@job_options(required=False, faults=True)
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="NAME",
    help="How communication is overlapped, fused or partitioned, not the pipeline schedule (--set pipeline_schedule): "
    "baseline, which overlaps nothing; overlap, to which PyTorch and Megatron-LM are nearer; fused; others (`scaleout "
    "list schedules`); or several joined by +. Repeatable; speed-ups are over the first. By default those of the "
    "workload, or baseline, overlap and fused.",
)
@simulation_options(*SIMULATION)
@click.option(
    "--trace", "trace_path", metavar="DIRECTORY", help="Simulate the Chakra traces of a directory, not a workload."
)
@click.option(
    "--edit",
    "edits",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a recorded job of --trace: batch, sequence, layers or accumulate by a factor (2x) or OLD->NEW, or "
    "bucket=SIZE of gradients; repeatable.",
)
@output_options("Write tables, timeline and figure here.")
def run(
    job: NamedJob,
    schedules: tuple[str, ...],
    options: "SimulationOptions",
    trace_path: str | None,
    edits: tuple[str, ...],
    output: Output,
) -> None:
    """Simulate a step of WORKLOAD, and print where the time goes.

    WORKLOAD is a name (`scaleout list workloads`) or a file; it is simulated under each --schedule. Where one of them
    fails, the others are printed, then why it failed, and the exit code is not zero.

    Examples: scaleout run dlrm-128 --output results; scaleout run llama-3-8b --set tensor_parallel=8
    --set data_parallel=16 --topology dgx-h200-16; scaleout run dlrm-128 --break 3-4 --slow 5=1.3.

    --degrade, --break and --slow number the ranks as the topology does, whatever the --placement.
    """
    from scaleout.study.comparison import compare

    if job.workload is None and trace_path is None:
        raise ConfigError(
            "give a workload, such as `scaleout run dlrm-128` (`scaleout list workloads`), or --trace DIR"
        )
    if job.workload is not None and trace_path is not None:
        raise ConfigError(f"give either the workload {job.workload} or --trace {trace_path}, not both")
    if trace_path is None:
        if edits:
            raise ConfigError(f"--edit {edits[0]} changes a recording (--trace); a workload is changed by --set")
        workload, topology, device = job.load()
        comparison = compare(workload, topology=topology, device=device, schedules=schedules, options=options)
    else:
        comparison = _compare_trace(trace_path, job, schedules, options, edits)
    from scaleout.cli.tables import print_comparison
    from scaleout.report.files import write

    output.give(comparison.summary(), partial(print_comparison, comparison), partial(write, comparison))
    if comparison.failures:
        raise ScaleoutError("; ".join(map(str, comparison.failures)))


def _compare_trace(
    path: str, job: NamedJob, schedules: "Sequence[str]", options: "SimulationOptions", edits: "Sequence[str]"
) -> "Comparison":
    """Simulate traces on the network that they ran on or shall run on; kernels take their time on a device given."""
    from scaleout.cluster.device.annotate import time_kernels
    from scaleout.cluster.device.spec import load_device
    from scaleout.config import library
    from scaleout.interop.chakra.load import load_program
    from scaleout.study.comparison import DEFAULT_SCHEDULES, compare_program
    from scaleout.study.job import check_traced

    check_traced(options)
    if job.settings:
        raise ConfigError("--set changes a workload, which a trace has none of; leave it out")
    loaded = load_program(path)
    gc.collect()  # gives back what reading took, a tenth of the memory of a large trace's simulation
    program, traced_on = loaded.program, loaded.facts.get("device", "as traced")
    if "recorded" in loaded.facts:
        return _compare_recording(path, loaded, job, schedules, options, edits)
    if edits:
        raise ConfigError(
            f"--edit {edits[0]}: {path} is no recording of `scaleout import`; change the job that it is of"
        )
    if job.topology is None and "topology" not in loaded.facts:
        raise ConfigError(f"{path}: the trace does not say on which network it ran; give --topology")
    device = load_device(job.device or traced_on) if job.device or traced_on in library.names("device") else traced_on
    if job.device is not None:
        program = time_kernels(program, load_device(job.device), recompute=True)
    topology = job.load_topology(loaded.facts.get("topology", ""))
    schedules = schedules or DEFAULT_SCHEDULES
    return compare_program(program, topology=topology, device=device, schedules=schedules, options=options)


def _compare_recording(
    path: str,
    loaded: "LoadedTrace",
    job: NamedJob,
    schedules: "Sequence[str]",
    options: "SimulationOptions",
    edits: "Sequence[str]",
) -> "Comparison":
    """Replay a recording, or simulate its kernels on another network."""
    from scaleout.cluster.device.spec import load_device
    from scaleout.config import library
    from scaleout.study.comparison import compare_program
    from scaleout.study.edits import edited
    from scaleout.study.recording import described, on_network, replayed, with_shares

    if job.device is not None:
        raise ConfigError("--device: kernels of a recording take the time that was recorded; leave it out")
    traced_on = loaded.facts.get("device", "as recorded")
    device = load_device(traced_on) if traced_on in library.names("device") else traced_on
    recording = described(loaded.program, loaded.facts, device)
    changed = edited(recording, pairs_of(edits, option="--edit", form="as batch=2x or layers=8->4"))
    program = changed.program
    if job.topology is None:
        if job.degrade or job.broken:
            raise ConfigError(f"{path}: a recording does not say on which network it ran; give --topology")
        topology, options = replayed(program, options)
        topology = change_ranks(topology, job.slow)
    else:
        program, topology = on_network(program), job.load_topology("")
    compared = compare_program(
        program, topology=topology, device=device, schedules=schedules or ("recorded",), options=options
    )
    return with_shares(compared, loaded.facts, tuple(changed.notes))
