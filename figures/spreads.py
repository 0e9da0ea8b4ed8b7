"""How far off times are, for error bars: the numbers of `spread` in files of devices and libraries.

    python figures/spreads.py [--tables TABLES] [--collectives FILE] [--runs RUNS]

Prints, of each number, `ln(actual / predicted)` at either end of 90% of all cases: of a device's kernels each left out
in turn; of one device's kernels on another, by class; of the same kernels on other machines; of hosts, from steps that
they bound; of collectives of the fitted libraries; and, from TABLES, a file of published tables, of whole steps, beyond
what their parts explain: each family of published steps counts the same, and what is printed below it leaves one family
out. COLLECTIVES is the Ultra-Scale Playbook's file of bus bandwidths, RUNS that of its steps, of which the tenth on
which the host of h100-p5 was chosen says what EFA errs by in steps. No other row is read. See uncertainty.md.
"""

import argparse
import hashlib
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from scaleout.analysis.uncertainty import STEP, class_of
from scaleout.cluster.device.kernel_times import kernel_times, time_without_itself
from scaleout.cluster.device.kernel_times.measured import table_of
from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.topology.placement import place
from scaleout.cluster.topology.topology import load_topology
from scaleout.config.library import folder
from scaleout.errors import GraphError
from scaleout.network.alpha_beta.cost import collective_cost
from scaleout.program.operations import OPERATIONS, Family, Kernel, kernel
from scaleout.validation.measured.compare import Compared, compare_files
from scaleout.validation.measured.rows import read_rows

SHARED = Path(__file__).parents[2] / "shared" / "validation"
LONG_S = 20e-6
"""Kernels that are shorter hardly count in a step."""
STEPS = {
    "llm_foundry_mpt": "llm-foundry",
    "torchtitan_llama3_h100_202412_torchtitan": "torchtitan",
    "torchtitan_asyncTP_llama3_h100_2025-06_torchtitan": "torchtitan, async TP",
    "maxtext_tpu_v4": "MaxText",
    "maxtext_tpu_v5e": "MaxText",
    "simumax_b200": "SimuMax",
    "megatron_seqsel_tab5": "Megatron-LM",
    "vtrain_multi": "vTrain, many nodes",
}
"""Published tables of steps to their families."""
CHOSEN = ("torchtitan", "torchtitan, async TP", "MaxText", "SimuMax")
"""Families on which what GEMMs reach on their device was chosen, so that no error of kernels is left in their rows."""
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
"""Of steps of training."""
_LARGE_BYTES = 2**24
"""Collectives that are smaller hardly count in a step."""
ENDS = (0.05, 0.95)


def spread(errors: Iterable[float]) -> tuple[float, float]:
    """Return how much faster and slower 90% of all cases are, from ``ln(actual / predicted)``."""
    low, high = np.quantile(list(errors), ENDS)
    return max(0.0, -float(low)), max(0.0, float(high))


def measured_kernels(device: Device, ops: Iterable[str] = OPERATIONS) -> dict[Kernel, float]:
    """Return the long kernels of some operations that were measured on a device, and the seconds of each."""
    table, found = table_of(device), {}
    for op, dtype in sorted(table.rows):
        if op not in ops:
            continue
        for shape, seconds in table.series((op, dtype)).exact.items():
            if seconds >= LONG_S:
                sizes = dict(zip(OPERATIONS[op].parameters, map(int, shape), strict=True))
                with suppress(GraphError):  # of recorded sizes that count nothing
                    found[kernel(op, dtype=dtype, **sizes)] = seconds
    return found


def left_out(device: Device) -> Iterator[tuple[Kernel, float, float]]:
    """Yield each long kernel with its seconds, measured and as if it had not been."""
    for each, seconds in measured_kernels(device).items():
        without = time_without_itself(device, each)
        if without is not None:
            yield each, seconds, without.seconds


def by_class(rows: Iterable[tuple[Kernel, float, float]]) -> dict[str, list[float]]:
    """Return ``ln(measured / predicted)`` of kernels by class."""
    found: dict[str, list[float]] = {}
    for each, measured_s, predicted_s in rows:
        found.setdefault(class_of(each), []).append(float(np.log(measured_s / predicted_s)))
    return found


_OTHER_UNITS = {op for op, each in OPERATIONS.items() if each.family is Family.CONVOLUTION}
"""Convolutions, of which h100 has none of its own."""


def on_other(device: Device, reference: str) -> dict[str, list[float]]:
    """Return the errors of a device's kernels if none was measured on it and they were those of a reference device."""
    bare = replace(
        device, name=f"{device.name} as {reference}", kernel_files=(), efficiency_from=reference, calibration={}
    )
    found = measured_kernels(device, {op for op, _ in table_of(load_device(reference)).rows} - _OTHER_UNITS)
    predicted, _ = kernel_times(bare, tuple(found))
    return by_class(zip(found, found.values(), predicted.tolist(), strict=True))


