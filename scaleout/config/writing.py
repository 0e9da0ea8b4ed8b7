"""Files written whole or not at all: one by one, or all files of a folder together.

What is written lies under a hidden name in the same folder until it is whole and on the disk, then takes its place. A
disk that is full, or a process that is killed, leaves an older file as it was. Other files of a folder are never
touched.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from scaleout.config.documents import to_json
from scaleout.errors import ConfigError

_PROBE_BYTES = 1 << 16


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a file to write to, which takes the place of another in the end; an exception leaves that as it was.

    Raises
    ------
    OSError
        If it cannot be written, with the path that was asked for.
    """
    target = Path(os.path.realpath(path))  # as `open` does, write through a link rather than replace it
    unfinished = target.parent / f".{os.urandom(8).hex()}.unfinished"
    try:
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


def write_json(path: Path, value: object, *, indent: int | None = 2) -> None:
    """Write plain values as JSON, whole; see `to_json`."""
    write_text(path, to_json(value, indent=indent) + "\n")


@contextmanager
def into(directory: Path) -> Iterator[Path]:
    """Yield a temporary folder, whose files are moved into a directory, made if need be, when all are complete.

    Raises
    ------
    ConfigError
        If the directory cannot be written; one that had to be made is gone again.
    """
    made = _missing(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".unfinished-") as name:
            yield Path(name)
            files = sorted(Path(name).iterdir())
            for path in files:
                if (directory / path.name).is_dir():
                    raise IsADirectoryError(0, f"{path.name} is a folder there")
            for path in files:
                path.replace(directory / path.name)
    except OSError as error:
        raise _unwritable(directory, error) from None
    finally:
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()  # succeeds only on an empty one, of which nothing came


def check_writable(directory: Path) -> None:
    """Refuse a directory for output that cannot be written, before the work whose results it is to hold.

    Raises
    ------
    ConfigError
        If there is a file in its place, its disk is read-only or full, or its owner is another.
    """
    nearest = next(folder for folder in (directory, *directory.absolute().parents) if os.path.lexists(folder))
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
    except OSError as error:
        raise _unwritable(directory, error) from None


def _missing(directory: Path) -> list[Path]:
    """Return those folders of a path that do not exist, the innermost first."""
    return [folder for folder in (directory, *directory.parents) if not folder.exists()]


def _unwritable(directory: Path, error: OSError) -> ConfigError:
    why = error.strerror or str(error)
    return ConfigError(f"output directory {str(directory)!r} cannot be written ({why}); give another one")
