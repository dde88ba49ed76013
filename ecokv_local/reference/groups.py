"""Groups of rows: images that keep a floor of KV pairs, texts that stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ecokv_local.reference.measure import F32, I32
from ecokv_local.reference.steps import Config


class Group(Protocol):
    """Rows whose true position lies in [start, end); ``floor`` None: all of them stay."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def floor(self) -> int | None: ...


def capped(floors: Sequence[int], room: int) -> list[int]:
    """Floors that fit into ``room`` together: all under the greatest common cap at which they do.

    Where there is not even one pair for each, the last ones have one.
    """
    for cap in range(room, 0, -1):
        shrunk = [min(floor, cap) for floor in floors]
        if sum(shrunk) <= room:
            return shrunk
    some = [i for i, floor in enumerate(floors) if floor > 0]
    last = set(some[len(some) - room :] if room > 0 else [])
    return [int(i in last) for i in range(len(floors))]


def select_groups(
    scores: F32,
    positions: npt.NDArray[np.integer],
    groups: Sequence[Group],
    budget: int,
    config: Config,
) -> list[I32]:
    """Ranks of one layer that stay, per head, ascending.

    scores ``[H, T]`` as of ``selection.scores``; true positions ``[H, T]``. Raises ValueError where
    what is protected, or the floor of a single group, does not fit ``budget``.
    """
    n_tokens = scores.shape[1]
    if n_tokens <= budget:
        return [np.arange(n_tokens, dtype=np.int32) for _ in scores]
    heads = zip(scores, positions, strict=True)
    return [_select_head(s, p, groups, budget, config) for s, p in heads]


def _select_head(
    scores: F32,
    positions: npt.NDArray[np.integer],
    groups: Sequence[Group],
    budget: int,
    config: Config,
) -> I32:
    n = len(scores)
    ranks = np.arange(n)
    stays = (ranks < config.n_sinks) | (ranks >= n - config.n_recent)
    inside = [(positions >= g.start) & (positions < g.end) for g in groups]
    for group, rows in zip(groups, inside, strict=True):
        if group.floor is None:
            if np.isneginf(scores[rows]).any():
                raise ValueError("a protected token holds NaN or Inf")
            stays |= rows
    room = budget - int(stays.sum())
    if room < 0:
        raise ValueError(f"a budget of {budget} is below what is protected: {int(stays.sum())}")
    order = np.lexsort((ranks, scores))[::-1]  # the best first; ties: the later position
    best: list[npt.NDArray[np.intp]] = []
    floors: list[int] = []
    for group, rows in zip(groups, inside, strict=True):
        if group.floor is not None:
            best.append(order[(rows & ~stays & ~np.isneginf(scores))[order]])
            held = int((rows & stays).sum())  # sinks and recents of it
            floors.append(min(max(0, group.floor - held), len(best[-1])))
    if max(floors, default=0) > room:
        raise ValueError(f"{room} pairs are left for a group that is to keep {max(floors)}")
    for candidates, floor in zip(best, capped(floors, room), strict=True):
        stays[candidates[:floor]] = True
    rest = order[~stays[order]]
    stays[rest[: budget - int(stays.sum())]] = True
    return np.flatnonzero(stays).astype(np.int32)
