"""The most resident memory of this process since a moment, where the system (Linux) tells it."""

from __future__ import annotations

import ctypes
import sys


def reset_peak() -> bool:
    """Let ``peak_bytes`` count from now on; False where that cannot be done. What was freed goes
    back to the system first, so that the caches before do not count.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is None:
        return False
    trim(ctypes.c_size_t(0))
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
    except OSError:
        return False
    return True


def peak_bytes() -> int | None:
    """The most that was resident since ``reset_peak``; None where the system does not tell."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
