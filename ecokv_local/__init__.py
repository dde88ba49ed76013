"""Local vision-language models with a KV cache of fixed size.

Importing this package is cheap; the native libraries load with the first ``Engine``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecokv_local.answer import Answer, Event
    from ecokv_local.budget import Budget
    from ecokv_local.config import EvictionConfig, SamplingConfig
    from ecokv_local.engine import Engine
    from ecokv_local.errors import EcokvError
    from ecokv_local.messages import Message
    from ecokv_local.session import Session

__version__ = "0.1.0"

_EXPORTS = {
    "Answer": "answer",
    "Budget": "budget",
    "EcokvError": "errors",
    "Engine": "engine",
    "Event": "answer",
    "EvictionConfig": "config",
    "Message": "messages",
    "SamplingConfig": "config",
    "Session": "session",
}

__all__ = [
    "Answer",
    "Budget",
    "EcokvError",
    "Engine",
    "Event",
    "EvictionConfig",
    "Message",
    "SamplingConfig",
    "Session",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(f"ecokv_local.{_EXPORTS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
