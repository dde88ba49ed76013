"""A process with unpatched libraries that decodes on command: JSON in and out, a line each.

Run as a program. It uses nothing of this package, which would load the patched libraries.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Server:
    """A model and one cache."""

    def __init__(self, job: dict[str, Any]) -> None:
        import llama_cpp.llama_cpp as llama

        self.llama, self.job = llama, job
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda *_: None
        )
        llama._lib.llama_log_set(self._quiet, None)
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        params.n_gpu_layers = job["gpu_layers"]
        self.model = llama.llama_model_load_from_file(job["model"].encode(), params)
        _require(self.model, "the model cannot be loaded")
        self.adapters = [
            llama.llama_adapter_lora_init(self.model, path.encode()) for path in job["lora"]
        ]
        self.batch = llama.llama_batch_init(job["n_batch"], 0, 1)
        self.context: Any = None
        self.position = 0

    @property
    def patched(self) -> bool:
        """Whether these are our libraries after all."""
        return hasattr(self.llama._lib, "llama_ecokv_abi_version")

    def open(self, n_cells: int, warm: Sequence[int]) -> dict[str, Any]:
        """A new cache."""
        llama, job = self.llama, self.job
        if self.context:
            llama.llama_free(self.context)
        p = llama.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = n_cells, job["n_batch"], job["n_ubatch"]
        p.n_threads = p.n_threads_batch = job["threads"]
        p.flash_attn_type = job["flash_attn"]
        p.type_k, p.type_v = job["types"]
        p.no_perf = True
        self.context = llama.llama_init_from_model(self.model, p)
        _require(self.context, f"no context of {n_cells} cells")
        if self.adapters:
            count = len(self.adapters)
            pointers = (llama.llama_adapter_lora_p_ctypes * count)(*self.adapters)
            scales = (ctypes.c_float * count)(*[1.0] * count)
            llama.llama_set_adapters_lora(self.context, pointers, count, scales)
        self.position = 0
        if warm:
            self.read(warm)
            llama.llama_memory_clear(llama.llama_get_memory(self.context), True)
            self.position = 0
        return {}

    def restore(self, file: str, position: int) -> dict[str, Any]:
        """Rows of a file, up to ``position``."""
        data = Path(file).read_bytes()
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        n = self.llama.llama_state_seq_set_data(self.context, buffer, len(data), 0)
        _require(n == len(data), "the rows do not fit: is it another version of llama.cpp?")
        self.position = position
        return {}

    def read(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Append tokens in batches."""
        return self._append(tokens, self.job["n_batch"])

    def decode(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Append tokens one by one."""
        return self._append(tokens, 1)

    def _append(self, tokens: Sequence[int], step: int) -> dict[str, Any]:
        batch, start = self.batch, time.perf_counter()
        for first in range(0, len(tokens), step):
            part = tokens[first : first + step]
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i] = token, self.position + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = i == len(part) - 1
            status = self.llama.llama_decode(self.context, batch)
            _require(status == 0, f"llama_decode failed with {status}")
            self.position += len(part)
        self.llama.llama_synchronize(self.context)
        return {"seconds": time.perf_counter() - start}


def _require(good: Any, what: str) -> None:
    if not good:
        raise SystemExit(what)


def main() -> None:
    """Serve until the pipe is closed."""
    here = str(Path(__file__).parent)
    sys.path[:] = [path for path in sys.path if path != here]  # its modules are not for import
    server = Server(json.loads(sys.argv[1]))
    print(json.dumps({"patched": server.patched}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(getattr(server, command.pop("do"))(**command)), flush=True)


if __name__ == "__main__":
    main()
