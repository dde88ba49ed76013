// Features from stock ggml ops, where the cache lives: any backend.

#include "ecokv-features.h"

#include "llama-context.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>

namespace {

// results of one layer; NULL is not wanted
struct outputs {
    ggml_tensor * attn = nullptr; // [1, n_kv, n_head_kv, 2]  summed over the group; over the window, of the last query
    ggml_tensor * k2   = nullptr; // [1, n_head_kv, n_kv]
    ggml_tensor * v2   = nullptr; // [1, n_head_kv, n_kv] or [1, n_kv, n_head_kv] when V is transposed
    ggml_tensor * m    = nullptr; // [d, n_head_kv]
    ggml_tensor * um   = nullptr; // [1, n_head_kv, n_kv]  u_i . m
    ggml_tensor * e2   = nullptr; // [1, n_head_kv, n_kv]
};

struct feature_graph {
    const ecokv_feature_job & job;
    const int64_t n_kv;
    const int64_t n_ring;

    ggml_context * ctx;
    ggml_cgraph  * gf;

    ggml_tensor * mask = nullptr; // [n_kv, n_ring]
    ggml_tensor * w_q  = nullptr; // [n_ring, 2] 1 for the slots that vote, for the last of them
    ggml_tensor * w_k  = nullptr; // [n_kv]   1/n for the candidates

    void out(ggml_tensor *& dst, ggml_tensor * t) {
        ggml_set_output(t);
        ggml_build_forward_expand(gf, t);
        dst = t;
    }

