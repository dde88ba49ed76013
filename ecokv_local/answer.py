"""What a turn gives back: events while it runs, one record at its end."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class Answer:
    """The record of one turn; its fields are the keys of ``--json``.

    ``n_kept`` rows per layer and KV head are in the cache at the end, ``n_evicted`` left it during
    the turn; ``kv_bytes`` is the memory of the kept rows over all layers, ``kv_bytes_peak`` of the
    most rows held at once. Times are in milliseconds, measured.
    """

    text: str
    finish_reason: FinishReason
    truncated: bool
    model: str
    mmproj: str | None
    budget: str | None
    policy: str
    n_prompt: int
    n_image_tokens: int
    n_kept: int
    n_evicted: int
    kv_bytes: int
    kv_bytes_peak: int
    t_encode_ms: float
    t_prefill_ms: float
    t_evict_ms: float
    t_decode_ms: float
    tokens_per_s: float
    warnings: tuple[str, ...] = ()
    error: dict[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields by name; warnings as a list."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return record | {"warnings": list(self.warnings)}


@dataclass(frozen=True)
class Event:
    """A step of a turn: ``status`` (what is going on), ``text`` (a piece of the answer),
    ``end``.
    """

    kind: Literal["status", "text", "end"]
    text: str = ""
    answer: Answer | None = None
