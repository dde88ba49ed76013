"""Overlays on pictures: what stayed, by budget, layer and head, and what the score is made of."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ecokv_local.explain.layout import F64, Picture
from ecokv_local.explain.reading import Cut, Explanation
from ecokv_local.report import new_figure

_MAP = "viridis"
_ALPHA = 0.35  # of the colour over the picture


def kept_share(cut: Cut) -> F64:
    """Share of the heads of all layers that kept each row, ``[T]``."""
    return np.asarray(cut.kept.mean(axis=(0, 1)))


def overview(found: Explanation) -> Any:
    """The pictures, and below them every budget: bright is what many heads kept."""
    n = len(found.pictures)
    rows = len(found.cuts) + 1
    figure, axes = new_figure(n, rows, width=2.3 * rows + 0.6, height=2.75 * n + 0.5)
    top = _top(found.pictures, found.cuts)
    for i, picture in enumerate(found.pictures):
        _picture(axes[i, 0], picture.pixels)
        if i == 0:
            _title(axes[i, 0], "full cache", found.answer)
        for j, cut in enumerate(reversed(found.cuts), 1):
            share = picture.grid(kept_share(cut))
            image = overlay(axes[i, j], picture, share, top=top)
            if i == 0:
                _title(axes[i, j], f"{cut.budget}: {cut.pairs} pairs", cut.answer)
    _bar(figure, image, axes)
    return figure


def _top(pictures: Sequence[Picture], cuts: Sequence[Cut]) -> float:
    """The largest share that is shown, so that small budgets are not all dark."""
    shares = [picture.grid(kept_share(cut)) for picture in pictures for cut in cuts]
    return max(0.05, max(float(np.quantile(share, 0.99)) for share in shares))


def _bar(figure: Any, image: Any, axes: Any) -> None:
    """The scale as it looks on a white patch of a picture."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap

    values = np.linspace(0, 1, 256)
    white = np.full((1, 256, 3), 255.0)
    under = _lit(white, values[None])[0] / 255
    colours = _ALPHA * image.cmap(values)[:, :3] + (1 - _ALPHA) * under
    scale = ScalarMappable(norm=image.norm, cmap=ListedColormap(colours))
    figure.colorbar(scale, ax=axes, shrink=0.8, extend="max", label="share of heads that kept it")


def compared(found: Sequence[Explanation]) -> Any:
    """One prompt with one picture, kept by several policies at the same budget."""
    figure, axes = new_figure(1, len(found) + 1, width=2.3 * (len(found) + 1) + 0.6, height=3.25)
    _picture(axes[0, 0], found[0].pictures[0].pixels)
    _title(axes[0, 0], "full cache", found[0].answer)
    top = max(_top(one.pictures[:1], one.cuts[:1]) for one in found)
    for axis, one in zip(axes[0, 1:], found, strict=True):
        cut, picture = one.cuts[0], one.pictures[0]
        image = overlay(axis, picture, picture.grid(kept_share(cut)), top=top)
        _title(axis, f"{one.label}, {cut.budget}: {cut.pairs} pairs", cut.answer)
    _bar(figure, image, axes)
    return figure


def _title(axis: Any, what: str, answer: str) -> None:
    said = textwrap.shorten(answer, 60, placeholder="...") or "(nothing)"
    axis.set_title("\n".join([what, *textwrap.wrap(f"“{said}”", 26)]), fontsize=9, parse_math=False)


def overlay(axis: Any, picture: Picture, values: F64, *, top: float = 1.0) -> Any:
    """A picture, darkened where values ``[rows, columns]`` are low; full light from ``top`` on."""
    height, width, _ = picture.pixels.shape
    shown = _lit(picture.pixels, _spread(np.clip(values / top, 0, 1), height, width))
    axis.imshow(shown.astype(np.uint8), extent=(0, picture.columns, picture.rows, 0))
    image = axis.imshow(
        values,
        cmap=_MAP,
        vmin=0,
        vmax=top,
        alpha=_ALPHA,
        extent=(0, picture.columns, picture.rows, 0),
    )
    _bare(axis)
    return image


def _lit(pixels: npt.NDArray[Any], light: F64) -> F64:
    """Pixels ``[h, w, 3]`` in a light ``[h, w]`` from 0 to 1: dark and nearly grey at 0."""
    grey, light = pixels.mean(axis=2, keepdims=True), light[..., None]
    return np.asarray((0.25 * grey + 0.1 * pixels) * (1 - light) + pixels * light)


