#pragma once

// ECOKV: keep the KV cache of a llama_context inside a fixed budget
//
// words used here:
//   cell      a slot of the KV cache; rows of K and V of every layer live in it
//   rank      index of a row of a sequence in cell order, 0 .. n - 1 (what features, plans and kept sets speak in)
//   hole      a rank that a head does not have: heads may keep different numbers of pairs, but share the cells. The ranks
//             of a head are right-aligned, so that holes come first, and the newest tokens are at the same rank everywhere
//   position  where a token stands in the text; positions only ever grow, and are never rewritten by an eviction
//
// life of an eviction, always between two calls of llama_decode:
//   llama_ecokv_features  read-only: what the policies need to know of every row
//   llama_ecokv_plan      pure:      which ranks of every layer and KV head stay
//   llama_ecokv_apply     the only writer: moves the kept rows to the front, frees the other cells
//   llama_ecokv_evict     the three in one call

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

#define LLAMA_ECOKV_ABI_VERSION 4

enum llama_ecokv_status {
    LLAMA_ECOKV_OK              =  0,
    LLAMA_ECOKV_ERR_MEMORY      = -1, // the memory of this model is not a plain attention KV cache
    LLAMA_ECOKV_ERR_MODEL       = -2, // the attention of this model cannot be scored (ALiBi, relative buckets, ...)
    LLAMA_ECOKV_ERR_STATE       = -3, // not enabled, or nothing to score with (no query in the ring)
    LLAMA_ECOKV_ERR_PARAM       = -4, // an argument is out of range
    LLAMA_ECOKV_ERR_BUDGET      = -5, // the budget is below sinks + recents + 1, or below what groups are sure of
    LLAMA_ECOKV_ERR_SHARED      = -6, // the cells belong to several sequences or contexts
    LLAMA_ECOKV_ERR_NONFINITE   = -7, // a protected token holds NaN or Inf
    LLAMA_ECOKV_ERR_COMPUTE     = -8, // a backend failed; nothing was changed
    LLAMA_ECOKV_ERR_CLEARED     = -9, // a backend failed in the middle of an apply; the sequence was cleared
    LLAMA_ECOKV_ERR_ALLOC       = -10, // out of memory
    LLAMA_ECOKV_ERR_DATA        = -11, // a saved state is damaged, of another version, or of another model or cache
};

enum llama_ecokv_policy {
    LLAMA_ECOKV_POLICY_NONE      = 0,
    LLAMA_ECOKV_POLICY_ECOKV     = 1,
    LLAMA_ECOKV_POLICY_SNAPKV    = 2,
    LLAMA_ECOKV_POLICY_STREAMING = 3,
    LLAMA_ECOKV_POLICY_RANDOM    = 4,
    LLAMA_ECOKV_POLICY_MIXKV     = 5,
    LLAMA_ECOKV_POLICY_KEYDIFF   = 6,
    LLAMA_ECOKV_POLICY_EUCLID    = 7,
    LLAMA_ECOKV_POLICY_KNORM     = 8,
    LLAMA_ECOKV_POLICY_TOVA      = 9,
    LLAMA_ECOKV_POLICY_CRITICAL  = 10,
    LLAMA_ECOKV_POLICY_VATP      = 11,
    LLAMA_ECOKV_POLICY_PYRAMID   = 12, // snapkv with LLAMA_ECOKV_LAYERS_PYRAMID
    LLAMA_ECOKV_POLICY_ADA       = 13, // snapkv with LLAMA_ECOKV_HEADS_ADA
    LLAMA_ECOKV_POLICY_COUNT
};

// added to a policy: its score takes the place of the importance in the score of ecokv ("snapkv+ecokv")
#define LLAMA_ECOKV_PLUS_ECOKV 0x100

