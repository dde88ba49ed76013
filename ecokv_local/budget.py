"""How much of the KV cache may stay: pairs, a share of the prompt, or bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ecokv_local.errors import BudgetError, UsageError

Unit = Literal["pairs", "percent", "bytes"]

_BYTES = {
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
}
_PATTERN = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>%|[a-zA-Z]*)")
_HINT = "write a number of KV pairs (512), a share of the prompt (25%) or a size (64MiB)"


@dataclass(frozen=True)
class Budget:
    """KV pairs kept per layer and KV head; sinks and recent tokens included.

    ``value`` counts pairs, percent of the prompt, or bytes of KV memory over all layers.
    """

    value: float
    unit: Unit = "pairs"

    def __post_init__(self) -> None:
        if not 0 < self.value < float("inf"):
            raise UsageError(f"budget {self}: it has to be above zero", hint=_HINT)
        if self.unit == "pairs" and self.value != int(self.value):
            raise UsageError(
                f"budget {self.value}: a fraction of a KV pair",
                hint=f"for a share of the prompt write {self.value * 100:g}%",
            )

    @classmethod
    def parse(cls, text: str | int | Budget) -> Budget:
        """``512``, ``"25%"``, ``"64MiB"``. Raises UsageError for anything else."""
        if isinstance(text, Budget):
            return text
        if isinstance(text, int) and not isinstance(text, bool):
            return cls(text)
        match = _PATTERN.fullmatch(str(text).strip())
        if match is None:
            raise UsageError(f"budget {text!r} is not understood", hint=_HINT)
        number, unit = float(match["number"]), match["unit"].lower()
        if unit == "%":
            return cls(number, "percent")
        if unit in _BYTES:
            return cls(number * _BYTES[unit], "bytes")
        if unit:
            raise UsageError(f"budget {text!r}: unknown unit {match['unit']!r}", hint=_HINT)
        if "." in match["number"]:
            plain = f"{number:g}" if number >= 1 and number % 1 == 0 else f"{number * 100:g}%"
            raise UsageError(f"budget {text!r} is a bare fraction", hint=f"write {plain}")
        return cls(number)

    def resolve(self, n_prompt: int, bytes_per_pair: int) -> int:
        """KV pairs per layer and KV head.

        ``n_prompt`` tokens of the prompt; ``bytes_per_pair`` bytes of one token's K and V over all
        evictable layers and heads. Raises BudgetError if the size holds no single pair.
        """
        if self.unit == "percent":
            return max(1, int(n_prompt * self.value / 100))
        if self.unit == "bytes":
            pairs = int(self.value // bytes_per_pair)
            if pairs < 1:
                raise BudgetError(
                    f"budget {self}: one token of this model takes {bytes_per_pair} bytes",
                    hint="raise the budget, or use a smaller cache type (-ctk q8_0 -ctv q8_0)",
                )
            return pairs
        return int(self.value)

    def __str__(self) -> str:
        if self.unit == "percent":
            return f"{self.value:g}%"
        if self.unit == "bytes":
            for name, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
                if self.value >= size and self.value % size == 0:
                    return f"{int(self.value // size)}{name}"
            return f"{self.value:g}B" if self.value % 1 else f"{int(self.value)}B"
        return f"{self.value:g}" if self.value % 1 else f"{int(self.value)}"
