"""Kinds of input: what makes an input, and what reads it in this process.

`KINDS` names them. An input is made by `case_of` of a seed and a number alone, the same one every time.
"""

import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from answer_inputs import answers, read_answer
from command_lines import command_case, option_case, read_option
from judge import Case
from log_inputs import (
    measure_log,
    measured_files,
    read_measure_log,
    read_measured,
    read_search_log,
    read_to_measure,
    search_log,
    to_measure,
)
from mutations import as_json, file_of
from output_inputs import outputs, read_output
from own_inputs import own, read_own
from python_inputs import calls, read_call
from question_inputs import questions, read_question
from recording_inputs import read_recording, recordings
from seeds import (
    devices,
    fabric_case,
    libraries,
    lines_of,
    model_arguments,
    model_configs,
    only_file,
    policies,
    rows_of,
    studies,
    topology_case,
    workloads,
    yaml_case,
)
from trace_inputs import astra_files, read_astra, traces

from scaleout.cluster.device.kernel_times import measured
from scaleout.cluster.device.spec import load_device
from scaleout.cluster.topology.backends import load_table
from scaleout.cluster.topology.communication_library import load_library
from scaleout.cluster.topology.topology import load_topology
from scaleout.interop.chakra.load import load_program
from scaleout.interop.models import import_model
from scaleout.study.search.checkpoint import FILE
from scaleout.study.sweep.study import load_study
from scaleout.workloads.families import load_workload


class Kind(NamedTuple):
    """What makes an input of a `random.Random`, what reads it, and its share of all inputs."""

    make: Callable
    read: Callable
    share: int


def read_study(_case):
    """Read a study, and compute with its expressions."""
    study = load_study("mine.yaml")
    for expression in (*study.where, *study.expressions.values()):
        for value in (1, 2.5, True, None, "fused"):
            expression(dict.fromkeys(expression.names, value))


KINDS = {
    "workload": Kind(yaml_case(workloads, "workload"), lambda case: load_workload("mine.yaml"), 14),
    "topology": Kind(topology_case, lambda case: load_topology("mine.yaml"), 14),
    "fabric": Kind(fabric_case, lambda case: load_topology(str(only_file(case))), 4),
    "device": Kind(
        yaml_case(devices, "device"),
        lambda case: measured.read_table.__wrapped__(load_device("mine.yaml").kernel_files[:0]), 4,
    ),
    "library": Kind(yaml_case(libraries, "library"), lambda case: load_library(Path("mine.yaml")), 8),
    "policy": Kind(yaml_case(policies, "policy"), lambda case: load_table(Path("mine.yaml")), 4),
    "study": Kind(yaml_case(studies, "study"), read_study, 3),
    "kernel rows": Kind(
        lambda random: Case("kernel rows", {"rows.jsonl": lines_of(random, rows_of("traces/*/*kernels.jsonl"))}),
        lambda case: measured.read_table.__wrapped__((Path("rows.jsonl"),)), 10,
    ),
    "trace": Kind(lambda random: Case("trace", traces(random)), lambda case: load_program("w"), 10),
    "recording": Kind(recordings, read_recording, 4),
    "astra": Kind(lambda random: Case("astra", astra_files(random)), read_astra, 8),
    "model config": Kind(
        lambda random: Case("model config", {"config.json": file_of(random, model_configs(), as_json)}),
        lambda case: import_model(Path("config.json")), 4,
    ),
    "model arguments": Kind(
        model_arguments, lambda case: import_model(only_file(case), ranks=16, changes={"topology": "ring-1024"}), 4
    ),
    "output": Kind(outputs, read_output, 3),
    "question": Kind(questions, read_question, 1),
    "call": Kind(calls, read_call, 2),
    "answer": Kind(answers, read_answer, 1),
    "own": Kind(own, read_own, 1),
    "measured rows": Kind(lambda random: Case("measured rows", measured_files(random)), read_measured, 3),
    "search log": Kind(lambda random: Case("search log", {FILE: search_log(random)}), read_search_log, 4),
    "measure log": Kind(measure_log, read_measure_log, 2),
    "rows to measure": Kind(to_measure, read_to_measure, 2),
    "option": Kind(option_case, read_option, 8),
    "command": Kind(command_case, None, 2),
}  # fmt: skip
"""Kind of input to what makes and reads it; the shares say how many of each hundred are of it."""

_ORDER = [name for name, kind in KINDS.items() for _ in range(kind.share)]
random.Random(0).shuffle(_ORDER)


def kind_of(number):
    """Return the kind of the input of a number."""
    return _ORDER[number % len(_ORDER)]


def case_of(seed, number, kind=None):
    """Return the input of a number: the same one for a seed every time."""
    kind = kind or kind_of(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return KINDS[kind].make(random.Random(f"{seed} {kind} {number}"))
