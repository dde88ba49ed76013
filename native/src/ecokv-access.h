#pragma once

// The only door to the private members of llama_context and llama_kv_cache.

#include "ecokv-common.h"
#include "ecokv-store.h"

#include "llama-kv-cache.h"

#include <memory>

struct llama_context;
struct llama_ubatch;

// one evictable layer of the cache
struct ecokv_layer {
    int32_t il;        // layer of the model
    int32_t n_head;    // query heads
    int32_t n_head_kv;
    int32_t d_k;       // size of a key of one head
    int32_t d_v;

    ggml_tensor * k;   // [d_k*n_head_kv, n_cells - offset] of one stream
    ggml_tensor * v;   // [d_v*n_head_kv, n_cells - offset], transposed: so many values per channel
    bool     v_trans;
    uint32_t offset;   // cell of row 0: cells before it are holes of all heads, and not held

    int32_t gqa() const { return n_head/n_head_kv; }
};

// one sequence in the cache
struct ecokv_seq {
    llama_context     * ctx;
    llama_kv_cache    * kv;
    llama_ecokv_store * store;
    llama_kv_cells    * cells; // of the stream of the sequence
    llama_seq_id        id;
    uint32_t            strm;
    bool                v_trans;
    bool                shared; // a cell belongs to another sequence too

    int32_t n_head_kv; // maximum over the layers

    std::vector<ecokv_layer> layers;
    std::vector<uint32_t>    cell; // rank -> cell, by position

    int32_t n() const { return (int32_t) cell.size(); }

    // ranks that a head does not have: [0, first)
    int32_t first(int32_t layer, int32_t head) const {
        const auto & holes = store->seqs[id].first;
        return holes.empty() ? 0 : holes[(size_t) layer*n_head_kv + head];
    }
    bool has_holes(int32_t layer) const;

    // rank -> row of the tensors of a layer; 0 for holes that it does not hold
    std::vector<uint32_t> rows(int32_t layer) const;
};

struct llama_ecokv_access {
    // the evictable cache of a context, or null with the reason in status
    static llama_kv_cache * find(llama_context * ctx, int32_t & status);

    static std::shared_ptr<llama_ecokv_store> & store(llama_kv_cache & kv);
    static llama_ecokv_store * store_of(const llama_kv_cache * kv);

    // installs (or removes) the store; the next decode builds its graph anew
    static void install(llama_context & ctx, llama_kv_cache & kv, std::shared_ptr<llama_ecokv_store> store);

    // number of rows, without the cost of opening the sequence
    static int32_t n_rows(llama_context * ctx, llama_seq_id seq_id);

    static int32_t open(llama_context * ctx, llama_seq_id seq_id, ecokv_seq & seq);

    // the sliding-window half of the cache of a context, null: there is none
    static llama_kv_cache * window_of(llama_context & ctx);

    static llama_kv_cells & cells_of(llama_kv_cache & kv, llama_seq_id seq_id);

    // cells of a sequence by position (and raster order), without those that left the window
    static std::vector<uint32_t> cells_by_pos(llama_kv_cache & kv, llama_seq_id seq_id);

    static std::vector<ecokv_layer> layers(llama_kv_cache & kv, uint32_t strm);

    static void shape(llama_kv_cache & kv, llama_ecokv_shape & shape);

    // pending copies and shifts are carried out, the backends are idle
    static void settle(llama_context & ctx, llama_kv_cache & kv);
    static void settle(const ecokv_seq & seq) { settle(*seq.ctx, *seq.kv); }

    // buffers of a cache
    struct layout {
        uint32_t n_cells;
        std::vector<llama_kv_cache::kv_layer> layers; // empty: out of memory
        std::vector<std::pair<ggml_context_ptr, ggml_backend_buffer_ptr>> ctxs_bufs;
    };

    // zeroed buffers like those of a cache, for another number of cells, less offset[i] in layer i
    static layout new_layout(const llama_kv_cache & kv, uint32_t n_cells, const std::vector<uint32_t> & offset);

    // the old buffers are freed; what is known of the cells stays
    static void replace(llama_kv_cache & kv, layout && layout);

    static uint32_t n_used(const llama_kv_cache & kv, uint32_t strm); // highest cell in use + 1

    // the next decode reserves its memory and builds its graph anew
    static void rebuild(llama_context & ctx);
    // ... now: then the layers of the store are known as graphs use them
    static void reserve(llama_context & ctx);

    static const char * arch(const llama_context & ctx);
    static bool rotated(const llama_kv_cache & kv, bool value); // K or V is stored with a Hadamard rotation

    static int32_t n_threads(const llama_context & ctx);

    // the scheduler of the store, reset and with room for n_nodes
    static ggml_backend_sched_t sched(llama_context & ctx, llama_ecokv_store & store, size_t n_nodes);
    static size_t sched_bytes(llama_context & ctx, ggml_backend_sched_t sched);

    static uint32_t head    (const llama_kv_cache & kv, uint32_t strm); // where the search for free cells begins
    static void     set_head(llama_kv_cache & kv, uint32_t strm, uint32_t head);
    static void     set_head(const ecokv_seq & seq, uint32_t head) { set_head(*seq.kv, seq.strm, head); }
    static void clear_seq(const ecokv_seq & seq);

    // of a batch in the works
    static llama_kv_cache * cache_of(const llama_kv_cache_context & mctx);
    static const llama_kv_cache::slot_info & slots_of(const llama_kv_cache_context & mctx);
    static uint32_t stream_of(const llama_kv_cache & kv, llama_seq_id seq_id);
    static int32_t  layer_of(const llama_kv_cache & kv, int32_t il); // index in the cache, -1: none
};

// valid ring slots of a sequence, at most the window, oldest first
std::vector<uint32_t> ecokv_valid_slots(const ecokv_seq & seq);

// rank of a cell in the sequence, -1 if it does not belong to it
int32_t ecokv_rank_of(const ecokv_seq & seq, uint32_t cell);

// last rank that the query of a valid slot sees
int32_t ecokv_rank_of_slot(const ecokv_seq & seq, const llama_ecokv_store::slot & slot);

// true position of every row, [n_layer][n_head_kv][n]; -1: a hole
void ecokv_true_positions(const ecokv_seq & seq, llama_pos * pos);
