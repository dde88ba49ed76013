#include "ecokv-access.h"

#include "llama-context.h"
#include "llama-kv-cache-iswa.h"
#include "llama-model.h"

#include <algorithm>

static llama_kv_cache_iswa * iswa_of(llama_memory_i * mem) {
    return dynamic_cast<llama_kv_cache_iswa *>(mem);
}

llama_kv_cache * llama_ecokv_access::find(llama_context * ctx, int32_t & status) {
    if (!ctx) {
        status = ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "the context is NULL");
        return nullptr;
    }

    auto * mem = ctx->memory.get();

    // classes that merely contain a llama_kv_cache (recurrent, hybrid, DSA, ...) do not derive from it
    auto * iswa = iswa_of(mem);
    auto * kv   = iswa ? iswa->get_base() : dynamic_cast<llama_kv_cache *>(mem);

    const auto & hparams = ctx->model.hparams;
    const char * arch    = llm_arch_name(ctx->model.arch);

    if (!mem || !kv) {
        status = ecokv_fail(LLAMA_ECOKV_ERR_MEMORY,
                "architecture '%s' has no plain attention KV cache (recurrent, hybrid or none)", arch);
        return nullptr;
    }
    if (kv->layers.empty()) {
        status = ecokv_fail(LLAMA_ECOKV_ERR_MEMORY,
                "architecture '%s' has only sliding-window layers, which are bounded already", arch);
        return nullptr;
    }
    if (hparams.is_mla()) {
        status = ecokv_fail(LLAMA_ECOKV_ERR_MEMORY, "architecture '%s' stores latent attention (MLA), not keys and values", arch);
        return nullptr;
    }
    if (kv->other || kv->v_cells_impl.use_count() > 1) {
        status = ecokv_fail(LLAMA_ECOKV_ERR_SHARED, "the cells are shared with another context (draft model)");
        return nullptr;
    }
    if (kv->n_swa > 0) {
        status = ecokv_fail(LLAMA_ECOKV_ERR_MODEL,
                "architecture '%s' keeps sliding-window layers in one full cache; its window is not evictable", arch);
        return nullptr;
    }
    if (hparams.use_alibi || hparams.n_rel_attn_bkts > 0 || hparams.ple_n_heads > 0 || ctx->model.arch == LLM_ARCH_GROK) {
        status = ecokv_fail(LLAMA_ECOKV_ERR_MODEL,
                "architecture '%s' adds position terms to attention (ALiBi, relative buckets, n-grams) that kept rows would break", arch);
        return nullptr;
    }

    status = LLAMA_ECOKV_OK;
    return kv;
}

std::shared_ptr<llama_ecokv_store> & llama_ecokv_access::store(llama_kv_cache & kv) {
    return kv.ecokv;
}

llama_ecokv_store * llama_ecokv_access::store_of(const llama_kv_cache * kv) {
    return kv->ecokv.get();
}

void llama_ecokv_access::install(llama_context & ctx, llama_kv_cache & kv, std::shared_ptr<llama_ecokv_store> store) {
    ctx.synchronize();

    if (store) {
        store->ctx = &ctx;
    }
    kv.ecokv = store;
    if (auto * iswa = iswa_of(ctx.memory.get())) {
        iswa->get_swa()->ecokv = store; // both halves refuse together
    }

    rebuild(ctx);
}

void llama_ecokv_access::rebuild(llama_context & ctx) {
    ctx.sched_need_reserve = true;
}

void llama_ecokv_access::reserve(llama_context & ctx) {
    rebuild(ctx);
    ctx.sched_reserve();
}

const char * llama_ecokv_access::arch(const llama_context & ctx) {
    return llm_arch_name(ctx.model.arch);
}

bool llama_ecokv_access::rotated(const llama_kv_cache & kv, bool value) {
    return value ? kv.attn_rot_v : kv.attn_rot_k;
}

std::vector<ecokv_layer> llama_ecokv_access::layers(llama_kv_cache & kv, uint32_t strm) {
    std::vector<ecokv_layer> res;
    for (const auto & l : kv.layers) {
        res.push_back({
            (int32_t) l.il,
            (int32_t) kv.hparams.n_head(l.il),
            (int32_t) kv.hparams.n_head_kv(l.il),
            (int32_t) kv.hparams.n_embd_head_k(l.il),
            (int32_t) kv.hparams.n_embd_head_v(l.il),
            l.k_stream[strm],
            l.v_stream[strm],
            kv.v_trans,
            kv.ecokv && kv.ecokv->owner == &kv && !kv.ecokv->offset.empty() ? kv.ecokv->offset[res.size()] : 0,
        });
    }
    return res;
}

// the enabled cache that holds a sequence, or null with the reason in status
static llama_kv_cache * find_enabled(llama_context * ctx, llama_seq_id seq_id, int32_t & status) {
    auto * kv = llama_ecokv_access::find(ctx, status);
    if (!kv) {
        return nullptr;
    }
    if (!llama_ecokv_access::store(*kv)) {
        status = ecokv_fail(LLAMA_ECOKV_ERR_STATE, "eviction is not enabled on this context");
        return nullptr;
    }
    if (seq_id < 0 || (uint32_t) seq_id >= kv->get_n_seq_max()) {
        status = ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "sequence %d does not exist (n_seq_max = %u)", seq_id, kv->get_n_seq_max());
        return nullptr;
    }
    return kv;
}

