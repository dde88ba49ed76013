#pragma once

// What the patched files of llama.cpp call. Every hook is a no-op while the store is null,
// so that without a budget the graph is node for node the upstream one.

#include "llama.h"

struct ggml_tensor;
struct ggml_context;
struct llm_graph_context;

class  llama_kv_cache;
class  llama_kv_cache_context;
class  llama_io_read_i;
class  llama_io_write_i;
struct llama_context;
struct llama_batch_ext;

struct llama_ecokv_access; // friend of the patched classes: all access to their private members goes through it
struct llama_ecokv_store;  // what eviction keeps beside a cache: the query ring and the state of each sequence

// graph: keep the last post-RoPE queries of each sequence of the ubatch in the ring of layer il
// call after both K and V are stored: a node between K's rotation and its store would break their fusion
void llama_ecokv_build_store_q(
        const llm_graph_context      & graph,
        const llama_kv_cache_context * mctx,
        ggml_tensor                  * q_cur,
        ggml_tensor                  * sinks,
        float                          kq_scale,
        int                            il);

// graph: attention where heads of a layer lack different rows, null where upstream's is right. kq_mask is replaced where all
// heads lack the same rows. both only after an eviction with uneven budgets
ggml_tensor * llama_ecokv_build_attn(
        const llm_graph_context & graph,
        ggml_tensor             * q,
        ggml_tensor             * k,
        ggml_tensor             * v,
        ggml_tensor            *& kq_mask,
        float                     kq_scale,
        int                       il);

// the contents of the cache were dropped or replaced (seq_id < 0: of every sequence)
void llama_ecokv_on_reset(llama_ecokv_store * store, llama_seq_id seq_id);

// every sequence but this one is dropped
void llama_ecokv_on_seq_keep(llama_ecokv_store * store, llama_seq_id seq_id);

// false if [p0, p1) reaches into the evicted part of a sequence: the removal must fail and change nothing
bool llama_ecokv_on_seq_rm(const llama_kv_cache * kv, llama_seq_id seq_id, llama_pos p0, llama_pos p1);

// false if the copy must not happen: part of an evicted sequence is no exact prefix
bool llama_ecokv_on_seq_cp(llama_ecokv_store * store, llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1);

// graph: views of a layer that does not hold the first cells, and the rows that its new tokens go to. null, and idxs itself, for others
ggml_tensor * llama_ecokv_get_k(const llama_kv_cache * kv, ggml_context * ctx, int il, uint32_t n_kv);
ggml_tensor * llama_ecokv_get_v(const llama_kv_cache * kv, ggml_context * ctx, int il, uint32_t n_kv);
ggml_tensor * llama_ecokv_idxs (const llama_kv_cache * kv, ggml_context * ctx, ggml_tensor * idxs, int il);

// tokens are about to be placed: layers that do not hold the first cells get them back if these are free by now.
// false if there is no memory for it
bool llama_ecokv_on_prepare(llama_kv_cache * kv);

// true: an evicted sequence, which the format of llama.cpp cannot hold, was written with all that belongs to it. throws if it
// cannot be saved, or if all sequences are to be (seq_id < 0)
bool llama_ecokv_on_state_write(const llama_kv_cache * kv, llama_io_write_i & io, llama_seq_id seq_id);

// n_stream is the first word of a state. true: it was such a sequence and has been read. false: rows will be read, all layers
// hold all cells again. throws if it cannot be
bool llama_ecokv_on_state_read(llama_kv_cache * kv, llama_io_read_i & io, llama_seq_id seq_id, uint32_t n_stream);

// false if positions must not be rewritten (seq_id < 0: of any sequence)
bool llama_ecokv_can_shift(const llama_ecokv_store * store, llama_seq_id seq_id);

// cells that a new cache begins with: kv_size, unless the context was asked to begin with fewer. a sliding window (n_swa > 0) has
// a size of its own
uint32_t llama_ecokv_initial_size(uint32_t kv_size, uint32_t n_swa);

// a context was made: eviction begins where the environment asks for it. throws with the reason if it cannot
void llama_ecokv_on_create(llama_context * ctx);

// a batch will be decoded: with a budget of the environment, its sequences are evicted and the cache gets room for it
void llama_ecokv_on_decode(llama_context * ctx, const llama_batch_ext & batch);

// with a budget of the environment, the lowest position that an evicted sequence can be rolled back to, if pos_min is not higher:
// what programs ask for before they use a common prefix again. 0: nothing to say
llama_pos llama_ecokv_pos_min(const llama_ecokv_store * store, llama_seq_id seq_id, llama_pos pos_min);
