// The public C API: argument checks, timings, and the three steps in a row.

#include "llama-ecokv.h"

#include "ecokv-access.h"
#include "ecokv-api.h"
#include "ecokv-apply.h"
#include "ecokv-budgets.h"
#include "ecokv-features.h"
#include "ecokv-plan.h"
#include "ecokv-policy.h"
#include "ecokv-resize.h"

#include <algorithm>

int32_t llama_ecokv_abi_version(void) {
    return LLAMA_ECOKV_ABI_VERSION;
}

llama_ecokv_params llama_ecokv_params_default(void) {
    return { /*.n_window =*/ 8, /*.n_rollback =*/ 8, /*.path =*/ LLAMA_ECOKV_PATH_AUTO };
}

bool llama_ecokv_stop_requested(void * data) {
    return *(const volatile int32_t *) data != 0;
}

//
// context
//

int32_t llama_ecokv_check(llama_context * ctx) {
    int32_t status;
    llama_ecokv_access::find(ctx, status);
    return status;
}

// rings on the buffer type of each layer's K
static int32_t alloc_rings(llama_ecokv_store & st, llama_kv_cache & kv) {
    const auto layers = llama_ecokv_access::layers(kv, 0);

    std::vector<std::pair<ggml_backend_buffer_type_t, ggml_context_ptr>> ctxs;

    for (const auto & l : layers) {
        auto * buft = ggml_backend_buffer_get_type(l.k->buffer);

        auto it = std::find_if(ctxs.begin(), ctxs.end(), [&](const auto & c) { return c.first == buft; });
        if (it == ctxs.end()) {
            ctxs.emplace_back(buft, ggml_context_ptr(ggml_init({ ggml_tensor_overhead()*(layers.size() + 1), nullptr, true })));
            it = std::prev(ctxs.end());
        }

        llama_ecokv_store::layer layer;
        layer.il     = l.il;
        layer.n_head = l.n_head;
        layer.q      = ggml_new_tensor_2d(it->second.get(), GGML_TYPE_F32, (int64_t) l.d_k*l.n_head, (int64_t) st.n_seq*st.n_ring + 1);
        ggml_format_name(layer.q, "ecokv_q_l%d", l.il);
        st.layers.push_back(layer);

        st.counters.push_back({ l.il, l.n_head_kv, 0, 0, 0 });
    }

    for (auto & [buft, ctx] : ctxs) {
        auto * buf = ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft);
        if (!buf) {
            return ecokv_fail(LLAMA_ECOKV_ERR_ALLOC, "no memory for the query rings on %s", ggml_backend_buft_name(buft));
        }
        ggml_backend_buffer_clear(buf, 0);
        st.ctxs_bufs.emplace_back(std::move(ctx), buf);
    }
    return LLAMA_ECOKV_OK;
}

int32_t llama_ecokv_enable(llama_context * ctx, llama_ecokv_params params) {
    return ecokv_guarded([&]() -> int32_t {
        int32_t status;
        auto * kv = llama_ecokv_access::find(ctx, status);
        if (!kv) {
            return status;
        }
        if (params.n_window < 1 || params.n_window > 1024 || params.n_rollback < 0 || params.n_rollback > 1024 ||
            params.path < LLAMA_ECOKV_PATH_AUTO || params.path > LLAMA_ECOKV_PATH_GRAPH) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "window = %d (1 .. 1024), rollback = %d (0 .. 1024), path = %d",
                    params.n_window, params.n_rollback, params.path);
        }

        llama_ecokv_shape shape;
        llama_ecokv_access::shape(*kv, shape);

        auto st = std::make_shared<llama_ecokv_store>();

        st->owner  = kv;
        st->params = params;
        st->n_seq  = shape.n_seq_max;
        st->n_ring = params.n_window + params.n_rollback;
        st->slots.resize((size_t) st->n_seq*st->n_ring);
        st->head .resize(st->n_seq, 0);
        st->seqs .resize(st->n_seq);

        status = alloc_rings(*st, *kv);
        if (status != LLAMA_ECOKV_OK) {
            return status;
        }
        if (const auto & old = llama_ecokv_access::store(*kv)) { // new settings: what was evicted stays known
            llama_synchronize(ctx);
            st->adopt(*old);
        }
        llama_ecokv_access::install(*ctx, *kv, st);
        return LLAMA_ECOKV_OK;
    });
}

