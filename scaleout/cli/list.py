"""`scaleout list`: the names that other verbs take."""

import click

KINDS = ("workloads", "topologies", "devices", "schedules", "strategies", "pipelines", "collectives", "operators")


@click.command(name="list")
@click.argument("kind", required=False, type=click.Choice(KINDS), metavar="[KIND]")
def list_names(kind: str | None) -> None:
    """List workloads, topologies, devices, schedules, strategies, pipelines, collectives, operators; by default all."""
    for each in KINDS if kind is None else (kind,):
        if kind is None:
            click.echo(f"{each}:")
        for name in _names(each):
            click.echo(name if kind else f"  {name}")


def _names(kind: str) -> list[str]:
    from scaleout.config import library
    from scaleout.network import collectives
    from scaleout.schedule import SCHEDULES
    from scaleout.schedule.fusion import OPERATORS
    from scaleout.study.strategies import STRATEGIES
    from scaleout.workloads.pipeline import PIPELINES

    if kind == "schedules":
        return [f"{name} ({each.summary})" for name, each in SCHEDULES.items()]
    if kind == "strategies":
        return [f"{name} ({each.description}; {each.source})" for name, each in STRATEGIES.items()]
    if kind == "pipelines":
        return [f"{each.name} ({each.description}; {each.source})" for each in PIPELINES.values()]
    if kind == "collectives":
        names = []
        for name in collectives.KINDS:
            algorithms = [a.name for a in collectives.ALGORITHMS.values() if name in a.schedules]
            names.append(f"{name} ({', '.join(algorithms)})")
        return names
    if kind == "operators":
        return [f"{name} ({each.summary}; {', '.join(each.settings.model_fields)})" for name, each in OPERATORS.items()]
    return library.names({"workloads": "workload", "topologies": "topology", "devices": "device"}[kind])
