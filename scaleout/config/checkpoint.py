"""Checkpoint logs: rows of JSON, one a line, appended as they are made, so that a run that ends early can resume.

Every line ends with the CRC-32 of what is before it. A line that is damaged is named in a warning and left out; the
others count. A process that works in a folder holds its lock, so that no other works there at the same time; the lock
of a process that is dead is free.
"""

import json
import os
import re
import sys
import time
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scaleout.config.documents import check_regular, decode_json
from scaleout.errors import ConfigError

Row = Mapping[str, Any]

_CHECK = re.compile(rb', "crc32": "([0-9a-f]{8})"\}$')
_PATIENCE_S = 2.0
"""Workers of a process that was killed hold its lock for as long as they need to notice."""


def read_log(file: Path, *, checked: bool = False) -> dict[int, dict[str, Any]]:
    """Return the rows of a log by the numbers of their lines; none if there is no such file.

    A last line without its end is of a process that was killed, and ignored; any other that is no object of finite
    numbers, or not what its checksum says, is named in a warning and left out; with `checked` one without a checksum,
    too.
    """
    if not file.exists():
        return {}
    check_regular(file)
    rows = {}
    for number, line in enumerate(file.read_bytes().split(b"\n")[:-1], start=1):
        try:
            if line:
                rows[number] = _parsed(line, checked=checked)
        except ValueError as error:
            warnings.warn(f"{file}, line {number}: damaged ({error}); left out", stacklevel=2)
    return rows


def _parsed(line: bytes, *, checked: bool) -> dict[str, Any]:
    check = _CHECK.search(line)
    if check is not None:
        line = line[: check.start()] + b"}"
        if int(check[1], 16) != zlib.crc32(line):
            raise ValueError("it is not what its checksum says")
    elif checked:
        raise ValueError("it has no checksum")
    row = decode_json(line.decode())
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - as for a line that is no JSON
    return row


def append(file: Path, rows: Iterable[Row]) -> None:
    """Append rows to a log, in one write; after a line that was cut short on a new one.

    Raises
    ------
    OSError
        If the file cannot be written, or the disk is full.
    ValueError
        If a number is not finite.
    """
    text = b"".join(map(as_line, rows))
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            text = b"\n" + text
        while text:  # a disk that is full takes a part, then says so
            text = text[os.write(descriptor, text) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from None
    finally:
        os.close(descriptor)


def as_line(row: Row) -> bytes:
    """Return the line of a row, with its checksum and its end; `ValueError` if a number is not finite."""
    body = json.dumps(row, allow_nan=False).encode()
    return b'%s, "crc32": "%08x"}\n' % (body[:-1], zlib.crc32(body))


def drop_incomplete_line(file: Path) -> None:
    """Cut off a last line of a log that was not written to its end; only for who holds the lock."""
    if file.exists():
        whole = file.read_bytes().rfind(b"\n") + 1
        if whole < file.stat().st_size:
            os.truncate(file, whole)


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock `name` of a folder; the system frees that of a process that is killed.

    Raises
    ------
    ConfigError
        If another process holds it.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl  # noqa: PLC0415 - Windows has none

    path, until = folder / f".{name}.lock", time.monotonic() + _PATIENCE_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 64).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            if time.monotonic() < until:
                time.sleep(0.05)
                continue
            raise ConfigError(
                f"{folder}: process {pid} works in this folder; wait until it has ended, or give another --output"
            ) from None
        except OSError:
            pass  # the file system knows no locks
        if _is_same(path, descriptor):
            break
        os.close(descriptor)  # whoever held it has removed it meanwhile
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # workers may have it open still
        os.close(descriptor)


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
