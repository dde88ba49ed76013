"""Seeded random tensors, and the writer around them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


class Weights:
    """Adds tensors to a file. Shapes are as in PyTorch: rows of the output first."""

    def __init__(self, path: Path, architecture: str, name: str, seed: int) -> None:
        self.writer = gguf.GGUFWriter(path, arch=architecture)
        self.writer.add_name(name)
        self._random = np.random.default_rng(seed)

    def matrix(self, name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        """f16, of deviation ``scale / sqrt(columns)``."""
        values = self._random.standard_normal((rows, columns)) * (scale / columns**0.5)
        self.writer.add_tensor(name, values.astype(np.float16))

    def kernel(self, name: str, rows: int, patch: int) -> None:
        """f16, of shape (rows, 3, patch, patch)."""
        values = self._random.standard_normal((rows, 3, patch, patch)) / (3 * patch * patch) ** 0.5
        self.writer.add_tensor(name, values.astype(np.float16))

    def vector(self, name: str, *shape: int, mean: float = 0.0, deviation: float = 0.1) -> None:
        """f32."""
        values = mean + self._random.standard_normal(shape) * deviation
        self.writer.add_tensor(name, values.astype(np.float32))

    def norm(self, name: str, width: int, bias: bool = False) -> None:
        """A norm's weight near one, and a bias near zero."""
        self.vector(f"{name}.weight", width, mean=1.0)
        if bias:
            self.vector(f"{name}.bias", width)

    def linear(self, name: str, rows: int, columns: int, scale: float = 1.0) -> None:
        """A matrix with a bias."""
        self.matrix(f"{name}.weight", rows, columns, scale)
        self.vector(f"{name}.bias", rows)

    def save(self) -> None:
        """Write the file."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()
