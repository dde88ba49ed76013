"""Models from Hugging Face, through the optional package `huggingface_hub`.

The package keeps the files in its own cache and honours `HF_HOME`, `HF_TOKEN` and `HF_HUB_OFFLINE`.
Nothing here opens a connection by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: Asked for when no quantisation is named, in this order; else the first model of the repository.
PREFERRED = ("Q4_K_M", "Q8_0")

_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


@dataclass(frozen=True)
class Files:
    """Local files of a repository: the model and, where there is one, its projector."""

    model: str
    mmproj: str | None


def offline_by_environment(environ: Mapping[str, str]) -> bool:
    return environ.get("HF_HUB_OFFLINE", "").strip().lower() in ("1", "true", "yes", "on")


def fetch(name: str, *, offline: bool, projector: bool, progress: Callable[[str], None]) -> Files:
    """Files for `user/repo[:quant]`, from the cache if offline, else downloaded when missing."""
    hub = _package()
    repo, _, quant = name.partition(":")
    listed = _cached(hub, repo) if offline else _listed(hub, repo)
    model, mmproj = choose(listed, quant)
    if model is None:
        ggufs = ", ".join(sorted(f for f in listed if f.endswith(".gguf"))) or "none"
        raise _error(
            f"-hf {name}: no GGUF model {f'for {quant} ' if quant else ''}in the repository",
            f"its GGUF files: {ggufs}",
        )

    def get(file: str) -> str:
        progress(f"fetching {file}")
        try:
            return str(hub.hf_hub_download(repo, file, local_files_only=offline))
        except Exception as bad:
            raise _unreachable(repo, file, offline, bad) from bad

    local = [get(file) for file in parts(model, listed)]
    return Files(local[0], get(mmproj) if projector and mmproj is not None else None)


def choose(files: Iterable[str], quant: str) -> tuple[str | None, str | None]:
    """The model file for `quant`, and the projector, among the files of a repository."""
    ggufs = sorted(file for file in files if file.lower().endswith(".gguf"))
    projectors = [file for file in ggufs if "mmproj" in file.lower()]
    models = [file for file in ggufs if file not in projectors and not _later_part(file)]
    wanted = (quant,) if quant else PREFERRED
    model = next((f for want in wanted for f in models if _has_quant(f, want)), None)
    if model is None and not quant and models:
        model = models[0]
    best = next(
        (f for want in (quant, "f16") if want for f in projectors if _has_quant(f, want)), None
    )
    return model, best or (projectors[0] if projectors else None)


def parts(model: str, files: Iterable[str]) -> list[str]:
    """All files of a split model, the first one first; the file itself if it is not split."""
    match = _PART.search(model)
    if match is None:
        return [model]
    stem, total = model[: match.start()], match.group(2)
    return sorted(f for f in files if f.startswith(stem) and f.endswith(f"-of-{total}.gguf"))


def _later_part(file: str) -> bool:
    match = _PART.search(file)
    return match is not None and int(match.group(1)) > 1


def _has_quant(file: str, quant: str) -> bool:
    return (
        re.search(rf"(?<![a-z0-9]){re.escape(quant.lower())}(?![a-z0-9_])", file.lower())
        is not None
    )


def _package() -> Any:
    import importlib

    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise _error(
            "-hf needs the package huggingface_hub, which is not installed",
            "pip install huggingface_hub, or download the GGUF and give it with -m",
        ) from None


def _listed(hub: Any, repo: str) -> list[str]:
    try:
        return list(hub.list_repo_files(repo))
    except Exception as bad:
        raise _unreachable(repo, "", False, bad) from bad


def _cached(hub: Any, repo: str) -> list[str]:
    """Files of the repository that are in the local cache."""
    import os

    try:
        folder = hub.snapshot_download(repo, local_files_only=True)
    except Exception as bad:
        raise _unreachable(repo, "", True, bad) from bad
    return [
        os.path.relpath(os.path.join(root, file), folder).replace(os.sep, "/")
        for root, _, names in os.walk(folder)
        for file in names
    ]


def _unreachable(repo: str, file: str, offline: bool, bad: Exception) -> Exception:
    what = f"{repo}/{file}" if file else repo
    if offline:
        return _error(
            f"-hf {what}: not in the local cache, and the network may not be used",
            "run once without --offline and HF_HUB_OFFLINE, or give a file with -m",
        )
    reason = str(bad).strip().splitlines()[0] if str(bad).strip() else type(bad).__name__
    return _error(f"-hf {what}: {reason}", "check the name and the network, or give a file with -m")


def _error(message: str, hint: str) -> Exception:
    from ecokv_local.errors import ModelError

    return ModelError(message, hint=hint)
