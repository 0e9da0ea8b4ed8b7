"""Numbers of a device file fitted to published runs: the least mean absolute error of the rows that are named.

    python figures/calibration.py DEVICE KEY[+KEY...]... --tables FILE --table ID [--table ID...] [--every N]

    python figures/calibration.py a100-80g host_launch.pointwise_forward+host_launch.pointwise_no_grad \
        host_launch.all_reduce_forward+host_launch.all_reduce_backward host_launch.start_forward \
        --tables FILE --table vtrain_single

KEY is a number of the device file, such as `calibration.memory` or `host_launch.pointwise_forward`; keys joined by +
have one value. Rows that ran on another device are left out. The fit is made three times: on all rows, and on each half
of them, which says how much worse it does on rows that it has not seen. Nothing is written: a number goes into the
device file by hand, with its source. Needs scipy (`pip install 'scaleout[fit]'`).
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from scaleout.cluster.device.spec import Device, load_device
from scaleout.cluster.machine import Machine
from scaleout.validation.measured.rows import Family, Row, machine_of, read_rows
from scaleout.validation.published import SOURCES, table_named

Run = tuple[Family, Row, Machine]
Errors = Callable[[Sequence[float], Sequence[Run]], float]

_EVALUATIONS = 60
"""Evaluations of all rows that a fit may take."""
_FIRST_STEP = 1.1
"""How far the first simplex reaches from where the fit starts, as a factor."""


def runs_of(path: Path, names: Sequence[str], device: str, *, every: int = 1) -> list[Run]:
    """Return the runs of some tables that were measured on a device, or each so manieth of them."""
    found: list[Run] = []
    for name in names:
        table = table_named(name)
        assert table is not None
        for row in (part for whole in read_rows(path, table=name) for part in table.split(whole)):
            home = table.home(row)
            if home and home[0] == device:
                found.append((table, row, machine_of(row, device=home[0], topology=home[1])))
    return found[::every]


def changed(device: Device, values: Mapping[str, float]) -> Device:
    """Return a device with other numbers, by the dotted keys of its file."""
    fields = {"calibration": dict(device.calibration), "host_launch": dict(device.host_launch_s)}
    for key, value in values.items():
        section, _, name = key.partition(".")
        fields[section][name] = value
    return dataclasses.replace(device, calibration=fields["calibration"], host_launch_s=fields["host_launch"])


def mean_error(device: Device, runs: Sequence[Run]) -> float:
    """Return the mean absolute error of runs as a device predicts them."""
    errors = []
    for table, row, machine in runs:
        case = table.case(row, dataclasses.replace(machine, device=device))
        errors.append(abs(case.predict() / case.measured - 1))
    return float(np.mean(errors))


def fit(errors: Errors, start: Sequence[float], runs: Sequence[Run]) -> list[float]:
    """Return the numbers above zero with the least error of some runs, by the downhill simplex in their logarithms."""
    origin = np.log(start)
    simplex = np.vstack([origin, origin + np.log(_FIRST_STEP) * np.eye(len(origin))])
    options = {"maxfev": _EVALUATIONS, "initial_simplex": simplex, "xatol": 1e-2, "fatol": 1e-4}
    found = minimize(lambda logs: errors(np.exp(logs), runs), origin, method="Nelder-Mead", options=options)
    return [float(value) for value in np.exp(found.x)]


def main() -> None:
    """Fit, and say how well it does on rows that were left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("device")
    parser.add_argument("keys", nargs="+", help="numbers of the device file; those joined by + have one value")
    parser.add_argument("--tables", type=Path, required=True, help="file of published tables")
    parser.add_argument("--table", action="append", required=True, choices=SOURCES, help="table to fit to")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="use each N-th row only")
    options = parser.parse_args()
    device, groups = load_device(options.device), [key.split("+") for key in options.keys]
    now = {f"calibration.{key}": value for key, value in device.calibration.items()}
    now |= {f"host_launch.{key}": value for key, value in device.host_launch_s.items()}
    start = [now.get(keys[0], 1.0) for keys in groups]

    def errors(values: Sequence[float], runs: Sequence[Run]) -> float:
        named = {key: value for keys, value in zip(groups, values, strict=True) for key in keys}
        return mean_error(changed(device, named), runs)

    runs = runs_of(options.tables, options.table, options.device, every=options.every)
    print(f"{len(runs)} runs; as the file is: {errors(start, runs):.2%}")
    for name, part, rest in (("all", runs, runs), ("even", runs[::2], runs[1::2]), ("odd", runs[1::2], runs[::2])):
        values = fit(errors, start, part)
        fitted = ", ".join(f"{keys[0]} {value:.4g}" for keys, value in zip(groups, values, strict=True))
        print(
            f"fit to {name}: {fitted}; error {errors(values, part):.2%}, of the other rows {errors(values, rest):.2%}"
        )


if __name__ == "__main__":
    main()
