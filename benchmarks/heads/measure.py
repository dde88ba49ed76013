"""Kept sets of the reference on captured heads, and what they cost."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ecokv_local import EvictionConfig
from ecokv_local.reference import features, scores, select
from ecokv_local.reference.measure import Features
from ecokv_local.reference.policies.ecokv import head_weight
from ecokv_local.reference.steps import head_of, mean, redundancy_cos, scaled

from .capture import Layer, Prompt


class Heads:
    """Features of a captured prompt, each window and protection worked out once."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        self.features = lru_cache(maxsize=None)(self._features)
        self._full = [self._attend(layer, None) for layer in prompt.layers]

    def _features(self, index: int, window: int, sinks: int, recent: int, gqa: str) -> Features:
        layer, n = self.prompt.layers[index], self.prompt.n
        voters = np.flatnonzero((layer.ranks >= n - window) & (layer.ranks < n))
        return features(
            layer.k,
            layer.v,
            np.ascontiguousarray(layer.q[:, voters]),
            sinks=sinks,
            recent=recent,
            query_ranks=layer.ranks[voters],
            scale=layer.scale,
            gqa=gqa,
        )

    def _of(self, index: int, config: EvictionConfig) -> Features:
        return self.features(index, config.window, config.n_sinks, config.n_recent, config.gqa)

    def keep(self, config: EvictionConfig, budget: int) -> np.ndarray:
        """Ranks that stay, ``[L, H, budget]``."""
        result = []
        for index in range(len(self.prompt.layers)):
            f = self._of(index, config)
            score = scores(config.policy, f, config, layer=index, budget=budget)
            result.append(select(score, budget, config))
        return np.stack(result)

    def _attend(self, layer: Layer, keep: np.ndarray | None) -> np.ndarray:
        """Attention output of the queries after the prompt over its rows, ``[H*g, q, d]``."""
        later = np.flatnonzero(layer.ranks >= self.prompt.n)
        group = layer.q.shape[0] // layer.k.shape[0]
        k, v = layer.k, layer.v
        if keep is not None:
            k, v = (np.take_along_axis(x, keep[:, :, None], axis=1) for x in (k, v))
        k, v = (np.repeat(x, group, axis=0) for x in (k, v))
        logits = layer.q[:, later] @ k.transpose(0, 2, 1) * layer.scale
        p = np.exp(logits - logits.max(-1, keepdims=True))
        return np.asarray(p / p.sum(-1, keepdims=True) @ v)

    def output_error(self, keep: np.ndarray) -> float:
        """Relative error of the attention output, mean over layers, heads and queries."""
        errors = []
        for layer, full, kept in zip(self.prompt.layers, self._full, keep, strict=True):
            difference = np.linalg.norm(self._attend(layer, kept) - full, axis=-1)
            errors.append((difference / np.linalg.norm(full, axis=-1)).mean())
        return float(np.mean(errors))

    def kl(self, keep: np.ndarray) -> float:
        """KL of the next-token distributions, full against kept, mean over what follows; nats."""
        full, kept = self.prompt.full, self.prompt.after(keep)
        return float((np.exp(full) * (full - kept)).sum(-1).mean())

    def redundancy(self) -> np.ndarray:
        """r_cos, r_euc and weight of every head, ``[L, H, 3]``."""
        config = EvictionConfig()
        result = []
        for index, layer in enumerate(self.prompt.layers):
            f = self._of(index, config)
            for h in range(layer.k.shape[0]):
                head = head_of(f, h, index, 1)
                rms = float(np.sqrt(mean(head.key_norm**2, head.ok)))
                e, e_ok = scaled(head.key_euc, head.ok, 1e-3 * rms)
                _, c_ok = scaled(head.key_cos, head.ok, 1e-6)
                weight = head_weight(e, e_ok, c_ok, head, config)
                result.append((redundancy_cos(head.m2, head.ok), 1 - mean(e, head.ok), weight))
        return np.array(result).reshape(len(self.prompt.layers), -1, 3)