int32_t llama_ecokv_access::n_rows(llama_context * ctx, llama_seq_id seq_id) {
    int32_t status;
    auto * kv = find_enabled(ctx, seq_id, status);
    return kv ? (int32_t) kv->get_cells(seq_id).seq_pos_get(seq_id).size() : status;
}

int32_t llama_ecokv_access::open(llama_context * ctx, llama_seq_id seq_id, ecokv_seq & seq) {
    int32_t status;
    auto * kv = find_enabled(ctx, seq_id, status);
    if (!kv) {
        return status;
    }

    const uint32_t strm = kv->seq_to_stream[seq_id];

    seq = { ctx, kv, kv->ecokv.get(), &kv->v_cells[strm], seq_id, strm, kv->v_trans, false, 0, layers(*kv, strm), {} };

    for (const auto & l : seq.layers) {
        seq.n_head_kv = std::max(seq.n_head_kv, l.n_head_kv);
    }

    seq.cell = cells_by_pos(*kv, seq_id);
    for (uint32_t c : seq.cell) {
        seq.shared = seq.shared || seq.cells->seq_count(c) > 1;
    }

    return LLAMA_ECOKV_OK;
}

llama_kv_cache * llama_ecokv_access::window_of(llama_context & ctx) {
    auto * iswa = iswa_of(ctx.memory.get());
    return iswa ? iswa->get_swa() : nullptr;
}

llama_kv_cells & llama_ecokv_access::cells_of(llama_kv_cache & kv, llama_seq_id seq_id) {
    return kv.v_cells[kv.seq_to_stream[seq_id]];
}

std::vector<uint32_t> llama_ecokv_access::cells_by_pos(llama_kv_cache & kv, llama_seq_id seq_id) {
    const auto & cells = cells_of(kv, seq_id);

    std::vector<uint32_t> res;
    for (const auto & [pos, c] : cells.seq_pos_get(seq_id)) {
        if (!llama_hparams::is_masked_swa(kv.n_swa, kv.swa_type, pos, cells.seq_pos_max(seq_id))) {
            res.push_back(c);
        }
    }

    // tokens of one image share their position under M-RoPE: raster order, which is what its mask uses
    std::stable_sort(res.begin(), res.end(), [&](uint32_t a, uint32_t b) {
        const llama_pos pa = cells.pos_get(a);
        const llama_pos pb = cells.pos_get(b);
        if (pa != pb) {
            return pa < pb;
        }
        const auto & ea = cells.ext_get(a);
        const auto & eb = cells.ext_get(b);
        return eb.is_2d_gt(ea.x, ea.y);
    });
    return res;
}

bool ecokv_seq::has_holes(int32_t layer) const {
    for (int32_t h = 0; h < layers[layer].n_head_kv; ++h) {
        if (first(layer, h) > 0) {
            return true;
        }
    }
    return false;
}

std::vector<uint32_t> ecokv_seq::rows(int32_t layer) const {
    auto res = cell;
    for (auto & c : res) {
        c -= std::min(c, layers[layer].offset);
    }
    return res;
}

void llama_ecokv_access::shape(llama_kv_cache & kv, llama_ecokv_shape & shape) {
    shape = {};

    shape.n_layer       = (int32_t) kv.layers.size();
    shape.n_cells       = (int32_t) kv.v_cells[0].size();
    shape.n_stream      = (int32_t) kv.n_stream;
    shape.n_seq_max     = (int32_t) kv.n_seq_max;
    shape.v_trans       = kv.v_trans;
    shape.on_host       = 1;

    for (uint32_t il = 0; il < kv.hparams.n_layer_all; ++il) {
        shape.n_layer_other += kv.hparams.has_kv(il) && kv.hparams.is_swa(il);
    }

    for (const auto & l : layers(kv, 0)) {
        shape.n_head_kv = std::max(shape.n_head_kv, l.n_head_kv);
        if (!ggml_backend_buffer_is_host(l.k->buffer) || !ggml_backend_buffer_is_host(l.v->buffer)) {
            shape.on_host = 0;
        }
    }
}

void llama_ecokv_access::settle(llama_context & ctx, llama_kv_cache & kv) {
    if (kv.get_has_shift() || !kv.sc_info.empty()) {
        ctx.memory_update(false);
    }
    ctx.synchronize();
}

