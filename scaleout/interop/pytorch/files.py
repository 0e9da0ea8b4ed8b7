"""The files of a recorded job: which there are, of which rank each is, and their JSON.

A job is given as files, folders, archives, or the beginning of its files' names, such as `traces/fsdp-base`. Files are
plain or compressed; their content tells what they are.
"""

import bz2
import gzip
import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

from scaleout.config.long_json import read_long_json
from scaleout.errors import ConfigError, TraceError
from scaleout.interop.pytorch.kineto import MOST_EVENTS, NoEventsError, events_in, is_events

MOST_BYTES = 2 * 2**30
"""Of one file when it is unpacked; a rank of a long recording takes some 100 MB."""
MOST_TIMES = 40
"""How many times its size a file may unpack to; recordings that were seen unpack to at most 33."""
VALUES_A_BYTE = 4
"""How many values it may then hold for each of its bytes; seen are up to 2.2."""
_SMALL_BYTES, _END_BYTES = 2**20, 2**10
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
        for place, opened in _places(path):
            if place in seen:
                continue
            seen.add(place)
            if len(seen) > _MOST_FILES:
                raise TraceError(f"{path}: more than {_MOST_FILES:,} files; give the files of one job")
            try:
                content = _parsed(opened, place)
            except NoEventsError:
                if not path.is_dir():
                    raise
                continue
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
    return is_events(content)


Open = Callable[[], BinaryIO]
"""Opens a file that holds its bytes unpacked."""


def _places(path: Path) -> Iterator[tuple[Path, Open]]:
    if path.is_dir():
        files = (Path(folder, name) for folder, _, names in os.walk(path, onerror=_refuse) for name in names)
        named = (file for file in files if _NAMES.search(file.name) or _ARCHIVES.search(file.name))
        found = sorted(file for file in named if file.is_file())
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


def _refuse(error: OSError) -> NoReturn:
    """Refuse a folder that cannot be listed: what is in it may be of the recording."""
    raise TraceError(f"{error.filename}: cannot be read ({error.strerror}); make it readable, or give files") from None


class _Unpacked(io.RawIOBase):
    """What a packed file holds, as far as a file of its size can hold it."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._bytes_left = MOST_TIMES * path.stat().st_size + _SMALL_BYTES
        self._values_left = VALUES_A_BYTE * path.stat().st_size + _SMALL_BYTES

    def read(self, size: int = -1) -> bytes:
        """Read some bytes."""
        return self.counted(self._file.read(size))

    def close(self) -> None:
        """Close the packed file."""
        self._file.close()
        super().close()

    def counted(self, data: bytes) -> bytes:
        """Return bytes that were unpacked, which count."""
        self._bytes_left -= len(data)
        self._values_left -= data.count(b",")
        if min(self._bytes_left, self._values_left) < 0:
            raise TraceError(
                f"{self._path}: unpacks to more than {MOST_TIMES} times its size, or to more than {VALUES_A_BYTE} "
                f"values for each of its bytes, as no recording does; unpack it yourself if it is one"
            )
        return data


class _Member(io.RawIOBase):
    """A file that is packed once more in a packed archive."""

    def __init__(self, unpacked: _Unpacked, file: BinaryIO) -> None:
        self._unpacked, self._file = unpacked, file

    def read(self, size: int = -1) -> bytes:
        """Read some bytes, which count as unpacked."""
        return self._unpacked.counted(self._file.read(size))


def _opened(path: Path) -> BinaryIO:
    if path.name.lower().endswith(".gz"):
        return cast("BinaryIO", _Unpacked(path, cast("BinaryIO", gzip.open(path))))
    file = path.open("rb")
    if path.stat().st_size > _SMALL_BYTES:  # a long file that was cut off is told before it is read
        file.seek(-_END_BYTES, io.SEEK_END)
        end = file.read().rstrip()
        file.seek(0)
        if end and not end.endswith((b"]", b"}")):
            file.close()
            raise ValueError("it ends in the midst of a value")
    return file


_OPENED: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}
"""How packed files begin."""
_DAMAGES = (tarfile.TarError, lzma.LZMAError, EOFError, zlib.error, OSError)


def _members(path: Path) -> Iterator[tuple[Path, Open]]:
    """Yield the recordings in an archive, which is not unpacked to the disk; each is read before the next."""
    try:
        with path.open("rb") as file:
            begins = file.read(2)
        with _OPENED.get(begins, open)(path, "rb") as file:
            unpacked = _Unpacked(path, file)
            with tarfile.open(fileobj=unpacked, mode="r|") as archive:
                for member in archive:
                    if member.isreg() and not member.issparse() and _NAMES.search(member.name):
                        content = cast("BinaryIO", archive.extractfile(member))
                        if member.name.lower().endswith(".gz"):
                            zipped = cast("BinaryIO", gzip.GzipFile(fileobj=content))
                            content = cast("BinaryIO", _Member(unpacked, zipped))
                        yield path / member.name.lstrip("/"), lambda content=content: content  # type: ignore[misc]
    except (*_DAMAGES, ValueError, RecursionError) as error:  # headers of headers
        raise TraceError(f"{path}: is a damaged archive ({error}); copy it again") from None


def _parsed(opened: Open, path: Path) -> Any:
    """Read a file, of its events what `events_in` keeps."""
    try:
        with opened() as file:
            return read_long_json(_limited(file, path), _long_lists(path))
    except _DAMAGES as error:
        raise TraceError(f"{path}: cannot be read ({error}); copy it again") from None
    except ValueError as error:
        raise TraceError(
            f"{path}: is no whole JSON ({error}); if the job was killed while it was written, record it again"
        ) from None


def _long_lists(path: Path) -> dict[str, Callable[[Any], Any]]:
    """Return under which keys long lists stand, and what keeps their elements."""
    events = events_in(path)
    nodes = 0

    def node_of(value: Any) -> Any:
        nonlocal nodes
        nodes += 1
        if not isinstance(value, dict):
            raise TraceError(f"{path}: its nodes are no list of nodes; record it again")
        if nodes > MOST_EVENTS:
            raise TraceError(f"{path}: has more than {MOST_EVENTS:,} nodes; record fewer steps")
        return value

    return {"": events, "traceEvents": events, "nodes": node_of}


def _limited(file: BinaryIO, path: Path) -> Callable[[int], bytes]:
    """Return what reads a file piece by piece, as far as `MOST_BYTES`."""
    left = MOST_BYTES

    def read(size: int) -> bytes:
        nonlocal left
        data = file.read(size)
        left -= len(data)
        if left < 0:
            raise TraceError(f"{path}: has more than {MOST_BYTES:,} bytes; record fewer steps")
        return data

    return read


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
