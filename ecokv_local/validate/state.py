"""A copy of a sequence, to evict the same cache more than once."""

from __future__ import annotations

import ctypes as c
from typing import Any

from ecokv_local import native
from ecokv_local.context import Context, Mark
from ecokv_local.errors import MemoryLimitError, StateError

_SEQ = 0


class SavedSequence:
    """The rows of a context as they are now; window queries are not part of it."""

    def __init__(self, context: Context) -> None:
        """Raises StateError where llama.cpp does not give the sequence out."""
        llama = native.llama
        self._context, self._mark = context, context.mark()
        size = int(llama.llama_state_seq_get_size(context.ptr, _SEQ))
        try:
            self._data: Any = (c.c_uint8 * size)()
        except MemoryError:
            raise MemoryLimitError(
                f"no memory for a copy of the cache ({size} bytes)", hint="use a shorter prompt"
            ) from None
        if int(llama.llama_state_seq_get_data(context.ptr, self._data, size, _SEQ)) != size:
            raise StateError(f"the sequence could not be copied ({size} bytes)")

    def restore(self) -> None:
        """Put them back. Raises StateError if that fails or the number of rows is another."""
        context, size = self._context, len(self._data)
        context.clear()
        done = int(native.llama.llama_state_seq_set_data(context.ptr, self._data, size, _SEQ))
        mark: Mark = self._mark
        if done != size or context.n_rows != mark.n_rows:
            raise StateError(f"the sequence could not be put back ({done} of {size} bytes)")
