#pragma once

// What the policies need to know of every row. Steps 1 and 3 of the method; the keys are read here and nowhere else.

#include "ecokv-access.h"
#include "ecokv-policy.h"

#include <vector>

// window queries of one sequence
struct ecokv_queries {
    std::vector<uint32_t> slots; // rows of the ring
    std::vector<int32_t>  ranks; // rank of the token that asked: it sees the ranks up to its own
};

// storage behind llama_ecokv_features
struct ecokv_feature_arrays {
    llama_ecokv_features f = {};

    // what the policy has no use for is left out; norms are always there: they mark NaN rows
    void resize(const ecokv_seq & seq, const llama_ecokv_config & config, const ecokv_policy_info & policy);

private:
    std::vector<float>   data;
    std::vector<int32_t> n_head_kv;
    std::vector<int32_t> first;
    std::vector<int32_t> pos;
};

// work on some layers of a sequence
struct ecokv_feature_job {
    const ecokv_seq     & seq;
    const ecokv_queries & queries;

    llama_ecokv_features & out; // sizes set, arrays as wanted

    int32_t n_threads;

    // candidates of a head; without arguments of one without holes
    int32_t lo(int32_t first = 0) const { return std::min(first + out.n_sink, out.n); }
    int32_t hi(int32_t first = 0) const { return std::max(lo(first), out.n - out.n_recent); }

    bool want_attention() const { return out.attn || out.attn_last; }

    bool want_geometry() const { return out.key_cos || out.key_euc || out.head_m2; }

    // offset of (layer, head) in the arrays of rows
    int64_t at(int32_t layer, int32_t head) const {
        return ((int64_t) layer*out.n_head_kv + head)*out.n;
    }

    // how many window queries see a rank
    std::vector<int32_t> n_seen() const;
};

struct ecokv_feature_stats {
    int32_t n_layer_host  = 0;
    int32_t n_layer_graph = 0;
    size_t  scratch_bytes = 0;
};

ecokv_queries ecokv_queries_get(const ecokv_seq & seq);

// rows in host memory, or copies of them: one pass per head, exact for every type; leaves NaN rows and holes out of every mean
int32_t ecokv_features_host (const ecokv_feature_job & job, const std::vector<int32_t> & layers, ecokv_feature_stats & stats);

// stock ggml ops where the rows lie; layers with a NaN or degenerate key are returned in `redo` for the host.
// not for layers with holes
int32_t ecokv_features_graph(const ecokv_feature_job & job, const std::vector<int32_t> & layers, ecokv_feature_stats & stats,
        std::vector<int32_t> & redo);

// picks the path per layer
int32_t ecokv_features_compute(const ecokv_feature_job & job, ecokv_feature_stats & stats);