def _norm(top: float) -> Any:
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, vmin=0, vmax=top)


def _spread(values: F64, height: int, width: int) -> F64:
    """Every value over the pixels of its patch."""
    rows, columns = values.shape
    y = np.minimum(np.arange(height) * rows // height, rows - 1)
    x = np.minimum(np.arange(width) * columns // width, columns - 1)
    return np.asarray(values[y][:, x])


def _picture(axis: Any, pixels: npt.NDArray[np.uint8]) -> None:
    axis.imshow(pixels)
    _bare(axis)


def _bare(axis: Any) -> None:
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_aspect("auto")
    axis.set_box_aspect(1)
    for spine in axis.spines.values():
        spine.set_visible(False)


def by_layer(found: Explanation, cut: Cut, picture: Picture) -> Any:
    """A panel for every layer: the share of its KV heads that kept each patch."""
    values = picture.grid(cut.kept.mean(axis=1))
    titles = [f"layer {i}" for i in range(len(values))]
    return _panels(values, titles, f"kept at {cut.budget}, by layer", "share of KV heads")


def by_head(found: Explanation, cut: Cut, picture: Picture) -> Any:
    """A panel for every KV head: the share of the layers in which it kept each patch."""
    values = picture.grid(cut.kept.mean(axis=0))
    titles = [f"KV head {i}" for i in range(len(values))]
    return _panels(values, titles, f"kept at {cut.budget}, by KV head", "share of layers")


def _panels(values: F64, titles: Sequence[str], title: str, label: str) -> Any:
    n = len(values)
    columns = min(n, 10)
    rows = math.ceil(n / columns)
    figure, axes = new_figure(rows, columns, width=1.15 * columns + 1.2, height=1.3 * rows + 0.5)
    for axis in axes.flat:
        _bare(axis)
    for axis, part, name in zip(axes.flat, values, titles, strict=False):
        image = axis.imshow(part, cmap=_MAP, norm=_norm(1.0))
        axis.set_box_aspect(part.shape[0] / part.shape[1])
        axis.set_title(name, fontsize=7, pad=2)
    figure.suptitle(title, fontsize=10)
    figure.colorbar(image, ax=axes, shrink=0.9, label=label)
    return figure


def maps(found: Explanation, picture: Picture) -> Any:
    """Importance and diversity of the patches, mean over heads, and the weight of every head."""
    figure, axes = new_figure(1, 4, width=12, height=3.1, width_ratios=(1, 1, 1, 1.3))
    _picture(axes[0, 0], picture.pixels)
    axes[0, 0].set_title("as the model saw it", fontsize=9)
    named = {"importance": found.parts.importance, "diversity": found.parts.diversity}
    for axis, (name, values) in zip(axes[0, 1:], named.items(), strict=False):
        grid = picture.grid(np.nan_to_num(values).mean(axis=(0, 1)))
        top = float(np.quantile(grid, 0.98)) or 1.0
        image = overlay(axis, picture, grid, top=top)
        axis.set_title(f"{name} (1 is the mean)", fontsize=9)
        figure.colorbar(image, ax=axis, shrink=0.75)
    weight = axes[0, 3].imshow(found.parts.weight.T, cmap="magma", vmin=0, vmax=1, aspect="auto")
    axes[0, 3].set_title("weight of diversity", fontsize=9)
    axes[0, 3].set_xlabel("layer")
    axes[0, 3].set_ylabel("KV head")
    axes[0, 3].set_yticks(range(found.parts.weight.shape[1]))
    figure.colorbar(weight, ax=axes[0, 3], shrink=0.75)
    return figure


def sheet(found: Explanation, cut: Cut) -> Any:
    """All pictures of a prompt at one budget."""
    n = len(found.pictures)
    figure, axes = new_figure(1, n, width=3.2 * n + 0.9, height=3.2)
    top = _top(found.pictures, found.cuts)  # of all budgets: the slider compares them
    for axis, picture in zip(axes.flat, found.pictures, strict=True):
        image = overlay(axis, picture, picture.grid(kept_share(cut)), top=top)
    _bar(figure, image, axes)
    return figure
