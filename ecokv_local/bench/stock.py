"""A process with unpatched libraries of the same pin, that decodes on command.

Run as a program it uses nothing of this package, which would load the patched libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecokv_local.engine import Engine
    from ecokv_local.fork import Saved


class Stock:
    """Our side of the pipe. ``close`` ends the process."""

    def __init__(self, folder: Path, engine: Engine, n_cells: int) -> None:
        """Raises UsageError if ``folder`` holds no unpatched libllama that loads."""
        from ecokv_local.errors import UsageError

        if not any(folder.glob("*llama.*")):
            raise UsageError(
                f"--compare-stock {folder}: there is no libllama in it",
                hint="give the folder of unpatched libraries, such as build/dev/bin/stock",
            )
        job = {
            "folder": str(folder.resolve()),
            "model": str(engine.model_path),
            "threads": engine.threads,
            "n_cells": n_cells,
            "n_batch": engine.n_batch,
            "n_ubatch": engine.n_ubatch,
            "types": engine.cache_types,
            "flash_attn": {"auto": -1, "off": 0, "on": 1}[engine.flash_attn],
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if self._answer().get("patched") is not False:
            self.close()
            raise UsageError(
                f"--compare-stock {folder}: its libllama is patched or cannot be loaded",
                hint="give the folder of unpatched libraries of the same pin",
            )

    def restore(self, saved: Saved, depth: int) -> None:
        """The rows of ``saved``, and tokens up to ``depth``."""
        with tempfile.NamedTemporaryFile(suffix=".rows") as file:
            file.write(bytes(saved.data))
            file.flush()
            self._call(do="restore", file=file.name, position=saved.mark.n_position, depth=depth)

    def decode(self, n: int) -> float:
        """Decode ``n`` tokens one by one and take them back; seconds."""
        return float(self._call(do="decode", n=n)["seconds"])

    def _call(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        return dict(json.loads(line)) if line else {}

    def close(self) -> None:
        """End the process and wait for it; idempotent."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        self._process.wait()


class _Server:
    def __init__(self, job: dict[str, Any]) -> None:
        import ctypes

        import llama_cpp.llama_cpp as llama

        self.llama = llama
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda *_: None
        )
        llama._lib.llama_log_set(self._quiet, None)
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(job["model"].encode(), params)
        self.n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        p = llama.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = job["n_cells"], job["n_batch"], job["n_ubatch"]
        p.n_threads = p.n_threads_batch = job["threads"]
        p.flash_attn_type = job["flash_attn"]
        p.type_k, p.type_v = job["types"]
        self.context = llama.llama_init_from_model(self.model, p)
        self.batch = llama.llama_batch_init(1, 0, 1)
        self.position = self.depth = 0

    def restore(self, file: str, position: int, depth: int) -> dict[str, Any]:
        import ctypes

        data = Path(file).read_bytes()
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        n = self.llama.llama_state_seq_set_data(self.context, buffer, len(data), 0)
        assert n == len(data)
        self.position, self.depth = position, depth
        while self.position < depth:
            self._append()
        return {}

    def decode(self, n: int) -> dict[str, Any]:
        start = time.perf_counter()
        for _ in range(n):
            self._append()
        self.llama.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        memory = self.llama.llama_get_memory(self.context)
        self.llama.llama_memory_seq_rm(memory, 0, self.depth, -1)
        self.position = self.depth
        return {"seconds": seconds}

    def _append(self) -> None:
        batch = self.batch
        batch.n_tokens, batch.token[0] = 1, (self.position * 7919) % self.n_vocab
        batch.pos[0], batch.n_seq_id[0], batch.seq_id[0][0] = self.position, 1, 0
        batch.logits[0] = True
        assert self.llama.llama_decode(self.context, batch) == 0
        self.position += 1


def main() -> None:
    """Serve until the pipe is closed."""
    job = json.loads(sys.argv[1])
    folder = job["folder"]
    if os.environ.get("LD_LIBRARY_PATH", "").split(":")[0] != folder:
        # libggml of the same pin lies beside the stock libraries, or in the folder above them
        os.environ["LD_LIBRARY_PATH"] = f"{folder}:{Path(folder).parent}"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    os.environ["LLAMA_CPP_LIB_PATH"] = folder
    server = _Server(job)
    patched = hasattr(server.llama._lib, "llama_ecokv_abi_version")
    print(json.dumps({"patched": patched}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(server, command.pop("do"))(**command)), flush=True)


if __name__ == "__main__":
    main()
