"""The files of a recorded job: which there are, of which rank each is, and their JSON.

A job is given as files, folders, archives, or the beginning of its files' names, such as `traces/fsdp-base`. Files are
plain or compressed; their content tells what they are.
"""

import gzip
import io
import json
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from scaleout.config.documents import finite
from scaleout.errors import ConfigError, TraceError

MOST_BYTES = 2 * 2**30
"""Of one file when it is unpacked; a rank of a long recording takes some 100 MB."""
_MOST_FILES = 4096
_NAMES = re.compile(r"\.(json|pt\.trace\.json)(\.gz)?$|\.trace(\.gz)?$", re.IGNORECASE)
_ARCHIVES = re.compile(r"\.(tar|tgz|tar\.(gz|xz|bz2))$", re.IGNORECASE)
_RANK = (re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE), re.compile(r"worker[-_.]?(\d+)", re.IGNORECASE),
         re.compile(r"\.(\d+)\.(?:pt\.trace\.)?json"), re.compile(r"[-_](\d+)\.(?:pt\.trace\.)?json"))  # fmt: skip


class Found(NamedTuple):
    """A file of a recording: its name, the part before the rank, and what it holds."""

    path: Path
    job: str
    rank: int | None  # as its name tells
    content: Any


def recorded_files(paths: Sequence[Path]) -> Iterator[Found]:
    """Yield the files that paths stand for, read, in order of name; what is no recording is passed over in folders.

    Raises
    ------
    TraceError
        If there is none, one cannot be read, is cut off, or is larger than `MOST_BYTES`.
    """
    seen: set[Path] = set()
    for path in paths:
        for place, read in _places(path):
            if place in seen:
                continue
            seen.add(place)
            if len(seen) > _MOST_FILES:
                raise TraceError(f"{path}: more than {_MOST_FILES:,} files; give the files of one job")
            content = _parsed(read, place)
            if path.is_dir() and not is_recording(content):
                continue
            yield Found(place, *_job_and_rank(place.name), content)
    if not seen:
        raise TraceError(
            f"{', '.join(map(str, paths))}: no recording there (*.json, *.json.gz, *.tar); give what torch.profiler "
            f"exported, or a folder with it"
        )


def is_recording(content: Any) -> bool:
    """Whether JSON is a Kineto trace or an execution trace."""
    if isinstance(content, dict):
        return "traceEvents" in content or ("nodes" in content and "schema" in content)
    return isinstance(content, list) and bool(content) and isinstance(content[0], dict) and "ph" in content[0]


def _places(path: Path) -> Iterator[tuple[Path, Callable[[], IO[bytes]]]]:
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and _NAMES.search(file.name))
    elif path.is_file():
        found = [path]
    else:
        parent = path.parent if path.parent.is_dir() else None
        found = sorted(
            file
            for file in (parent.iterdir() if parent else ())
            if file.name.startswith(path.name) and file.is_file() and _NAMES.search(file.name)
        )
        if not found:
            raise TraceError(f"{path}: no such file or folder, and no file begins so; give a recording")
    for file in found:
        if _ARCHIVES.search(file.name):
            yield from _members(file)
        else:
            yield file, lambda file=file: _opened(file)  # type: ignore[misc]


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.name.endswith(".gz") else path.open("rb")  # type: ignore[return-value]


def _members(path: Path) -> Iterator[tuple[Path, Callable[[], IO[bytes]]]]:
    """Yield the recordings in an archive, which is not unpacked to the disk."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if not member.isfile() or not _NAMES.search(member.name):
                    continue
                content = archive.extractfile(member)
                assert content is not None
                if member.size > MOST_BYTES:
                    raise TraceError(f"{path}: {member.name} has more than {MOST_BYTES:,} bytes; record fewer steps")
                data = content.read()
                opened = gzip.GzipFile(fileobj=io.BytesIO(data)) if member.name.endswith(".gz") else io.BytesIO(data)
                yield path / member.name, lambda opened=opened: opened  # type: ignore[misc]
    except (tarfile.TarError, lzma.LZMAError, EOFError, zlib.error, OSError) as error:
        raise TraceError(f"{path}: is a damaged archive ({error}); copy it again") from None


_PIECE_BYTES = 2**20


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    """Read a file up to what is too much: at once it would take the memory of the largest file that may be."""
    left = MOST_BYTES + 1
    while left > 0 and (piece := file.read(min(left, _PIECE_BYTES))):
        left -= len(piece)
        yield piece


def _parsed(opened: Callable[[], IO[bytes]], path: Path) -> Any:
    try:
        with opened() as file:
            data = b"".join(_pieces(file))
    except (OSError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: cannot be read ({error}); copy it again") from None
    if len(data) > MOST_BYTES:
        raise TraceError(f"{path}: has more than {MOST_BYTES:,} bytes; record fewer steps")
    try:
        return json.loads(data, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{path}: is no whole JSON ({error or 'too many levels'}); if the job was killed while it was written, "
            f"record it again"
        ) from None


def _job_and_rank(name: str) -> tuple[str, int | None]:
    """Split a file's name into that of its job and its rank.

    >>> _job_and_rank("fsdp-base.rank1.kineto.json"), _job_and_rank("trace.json")
    (('fsdp-base', 1), ('trace', None))
    """
    for pattern in _RANK:
        found = pattern.search(name)
        if found and len(found[1]) < 7:
            return name[: found.start()].rstrip("-_.") or "job", int(found[1])
    return re.sub(r"(\.pt)?(\.trace)?\.json(\.gz)?$", "", name) or "job", None


def job_name(found: Sequence[Found]) -> str:
    """Return a name for the job, of which files are made: as its files are called, or their folder."""
    names = {each.job for each in found}
    name = min(names) if len(names) == 1 else found[0].path.parent.name
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "recording"
    if len(name) > 100:
        raise ConfigError(f"{found[0].path}: its name is too long for those of traces; rename it")
    return name
