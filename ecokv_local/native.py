"""ctypes declarations of ``llama-ecokv.h`` over the bindings of the pinned llama.cpp.

Importing this module points ``llama_cpp`` at our own libraries; it therefore has to be imported
before ``llama_cpp`` is. Everything else of the package goes through ``llama`` and ``lib`` here.
"""

from __future__ import annotations

import ctypes as c
import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from ecokv_local.errors import (
    BudgetError,
    BuildError,
    EcokvError,
    MemoryLimitError,
    ModelError,
    SessionFileError,
    StateError,
    UsageError,
)

ABI_VERSION = 4

_REBUILD = "reinstall the package: pip install --force-reinstall --no-deps ecokv-local"


def library_dir() -> Path:
    """The folder of the shared libraries: ``ECOKV_LIB_DIR``, or ``lib`` beside this file."""
    override = os.environ.get("ECOKV_LIB_DIR")
    return Path(override) if override else Path(__file__).parent / "lib"


def build_info() -> dict[str, Any]:
    """What the libraries were built from and with; empty if the build left no note."""
    try:
        return dict(json.loads((library_dir() / "build-info.json").read_text()))
    except (OSError, ValueError):
        return {}


def _import_bindings() -> Any:
    folder = library_dir()
    if not any(folder.glob("*llama.*")):
        raise BuildError(f"the native libraries are not in {folder}", hint=_REBUILD)
    loaded = sys.modules.get("llama_cpp.llama_cpp")
    if loaded is not None and Path(getattr(loaded, "_base_path", "")) != folder:
        raise BuildError(
            "llama_cpp was imported before ecokv_local and holds other libraries",
            hint="import ecokv_local first",
        )
    pinned = build_info().get("llama_cpp_python")
    try:
        installed = importlib.metadata.version("llama-cpp-python")
    except importlib.metadata.PackageNotFoundError:
        raise BuildError(
            "llama-cpp-python is not installed", hint=f"pip install llama-cpp-python=={pinned}"
        ) from None
    if pinned is not None and installed != pinned:
        raise BuildError(
            f"llama-cpp-python {installed} is installed, the libraries belong to {pinned}",
            hint=f"pip install llama-cpp-python=={pinned}",
        )
    os.environ["LLAMA_CPP_LIB_PATH"] = os.environ["MTMD_CPP_LIB"] = str(folder)
    try:
        import llama_cpp.llama_cpp as bindings
    except (OSError, RuntimeError, FileNotFoundError) as error:
        raise BuildError(
            f"the libraries in {folder} do not load: {error}", hint=_REBUILD
        ) from error
    return bindings


llama: Any = _import_bindings()
lib: Any = llama._lib


class _Struct(c.Structure):
    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name, *_ in self._fields_}


def _ints(names: str) -> list[tuple[str, Any]]:
    return [(name, c.c_int32) for name in names.split()]


class Params(_Struct):
    """``llama_ecokv_params``"""

    _fields_ = _ints("n_window n_rollback path")


class Group(_Struct):
    """``llama_ecokv_group``"""

    _fields_ = _ints("p0 p1 floor")


class Config(_Struct):
    """``llama_ecokv_config``"""

    _fields_ = [
        *_ints("policy budget n_sink n_recent kernel pooling gqa compose head_weight value_norm"),
        ("lam", c.c_float),
        ("head_weight_fixed", c.c_float),
        ("seed", c.c_uint32),
        *_ints("layer_budgets head_budgets"),
        ("beta", c.c_float),
        ("floor", c.c_float),
        ("groups", c.POINTER(Group)),
        ("n_groups", c.c_int32),
    ]


class Shape(_Struct):
    """``llama_ecokv_shape``"""

    _fields_ = _ints("n_layer n_layer_other n_head_kv n_cells n_stream n_seq_max v_trans on_host")


FloatP = c.POINTER(c.c_float)
IntP = c.POINTER(c.c_int32)


