"""Unpatched libraries of the same pin in a process of their own: our side of the pipe."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ecokv_local.errors import EcokvError, UsageError

if TYPE_CHECKING:
    from ecokv_local.engine import Engine
    from ecokv_local.fork import Saved

_SERVER = Path(__file__).with_name("stock_server.py")
_HINT = "give the folder of unpatched libraries of the same pin, such as build/dev/bin/stock"


class Stock:
    """A process that does as it is told, with the model and the settings of an engine."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        """Raises UsageError if ``folder`` holds no unpatched libllama that loads."""
        if not any(folder.glob("*llama.*")):
            raise UsageError(f"--compare-stock {folder}: there is no libllama in it", hint=_HINT)
        self._rows = tempfile.TemporaryDirectory(prefix="ecokv-bench-")
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER), json.dumps(_job(engine))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=_environment(folder.resolve()),
            start_new_session=True,  # Ctrl-C is ours: what is complete is still told
        )
        try:
            hello = self._answer()
        except EcokvError as error:
            self.close()
            raise UsageError(
                f"--compare-stock {folder}: its libllama does not run the model: {error.message}",
                hint=_HINT,
            ) from None
        if hello["patched"]:
            self.close()
            raise UsageError(f"--compare-stock {folder}: its libllama is patched", hint=_HINT)

    def open(self, n_cells: int, *, warm: Sequence[int] = ()) -> None:
        """A new cache in place of the old one; ``warm`` tokens are read and forgotten."""
        self._call(do="open", n_cells=n_cells, warm=list(warm))

    def restore(self, depth: int, saved: Saved) -> None:
        """The rows of ``saved``, those of ``depth``, into the empty cache."""
        path = Path(self._rows.name) / str(depth)
        if not path.exists():
            path.write_bytes(saved.data)
        self._call(do="restore", file=str(path), position=saved.mark.n_position)

    def read(self, tokens: Sequence[int]) -> float:
        """Append tokens in batches; seconds."""
        return float(self._call(do="read", tokens=list(tokens))["seconds"])

    def decode(self, tokens: Sequence[int]) -> float:
        """Append tokens one by one; seconds."""
        return float(self._call(do="decode", tokens=list(tokens))["seconds"])

    def _call(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer that does not come tells it
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return dict(json.loads(line))
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        raise EcokvError(
            f"the process with unpatched libraries ended with {self._process.wait()}: "
            f"{said[-1] if said else 'no detail'}",
            hint="leave out --compare-stock, or see whether there is memory for two models",
        )

    def close(self) -> None:
        """End the process and wait for it; idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()
        self._rows.cleanup()


def _job(engine: Engine) -> dict[str, Any]:
    return {
        "model": str(engine.model_path),
        "lora": [str(path) for path in engine.lora_files(seeing=False)],
        "gpu_layers": engine.gpu_layers,
        "threads": engine.threads,
        "n_batch": engine.n_batch,
        "n_ubatch": engine.n_ubatch,
        "types": engine.cache_types,
        "flash_attn": {"auto": -1, "off": 0, "on": 1}[engine.flash_attn],
    }


def _environment(folder: Path) -> dict[str, str]:
    """Libraries are looked for in ``folder`` first; those that are the same in both builds may lie
    beside it.
    """
    paths = f"{folder}{os.pathsep}{folder.parent}"
    names = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {**os.environ, "LLAMA_CPP_LIB_PATH": str(folder), **dict.fromkeys(names, paths)}
