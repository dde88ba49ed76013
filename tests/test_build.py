"""What the native build leaves in the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lock

ROOT = Path(__file__).resolve().parent.parent
LIB = Path(os.environ.get("ECOKV_LIB_DIR") or ROOT / "ecokv_local" / "lib")
SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
PREFIX = "" if sys.platform == "win32" else "lib"

pytestmark = pytest.mark.skipif(
    not (LIB / "build-info.json").is_file(), reason=f"no native build in {LIB}; run scripts/test"
)


def library(name: str, folder: Path = LIB) -> Path:
    return folder / f"{PREFIX}{name}{SUFFIX}"


def in_new_process(code: str) -> str:
    """Libraries of two builds must not meet in one process."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_build_info_names_the_pin() -> None:
    info = json.loads((LIB / "build-info.json").read_text(encoding="utf-8"))
    pin = lock.read_lock()
    assert info["llama_cpp_python"] == pin.version
    assert info["llama_cpp_commit"] == pin.commit
    assert {"ggml", "ggml-base", "ggml-cpu"} <= set(info["libraries"])
    assert all(library(name).is_file() for name in info["libraries"])


def test_libraries_load_by_path_alone() -> None:
    out = in_new_process(
        f"import ctypes; ctypes.CDLL({str(library('mtmd'))!r});"
        f"llama = ctypes.CDLL({str(library('llama'))!r}); print(llama.llama_ecokv_abi_version())"
    )
    header = (ROOT / "native" / "include" / "llama-ecokv.h").read_text(encoding="utf-8")
    assert f"#define LLAMA_ECOKV_ABI_VERSION {out}\n" in header


def test_one_file_a_library() -> None:
    # a wheel has no symbolic links: versioned names would be packed as copies
    names = [path.name for path in LIB.iterdir() if SUFFIX in path.name]
    assert all(name.endswith(SUFFIX) for name in names), names
    assert not any((LIB / name).is_symlink() for name in names)


@pytest.mark.skipif(not (LIB / "stock").is_dir(), reason="built without ECOKV_STOCK")
def test_the_stock_library_is_unpatched_and_of_the_same_pin() -> None:
    stock = library("llama", LIB / "stock")
    code = (
        "import ctypes; lib = ctypes.CDLL({!r}); lib.llama_print_system_info.restype ="
        " ctypes.c_char_p; print(hasattr(lib, 'llama_ecokv_evict'), lib.llama_print_system_info())"
    )
    patched = in_new_process(code.format(str(library("llama")))).split(" ", 1)
    unpatched = in_new_process(code.format(str(stock))).split(" ", 1)
    assert (patched[0], unpatched[0]) == ("True", "False")
    assert patched[1] == unpatched[1]
