#include "ecokv-mask.h"

#include "ecokv-hooks.h"
#include "ecokv-resize.h"

#include "llama-cparams.h"
#include "llama-context.h"
#include "llama-kv-cache-iswa.h"

#include <algorithm>
#include <cmath>
#include <new>

// every stream of an ubatch adds the nodes of an attention of its own
static const uint32_t MAX_STREAMS = 4;

//
// state
//

void ecokv_masks::upload() {
    std::vector<uint8_t> data;
    for (const auto & l : layers) {
        data.resize(ggml_nbytes(l.mask));
        if (l.mask->type == GGML_TYPE_F16) {
            const ggml_fp16_t inf = ggml_fp32_to_fp16(-INFINITY);
            std::transform(l.hole.begin(), l.hole.end(), (ggml_fp16_t *) data.data(), [&](uint8_t x) { return x ? inf : (ggml_fp16_t) 0; });
        } else {
            std::transform(l.hole.begin(), l.hole.end(), (float *) data.data(), [](uint8_t x) { return x ? -INFINITY : 0.0f; });
        }
        ggml_backend_tensor_set(l.mask, data.data(), 0, data.size());
    }
    dirty = false;
}

static ecokv_masks::mode mode_of(const ecokv_masks & m, const ecokv_masks::layer & l) {
    if (std::none_of(l.hole.begin(), l.hole.end(), [](uint8_t x) { return x; })) {
        return ecokv_masks::NONE;
    }
    for (int64_t s = 0; s < m.n_stream; ++s) {
        const auto first = l.hole.begin() + s*l.n_head_kv*m.n_cells;
        for (int32_t h = 1; h < l.n_head_kv; ++h) {
            if (!std::equal(first, first + m.n_cells, first + h*m.n_cells)) {
                return ecokv_masks::HEADS;
            }
        }
    }
    return ecokv_masks::LAYER;
}

static void update_modes(ecokv_masks & m) {
    m.dirty = true;
    for (auto & l : m.layers) {
        const auto how = mode_of(m, l);
        m.version += how != l.how;
        l.how = how;
    }
}

void ecokv_masks_resize(llama_ecokv_store & store, llama_kv_cache & kv, ggml_type type, int64_t n_cells) {
    const auto layers   = llama_ecokv_access::layers(kv, 0);
    const auto n_stream = (int64_t) kv.get_n_stream();

    auto res = std::make_shared<ecokv_masks>();
    res->n_cells  = n_cells;
    res->n_stream = n_stream;
    res->version  = (store.masks ? store.masks->version : 0) + 1;
    res->dirty    = true;

    std::vector<std::pair<ggml_backend_buffer_type_t, ggml_context_ptr>> ctxs;

    for (size_t i = 0; i < layers.size(); ++i) {
        auto * buft = ggml_backend_buffer_get_type(layers[i].k->buffer);

        auto it = std::find_if(ctxs.begin(), ctxs.end(), [&](const auto & c) { return c.first == buft; });
        if (it == ctxs.end()) {
            ctxs.emplace_back(buft, ggml_context_ptr(ggml_init({ ggml_tensor_overhead()*(layers.size() + 1), nullptr, true })));
            it = std::prev(ctxs.end());
        }

        ecokv_masks::layer l;
        l.n_head_kv = layers[i].n_head_kv;
        l.mask      = ggml_new_tensor_3d(it->second.get(), type, n_cells, l.n_head_kv, n_stream);
        l.hole.resize((size_t) n_stream*l.n_head_kv*n_cells);
        ggml_format_name(l.mask, "ecokv_mask_l%d", layers[i].il);

        if (store.masks) {
            const auto & old = store.masks->layers[i];
            const int64_t n  = std::min(n_cells, store.masks->n_cells);
            for (int64_t j = 0; j < n_stream*l.n_head_kv; ++j) {
                std::copy_n(old.hole.begin() + j*store.masks->n_cells, n, l.hole.begin() + j*n_cells);
            }
            l.how = old.how;
        }
        res->layers.push_back(std::move(l));
    }

    for (auto & [buft, ctx] : ctxs) {
        auto * buf = ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft);
        if (!buf) {
            throw std::bad_alloc();
        }
        res->ctxs_bufs.emplace_back(std::move(ctx), buf);
    }
    store.masks = std::move(res);
}