enum llama_ecokv_compose     { LLAMA_ECOKV_COMPOSE_OR, LLAMA_ECOKV_COMPOSE_SUM, LLAMA_ECOKV_COMPOSE_MAX, LLAMA_ECOKV_COMPOSE_PROD };
enum llama_ecokv_head_weight { LLAMA_ECOKV_HEAD_BOTH,  LLAMA_ECOKV_HEAD_COS,    LLAMA_ECOKV_HEAD_EUCLID, LLAMA_ECOKV_HEAD_FIXED };
enum llama_ecokv_value_norm  { LLAMA_ECOKV_VALUE_OFF,  LLAMA_ECOKV_VALUE_ADD,   LLAMA_ECOKV_VALUE_MUL };
enum llama_ecokv_pooling     { LLAMA_ECOKV_POOL_AVG,   LLAMA_ECOKV_POOL_MAX };
enum llama_ecokv_gqa         { LLAMA_ECOKV_GQA_MEAN,   LLAMA_ECOKV_GQA_MAX };

// how the budget is shared out between layers, and between the KV heads of a layer; the total is always the same
enum llama_ecokv_layer_budgets { LLAMA_ECOKV_LAYERS_EVEN, LLAMA_ECOKV_LAYERS_PYRAMID };
enum llama_ecokv_head_budgets  { LLAMA_ECOKV_HEADS_EVEN,  LLAMA_ECOKV_HEADS_ADA };

// where features and rows are worked on; AUTO takes HOST wherever the cache lies in host memory
enum llama_ecokv_path { LLAMA_ECOKV_PATH_AUTO, LLAMA_ECOKV_PATH_HOST, LLAMA_ECOKV_PATH_GRAPH };

// of a context
struct llama_ecokv_params {
    int32_t n_window;   // queries per sequence that vote
    int32_t n_rollback; // extra ring slots, so that rolled-back drafts do not shrink the window
    int32_t path;       // enum llama_ecokv_path
};

// rows that belong together: an image, or a text that must not be lost. true positions [p0, p1)
struct llama_ecokv_group {
    llama_pos p0;
    llama_pos p1;
    int32_t   floor; // KV pairs of it that stay at least in every layer and KV head; < 0: all of them
};

// of one eviction
struct llama_ecokv_config {
    int32_t  policy;            // enum llama_ecokv_policy, LLAMA_ECOKV_PLUS_ECOKV may be added
    int32_t  budget;            // KV pairs per layer and KV head (on average), sinks and recents included
    int32_t  n_sink;            // first tokens that always stay
    int32_t  n_recent;          // last tokens that always stay, at least 1
    int32_t  kernel;            // width of the pooling of the attention, odd
    int32_t  pooling;           // enum llama_ecokv_pooling
    int32_t  gqa;               // enum llama_ecokv_gqa: how attention is taken over the query heads of a KV head
    int32_t  compose;           // enum llama_ecokv_compose
    int32_t  head_weight;       // enum llama_ecokv_head_weight
    int32_t  value_norm;        // enum llama_ecokv_value_norm
    float    lambda;            // share of the Euclidean distance in the diversity, 0 .. 1
    float    head_weight_fixed; // with LLAMA_ECOKV_HEAD_FIXED, 0 .. 1
    uint32_t seed;              // with LLAMA_ECOKV_POLICY_RANDOM; llama_ecokv_evict adds the evictions of the sequence so far
    int32_t  layer_budgets;     // enum llama_ecokv_layer_budgets
    int32_t  head_budgets;      // enum llama_ecokv_head_budgets
    float    beta;              // with LLAMA_ECOKV_LAYERS_PYRAMID: the last layer keeps 1/beta of the budget, at least 1
    float    floor;             // with LLAMA_ECOKV_HEADS_ADA: share of the budget that every head is sure of, 0 .. 1

    const struct llama_ecokv_group * groups; // [n_groups], ascending and apart; not with uneven budgets
    int32_t n_groups;
};

// sizes of the evictable part of the cache (with sliding-window models: the full-attention layers)
struct llama_ecokv_shape {
    int32_t n_layer;       // evictable layers
    int32_t n_layer_other; // layers of the model whose cache is bounded already (sliding window) and is left alone
    int32_t n_head_kv;     // largest number of KV heads of a layer
    int32_t n_cells;       // allocated cells per stream
    int32_t n_stream;
    int32_t n_seq_max;
    int32_t v_trans;       // V is stored transposed (no flash attention)
    int32_t on_host;       // every evictable layer lies in host memory
};

