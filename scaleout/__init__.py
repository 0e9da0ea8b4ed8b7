"""How long a training or inference step takes on a cluster, where the time goes, and what would change it.

    import scaleout

    comparison = scaleout.compare("dlrm-128", schedules=["baseline", "fused"])
    for outcome in comparison.outcomes:
        print(outcome.schedule, outcome.makespan_s, outcome.speedup)

Names are imported when they are first used, so that `import scaleout` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaleout.analysis import breakdown, by_operation, by_phase, critical_path
    from scaleout.device import load_device
    from scaleout.errors import ConfigError, GraphError, ScaleoutError, SimulationError, TraceError
    from scaleout.generators import generate
    from scaleout.network.alpha_beta import collective_cost
    from scaleout.placement import place
    from scaleout.schedule import apply_schedule
    from scaleout.simulation import simulate
    from scaleout.study import Comparison, compare, compare_program
    from scaleout.timing import time_kernels
    from scaleout.topology import break_links, degrade_links, load_topology, slow_down
    from scaleout.what_if import map_ranks, places_of, slow_ranks
    from scaleout.workload import load_workload

__version__ = "0.1.0"

_HOMES = {
    "Comparison": "study",
    "ConfigError": "errors",
    "GraphError": "errors",
    "ScaleoutError": "errors",
    "SimulationError": "errors",
    "TraceError": "errors",
    "apply_schedule": "schedule",
    "break_links": "topology",
    "breakdown": "analysis",
    "by_operation": "analysis",
    "by_phase": "analysis",
    "collective_cost": "network.alpha_beta",
    "compare": "study",
    "compare_program": "study",
    "critical_path": "analysis",
    "degrade_links": "topology",
    "generate": "generators",
    "load_device": "device",
    "load_topology": "topology",
    "load_workload": "workload",
    "map_ranks": "what_if",
    "place": "placement",
    "places_of": "what_if",
    "simulate": "simulation",
    "slow_down": "topology",
    "slow_ranks": "what_if",
    "time_kernels": "timing",
}
"""Public name to the module that it lives in."""

__all__ = [
    "Comparison",
    "ConfigError",
    "GraphError",
    "ScaleoutError",
    "SimulationError",
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
    "places_of",
    "simulate",
    "slow_down",
    "slow_ranks",
    "time_kernels",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'scaleout' has no attribute {name!r}")
    return getattr(import_module(f"scaleout.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
