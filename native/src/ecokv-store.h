#pragma once

// The query ring and what belongs to a sequence.

#include "llama-ecokv.h"

#include "ecokv-auto.h"

#include "ggml-cpp.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

class llama_kv_cache;

struct ecokv_masks;

struct llama_ecokv_store {

    struct layer {
        int32_t       il     = -1;
        int32_t       n_head = 0;
        ggml_tensor * q      = nullptr; // F32 [d*n_head, n_seq*n_ring + 1], on the buffer type of the layer's K; the last row is trash

        // seen when the graph was built
        float         kq_scale = 0.0f;
        ggml_tensor * sinks    = nullptr; // F32 [n_head], attention sinks of the model
    };

    // a ring slot; valid only while the cell still holds this position
    struct slot {
        static constexpr uint32_t NO_CELL = UINT32_MAX; // the row was evicted, the query still votes

        int64_t   tick = -1; // -1: empty
        llama_pos pos  = -1;
        uint32_t  cell =  0;
    };

    // the evicted part of a sequence: its first n_rows rows differ between heads or are not a full prefix
    struct lossy {
        bool                   edited      = false;
        int32_t                n_evictions = 0;
        int32_t                n_rows      = 0;
        llama_pos              safe_pos    = 0;
        std::vector<llama_pos> pos; // true positions, [n_layer][n_head_kv][n_rows]; -1: a hole

        std::vector<int32_t>   first;     // [n_layer][n_head_kv] holes, which come first; empty: none
        std::vector<uint32_t>  hole_cell; // [max(first)] cells of the ranks that are a hole somewhere
    };

    // an index of rows that a graph stores to: cells, less the offset of the layer
    struct rows {
        ggml_tensor * idxs;   // I64 [n_tokens], or [n_tokens*n_channels] where V is transposed
        uint32_t      offset;
        int64_t       n_rows; // of the layer
    };

    llama_context        * ctx   = nullptr;
    const llama_kv_cache * owner = nullptr; // the evictable cache; a sliding-window sibling shares the store for its guards

    llama_ecokv_params params = {};

    std::unique_ptr<ecokv_auto> automatic; // null: the program evicts

    uint32_t n_seq  = 0;
    uint32_t n_ring = 0; // slots per sequence: window + rollback
    int64_t  tick   = 0;

    std::vector<layer>    layers; // as in the cache
    std::vector<slot>     slots;  // [n_seq][n_ring]
    std::vector<uint32_t> head;   // [n_seq] next slot
    std::vector<lossy>    seqs;   // [n_seq]

    std::vector<llama_ecokv_counters> counters; // [n_layer]

    std::shared_ptr<ecokv_masks> masks; // null until the first uneven eviction

    std::vector<uint32_t> offset;        // [n_layer] cells that a layer does not hold, empty: the cache was never resized
    uint64_t              n_layouts = 0; // so far
    std::vector<rows>     pending;       // of the graph that is being built

    std::vector<std::pair<ggml_context_ptr, ggml_backend_buffer_ptr>> ctxs_bufs;

    // a scheduler of our own: the scheduler of the context and its reusable graphs are never touched
    ggml_backend_sched_ptr sched;
    size_t                 sched_nodes = 0;

    void   reset (llama_seq_id seq_id); // < 0: all
    void   adopt (const llama_ecokv_store & other); // takes over the states and queries of another store of the same cache
    void   rewind(llama_seq_id seq_id, llama_pos p0); // drops the newest slots at or after p0: drafts that are rolled back
    size_t bytes() const;
};