llama_ecokv_access::layout llama_ecokv_access::new_layout(const llama_kv_cache & kv, uint32_t n_cells, const std::vector<uint32_t> & offset) {
    layout res = { n_cells, {}, {} };

    const size_t n_tensors = 2*(1 + kv.n_stream)*kv.layers.size();

    std::vector<std::pair<ggml_backend_buffer_type_t, ggml_context_ptr>> ctxs;

    auto add = [&](const ggml_tensor * like, uint32_t n_rows, std::vector<ggml_tensor *> & streams) {
        auto * buft = ggml_backend_buffer_get_type(like->buffer);

        auto it = std::find_if(ctxs.begin(), ctxs.end(), [&](const auto & c) { return c.first == buft; });
        if (it == ctxs.end()) {
            ctxs.emplace_back(buft, ggml_context_ptr(ggml_init({ n_tensors*ggml_tensor_overhead(), nullptr, true })));
            it = std::prev(ctxs.end());
        }
        auto * ctx = it->second.get();

        ggml_tensor * t = ggml_new_tensor_3d(ctx, like->type, like->ne[0], n_rows, kv.n_stream);
        ggml_set_name(t, like->name);
        for (uint32_t s = 0; s < kv.n_stream; ++s) {
            streams.push_back(ggml_view_2d(ctx, t, t->ne[0], t->ne[1], t->nb[1], s*t->nb[2]));
        }
        return t;
    };

    for (size_t i = 0; i < kv.layers.size(); ++i) {
        llama_kv_cache::kv_layer l = {};
        l.il = kv.layers[i].il;
        l.k  = add(kv.layers[i].k, n_cells - offset[i], l.k_stream);
        l.v  = add(kv.layers[i].v, n_cells - offset[i], l.v_stream);
        res.layers.push_back(std::move(l));
    }

    for (auto & [buft, ctx] : ctxs) {
        auto * buf = ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft);
        if (!buf) {
            return { n_cells, {}, {} };
        }
        ggml_backend_buffer_clear(buf, 0); // as upstream: no NaN in the padding
        res.ctxs_bufs.emplace_back(std::move(ctx), buf);
    }
    return res;
}

void llama_ecokv_access::replace(llama_kv_cache & kv, layout && layout) {
    kv.layers    = std::move(layout.layers);
    kv.ctxs_bufs = std::move(layout.ctxs_bufs);

    for (uint32_t s = 0; s < kv.n_stream; ++s) {
        auto & cells = kv.v_cells[s];
        if (cells.size() == layout.n_cells) {
            continue;
        }
        std::vector<uint32_t> idxs;
        for (uint32_t c = 0; c < cells.used_max_p1(); ++c) {
            if (!cells.is_empty(c)) {
                idxs.push_back(c);
            }
        }
        const auto saved = cells.cp(idxs);
        cells.resize(layout.n_cells); // forgets everything
        cells.set(idxs, saved);
        if (kv.v_heads[s] >= layout.n_cells) {
            kv.v_heads[s] = 0;
        }
    }
}

uint32_t llama_ecokv_access::n_used(const llama_kv_cache & kv, uint32_t strm) {
    return kv.v_cells[strm].used_max_p1();
}

int32_t llama_ecokv_access::n_threads(const llama_context & ctx) {
    return ctx.cparams.n_threads_batch;
}

ggml_backend_sched_t llama_ecokv_access::sched(llama_context & ctx, llama_ecokv_store & store, size_t n_nodes) {
    if (!store.sched || store.sched_nodes < n_nodes) {
        store.sched.reset(ggml_backend_sched_new(
                    ctx.backend_ptrs.data(), ctx.backend_buft.data(), ctx.backend_ptrs.size(), n_nodes, false, false));
        store.sched_nodes = n_nodes;
    }
    ggml_backend_sched_reset(store.sched.get());

    for (const auto & [backend, set_n_threads] : ctx.set_n_threads_fns) {
        set_n_threads(backend, ctx.cparams.n_threads_batch);
    }

    return store.sched.get();
}

size_t llama_ecokv_access::sched_bytes(llama_context & ctx, ggml_backend_sched_t sched) {
    size_t res = 0;
    for (auto * backend : ctx.backend_ptrs) {
        res += ggml_backend_sched_get_buffer_size(sched, backend);
    }
    return res;
}

uint32_t llama_ecokv_access::head(const llama_kv_cache & kv, uint32_t strm) {
    return kv.v_heads[strm];
}

void llama_ecokv_access::set_head(llama_kv_cache & kv, uint32_t strm, uint32_t head) {
    kv.v_heads[strm] = head < kv.v_cells[strm].size() ? head : 0;
}

void llama_ecokv_access::clear_seq(const ecokv_seq & seq) {
    for (uint32_t c : seq.cell) {
        if (!seq.cells->is_empty(c) && seq.cells->seq_has(c, seq.id)) {
            seq.cells->seq_rm(c, seq.id);
        }
    }
    set_head(seq, 0);
    seq.store->reset(seq.id);
}

llama_kv_cache * llama_ecokv_access::cache_of(const llama_kv_cache_context & mctx) {
    return mctx.kv;
}

const llama_kv_cache::slot_info & llama_ecokv_access::slots_of(const llama_kv_cache_context & mctx) {
    return mctx.sinfos[mctx.i_cur];
}

uint32_t llama_ecokv_access::stream_of(const llama_kv_cache & kv, llama_seq_id seq_id) {
    return kv.seq_to_stream[seq_id];
}

int32_t llama_ecokv_access::layer_of(const llama_kv_cache & kv, int32_t il) {
    const auto it = kv.map_layer_ids.find(il);
    return it == kv.map_layer_ids.end() ? -1 : it->second;
}