// features of every row: arrays [n_layer][n_head_kv][n], owned by the caller; NULL is not wanted
struct llama_ecokv_features {
    int32_t n_layer;
    int32_t n_head_kv;
    int32_t n;          // rows of the sequence
    int32_t n_sink;     // the candidates [n_sink, n - n_recent) that centroids and means were taken over
    int32_t n_recent;
    int32_t n_query;    // window queries that voted
    int32_t gqa;        // enum llama_ecokv_gqa, an input
    const int32_t * layer_n_head_kv; // [n_layer], NULL: n_head_kv everywhere

    float * attn;       // a_i: mean attention of the window, over the queries that see i and (see gqa) the query heads of the group
    float * attn_last;  // attention of the last query, over the query heads of the group
    float * key_norm;   // |k_i|; NaN marks a row whose K or V is not finite
    float * key_cos;    // c_i = 1 - u_i . m
    float * key_euc;    // e_i = |k_i - mu|
    float * value_norm; // |v_i|
    float * head_m2;    // |m|^2, [n_layer][n_head_kv]

    int32_t * head_first; // [n_layer][n_head_kv] first rank that is no hole, NULL: 0 everywhere. features of holes mean nothing

    llama_pos * pos; // true positions, -1: a hole; groups need them
};

struct llama_ecokv_result {
    int32_t n_before;      // rows (of the head that has most) before
    int32_t n_after;       // and after
    int32_t n_query;       // window queries that voted (0: the policy does not ask for any)
    int32_t n_nonfinite;   // (layer, head, row) triples left out for NaN or Inf
    int32_t n_layer_host;  // layers whose features came from the host path
    int32_t n_layer_graph; // layers whose features came from the graph path
    int32_t n_heads;       // KV heads of all evictable layers together
    int64_t n_pairs_before; // KV pairs of all of them: rows without holes
    int64_t n_pairs_after;
    double  t_features_ms;
    double  t_plan_ms;
    double  t_apply_ms;
    int64_t scratch_bytes; // largest scratch memory of the three steps
    int64_t pair_bytes;    // K and V of the pairs that stayed
    int64_t hole_bytes;    // K and V of the holes between them: not saved, see llama_ecokv_resize and llama_ecokv_hole_bytes
};

// an evictable layer, and how its attention scores
struct llama_ecokv_layer_info {
    int32_t il;        // layer of the model
    int32_t n_head;
    int32_t n_head_kv;
    int32_t d_k;       // size of a key of one head
    int32_t d_v;
    int32_t type_k;    // enum ggml_type
    int32_t type_v;
    int32_t has_sinks; // the model has attention sinks
    float   kq_scale;  // 0 before the first decode
    float   soft_cap;  // of the logits, 0: none
};

// sums over the life of a context, per evictable layer
struct llama_ecokv_counters {
    int32_t il;            // layer of the model
    int32_t n_head_kv;
    int64_t n_evictions;
    int64_t n_pairs_seen;  // KV pairs (over all KV heads) present before the evictions
    int64_t n_pairs_kept;  // KV pairs that stayed
};

//
// errors, version
//

LLAMA_API int32_t      llama_ecokv_abi_version(void);
LLAMA_API const char * llama_ecokv_status_text(int32_t status);
LLAMA_API const char * llama_ecokv_last_error (void); // details of the last failure on this thread, "" if none

LLAMA_API struct llama_ecokv_params llama_ecokv_params_default(void);
LLAMA_API struct llama_ecokv_config llama_ecokv_config_default(void);

LLAMA_API const char * llama_ecokv_policy_name   (int32_t policy);       // NULL if unknown
LLAMA_API int32_t      llama_ecokv_policy_by_name(const char * name);    // < 0 if unknown
LLAMA_API int32_t      llama_ecokv_budget_min    (const struct llama_ecokv_config * config); // smallest budget that works

// for llama_set_abort_callback: true once the int32_t that data points to is not 0. stops a decode between two nodes of its
// graph, without a call into the program that set it
LLAMA_API bool llama_ecokv_stop_requested(void * data);

//
// context
//