//
// evictions
//

static bool same_in_all_heads(const ecokv_seq & seq, const ecokv_kept & kept, int32_t layer) {
    for (int32_t h = 1; h < seq.layers[layer].n_head_kv; ++h) {
        if (kept.n_holes(layer, h) != kept.n_holes(layer, 0)) {
            return false;
        }
    }
    return true;
}

int32_t ecokv_masks_prepare(const ecokv_seq & seq, const ecokv_kept & kept) {
    bool any = false;
    for (int32_t i = 0; i < kept.n_layer; ++i) {
        for (int32_t h = 0; h < seq.layers[i].n_head_kv; ++h) {
            any = any || kept.n_holes(i, h) > 0;
        }
        if (same_in_all_heads(seq, kept, i)) {
            continue;
        }
        if (seq.store->layers[i].sinks) {
            return ecokv_fail(LLAMA_ECOKV_ERR_MODEL,
                    "layer %d has attention sinks: its heads cannot keep different numbers of pairs (even budgets and pyramid work)",
                    seq.layers[i].il);
        }
        if (seq.kv->get_n_stream() > MAX_STREAMS) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM,
                    "heads can keep different numbers of pairs with up to %u separate sequences, not %u (kv_unified works)",
                    MAX_STREAMS, seq.kv->get_n_stream());
        }
    }

    if (any && !seq.store->masks) {
        const auto type = seq.ctx->get_cparams().flash_attn ? GGML_TYPE_F16 : GGML_TYPE_F32;
        ecokv_masks_resize(*seq.store, *seq.kv, type, seq.cells->size());
    }
    return LLAMA_ECOKV_OK;
}

static void unmark(ecokv_masks & m, uint32_t strm, const std::vector<uint32_t> & cells) {
    for (auto & l : m.layers) {
        for (int32_t h = 0; h < l.n_head_kv; ++h) {
            for (uint32_t c : cells) {
                l.hole[(strm*l.n_head_kv + h)*m.n_cells + c] = 0;
            }
        }
    }
}

void ecokv_masks_set(const ecokv_seq & seq, const ecokv_kept & kept, const std::vector<uint32_t> & dst) {
    auto & state = seq.store->seqs[seq.id];
    auto * m     = seq.store->masks.get();
    if (!m) {
        return; // never an uneven eviction
    }

    unmark(*m, seq.strm, state.hole_cell);

    state.first.assign((size_t) kept.n_layer*kept.n_head_kv, 0);

    int32_t most = 0;
    for (int32_t i = 0; i < kept.n_layer; ++i) {
        auto & l = m->layers[i];
        for (int32_t h = 0; h < l.n_head_kv; ++h) {
            const int32_t n = kept.n_holes(i, h);
            for (int32_t j = 0; j < n; ++j) {
                l.hole[(seq.strm*l.n_head_kv + h)*m->n_cells + dst[j]] = 1;
            }
            state.first[(size_t) i*kept.n_head_kv + h] = n;
            most = std::max(most, n);
        }
    }
    state.hole_cell.assign(dst.begin(), dst.begin() + most);
    if (most == 0) {
        state.first.clear();
    }

    const auto version = m->version;
    update_modes(*m);
    if (m->version != version) {
        llama_ecokv_access::rebuild(*seq.ctx);
    }
}

void ecokv_masks_forget(llama_ecokv_store & store, llama_seq_id seq_id) {
    const auto & state = store.seqs[seq_id];
    if (!store.masks || state.hole_cell.empty()) {
        return;
    }
    unmark(*store.masks, llama_ecokv_access::stream_of(*store.owner, seq_id), state.hole_cell);
    update_modes(*store.masks);
}

//
// graph
//

namespace {

// uploads the masks before a graph that reads them runs
class input_masks : public llm_graph_input_i {
public:
    input_masks(std::shared_ptr<llama_ecokv_store> store, ggml_backend_sched_t sched) :
        store(std::move(store)), sched(sched), version(this->store->masks->version) {}

    void set_input(const llama_ubatch *) override {
        if (store->masks->dirty) {
            ggml_backend_sched_synchronize(sched); // a graph that is still running may read them
            store->masks->upload();
        }
    }

    bool can_reuse(const llm_graph_params &) override {
        return store->masks && store->masks->version == version;
    }

private:
    const std::shared_ptr<llama_ecokv_store> store;

