"""numba's ``njit`` with an on-disk cache where the folder is writable, without one where it is
not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

numba: Any
try:
    import numba
except ImportError:  # policies are plain numpy: only features and `random` are compiled
    numba = None

F = TypeVar("F", bound=Callable[..., Any])


def njit(function: F) -> F:
    """Compile ``function``; the results of one version of the source are cached on disk if
    possible. Without numba it runs as it is, slowly.
    """
    if numba is None:
        return function
    try:
        return cast(F, numba.njit(cache=True)(function))
    except (
        RuntimeError
    ):  # "no locator available": neither the package nor the user cache is writable
        return cast(F, numba.njit(function))
