#include "ecokv-features.h"

#include <algorithm>
#include <numeric>

void ecokv_feature_arrays::resize(const ecokv_seq & seq, const llama_ecokv_config & config, const ecokv_policy_info & policy) {
    f = {};

    f.n_layer   = (int32_t) seq.layers.size();
    f.n_head_kv = seq.n_head_kv;
    f.n         = seq.n();
    f.n_sink    = config.n_sink;
    f.n_recent  = config.n_recent;
    f.gqa       = config.gqa;

    n_head_kv.clear();
    for (const auto & l : seq.layers) {
        n_head_kv.push_back(l.n_head_kv);
    }
    f.layer_n_head_kv = n_head_kv.data();

    const size_t n_heads = (size_t) f.n_layer*f.n_head_kv;
    const size_t n_rows  = n_heads*f.n;

    data.assign(n_rows*(2 + policy.want_attn + policy.want_last + 2*policy.want_geometry) + n_heads, 0.0f);

    float * p = data.data();
    auto take = [&](size_t n) { float * res = p; p += n; return res; };

    f.key_norm   = take(n_rows);
    f.value_norm = take(n_rows);
    if (policy.want_attn) {
        f.attn = take(n_rows);
    }
    if (policy.want_last) {
        f.attn_last = take(n_rows);
    }
    if (policy.want_geometry) {
        f.key_cos = take(n_rows);
        f.key_euc = take(n_rows);
        f.head_m2 = take(n_heads);
    }

    first.resize(n_heads);
    f.head_first = first.data();

    pos.resize(config.n_groups > 0 ? n_rows : 0);
    f.pos = config.n_groups > 0 ? pos.data() : nullptr;
}

std::vector<int32_t> ecokv_feature_job::n_seen() const {
    std::vector<int32_t> res(out.n, 0);
    for (int32_t rank : queries.ranks) {
        for (int32_t r = 0; r <= rank; ++r) {
            res[r]++;
        }
    }
    return res;
}

ecokv_queries ecokv_queries_get(const ecokv_seq & seq) {
    ecokv_queries res;
    res.slots = ecokv_valid_slots(seq);
    for (uint32_t i : res.slots) {
        res.ranks.push_back(ecokv_rank_of_slot(seq, seq.store->slots[i]));
    }
    return res;
}

static bool on_host(const ecokv_layer & l) {
    return ggml_backend_buffer_is_host(l.k->buffer) && ggml_backend_buffer_is_host(l.v->buffer);
}

int32_t ecokv_features_compute(const ecokv_feature_job & job, ecokv_feature_stats & stats) {
    std::vector<int32_t> host;
    std::vector<int32_t> graph;

    if (job.out.head_first) {
        const auto & first = job.seq.store->seqs[job.seq.id].first;
        const size_t n     = (size_t) job.out.n_layer*job.out.n_head_kv;
        std::fill_n(job.out.head_first, n, 0);
        std::copy(first.begin(), first.end(), job.out.head_first);
    }

    if (job.out.pos) {
        ecokv_true_positions(job.seq, job.out.pos);
    }

    const int32_t path = job.seq.store->params.path;
    for (size_t i = 0; i < job.seq.layers.size(); ++i) {
        // ggml has no maximum over a dimension; and after an uneven eviction there are few rows: wherever they are, the host is fast enough
        const bool on_host_only = job.out.gqa == LLAMA_ECOKV_GQA_MAX || job.seq.has_holes((int32_t) i) || job.seq.layers[i].offset > 0;
        const bool use_host     = on_host_only || path == LLAMA_ECOKV_PATH_HOST ||
            (path == LLAMA_ECOKV_PATH_AUTO && on_host(job.seq.layers[i]));
        (use_host ? host : graph).push_back((int32_t) i);
    }

    if (!graph.empty()) {
        const int32_t status = ecokv_features_graph(job, graph, stats, host);
        if (status != LLAMA_ECOKV_OK) {
            return status;
        }
    }
    if (!host.empty()) {
        const int32_t status = ecokv_features_host(job, host, stats);
        if (status != LLAMA_ECOKV_OK) {
            return status;
        }
    }

    stats.n_layer_host  = (int32_t) host.size();
    stats.n_layer_graph = (int32_t) job.seq.layers.size() - stats.n_layer_host;

    return LLAMA_ECOKV_OK;
}
