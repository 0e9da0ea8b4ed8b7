"""`scaleout trace`: write a workload as Chakra execution traces, one file a rank."""

from pathlib import Path
from shlex import quote

import click

import scaleout
from scaleout.cli.job import NamedJob, on_gpus
from scaleout.cli.options import FOLDER, NAME_OR_FILE, Whole, check_named_once, json_option, parse_settings, set_option
from scaleout.cli.printing import say, say_json


@click.command()
@click.argument("workload")
@click.option("--output", required=True, type=FOLDER, help="Directory for the traces.")
@click.option("--device", type=NAME_OR_FILE, help="Device that times the kernels; by default the workload's.")
@click.option("--gpus", type=Whole(), metavar="N", help="Ranks: as many replicas (data_parallel) as that makes.")
@set_option()
@json_option
def trace(
    workload: str, output: Path, device: str | None, gpus: int | None, settings: tuple[str, ...], as_json: bool
) -> None:
    """Write WORKLOAD as Chakra execution traces.

    The files <name>.<rank>.et are read by ASTRA-sim and by `scaleout run --trace`.
    """
    from scaleout.cli.progress import progress
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.nodes import Sized
    from scaleout.cluster.topology.what_if import NetworkChanges
    from scaleout.config.units import counted
    from scaleout.config.writing import check_writable
    from scaleout.interop.chakra.save import save_program
    from scaleout.study.job import timed
    from scaleout.workloads.families import load_workload

    check_writable(output)
    check_named_once(changes := parse_settings(settings), device=device)
    asked = NamedJob(workload, None, device, changes, NetworkChanges())
    asked = asked if gpus is None else on_gpus(asked, gpus)
    job = load_workload(workload, asked.settings)
    network = Sized(asked.topology or job.topology, asked.changes.nodes)  # its name is in the traces
    fits = asked.load_topology(network.topology).num_ranks == job.num_ranks
    on = load_device(device or job.device)
    with progress(kept="nothing is kept", quiet=as_json) as tell:
        tell(0, 2, "graphs generated, files written")
        program = timed(job, on)
        facts = {"workload": job.name, "device": on.name, "topology": network.topology}
        tell(1, 2, "graphs generated, files written")
        files = save_program(program, output, name=job.name, facts=facts)
    model = f"kernel times of {on.name}, no network, no host, unthrottled clocks, scaleout {scaleout.__version__}"
    written = f"{counted(len(files), 'file')} in {output}, for {counted(program.num_ranks, 'rank')}"
    answer = {"written": written, "topology": network.topology, "model": model}
    if as_json:
        from scaleout.api.inputs import inputs_of
        from scaleout.report.documents import document

        found = {**facts, "ranks": program.num_ranks, "output": str(output), "num_files": len(files)}
        inputs = inputs_of({**facts, "workload": workload}, settings=asked.settings)
        say_json(document("trace", found, inputs=inputs, models=[model], answer=answer))
        return
    from scaleout.cli.console import print_answer

    print_answer(f"{job.name} as Chakra execution traces", answer)
    other = f" {network.options}" if fits and network.nodes else "" if fits else " --topology NAME"
    say(f"scaleout run --trace {quote(str(output))}{other}")
