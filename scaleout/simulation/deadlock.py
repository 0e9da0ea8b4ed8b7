"""Why a program cannot finish: who waits for whom, with names, for the user."""

import numpy as np

from scaleout.cluster.topology.peers import peer_of
from scaleout.program.graph import NodeKind
from scaleout.simulation.engine import Tasks, Times
from scaleout.simulation.job import CollectiveInstances, Job, locate, name_of, say


def why_stuck(job: Job, tasks: Tasks, times: Times, instances: CollectiveInstances) -> str:
    """Say who waits for whom, from the collectives at which some members have come and others have not."""
    reasons: list[str] = []
    for index, instance in enumerate(instances):
        come = [task for task in instance.tasks if times.posted[task]]
        if not come:
            continue
        classes = {locate(job, task)[0] for task in come}
        absent = [
            c for c in job.folding.families[instance.family].members_of_class[instance.group_class] if c not in classes
        ]
        ranks = [int(job.folding.representative[number]) for number in absent]
        number, node = locate(job, come[0])
        never = len(instance.tasks) < tasks.instance_size[index]
        verb = "never calls it" if never else "has not reached it"
        reasons.append(
            f"{name_of(job, number, node)} waits in {say(job.graphs[number], node)} for rank "
            f"{', '.join(map(str, ranks))}, which {verb}"
        )
    advice = "all members of a group must call the same collectives in the same order"
    if not reasons:
        reasons = _waiting_for_messages(job, times)
        advice = "ranks wait for each other's messages in a circle; let one of them send before it receives"
    more = f" (and {len(reasons) - 3} more like it)" if len(reasons) > 3 else ""
    return f"the program cannot finish: {'; '.join(reasons[:3])}{more}; {advice}"


def _waiting_for_messages(job: Job, times: Times) -> list[str]:
    """Name the ends of messages that lack nothing but the other end."""
    reasons = []
    for number, (offset, graph) in enumerate(zip(job.offsets, job.graphs, strict=False)):
        started = ~np.isnan(times.start_s[offset : offset + len(graph)])
        for node in np.flatnonzero((graph.kind > NodeKind.COLLECTIVE) & ~started).tolist():
            if started[graph.dependencies_of(node)].all():
                peer = peer_of(job.program, int(job.folding.representative[number]), graph, node)
                verb = "waits to send a message to" if graph.kind[node] == NodeKind.SEND else "waits for a message from"
                reasons.append(f"{name_of(job, number, node)} {verb} rank {peer}")
    return reasons
