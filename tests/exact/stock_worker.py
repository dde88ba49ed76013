"""Logits of the unpatched libllama, in a process of its own: two builds do not fit into one.

Reads a job as JSON on stdin, writes ``[n_steps, n_vocab]`` f32 to the file it names. Uses nothing
of this package.
"""

import ctypes
import json
import os
import sys

import numpy as np


def main() -> None:
    job = json.load(sys.stdin)
    os.environ["LLAMA_CPP_LIB_PATH"] = job["lib_dir"]
    import llama_cpp.llama_cpp as llama

    quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
    llama._lib.llama_log_set(quiet, None)
    assert not hasattr(llama._lib, "llama_ecokv_abi_version"), "this is the patched library"
    llama.llama_backend_init()
    params = llama.llama_model_default_params()
    params.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(job["model"].encode(), params)

    def context():
        p = llama.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch = job["n_cells"], 512, 512
        p.n_threads = p.n_threads_batch = 1
        p.flash_attn_type = int(job["flash_attn"])
        p.type_k, p.type_v = job["type_k"], job["type_v"]
        p.no_perf = True
        return llama.llama_init_from_model(model, p)

    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def decode(ctx, tokens, position):
        batch = llama.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i == len(tokens) - 1
        assert llama.llama_decode(ctx, batch) == 0
        llama.llama_batch_free(batch)
        return np.ctypeslib.as_array(llama.llama_get_logits_ith(ctx, -1), (n_vocab,)).copy()

    ctx = context()
    prompt = job["prompt"]
    for start in range(0, len(prompt), 512):
        last = decode(ctx, prompt[start : start + 512], start)
    if job["kept"] is not None:
        # a cache with holes differs from itself compacted on quantised weights: save and restore
        memory = llama.llama_get_memory(ctx)
        for position in sorted(set(range(len(prompt))) - set(job["kept"])):
            assert llama.llama_memory_seq_rm(memory, 0, position, position + 1)
        size = llama.llama_state_seq_get_size(ctx, 0)
        state = (ctypes.c_uint8 * size)()
        assert llama.llama_state_seq_get_data(ctx, state, size, 0) == size
        llama.llama_free(ctx)
        ctx = context()
        assert llama.llama_state_seq_set_data(ctx, state, size, 0) == size
    steps = [last]
    for i, token in enumerate(job["continuation"]):
        steps.append(decode(ctx, [token], len(prompt) + i))
    np.save(job["out"], np.stack(steps))


main()
