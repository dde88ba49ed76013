"""The next token, by llama.cpp's samplers."""

from __future__ import annotations

import ctypes as c
import math
import secrets
from typing import Any

import numpy as np

from ecokv_local import native
from ecokv_local.config import SamplingConfig
from ecokv_local.errors import EcokvError, UsageError

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Sampler:
    """A chain of llama.cpp samplers, and a grammar if there is one. Owns the native objects."""

    def __init__(self, config: SamplingConfig) -> None:
        llama = native.llama
        self._grammar_text = config.grammar
        self._grammar: Any = None  # made for each answer: it remembers what was said
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

    def restart(self) -> None:
        """An answer begins: the grammar starts over."""
        if self._grammar:
            native.llama.llama_sampler_free(self._grammar)
            self._grammar = None

    def next(self, context: Any, index: int = -1) -> int:
        """Draw a token from the logits of output ``index`` of a native context; -1 is the last.

        Raises UsageError for a grammar that cannot be read.
        """
        token = int(native.llama.llama_sampler_sample(self._chain, context, index))
        if self._grammar_text is None:
            return token
        if not self._grammar:
            self._grammar = _new_grammar(_vocab_of(context), self._grammar_text)
        # most tokens fit: looking at all of them costs a hundred times more
        one = np.array([(token, 0.0, 0.0)], _CANDIDATE)
        _apply(self._grammar, one)
        if one["logit"][0] == -math.inf:
            token = self._among_all(context, index)
        native.llama.llama_sampler_accept(self._grammar, token)
        return token

    def _among_all(self, context: Any, index: int) -> int:
        llama = native.llama
        n_vocab = llama.llama_vocab_n_tokens(_vocab_of(context))
        logits = llama.llama_get_logits_ith(context, index)
        candidates = np.zeros(n_vocab, _CANDIDATE)
        candidates["id"] = np.arange(n_vocab)
        candidates["logit"] = np.ctypeslib.as_array(logits, (n_vocab,))
        _apply(self._grammar, candidates)
        candidates = np.ascontiguousarray(candidates[candidates["logit"] > -math.inf])
        if not len(candidates):
            raise EcokvError(
                "the grammar allows no token here", hint="check that every rule can be completed"
            )
        return _apply(self._chain, candidates)

    def close(self) -> None:
        """Free the native objects."""
        self.restart()
        if self._chain:
            native.llama.llama_sampler_free(self._chain)
            self._chain = None


def check_grammar(model: Any, text: str) -> None:
    """Raises UsageError if a loaded native model's tokens cannot be constrained by ``text``."""
    vocab = native.llama.llama_model_get_vocab(model)
    native.llama.llama_sampler_free(_new_grammar(vocab, text))


def _new_grammar(vocab: Any, text: str) -> Any:
    native.log.take()
    grammar = native.llama.llama_sampler_init_grammar(vocab, text.encode(), b"root")
    if not grammar:
        raise UsageError(
            f"the grammar cannot be read: {native.log.take() or 'no detail'}",
            hint='it is GBNF with a rule root, for example: root ::= "yes" | "no"',
        )
    return grammar


def _vocab_of(context: Any) -> Any:
    return native.llama.llama_model_get_vocab(native.llama.llama_get_model(context))


def _apply(sampler: Any, candidates: Any) -> int:
    """Run a sampler over candidates, in place; the chosen token, -1 if it chose none."""
    llama = native.llama
    data = candidates.ctypes.data_as(c.POINTER(llama.llama_token_data))
    array = llama.llama_token_data_array(data, len(candidates), -1, False)
    llama.llama_sampler_apply(sampler, c.byref(array))
    return int(array.data[array.selected].id) if array.selected >= 0 else -1
