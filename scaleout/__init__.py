"""How long a training or inference step takes on a cluster, where the time goes, and what would change it.

    import scaleout

    answer = scaleout.run("dlrm-128", schedules=["baseline", "fused"])
    answer.to_frame()[["schedule", "makespan_s", "speedup"]]
    answer.plot()

Names are imported when they are first used, so that `import scaleout` costs nothing. An argument of a wrong type is a
`ConfigError`, see `config.arguments`.
"""

from importlib import import_module
from types import FunctionType

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than all before the command line is ready
if TYPE_CHECKING:
    from typing import Any

    from scaleout.analysis.breakdown import breakdown, by_operation, by_phase, critical_path
    from scaleout.api.collectives import CollectiveAnswer, collective
    from scaleout.api.networks import load_topology
    from scaleout.api.own import define_algorithm, define_schedule
    from scaleout.api.runs import RunAnswer, run
    from scaleout.api.searches import SearchAnswer, search
    from scaleout.api.sweeps import SweepAnswer, sweep
    from scaleout.api.traces import Trace, read_trace
    from scaleout.cluster.device.annotate import time_kernels
    from scaleout.cluster.device.spec import load_device
    from scaleout.cluster.topology.placement import place
    from scaleout.cluster.topology.topology import break_links, degrade_links, slow_down
    from scaleout.errors import ConfigError, GraphError, ScaleoutError, SimulationError, TraceError
    from scaleout.network.alpha_beta.cost import collective_cost
    from scaleout.report.vocabulary import schema
    from scaleout.schedule import apply_schedule
    from scaleout.simulation.options import SimulationOptions
    from scaleout.simulation.run import simulate
    from scaleout.simulation.what_if import map_ranks, rank_mapping, slow_ranks
    from scaleout.study.comparison import Comparison, compare, compare_program
    from scaleout.study.job import Job
    from scaleout.study.sweep.engine import run_study
    from scaleout.workloads.families import load_workload
    from scaleout.workloads.generate import generate

__version__ = "0.1.0"

_HOMES = {
    "CollectiveAnswer": "api.collectives",
    "Comparison": "study.comparison",
    "ConfigError": "errors",
    "GraphError": "errors",
    "Job": "study.job",
    "RunAnswer": "api.runs",
    "ScaleoutError": "errors",
    "SearchAnswer": "api.searches",
    "SimulationError": "errors",
    "SimulationOptions": "simulation.options",
    "SweepAnswer": "api.sweeps",
    "Trace": "api.traces",
    "TraceError": "errors",
    "apply_schedule": "schedule",
    "break_links": "cluster.topology.topology",
    "breakdown": "analysis.breakdown",
    "by_operation": "analysis.breakdown",
    "by_phase": "analysis.breakdown",
    "collective": "api.collectives",
    "collective_cost": "network.alpha_beta.cost",
    "compare": "study.comparison",
    "compare_program": "study.comparison",
    "critical_path": "analysis.breakdown",
    "define_algorithm": "api.own",
    "define_schedule": "api.own",
    "degrade_links": "cluster.topology.topology",
    "generate": "workloads.generate",
    "load_device": "cluster.device.spec",
    "load_topology": "api.networks",
    "load_workload": "workloads.families",
    "map_ranks": "simulation.what_if",
    "place": "cluster.topology.placement",
    "rank_mapping": "simulation.what_if",
    "read_trace": "api.traces",
    "run": "api.runs",
    "run_study": "study.sweep.engine",
    "schema": "report.vocabulary",
    "search": "api.searches",
    "simulate": "simulation.run",
    "slow_down": "cluster.topology.topology",
    "slow_ranks": "simulation.what_if",
    "sweep": "api.sweeps",
    "time_kernels": "cluster.device.annotate",
}
"""Public name to the module that it lives in."""

_RENAMED = {"places_of": "rank_mapping"}

__all__ = [
    "CollectiveAnswer",
    "Comparison",
    "ConfigError",
    "GraphError",
    "Job",
    "RunAnswer",
    "ScaleoutError",
    "SearchAnswer",
    "SimulationError",
    "SimulationOptions",
    "SweepAnswer",
    "Trace",
    "TraceError",
    "apply_schedule",
    "break_links",
    "breakdown",
    "by_operation",
    "by_phase",
    "collective",
    "collective_cost",
    "compare",
    "compare_program",
    "critical_path",
    "define_algorithm",
    "define_schedule",
    "degrade_links",
    "generate",
    "load_device",
    "load_topology",
    "load_workload",
    "map_ranks",
    "place",
    "rank_mapping",
    "read_trace",
    "run",
    "run_study",
    "schema",
    "search",
    "simulate",
    "slow_down",
    "slow_ranks",
    "sweep",
    "time_kernels",
]


def __getattr__(name: str) -> "Any":
    if name in _RENAMED:
        name = import_module("scaleout.config.reading").renamed(name, _RENAMED, what="name")
    if name == "testing":
        return import_module("scaleout.testing")
    if name not in _HOMES:
        raise AttributeError(f"module 'scaleout' has no attribute {name!r}")
    value = getattr(import_module(f"scaleout.{_HOMES[name]}"), name)
    if isinstance(value, FunctionType):
        value = import_module("scaleout.config.arguments").checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "testing", *(name for name in globals() if name.startswith("__"))])