def kernels() -> Iterator[str]:
    """Yield lines about kernels: each left out, on another device, on another machine."""
    devices = {name: load_device(name) for name in ("h200", "h100", "b200")}
    for name, device in devices.items():
        for what, errors in by_class(left_out(device)).items():
            yield f"{name}: interpolated: {what}: {max(spread(errors)):.3f} ({len(errors)} kernels, each left out)"
    means: dict[str, list[float]] = {}
    for reference, name in (("h200", "h100"), ("h100", "h200"), ("h200", "b200"), ("h100", "b200")):
        for what, errors in on_other(devices[name], reference).items():
            mean, each = float(np.mean(errors)), np.quantile(np.abs(np.array(errors) - np.mean(errors)), 0.9)
            means.setdefault(what, []).append(mean)
            yield f"{name} as {reference}: {what}: mean {mean:+.3f}, each {each:.3f} ({len(errors)} kernels)"
    for what, found in means.items():
        off = 1.645 * np.sqrt(np.mean(np.square(found)))
        yield f"transferred: {what}: {off:.3f} (1.645 times the root mean square)"


def machines() -> Iterator[str]:
    """Yield lines about kernels of H200 on other machines of it."""
    unseen = folder("device") / "h200-pair-unseen" / "kernels.jsonl"
    there = compare_files([unseen], device="h200", topology="h200-node-4").rows
    errors = np.array([-np.log1p(row.error) for row in there if row.error is not None])
    yield f"machine: {unseen.name} of h200-pair-unseen: mean {errors.mean():+.3f} ({len(errors)} GEMMs)"


def over_share(rows: Iterable[Compared], cause: str, least: float) -> list[float]:
    """Return ``ln(measured / predicted)`` over the share of a cause, of rows of which it is at least some part."""
    found = []
    for row in rows:
        causes = row.interval.causes if row.interval else ()
        share = math.fsum(each.share for each in causes if each.cause.startswith(cause))
        if share >= least:
            found.append(math.log(row.measured / row.predicted) / share)  # type: ignore[operator]
    return found


def hosts() -> Iterator[str]:
    """Yield lines about the hosts of our own machines, from steps of which they are at least half."""
    four, pair = (folder("device") / name / "steps.jsonl" for name in ("h200-four", "h100-pair"))
    gpus = {row.id: row.ranks() for row in read_rows(four)}
    rows = compare_files([four], device="h200", topology="h200-node-4").rows
    sets = {f"h200-four, {ranks}": [row for row in rows if gpus[row.id] == ranks] for ranks in (1, 2, 4)}
    machine = str(folder("device") / "h200-pair" / "machine.yaml")
    sets["h100-pair, 2"] = list(compare_files([pair], device="h100", topology=machine).rows)
    errors = {name: over_share(found, "calls of the host", 0.5) for name, found in sets.items()}
    for name, found in errors.items():
        yield f"host: {name} GPUs: median {np.median(found):+.3f} ({len(found)} steps)"
    every = np.concatenate(list(errors.values()))
    weights = np.concatenate([np.full(len(found), 1 / len(found)) for found in errors.values()])
    order = np.argsort(every)
    reached = np.cumsum(weights[order]) / weights.sum()
    low, high = (every[order][np.searchsorted(reached, end)] for end in ENDS)
    yield f"host: faster {-low:.3f}, slower {high:.3f} (each set of the same weight)"


def links_in_steps(runs: Path) -> Iterator[str]:
    """Yield a line about EFA in steps of class A: the least and the most, as so few rows say nothing of 5%."""
    rows = [json.loads(line) for line in runs.read_text(encoding="utf-8").splitlines()]
    tenth = [row for row in rows if int(hashlib.sha256(row["id"].encode()).hexdigest(), 16) % 10 == 0]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "runs.jsonl"
        kept = [row for row in tenth if row.get("class") == "A" and row["status"] == "ok"]
        file.write_text("".join(json.dumps({**row, "memory_gib": None}) + "\n" for row in kept), encoding="utf-8")
        found = over_share(compare_files([file], table="ultrascale").rows, "collectives over efa", 0.15)
    yield f"efa in steps: faster {-min(found):.3f}, slower {max(found):.3f} ({len(found)} steps)"


def libraries(collectives: Path) -> Iterator[str]:
    """Yield lines about collectives: the library of H200, bare links, and EFA, healthy against typical."""
    topology = load_topology("h200-node-4")
    bare, errors = replace(topology, library=None), dict[str, list[float]]()
    for row in read_rows(folder("device") / "h200" / "collectives.jsonl"):
        kind, ranks = str(row.values["collective"]), int(row.values["ranks"])
        if row.values.get("algorithm") or kind not in COLLECTIVES:
            continue
        for size, us in zip(row.values["bytes"], row.values["us"], strict=True):
            for name, network in (("nvlink", topology), ("bare links", bare)) if size >= _LARGE_BYTES else ():
                cost_s = collective_cost(kind, size, place(network, range(ranks))).time_s - network.startup_s
                errors.setdefault(name, []).append(float(np.log(us * 1e-6 / cost_s)))
    for name, found in errors.items():
        faster, slower = spread(found)
        yield f"collectives of H200, {name}: faster {faster:.3f}, slower {slower:.3f} ({len(found)} rows from 16 MiB)"
    if collectives.is_file():
        rows = [row.values for row in read_rows(collectives)]
        found = [np.log(row["p95_gb_s"] / row["bus_bandwidth_gb_s"]) for row in rows if row["nodes"] > 1]
        yield f"efa: slower {np.mean(found):.3f} (mean over {len(found)} of ln(95th percentile / mean))"


