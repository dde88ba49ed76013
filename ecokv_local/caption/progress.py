"""How a batch is getting on, measured."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from ecokv_local.caption.results import Result


@dataclass
class Progress:
    """Counts and rates of a batch of ``total`` pictures; feed it every result."""

    total: int
    done: int = 0
    failed: int = 0
    cut_off: int = 0  # captions that ended at the limit of tokens
    tokens: int = 0  # generated
    failures: list[Result] = field(default_factory=list)
    _started: float = field(default_factory=time.perf_counter)

    def begin(self) -> None:
        """The model is there: time counts from now on."""
        self._started = time.perf_counter()

    def take(self, result: Result) -> None:
        """Count a result."""
        if result.answer is None:
            self.failed += 1
            self.failures.append(result)
            return
        self.done += 1
        answer = result.answer
        self.cut_off += answer.finish_reason == "length"
        self.tokens += answer.n_kept + answer.n_evicted - answer.n_prompt

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.perf_counter() - self._started

    def figures(self) -> dict[str, Any]:
        """By the names of ``--json``; ``eta_s`` is None before the first picture."""
        seconds, n = self.seconds, self.done + self.failed
        left = self.total - n
        return {
            "captioned": self.done,
            "failed": self.failed,
            "left": left,
            "seconds": round(seconds, 3),
            "images_per_s": round(n / seconds, 3) if seconds > 0 else 0.0,
            "tokens_per_s": round(self.tokens / seconds, 2) if seconds > 0 else 0.0,
            "eta_s": round(seconds / n * left, 1) if n else None,
            "rss_bytes": resident_bytes(),
        }


def resident_bytes() -> int | None:
    """Memory of this process, None where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