    void inputs() {
        mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_kv, n_ring);
        w_q  = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_ring, 2);
        w_k  = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_kv, 1);
        for (auto * t : { mask, w_q, w_k }) {
            ggml_set_input(t);
        }
    }

    // k: [d, n_head_kv, n_kv] f32
    void attention(const ecokv_layer & l, const llama_ecokv_store::layer & ring, ggml_tensor * k, outputs & o) {
        const auto & hparams = job.seq.ctx->get_model().hparams;

        const int64_t q0 = (int64_t) job.seq.id*n_ring;

        ggml_tensor * q = ggml_view_3d(ctx, ring.q, l.d_k, l.n_head, n_ring, l.d_k*sizeof(float), ring.q->nb[1], q0*ring.q->nb[1]);

        ggml_tensor * kq = ggml_mul_mat(ctx, ggml_permute(ctx, k, 0, 2, 1, 3), ggml_permute(ctx, q, 0, 2, 1, 3)); // [n_kv, n_ring, n_head]
        ggml_prec_set_acc(kq, GGML_PREC_F32);

        if (hparams.attn_soft_cap) {
            const float cap = hparams.f_attn_logit_softcapping;
            kq = ggml_scale(ctx, kq, ring.kq_scale/cap);
            kq = ggml_tanh (ctx, kq);
            kq = ggml_scale(ctx, kq, cap/ring.kq_scale);
        }
        kq = ggml_soft_max_ext(ctx, kq, mask, ring.kq_scale, 0.0f);
        ggml_soft_max_add_sinks(kq, ring.sinks);

        ggml_tensor * t = ggml_cont(ctx, ggml_permute(ctx, kq, 1, 0, 2, 3));        // [n_ring, n_kv, n_head]
        t = ggml_mul_mat(ctx, ggml_reshape_2d(ctx, t, n_ring, n_kv*l.n_head), w_q); // [n_kv*n_head, 2]
        t = ggml_reshape_4d(ctx, t, n_kv, l.gqa(), l.n_head_kv, 2);
        t = ggml_cont(ctx, ggml_permute(ctx, t, 1, 0, 2, 3));                       // [gqa, n_kv, n_head_kv, 2]
        out(o.attn, ggml_sum_rows(ctx, t));
    }

    // weighted mean over the cells: [d, n_head_kv]
    ggml_tensor * mean(const ecokv_layer & l, ggml_tensor * x) {
        const int64_t n_embd = (int64_t) l.d_k*l.n_head_kv;
        ggml_tensor * t = ggml_cont(ctx, ggml_transpose(ctx, ggml_reshape_2d(ctx, x, n_embd, n_kv)));
        t = ggml_mul_mat(ctx, t, w_k);
        ggml_prec_set_acc(t, GGML_PREC_F32);
        return ggml_reshape_2d(ctx, t, l.d_k, l.n_head_kv);
    }

    void geometry(const ecokv_layer & l, ggml_tensor * k, outputs & o) {
        ggml_tensor * u  = ggml_l2_norm(ctx, k, 1e-30f);
        ggml_tensor * mu = mean(l, k);

        out(o.m,  mean(l, u));
        out(o.um, ggml_sum_rows(ctx, ggml_mul(ctx, u, o.m)));
        out(o.e2, ggml_sum_rows(ctx, ggml_sqr(ctx, ggml_sub(ctx, k, mu)))); // in two passes, the square is never expanded
    }

    void value_norm(const ecokv_layer & l, outputs & o) {
        ggml_tensor * v;
        if (job.seq.v_trans) {
            const size_t nb1 = l.v->ne[1]*ggml_type_size(l.v->type);
            v = ggml_view_3d(ctx, l.v, n_kv, l.d_v, l.n_head_kv, nb1, nb1*l.d_v, 0);
            v = ggml_cont(ctx, ggml_permute(ctx, ggml_cast(ctx, v, GGML_TYPE_F32), 1, 0, 2, 3)); // [d, n_kv, n_head_kv]
        } else {
            v = ggml_view_3d(ctx, l.v, l.d_v, l.n_head_kv, n_kv, ggml_row_size(l.v->type, l.d_v), l.v->nb[1], 0);
            v = ggml_cast(ctx, v, GGML_TYPE_F32);
        }
        out(o.v2, ggml_sum_rows(ctx, ggml_sqr(ctx, v)));
    }

    void layer(const ecokv_layer & l, const llama_ecokv_store::layer & ring, outputs & o) {
        ggml_tensor * k = ggml_view_3d(ctx, l.k, l.d_k, l.n_head_kv, n_kv, ggml_row_size(l.k->type, l.d_k), l.k->nb[1], 0);
        k = ggml_cast(ctx, k, GGML_TYPE_F32);

        out(o.k2, ggml_sum_rows(ctx, ggml_sqr(ctx, k)));
        value_norm(l, o);
        if (job.want_attention()) {
            attention(l, ring, k, o);
        }
        if (job.want_geometry()) {
            geometry(l, k, o);
        }
    }

    void set_inputs() {
        const auto & seq = job.seq;

        std::vector<float> data;

        if (mask->buffer) {
            std::vector<float> w(2*n_ring, 0.0f);
            data.assign(n_kv*n_ring, 0.0f);
            for (size_t j = 0; j < job.queries.slots.size(); ++j) {
                const int64_t s = job.queries.slots[j] - (int64_t) seq.id*n_ring;
                w[s] = 1.0f;
                w[n_ring + s] = j + 1 == job.queries.slots.size() ? 1.0f : 0.0f;
                std::fill(data.begin() + s*n_kv, data.begin() + (s + 1)*n_kv, -INFINITY);
                for (int32_t r = 0; r <= job.queries.ranks[j]; ++r) {
                    data[s*n_kv + seq.cell[r]] = 0.0f;
                }
            }
            ggml_backend_tensor_set(mask, data.data(), 0, ggml_nbytes(mask));
            ggml_backend_tensor_set(w_q,  w.data(),    0, ggml_nbytes(w_q));
        }
        if (w_k->buffer) {
            data.assign(n_kv, 0.0f);
            for (int32_t r = job.lo(); r < job.hi(); ++r) {
                data[seq.cell[r]] = 1.0f/(job.hi() - job.lo());
            }
            ggml_backend_tensor_set(w_k, data.data(), 0, ggml_nbytes(w_k));
        }
    }
};

std::vector<float> read(const ggml_tensor * t) {
    std::vector<float> res(t ? ggml_nelements(t) : 0);
    if (t) {
        ggml_backend_tensor_get(t, res.data(), 0, ggml_nbytes(t));
    }
    return res;
}

} // namespace

