"""Published all-reduces of NCCL: nccl-tests on one node, one call after another.

Source: vTrain's NCCL traces, github.com/VIA-Research/vTrain, trace/a100 and trace/v100, AR_GPU*_LUT.
"""

from scaleout.cluster.machine import Machine
from scaleout.cluster.topology.placement import place
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.validation.measured.rows import Case, Family, NoModelError, Row


def all_reduce(row: Row, machine: Machine) -> Case:
    """An all-reduce over the first ranks of a node, as nccl-tests times it: one call after another."""
    topology, ranks, size_bytes = machine.topology, row.ranks(), row.number("bytes")
    if ranks > topology.num_ranks:
        raise NoModelError(f"{ranks} ranks are more than topology {topology.name!r} has")

    def predict_s() -> float:
        return collective_cost("all_reduce", size_bytes, place(topology, range(ranks))).time_s - topology.startup_s

    return Case(row.number("time_us") * 1e-6, predict_s)


TABLES = {
    "nccl_allreduce_a100_node": Family("NCCL", all_reduce, lambda row: ("a100-80g", "dgx-a100-1")),
    "nccl_allreduce_v100_node": Family("NCCL", all_reduce, lambda row: ("v100", "v100-node-8")),
}
