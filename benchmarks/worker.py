"""A process with one build of libllama that decodes on command: for ratios within one run.

Started with the library folder and the model; reads one JSON command a line, answers in JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

N_BATCH = 512


class Worker:
    """The other side of the pipe."""

    def __init__(self, lib_dir: Path, model: Path, threads: int, wrapper: list[str] = []) -> None:  # noqa: B006
        command = [*wrapper, sys.executable, __file__, str(lib_dir), str(model), str(threads)]
        environment = os.environ | {"GOMP_SPINCOUNT": "0"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def call(self, **command: Any) -> Any:
        """Run one command; its result."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process and wait for it."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


class _Server:
    def __init__(self, lib_dir: str, model: str, threads: int) -> None:
        os.environ["LLAMA_CPP_LIB_PATH"] = lib_dir
        import llama_cpp.llama_cpp as llama

        self.llama = llama
        self._quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(
            lambda *_: None
        )
        llama._lib.llama_log_set(self._quiet, None)
        llama.llama_backend_init()
        params = llama.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama.llama_model_load_from_file(model.encode(), params)
        self.n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.threads = threads
        self.ctx: Any = None

    def open(self, n_cells: int, window: int | None = None) -> None:
        """A new context; with ``window`` (patched build only) the query ring is on."""
        llama = self.llama
        if self.ctx:
            llama.llama_free(self.ctx)
        p = llama.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = n_cells, N_BATCH, N_BATCH
        p.n_threads = p.n_threads_batch = self.threads
        p.flash_attn_type = 1
        self.ctx = llama.llama_init_from_model(self.model, p)
        self.position = 0
        self.batch = llama.llama_batch_init(N_BATCH, 0, 1)
        if window is not None:
            os.environ["ECOKV_LIB_DIR"] = os.environ["LLAMA_CPP_LIB_PATH"]
            from ecokv_local import native

            native.check(native.lib.llama_ecokv_enable(self.ctx, native.Params(window, 8, 0)))

    def decode(self, n: int, step: int = 1) -> float:
        """Append n tokens, step at a time; seconds."""
        batch = self.batch
        start = time.perf_counter()
        for first in range(0, n, step):
            batch.n_tokens = min(step, n - first)
            for i in range(batch.n_tokens):
                batch.token[i] = (self.position * 7919) % self.n_vocab
                batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = self.position, 1, 0
                batch.logits[i] = i == batch.n_tokens - 1
                self.position += 1
            assert self.llama.llama_decode(self.ctx, batch) == 0
        self.llama.llama_synchronize(self.ctx)
        return time.perf_counter() - start

    def evict(self, budget: int, policy: str) -> dict[str, Any]:
        """Seconds of the whole call, and what the library measured."""
        from ecokv_local import native

        config = native.lib.llama_ecokv_config_default()
        config.budget = budget
        config.policy = native.lib.llama_ecokv_policy_by_name(policy.encode())
        result = native.Result()
        start = time.perf_counter()
        native.check(
            native.lib.llama_ecokv_evict(self.ctx, 0, ctypes.byref(config), ctypes.byref(result))
        )
        seconds = time.perf_counter() - start
        return result.to_dict() | {"seconds": seconds, "cache_bytes": self._cache_bytes(result)}

    def _cache_bytes(self, result: Any) -> int:
        """Bytes of the rows before the eviction."""
        from ecokv_local import native

        shape = native.Shape()
        native.check(native.lib.llama_ecokv_get_shape(self.ctx, ctypes.byref(shape)))
        row = native.lib.llama_ecokv_row_bytes
        layers = range(shape.n_layer)
        return int(result.n_before * sum(row(self.ctx, il, v) for il in layers for v in (0, 1)))

    def choose(self, budget: int, policy: str) -> float:
        """Seconds of features and plan, as an eviction takes them; changes nothing."""
        from ecokv_local import native

        config = native.lib.llama_ecokv_config_default()
        config.budget = budget
        config.policy = native.lib.llama_ecokv_policy_by_name(policy.encode())
        start = time.perf_counter()
        native.check(native.lib.llama_ecokv_choose(self.ctx, 0, ctypes.byref(config), None, None))
        return time.perf_counter() - start


def main() -> None:
    server = _Server(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    for line in sys.stdin:
        command = json.loads(line)
        result = getattr(server, command.pop("do"))(**command)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
