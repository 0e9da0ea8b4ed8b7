"""Files written whole or not at all: one by one, or all files of a folder together.

What is written lies under a hidden name in the same folder until it is whole and on the disk, then takes its place. A
disk that is full, or a process that is killed, leaves an older file as it was. Other files of a folder are never
touched. A set of results is recorded, so that the next one can take its place whole.
"""

import contextlib
import csv
import errno
import io
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from scaleout.config.checkpoint import locked
from scaleout.config.documents import check_regular, is_file, read_json, read_text, to_json
from scaleout.errors import ConfigError

RECORD = ".scaleout-output"
"""File of a directory that says which of its others are results, and the checksums of what was written to each."""

STUDY = ".study"
"""File of a directory that says by name of which study its results are."""

_ANSWER = "summary.json"
"""File that every answer has."""
_SEARCH = "search"
_PROBE_BYTES = 1 << 16


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a file to write to, which takes the place of another in the end; an exception leaves that as it was.

    Raises
    ------
    OSError
        If it cannot be written, with the path that was asked for; a pipe or a device is left alone.
    """
    target = Path(os.path.realpath(path))  # as `open` does, write through a link rather than replace it
    unfinished = target.parent / f".{os.urandom(8).hex()}.unfinished"
    try:
        with contextlib.suppress(FileNotFoundError):
            check_regular(target)
        with unfinished.open("xb", buffering=1 << 20) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # some disks say only now that they are full
        if target.exists():
            shutil.copymode(target, unfinished)
        unfinished.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole; see `replacing`."""
    with replacing(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Write a file of text in UTF-8 whole; see `replacing`."""
    write_bytes(path, text.encode("utf-8", errors="surrogateescape"))


def replace_own(path: Path, text: str, *, mark: str) -> None:
    """Write a file of text whole, in the place of none or of one of ours, which holds the text `mark`.

    Raises
    ------
    ConfigError
        If another file is there, which stays.
    """
    if is_file(path) and mark not in read_text(path):
        raise ConfigError(f"{path}: there is another file, which this would replace; move it, or give another name")
    write_text(path, text)


def write_json(path: Path, value: object, *, indent: int | None = 2) -> None:
    """Write plain values as JSON, whole; see `to_json`."""
    write_text(path, to_json(value, indent=indent) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as a table of comma-separated values, whole; the keys of the first row are the columns."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


@contextmanager
def into(directory: Path, *, recorded: bool = False) -> Iterator[Path]:
    """Yield a temporary folder, whose files are moved into a directory, made if need be, when all are complete.

    With `recorded` they are a set of results: it takes the place of the set that was there before, of which nothing is
    left, and of no other file. Which files are of the set stands in the directory's `RECORD`.

    Raises
    ------
    ConfigError
        If the directory cannot be written, or a file that is not of the set before is in the way; a directory that had
        to be made is gone again.
    """
    made = _missing(directory)
    unfinished: Path | None = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=directory, prefix=".unfinished-"))
        try:
            yield unfinished
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(*(interrupt.args or (f"nothing is written to {directory}",))) from None
        files = sorted(unfinished.iterdir())
        for path in files:
            if (directory / path.name).is_dir():
                raise IsADirectoryError(0, f"{path.name} is a folder there")
        if recorded:
            with locked(directory, "scaleout"):
                _replace_set(directory, files)
        else:
            _move(directory, files)
    except OSError as error:
        raise _unwritable(directory, error) from None
    finally:
        if unfinished is not None:
            _remove(unfinished)
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()  # succeeds only on an empty one, of which nothing came


def _move(directory: Path, files: Iterable[Path]) -> None:
    for path in files:
        path.replace(directory / path.name)


def _replace_set(directory: Path, files: Sequence[Path]) -> None:
    """Move files into a directory, and remove those of the set before.

    What is about to be written is recorded first, so that a process that is killed leaves no file that is nobody's.
    """
    before = _recorded(directory)
    new = {path.name: _checksum(path) for path in files}
    for name, checksum in new.items():
        _check_replaceable(directory / name, (checksum, *before.get(name, ())))
    either = {name: [*before.get(name, ()), *([new[name]] if name in new else [])] for name in {**before, **new}}
    write_json(directory / RECORD, {"files": either})
    _move(directory, files)
    for name in before.keys() - new.keys():
        if _checksum(directory / name) in before[name]:
            (directory / name).unlink()
    with contextlib.suppress(OSError):  # what is recorded by now holds as well
        write_json(directory / RECORD, {"files": {name: [checksum] for name, checksum in new.items()}})


def _check_replaceable(path: Path, known: Collection[str]) -> None:
    """Refuse to replace a file that has none of some checksums."""
    if os.path.lexists(path) and _checksum(path) not in known:
        raise ConfigError(
            f"{path}: is no file of an earlier run, or was changed since; move it, or give another --output"
        )


def _recorded(directory: Path) -> dict[str, list[str]]:
    """Return the files of the set that was written into a directory last, and what each may hold; none if unknown."""
    try:
        files = read_json(directory / RECORD)["files"]
        return {str(name): list(checksums) for name, checksums in files.items() if Path(name).name == name}
    except (ConfigError, LookupError, TypeError, AttributeError):
        return {}


def _checksum(path: Path) -> str:
    """Return a checksum of a file; an empty text if it is none, or a link to one."""
    if path.is_symlink() or not path.is_file():
        return ""
    found = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found = zlib.crc32(block, found)
    return f"{found:08x}"


def _remove(folder: Path) -> None:
    """Remove a folder of files; unlike `shutil.rmtree` also where hardly a file can be opened any more."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - which closes the folder before files are removed
            (folder / name).unlink()
        folder.rmdir()


def check_writable(directory: Path, *, own: str = "", command: str = "", files: Sequence[str] = ()) -> None:
    """Refuse a directory for output that cannot be written, before the work whose results it is to hold.

    `own` marks results of a study or of one answer, `STUDY` or `RECORD`: where those of the other are, each would hide
    files of the other. `command` is whose answer it is to be: that of a search, whose plans are minutes of work and are
    named by its folder, gives way to another search alone. `files` are names or patterns of what an answer writes
    besides itself.

    Raises
    ------
    ConfigError
        If there is a file in its place, its disk is read-only or full, its owner is another, its name is none, or it
        is the root of a file system, which root could write; or if it holds results of the other kind or of a search,
        or another file in the place of an answer or of one of its files.
    """
    try:
        directory.lstat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):  # as too long a name
            raise _unwritable(directory, error) from None
    except ValueError as error:  # a zero byte, half a surrogate pair
        raise ConfigError(
            f"output directory {str(directory)!r} is no name of one ({error}); give another one"
        ) from None
    if os.path.realpath(directory) == Path(os.path.realpath(directory)).anchor:
        raise ConfigError(f"output directory {str(directory)!r} is the root of the file system; give a folder in it")
    for mark, whose in ((RECORD, "the output of another command"), (STUDY, "the results of a study")):
        if own not in ("", mark) and is_file(directory / mark):
            raise ConfigError(f"{directory} has {whose}, and would mix them; give another --output, or empty it")
    if own == RECORD:
        if command != _SEARCH and _command_of(directory / _ANSWER) == _SEARCH:
            raise ConfigError(f"{directory} has the plans of a search; give another --output, or empty it")
        _check_places(directory, (_ANSWER, *files))
    nearest = next(folder for folder in (directory, *directory.absolute().parents) if os.path.lexists(folder))
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        raise _unwritable(directory, error) from None


def _check_places(directory: Path, files: Sequence[str]) -> None:
    """Refuse other files in the places of an answer's; beside an answer without record they may be the same."""
    known, is_answer = _recorded(directory), _command_of(directory / _ANSWER) != ""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory)):  # noqa: PTH208 - nothing but names
            may_be_same = is_answer and (name == _ANSWER or not known)
            if not may_be_same and any(fnmatchcase(name, each) for each in files):
                _check_replaceable(directory / name, known.get(name, ()))


def _command_of(path: Path) -> str:
    """Return the command whose answer a file holds; an empty text if it holds none of ours."""
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        found = re.search(rb'"schema": "scaleout/([a-z-]+)/', file.read(200))
    return "" if found is None else found[1].decode()


def _missing(directory: Path) -> list[Path]:
    """Return those folders of a path that do not exist, the innermost first."""
    return [folder for folder in (directory, *directory.parents) if not folder.exists()]


def _unwritable(directory: Path, error: OSError) -> Exception:
    if error.errno in (None, errno.ENOMEM):  # of a library that could not be loaded, not of the directory
        return error
    why = error.strerror or str(error)
    return ConfigError(f"output directory {str(directory)!r} cannot be written ({why}); give another one")
