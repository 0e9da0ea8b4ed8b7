"""Embedding tables over ranks: which rank holds which part of which table.

A table lies whole on one rank (`table_wise`), in parts of some columns, each on a rank (`column_wise`), or every rank
holds an equal share of its rows (`row_wise`). Whole tables and parts of columns go to ranks by their cost, the largest
first to the rank that has least so far and room (Graham's rule of the longest processing time). Under `auto` the
costliest tables are row-wise, as many as make the busiest rank's cost least. Knows neither devices nor time: costs are
the bytes that a rank reads and writes, in which a byte exchanged counts several times.

Source: TorchRec (Ivchenko et al., RecSys 2022, and its `planner`), which places uniform shards first and then others
greedily by cost; Graham, SIAM J. Appl. Math. 17(2), 1969 (at most 4/3 - 1/(3p) of the best).
"""

import functools
import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from scaleout.config.units import Count, format_bytes
from scaleout.config.validated import Config
from scaleout.program.operations import ITEM_BYTES, OPERATIONS, kernel

Kind = Literal["auto", "table_wise", "row_wise", "column_wise"]


class EmbeddingTable(Config):
    """One entry of `tables`: so many tables that are alike."""

    rows: Count = Field(description="rows of the table")
    pooling: Count = Field(default=1, description="rows that a sample looks up in it, summed")
    count: Count = Field(default=1, description="how many tables are alike")
    sharding: Kind | None = Field(
        default=None, description="how it is cut over ranks; the workload's `sharding` if unset"
    )


@dataclass(frozen=True, order=True)
class Bags:
    """Tables, or parts of their columns, that one kernel pools: of one width and one number of look-ups a sample."""

    pooling: int
    dim: int
    tables: int
    rows: int  # of all of them

    @property
    def parameters(self) -> int:
        """Numbers that they hold."""
        return self.rows * self.dim

    @property
    def width(self) -> int:
        """Elements that a sample gets of them."""
        return self.tables * self.dim


@dataclass(frozen=True)
class Step:
    """What a step does with tables, and where they may lie: all that a plan depends on besides the tables."""

    ranks: int
    batch: int  # samples of all ranks
    dim: int
    dtype: str
    update: str  # the operation that follows backward's exchange; empty if there is no backward
    states: int = 0  # numbers that the optimizer keeps for each parameter
    sharding: Kind = "auto"
    column_width: int | None = None
    exchange_cost: float = 0.0  # bytes of memory that a byte exchanged costs as much as
    capacity_bytes: float = math.inf  # of a rank, for tables with their states
    apart: bool = False  # whether tables of each entry are a kernel of their own, as modules of PyTorch are


@dataclass(frozen=True)
class Plan:
    """Where tables lie: those that each rank pools for the whole batch, and those of whose rows all hold a share."""

    exchanged: tuple[tuple[Bags, ...], ...]  # a rank
    row_wise: tuple[Bags, ...]  # the share of a rank
    costs: tuple[float, ...]  # of each rank

    @property
    def imbalance(self) -> float:
        """The busiest rank's cost over the mean."""
        return max(self.costs) * len(self.costs) / math.fsum(self.costs)

    def parameters_of(self, rank: int) -> int:
        """Parameters of tables that a rank holds; where rows do not divide, those of the ranks that hold one more."""
        return sum(bags.parameters for bags in (*self.row_wise, *self.exchanged[rank]))


@dataclass(frozen=True)
class _Part:
    """So many whole tables, parts of their columns or, if `uniform`, a rank's share of their rows, that are alike."""

    rows: int
    dim: int
    pooling: int
    count: int
    cost: float  # of one, on a rank that holds it
    size_bytes: int  # of one, on such a rank
    entry: int  # of `tables`; 0 where kernels pool what is alike of several
    uniform: bool = False


_Entry = tuple[int, EmbeddingTable]
"""An entry of `tables`, and its number."""


@functools.lru_cache(maxsize=64)
def plan_of(tables: tuple[EmbeddingTable, ...], step: Step) -> Plan:
    """Place tables on ranks; a ValueError says that one cannot be cut as it is to be, or that there is no room."""
    fixed: list[_Part] = []
    free: list[_Entry] = []
    for entry in enumerate(tables):
        kind = entry[1].sharding or step.sharding
        if kind == "auto" and step.ranks > 1 and entry[1].rows >= step.ranks:
            free.append(entry)
        else:
            fixed.append(_part(entry, "table_wise" if kind == "auto" else kind, step))
    free.sort(key=lambda entry: -_part(entry, "table_wise", step).cost)
    best: Plan | None = None
    has_room = _mean([*fixed, *_cut(free, 0, step)], step, "size_bytes") <= step.capacity_bytes
    for cut in range(sum(table.count for _, table in free) + 1 if has_room else 0):
        parts = [*fixed, *_cut(free, cut, step)]
        if best is not None and _mean(parts, step, "cost") >= max(best.costs):
            break  # each further table costs more cut by rows than whole, so all that follow are at least as costly
        found = _placed(parts, step)
        if found is not None and (best is None or max(found.costs) < max(best.costs)):
            best = found
    if best is None:
        raise ValueError(
            f"tables do not fit into table_memory {format_bytes(step.capacity_bytes)} on {step.ranks} ranks, however "
            f"they are placed; take more ranks, more memory, or cut large tables by rows (sharding row_wise)"
        )
    return best