// LLAMA_ECOKV_OK if the memory of the context can be evicted, else the reason
LLAMA_API int32_t llama_ecokv_check  (struct llama_context * ctx);
// on an enabled context: new settings, the states and queries of its sequences stay
LLAMA_API int32_t llama_ecokv_enable (struct llama_context * ctx, struct llama_ecokv_params params);
LLAMA_API int32_t llama_ecokv_disable(struct llama_context * ctx);

LLAMA_API int32_t llama_ecokv_get_shape   (struct llama_context * ctx, struct llama_ecokv_shape * shape);
LLAMA_API int32_t llama_ecokv_get_counters(struct llama_context * ctx, struct llama_ecokv_counters * counters, int32_t n_max); // returns n_layer
LLAMA_API int64_t llama_ecokv_ring_bytes  (struct llama_context * ctx);

// programs that do not call any of this run within a budget, unchanged, if the environment says so when llama_init_from_model is
// called: LLAMA_ECOKV_BUDGET (KV pairs), and if wanted LLAMA_ECOKV_POLICY and LLAMA_ECOKV_SLACK. the cache begins with budget + slack
// cells; a sequence that would get more is evicted before a decode, and the cache grows by what a batch needs beyond that. a context
// that cannot be evicted is not made. llama_ecokv_enable on such a context ends it: then the program evicts

// llama_init_from_model without regard to the environment; caches of full attention begin with n_cells cells for each sequence,
// rounded up to a multiple of 256, and grow with llama_ecokv_resize up to the context size: that is what params say, and RoPE
// factors follow it. fewer than all of them only for memories that llama_ecokv_enable takes
LLAMA_API struct llama_context * llama_ecokv_init_from_model(struct llama_model * model, struct llama_context_params params, int32_t n_cells);

// another number of cells per stream (rounded up to a multiple of 256): new buffers, the rows are copied, the old ones are freed.
// positions and the context size of the model do not change. layers whose heads all lack the first cells (pyramid) hold fewer.
// needs an enabled context. returns the cells, < 0 on error: then nothing was changed
LLAMA_API int32_t llama_ecokv_resize  (struct llama_context * ctx, int32_t n_cells);
// bytes of the buffers of K and V of the evictable layers; works without enabling
LLAMA_API int64_t llama_ecokv_kv_bytes(struct llama_context * ctx);

//
// sequence; these need an enabled context
//

LLAMA_API int32_t llama_ecokv_n_rows  (struct llama_context * ctx, llama_seq_id seq_id); // rows held, < 0 on error
LLAMA_API int32_t llama_ecokv_n_query (struct llama_context * ctx, llama_seq_id seq_id); // valid queries in the ring
LLAMA_API int32_t llama_ecokv_is_lossy(struct llama_context * ctx, llama_seq_id seq_id); // 1 after an eviction
// lowest position from which the sequence may be rolled back (seq_rm) and continued exactly; 0 before any eviction
LLAMA_API int32_t llama_ecokv_safe_pos(struct llama_context * ctx, llama_seq_id seq_id);

// bytes of K and V that holes of the sequence take now
LLAMA_API int64_t llama_ecokv_hole_bytes(struct llama_context * ctx, llama_seq_id seq_id);

// fills the arrays that are not NULL and the sizes; n_sink, n_recent are inputs. needs llama_ecokv_n_rows floats per (layer, head)
LLAMA_API int32_t llama_ecokv_features_get(struct llama_context * ctx, llama_seq_id seq_id, struct llama_ecokv_features * features);

// pure. the most ranks per (layer, head) that a plan for n rows returns: min(n, budget) where budgets are even
LLAMA_API int32_t llama_ecokv_plan_max(const struct llama_ecokv_config * config, int32_t n_layer, int32_t n_head_kv, int32_t n);

// pure. KV pairs per head (on average) of every layer for n rows: [n_layer]
LLAMA_API int32_t llama_ecokv_layer_budgets(const struct llama_ecokv_config * config, int32_t n_layer, int32_t n, int32_t * budgets);

