"""Several sequences in one native context, each with cells of its own, decoded together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ecokv_local import native
from ecokv_local.context import Context

if TYPE_CHECKING:
    from ecokv_local.config import EvictionConfig
    from ecokv_local.engine import Engine


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