int32_t llama_ecokv_disable(llama_context * ctx) {
    return ecokv_guarded([&]() -> int32_t {
        int32_t status;
        auto * kv = llama_ecokv_access::find(ctx, status);
        if (kv && llama_ecokv_access::store(*kv)) {
            for (const auto & seq : llama_ecokv_access::store(*kv)->seqs) {
                if (!seq.first.empty()) {
                    return ecokv_fail(LLAMA_ECOKV_ERR_STATE, "a sequence has heads of different length: remove it before eviction is turned off");
                }
            }
            status = ecokv_make_whole(*kv);
            if (status == LLAMA_ECOKV_OK) {
                llama_ecokv_access::install(*ctx, *kv, nullptr);
            }
        }
        return status;
    });
}

int32_t llama_ecokv_get_shape(llama_context * ctx, llama_ecokv_shape * shape) {
    int32_t status;
    auto * kv = llama_ecokv_access::find(ctx, status);
    if (kv) {
        llama_ecokv_access::shape(*kv, *shape);
    }
    return status;
}

int32_t llama_ecokv_get_counters(llama_context * ctx, llama_ecokv_counters * counters, int32_t n_max) {
    return ecokv_with_seq(ctx, 0, [&](const ecokv_seq & seq) {
        const auto & src = seq.store->counters;
        std::copy_n(src.begin(), std::min<size_t>(src.size(), std::max(0, n_max)), counters);
        return (int32_t) src.size();
    });
}

int64_t llama_ecokv_ring_bytes(llama_context * ctx) {
    int32_t status;
    auto * kv = llama_ecokv_access::find(ctx, status);
    return kv && llama_ecokv_access::store(*kv) ? (int64_t) llama_ecokv_access::store(*kv)->bytes() : 0;
}

//
// sequence
//

int32_t llama_ecokv_n_rows(llama_context * ctx, llama_seq_id seq_id) {
    return ecokv_guarded([&]() { return llama_ecokv_access::n_rows(ctx, seq_id); });
}

int32_t llama_ecokv_n_query(llama_context * ctx, llama_seq_id seq_id) {
    return ecokv_with_seq(ctx, seq_id, [](const ecokv_seq & seq) { return (int32_t) ecokv_valid_slots(seq).size(); });
}

int32_t llama_ecokv_is_lossy(llama_context * ctx, llama_seq_id seq_id) {
    return ecokv_with_seq(ctx, seq_id, [](const ecokv_seq & seq) { return (int32_t) seq.store->seqs[seq.id].edited; });
}

int32_t llama_ecokv_safe_pos(llama_context * ctx, llama_seq_id seq_id) {
    return ecokv_with_seq(ctx, seq_id, [](const ecokv_seq & seq) { return (int32_t) seq.store->seqs[seq.id].safe_pos; });
}

int64_t llama_ecokv_hole_bytes(llama_context * ctx, llama_seq_id seq_id) {
    int64_t res = 0;
    const int32_t status = ecokv_with_seq(ctx, seq_id, [&](const ecokv_seq & seq) {
        for (int32_t i = 0; i < (int32_t) seq.layers.size(); ++i) {
            const auto  & l    = seq.layers[i];
            const int64_t size = ggml_row_size(l.k->type, l.d_k) + ggml_row_size(l.v->type, l.d_v);
            for (int32_t h = 0; h < l.n_head_kv; ++h) {
                for (int32_t r = 0; r < seq.first(i, h); ++r) {
                    res += seq.cell[r] >= l.offset ? size : 0;
                }
            }
        }
        return (int32_t) LLAMA_ECOKV_OK;
    });
    return status == LLAMA_ECOKV_OK ? res : status;
}

static int32_t compute_features(const ecokv_seq & seq, llama_ecokv_features & f, ecokv_feature_stats & stats) {
    const auto queries = ecokv_queries_get(seq);

    f.n_query = (int32_t) queries.ranks.size();
    if ((f.attn || f.attn_last) && queries.ranks.empty()) {
        return ecokv_fail(LLAMA_ECOKV_ERR_STATE,
                "no query of sequence %d to score with: decode at least one token after enabling, restoring or rolling back", seq.id);
    }
    return ecokv_features_compute({ seq, queries, f, llama_ecokv_access::n_threads(*seq.ctx) }, stats);
}