class Features(_Struct):
    """``llama_ecokv_features``"""

    _fields_ = [
        *_ints("n_layer n_head_kv n n_sink n_recent n_query gqa"),
        ("layer_n_head_kv", IntP),
        *[
            (name, FloatP)
            for name in [
                "attn",
                "attn_last",
                "key_norm",
                "key_cos",
                "key_euc",
                "value_norm",
                "head_m2",
            ]
        ],
        ("head_first", IntP),
        ("pos", IntP),
    ]


class Result(_Struct):
    """``llama_ecokv_result``"""

    _fields_ = [
        *_ints("n_before n_after n_query n_nonfinite n_layer_host n_layer_graph n_heads"),
        ("n_pairs_before", c.c_int64),
        ("n_pairs_after", c.c_int64),
        ("t_features_ms", c.c_double),
        ("t_plan_ms", c.c_double),
        ("t_apply_ms", c.c_double),
        ("scratch_bytes", c.c_int64),
        ("pair_bytes", c.c_int64),
        ("hole_bytes", c.c_int64),
    ]


class LayerInfo(_Struct):
    """``llama_ecokv_layer_info``"""

    _fields_ = [
        *_ints("il n_head n_head_kv d_k d_v type_k type_v has_sinks"),
        ("kq_scale", c.c_float),
        ("soft_cap", c.c_float),
    ]


class Counters(_Struct):
    """``llama_ecokv_counters``"""

    _fields_ = [
        *_ints("il n_head_kv"),
        ("n_evictions", c.c_int64),
        ("n_pairs_seen", c.c_int64),
        ("n_pairs_kept", c.c_int64),
    ]


def _declare() -> None:
    ctx, seq, i32, i64, text = c.c_void_p, c.c_int32, c.c_int32, c.c_int64, c.c_char_p
    table: dict[str, tuple[Any, list[Any]]] = {
        "abi_version": (i32, []),
        "status_text": (text, [i32]),
        "last_error": (text, []),
        "params_default": (Params, []),
        "config_default": (Config, []),
        "policy_name": (text, [i32]),
        "policy_by_name": (i32, [text]),
        "budget_min": (i32, [c.POINTER(Config)]),
        "stop_requested": (c.c_bool, [c.c_void_p]),
        "check": (i32, [ctx]),
        "enable": (i32, [ctx, Params]),
        "disable": (i32, [ctx]),
        "get_shape": (i32, [ctx, c.POINTER(Shape)]),
        "get_counters": (i32, [ctx, c.POINTER(Counters), i32]),
        "ring_bytes": (i64, [ctx]),
        "init_from_model": (c.c_void_p, [c.c_void_p, llama.llama_context_params, i32]),
        "resize": (i32, [ctx, i32]),
        "kv_bytes": (i64, [ctx]),
        "hole_bytes": (i64, [ctx, seq]),
        "n_rows": (i32, [ctx, seq]),
        "n_query": (i32, [ctx, seq]),
        "is_lossy": (i32, [ctx, seq]),
        "safe_pos": (i32, [ctx, seq]),
        "features_get": (i32, [ctx, seq, c.POINTER(Features)]),
        "plan_max": (i32, [c.POINTER(Config), i32, i32, i32]),
        "layer_budgets": (i32, [c.POINTER(Config), i32, i32, IntP]),
        "plan": (i32, [c.POINTER(Features), c.POINTER(Config), IntP]),
        "scores": (i32, [c.POINTER(Features), c.POINTER(Config), i32, i32, FloatP]),
        "choose": (i32, [ctx, seq, c.POINTER(Config), IntP, c.POINTER(Result)]),
        "apply": (i32, [ctx, seq, IntP, i32]),
        "evict": (i32, [ctx, seq, c.POINTER(Config), c.POINTER(Result)]),
        "state_size": (i64, [ctx, seq]),
        "state_get": (i64, [ctx, seq, c.c_void_p, c.c_size_t]),
        "state_check": (i32, [ctx, seq, c.c_void_p, c.c_size_t]),
        "state_set": (i32, [ctx, seq, c.c_void_p, c.c_size_t]),
        "get_pos": (i32, [ctx, seq, IntP]),
        "get_kept": (i32, [ctx, seq, IntP]),
        "get_layer": (i32, [ctx, i32, c.POINTER(LayerInfo), FloatP]),
        "row_bytes": (i64, [ctx, i32, c.c_bool]),
        "get_rows": (i32, [ctx, seq, i32, c.c_bool, c.c_void_p]),
        "get_queries": (i32, [ctx, seq, i32, FloatP, IntP]),
    }
    for name, (result, arguments) in table.items():
        function = getattr(lib, f"llama_ecokv_{name}")
        function.restype, function.argtypes = result, arguments


