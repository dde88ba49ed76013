"""Copies of a cache that was not evicted: one document, many conversations about it."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ecokv_local import native
from ecokv_local.context import Mark
from ecokv_local.errors import EcokvError, StateError

if TYPE_CHECKING:
    from ecokv_local.context import Context


@dataclass(frozen=True)
class Saved:
    """Rows of a sequence that was not evicted, as llama.cpp writes them, and where it ended."""

    data: c.Array[c.c_uint8]
    mark: Mark


def save_rows(source: Context) -> Saved:
    """A copy of all rows of a sequence, bit for bit, with their positions."""
    llama = native.llama
    size = int(llama.llama_state_seq_get_size(source.ptr, source.seq))
    data = (c.c_uint8 * size)()
    if int(llama.llama_state_seq_get_data(source.ptr, data, size, source.seq)) != size:
        raise EcokvError(f"{source.n_rows} rows could not be copied")
    return Saved(data, source.mark())


def restore_rows(target: Context, saved: Saved) -> None:
    """The rows of ``saved`` in place of what was there. The queries of its tokens are not among
    them: those that are read next vote.
    """
    size = len(saved.data)
    target.reserve(saved.mark.n_rows)
    if int(native.llama.llama_state_seq_set_data(target.ptr, saved.data, size, target.seq)) != size:
        target.clear()
        raise EcokvError(f"{saved.mark.n_rows} rows could not be put back")
    target.n_position, target._rows, target.n_tokens = saved.mark


def copy_rows(source: Context, target: Context) -> None:
    """All rows of ``source`` into the empty ``target``.

    Raises StateError after an eviction: what stayed is no text that another could go on from.
    """
    if source.lossy:
        raise StateError(
            "this conversation was evicted: what is left of it cannot be copied",
            hint="read without a budget, fork, and give the forks their budgets",
        )
    restore_rows(target, save_rows(source))
    target.spans = source.spans
