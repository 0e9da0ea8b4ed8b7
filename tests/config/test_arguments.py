"""Every public function answers nonsense with one message of its own, and takes NumPy's numbers for Python's."""

import inspect
import pickle
from typing import get_type_hints

import numpy as np
import pytest
from api_examples import CALLABLES, examples_in, required
from nonsense import ALWAYS, FOREIGN, OBJECTS

import scaleout
from scaleout import testing
from scaleout.config.arguments import MAKERS
from scaleout.errors import ConfigError, ScaleoutError, printable
from scaleout.program.program import alike

PARAMETERS = [
    (name, parameter.name)
    for name in CALLABLES
    for parameter in inspect.signature(getattr(scaleout, name)).parameters.values()
    if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    and not (name in ("search", "sweep") and parameter.name in ("workers", "directory", "cluster", "tell"))
]
"""All but what starts processes for each value."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory):
    """Name of a parameter, or of a function and its parameter, to what it may be: one for each that is required."""
    return examples_in(tmp_path_factory.mktemp("examples"))


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """What writes into a folder of any name does so here."""
    monkeypatch.chdir(tmp_path)


def given(name, parameter, value, examples):
    """Arguments of a function, of which one is `value` and the others are good."""
    return {**required(name, examples), parameter: value}


@pytest.mark.parametrize("name", CALLABLES)
def test_the_examples_are_good(name, examples):
    """Else nonsense would be refused for another's fault: a new parameter needs an example."""
    arguments = given(name, "", None, examples)
    del arguments[""]
    getattr(scaleout, name)(**arguments)


@pytest.mark.filterwarnings("ignore:.* is now:FutureWarning")  # old names
@pytest.mark.parametrize(("name", "parameter"), PARAMETERS)
def test_nonsense_is_refused_with_one_message_or_can_be_had(name, parameter, examples):
    for value in [*OBJECTS, *ALWAYS]:
        try:
            getattr(scaleout, name)(**given(name, parameter, value, examples))
        except ScaleoutError as error:
            message = str(error)
            assert message.strip()
            assert printable(message) == message
            assert len(message) < 12_000


@pytest.mark.parametrize(("name", "parameter"), [each for each in PARAMETERS if each[1] not in ("condition", "tell")])
@pytest.mark.parametrize("value", FOREIGN, ids=lambda value: repr(value).partition(" at ")[0])
def test_an_object_of_a_foreign_type_is_refused_by_name(name, parameter, value, examples):
    with pytest.raises(ConfigError) as caught:
        getattr(scaleout, name)(**given(name, parameter, value, examples))
    message = str(caught.value)
    assert message.startswith(f"{name}(): {parameter}: must be ")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["search", "sweep"])
@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        *(("workers", value) for value in (0, -1, 257, 10**9, True, 1.5, "2")),
        *(("directory", value) for value in ("\0", "a\0b", "\ud800", "/dev/null", "x" * 300, 5)),
    ],
)
def test_what_starts_processes_and_keeps_files_refuses_nonsense_before(name, parameter, value, examples):
    few = {"top": 1} if name == "search" else {}
    with pytest.raises(ConfigError) as caught:
        getattr(scaleout, name)(**{"workers": 1, **few, **given(name, parameter, value, examples)})
    assert printable(str(caught.value)) == str(caught.value)


@pytest.mark.parametrize("name", testing.__all__)
def test_contracts_are_for_names(name):
    for value in [*FOREIGN, *(each for each in OBJECTS if not isinstance(each, str))]:
        with pytest.raises(ConfigError, match=f"^{name}\\(\\): .* must be a text, not "):
            getattr(testing, name)(value)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("load_workload", (5,), "load_workload(): name_or_file: must be a text, or a path, not 5"),
        ("load_workload", ("dlrm-128", {5: 1}), "load_workload(): key of changes: must be a text, not 5"),
        ("generate", (5,), "generate(): workload: must be a ModelFamily, as `load_workload` returns, not 5"),
        ("compare", (5,), "compare(): workload: must be a ModelFamily, as `load_workload` returns, or a text, not 5"),
        (
            "load_topology",
            (5,),
            "load_topology(): topology: must be a Topology, as `load_topology` returns, or a Graph, or a text, not 5",
        ),
        ("SimulationOptions", ("link", 5), "SimulationOptions(): algorithms: must be a mapping, not 5"),
    ],
)
def test_a_message_says_what_where_and_what_to_do(name, arguments, message):
    with pytest.raises(ConfigError) as caught:
        getattr(scaleout, name)(*arguments)
    assert str(caught.value) == message


