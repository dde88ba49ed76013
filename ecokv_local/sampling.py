"""The next token, by llama.cpp's samplers."""

from __future__ import annotations

import secrets
from typing import Any

from ecokv_local import native
from ecokv_local.config import SamplingConfig


class Sampler:
    """A chain of llama.cpp samplers. Owns the native object."""

    def __init__(self, config: SamplingConfig) -> None:
        llama = native.llama
        self._chain: Any = llama.llama_sampler_chain_init(
            llama.llama_sampler_chain_default_params()
        )
        if config.temp == 0:
            self._add(llama.llama_sampler_init_greedy())
            return
        if config.top_k > 0:
            self._add(llama.llama_sampler_init_top_k(config.top_k))
        if config.top_p < 1:
            self._add(llama.llama_sampler_init_top_p(config.top_p, 1))
        if config.min_p > 0:
            self._add(llama.llama_sampler_init_min_p(config.min_p, 1))
        self._add(llama.llama_sampler_init_temp(config.temp))
        seed = secrets.randbits(32) if config.seed is None else config.seed
        self._add(llama.llama_sampler_init_dist(seed))

    def _add(self, sampler: Any) -> None:
        native.llama.llama_sampler_chain_add(self._chain, sampler)

    def next(self, context: Any) -> int:
        """Draw a token from the last logits of a native context."""
        return int(native.llama.llama_sampler_sample(self._chain, context, -1))

    def close(self) -> None:
        """Free the native chain."""
        if self._chain:
            native.llama.llama_sampler_free(self._chain)
            self._chain = None
