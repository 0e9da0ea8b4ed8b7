"""Compiled functions: by numba when they are first called on a machine, which takes seconds, and cached.

Numba compiles a function anew when its own file changes; what it calls may lie in another, so all files count here.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

_Function = TypeVar("_Function", bound=Callable[..., Any])

_STAMP = tuple((path.stat().st_mtime, path.stat().st_size) for path in sorted(Path(__file__).parent.glob("*.py")))


def compiled(function: _Function) -> _Function:
    """Let numba compile a function."""
    njit: Any = partial(
        numba.njit, error_model="numpy", _nrt=False, forceinline=True
    )  # no references to count: nothing is allocated
    try:
        found = njit(cache=True)(function)
    except RuntimeError:  # neither the package nor the user has a place to write to: compile anew in each process
        return cast(_Function, njit()(function))
    found._cache._cache_file._source_stamp = _STAMP
    return cast(_Function, found)
