"""What can be measured: experiments, and the rows that each plans or checks; `shapes` has those of kernels."""

import fnmatch
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from scaleout.config.checkpoint import Row
from scaleout.config.reading import nearest
from scaleout.config.units import MOST_COUNT
from scaleout.errors import ConfigError, ScaleoutError, shown
from scaleout.network.collectives import KINDS
from scaleout.validation.measure import shapes
from scaleout.validation.measure.checkpoint import identity

KEYS = ("collective", "ranks", "bytes")
FORCED = ("algorithm", "protocol")
RINGS = ("all_reduce", "all_gather", "reduce_scatter")
_KIBIBYTE, _MEBIBYTE, _GIBIBYTE = 2**10, 2**20, 2**30
LARGEST = {"LL": 16 * _MEBIBYTE, "LL128": 256 * _MEBIBYTE, "Simple": _GIBIBYTE}
"""Protocol of NCCL to the largest size at which it is forced."""


def _collectives(gpus: int, quick: bool) -> Iterator[Row]:
    """Sizes in powers of four, or of two; NCCL's own choice first, then rings with each protocol forced."""
    sizes = [_KIBIBYTE * 2**power for power in range(0, 21, 4 if quick else 1)]
    groups = [ranks for ranks in range(2, gpus + 1) if gpus % ranks == 0 or not quick]
    for ranks in groups[::-1]:
        for kind in KINDS:
            if kind != "send" or ranks == 2:
                yield from ({"collective": kind, "ranks": ranks, "bytes": size // ranks * ranks} for size in sizes)
    for ranks, (protocol, largest) in itertools.product(groups[::-1], LARGEST.items()):
        for kind in RINGS:
            for size in sizes if quick else sizes[::2]:
                if size <= largest:
                    yield {
                        "collective": kind, "ranks": ranks, "bytes": size // ranks * ranks,
                        "algorithm": "Ring", "protocol": protocol,
                    }  # fmt: skip


def _host(gpus: int, quick: bool) -> Iterator[Row]:
    """Steps of `scaleout.validation.measure.host`: the first four without communication, the others with."""
    steps = (
        "pace",
        "data_parallel",
        "perceptron",
        "loop",
        "tensor_parallel",
        "sequence_parallel",
        "mixture_of_experts",
    )
    yield from ({"step": step} for step in steps[: None if gpus > 1 else 4])


_CONCURRENT = (
    "gemm_8192_8192_8192", "gemm_8192_4096_1024", "gemm_2048_12288_3072", "gemm_16384_3072_1536",
    "elementwise_add_256M", "embedding_bag_16x2048x70x256",
)  # fmt: skip


def _contention(gpus: int, quick: bool) -> Iterator[Row]:
    kinds = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
    choices = itertools.product(("default",) if quick else ("default", 4, 16), _CONCURRENT, kinds)
    for number, (ctas, compute, kind) in enumerate(choices):
        if not quick or number % 5 == 0:
            for size in (16 * _MEBIBYTE, 256 * _MEBIBYTE):
                yield {"gpus": gpus, "compute": compute, "collective": kind, "bytes": size, "nccl_max_ctas": ctas}


def _steps(gpus: int, quick: bool) -> Iterator[Row]:
    small = {"hidden": 4096, "heads": 32, "layers": 8, "seq": 2048, "batch": 1}
    large = {"hidden": 8192, "heads": 64, "layers": 4, "seq": 2048, "batch": 2}
    whole = {"hidden": 2048, "heads": 16, "layers": 12, "seq": 1024, "batch": 4}
    for name, sizes in itertools.product(
        ("transformer_forward", "transformer_forward_backward"), (small,) if quick else (small, large)
    ):
        for mode in ("tp", "tp_sp"):
            yield {"name": name, "gpus": gpus, **sizes, "mode": mode, "dtype": "bf16"}
    yield {"name": "dp_compute_only", "gpus": gpus, **whole, "mode": "dp", "dtype": "bf16"}
    if gpus > 1:
        yield {"name": "dp_serial_allreduce_per_parameter", "gpus": gpus, **whole, "mode": "dp", "dtype": "bf16"}
        for bucket in (25,) if quick else (25, 100):
            yield {"name": "dp_ddp_overlap", "gpus": gpus, **whole, "mode": "dp", "bucket_mb": bucket, "dtype": "bf16"}
        yield {"name": "fsdp2_fully_shard", "gpus": gpus, **whole, "mode": "fsdp", "dtype": "bf16"}
    experts = [{"hidden": 4096, "ffn": 14336, "tokens": 4096, "topk": 2, "chunks": 1}]
    if not quick:
        experts += [
            {"hidden": 4096, "ffn": 14336, "tokens": 8192, "topk": 2, "chunks": 4},
            {"hidden": 2048, "ffn": 8192, "tokens": 1024, "topk": 2, "chunks": 1},
        ]
    for sizes, name in itertools.product(experts, ("moe_forward", "moe_forward_backward")):
        yield {"name": name, "gpus": gpus, **sizes, "experts": gpus, "dtype": "bf16"}
    tables = {"batch": 8192, "tables_per_gpu": 16, "dim": 128, "pooling": 70, "top_layers": 20, "mlp": 682}
    for name in ("embedding_all_to_all", "dlrm_forward", "dlrm_forward_backward_allreduce"):
        yield {"name": name, "gpus": gpus, **tables, "dtype": "fp32"}
    yield from _cut(gpus, quick) if gpus > 1 else ()


def _cut(gpus: int, quick: bool) -> Iterator[Row]:
    """A GEMM in parts, each followed by its collective; and one after a gather."""
    for m, n, k in ((8192, 4096, 1024), (8192, 12288, 12288)):
        sizes = {"gpus": gpus, "M": m, "N": n, "K": k}
        for kind, chunks in itertools.product(("all_reduce", "reduce_scatter", "all_to_all"), (1, 2, 4, 8, 16)):
            if not quick or (chunks == 4 and m * n * k == 2**35):
                name = "gemm_then_collective_chunked"
                yield {"name": name, **sizes, "collective": kind, "chunks": chunks, "dtype": "bf16"}
        yield {"name": "all_gather_then_matmul", **sizes, "dtype": "bf16"}


def _fused(gpus: int, quick: bool) -> Iterator[Row]:
    for rows in (8192, 65536) if quick else (8192, 16384, 32768, 65536):
        yield {"gpus": gpus, "op": "gemv_all_reduce", "M": rows, "K": 4096, "dtype": "bf16"}
    for m, n, k in ((8192, 4096, 4096), (8192, 4096, 14336), (32768, 2048, 2048))[: 1 if quick else None]:
        yield {"gpus": gpus, "op": "gemm_all_to_all", "M": m, "N": n, "K": k, "dtype": "bf16"}
    batches, tables = ((512, 2048), (16,)) if quick else ((256, 512, 1024, 2048, 4096), (16, 128))
    for count, dim, batch in itertools.product(tables, (128, 256), batches):
        for programs in (528, 2112) if quick else (528, 1056, 2112):
            yield {
                "gpus": gpus, "op": "embedding_all_to_all", "batch": batch, "tables_per_gpu": count, "dim": dim,
                "pooling": 70, "dtype": "fp32", "persistent_programs": programs,
            }  # fmt: skip


class Experiment(NamedTuple):
    """One kind of rows, identified by `keys`; `module` of this package measures them and needs PyTorch.

    If it is `collective`, all GPUs measure each row jointly; else each GPU measures its own rows. `method` is for the
    file's line of provenance; `plan` returns the rows for a number of GPUs, and fewer if they are to be measured quick.
    """

    module: str
    keys: tuple[str, ...]
    collective: bool
    least_gpus: int
    method: str
    plan: Callable[[int, bool], Iterable[Row]]


EXPERIMENTS: Mapping[str, Experiment] = {
    "kernels": Experiment(
        "timer",
        ("op", "dtype", "shape", "method"),
        False,
        1,
        "graph_replay: CUDA-graph replays that rotate through several sets of data, more than the L2 cache holds; "
        "kernel_durations: durations of the device kernels of one call, added up, over the same data",
        lambda gpus, quick: shapes.grid(quick=quick),
    ),
    "collectives": Experiment(
        "communicator",
        ("collective", "ranks", "bytes", "algorithm", "protocol"),
        True,
        2,
        "CUDA graphs of up to 20 calls, replayed back to back; of each repeat the slowest rank; groups of fewer ranks "
        "than there are GPUs run side by side; bytes is the full tensor on a rank",
        _collectives,
    ),
    "host": Experiment(
        "host", ("step",), True, 1, "time of the host among the calls of whole layers of tiny tensors; mean over ranks",
        _host,
    ),
    "contention": Experiment(
        "concurrent",
        ("gpus", "compute", "collective", "bytes", "nccl_max_ctas"),
        True,
        2,
        "a kernel and a collective in two streams, each as CUDA graphs of calls back to back; each is timed while the "
        "other runs throughout",
        _contention,
    ),
    "steps": Experiment(
        "steps",
        (
            "name", "gpus", "hidden", "layers", "seq", "batch", "mode", "bucket_mb", "ffn", "tokens", "topk", "chunks",
            "M", "N", "K", "collective", "tables_per_gpu", "dim", "pooling", "top_layers", "mlp", "dtype",
        ),
        True,
        1,
        "whole steps as PyTorch runs them call by call, after warm-up; of each repeat the slowest rank",
        _steps,
    ),
    "fused": Experiment(
        "fused",
        ("op", "gpus", "batch", "tables_per_gpu", "dim", "pooling", "persistent_programs", "M", "N", "K", "dtype"),
        True,
        2,
        "Triton kernels that store into peers' memory, and their bulk-synchronous baseline, in CUDA graphs, replayed "
        "back to back; of each repeat the slowest rank; max_abs_diff compares the results of both",
        _fused,
    ),
}  # fmt: skip
"""Name of an experiment to what it is, in the order in which `all` runs them."""


def plan(name: str, *, gpus: int, quick: bool = False) -> list[Row]:
    """Return the rows of an experiment, each once."""
    rows = EXPERIMENTS[name].plan(gpus, quick)
    return list({identity(row, EXPERIMENTS[name].keys): row for row in rows}.values())


def listed(rows: Mapping[str, Row], *, where: str) -> dict[str, dict[str, Row]]:
    """Return rows that say their `experiment` by it, without it; raise `ConfigError` if one says none of ours."""
    found: dict[str, dict[str, Row]] = {}
    for place, row in rows.items():
        name = row.get("experiment")
        if not isinstance(name, str) or name not in EXPERIMENTS:
            raise ConfigError(f"{place}: the row has experiment {shown(name)}; {nearest(str(name), EXPERIMENTS)}")
        found.setdefault(name, {})[place] = {key: value for key, value in row.items() if key != "experiment"}
    if not found:
        raise ConfigError(f"{where}: holds no rows; give one JSON object a line, with its experiment")
    return {name: found[name] for name in EXPERIMENTS if name in found}


def check_rows(name: str, rows: Mapping[str, Row], *, gpus: int) -> list[Row]:
    """Return the rows of a user's file, by where each stands; `ConfigError` or `GraphError` if one does not fit."""
    planned = [] if name in ("kernels", "collectives") else plan(name, gpus=gpus)
    found = []
    for where, row in rows.items():
        try:
            if name == "kernels":
                found.append(shapes.checked(row))
            elif name == "collectives":
                found.append(_checked_collective(row, gpus))
            else:
                found.append(_checked(name, row, planned, gpus))
        except ScaleoutError as error:
            raise type(error)(f"{where}: {error}") from None
    return found


def _checked(name: str, row: Row, planned: Sequence[Row], gpus: int) -> Row:
    """Return a row that has the keys and the kinds of values of one that is planned."""
    alike = [each for each in planned if _name(each) == _name(row)] or planned
    if set(row) not in [set(each) for each in alike]:
        wanted = ", ".join(alike[0])
        raise ConfigError(f"a row to measure of {name} has the keys {wanted}; this one has {', '.join(row) or 'none'}")
    _check_values(row, alike, of=name)
    if row.get("gpus", gpus) != gpus:
        raise ConfigError(f"the row is for {row['gpus']} GPUs; {gpus} take part, say --gpus {row['gpus']}")
    return row


def _check_values(row: Mapping[str, Any], alike: Sequence[Row], *, of: str) -> None:
    """Refuse a name that no row has, and values that are neither texts nor sizes where those of rows alike are."""
    for key, value in row.items():
        known = [each[key] for each in alike if key in each]
        if key in _NAMES and not (isinstance(value, str) and value in known):
            raise ConfigError(f"cannot measure {key} {shown(value)} of {of}; {nearest(str(value), {*map(str, known)})}")
        sizes = [each for each in known if isinstance(each, int)]
        is_size = type(value) is int and 0 < value <= MOST_COUNT
        is_text = isinstance(value, str) and (not sizes or value in known)
        if not (is_text or (sizes and is_size)):
            wanted = "whole number above zero" if sizes else "text"
            raise ConfigError(f"a row to measure of {of} has {key} {shown(value)}; give a {wanted}")


def _checked_collective(row: Row, gpus: int) -> Row:
    if not set(KEYS) <= row.keys() <= {*KEYS, *FORCED}:
        raise ConfigError(
            f"a collective to measure has the keys {', '.join(KEYS)}, and at most {' and '.join(FORCED)}; "
            f"this row has {', '.join(row) or 'none'}"
        )
    kind = row["collective"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError(f"cannot measure collective {shown(kind)}; {nearest(str(kind), KINDS)}")
    if not (type(row["ranks"]) is int and 2 <= row["ranks"] <= gpus):
        raise ConfigError(f"the row has ranks {shown(row['ranks'])}; this machine can measure 2 to {gpus}")
    if not (type(row["bytes"]) is int and 2 * row["ranks"] <= row["bytes"] <= MOST_COUNT):
        raise ConfigError(f"the row has {shown(row['bytes'])} bytes; give a whole number, at least two a rank")
    for key in FORCED:
        if key in row and not isinstance(row[key], str):
            raise ConfigError(f"the row has {key} {shown(row[key])}; give NCCL's name")
    return row


_NAMES = ("op", "name", "collective", "step")
"""Keys of a row's name, the first that it has."""


def _name(row: Mapping[str, Any]) -> str:
    return next((str(row[key]) for key in _NAMES if key in row), "")


def chosen(rows: Sequence[Row], *, only: Sequence[str] = (), dtypes: Sequence[str] = ()) -> list[Row]:
    """Return the rows whose names match patterns such as ``attention_*``, and dtypes; each must match a row."""
    named = [(_name(row), row) for row in rows]
    for pattern in only:
        if not any(fnmatch.fnmatch(name, pattern) for name, _ in named):
            hint = nearest(pattern, sorted({name for name, _ in named}))
            raise ConfigError(f"--only {pattern}: nothing to measure is named so; {hint}")
    for dtype in dtypes:
        if not any(row.get("dtype") == dtype for row in rows):
            known = sorted({str(row["dtype"]) for row in rows if "dtype" in row})
            hint = nearest(dtype, known) if known else "these rows have none, leave it out"
            raise ConfigError(f"--dtype {dtype}: nothing to measure is of it; {hint}")
    return [
        row
        for name, row in named
        if (not only or any(fnmatch.fnmatch(name, pattern) for pattern in only))
        and (not dtypes or row.get("dtype") in dtypes)
    ]


@dataclass(frozen=True)
class Job:
    """Rows of one experiment to measure."""

    experiment: str
    rows: tuple[Row, ...]
    folder: str
    gpus: int
    repeats: int