// false if the layer needs the host path: a key or value that is not finite, or a key next to zero
static bool store_outputs(const ecokv_feature_job & job, const std::vector<int32_t> & n_seen, int32_t layer, int64_t n_kv, const outputs & o) {
    const auto & l    = job.seq.layers[layer];
    const auto & cell = job.seq.cell;

    const auto attn = read(o.attn);
    const auto k2   = read(o.k2);
    const auto v2   = read(o.v2);
    const auto m    = read(o.m);
    const auto um   = read(o.um);
    const auto e2   = read(o.e2);

    bool ok = true;

    for (int32_t h = 0; h < l.n_head_kv; ++h) {
        const int64_t at = job.at(layer, h);

        double k2_mean = 0.0;
        double k2_min  = INFINITY;

        for (int32_t r = 0; r < job.out.n; ++r) {
            const int64_t by_cell = (int64_t) cell[r]*l.n_head_kv + h;
            const int64_t by_head = (int64_t) h*n_kv + cell[r];

            const float nk = std::sqrt(k2[by_cell]);
            const float nv = std::sqrt(v2[job.seq.v_trans ? by_head : by_cell]);

            ok = ok && std::isfinite(nk) && std::isfinite(nv);

            if (r >= job.lo() && r < job.hi()) {
                k2_mean += k2[by_cell]/(double) (job.hi() - job.lo());
                k2_min   = std::min(k2_min, (double) k2[by_cell]);
            }

            if (job.out.key_norm)   { job.out.key_norm  [at + r] = nk; }
            if (job.out.value_norm) { job.out.value_norm[at + r] = nv; }
            if (job.out.key_cos)    { job.out.key_cos   [at + r] = (float) (1.0 - (double) um[by_cell]); }
            if (job.out.key_euc)    { job.out.key_euc   [at + r] = std::sqrt(e2[by_cell]); }
            if (job.out.attn)       {
                const float a = n_seen[r] > 0 ? attn[by_head]/((float) n_seen[r]*l.gqa()) : 0.0f;
                job.out.attn[at + r] = a;
                ok = ok && std::isfinite(a);
            }
            if (job.out.attn_last)  {
                const float a = attn[n_kv*l.n_head_kv + by_head]/(float) l.gqa();
                job.out.attn_last[at + r] = a;
                ok = ok && std::isfinite(a);
            }
        }

        ok = ok && std::sqrt(k2_min) > 1e-6*std::sqrt(k2_mean);

        if (job.out.head_m2) {
            double m2 = 0.0;
            for (int32_t i = 0; i < l.d_k; ++i) {
                m2 += (double) m[(size_t) h*l.d_k + i]*m[(size_t) h*l.d_k + i];
            }
            job.out.head_m2[(int64_t) layer*job.out.n_head_kv + h] = (float) m2;
        }
    }

    return ok || job.hi() <= job.lo();
}

int32_t ecokv_features_graph(const ecokv_feature_job & job, const std::vector<int32_t> & layers, ecokv_feature_stats & stats,
        std::vector<int32_t> & redo) {
    const auto & seq   = job.seq;
    auto       & store = *seq.store;

    const int64_t n_ring = store.n_ring;
    const int64_t n_kv   = std::min<int64_t>(seq.cells->size(), GGML_PAD(seq.cells->used_max_p1(), 32));
    const auto    n_seen = job.n_seen();

    // groups of layers keep the scratch memory bounded
    const auto & l0 = seq.layers[layers[0]];
    const size_t layer_bytes = n_kv*sizeof(float)*((size_t) l0.n_head_kv*(4*l0.d_k + 2*l0.d_v) + 3*n_ring*l0.n_head);
    const size_t n_group     = std::clamp<size_t>(((size_t) 64*1024*1024)/std::max<size_t>(1, layer_bytes), 1, layers.size());

    for (size_t i0 = 0; i0 < layers.size(); i0 += n_group) {
        const size_t i1 = std::min(layers.size(), i0 + n_group);

        const size_t max_nodes = 64*(i1 - i0) + 16;

        ggml_context_ptr ctx { ggml_init({ ggml_tensor_overhead()*max_nodes + ggml_graph_overhead_custom(max_nodes, false), nullptr, true }) };
        if (!ctx) {
            return ecokv_fail(LLAMA_ECOKV_ERR_ALLOC, "no memory for a graph of %zu nodes", max_nodes);
        }

        feature_graph g { job, n_kv, n_ring, ctx.get(), ggml_new_graph_custom(ctx.get(), max_nodes, false) };
        g.inputs();

        std::vector<outputs> outs(i1 - i0);
        for (size_t i = i0; i < i1; ++i) {
            g.layer(seq.layers[layers[i]], store.layers[layers[i]], outs[i - i0]);
        }

        auto * sched = llama_ecokv_access::sched(*seq.ctx, store, max_nodes);
        if (!ggml_backend_sched_alloc_graph(sched, g.gf)) {
            return ecokv_fail(LLAMA_ECOKV_ERR_ALLOC, "no memory for the scores of %zu layers with %lld cells", i1 - i0, (long long) n_kv);
        }
        g.set_inputs();

        if (ggml_backend_sched_graph_compute(sched, g.gf) != GGML_STATUS_SUCCESS) {
            return ecokv_fail(LLAMA_ECOKV_ERR_COMPUTE, "a backend failed while scoring layers %d to %d", layers[i0], layers[i1 - 1]);
        }

        for (size_t i = i0; i < i1; ++i) {
            if (!store_outputs(job, n_seen, layers[i], n_kv, outs[i - i0])) {
                redo.push_back(layers[i]);
            }
        }

        stats.scratch_bytes = std::max(stats.scratch_bytes, llama_ecokv_access::sched_bytes(*seq.ctx, sched));
    }

    return LLAMA_ECOKV_OK;
}
