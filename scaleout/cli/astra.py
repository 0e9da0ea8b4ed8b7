"""`scaleout astra`: ASTRA-sim's own inputs and options, answered to the nanosecond."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaleout.cli.options import json_option

if TYPE_CHECKING:
    from scaleout.astra import Outcome

_FILE = click.Path(path_type=Path)


@click.command()
@click.option("--workload-configuration", required=True, type=_FILE, metavar="PREFIX", help="Traces: PREFIX.<rank>.et.")
@click.option("--system-configuration", required=True, type=_FILE, metavar="FILE", help="system.json.")
@click.option("--network-configuration", required=True, type=_FILE, metavar="FILE", help="network.yml.")
@click.option("--remote-memory-configuration", type=_FILE, metavar="FILE", help="Changes no time.")
@click.option("--comm-group-configuration", type=_FILE, metavar="FILE", help="Communicator groups, as JSON.")
@click.option("--logging-configuration", metavar="FILE", help="Ignored: no log is written.")
@click.option("--logging-folder", metavar="FOLDER", help="Ignored: no log is written.")
@click.option("--num-queues-per-dim", default=1, show_default=True, help="Queues of each dimension.")
@click.option("--compute-scale", default=1.0, show_default=True, help="Has no effect, as in ASTRA-sim.")
@click.option("--comm-scale", default=1.0, show_default=True, help="Has no effect, as in ASTRA-sim.")
@click.option("--injection-scale", default=1.0, show_default=True, help="Multiplies endpoint-delay.")
@click.option(
    "--rendezvous-protocol", type=bool, is_flag=False, flag_value=True, default=False, help="Receivers ask first."
)
@click.option("--backend", default="unaware", show_default=True, help="unaware of contention, or aware of it.")
@json_option
def astra(
    workload_configuration: Path,
    system_configuration: Path,
    network_configuration: Path,
    remote_memory_configuration: Path | None,
    comm_group_configuration: Path | None,
    logging_configuration: str | None,
    logging_folder: str | None,
    num_queues_per_dim: int,
    compute_scale: float,
    comm_scale: float,
    injection_scale: float,
    rendezvous_protocol: bool,
    backend: str,
    as_json: bool,
) -> None:
    """Run ASTRA-sim's own inputs by its own timing rules: the same options, the same nanoseconds.

    What ASTRA-sim takes in silence and then hangs on or answers wrongly is refused with a reason.
    """
    from scaleout.astra import Options, run

    outcome = run(
        Options(
            workload=workload_configuration,
            system=system_configuration,
            network=network_configuration,
            remote_memory=remote_memory_configuration,
            groups=comm_group_configuration,
            num_queues=num_queues_per_dim,
            compute_scale=compute_scale,
            comm_scale=comm_scale,
            injection_scale=injection_scale,
            rendezvous=rendezvous_protocol,
            backend=backend,
        )
    )
    for note in outcome.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        click.echo(json.dumps(_facts(outcome, backend), indent=2))
        return
    _print(outcome, f"{workload_configuration.name}, ranks {len(outcome.per_rank_ns)}, backend {backend}")


def _facts(outcome: "Outcome", backend: str) -> dict[str, object]:
    return {
        "backend": backend,
        "ranks": len(outcome.per_rank_ns),
        "time_ns": outcome.time_ns,
        "exposed_communication_ns": max(outcome.exposed_ns),
        "per_rank_ns": outcome.per_rank_ns,
        "per_rank_exposed_communication_ns": outcome.exposed_ns,
        "per_rank_compute_ns": outcome.compute_ns,
        "per_rank_communication_ns": outcome.communication_ns,
    }


def _print(outcome: "Outcome", title: str) -> None:
    """Print a line a rank as ASTRA-sim does, then the first and the last rank to finish."""
    from scaleout.cli.console import print_table

    lines = [
        f"sys[{rank}] finished, {end} cycles, exposed communication {exposed} cycles."
        for rank, (end, exposed) in enumerate(zip(outcome.per_rank_ns, outcome.exposed_ns, strict=True))
    ]
    click.echo("\n".join(lines) + "\n")
    by_end = sorted(range(len(lines)), key=lambda rank: outcome.per_rank_ns[rank])
    columns = ("", "rank", "finish [ns]", "compute [ns]", "communication [ns]", "exposed [ns]")
    rows = [
        [name, *map(str, (rank, *(values[rank] for values in _columns(outcome))))]
        for name, rank in (("first", by_end[0]), ("last", by_end[-1]))
    ]
    print_table(title, columns, rows)


def _columns(outcome: "Outcome") -> list[tuple[int, ...]]:
    return [outcome.per_rank_ns, outcome.compute_ns, outcome.communication_ns, outcome.exposed_ns]
