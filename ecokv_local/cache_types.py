"""Types that keys and values can be stored as, and the pairs that work."""

from __future__ import annotations

from ecokv_local.errors import UsageError

#: name -> number of ``ggml_type``
TYPES: dict[str, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
#: Those that store blocks with a common scale.
QUANTISED = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"}
_BLOCK = 32  # values that a block of each of these holds


def type_number(name: str) -> int:
    """Number of a type. Raises UsageError for a name that cannot hold a cache."""
    if name not in TYPES:
        raise UsageError(
            f"cache type {name!r} does not exist", hint=f"choose from {', '.join(TYPES)}"
        )
    return TYPES[name]


def check_pair(key: str, value: str, flash_attn: str) -> None:
    """Raises UsageError for a quantised V cache without flash attention: llama.cpp has no such
    path.
    """
    type_number(key)
    type_number(value)
    if value in QUANTISED and flash_attn == "off":
        raise UsageError(
            f"cache type {value!r} for V needs flash attention, and it is off",
            hint="use -fa on, or -ctv f16",
        )


def check_heads(key: str, value: str, key_size: int, value_size: int) -> None:
    """Raises UsageError for a quantised type whose blocks do not divide a head (0: unknown)."""
    for what, name, size in (("K", key, key_size), ("V", value, value_size)):
        if name in QUANTISED and size % _BLOCK:
            raise UsageError(
                f"cache type {name!r} for {what} stores blocks of {_BLOCK}, "
                f"the heads of this model have {size} values",
                hint=f"use -ct{what.lower()} f16",
            )