int32_t llama_ecokv_features_get(llama_context * ctx, llama_seq_id seq_id, llama_ecokv_features * features) {
    return ecokv_with_seq(ctx, seq_id, [&](const ecokv_seq & seq) -> int32_t {
        if (features->gqa != LLAMA_ECOKV_GQA_MEAN && features->gqa != LLAMA_ECOKV_GQA_MAX) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "gqa = %d is unknown", features->gqa);
        }
        if (features->n_sink < 0 || features->n_recent < 0) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "n_sink = %d, n_recent = %d: neither can be negative", features->n_sink, features->n_recent);
        }
        features->n_layer         = (int32_t) seq.layers.size();
        features->n_head_kv       = seq.n_head_kv;
        features->n               = seq.n();
        features->layer_n_head_kv = nullptr;

        llama_ecokv_access::settle(seq);

        ecokv_feature_stats stats;
        return compute_features(seq, *features, stats);
    });
}

static int32_t apply(const ecokv_seq & seq, const int32_t * keep, int32_t n_keep, ecokv_apply_stats & stats) {
    const ecokv_kept kept = { (int32_t) seq.layers.size(), seq.n_head_kv, n_keep, keep };

    const int32_t status = ecokv_apply_check(seq, kept);
    return status == LLAMA_ECOKV_OK ? ecokv_apply(seq, kept, stats) : status;
}

int32_t llama_ecokv_apply(llama_context * ctx, llama_seq_id seq_id, const int32_t * keep, int32_t n_keep) {
    return ecokv_with_seq(ctx, seq_id, [&](const ecokv_seq & seq) {
        llama_ecokv_access::settle(seq);

        ecokv_apply_stats stats;
        return apply(seq, keep, n_keep, stats);
    });
}

static int32_t count_nonfinite(const ecokv_seq & seq, const llama_ecokv_features & f) {
    int32_t res = 0;
    for (int32_t i = 0; i < f.n_layer; ++i) {
        for (int32_t h = 0; h < seq.layers[i].n_head_kv; ++h) {
            const float * norm = f.key_norm + ((int64_t) i*f.n_head_kv + h)*f.n;
            res += (int32_t) std::count_if(norm + seq.first(i, h), norm + f.n, [](float x) { return std::isnan(x); });
        }
    }
    return res;
}

// features and plan: which ranks stay. changes nothing
static int32_t choose(const ecokv_seq & seq, const llama_ecokv_config & config, std::vector<int32_t> & keep, llama_ecokv_result & res) {
    llama_ecokv_access::settle(seq);

    const int64_t t0 = ggml_time_us();

    const auto * info = ecokv_policy_get(config.policy);

    ecokv_feature_arrays arrays;
    arrays.resize(seq, config, *info);

    ecokv_feature_stats stats;
    const int32_t status = compute_features(seq, arrays.f, stats);
    if (status != LLAMA_ECOKV_OK) {
        return status;
    }

    const int64_t t1 = ggml_time_us();

    const auto & f = arrays.f;
    keep.resize((size_t) f.n_layer*f.n_head_kv*llama_ecokv_plan_max(&config, f.n_layer, f.n_head_kv, f.n));
    const int32_t n_keep = llama_ecokv_plan(&arrays.f, &config, keep.data());
    if (n_keep < 0) {
        return n_keep;
    }

    res.n_after       = n_keep;
    res.n_query       = info->want_attn ? arrays.f.n_query : info->want_last;
    res.n_nonfinite   = count_nonfinite(seq, arrays.f);
    res.n_layer_host  = stats.n_layer_host;
    res.n_layer_graph = stats.n_layer_graph;
    res.t_features_ms = (t1 - t0)/1000.0;
    res.t_plan_ms     = (ggml_time_us() - t1)/1000.0;
    res.scratch_bytes = (int64_t) stats.scratch_bytes;

    return LLAMA_ECOKV_OK;
}

static bool fits(const ecokv_seq & seq, const llama_ecokv_config & config) {
    std::vector<int32_t> n_heads;
    for (const auto & l : seq.layers) {
        n_heads.push_back(l.n_head_kv);
    }
    const auto & first = seq.store->seqs[seq.id].first;
    return ecokv_fits(config, { (int32_t) n_heads.size(), seq.n_head_kv, seq.n(), n_heads.data(), first.empty() ? nullptr : first.data() });
}

