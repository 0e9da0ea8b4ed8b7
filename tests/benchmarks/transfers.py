"""How many transfers a second the link model carries, by process time on one core. Reports; asserts nothing.

    python tests/benchmarks/transfers.py [WORD]

A transfer is one message of one step between two ranks. `unfolded` gives every message a flow of its own, as for a
job without symmetry; `folded` lets one flow stand for all that are alike. `lay out` is the time to spell out messages
and their routes, `run` the time of the event loop; the rate is over both together, without loading compiled code. With
a word, only the cases whose name has it. Cases whose collectives begin apart have members that are not in step.
"""

import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from scaleout.cluster.topology.placement import siblings
from scaleout.cluster.topology.topology import Topology, load_topology
from scaleout.network.flow.demand import Demand, demand_of, demand_of_message, messages_of
from scaleout.network.flow.shared import BY_MESSAGE, SharedTraffic, Transfer
from scaleout.network.flow.traffic import Traffic
from scaleout.network.routes.links import links_of
from scaleout.network.routes.symmetry import Symmetry, group_of_rank, symmetry

SIZE_BYTES = 64e6
LIMIT_S = 60
"""Wall time after which a case is given up."""


@dataclass(frozen=True)
class Case:
    """Collectives that begin together: kind, algorithm, and the first group of an axis, or several groups.

    Each is run some `times` after another, as a job does, in which only the first has to be laid out.
    """

    name: str
    topology: str
    kind: str
    algorithm: str
    groups: tuple[tuple[int, ...], ...] = ()
    apart_s: float = 0.0
    times: int = 1