def steps(tables: Path) -> Iterator[str]:
    """Yield lines about steps: what is to be added to their parts so that 90% of a family's rows lie within."""
    rows: dict[str, list[Compared]] = {}
    for table, family in STEPS.items():
        found = compare_files([tables], table=table).rows
        rows.setdefault(family, []).extend(row for row in found if row.quantity == "time" and row.error is not None)
    yield from frameworks(rows)
    for left in (None, *rows):
        faster, slower = beyond_parts({name: found for name, found in rows.items() if name != left})
        yield f"step{'' if left is None else f' without {left}'}: faster {faster:.3f}, slower {slower:.3f}"


STUDENT = {6: 1.943}
"""Degrees of freedom to the 95th percentile of Student's t."""


def frameworks(rows: Mapping[str, Sequence[Compared]]) -> Iterator[str]:
    """Yield lines about a framework of which no step was compared: how far its mean is from that of others.

    Means of K families differ by s. One more is within ``t s sqrt(1 + 1 / k)`` of the mean of k of them, and what these
    vary by among them, ``z s sqrt((k - 1) / k)``, is in their spread already.
    """
    errors = ([math.log(row.measured / row.predicted) for row in found] for found in rows.values())  # type: ignore[operator]
    means = [np.mean(found) for found in errors]
    differ = float(np.std(means, ddof=1))
    yield f"framework: means of {len(means)} families differ by {differ:.3f} (standard deviation)"
    for k in (len(means), 3, 1):
        new, held = STUDENT[len(means) - 1] * differ * math.sqrt(1 + 1 / k), 1.645 * differ * math.sqrt((k - 1) / k)
        yield f"framework: beside {k} families: {math.sqrt(new**2 - held**2):.3f}"


def beyond_parts(rows: Mapping[str, Sequence[Compared]]) -> tuple[float, float]:
    """Return the least spread of a step, faster and slower, with which 5% of rows lie beyond either end of the bars.

    Each family weighs the same. A row at ``e`` beyond what its parts explain, p, needs ``sqrt(e**2 - p**2)``. Rows that
    are evaluated block by block (Megatron-LM, vTrain) have no bars; their parts are taken as the median of the others'.
    """
    weights = np.concatenate([np.full(len(found), 1 / len(found)) for found in rows.values()])
    every = [row for found in rows.values() for row in found]
    errors = np.log([row.measured / row.predicted for row in every])  # type: ignore[operator]
    ends = []
    for sign, side in ((-1.0, "faster"), (1.0, "slower")):
        parts = np.concatenate([_parts(name, found, side) for name, found in rows.items()])
        parts = np.where(np.isnan(parts), np.nanmedian(parts), parts)
        needed = np.sqrt(np.maximum(np.maximum(sign * errors, 0.0) ** 2 - parts**2, 0.0))
        order = np.argsort(needed)
        reached = np.cumsum(weights[order]) / weights.sum()
        ends.append(float(needed[order][np.searchsorted(reached, ENDS[1])]))
    return ends[0], ends[1]


def _parts(family: str, rows: Sequence[Compared], side: str) -> list[float]:
    """Return what the parts of each row of a family explain of its error, on one side; NaN where it has no bars."""
    kinds = ("collectives", "calls") if family in CHOSEN else ("",)
    found = []
    for row in rows:
        causes = row.interval.causes if row.interval else ()
        known = [getattr(each, side) for each in causes if each.cause.startswith(kinds) and each.cause != STEP]
        found.append(math.hypot(*known) if row.interval else math.nan)
    return found


def main() -> None:
    """Print all numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=Path, default=SHARED / "tables.json", help="file of published tables")
    parser.add_argument(
        "--collectives", type=Path, default=SHARED / "ultrascale" / "collectives.jsonl", help="bus bandwidths over EFA"
    )
    parser.add_argument("--runs", type=Path, default=SHARED / "ultrascale" / "dev.jsonl", help="steps of Ultra-Scale")
    options = parser.parse_args()
    runs = links_in_steps(options.runs) if options.runs.is_file() else ()
    published = steps(options.tables) if options.tables.is_file() else ()
    for line in chain(kernels(), machines(), hosts(), libraries(options.collectives), runs, published):
        print(line, flush=True)


if __name__ == "__main__":
    main()
