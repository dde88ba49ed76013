"""Figures by matplotlib, without a display: PNG files, and SVG for pages.

The same figure gives the same bytes: no dates, no random identifiers.
"""

from __future__ import annotations

import errno
import io
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ecokv_local.caption.writing import replace_file
from ecokv_local.errors import EcokvError

#: Blue, orange, green, red, purple, brown, pink, grey: told apart by colour-blind readers.
COLOURS = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#d55e00",
    "#7b5ea7",
    "#8c6d46",
    "#cc79a7",
    "#7f7f7f",
)
_SALT = "ecokv"


def require_report() -> None:
    """Raises EcokvError if the packages of the extra ``report`` are missing."""
    try:
        import matplotlib  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as error:
        raise EcokvError(
            f"pictures need the package {error.name}",
            hint="pip install 'ecokv-local[report]', or leave the picture out",
        ) from None


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 6.4, height: float = 4.0, **subplots: Any
) -> tuple[Any, Any]:
    """A figure of ``width`` x ``height`` inches and its axes ``[rows, columns]``.

    ``subplots`` go to ``Figure.subplots``. Raises EcokvError without matplotlib.
    """
    require_report()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_prop_cycle(color=COLOURS)
    return figure, axes


def to_png(figure: Any, *, dpi: int = 120) -> bytes:
    """A figure as PNG."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # text of models has letters of any script
        figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def to_svg(figure: Any) -> str:
    """A figure as an ``<svg>`` element for a page; text stays text."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": _SALT, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def save_png(figure: Any, path: str | Path, *, dpi: int = 120) -> None:
    """Write a figure; an old file is replaced whole or stays. Raises EcokvError."""
    write(path, to_png(figure, dpi=dpi))


def write(path: str | Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file, in pieces if wanted, making its folder; an old file is replaced whole or stays.

    Raises EcokvError with the path where that cannot be done.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data)
    except OSError as error:
        raise _no_place(path, error) from error


def require_place(path: str | Path | None, *, folder: bool = False) -> None:
    """Make sure that a file, or files in a folder, can be written there: before the work, not after
    it. Makes the folder. Raises EcokvError with the path; None is no place, and fine.
    """
    if path is None:
        return
    path = Path(path)
    place = path if folder else path.parent
    try:
        if place.exists() and not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        place.mkdir(parents=True, exist_ok=True)
        if not folder and path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _no_place(path, error) from error


def _no_place(path: str | Path, error: OSError) -> EcokvError:
    return EcokvError(
        f"{path}: cannot be written: {error.strerror or error}",
        hint="choose another place, or make room",
    )