def irregular(num_ranks: int, count: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Disjoint groups of ranks drawn at random."""
    drawn = np.random.default_rng(7).permutation(num_ranks)
    return tuple(tuple(sorted(drawn[k * size : (k + 1) * size].tolist())) for k in range(count))


CASES = (
    Case("ring all-reduce, ring of 1024", "ring-1024", "all_reduce", "ring"),
    Case("ring all-reduce, torus 32x32", "torus-32x32", "all_reduce", "ring"),
    Case("pairwise all-to-all, switch of 1024", "switch-1024", "all_to_all", "pairwise"),
    Case("pairwise all-to-all, torus 32x32", "torus-32x32", "all_to_all", "pairwise"),
    Case("direct all-to-all, switch of 1024", "switch-1024", "all_to_all", "direct"),
    Case("direct all-to-all, torus 32x32", "torus-32x32", "all_to_all", "direct"),
    Case("recursive doubling, switch of 1024", "switch-1024", "all_reduce", "recursive_doubling"),
    Case("double binary tree, switch of 1024", "switch-1024", "all_reduce", "double_binary_tree"),
    Case("hierarchical, dgx-h200-128", "dgx-h200-128", "all_reduce", "hierarchical"),
    Case(
        "64 irregular rings of 16, switch of 1024", "switch-1024", "all_reduce", "ring", irregular(1024, 64, 16), 1e-6
    ),
    Case("rings of 8 along a ring of 1024", "ring-1024", "all_reduce", "ring", (tuple(range(8)),)),
    Case("64 irregular rings of 16, torus 32x32", "torus-32x32", "all_reduce", "ring", irregular(1024, 64, 16), 1e-6),
    Case(
        "8 irregular pairwise of 128, switch of 1024",
        "switch-1024",
        "all_to_all",
        "pairwise",
        irregular(1024, 8, 128),
        1e-6,
    ),
    Case(
        "8 irregular all-to-alls of 64, torus 32x32",
        "torus-32x32",
        "all_to_all",
        "direct",
        irregular(1024, 8, 64),
        1e-6,
    ),
    Case(
        "8 irregular pairwise of 128, torus 32x32",
        "torus-32x32",
        "all_to_all",
        "pairwise",
        irregular(1024, 8, 128),
        1e-6,
    ),
    Case(
        "64 irregular rings of 16, dragonfly of 1056",
        "dragonfly-1056",
        "all_reduce",
        "ring",
        irregular(1056, 64, 16),
        1e-6,
    ),
    Case(
        "8 irregular all-to-alls of 64, dragonfly of 1056",
        "dragonfly-1056",
        "all_to_all",
        "direct",
        irregular(1056, 8, 64),
        1e-6,
    ),
    Case(
        "8 irregular pairwise of 128, dragonfly of 1056",
        "dragonfly-1056",
        "all_to_all",
        "pairwise",
        irregular(1056, 8, 128),
        1e-6,
    ),
)
CASES += tuple(replace(case, name=f"{case.name}, 10 times", times=10) for case in CASES if "irregular" in case.name)


def lay_out(case: Case, topology: Topology, *, folded: bool) -> list[Demand]:
    """Spell out what each collective of a case sends."""
    links = links_of(topology)
    if len(case.groups) > 1:
        return [demand_of(links, Symmetry(), [group], case.kind, case.algorithm) for group in case.groups]
    groups = siblings(topology, case.groups[0] if case.groups else range(topology.num_ranks))
    found = symmetry_of(case, topology, groups) if folded else Symmetry()
    return [demand_of(links, found, groups, case.kind, case.algorithm)]


def symmetry_of(case: Case, topology: Topology, groups: Sequence[tuple[int, ...]]) -> Symmetry:
    family = group_of_rank(groups, topology.num_ranks)
    return symmetry(topology, [family], messages=messages_of(topology, groups, case.kind, case.algorithm))


def carry(topology: Topology, demands: Sequence[Demand], case: Case) -> float:
    """Let all collectives begin, some time apart, each again when it is done, and return when the last is done."""
    traffic = Traffic(links_of(topology))
    for number, demand in enumerate(demands):
        traffic.start(number, Transfer(demand, SIZE_BYTES, before_s=number * case.apart_s), 0.0)
    now_s, left = 0.0, dict.fromkeys(range(len(demands)), case.times)
    while left:
        now_s, _, done = traffic.advance()
        for number in done:
            left[number] -= 1
            if left[number]:
                traffic.start(number, Transfer(demands[number], SIZE_BYTES), now_s)
            else:
                del left[number]
    return now_s


def report(case: Case, *, folded: bool) -> str:
    """Run a case once."""
    topology = load_topology(case.topology)
    begin = time.process_time()
    demands = lay_out(case, topology, folded=folded)
    laid_out = time.process_time()
    simulated_s = carry(topology, demands, case)
    end = time.process_time()
    count = case.times * sum(demand.num_transfers for demand in demands)
    rate = count / (end - begin) / 1e6
    return f"{count:10} {laid_out - begin:8.2f} {end - laid_out:8.2f} {rate:9.2f} {simulated_s * 1e3:14.6f}"


def load_compiled() -> None:
    """Run a small case message by message, so that what numba has compiled is loaded, or compiled."""
    traffic = SharedTraffic(links_of(load_topology("ring-128")), BY_MESSAGE)
    traffic.start(0, Transfer(demand_of_message(traffic.links, 0, 1), SIZE_BYTES), 0.0)
    traffic.advance()


def give_up(*_: object) -> None:
    raise TimeoutError


def main() -> None:
    print(f"{'':56} {'transfers':>10} {'out [s]':>8} {'run [s]':>8} {'M/s':>9} {'simulated [ms]':>14}")
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    signal.signal(signal.SIGALRM, give_up)
    load_compiled()
    for case in CASES:
        for folded in (False, True)[: 1 if len(case.groups) > 1 else 2]:
            label = f"{case.name}, {'folded' if folded else 'unfolded'}"
            if word in label:
                signal.alarm(LIMIT_S)
                try:
                    row = report(case, folded=folded)
                except TimeoutError:
                    row = f"more than {LIMIT_S} s"
                signal.alarm(0)
                print(f"{label:56} {row}", flush=True)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
