"""Several sequences in one native context, each with cells of its own, decoded together."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ecokv_local import native
from ecokv_local.context import Context, Mark
from ecokv_local.errors import EcokvError

if TYPE_CHECKING:
    from ecokv_local.config import EvictionConfig
    from ecokv_local.engine import Engine


@dataclass(frozen=True)
class Saved:
    """Rows of a sequence that was not evicted, as llama.cpp writes them, and where it ended."""

    data: bytes
    mark: Mark


class Stream(Context):
    """One sequence of a context that another object owns: no row of it is ever shared."""

    def __init__(self, owner: Context, seq: int) -> None:
        # no call of super: the native object is there already
        self._owner, self.seq = owner, seq
        self.params, self.n_batch, self.n_ubatch = owner.params, owner.n_batch, owner.n_ubatch
        self.flash_attn, self.n_swa, self.n_vocab = owner.flash_attn, owner.n_swa, owner.n_vocab
        self.enabled, self._shrunk = owner.enabled, False
        self._batch, self._stop = owner._batch, owner._stop
        self.n_position = self.n_tokens = self._rows = 0

    @property
    def ptr(self) -> Any:
        """The native object. Raises StateError after it was closed."""
        return self._owner.ptr

    def clear(self) -> None:
        """Forget everything of this sequence."""
        memory = native.llama.llama_get_memory(self.ptr)
        native.llama.llama_memory_seq_rm(memory, self.seq, -1, -1)
        self.spans = ()
        self._rows = self.n_position = self.n_tokens = 0

    def save(self) -> Saved:
        """A copy of all rows."""
        llama = native.llama
        size = int(llama.llama_state_seq_get_size(self.ptr, self.seq))
        data = (c.c_uint8 * size)()
        if int(llama.llama_state_seq_get_data(self.ptr, data, size, self.seq)) != size:
            raise EcokvError(f"{self.n_rows} rows could not be copied")
        return Saved(bytes(data), self.mark())

    def restore(self, saved: Saved) -> None:
        """The rows of ``saved`` in place of what was there. The queries of its tokens are not among
        them: those that are read next vote.
        """
        size = len(saved.data)
        data = (c.c_uint8 * size).from_buffer_copy(saved.data)
        done = int(native.llama.llama_state_seq_set_data(self.ptr, data, size, self.seq))
        if done != size:
            self.clear()
            raise EcokvError(f"{saved.mark.n_rows} rows could not be put back")
        self.n_position, self._rows, self.n_tokens = saved.mark

    def close(self) -> None:
        """Nothing: the owner frees the native object."""

    def __del__(self) -> None:
        pass


class Streams:
    """``n`` sequences of at least ``n_cells`` cells each. Owns the native context."""

    def __init__(
        self, engine: Engine, n: int, n_cells: int, eviction: EvictionConfig, *, threads: int
    ) -> None:
        self.context = engine.context(n_cells, n_seq=n, threads=threads)
        try:
            if eviction.enabled:
                self.context.enable(eviction.window)
            self.all = [Stream(self.context, seq) for seq in range(n)]
        except BaseException:
            self.context.close()
            raise

    @property
    def n_cells(self) -> int:
        """Cells of each sequence."""
        return self.context.n_cells

    def step(self, tokens: Sequence[tuple[Stream, int]]) -> None:
        """Append one token to each of some sequences, in one decode. The logits of the token at
        index i are output i. The sequences are given in ascending order.
        """
        self.context.decode_batch(
            (token, stream.n_position, stream.seq, True) for stream, token in tokens
        )
        for stream, _ in tokens:
            stream.appended(1, 1)

    def close(self) -> None:
        """Free the native context; idempotent."""
        self.context.close()
