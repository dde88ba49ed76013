"""Draw the training log."""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

Series = dict[str, list[tuple[float, float]]]

PANELS: dict[str, tuple[str, ...]] = {
    "pretrain": ("color", "shape", "digit", "word", "position", "role", "alike", "total"),
    "adapt": ("color", "shape", "position", "count", "exist", "number", "word", "at", "needle"),
    "joint": ("color", "shape", "position", "count", "exist", "number", "word", "at", "needle"),
}
TITLES = {
    "pretrain": "1. tower: patches named right",
    "adapt": "2. adapter: answers right, token by token",
    "joint": "3. tower and adapter: answers right",
}
SMOOTHING = 0.75


def read(path: Path) -> dict[str, Series]:
    """Values over images, per stage and name."""
    found: dict[str, Series] = defaultdict(lambda: defaultdict(list))
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            point = (float(row["images"]), float(row["value"]))
            found[row["stage"]][row["name"]].append(point)
    return found


def smooth(points: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Running average, because one line of the log holds few answers of a kind."""
    images, values = [], []
    for x, y in sorted(points):
        values.append(y if not values else SMOOTHING * values[-1] + (1 - SMOOTHING) * y)
        images.append(x)
    return images, values


def main() -> None:
    """Read the CSV, write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found = read(arguments.log)
    stages = [stage for stage in PANELS if stage in found]
    figure, panels = plt.subplots(1, len(stages), figsize=(5 * len(stages), 4), squeeze=False)
    for panel, stage in zip(panels[0], stages, strict=True):
        for name in PANELS[stage]:
            if name in found[stage]:
                panel.plot(*smooth(found[stage][name]), label=name, linewidth=1.3)
        panel.set_title(TITLES[stage])
        panel.set_xlabel("images")
        panel.set_ylim(0, 1.02)
        panel.grid(alpha=0.3)
        panel.legend(fontsize=7, loc="lower right")
    figure.tight_layout()
    figure.savefig(arguments.out, dpi=80)


if __name__ == "__main__":
    main()
