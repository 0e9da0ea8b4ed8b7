"""Good arguments of the public functions, so that one of them can be replaced by nonsense."""

import inspect

import scaleout
from scaleout.api.answer import Answer
from scaleout.interop.chakra.save import save_program

CALLABLES = [
    name
    for name in scaleout.__all__
    if not (isinstance(getattr(scaleout, name), type) and issubclass(getattr(scaleout, name), Exception | Answer))
]
"""Public functions, and classes that users make; answers are made by functions."""
WORKLOAD = "like: llama-3-8b\nlayers: 1\ndata_parallel: 8\nbatch_per_replica: 1\nsequence: 128\ntopology: t3-ring-8\n"

_NEEDED = {"collective.topology"}
"""Parameters of which one or others must be given."""


def examples_in(folder):
    """Name of a parameter, or of a function and its parameter, to what it may be: one for each that is required."""
    path, traces = folder / "small.yaml", folder / "traces"
    path.write_text(WORKLOAD)
    workload, topology, device = scaleout.load_workload(path), scaleout.load_topology("t3-ring-8"), "h200"
    program = scaleout.time_kernels(scaleout.generate(workload), scaleout.load_device(device))
    save_program(program, traces, name="small", facts={"topology": "t3-ring-8", "device": device})
    return {
        "workload": workload, "compare.workload": str(path), "Comparison.workload": "small", "work": workload,
        "topology": topology, "Comparison.topology": "t3-ring-8", "device": scaleout.load_device(device),
        "Comparison.device": device, "ranks": range(8), "Comparison.ranks": 8, "outcomes": (), "program": program,
        "result": scaleout.simulate(program, topology), "placement": scaleout.place(topology, range(8)),
        "rank_mapping.placement": "linear", "SimulationOptions.placement": "linear", "kind": "all_reduce",
        "size_bytes": 1e6, "name": "overlap", "schedules": ["baseline"], "name_or_file": str(path),
        "name_or_path": device, "slower": {"0-1": 0.5}, "names": ["0-1"], "factors": {0: 2.0}, "mapping": range(8),
        "define_schedule.name": "of-a-test", "define_algorithm.name": "of_a_test", "schema.command": "run",
        "sizes": "1MiB", "collective.topology": "t3-ring-8", "path": str(traces), "search.workload": str(path),
        "job": scaleout.Job(workload, scaleout.load_device(device), topology),
        "study": {"title": "One", "workload": str(path), "topology": "t3-ring-8", "schedule": "baseline"},
    }  # fmt: skip


def required(name, examples):
    """Good arguments of a function: those that it needs."""
    return {
        each.name: examples.get(f"{name}.{each.name}", examples.get(each.name))
        for each in inspect.signature(getattr(scaleout, name)).parameters.values()
        if each.kind is not each.VAR_KEYWORD
        and (each.default is each.empty or f"{name}.{each.name}" in _NEEDED or each.name in ("mapping", "study"))
    }
