"""A host execution trace, what PyTorch's `ExecutionTraceObserver` writes for one rank, to its operators in order.

It has no times, but sizes and types of all tensors, process groups with their ranks, and what each collective moves:
what a Kineto trace of the same steps may lack. Nodes are listed as they ended; their ids count as they began. Schema
1.0.1 has its keys on the node itself, later ones most of them under `attrs`.
Source: PyTorch, torch/csrc/profiler/standalone/execution_trace_observer.cpp.
"""

import functools
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from scaleout.config.documents import MAX_RANKS, decode_json
from scaleout.errors import TraceError, shown
from scaleout.interop.pytorch.communication import COMMUNICATES, kind_of
from scaleout.interop.pytorch.kineto import NONE, Operator, Recording, listed_groups, shape_of, whole_of

_SCHEMA = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})(-\S*)?")
_FIRST, _LAST = (1, 0, 1), (1, 1, 1)
_MARKS = ("[pytorch|profiler|", "## process_group:init ##")
"""What names of nodes begin with that are no operators."""
_GROUPS = "## process_group:init ##"
_FACTS = {"collective_name": "Collective name", "dtype": "dtype", "in_msg_nelems": "In msg nelems",
          "out_msg_nelems": "Out msg nelems", "global_rank_start": "Global rank start",
          "global_rank_stride": "Global rank stride", "pg_name": "Process Group Name",
          "pg_size": "Group size"}  # fmt: skip
"""Attributes of a collective, and what Kineto calls them."""
_WITHOUT_ROOT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Collectives of which a node tells the own rank; of others it is the root's, of messages the other end's."""


@dataclass(frozen=True)
class HostTrace:
    """The operators of a rank in the order in which they began, all threads together."""

    path: Path
    process: int  # its id on its machine; `NONE` if not told
    operators: list[Operator]  # their times count operators
    records: list[int]  # number that the profiler gave each, the same in both traces; `NONE` if none
    nodes: list[Mapping[str, Any]]  # of the operators, as the file has them
    groups: dict[str, tuple[int, ...]]
    world_size: int | None
    rank: int | None  # as a collective of all ranks tells
    began_s: int | None  # into the hour, on the clock of the host
    lasts_s: float


def is_host_trace(content: Any) -> bool:
    """Whether JSON is a host execution trace, of whatever schema."""
    return isinstance(content, dict) and "nodes" in content


def read_host(content: Mapping[str, Any], path: Path) -> HostTrace:
    """Read a host execution trace from the JSON value that it is.

    Parameters
    ----------
    content : mapping
        With `schema` and `nodes`.
    path : Path
        Of the file, for messages.

    Raises
    ------
    TraceError
        If the schema is not one of 1.0.1 to 1.1.1, or a node has no number of its own, or a parent that does not begin
        before it.
    """
    found = _SCHEMA.fullmatch(str(content.get("schema", "")))
    version = tuple(int(part) for part in found.groups()[:3]) if found else ()
    if not _FIRST <= version <= _LAST:
        raise TraceError(
            f"{path}: has schema {shown(content.get('schema'))}; host execution traces of 1.0.1 to 1.1.1 are read"
        )
    nodes = content["nodes"]
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        raise TraceError(f"{path}: its nodes are no list of nodes; record it again")
    ordered = sorted(_numbered(nodes, path))
    index_of: dict[int, int] = {}  # id of a node to its operator, or that of its parent where it is none
    operators: list[Operator] = []
    records: list[int] = []
    kept: list[Mapping[str, Any]] = []
    groups: dict[str, tuple[int, ...]] = {}
    world_size = None
    for number, place in ordered:
        node = nodes[place]
        if number in index_of:
            raise TraceError(f"{path}: two nodes have id {number}; record it again")
        parent = whole_of(node.get("ctrl_deps", node.get("parent")))
        if parent >= number and not (parent == number and not index_of):
            raise TraceError(
                f"{path}: node {number} is called by node {shown(parent)}, which begins no earlier; its nodes call "
                f"each other in a circle, record it again"
            )
        name = str(node.get("name", ""))
        above = index_of.get(parent, NONE)
        if name.startswith(_MARKS):
            index_of[number] = above
            if name == _GROUPS:
                groups, world_size = _groups_of(node)
            continue
        facts = attributes_of(node)
        index_of[number] = len(operators)
        moment = float(len(operators))
        thread = ("host", str(whole_of(facts.get("tid"))))
        operators.append(Operator(name, thread, moment, moment, _arguments(node, name, facts), above))
        kept.append(node)
        records.append(max(whole_of(facts.get("rf_id")), 0) or NONE)
    return HostTrace(
        path, whole_of(content.get("pid")), operators, records, kept, groups, world_size, _rank(nodes, world_size),
        *_clock(content),
    )  # fmt: skip


def _numbered(nodes: Sequence[Mapping[str, Any]], path: Path) -> Iterator[tuple[int, int]]:
    for place, node in enumerate(nodes):
        number = whole_of(node.get("id"))
        if number < 0:
            raise TraceError(
                f"{path}: node {place} has id {shown(node.get('id'))}, which is no number; record it again"
            )
        yield number, place


def attributes_of(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes of a node, by name."""
    listed = node.get("attrs")
    if not isinstance(listed, list):
        return node
    return {str(each.get("name")): each.get("value") for each in listed if isinstance(each, dict)}


