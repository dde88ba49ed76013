"""Copies of a cache that was not evicted: one document, many conversations about it."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING

from ecokv_local import native
from ecokv_local.errors import EcokvError, StateError

if TYPE_CHECKING:
    from ecokv_local.context import Context


def copy_rows(source: Context, target: Context) -> None:
    """All rows of ``source`` into the empty ``target``, bit for bit, with their positions.

    The queries of the window are not among them: the tokens that ``target`` reads next vote.
    Raises StateError after an eviction: what stayed is no text that another could go on from.
    """
    if source.lossy:
        raise StateError(
            "this conversation was evicted: what is left of it cannot be copied",
            hint="read without a budget, fork, and give the forks their budgets",
        )
    llama = native.llama
    size = int(llama.llama_state_seq_get_size(source.ptr, source.seq))
    data = (c.c_uint8 * size)()
    if int(llama.llama_state_seq_get_data(source.ptr, data, size, source.seq)) != size:
        raise EcokvError(f"{source.n_rows} rows could not be copied")
    target.reserve(source.n_rows)
    if int(llama.llama_state_seq_set_data(target.ptr, data, size, target.seq)) != size:
        target.clear()
        raise EcokvError(f"{source.n_rows} rows could not be put into another cache")
    target.n_position, target.n_tokens = source.n_position, source.n_tokens
    target._rows, target.spans = source.n_rows, source.spans
