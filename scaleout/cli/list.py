"""`scaleout list`: the names that other verbs take."""

import click

from scaleout.cli.printing import say

KINDS = (
    *(
        "workloads",
        "topologies",
        "link-types",
        "devices",
        "studies",
        "schedules",
        "strategies",
        "frameworks",
        "pipelines",
        "collectives",
    ),
    "operators",
)


@click.command(name="list")
@click.argument("kind", required=False, type=click.Choice(KINDS))
def list_names(kind: str | None) -> None:
    """List the names that other verbs take; by default of all kinds."""
    for each in KINDS if kind is None else (kind,):
        if kind is None:
            say(f"{each}:")
        for name in _names(each):
            say(name if kind else f"  {name}")


def _names(kind: str) -> list[str]:
    from scaleout.config import library
    from scaleout.network import collectives
    from scaleout.schedule import SCHEDULES
    from scaleout.schedule.fusion import OPERATORS
    from scaleout.study.strategies import STRATEGIES
    from scaleout.workloads.families.frameworks import FRAMEWORKS
    from scaleout.workloads.pipeline import PIPELINES

    plurals = {"topologies": "topology", "studies": "study"}
    if (file := plurals.get(kind, kind.removesuffix("s").replace("-", " "))) in library.FOLDERS:
        return library.names(file)
    if kind == "collectives":
        of = {k: [a.name for a in collectives.ALGORITHMS.values() if k in a.schedules] for k in collectives.KINDS}
        return [f"{name} ({', '.join(algorithms)})" for name, algorithms in of.items()]
    said = {
        "schedules": {name: each.summary for name, each in SCHEDULES.items()},
        "strategies": {name: f"{each.description}; {each.source}" for name, each in STRATEGIES.items()},
        "frameworks": {name: f"{each.summary}; {each.source}" for name, each in FRAMEWORKS.items()},
        "pipelines": {each.name: f"{each.description}; {each.source}" for each in PIPELINES.values()},
        "operators": {n: f"{each.summary}; {', '.join(each.settings.model_fields)}" for n, each in OPERATORS.items()},
    }
    return [f"{name} ({words})" for name, words in said[kind].items()]
