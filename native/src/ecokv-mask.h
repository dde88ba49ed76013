#pragma once

// Holes: ranks that a head does not have while others of its layer or other layers do. All share the cells, so the rows of a
// hole are masked for its head. Nothing here touches a graph until the first uneven eviction.

#include "ecokv-access.h"

#include "ggml-cpp.h"

struct ecokv_masks {
    // how the holes of a layer are masked
    enum mode {
        NONE,
        LAYER, // the same cells in every head: one mask, added to that of the graph
        HEADS, // one mask per KV head
    };

    struct layer {
        int32_t n_head_kv = 0;

        std::vector<uint8_t> hole; // [n_stream][n_head_kv][n_cells]

        mode          how  = NONE;
        ggml_tensor * mask = nullptr; // 0 or -inf, [n_cells, n_head_kv, n_stream], of the type of the graph's mask
    };

    int64_t n_cells  = 0;
    int64_t n_stream = 0;

    std::vector<layer> layers; // as in the cache

    uint64_t version = 0;     // of what a graph depends on: the modes and the tensors
    bool     dirty   = false; // the tensors are older than `hole`

    std::vector<std::pair<ggml_context_ptr, ggml_backend_buffer_ptr>> ctxs_bufs;

    void upload();
};

// LLAMA_ECOKV_OK, or why the holes of this kept set cannot be masked; makes the tensors if there are none yet
int32_t ecokv_masks_prepare(const ecokv_seq & seq, const ecokv_kept & kept);

// the kept rows moved to the cells dst: marks the holes, and remembers them in the state of the sequence
void ecokv_masks_set(const ecokv_seq & seq, const ecokv_kept & kept, const std::vector<uint32_t> & dst);

// the cells of a sequence are given up; before its state is reset
void ecokv_masks_forget(llama_ecokv_store & store, llama_seq_id seq_id);

// tensors for another number of cells, the holes stay; throws std::bad_alloc
void ecokv_masks_resize(llama_ecokv_store & store, llama_kv_cache & kv, ggml_type type, int64_t n_cells);
