"""Native features, scores, kept sets and moved rows against the reference, on any model and prompt.

``validate(engine, prompt)`` gives a ``Report``; it needs numba and gguf (the extra ``validate``).
"""

from __future__ import annotations

from ecokv_local.validate.report import (
    Difference,
    KeptReport,
    LayerReport,
    PolicyReport,
    Report,
    Skipped,
)
from ecokv_local.validate.run import require_packages, validate

__all__ = [
    "Difference",
    "KeptReport",
    "LayerReport",
    "PolicyReport",
    "Report",
    "Skipped",
    "require_packages",
    "validate",
]
