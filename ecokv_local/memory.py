"""How large a cache becomes, before it is allocated."""

from __future__ import annotations

import os

from ecokv_local.errors import MemoryLimitError
from ecokv_local.gguf_meta import GgufMeta, row_bytes


def kv_bytes(meta: GgufMeta, n_cells: int, type_k: int, type_v: int) -> int:
    """Bytes of K and V of ``n_cells`` cells over all layers, by the header of the model.

    The types are numbers of ``ggml_type``. 0 where the header does not tell: layers of different
    kinds, or no attention at all.
    """
    heads = meta.fields.get(f"{meta.architecture}.attention.head_count_kv")
    key_size, value_size = meta.head_sizes()
    if not isinstance(heads, int) or not key_size or not value_size:
        return 0
    row = row_bytes(type_k, heads * key_size) + row_bytes(type_v, heads * value_size)
    return meta.n_layer * n_cells * row


def physical_bytes() -> int | None:
    """Main memory of this machine, None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def free_bytes() -> int | None:
    """Main memory that can be had without swapping, None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return None
    except (OSError, ValueError, IndexError):
        total = physical_bytes()  # not Linux
        return None if total is None else total // 2


def check_fits(meta: GgufMeta, n_cells: int, type_k: int, type_v: int) -> None:
    """Raises MemoryLimitError for a cache larger than main memory.

    For caches in main memory: the system grants any size, and kills the process that uses it.
    """
    need, have = kv_bytes(meta, n_cells, type_k, type_v), physical_bytes()
    if have is not None and need > have:
        raise MemoryLimitError(
            f"a cache of {n_cells} cells takes {need / 2**30:.1f} GiB, "
            f"this machine has {have / 2**30:.1f} GiB",
            hint="use a smaller --ctx-size or cache type (-ctk q8_0 -ctv q8_0 -fa on)",
        )