def _check_abi() -> None:
    if not hasattr(lib, "llama_ecokv_abi_version"):
        raise BuildError(f"the libllama in {library_dir()} is not the patched one", hint=_REBUILD)
    found = int(lib.llama_ecokv_abi_version())
    if found != ABI_VERSION:
        raise BuildError(
            f"the libllama in {library_dir()} has ABI {found}, this package needs {ABI_VERSION}",
            hint=_REBUILD,
        )


_check_abi()
_declare()

_ERRORS: dict[int, tuple[type[EcokvError], str]] = {
    -1: (ModelError, "run this model without --budget"),
    -2: (ModelError, "run this model without --budget"),
    -3: (StateError, ""),
    -4: (UsageError, ""),
    -5: (BudgetError, "raise --budget, or lower --sinks and --recent"),
    -6: (StateError, ""),
    -7: (StateError, "the model produces NaN or Inf: try another cache type or file"),
    -8: (EcokvError, ""),
    -9: (StateError, "the conversation has to be read again"),
    -10: (MemoryLimitError, "use a smaller --ctx-size or cache type"),
    -11: (SessionFileError, "load it with the model and the settings that it was saved with"),
}


def check(status: int) -> int:
    """The status if it is not negative; else the error it stands for, with the library's own
    words.
    """
    if status >= 0:
        return status
    kind, hint = _ERRORS.get(status, (EcokvError, ""))
    detail = lib.llama_ecokv_last_error().decode("utf-8", "replace")
    raise kind(detail or lib.llama_ecokv_status_text(status).decode(), hint=hint)


# ---- log -----------------------------------------------------------------------------------------

_LEVEL_DEBUG, _LEVEL_ERROR = 1, 4
_FLASH_ATTENTION = re.compile(r"Flash Attention (enabled|not supported)")


class _Log:
    """Keeps the last errors of the native code for messages; prints all of it when verbose."""

    def __init__(self) -> None:
        self.verbose = False
        self.errors: list[str] = []
        self.flash_attn: bool | None = None  # what "auto" of the last context came to

    def __call__(self, level: int, text: bytes, _user: Any) -> None:
        line = text.decode("utf-8", "replace")
        if level == _LEVEL_ERROR and line.strip():
            self.errors = [*self.errors[-19:], line.strip()]
        found = _FLASH_ATTENTION.search(line)
        if found:
            self.flash_attn = found[1] == "enabled"
        if self.verbose and level != _LEVEL_DEBUG:
            sys.stderr.write(line)

    def take(self) -> str:
        """The errors since the last call, as one line."""
        lines, self.errors = self.errors, []
        return "; ".join(lines[-3:])


log = _Log()
_LOG_TYPE = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)
_log_callback = _LOG_TYPE(log)
lib.llama_log_set.argtypes, lib.llama_log_set.restype = [_LOG_TYPE, c.c_void_p], None
lib.llama_log_set(_log_callback, None)


_GPU, _INTEGRATED_GPU = 1, 2  # ggml_backend_dev_type


def has_gpu() -> bool:
    """Whether ggml sees a GPU of this machine (one behind a network does not count)."""
    by_type = lib.ggml_backend_dev_by_type
    by_type.argtypes, by_type.restype = [c.c_int], c.c_void_p
    return any(by_type(kind) for kind in (_GPU, _INTEGRATED_GPU))


def load_mtmd() -> Any:
    """The bindings of libmtmd, imported with the first projector."""
    import llama_cpp.mtmd_cpp as mtmd

    library = mtmd._libmtmd
    for name in ("mtmd_log_set", "mtmd_helper_log_set"):
        function = getattr(library, name)
        function.argtypes, function.restype = [_LOG_TYPE, c.c_void_p], None
        function(_log_callback, None)
    return mtmd
