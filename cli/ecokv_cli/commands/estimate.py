"""`ecokv estimate`: what a conversation would take, by the headers of the files alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecokv_cli import engines, tables
from ecokv_cli.errors import OK
from ecokv_cli.options import EVICTION, MODEL, OUTPUT, PROMPT, RUNTIME
from ecokv_cli.output import Output
from ecokv_cli.setting import chosen
from ecokv_cli.settings import Settings

if TYPE_CHECKING:
    from ecokv_local.estimate import Estimate

_LEFT_OUT = (
    "hf_repo",
    "offline",
    "max_tokens",
    "threads",
    "gpu_layers",
    "batch_size",
    "flash_attn",
    "no_stream",
    "stats",
)
_OWN: dict[str, dict[str, Any]] = {"json": {"help": "One JSON object."}}

NAME = "estimate"
GROUPS = chosen((*MODEL, *PROMPT, *RUNTIME, *EVICTION, *OUTPUT), _OWN, _LEFT_OUT)
HELP = """Tell what a conversation would take, without loading the model.

Tokens of the pictures, bytes of the cache with and without a budget, and whether they fit the
memory that is free, all from the headers of the files. Text is counted as four bytes a token.
"""
EPILOG = "See docs/usage.md."

_MIB = 2**20


def run(settings: Settings, out: Output, prompt: str | None) -> int:
    """Estimate; returns the exit code."""
    from ecokv_local.estimate.files import estimate_files

    texts = (settings.get("system"), settings.get("prompt"), prompt)
    found, free, warnings = estimate_files(
        settings.get("model"),
        settings.get("mmproj"),
        settings.get("lora") or (),
        images=settings.get("image") or (),
        text="\n".join(text for text in texts if text),
        eviction=engines.eviction_of(settings),
        **settings.given(
            n_ctx="ctx_size",
            n_ubatch="ubatch_size",
            cache_type_k="cache_type_k",
            cache_type_v="cache_type_v",
            image_max_tokens="image_max_tokens",
        ),
    )
    for warning in warnings:
        out.warn(warning)
    if out.as_json:
        out.record(found.to_dict() | {"free_bytes": free, "warnings": list(warnings)})
    else:
        name = Path(settings.get("model") or "the built-in model").name
        tables.show(name, ("what", "tokens", "MiB"), _rows(found, free), text_columns=1)
    return OK


def _rows(found: Estimate, free: int | None) -> list[list[str]]:
    rows = [["weights and projector", "", _mib(found.weight_bytes)]]
    rows += [
        [
            f"picture {i}",
            "?" if n is None else str(n),
            "" if n is None else _mib(n * found.row_bytes),
        ]
        for i, n in enumerate(found.n_image_tokens, 1)
    ]
    rows.append(["prompt", str(found.n_prompt), _mib(found.kv_bytes_prompt)])
    layers = f" of {found.n_layer_full} layers" if found.n_layer_window else ""
    rows.append([f"full cache{layers}", str(found.n_cells), _mib(found.kv_bytes_full)])
    if found.n_layer_window:
        window = f"window layers ({found.n_layer_window}), never evicted"
        rows.append([window, "", _mib(found.kv_bytes_window)])
    if found.refused:
        rows.append([f"budget refused: {found.refused}", "", ""])
    for what, n, size in (
        ("kept by the budget", found.n_kept, found.kv_bytes_kept),
        ("allocated for the answer", None, found.kv_bytes_after),
        ("most while read whole", None, found.kv_bytes_whole),
        ("most while read chunked", None, found.kv_bytes_chunked),
    ):
        if size is not None:
            share = f" ({n / found.n_prompt:.0%} of the prompt)" if n and found.n_prompt else ""
            rows.append([what + share, "" if n is None else str(n), _mib(size)])
    if free is not None:
        rows.append(["memory that is free", "", _mib(free)])
    return rows


def _mib(size: int) -> str:
    return f"{size / _MIB:,.2f}"