def test_changes_need_a_workload_by_name(examples):
    with pytest.raises(ConfigError, match="changes are for a workload given by name; load small with them"):
        scaleout.compare(examples["workload"], changes={"layers": 2})


@pytest.mark.parametrize("limit", [0, -1.0, 1e-300, 1e300])
def test_a_limit_to_what_a_rank_sends_is_a_bandwidth(limit, examples):
    with pytest.raises(ConfigError, match="give a limit above zero, from 1e-09 to 1e"):
        scaleout.simulate(examples["program"], examples["topology"], network="link", injection_bytes_per_s=limit)


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("factors", {0: float("nan")}, "factors.0: must be a finite number, not nan"),
        ("factors", {"first": 2}, "key of factors: must be a whole number, not 'first'"),
        ("factors", {0: "2"}, "factors.0: must be a finite number, not '2'"),
        ("factors", {10**400: 2}, "is too many or too much; give at most 9,223,372,036,854,775,807"),
        ("factors", {8: 2}, "rank 8 is not in topology 't3-ring-8'"),
    ],
)
def test_a_fault_within_an_argument_is_named_by_its_place(parameter, value, message, examples):
    with pytest.raises(ConfigError) as caught:
        scaleout.slow_down(**given("slow_down", parameter, value, examples))
    assert message in str(caught.value)


def test_a_fault_in_one_of_several_types_is_told_of_that_which_it_is():
    with pytest.raises(ConfigError) as caught:
        scaleout.SimulationOptions(placement=[0, "one"])
    assert str(caught.value) == "SimulationOptions(): placement.1: must be a whole number, not 'one'"


def test_missing_and_unknown_arguments_are_type_errors():
    with pytest.raises(TypeError, match=r"^load_device\(\) missing a required argument: 'name_or_path'$"):
        scaleout.load_device()
    with pytest.raises(
        TypeError, match=r"^simulate\(\) got an unexpected keyword argument 'netwrok'; did you mean 'network'\?$"
    ):
        scaleout.simulate(None, None, netwrok="link")
    with pytest.raises(TypeError, match=r"'netwrok'; did you mean 'network'\?"):
        scaleout.compare("dlrm-128", netwrok="link")
    with pytest.raises(TypeError, match=r"'schedule'; did you mean 'schedules'\?"):
        scaleout.run("dlrm-128", schedule="baseline")


def test_numbers_and_arrays_of_numpy_are_numbers_and_lists(examples):
    topology, program = examples["topology"], examples["program"]
    group = scaleout.place(topology, np.arange(8, dtype=np.int32))
    assert group == scaleout.place(topology, list(np.arange(8))) == scaleout.place(topology, range(8))
    cost = scaleout.collective_cost("all_reduce", np.float32(2**20), group, num_chunks=np.int64(2))
    assert cost == scaleout.collective_cost("all_reduce", 2**20, group, num_chunks=2)
    slow = scaleout.slow_down(topology, {np.int64(1): np.float64(2)})
    assert slow == scaleout.slow_down(topology, {1: 2.0})
    moved = scaleout.map_ranks(program, np.arange(8)[::-1])
    assert alike(moved, scaleout.map_ranks(program, range(7, -1, -1)))
    assert scaleout.SimulationOptions(placement=np.array([1, 0])) == scaleout.SimulationOptions(placement=(1, 0))
    assert scaleout.load_workload("dlrm-128", {"global_batch": np.int64(4096)}).global_batch == 4096


def test_a_checked_function_is_one_object_and_keeps_its_signature():
    from scaleout.api.runs import run

    assert scaleout.run is scaleout.run
    assert pickle.loads(pickle.dumps(scaleout.run)) is scaleout.run
    assert inspect.signature(scaleout.run) == inspect.signature(run)
    assert scaleout.run.__doc__ == run.__doc__


@pytest.mark.parametrize(("made", "maker"), MAKERS.items())
def test_what_a_message_names_returns_what_is_wanted(made, maker):
    assert get_type_hints(getattr(scaleout, maker))["return"].__name__ == made
