"""Collectives to their times on the GPUs of this host, one JSON line each in and out; see `communicator` for how.

A line in has `collective`, `ranks` and `bytes` (as in `collectives.convention`), and `algorithm` (Ring, Tree) and
`protocol` (LL, LL128, Simple) where NCCL's choice is to be forced. PyTorch is imported only when GPUs are asked for.

python -m scaleout.measure.collectives FOLDER < collectives.jsonl

The rows are appended to ``FOLDER/rows.jsonl`` as they come, so what was measured is kept whatever happens later; rows
that are there already are not measured again.
"""

import importlib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scaleout.errors import ConfigError, ScaleoutError

KEYS = ("collective", "ranks", "bytes")
FORCED = ("algorithm", "protocol")


def check_rows(rows: Iterable[Mapping[str, Any]], *, gpus: int, kinds: Iterable[str]) -> list[Mapping[str, Any]]:
    """Refuse rows that cannot be measured here, before any of them is.

    Raises
    ------
    ConfigError
        If a key is missing or unknown, the collective is, or there are fewer GPUs than a row needs.
    """
    checked = list(rows)
    for row in checked:
        if not set(KEYS) <= row.keys() <= {*KEYS, *FORCED}:
            raise ConfigError(
                f"a collective to measure has the keys {', '.join(KEYS)}, and at most {' and '.join(FORCED)}; "
                f"this row has {', '.join(row)}"
            )
        if row["collective"] not in kinds:
            raise ConfigError(f"cannot measure collective {row['collective']!r}; use one of {', '.join(kinds)}")
        if not (isinstance(row["ranks"], int) and 2 <= row["ranks"] <= gpus):
            raise ConfigError(f"a row has {row['ranks']} ranks; this machine can measure 2 to {gpus}")
        if not (isinstance(row["bytes"], int) and row["bytes"] >= 2 * row["ranks"]):
            raise ConfigError(f"a row has {row['bytes']} bytes; give a whole number, at least two a rank")
    return checked


def remaining(rows: Iterable[Mapping[str, Any]], file: Path) -> list[Mapping[str, Any]]:
    """Rows that a file of measured rows does not have."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    measured = {_identity(json.loads(line)) for line in lines}
    return [row for row in rows if _identity(row) not in measured]


def _identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in (*KEYS, *FORCED))


def main() -> None:
    """Read collectives from standard input and append them with their times to a file."""
    try:
        if len(sys.argv) != 2:
            raise ConfigError("give the folder for the rows: python -m scaleout.measure.collectives FOLDER")
        folder = Path(sys.argv[1]).absolute()
        torch = _pytorch()
        communicator = importlib.import_module("scaleout.measure.communicator")
        rows = (json.loads(line) for line in sys.stdin if line.strip())
        checked = check_rows(rows, gpus=torch.cuda.device_count(), kinds=tuple(communicator.CALLS))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "environment.json").write_text(json.dumps(communicator.environment()), encoding="utf-8")
        (folder / "meeting").unlink(missing_ok=True)
        left = remaining(checked, folder / "rows.jsonl")
        torch.multiprocessing.spawn(communicator.time_rows, (left, str(folder)), torch.cuda.device_count())
    except ScaleoutError as error:
        sys.exit(f"error: {error}")


def _pytorch() -> Any:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        raise ConfigError("measuring collectives needs PyTorch; install it with `pip install torch`") from None
    if torch.cuda.device_count() < 2:
        raise ConfigError(f"measuring collectives needs 2 GPUs or more, and PyTorch finds {torch.cuda.device_count()}")
    return torch


if __name__ == "__main__":
    main()