def _mean(parts: Iterable[_Part], step: Step, quantity: Literal["cost", "size_bytes"]) -> float:
    """Cost or bytes of a rank in the mean."""
    return math.fsum(part.count * getattr(part, quantity) / (1 if part.uniform else step.ranks) for part in parts)


def _cut(free: Iterable[_Entry], cut: int, step: Step) -> Iterable[_Part]:
    """Cut the first so many tables by rows, and leave the others whole."""
    for entry, table in free:
        rows = min(cut, table.count)
        cut -= rows
        for count, kind in ((rows, "row_wise"), (table.count - rows, "table_wise")):
            if count:
                yield _part((entry, table.model_copy(update={"count": count})), kind, step)


def _part(numbered: _Entry, kind: str, step: Step) -> _Part:
    """Return the parts of tables that are alike, and what one costs where it lies."""
    entry, table = numbered
    rows, dim, bags, count = table.rows, step.dim, step.batch, table.count
    uniform = kind == "row_wise"
    if uniform:
        if rows < step.ranks:
            raise ValueError(
                f"a table of {rows} rows cannot be cut row_wise over {step.ranks} ranks; leave it table_wise"
            )
        rows, bags = -(-rows // step.ranks), bags // step.ranks
    if kind == "column_wise":
        width = step.column_width
        if width is None:
            raise ValueError(f"column_wise tables need column_width, a divisor of embedding_dim {dim}; give it")
        if dim % width:
            raise ValueError(f"column_width {width} does not divide embedding_dim {dim}; choose a divisor")
        count, dim = count * (dim // width), width
    item_bytes = ITEM_BYTES[step.dtype]
    operations = ("embedding_bag_fwd", step.update) if step.update else ("embedding_bag_fwd",)
    sizes = {"batch": bags, "tables": 1, "dim": dim, "pooling": table.pooling}
    touched = sum(
        kernel(op, dtype=step.dtype, **sizes, **({"rows": rows} if "rows" in OPERATIONS[op].parameters else {})).bytes
        for op in operations
    )
    touched += (step.batch - bags) * dim * item_bytes  # bags of which no row is here
    sent = len(operations) * step.batch * dim * item_bytes * (step.ranks - 1) / step.ranks
    size_bytes = rows * dim * item_bytes * (1 + step.states)
    cost = touched + step.exchange_cost * sent
    return _Part(rows, dim, table.pooling, count, cost, size_bytes, entry * step.apart, uniform)


def _placed(parts: Sequence[_Part], step: Step) -> Plan | None:
    """Give every rank its share of what is uniform, and each other part to the rank with least; None without room."""
    ranks = range(step.ranks)
    uniform = [part for part in parts if part.uniform]
    cost = math.fsum(part.count * part.cost for part in uniform)
    room = step.capacity_bytes - sum(part.count * part.size_bytes for part in uniform)
    heap, rooms = [(cost, rank) for rank in ranks], [room for _ in ranks]
    held: list[list[tuple[_Part, int]]] = [[] for _ in ranks]
    even = True
    for part in sorted((part for part in parts if not part.uniform), key=lambda part: -part.cost):
        rounds, single = divmod(part.count, step.ranks) if even else (0, part.count)
        if rounds:  # while all have the same, one after the other gets one
            heap = [(had + rounds * part.cost, rank) for had, rank in sorted(heap)]
            rooms = [had - rounds * part.size_bytes for had in rooms]
            for mine in held:
                mine.append((part, rounds))
        even = even and not single
        for _ in range(single):
            if not _take(part, heap, rooms, held):
                return None
    if min(rooms) < 0:
        return None
    costs = tuple(had for had, _ in sorted(heap, key=lambda each: each[1]))
    return Plan(tuple(_bags(mine) for mine in held), _bags([(part, part.count) for part in uniform]), costs)


def _take(part: _Part, heap: list[tuple[float, int]], rooms: list[float], held: list[list[tuple[_Part, int]]]) -> bool:
    """Give one part to the rank that has least and room for it; False if none has."""
    full: list[tuple[float, int]] = []
    while heap and rooms[heap[0][1]] < part.size_bytes:
        full.append(heapq.heappop(heap))
    if heap:
        had, rank = heap[0]
        heapq.heapreplace(heap, (had + part.cost, rank))
        rooms[rank] -= part.size_bytes
        held[rank].append((part, 1))
    taken = bool(heap)
    for each in full:
        heapq.heappush(heap, each)
    return taken


def _bags(parts: Iterable[tuple[_Part, int]]) -> tuple[Bags, ...]:
    """Gather parts of one width and number of look-ups, which one kernel pools; of each entry where they are apart."""
    found: dict[tuple[int, int, int], tuple[int, int]] = {}
    for part, count in parts:
        key = part.pooling, part.dim, part.entry
        tables, rows = found.get(key, (0, 0))
        found[key] = tables + count, rows + count * part.rows
    return tuple(Bags(pooling, dim, *found[pooling, dim, entry]) for pooling, dim, entry in sorted(found))
