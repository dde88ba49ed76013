"""A llama_context with its cache. Positions, rows and cells are three numbers here, never one."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ecokv_local import native
from ecokv_local.config import (
    COMPOSE,
    GQA,
    HEAD_BUDGETS,
    HEAD_WEIGHT,
    LAYER_BUDGETS,
    POOLING,
    VALUE_NORM,
    EvictionConfig,
)
from ecokv_local.errors import EcokvError, MemoryLimitError, StateError, UsageError
from ecokv_local.groups import Group, Span, before, groups_of

#: More than any context has: the cache begins whole, and no budget of the environment applies.
_ALL_CELLS = 2**31 - 2**12


class Mark(NamedTuple):
    """The end of a sequence: its next position, its rows, and the tokens that were read."""

    n_position: int = 0
    n_rows: int = 0
    n_tokens: int = 0


class Stopped(Exception):
    """``Context.request_stop`` ended a decode; nothing of its micro-batch is in the cache."""


@dataclass(frozen=True)
class ContextParams:
    """What a context is made with; the types are numbers of ``ggml_type``.

    Each of ``n_seq`` sequences gets up to ``n_cells`` cells of its own: all at once, or ``n_first``
    of them, and more as they are needed, in a context where eviction is then enabled.
    """

    n_cells: int
    n_batch: int
    n_ubatch: int
    threads: int
    flash_attn: int  # llama_flash_attn_type: -1 auto, 0 off, 1 on
    type_k: int
    type_v: int
    n_seq: int = 1
    n_first: int | None = None


@dataclass(frozen=True)
class EvictionResult:
    """One eviction: rows of the head that has most, before and after, and what it took.

    Pairs are counted over all ``n_heads`` KV heads of all layers. ``pair_bytes`` are K and V of the
    pairs that stay, ``hole_bytes`` those of the rows between them that uneven budgets leave unused:
    memory that is held and not needed.
    """

    n_before: int
    n_after: int
    n_query: int
    n_nonfinite: int
    n_layer_host: int
    n_layer_graph: int
    n_heads: int
    n_pairs_before: int
    n_pairs_after: int
    t_features_ms: float
    t_plan_ms: float
    t_apply_ms: float
    scratch_bytes: int
    pair_bytes: int
    hole_bytes: int

    @property
    def evicted(self) -> bool:
        """Whether anything went."""
        return self.n_pairs_after < self.n_pairs_before

    @property
    def n_evicted(self) -> int:
        """KV pairs that went, per layer and KV head on average."""
        return round((self.n_pairs_before - self.n_pairs_after) / max(1, self.n_heads))

    @property
    def t_ms(self) -> float:
        """Milliseconds of the three steps together."""
        return self.t_features_ms + self.t_plan_ms + self.t_apply_ms


def native_config(
    config: EvictionConfig, pairs: int, groups: Sequence[Group] = ()
) -> native.Config:
    """``llama_ecokv_config`` of a config with a budget of ``pairs``, and what has to stay."""
    fixed = not isinstance(config.head_weight, str)
    return native.Config(
        policy=native.check(native.lib.llama_ecokv_policy_by_name(config.policy.encode())),
        budget=min(pairs, 2**31 - 1),
        n_sink=config.n_sinks,
        n_recent=config.n_recent,
        kernel=config.kernel,
        pooling=POOLING.index(config.pooling),
        gqa=GQA.index(config.gqa),
        compose=COMPOSE.index(config.compose),
        head_weight=len(HEAD_WEIGHT) if fixed else HEAD_WEIGHT.index(str(config.head_weight)),
        value_norm=VALUE_NORM.index(config.value_norm),
        lam=config.lam,
        head_weight_fixed=float(config.head_weight) if fixed else 0.5,
        seed=config.seed,
        layer_budgets=LAYER_BUDGETS.index(config.layer_budgets),
        head_budgets=HEAD_BUDGETS.index(config.head_budgets),
        beta=config.beta,
        floor=config.floor,
        groups=(native.Group * len(groups))(
            *[native.Group(g.start, g.end, -1 if g.floor is None else g.floor) for g in groups]
        ),
        n_groups=len(groups),
    )


def _no_context(n_cells: int, detail: str) -> EcokvError:
    """Why llama.cpp made no context: types that it cannot combine, or else memory."""
    if any(word in detail for word in ("flash_attn", "Flash Attention", "cache type")):
        return UsageError(f"no context: {detail}", hint="use other cache types (-ctk f16 -ctv f16)")
    return MemoryLimitError(
        f"no context of {n_cells} cells: {detail or 'out of memory'}",
        hint="use a smaller --ctx-size or cache type (-ctk q8_0 -ctv q8_0 -fa on)",
    )


class Context:
    """One sequence in one llama_context. Owns the native object; ``close`` is idempotent.

    ``seq`` is the number of the sequence; where there are more of them, see ``parallel_cache``.
    """

    seq = 0
    #: The most cells that the cache may grow to, where that is less than it was made with.
    limit: int | None = None
    #: Images and texts that were read and may have to stay: whoever reads a prompt adds them.
    spans: tuple[Span, ...] = ()

    def __init__(self, model: Any, params: ContextParams, adapters: Sequence[Any] = ()) -> None:
        llama = native.llama
        p = llama.llama_context_default_params()
        p.n_ctx, p.n_seq_max = params.n_cells * params.n_seq, params.n_seq
        p.n_batch, p.n_ubatch, p.kv_unified = params.n_batch, params.n_ubatch, False
        p.n_threads = p.n_threads_batch = params.threads
        p.flash_attn_type = params.flash_attn
        p.type_k, p.type_v = params.type_k, params.type_v
        p.no_perf = True
        native.log.take()
        native.log.flash_attn = None
        self._ptr: Any
        n_first = _ALL_CELLS if params.n_first is None else params.n_first
        self._ptr = native.lib.llama_ecokv_init_from_model(model, p, n_first)
        if not self._ptr:
            raise _no_context(params.n_cells, native.log.take())
        self.params = params
        #: Tokens of one decode and of one micro-batch: llama.cpp lowers what was asked for.
        self.n_batch = int(llama.llama_n_batch(self._ptr))
        self.n_ubatch = int(llama.llama_n_ubatch(self._ptr))
        resolved = native.log.flash_attn  # nothing is said where a quantised V asks for it
        #: Whether attention runs as flash attention; "auto" is resolved.
        self.flash_attn = params.flash_attn != 0 if resolved is None else resolved
        #: Positions that a sliding-window layer looks back; 0 without such layers.
        self.n_swa = int(llama.llama_model_n_swa(model))
        self._vocab = llama.llama_model_get_vocab(model)
        self.n_vocab = int(llama.llama_vocab_n_tokens(self._vocab))
        self._batch = llama.llama_batch_init(self.n_batch, 0, 1)
        self.n_position = 0  # where the next token stands
        self.n_tokens = 0  # read so far: an image may take fewer positions
        self._rows = 0
        self.enabled, self._shrunk = False, params.n_first is not None  # may grow up to n_cells
        self._stop = c.c_int32(0)
        callback = llama.ggml_abort_callback(
            c.cast(native.lib.llama_ecokv_stop_requested, c.c_void_p).value
        )
        llama.llama_set_abort_callback(self.ptr, callback, c.addressof(self._stop))
        if adapters:
            self.set_adapters(adapters)

    @property
    def ptr(self) -> Any:
        """The native object. Raises StateError after ``close``."""
        if not self._ptr:
            raise StateError("the context is closed")
        return self._ptr

    def set_adapters(self, adapters: Sequence[Any]) -> None:
        """Use these LoRA adapters from the next token on; what was read before keeps the old
        ones.
        """
        pointers = (native.llama.llama_adapter_lora_p_ctypes * len(adapters))(*adapters)
        scales = (c.c_float * len(adapters))(*[1.0] * len(adapters))
        if native.llama.llama_set_adapters_lora(self.ptr, pointers, len(adapters), scales) != 0:
            raise StateError("the LoRA adapters could not be applied to the context")

    # ---- sizes

    @property
    def n_cells(self) -> int:
        """The most cells that the cache may have: what it was made with, or ``limit``."""
        made = int(native.llama.llama_n_ctx_seq(self.ptr))
        return made if self.limit is None else min(made, self.limit)

    @property
    def n_allocated(self) -> int:
        """Cells that there are now: fewer after ``shrink``."""
        shape = native.Shape()
        if native.lib.llama_ecokv_get_shape(self.ptr, c.byref(shape)) != 0:
            return self.n_cells
        return int(shape.n_cells)

    @property
    def n_rows(self) -> int:
        """Rows held per layer and KV head."""
        if self.enabled:
            return native.check(native.lib.llama_ecokv_n_rows(self.ptr, self.seq))
        return self._rows

    @property
    def window_room(self) -> int:
        """Tokens that one read can place in the sliding-window layers, whose rows are not evicted:
        they need cells for the positions of the window. All cells where there are no such layers.
        """
        return self.n_cells - min(self.n_position, self.n_swa)

    def bytes_per_row(self) -> int:
        """Bytes of K and V of one row over all evictable layers; 0 if the memory has no such
        rows.
        """
        shape = native.Shape()
        if native.lib.llama_ecokv_get_shape(self.ptr, c.byref(shape)) != 0:
            return 0
        row_bytes = native.lib.llama_ecokv_row_bytes
        return sum(
            int(row_bytes(self.ptr, il, value)) for il in range(shape.n_layer) for value in (0, 1)
        )

    # ---- reading and writing tokens

    def decode(self, tokens: Sequence[int]) -> None:
        """Append tokens (at most ``n_batch``) at the next position; the last one gets logits."""
        self.reserve(len(tokens))
        last = len(tokens) - 1
        self.decode_batch(
            (token, self.n_position + i, self.seq, i == last) for i, token in enumerate(tokens)
        )
        self.appended(len(tokens), len(tokens))

    def decode_batch(self, entries: Iterable[tuple[int, int, int, bool]]) -> None:
        """One native decode of (token, position, sequence, whether its logits are wanted), at most
        ``n_batch``; nothing is booked.
        """
        batch, n = self._batch, 0
        for token, position, seq, logits in entries:
            batch.token[n], batch.pos[n], batch.logits[n] = token, position, logits
            batch.n_seq_id[n], batch.seq_id[n][0] = 1, seq
            n += 1
        batch.n_tokens = n
        native.log.take()
        status = int(native.llama.llama_decode(self.ptr, batch))
        self.raise_if_stopped(status)
        if status != 0:
            raise EcokvError(
                f"the model could not read {n} tokens, the last at position {batch.pos[n - 1]} "
                f"(status {status}): {native.log.take() or 'no detail'}"
            )

    def request_stop(self, stop: bool = True) -> None:
        """End the running decode as soon as possible, and every later one; False takes it back."""
        self._stop.value = stop

    def raise_if_stopped(self, status: int) -> None:
        """Stopped if a native call failed because of ``request_stop``."""
        if status != 0 and self._stop.value:
            raise Stopped

    def appended(self, n_tokens: int, n_positions: int) -> None:
        """Book rows and positions that were written from outside (image chunks)."""
        self._rows += n_tokens
        self.n_tokens += n_tokens
        self.n_position += n_positions

    def logits(self, output: int = -1) -> npt.NDArray[np.float32]:
        """A copy of the logits of a token of the last decode, ``[n_vocab]``."""
        pointer = native.llama.llama_get_logits_ith(self.ptr, output)
        return np.array(np.ctypeslib.as_array(pointer, (self.n_vocab,)), np.float32)

    def clear(self) -> None:
        """Forget everything."""
        native.llama.llama_memory_clear(native.llama.llama_get_memory(self.ptr), True)
        self.spans = ()
        self._rows = self.n_position = self.n_tokens = 0

    def mark(self) -> Mark:
        """Where the sequence ends now."""
        return Mark(self.n_position, self.n_rows, self.n_tokens)

    def rollback(self, mark: Mark) -> bool:
        """Back to an earlier end; False (and nothing changed) where the cache cannot do that.

        Rows of a read that broke off go too, also where the position is the present one.
        """
        n_position = mark.n_position
        if n_position == 0:
            self.clear()
            return True
        memory = native.llama.llama_get_memory(self.ptr)
        if self.n_swa > 0:  # window layers reuse the cells of rows that left the window
            first = int(native.llama.llama_memory_seq_pos_min(memory, self.seq))
            if first > max(0, n_position - self.n_swa):
                return False
        if not native.llama.llama_memory_seq_rm(memory, self.seq, n_position, -1):
            return False
        self.n_position, self._rows, self.n_tokens = mark
        self.spans = before(self.spans, n_position)
        return True

    # ---- as bytes

    def state(self) -> bytes:
        """Rows, positions, what was evicted and the queries that vote, as ``llama-ecokv.h`` writes
        them. Raises ModelError if this kind of memory cannot be saved.
        """
        lib = native.lib
        size = native.check(lib.llama_ecokv_state_size(self.ptr, self.seq))
        data = c.create_string_buffer(size)
        native.check(lib.llama_ecokv_state_get(self.ptr, self.seq, data, size))
        return data.raw

    def restore_state(self, data: bytes, mark: Mark) -> None:
        """Put a ``state`` that ended at ``mark`` into this empty sequence.

        Raises SessionFileError if it is damaged or of another cache; nothing has changed then.
        """
        self.reserve(mark.n_rows)
        native.check(native.lib.llama_ecokv_state_set(self.ptr, self.seq, data, len(data)))
        self.n_position, self._rows, self.n_tokens = mark

    # ---- eviction

    def enable(self, window: int) -> None:
        """Keep the queries of the last ``window`` tokens; called again, with another window.

        Raises ModelError with the reason if this kind of memory cannot be evicted.
        """
        params = native.lib.llama_ecokv_params_default()
        params.n_window = window
        native.check(native.lib.llama_ecokv_enable(self.ptr, params))
        self.enabled = True

    def disable(self) -> None:
        """Back to the graph of llama.cpp; what was evicted stays evicted."""
        self._rows, self.limit = self.n_rows, None
        self.reserve(self.n_cells - self._rows)  # sizes can change only while eviction is on
        native.check(native.lib.llama_ecokv_disable(self.ptr))
        self.enabled = False

    @property
    def lossy(self) -> bool:
        """Whether rows of this sequence were evicted."""
        return (
            self.enabled and native.check(native.lib.llama_ecokv_is_lossy(self.ptr, self.seq)) == 1
        )

    def resize(self, n_cells: int) -> int:
        """New buffers for ``n_cells`` cells, rounded up to a multiple of 256, in place of the old
        ones. Returns the cells.

        Raises UsageError if more are in use, MemoryLimitError if there is no memory: nothing has
        changed then.
        """
        return native.check(native.lib.llama_ecokv_resize(self.ptr, n_cells))

    def reserve(self, n_tokens: int) -> None:
        """Cells for ``n_tokens`` more, up to ``n_cells``.

        Raises MemoryLimitError if there is no memory: nothing has changed then.
        """
        if self._shrunk:
            need = min(self.n_cells, self.n_rows + n_tokens)
            if need > self.n_allocated:
                self._shrunk = self.resize(need) < self.n_cells

    def shrink(self, n_free: int) -> None:
        """No more cells than for the rows that there are and ``n_free`` tokens."""
        need = -(-(self.n_rows + n_free) // 256) * 256  # as they are rounded
        if self.enabled and need < self.n_allocated:
            self.resize(need)
            self._shrunk = True

    def hole_bytes(self) -> int:
        """Bytes of K and V that are held and not needed, because of uneven budgets."""
        return int(native.lib.llama_ecokv_hole_bytes(self.ptr, self.seq)) if self.enabled else 0

    def kv_bytes(self) -> int:
        """Bytes that the buffers of K and V of the evictable layers hold."""
        return int(native.lib.llama_ecokv_kv_bytes(self.ptr))

    def rows_max(self, config: EvictionConfig, pairs: int, n_rows: int) -> int:
        """The most rows that one head may keep of ``n_rows``, of a budget of ``pairs`` each."""
        shape = native.Shape()
        native.check(native.lib.llama_ecokv_get_shape(self.ptr, c.byref(shape)))
        settings = native_config(config, pairs)
        plan_max = native.lib.llama_ecokv_plan_max
        return native.check(plan_max(c.byref(settings), shape.n_layer, shape.n_head_kv, n_rows))

    def evict(self, config: EvictionConfig, pairs: int) -> EvictionResult:
        """Down to ``pairs`` rows per layer and KV head (on average), by the spans of the sequence.

        Raises BudgetError where what has to stay does not fit; nothing has changed then.
        """
        result = native.Result()
        settings = native_config(config, pairs, groups_of(config, self.spans))
        status = native.lib.llama_ecokv_evict(
            self.ptr, self.seq, c.byref(settings), c.byref(result)
        )
        native.check(status)
        return EvictionResult(**result.to_dict())

    def counters(self) -> list[dict[str, int]]:
        """Per evictable layer: evictions, KV pairs seen before them and kept by them."""
        if not self.enabled:
            return []
        shape = native.Shape()
        native.check(native.lib.llama_ecokv_get_shape(self.ptr, c.byref(shape)))
        counters = (native.Counters * shape.n_layer)()
        native.check(native.lib.llama_ecokv_get_counters(self.ptr, counters, shape.n_layer))
        return [item.to_dict() for item in counters]

    def close(self) -> None:
        """Free the native context."""
        if self._ptr:
            native.llama.llama_batch_free(self._batch)
            native.llama.llama_free(self._ptr)
            self._ptr = None

    def __del__(self) -> None:
        if getattr(self, "_ptr", None):  # a session that was dropped, not closed
            self.close()
