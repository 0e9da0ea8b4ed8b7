"""Compiling functions with numba, once a machine."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

Table = np.ndarray[Any, Any]
"""A structured array, whose columns a dtype names."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


@lru_cache
def _stamp(folder: Path) -> tuple[tuple[float, int], ...]:
    files = [path for each in dict.fromkeys((Path(__file__).parent, folder)) for path in sorted(each.glob("*.py"))]
    return tuple((path.stat().st_mtime, path.stat().st_size) for path in files)


def compiled(function: _Function) -> _Function:
    """Let numba compile a function when it is first called on a machine, which takes seconds, and cache it.

    What it calls may lie in another file, so a change of any file of its folder, or of this one, compiles it anew.
    """
    options: Any = {"error_model": "numpy", "_nrt": False, "forceinline": True}  # nothing is allocated: no references
    try:
        found: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package nor the user has a place to write to: compile anew in each process
        return cast(_Function, numba.njit(**options)(function))
    found._cache._cache_file._source_stamp = _stamp(Path(function.__code__.co_filename).parent)
    return cast(_Function, found)
