"""A folder or prefix to the files of a trace set, one a rank: ``<prefix>.<rank>.et``."""

import os
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from scaleout.errors import TraceError

_RANK_FILE = re.compile(r"(.+)\.(\d+)\.et", re.DOTALL)


@dataclass(frozen=True)
class TraceSet:
    """The files of all ranks."""

    folder: Path
    prefix: str
    paths: tuple[Path, ...]

    @property
    def num_ranks(self) -> int:
        """Number of ranks."""
        return len(self.paths)


def rank_file(prefix: str, rank: int) -> str:
    """Return the name of a rank's file.

    >>> rank_file("dlrm", 3)
    'dlrm.3.et'
    """
    return f"{prefix}.{rank}.et"


def prefixes(folder: Path) -> dict[str, dict[int, Path]]:
    """Return each prefix in a folder, and the file of each of its ranks."""
    found: dict[str, dict[int, Path]] = defaultdict(dict)
    try:
        names = sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise TraceError(f"{folder}: cannot be read ({error.strerror}); give a folder of .et files") from None
    for name in names:
        match = _RANK_FILE.fullmatch(name)
        if match is None:
            continue
        files, rank = found[match[1]], int(match[2])
        if rank in files:
            raise TraceError(f"{folder}: {files[rank].name} and {name} are both of rank {rank}; remove one of them")
        files[rank] = folder / name
    return dict(found)


def find_traces(path: str | os.PathLike[str]) -> TraceSet:
    """Find the files of all ranks.

    Parameters
    ----------
    path : str or path
        A folder that holds one set, or a folder and a prefix, such as ``traces/dlrm`` for ``traces/dlrm.0.et``.

    Raises
    ------
    TraceError
        If there is no such folder or prefix, several prefixes to choose from, or a rank is missing.
    """
    path = Path(path)
    if path.is_dir():
        found = prefixes(path)
        if not found:
            raise TraceError(f"{path}: holds no trace; its files must be named <prefix>.<rank>.et, ranks from 0")
        if len(found) > 1:
            choices = ", ".join(str(path / prefix) for prefix in found)
            raise TraceError(f"{path}: holds traces of several prefixes; give one of {choices}")
        folder, prefix = path, next(iter(found))
    else:
        folder, prefix = path.parent, path.name
        found = prefixes(folder) if folder.is_dir() else {}
        if prefix not in found:
            raise TraceError(_no_prefix(path, found))
    return TraceSet(folder, prefix, _complete(folder, prefix, found[prefix]))


def _no_prefix(path: Path, found: dict[str, dict[int, Path]]) -> str:
    of_rank = _RANK_FILE.fullmatch(path.name)
    if of_rank is not None and of_rank[1] in found:
        return f"{path}: is the name of one rank's file; give the prefix of all ranks, {path.parent / of_rank[1]}"
    hint = f"; {path.parent} holds the prefixes {', '.join(found)}" if found else ""
    return f"{path}: no such folder, and no files {path.name}.<rank>.et; give a folder, or one and a prefix{hint}"


def _complete(folder: Path, prefix: str, files: dict[int, Path]) -> tuple[Path, ...]:
    num_ranks = max(files) + 1
    missing = [rank for rank in range(min(num_ranks, len(files) + 1)) if rank not in files]
    if missing:
        raise TraceError(
            f"{folder}: has no {rank_file(prefix, missing[0])}, the trace of rank {missing[0]}, but one of rank "
            f"{num_ranks - 1}; give the files of all ranks from 0"
        )
    return tuple(files[rank] for rank in range(num_ranks))