    const ggml_backend_sched_t sched;
    const uint64_t             version;
};

// the attention of one layer of a graph
struct attention {
    const llm_graph_context  & graph;
    const ecokv_masks::layer & layer;

    ggml_tensor * q; // [d_k, n_head, n_tokens]
    ggml_tensor * k; // [d_k, n_head_kv, n_kv, n_stream]
    ggml_tensor * v; // [d_v, n_head_kv, n_kv, n_stream], or transposed: [n_kv, n_head_kv, d_v, n_stream]
    ggml_tensor * kq_mask; // [n_kv, n_tokens of a stream, 1, n_stream]

    uint32_t s0;     // first stream of the ubatch
    uint32_t offset; // cells that k and v do not hold
    float    kq_scale;

    ggml_context * ctx = graph.ctx0;

    const int64_t n_kv     = kq_mask->ne[0] - offset;
    const int64_t n_tps    = kq_mask->ne[1];
    const int64_t n_stream = kq_mask->ne[3];

    // the mask of the graph, for some streams and the cells that the layer holds
    ggml_tensor * view_mask(int64_t s, int64_t n) const {
        const auto * m = kq_mask;
        return offset == 0 && n == n_stream ? kq_mask :
            ggml_view_4d(ctx, kq_mask, n_kv, n_tps, 1, n, m->nb[1], m->nb[2], m->nb[3], s*m->nb[3] + offset*m->nb[0]);
    }

    // the mask of the graph with the holes of all heads: they are the same
    ggml_tensor * layer_mask() const {
        const auto * m = layer.mask;
        ggml_tensor * mask  = view_mask(0, n_stream);
        ggml_tensor * holes = ggml_view_4d(ctx, layer.mask, n_kv, 1, 1, n_stream, m->nb[1], m->nb[2], m->nb[2], s0*m->nb[2] + offset*m->nb[0]);
        return ggml_add(ctx, mask, holes);
    }

    // heads take the place of the streams: attention kernels know masks per stream, but not per head
    ggml_tensor * stream(int64_t s) const {
        const auto * m = layer.mask;

        const int64_t n_head_kv = layer.n_head_kv;
        const int64_t gqa       = q->ne[1]/n_head_kv;

        ggml_tensor * qs = ggml_view_4d(ctx, q, q->ne[0], gqa, n_head_kv, n_tps, q->nb[1], gqa*q->nb[1], q->nb[2], s*n_tps*q->nb[2]);
        ggml_tensor * ks = ggml_view_4d(ctx, k, k->ne[0], k->ne[1], k->ne[2], 1, k->nb[1], k->nb[2], k->nb[3], s*k->nb[3]);
        ggml_tensor * vs = ggml_view_4d(ctx, v, v->ne[0], v->ne[1], v->ne[2], 1, v->nb[1], v->nb[2], v->nb[3], s*v->nb[3]);

        qs = ggml_permute(ctx, qs, 0, 2, 3, 1); // [d_k, n_tps, gqa, n_head_kv]
        ks = ggml_permute(ctx, ks, 0, 3, 1, 2); // [d_k, n_kv,  1,   n_head_kv]
        vs = ggml_permute(ctx, vs, 0, 3, 1, 2); // [d_v, n_kv,  1,   n_head_kv], transposed: [n_kv, d_v, 1, n_head_kv]

        ggml_tensor * holes = ggml_view_4d(ctx, layer.mask, n_kv, 1, 1, n_head_kv, m->nb[1], m->nb[1], m->nb[1],
                (s0 + s)*m->nb[2] + offset*m->nb[0]);
        ggml_tensor * mask  = ggml_add(ctx, ggml_repeat_4d(ctx, view_mask(s, 1), n_kv, n_tps, 1, n_head_kv), holes);

        return graph.cparams.flash_attn ? fused(qs, ks, vs, mask) : plain(qs, ks, vs, mask);
    }