// pure. keep: [n_layer][n_head_kv][llama_ecokv_plan_max] ranks, ascending, -1 for holes, which come first.
// returns the ranks per (layer, head), < 0 on error
LLAMA_API int32_t llama_ecokv_plan(const struct llama_ecokv_features * features, const struct llama_ecokv_config * config, int32_t * keep);

// pure. scores of one (layer, head): [n] floats, -inf for rows that are left out, +inf for protected ones
LLAMA_API int32_t llama_ecokv_scores(const struct llama_ecokv_features * features, const struct llama_ecokv_config * config,
        int32_t layer, int32_t head, float * scores);

// features and plan of a sequence: which ranks an eviction would keep, changes nothing. keep: [n_layer][n_head_kv][llama_ecokv_plan_max],
// n where nothing would go; keep and result may be NULL. returns the ranks per (layer, head), < 0 on error
LLAMA_API int32_t llama_ecokv_choose(struct llama_context * ctx, llama_seq_id seq_id, const struct llama_ecokv_config * config,
        int32_t * keep, struct llama_ecokv_result * result);

// keep: [n_layer][n_head_kv][n_keep] ranks, strictly ascending; a head may have less: -1 for its first ranks
LLAMA_API int32_t llama_ecokv_apply(struct llama_context * ctx, llama_seq_id seq_id, const int32_t * keep, int32_t n_keep);

// result may be NULL
LLAMA_API int32_t llama_ecokv_evict(struct llama_context * ctx, llama_seq_id seq_id, const struct llama_ecokv_config * config,
        struct llama_ecokv_result * result);

//
// a sequence as bytes: its rows, positions, what was evicted of it, and the queries that vote. also without enabling.
// evicted rows and holes take no bytes; of sliding-window layers the rows inside the window are part of it
//

// bytes that it takes now, < 0 on error
LLAMA_API int64_t llama_ecokv_state_size (struct llama_context * ctx, llama_seq_id seq_id);
// returns the bytes written, < 0 on error
LLAMA_API int64_t llama_ecokv_state_get  (struct llama_context * ctx, llama_seq_id seq_id, void * data, size_t size);
// whether a state fits the context: undamaged, the same layers and cache types, enough cells. changes nothing
LLAMA_API int32_t llama_ecokv_state_check(struct llama_context * ctx, llama_seq_id seq_id, const void * data, size_t size);
// into an empty sequence. the context may have another number of cells; where it has those that the rows came from, it goes on
// bit for bit. on an error nothing was changed
LLAMA_API int32_t llama_ecokv_state_set  (struct llama_context * ctx, llama_seq_id seq_id, const void * data, size_t size);

//
// what is in the cache: for statistics, explanations and tests
//

// nominal position of every row, [n_rows]: what llama.cpp sees
LLAMA_API int32_t llama_ecokv_get_pos (struct llama_context * ctx, llama_seq_id seq_id, llama_pos * pos);
// true position of every row of every layer and KV head, [n_layer][n_head_kv][n_rows]; -1: a hole
LLAMA_API int32_t llama_ecokv_get_kept(struct llama_context * ctx, llama_seq_id seq_id, llama_pos * pos);
// bytes of one row of K (V) of layer i, over all its KV heads; works without enabling
LLAMA_API int64_t llama_ecokv_row_bytes(struct llama_context * ctx, int32_t layer, bool value);
// sinks: attention sinks of the layer, [n_head]; may be NULL, is left alone where the model has none. needs an enabled context
LLAMA_API int32_t llama_ecokv_get_layer(struct llama_context * ctx, int32_t layer, struct llama_ecokv_layer_info * info, float * sinks);
// raw bytes in rank order, [n_rows][row_bytes]; a transposed V is returned row by row
LLAMA_API int32_t llama_ecokv_get_rows(struct llama_context * ctx, llama_seq_id seq_id, int32_t layer, bool value, void * rows);
// valid ring queries of layer i, oldest first, [n_query][n_head*d], and their positions; either may be NULL. returns n_query
LLAMA_API int32_t llama_ecokv_get_queries(struct llama_context * ctx, llama_seq_id seq_id, int32_t layer, float * q, llama_pos * pos);

#ifdef __cplusplus
}
#endif