// pairs of a kept set, and what they and the holes between them take
static void count_pairs(const ecokv_seq & seq, const std::vector<int32_t> & keep, llama_ecokv_result & res) {
    const ecokv_kept kept = { (int32_t) seq.layers.size(), seq.n_head_kv, res.n_after, keep.data() };
    for (int32_t i = 0; i < kept.n_layer; ++i) {
        const auto  & l    = seq.layers[i];
        const int64_t size = ggml_row_size(l.k->type, l.d_k) + ggml_row_size(l.v->type, l.d_v);
        for (int32_t h = 0; h < l.n_head_kv; ++h) {
            const int64_t n_holes = kept.n_holes(i, h);
            res.n_heads        += 1;
            res.n_pairs_before += seq.n() - seq.first(i, h);
            res.n_pairs_after  += kept.n_keep - n_holes;
            res.pair_bytes     += (kept.n_keep - n_holes)*size;
            res.hole_bytes     += n_holes*size;
        }
    }
}

// every rank that there is
static std::vector<int32_t> all_ranks(const ecokv_seq & seq) {
    std::vector<int32_t> res;
    for (int32_t i = 0; i < (int32_t) seq.layers.size(); ++i) {
        for (int32_t h = 0; h < seq.n_head_kv; ++h) {
            const int32_t n_holes = h < seq.layers[i].n_head_kv ? seq.first(i, h) : seq.n();
            for (int32_t r = 0; r < seq.n(); ++r) {
                res.push_back(r < n_holes ? -1 : r);
            }
        }
    }
    return res;
}

// checks, and noise that is drawn anew: noise that stayed the same would condemn the same ranks every time
static int32_t prepare(const ecokv_seq & seq, llama_ecokv_config & config, llama_ecokv_result & res) {
    res = {};
    res.n_before = res.n_after = seq.n();
    config.seed += (uint32_t) seq.store->seqs[seq.id].n_evictions;
    return ecokv_config_check(config);
}

int32_t llama_ecokv_choose(llama_context * ctx, llama_seq_id seq_id, const llama_ecokv_config * config, int32_t * keep,
        llama_ecokv_result * result) {
    return ecokv_with_seq(ctx, seq_id, [&](const ecokv_seq & seq) -> int32_t {
        llama_ecokv_config   c = *config;
        llama_ecokv_result   res;
        std::vector<int32_t> ranks;

        int32_t status = prepare(seq, c, res);
        if (status == LLAMA_ECOKV_OK && fits(seq, c)) {
            ranks = all_ranks(seq);
        } else if (status == LLAMA_ECOKV_OK) {
            status = choose(seq, c, ranks, res);
        }
        if (status == LLAMA_ECOKV_OK) {
            count_pairs(seq, ranks, res);
        }
        if (status == LLAMA_ECOKV_OK && keep) {
            std::copy(ranks.begin(), ranks.end(), keep);
        }
        if (result) {
            *result = res;
        }
        return status == LLAMA_ECOKV_OK ? res.n_after : status;
    });
}

int32_t llama_ecokv_evict(llama_context * ctx, llama_seq_id seq_id, const llama_ecokv_config * config, llama_ecokv_result * result) {
    return ecokv_with_seq(ctx, seq_id, [&](const ecokv_seq & seq) -> int32_t {
        llama_ecokv_config   c = *config;
        llama_ecokv_result   res;
        std::vector<int32_t> keep;

        int32_t status = prepare(seq, c, res);
        if (status == LLAMA_ECOKV_OK && fits(seq, c)) {
            count_pairs(seq, all_ranks(seq), res);
        } else if (status == LLAMA_ECOKV_OK) {
            status = seq.shared
                ? ecokv_fail(LLAMA_ECOKV_ERR_SHARED, "sequence %d shares cells with another sequence", seq.id)
                : choose(seq, c, keep, res);

            if (status == LLAMA_ECOKV_OK) {
                const int64_t t0 = ggml_time_us();

                ecokv_apply_stats stats;
                count_pairs(seq, keep, res);
                status = apply(seq, keep.data(), res.n_after, stats);

                res.t_apply_ms    = (ggml_time_us() - t0)/1000.0;
                res.scratch_bytes = std::max(res.scratch_bytes, (int64_t) stats.scratch_bytes);
            }
            if (status != LLAMA_ECOKV_OK) {
                res = {};
                res.n_before = res.n_after = seq.n();
            }
        }
        if (result) {
            *result = res;
        }
        return status;
    });
}