    ggml_tensor * fused(ggml_tensor * qs, ggml_tensor * ks, ggml_tensor * vs, ggml_tensor * mask) const {
        const auto & hparams = graph.hparams;

        if (ks->type == GGML_TYPE_F32) { ks = ggml_cast(ctx, ks, GGML_TYPE_F16); }
        if (vs->type == GGML_TYPE_F32) { vs = ggml_cast(ctx, vs, GGML_TYPE_F16); }

        ggml_tensor * cur = ggml_flash_attn_ext(ctx, qs, ks, vs, mask, kq_scale, 0.0f,
                hparams.attn_soft_cap ? hparams.f_attn_logit_softcapping : 0.0f);
        ggml_prec_set_acc(cur, GGML_PREC_F32);

        cur = ggml_permute(ctx, cur, 0, 1, 3, 2); // [d_v, gqa, n_head_kv, n_tps]
        return ggml_cont_2d(ctx, cur, cur->ne[0]*cur->ne[1]*cur->ne[2], n_tps);
    }

    ggml_tensor * plain(ggml_tensor * qs, ggml_tensor * ks, ggml_tensor * vs, ggml_tensor * mask) const {
        const auto & hparams = graph.hparams;

        ggml_tensor * kq = ggml_mul_mat(ctx, ks, qs); // [n_kv, n_tps, gqa, n_head_kv]
        ggml_prec_set_acc(kq, GGML_PREC_F32);

        if (hparams.attn_soft_cap) {
            kq = ggml_scale(ctx, kq, 1.0f/hparams.f_attn_logit_softcapping);
            kq = ggml_tanh (ctx, kq);
            kq = ggml_scale(ctx, kq, hparams.f_attn_logit_softcapping);
        }
        kq = ggml_soft_max_ext(ctx, kq, mask, kq_scale, 0.0f);

        if (v->nb[1] <= v->nb[2]) {
            vs = ggml_cont(ctx, ggml_transpose(ctx, vs));
        }
        ggml_tensor * cur = ggml_mul_mat(ctx, vs, kq); // [d_v, n_tps, gqa, n_head_kv]

        cur = ggml_permute(ctx, cur, 0, 3, 1, 2);      // [d_v, gqa, n_head_kv, n_tps]
        cur = ggml_cont_2d(ctx, cur, cur->ne[0]*cur->ne[1]*cur->ne[2], n_tps);
        if (!graph.cparams.offload_kqv) {
            ggml_backend_sched_set_tensor_backend(graph.sched, cur, graph.backend_cpu);
        }
        return cur;
    }
};

} // namespace

static const llama_kv_cache_context * cache_context_of(const llm_graph_context & graph) {
    if (const auto * iswa = dynamic_cast<const llama_kv_cache_iswa_context *>(graph.mctx)) {
        return iswa->get_base();
    }
    return dynamic_cast<const llama_kv_cache_context *>(graph.mctx);
}

ggml_tensor * llama_ecokv_build_attn(
        const llm_graph_context & graph,
        ggml_tensor             * q,
        ggml_tensor             * k,
        ggml_tensor             * v,
        ggml_tensor            *& kq_mask,
        float                     kq_scale,
        int                       il) {
    const auto * mctx = cache_context_of(graph);
    auto       * kv   = mctx ? llama_ecokv_access::cache_of(*mctx) : nullptr;
    if (!kv) {
        return nullptr;
    }

    const auto & st = llama_ecokv_access::store(*kv);
    if (!st || st->owner != kv || !st->masks) {
        return nullptr;
    }

    const int32_t i = llama_ecokv_access::layer_of(*kv, il);
    if (i < 0 || (st->masks->layers[i].how == ecokv_masks::NONE && ecokv_offset(*st, i) == 0)) {
        return nullptr;
    }

    const auto & inputs = graph.res->inputs;
    if (std::none_of(inputs.begin(), inputs.end(), [](const auto & inp) { return dynamic_cast<input_masks *>(inp.get()); })) {
        graph.res->add_input(std::make_unique<input_masks>(st, graph.sched));
    }

    const attention a { graph, st->masks->layers[i], q, k, v, kq_mask, llama_ecokv_access::slots_of(*mctx).s0,
        ecokv_offset(*st, i), kq_scale };

    if (a.layer.how != ecokv_masks::HEADS) {
        kq_mask = a.layer_mask();
        return nullptr;
    }

    ggml_tensor * cur = a.stream(0);
    for (int64_t s = 1; s < a.n_stream; ++s) {
        cur = ggml_concat(graph.ctx0, cur, a.stream(s), 1);
    }
    ggml_build_forward_expand(graph.gf, cur);
    return cur;
}
