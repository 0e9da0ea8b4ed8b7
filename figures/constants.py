"""Which constants of the machine files move the papers' numbers most: what `readings.yaml` names for each.

    python figures/constants.py [PAPER ...] [--output DIR]

Simulates every figure of a paper with 30% less and 30% more of each number of its machine files, and writes
constants.csv, a row a claim and constant that moves it, and prints for each claim the three that move it most, ours
first; `moves` is over the published number. Sizes of dimensions and tiles are no constants. Takes half an hour.
"""

import argparse
import math
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scaleout.config.writing import write_text
from scaleout.config.yaml_files import read_yaml
from scaleout.errors import ScaleoutError
from scaleout.validation import papers

ROOT = Path(__file__).parents[1]
MACHINES = {
    "fused": ("traces/mi210/device.yaml", "topologies/rccl/mi210.yaml", "topologies/mi210-pair.yaml",
              "topologies/torus-8x16.yaml"),
    "t3": ("traces/t3-gpu*/device.yaml", "topologies/t3-ring-*.yaml"),
    "centauri": ("traces/a100-80g/device.yaml", "topologies/a100-cluster-*.yaml"),
    "aluminum": ("traces/v100/device.yaml", "topologies/sierra-*.yaml", "topologies/sierra/*.yaml"),
}  # fmt: skip
"""Files of each paper's machines; of a pattern all are scaled together."""
NO_CONSTANTS = {
    "size",
    "nodes",
    "tile_rows",
    "tile_columns",
    "tile_depth",
    "most_per_sm",
    "waves_per_tile",
    "threads_per_unit",
}
_QUANTITY = re.compile(r"\s*[0-9.]+(?:[eE][-+]?[0-9]+)?\s*[A-Za-z/]*")
_GIVEN = re.compile("data ?sheet|product page|white paper|Table|Sec\\.|nominal")
_OURS = re.compile("assumed|read as|reading|Fig\\.|issue|pull request")


def keys(value: Any, way: str = "", source: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the way to each number of a file's values that is a constant, and whether it is ours.

    Ours is what is not simply stated by the paper or the maker: assumed, fitted, read in one of several ways, or taken
    from another machine.
    """
    if isinstance(value, dict) and "value" in value:
        value, source = value["value"], value["source"]
    entries: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in entries:
        if key not in NO_CONSTANTS:
            stated = value.get(f"{key}_source", "") if isinstance(value, dict) else source
            yield from keys(each, f"{way}.{key}" if way else str(key), stated)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number or (isinstance(value, str) and _QUANTITY.fullmatch(value)):
        yield way, not _GIVEN.search(source) or bool(_OURS.search(source))


def constants(paper: str) -> dict[str, bool]:
    """Return the constants of a paper's machine files, as `readings.yaml` names them, and whether each is ours."""
    found: dict[str, bool] = {}
    for pattern in MACHINES[paper]:
        for file in sorted(ROOT.glob(pattern)):
            files = file.relative_to(ROOT).as_posix() if pattern.startswith("topologies/sierra/") else pattern
            for key, ours in keys(read_yaml(file)):
                found.setdefault(f"{files} {key}", ours)
    return found


def scan(paper: str) -> pd.DataFrame:
    """Return a row for each claim of a paper and constant that moves it."""
    module = import_module(f"scaleout.validation.papers.{paper}")
    claims = [claim for claim in papers.published() if claim.paper == paper]
    rows = []
    for figure in dict.fromkeys(module.FIGURES.values()):
        base = figure()
        mine = [claim for claim in claims if claim.id in base]
        for constant, ours in constants(paper).items():
            low = varied(module, figure, constant, 0.7)
            if not low or all(low[claim.id] == base[claim.id] for claim in mine):
                continue  # not read, or of no weight
            high = varied(module, figure, constant, 1.3)
            for claim in mine:
                ends = [each.get(claim.id, math.nan) for each in (low, high)]
                moves = np.nanmax(np.abs(np.array(ends) - base[claim.id]))
                if moves > 1e-9 * abs(base[claim.id]):
                    rows.append((claim.id, constant, ours, base[claim.id], *ends, moves / abs(claim.value)))
    return pd.DataFrame(rows, columns=["claim", "constant", "ours", "simulated", "minus", "plus", "moves"])


def varied(module: Any, figure: Callable[[], Mapping[str, float]], constant: str, factor: float) -> Mapping[str, float]:
    """Simulate a figure with a constant scaled; nothing where it is not read, or cannot be so."""
    try:
        return papers.with_constant(module, figure, constant, factor)
    except (ScaleoutError, ArithmeticError):
        return {}


def main() -> None:
    """Scan, write the table, and print for each claim the constants that move it most."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("papers", nargs="*", choices=[*papers.PAPERS, []], help="which; by default all")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="directory to write to")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    table = pd.concat([scan(paper) for paper in options.papers or papers.PAPERS])
    table = table.sort_values(["claim", "ours", "moves"], ascending=[True, False, False])
    write_text(options.output / "constants.csv", table.to_csv(index=False))
    print(table.groupby("claim").head(3).to_string(index=False, float_format="%.4g"))


if __name__ == "__main__":
    main()