def parts_of(node: Mapping[str, Any], side: str) -> tuple[list[Any], list[Any], list[str]]:
    """Return values, shapes and types of what goes in or comes out: `inputs` or `outputs`."""
    given = node.get(side)
    if isinstance(given, dict):
        parts: list[Any] = [given.get("values"), given.get("shapes"), given.get("types")]
    else:
        parts = [given, node.get(f"{side.removesuffix('s')}_shapes"), node.get(f"{side.removesuffix('s')}_types")]
    values, shapes, types = (part if isinstance(part, list) else [] for part in parts)
    return values, shapes, [str(each) for each in types]


def _arguments(node: Mapping[str, Any], name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told of an operator, in Kineto's words."""
    values, shapes, types = parts_of(node, "inputs")
    args: dict[str, Any] = {
        "Input Dims": [shape if _tensor_of(kind) else [] for shape, kind in zip(shapes, types, strict=False)],
        "Input type": [_tensor_of(kind) for kind in types],
        "Concrete Inputs": [
            "" if isinstance(value, list) or _tensor_of(kind) else str(value)
            for value, kind in zip(values, types, strict=False)
        ],
    }
    if name == COMMUNICATES:
        args |= _collective(node, facts)
    return args


@functools.lru_cache(maxsize=4096)
def _tensor_of(kind: str) -> str:
    """Return the type of elements of a tensor, or of all tensors of a list; nothing for what is none.

    >>> _tensor_of("Tensor(c10::Half)"), _tensor_of("GenericList[Tensor(float),Tensor(float)]"), _tensor_of("Int")
    ('c10::Half', 'float', '')
    """
    found = set(re.findall(r"Tensor\(([^()]*)\)", kind))
    return found.pop() if len(found) == 1 else "TensorList" if found else ""


def _collective(node: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a collective moves, in Kineto's words: from attributes, or else from inputs and outputs."""
    told = {word: facts[key] for key, word in _FACTS.items() if key in facts}
    if "Collective name" in told:
        return told
    values, shapes, types = parts_of(node, "inputs")
    names = [str(value) for value, kind in zip(values, types, strict=False) if kind == "String"]
    if not names or kind_of(names[0]) is None:
        return {}
    _, results, result_types = parts_of(node, "outputs")
    dtypes = [dtype for kind in (types[:1] + result_types[:1]) if (dtype := _tensor_of(kind))]
    told = {
        "Collective name": names[0],
        "dtype": dtypes[0] if dtypes else "",
        "In msg nelems": _elements(shapes[:1]) if types and _tensor_of(types[0]) else 0,
        "Out msg nelems": _elements(results),
    }
    whole = [value for value, kind in zip(values, types, strict=False) if kind == "Int"]
    if types[-3:] == ["Int"] * 3:  # where a group begins, its stride and its size
        told |= {"Global rank start": whole[-3], "Global rank stride": whole[-2]}
    if types[-1:] == ["Int"]:
        told["Group size"] = whole[-1]
    pair = next((value for value, kind in zip(values, types, strict=False) if kind == "Tuple[String,String]"), None)
    if isinstance(pair, list) and pair:
        told["Process Group Name"] = str(pair[0])
    return told


def _elements(shapes: Any) -> int:
    """Return the elements of tensors in a list of lists of shapes."""
    if not isinstance(shapes, list):
        return 0
    shape = shape_of(shapes)
    if shape:
        return prod(shape)
    return sum(1 if each == [] else _elements(each) for each in shapes) if shapes else 0


def _groups_of(node: Mapping[str, Any]) -> tuple[dict[str, tuple[int, ...]], int | None]:
    """Return the process groups that a node lists as JSON, and how many ranks that of all has, which lists none."""
    values, _, _ = parts_of(node, "inputs")
    try:
        listed = decode_json(str(values[0])) if values else []
    except ValueError:
        listed = []
    listed = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    groups, world_size = listed_groups(listed, "group_size"), None
    everyone: tuple[int, ...] = ()
    for each in listed:
        size = whole_of(each.get("group_size"))
        if each.get("ranks") == [] and 0 < size <= MAX_RANKS and world_size in (None, size):
            everyone, world_size = everyone or tuple(range(size)), size
            groups[str(each.get("pg_name"))] = everyone
    return groups, world_size


def _rank(nodes: Sequence[Mapping[str, Any]], world_size: int | None) -> int | None:
    """Return the rank as a collective tells that runs among all ranks."""
    for node in nodes if world_size else ():
        if node.get("name") == COMMUNICATES:
            values, _, types = parts_of(node, "inputs")
            at = types.index("String") if "String" in types else 0
            whole = at and len(values) == len(types) and kind_of(str(values[at])) in _WITHOUT_ROOT
            if whole and types[-1] == "Int" and values[-1] == world_size:
                rank = whole_of(values[at - 1])
                return rank if rank >= 0 else None
    return None


def _clock(content: Mapping[str, Any]) -> tuple[int | None, float]:
    """Return when the trace began, in seconds into the hour, for the time zone is not told, and how long it lasts."""
    found = re.search(r"\d\d:([0-5]\d):([0-5]\d)$", str(content.get("time", "")))
    first, last = whole_of(content.get("start_ts")), whole_of(content.get("finish_ts"))
    if not found or first < 0 or last < first:
        return None, 0.0
    return int(found[1]) * 60 + int(found[2]), (last - first) / 1e3


_ENOUGH = 0.9
"""Share of the operators of the shorter of two traces that must have one in the other, of the same sizes."""
_SLACK_S = 3.0
"""By how much the clocks of two traces of one process may differ: the host's is told in whole seconds."""
_ZONE_S = 900.0
"""Time zones, which are not told, differ by multiples of it."""
_ALIKE = 32
"""Operators in a row by which a place is found where threads differ."""


def link(recording: Recording, host: HostTrace) -> tuple[int, str]:
    """Give the operators of a recording what a host trace of the same rank and steps tells beyond it.

    Operators are the same where they have one number (`Record function id`) and one name. Where a Kineto trace has no
    such numbers, they are the same where threads call operators of equal names in equal order.

    Returns
    -------
    tuple of int and str
        How many operators were linked, and if none, why: the traces are of another process, time or step.
    """
    apart = _apart(recording, host)
    if apart:
        return 0, apart
    known = {operator.name for operator in host.operators}
    places = [place for place, operator in enumerate(recording.operators) if operator.name in known]
    pairs = _by_number(recording, host) if _has_numbers(recording) else _by_order(recording.operators, places, host)
    fewer = min(len(places), len(host.operators))
    if len(pairs) < max(_ENOUGH * fewer, 1):
        return 0, f"only {len(pairs):,} of {fewer:,} operators are in both: they are of other steps"
    other = sum(_differ(recording.operators[place], host.operators[number]) for place, number in pairs.items())
    if other > (1 - _ENOUGH) * len(pairs):
        return 0, f"{other:,} of {len(pairs):,} operators have other sizes in each: they are of other steps"
    _fill(recording, host, pairs)
    return len(pairs), ""


def _apart(recording: Recording, host: HostTrace) -> str:
    """Say why two traces cannot be of one process and moment; nothing if they can."""
    processes = {whole_of(operator.thread[0]) for operator in recording.operators} - {NONE}
    if processes and host.process != NONE and host.process not in processes:
        return f"it is of process {host.process}, the device trace of process {min(processes)}"
    if recording.epoch_us is None or host.began_s is None or not recording.operators:
        return ""
    first_us = min(operator.start_us for operator in recording.operators)
    last_us = max(operator.end_us for operator in recording.operators)
    after_s = ((recording.epoch_us + first_us) / 1e6 - host.began_s + _ZONE_S / 2) % _ZONE_S - _ZONE_S / 2
    if -_SLACK_S - (last_us - first_us) / 1e6 <= after_s <= host.lasts_s + 1 + _SLACK_S:
        return ""
    return (
        f"by the host's clock the device trace begins {after_s:.0f} s after it does, and it lasts {host.lasts_s:.0f} s"
    )


def _has_numbers(recording: Recording) -> bool:
    return any(whole_of(operator.args.get("Record function id")) > 0 for operator in recording.operators)


def _by_number(recording: Recording, host: HostTrace) -> dict[int, int]:
    """Return for operators of a recording those of the host trace with the same number and name."""
    number_of = {record: number for number, record in enumerate(host.records) if record != NONE}
    found = {}
    for place, operator in enumerate(recording.operators):
        number = number_of.get(whole_of(operator.args.get("Record function id")), NONE)
        if number != NONE and host.operators[number].name == operator.name:
            found[place] = number
    return found


def _by_order(operators: Sequence[Operator], places: Sequence[int], host: HostTrace) -> dict[int, int]:
    """Return for operators of a recording those of the host trace that have their place among equal names."""
    letters: dict[str, str] = {}
    here: dict[tuple[str, str], list[int]] = defaultdict(list)
    there: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place in places:
        here[operators[place].thread].append(place)
    names = {operators[place].name for place in places}
    for number, operator in enumerate(host.operators):
        if operator.name in names:
            there[operator.thread].append(number)
    for thread in here.values():  # times may be whole microseconds; ids count as operators begin
        thread.sort(
            key=lambda place: (operators[place].start_us, _external(operators[place]), -operators[place].end_us)
        )

    def spelt(some: Iterable[Operator]) -> str:
        return "".join(letters.setdefault(operator.name, chr(min(len(letters), sys.maxunicode))) for operator in some)

    written = {thread: spelt(operators[place] for place in some) for thread, some in here.items()}
    found: dict[int, int] = {}
    for numbers in sorted(there.values(), key=len, reverse=True):
        text = spelt(host.operators[number] for number in numbers)
        aligned = {own: _aligned(other, text) for own, other in written.items()}
        own = max(aligned, key=lambda each: len(aligned[each]), default=None)
        if own is not None and aligned[own]:
            del written[own]
            found |= {here[own][place]: numbers[number] for place, number in aligned[own]}
    return found


def _external(operator: Operator) -> int:
    return whole_of(operator.args.get("External id", operator.args.get("external id")))


def _aligned(first: str, second: str) -> list[tuple[int, int]]:
    """Return the pairs of equal letters at which two texts lie over each other; none where that is not sure.

    >>> _aligned("bcd", "abcde"), _aligned("ab", "abab")
    ([(0, 1), (1, 2), (2, 3)], [])
    """
    if len(first) > len(second):
        return [(place, number) for number, place in _aligned(second, first)]
    at = second.find(first) if first else NONE
    if at >= 0:
        alone = second.find(first, at + 1) < 0
        return [(place, at + place) for place in range(len(first))] if alone else []
    for place in range(0, len(first) - _ALIKE + 1, _ALIKE):
        piece = first[place : place + _ALIKE]
        at = second.find(piece)
        if at >= 0 and second.find(piece, at + 1) < 0:
            before = _walked(first[:place][::-1], second[:at][::-1])
            after = _walked(first[place:], second[at:])
            return [(place - 1 - here, at - 1 - there) for here, there in reversed(before)] + [
                (place + here, at + there) for here, there in after
            ]
    return []


def _walked(first: str, second: str) -> list[tuple[int, int]]:
    """Return the pairs of equal letters of texts from where they begin, past letters that one of them lacks."""
    here = there = 0
    found = []
    while here < len(first) and there < len(second):
        if first[here] == second[there]:
            found.append((here, there))
            here, there = here + 1, there + 1
            continue
        skips = (
            (more - skip, skip)
            for more in range(1, _ALIKE)
            for skip in range(more + 1)
            if first[here + more - skip : here + more - skip + 4] == second[there + skip : there + skip + 4]
        )
        left, right = next(skips, (NONE, NONE))
        if left == NONE:
            break
        here, there = here + left, there + right
    return found


def _differ(operator: Operator, told: Operator) -> bool:
    """Whether both traces tell the sizes of an operator's tensors, and others."""
    if not _sizes_told(operator):
        return False
    return [shape for shape in operator.dims if shape] != [shape for shape in told.dims if shape]


def _sizes_told(operator: Operator) -> bool:
    """Whether a Kineto trace says the sizes of all tensors: it leaves out those of lists."""
    return any(operator.dims) and "TensorList" not in operator.dtypes


def _fill(recording: Recording, host: HostTrace, pairs: Mapping[int, int]) -> None:
    """Add what a host trace tells to the operators of a recording, and its groups."""
    sizes = ("Input Dims", "Input dims", "Input type", "Concrete Inputs")
    place_of = {number: place for place, number in pairs.items()}
    for place, number in pairs.items():
        operator, told = recording.operators[place], host.operators[number].args
        own = operator.args
        if not _sizes_told(operator):
            own = {key: value for key, value in own.items() if key not in sizes}
        operator.args = {**told, **own}
    for number, operator in enumerate(host.operators):  # collectives of which Kineto knows only the caller
        if operator.name == COMMUNICATES and number not in place_of and operator.parent in place_of:
            caller = recording.operators[place_of[operator.parent]]
            caller.args = {**operator.args, **caller.args}
    recording.groups = {**host.groups, **recording.groups}
    recording.world_size = recording.world_size or host.world_size
