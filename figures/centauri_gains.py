"""Centauri's gains under FSDP, told by what they depend on: order of the baseline, contention, tier; and their bound.

    python figures/centauri_gains.py [--output DIR]

Writes centauri_gains.md. FSDP gathers a layer when its backward begins (equation (1) of the paper), or one layer ahead
(PyTorch). What collectives take from kernels on A100 is not measured: it is bracketed by the fewest and the most
channels that NCCL may use there, `topologies/nccl/a100-*-channels.yaml`. Tiers are ablated in the paper's order.

Source: Chen et al., Centauri, ASPLOS 2024, Figs. 8, 9 and 12.
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from scaleout.config.writing import write_text
from scaleout.validation.papers import centauri

ORDERS = {"when its backward begins": 0, "a layer ahead": 1}
"""When FSDP gathers a layer again for backward, to the layers that it is ahead."""
TIERS = {
    "collectives by levels": "centauri:group",
    "and cut with their GEMMs (operation tier)": "centauri:workload",
    "and backward reordered (layer tier)": "centauri:order",
    "and the model tier": "centauri:model",
    "gradients in chunks, not in the paper": "centauri:gradients",
}


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table's lines."""
    return [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def gain(size: str, batch: int, ahead: int, contention: str, *, strategy: str = "centauri") -> float:
    """Return Centauri's gain over FSDP of the same order and contention on two nodes of Cluster A."""
    on = ("A", 2, contention)
    base, chosen = (centauri.fsdp(size, batch, name, on=on, ahead=ahead) for name in ("zero-3", strategy))
    return centauri.gain(base, chosen)


def fsdp() -> list[str]:
    """Return Fig. 8's gains by order and contention."""
    columns = [(ahead, contention) for ahead in ORDERS.values() for contention in centauri.CONTENTION]
    gains = {
        (size, batch): [gain(size, batch, *column) for column in columns]
        for size in centauri.SIZES
        for batch in centauri.BATCHES
    }
    rows = [[size, str(batch), *map("{:.2f}".format, each)] for (size, batch), each in gains.items()]
    largest = [f"{max(column):.2f}" for column in zip(*gains.values(), strict=True)]
    header = [f"{order}, {contention}" for order in ORDERS for contention in centauri.CONTENTION]
    return table(("size", "batch", *header), [*rows, ["largest", "", *largest]])


def tiers() -> list[str]:
    """Return the gain of Big with more and more of Centauri, by order and batch, without contention."""
    columns = [(ahead, batch) for ahead in ORDERS.values() for batch in centauri.BATCHES]
    rows = [
        [label, *(f"{gain('big', batch, ahead, 'none', strategy=name):.2f}" for ahead, batch in columns)]
        for label, name in TIERS.items()
    ]
    return table(("what", *(f"{order}, {batch}" for order in ORDERS for batch in centauri.BATCHES)), rows)


def data_parallel() -> list[str]:
    """Return Fig. 9's gains of Big over each other strategy by batch; what does not fit is marked."""
    rows = []
    found = centauri.figure_9()
    for name in centauri.DATA_PARALLEL:
        if name == "centauri":
            continue
        row = [name]
        for batch in centauri.BATCHES:
            steps = found[f"big\n{batch}"]
            row.append(f"{centauri.gain(steps[name], steps['centauri']):.2f}" + ("" if steps[name].fits else " (OOM)"))
        rows.append(row)
    return table(("over", *(f"batch {batch}" for batch in centauri.BATCHES)), rows)


def bounds() -> list[str]:
    """Return Fig. 12: the gain over FSDP beside the bound from FSDP's own communication share."""
    rows = []
    for batch, steps in centauri.figure_12().items():
        _, own = centauri.bound_of(steps["centauri"])
        _, of_base = centauri.bound_of(steps["zero-3"])
        measured = centauri.gain(steps["zero-3"], steps["centauri"])
        rows.append(
            [str(batch), *map("{:.2f}".format, (measured, of_base, own)), "yes" if measured <= of_base else "no"]
        )
    return table(("batch", "gain over FSDP", "bound from FSDP's share", "bound from Centauri's share", "below"), rows)


def main() -> None:
    """Simulate and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    lines = ["# Centauri's gains", "", "Made by `python figures/centauri_gains.py`; nothing here was measured.", ""]
    lines += ["## Over FSDP on 16 A100, by when FSDP gathers a layer for backward, and contention", "", *fsdp()]
    lines += ["## Of Big, tier by tier, by order and batch", "", *tiers()]
    lines += ["## Of Big over data parallelism (Fig. 9)", "", *data_parallel()]
    lines += ["## Of one layer of Big against its upper bound (Fig. 12)", "", *bounds()]
    write_text(output / "centauri_gains.md", "\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
