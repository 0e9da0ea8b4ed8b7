"""Compiling functions with numba, once a machine.

Machine code is kept in a folder: `NUMBA_CACHE_DIR` if it can be written, else the package's own, else the user's. What
cannot be read there is compiled again, what cannot be written is not kept.
"""

import contextlib
import logging
import pickle
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numba.core.caching
import numpy as np

from scaleout.errors import ConfigError

if vars(numba.config)["DISABLE_JIT"]:  # the command line passes over it, a program may have its reasons
    raise ConfigError("NUMBA_DISABLE_JIT is set, so that nothing is compiled; unset it before numba is imported")

Table = np.ndarray[Any, Any]
"""A structured array, whose columns a dtype names."""

_FunctionCache: Any = numba.core.caching.FunctionCache
_DataFiles: Any = numba.core.caching.IndexDataCacheFile
_Function = TypeVar("_Function", bound=Callable[..., Any])


@lru_cache
def _stamp(folder: Path) -> tuple[tuple[float, int], ...]:
    files = [path for each in dict.fromkeys((Path(__file__).parent, folder)) for path in sorted(each.glob("*.py"))]
    return tuple((path.stat().st_mtime, path.stat().st_size) for path in files)


class _Files(_DataFiles):  # type: ignore[misc]
    """Files of code with a checksum: code of which a bit is damaged would run."""

    def _save_data(self, name: str, data: Any) -> None:
        content = pickle.dumps(data)
        super()._save_data(name, (zlib.crc32(content), content))

    def _load_data(self, name: str) -> Any:
        checksum, content = super()._load_data(name)
        if checksum != zlib.crc32(content):
            raise ValueError("damaged")
        return pickle.loads(content)


class _Cache(_FunctionCache):  # type: ignore[misc]
    """The code of a function; what it calls may lie in another file, so a change of any near it compiles it anew."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamp = _stamp(Path(function.__code__.co_filename).parent)
        self._cache_file: Any = _Files(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        # What is called lies in the code: numba's own, which it would set up first, is for compiling.
        try:
            with self._guard_against_spurious_io_errors():
                return self._load_overload(sig, target_context)
        except Exception:  # cut short or damaged, which shows as anything
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)

    def has(self, signature: tuple[Any, ...], machine: Any) -> bool:
        """Whether there is code for arguments of some types on a machine, as its triple, processor and features say."""
        try:
            names = [name for key, name in self._cache_file._load_index().items() if key[:2] == (signature, machine)]
        except Exception:  # as above
            return False
        return any((Path(self.cache_path) / name).is_file() for name in names)


_OPTIONS: Any = {"error_model": "numpy", "_nrt": False, "forceinline": True}  # nothing is allocated: no references
_NOT_FROM_PYTHON: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def inlined(function: _Function) -> _Function:
    """Let numba compile a function into those that call it; that Python cannot halves the time that compiling takes."""
    inner: Any = numba.njit(**_OPTIONS, **_NOT_FROM_PYTHON)(function)
    return cast(_Function, inner)


def compiled(function: _Function) -> _Function:
    """Let numba compile a function when it is first called on a machine, which takes seconds, and keep the code."""
    found: Any = numba.njit(**_OPTIONS)(function)
    with contextlib.suppress(RuntimeError):  # there is no folder to write to: compile anew in each process
        found._cache = _Cache(function)
    return cast(_Function, found)


def is_ready(
    function: Callable[..., Any], arguments: tuple[Any, ...], *, what: str, worth_it: bool, compiles: bool = True
) -> bool:
    """Whether a function can be called, compiled here if need be (`compiles`), and the user told why that takes longer.

    No process does while another one does, which may be of the same pool; without a folder to keep the code it has to
    be `worth_it` for this process alone.
    """
    dispatcher: Any = function
    signature = tuple(map(dispatcher.typeof_pyval, arguments))
    kept = dispatcher._cache if isinstance(dispatcher._cache, _Cache) else None
    machine = dispatcher.targetctx.codegen().magic_tuple()
    if signature in dispatcher.overloads or (kept is not None and kept.has(signature, machine)):
        return True
    if not compiles:
        return False
    if kept is None and not worth_it:
        _say_slow(what)
        return False
    with _alone(None if kept is None else Path(kept.cache_path)) as alone:
        if alone:
            where = "no folder, as none can be written" if kept is None else kept.cache_path
            logging.getLogger(__name__).warning("compiling %s, up to a minute; kept in %s", what, where)
            dispatcher.compile(signature)
        return alone


@lru_cache
def _say_slow(what: str) -> None:
    """Tell once, and not in each worker, that there is no folder for code, and so none is compiled."""
    if parent_process() is None:
        logging.getLogger(__name__).warning(
            "%s runs in plain Python, several times slower, as no folder can be written for its compiled code; set "
            "NUMBA_CACHE_DIR to one that can",
            what,
        )


@contextlib.contextmanager
def _alone(folder: Path | None) -> Iterator[bool]:
    """Hold the lock of a folder, and tell whether that is so; the system frees it if the process is killed."""
    if folder is None or sys.platform == "win32":
        yield True
        return
    import fcntl  # noqa: PLC0415 - Windows has none

    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context((folder / "compiling.lock").open("wb"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # the folder can be written no longer, or the file system knows no locks
            pass
        yield True
