"""The vocabulary of documents: every name that `--json` prints, its type and meaning, and what each command prints.

A name has one type and one meaning in all documents, so that a document's schema (JSON Schema 2020-12) follows from the
names that stand in it. Times are seconds, sizes bytes, and the end of a name says so.
"""

import csv
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from scaleout.config.reading import nearest
from scaleout.errors import ConfigError, one_line, shown
from scaleout.report.documents import SCHEMA, check_version


class Name(NamedTuple):
    """What a name stands for.

    The type is ``number``, ``integer``, ``text``, ``boolean``, the name of an object, or ``any``; ``list of`` or ``map
    of`` such, a map being from names to it; ``rows`` are objects of each command's own. Behind it, ``?``: may be null.
    """

    type: str
    meaning: str


class Contents(NamedTuple):
    """Names that stand in an object: always, and where there is something to say."""

    always: str
    maybe: str = ""


@cache
def vocabulary() -> Mapping[str, Name]:
    """Return every name of every document, with its type and meaning."""
    with (Path(__file__).parent / "vocabulary.csv").open(encoding="utf-8", newline="") as file:
        return {row.pop("name"): Name(**row) for row in csv.DictReader(file)}


def flattened(row: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    """Yield the values of an object by their names: those of objects within it by their own, of mappings by both.

    >>> dict(flattened({"makespan_s": 1.0, "exposed_by_axis_s": {"data": 0.1}, "energy": {"joules": 2.0}}))
    {'makespan_s': 1.0, 'exposed_by_axis_s.data': 0.1, 'joules': 2.0}
    """
    for name, value in row.items():
        if isinstance(value, Mapping):
            known = vocabulary().get(name)
            for inner, each in flattened(value):
                yield (f"{name}.{inner}" if known is not None and known.type.startswith("map of ") else inner), each
        elif not isinstance(value, list | tuple):
            yield name, value
        elif value and all(isinstance(each, str) for each in value):
            yield name, "; ".join(value)


_TIMES = "makespan_s compute_s communication_s exposed_communication_s idle_s kernel_time_sources speedup"
_BARS = "step_low_s step_high_s causes next_measurement"
_CHANGE = "name kind bytes group_size a_count b_count a_s b_s difference_s only_in"
_OPERATOR = (
    "baseline_s baseline_parts_s fused_aware_s fused_oblivious_s ideal_s ideal_parts_s kernel_split_s "
    "kernel_split_chunks saving skew_aware skew_oblivious logical_work_groups work_groups slices sent_bytes"
)
_ACCURACY = "num_rows predicted mean_absolute_error median_absolute_error p90_absolute_error worst bias coverage"

OBJECTS: Mapping[str, Contents] = {
    "model": Contents("version network library contention host clocks inputs notes"),
    "run row": Contents(
        f"schedule {_TIMES} bound_by busy idle_by_cause_s waits decisions",
        f"{_BARS} recorded_share scaled_share modelled_share samples_per_s tokens_per_s tokens_per_s_per_rank mfu hfu "
        "bubble exposed_by_axis_s critical_path bounds energy runs_as memory rank_ends busiest_links traffic "
        "strategy peak_memory_bytes fits step_dollars dollars_per_million_tokens",
    ),
    "energy": Contents("device_joules node_joules network_joules joules"),
    "cost": Contents(
        "dollars device_dollars network_dollars device_watts network_watts rent_dollars_per_hour rent_source parts "
        "unpriced unpowered"
    ),
    "mfu_peak": Contents("dtype flops_per_s source"),
    "part": Contents("name count each_dollars each_watts source dollars watts"),
    "memory": Contents(
        "peak_memory_bytes memory_capacity_bytes memory_reserved_bytes fits pipeline_rank moment "
        "memory_by_kind_bytes advice"
    ),
    "advice": Contents("set ranks peak_memory_bytes fits", "makespan_s tokens_per_s_per_rank run"),
    "decisive": Contents("phase operation count critical_s share rank rank_share"),
    "bound": Contents(
        "operation axis bytes group_size count busy_s exposed_communication_s algorithm bound_by busy_shares "
        "waits_s waits_for waits_for_s member_share"
    ),
    "wait": Contents("members waits_for until idle_s"),
    "awaited": Contents("waits_for a_s b_s difference_s"),
    "ends": Contents("members phase_end_s"),
    "link_use": Contents("link alike size_bytes utilisation"),
    "port_traffic": Contents("dimension kind role links total_bytes mean_utilisation most_utilisation"),
    "plan_row": Contents(
        "plan schedule makespan_s compute_s memory_limited_s exposed_by_axis_s bubble_s tokens_per_s mfu "
        "memory_by_kind_bytes host_s bubble peak_memory_bytes bound_by tokens_per_s_per_rank headroom_bytes inputs run",
        f"{_BARS} kernel_time_sources step_dollars dollars_per_million_tokens",
    ),
    "simulations": Contents("done choices bounded left lower_bound_s"),
    "explanation": Contents("plan schedule overlap same_plan best_plan_under_baseline gain_over_best_under_baseline"),
    "overlap": Contents("axis communication_s overlapped_s exposed_by_reason_s"),
    "compared_plan": Contents("plan schedule makespan_s gain"),
    "export": Contents("plan_number text notes faster_ones", "makespan_s peak_memory_bytes differs"),
    "collective row": Contents(
        "bytes",
        "collective algorithm network time_s algorithm_bandwidth_bytes_per_s bus_bandwidth_bytes_per_s num_chunks "
        "protocol auto bound_by busy_shares busiest_links traffic ranks backend time_by_backend_s auto_takes auto_s",
    ),
    "bucket": Contents("algorithm bucket_bytes makespan_s compute_s communication_s exposed_communication_s idle_s"),
    "unchanged": Contents("", "schedule makespan_s idle_s idle_by_cause_s training_s bytes algorithm time_s"),
    "choice": Contents("bytes algorithm time_s runner_up ratio changed"),
    "busy_time": Contents("phase operation kind bytes group_size count busy_s"),
    "strategies row": Contents(
        "strategy",
        f"schedule {_TIMES} tokens_per_s_per_rank mfu peak_memory_bytes fits decisions runs_as same_as reason run busy",
    ),
    "decision": Contents("about choice", "time_s time_of alternatives_s reason count saved_s called"),
    "operator_rank": Contents("order rank shards done_s last_sent_s sampled_slices"),
    "slice": Contents("slice shard work_group issued_s arrival_s"),
    "tracked": Contents("time_s gemm_s fused_s reduce_scatter_s all_gather_s following_s traffic_by_kind_bytes"),
    "reproduce row": Contents(
        "id paper figure metric unit published simulated tolerance met basis constant note", "at_minus_30 at_plus_30"
    ),
    "validate row": Contents(
        "id error", "measured_us predicted_us low_us high_us measured_bytes predicted_bytes reason note"
    ),
    "cause": Contents("cause share faster slower"),
    "contender": Contents(
        "tool source num_rows predicted mean_absolute_error median_absolute_error p90_absolute_error worst bias "
        "scaleout_mean_error"
    ),
    "intervals": Contents("num_rows within below above median_width"),
    "accuracy": Contents(_ACCURACY),
    "change": Contents(_CHANGE),
    "case_row": Contents(
        "workload case varied ranks makespan_s run",
        "tokens_per_s tokens_per_s_per_rank samples_per_s samples_per_s_per_rank network_dollars slower_share fits "
        "roofline_share",
    ),
    "case_columns": Contents(  # a row of cases.parquet, beside the keys of the study
        "case key status message run timeline ranks",
        "exposed_share measured_share slowest_dimension_bytes dimension_bytes",
    ),
    "failed_for": Contents("message cases case"),
    "recorded_step": Contents("step recorded_s"),
    "group_calls": Contents("kind ranks bytes calls", "transfer_s waiting_s"),
    "physical": Contents("physical_network algorithms networks transfers"),
    "framework_key": Contents("key value set_by source framework_value"),
    "placed_tables": Contents("of_ranks tables lookups_per_sample share_of_mean_cost tables_bytes"),
    "dimension_facts": Contents(
        "names kind size bandwidth_bytes_per_s latency_s",
        "radices oversubscription level_latency in_network_reduction through_host_bytes_per_s global_links switches "
        "links",
    ),
    "protocol_facts": Contents("protocol serves startup_s link latency_s efficiency"),
    "backend_facts": Contents("backend library all_reduce concurrency"),
    "kernel_model_error": Contents("operation dtype shapes median_error p90_error"),
    "view": Contents("kind x y title"),
    "kernel_sum": Contents("kernel count time_s without_time work_flops moved_bytes"),
    "communication_sum": Contents("communication named group each_bytes each_is count all_bytes"),
    "process_group": Contents("group groups ranks_each of_ranks"),
}
"""Objects within documents; those called ``COMMAND row`` are a command's `results` or `rows`."""

_ROWS_OF = {"astra": "run row", "buckets": "bucket"}
"""Command to what its rows are, where they are those of another."""

_SHOWN = " ".join(
    (
        "workload description ranks framework framework_keys parameters matrix_flops matrix_flops_per_rank",
        "payload_per_rank_bytes memory_by_kind_bytes row_wise_tables tables_of_ranks parameter_buffers buffers_from",
        "nodes_per_rank keys",
        "topology changes dimensions link_names library library_reason startup_s changed_links slow_ranks protocols",
        "resource_use backends link_bound_of_64MiB_s",
        "link_type link bandwidth_bytes_per_s latency_s cable switch included sources",
        "device title peak_flops_per_s memory_size_bytes memory_reserved_bytes memory_bandwidth_bytes_per_s l2_bytes",
        "sms link_bandwidth_each_way_bytes_per_s host_launch_s launch_gap_s work_group_costs power",
        "rent_dollars_per_hour kernel_times calibration leave_one_out_error",
        "study cases varies baseline where columns views",
        "trace different_ranks chakra_version metadata nodes types dependencies kernel_time_s communication_bytes",
        "nodes_by_kind kernels_by_name communication_by_name process_groups not_read",
    )
)
"""Names that `show` has: of a workload, a topology, a link type, a device, a study and a trace."""

_HEAD = "schema version command inputs models"
_JOB = "workload topology device ranks"

DOCUMENTS: Mapping[str, Contents] = {
    "run": Contents(
        f"answer {_JOB} results",
        "mode model samples cost mfu_peak memory recorded_s num_steps notes failures unchanged",
    ),
    "search": Contents(
        f"answer {_JOB} mode model global_batch memory_capacity_bytes mfu_peak counts fastest front",
        "simulations explanation exports not_tried",
    ),
    "goodput": Contents(
        f"answer {_JOB} schedule model tokens num_steps training_s training_joules training_dollars makespan_s "
        "step_mean_s step_median_s step_p95_s between_failures_s checkpoint_interval_s goodput checkpoint_share "
        "failure_share speed memory disturbance assumed_from",
        "unchanged",
    ),
    "collective": Contents(
        "topology", "answer ranks model results algorithms_left_out by_size collective network compared unchanged"
    ),
    "buckets": Contents("answer workload model memory best default results"),
    "strategies": Contents("workload topology device model results", "answer ranks"),
    "operator": Contents(
        "answer operator device topology ranks settings defaults",
        f"{_OPERATOR} fused_aware_between_s timeline sweep model",
    ),
    "track": Contents("answer device topology ranks settings configurations", "model"),
    "reproduce": Contents("answer rows", "model"),
    "validate": Contents(f"answer rows {_ACCURACY} families", "intervals arena model"),
    "diff": Contents("answer a b makespan makespan_parts by_kind by_phase by_operation by_collective", "model awaited"),
    "study": Contents(
        "study output",
        "answer title build cases ok failed left_out unfit axes fastest_by fastest_cases within_share cheapest_cases "
        "failed_for files notes shard_of",
    ),
    "import pytorch": Contents(
        "answer name device ranks recorded_ranks steps kernels kernels_kept kernels_linked operators_linked copies "
        "collectives collectives_sized waits_linked waits_inferred by_group notes"
    ),
    "import model": Contents("answer keys notes parameters active_parameters flops_per_token ranks"),
    "astra": Contents(
        "ranks time_ns exposed_communication_ns per_rank_ns per_rank_exposed_communication_ns per_rank_compute_ns "
        "per_rank_communication_ns backend",
        "physical mode model workload topology device results samples cost mfu_peak memory notes",
    ),
    "trace": Contents("answer workload device topology ranks output num_files"),
    "list": Contents("listed"),
    "show": Contents("", f"known_keys source {_SHOWN}"),
}
"""Command to what its document holds beside its head."""


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints with ``--json``, such as ``run`` or ``import pytorch``.

    A document's own word, ``import-pytorch``, is taken as well.

    Raises
    ------
    ConfigError
        If there is no such command, or it prints none.

    Examples
    --------
    >>> schema("run")["properties"]["results"]["items"]["properties"]["makespan_s"]["type"]
    'number'
    """
    asked, command = command, command.replace("-", " ")
    if command not in DOCUMENTS:
        raise ConfigError(f"no documents of {asked!r}; {nearest(command, DOCUMENTS)}")
    contents = DOCUMENTS[command]
    whole = Contents(f"{_HEAD} {contents.always}", contents.maybe)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"scaleout/{command.replace(' ', '-')}/{SCHEMA}",
        "title": f"what `scaleout {command} --json` prints",
        **_object(whole, command),
    }


_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "number": (int, float), "integer": int,
    "null": type(None),
}  # fmt: skip


def check_types(found: Mapping[str, Any], command: str, *, where: str) -> None:
    """Raise `ConfigError` if a document is of another version, or a value of another type than its name.

    Names may lack or be more.
    """
    check_version(found, where=where)
    try:
        known = schema(command)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if fault := _fault(found, known, ()):
        raise ConfigError(f"{where}: {fault}; run it again")


def _fault(value: Any, known: Mapping[str, Any], way: tuple[str, ...]) -> str:
    """Say which value within another is first of a wrong type; nothing if none is."""
    types = known.get("type", list(_TYPES))
    types = [types] if isinstance(types, str) else types
    if not any(isinstance(value, _TYPES[one]) and isinstance(value, bool) <= (one == "boolean") for one in types):
        return f"{one_line('.'.join(way))} is {shown(value)}, not {' or '.join(types)}"
    if isinstance(value, list):
        inner = ((str(place), each, known.get("items", {})) for place, each in enumerate(value))
    elif isinstance(value, dict):
        others = known.get("additionalProperties") or {}
        named = known.get("properties", {})
        inner = ((key, each, named.get(key, others)) for key, each in value.items())
    else:
        return ""
    return next(filter(None, (_fault(each, kind, (*way, key)) for key, each, kind in inner)), "")


def _object(contents: Contents, command: str) -> dict[str, Any]:
    """Return the schema of an object that stands under a name, or of the document."""
    names = [*contents.always.split(), *contents.maybe.split()]
    known = vocabulary()
    found = {name: {**_type(known[name].type, command), "description": known[name].meaning} for name in names}
    required = sorted(contents.always.split())
    return {"type": "object", "properties": found, "required": required, "additionalProperties": False}


def _type(kind: str, command: str) -> dict[str, Any]:
    """Return the schema of a type of the vocabulary."""
    if kind.startswith("list of "):
        return {"type": "array", "items": _type(kind.removeprefix("list of "), command)}
    if kind.startswith("map of "):
        values = _type(kind.removeprefix("map of "), command)
        return {"type": "object", "additionalProperties": values}
    if kind.endswith("?"):
        found = _type(kind[:-1], command)
        return {**found, "type": [found["type"], "null"]}
    if kind == "rows":
        return {"type": "array", "items": _object(OBJECTS[_ROWS_OF.get(command, f"{command} row")], command)}
    if kind in OBJECTS:
        return _object(OBJECTS[kind], command)
    return {"any": {}, "text": {"type": "string"}}.get(kind, {"type": kind})
