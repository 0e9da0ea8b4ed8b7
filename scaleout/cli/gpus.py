"""A number of GPUs to replicas of a job and nodes of its topology: what `--gpus` stands for."""

from dataclasses import replace

from scaleout.cli.options import NamedJob
from scaleout.errors import ConfigError


def on_gpus(job: NamedJob, gpus: int) -> NamedJob:
    """Return a job with as many replicas and nodes as make so many ranks.

    Raises
    ------
    ConfigError
        If the job is of no model of layers, replicas or nodes do not divide the GPUs, or either is given as well.
    """
    from scaleout.cluster.topology.topology import load_topology
    from scaleout.config.units import counted
    from scaleout.workloads.config import LayeredModel, load_workload

    given = "--nodes" if job.changes.nodes is not None else "--set data_parallel"
    if job.changes.nodes is not None or "data_parallel" in job.settings:
        raise ConfigError(f"--gpus {gpus} and {given} both say how many ranks there are; give one of them")
    workload = None if job.workload is None else load_workload(job.workload, job.settings)
    if not isinstance(workload, LayeredModel):
        raise ConfigError(f"--gpus {gpus} is for models of layers, which have replicas; give --set and --topology")
    model_ranks = workload.num_ranks // workload.data_parallel
    if gpus % model_ranks:
        raise ConfigError(
            f"--gpus {gpus}: a replica of this job takes {counted(model_ranks, 'rank')}; give a multiple, or other "
            f"degrees (--set tensor_parallel=1 --set pipeline_parallel=1)"
        )
    topology = load_topology(job.topology or workload.topology)
    inside = topology.num_ranks // topology.shape[-1]
    if topology.num_ranks != gpus and len(topology.dimensions) < 2:
        raise ConfigError(
            f"--gpus {gpus}: topology {topology.name!r} has {counted(topology.num_ranks, 'rank')} and no nodes that "
            f"there could be more of; give one that has, such as --topology dgx-h200-2 (`scaleout list topologies`)"
        )
    if gpus % inside:
        raise ConfigError(f"--gpus {gpus}: a node of topology {topology.name!r} has {inside}; give a multiple")
    nodes = None if topology.num_ranks == gpus else gpus // inside
    settings = {**job.settings, "data_parallel": gpus // model_ranks}
    return job._replace(settings=settings, changes=replace(job.changes, nodes=nodes))
