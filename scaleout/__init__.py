"""How long a training or inference step takes on a cluster, where the time goes, and what would change it.

    import scaleout

    comparison = scaleout.compare("dlrm-128", schedules=["baseline", "fused"])
    for outcome in comparison.outcomes:
        print(outcome.schedule, outcome.makespan_s, outcome.speedup)

Names are imported when they are first used, so that `import scaleout` costs nothing. An argument of a wrong type is a
`ConfigError`, see `config.arguments`.
"""

from importlib import import_module
from types import FunctionType

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all before the command line is ready
if TYPE_CHECKING:
    from typing import Any

    from scaleout.analysis.breakdown import breakdown, by_operation, by_phase, critical_path
    from scaleout.cluster.device.annotate import time_kernels
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.placement import place
    from scaleout.cluster.topology.topology import break_links, degrade_links, load_topology, slow_down
    from scaleout.errors import ConfigError, GraphError, ScaleoutError, SimulationError, TraceError
    from scaleout.network.alpha_beta.cost import collective_cost
    from scaleout.schedule import apply_schedule
    from scaleout.simulation.options import SimulationOptions
    from scaleout.simulation.run import simulate
    from scaleout.simulation.what_if import map_ranks, rank_mapping, slow_ranks
    from scaleout.study.comparison import Comparison, compare, compare_program
    from scaleout.study.job import Job, run
    from scaleout.study.sweep.engine import run_study
    from scaleout.workloads.config import load_workload
    from scaleout.workloads.generate import generate

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "study.comparison",
    "ConfigError": "errors",
    "GraphError": "errors",
    "Job": "study.job",
    "ScaleoutError": "errors",
    "SimulationError": "errors",
    "SimulationOptions": "simulation.options",
    "TraceError": "errors",
    "apply_schedule": "schedule",
    "break_links": "cluster.topology.topology",
    "breakdown": "analysis.breakdown",
    "by_operation": "analysis.breakdown",
    "by_phase": "analysis.breakdown",
    "collective_cost": "network.alpha_beta.cost",
    "compare": "study.comparison",
    "compare_program": "study.comparison",
    "critical_path": "analysis.breakdown",
    "degrade_links": "cluster.topology.topology",
    "generate": "workloads.generate",
    "load_device": "cluster.device.spec",
    "load_topology": "cluster.topology.topology",
    "load_workload": "workloads.config",
    "map_ranks": "simulation.what_if",
    "place": "cluster.topology.placement",
    "rank_mapping": "simulation.what_if",
    "run": "study.job",
    "run_study": "study.sweep.engine",
    "simulate": "simulation.run",
    "slow_down": "cluster.topology.topology",
    "slow_ranks": "simulation.what_if",
    "time_kernels": "cluster.device.annotate",
}
"""Public name to the module that it lives in."""

_RENAMED = {"places_of": "rank_mapping"}

__all__ = [
    "Comparison",
    "ConfigError",
    "GraphError",
    "Job",
    "ScaleoutError",
    "SimulationError",
    "SimulationOptions",
    "TraceError",
    "apply_schedule",
    "break_links",
    "breakdown",
    "by_operation",
    "by_phase",
    "collective_cost",
    "compare",
    "compare_program",
    "critical_path",
    "degrade_links",
    "generate",
    "load_device",
    "load_topology",
    "load_workload",
    "map_ranks",
    "place",
    "rank_mapping",
    "run",
    "run_study",
    "simulate",
    "slow_down",
    "slow_ranks",
    "time_kernels",
]


def __getattr__(name: str) -> "Any":
    if name in _RENAMED:
        name = import_module("scaleout.config.reading").renamed(name, _RENAMED, what="name")
    if name not in _HOMES:
        raise AttributeError(f"module 'scaleout' has no attribute {name!r}")
    value = getattr(import_module(f"scaleout.{_HOMES[name]}"), name)
    if isinstance(value, FunctionType):
        value = import_module("scaleout.config.arguments").checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
