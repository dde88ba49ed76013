#include "ecokv-resize.h"

#include "ecokv-auto.h"
#include "ecokv-hooks.h"
#include "ecokv-mask.h"

#include "ggml-cpp.h"

#include "llama-context.h"
#include "llama-impl.h"
#include "llama-kv-cache-iswa.h"

#include <algorithm>
#include <cstring>

// as upstream pads a context, and the number of cells that a graph looks at: n_kv stays what it would have been
static const uint32_t PAD_CELLS = 256;

uint32_t ecokv_pad_cells(uint32_t n_cells) {
    return GGML_PAD(n_cells, PAD_CELLS);
}

// rows left out in front: attention kernels of a GPU prefer whole tiles, a CPU does not care
static const uint32_t PAD_OFFSET_HOST = 32;
static const uint32_t PAD_OFFSET      = 256;

uint32_t ecokv_offset(const llama_ecokv_store & store, int32_t layer) {
    return store.offset.empty() ? 0 : store.offset[layer];
}

std::vector<uint32_t> ecokv_offsets_possible(const llama_ecokv_store & store, llama_kv_cache & kv) {
    const auto layers = llama_ecokv_access::layers(kv, 0);

    std::vector<uint32_t> res(layers.size(), 0);
    if (!store.masks || kv.get_n_stream() != 1) {
        return res; // separate sequences share their tensors: a row of one is a row of all
    }

    const auto & m = *store.masks;
    for (size_t i = 0; i < layers.size(); ++i) {
        int64_t n = m.n_cells;
        for (int32_t h = 0; h < layers[i].n_head_kv; ++h) {
            const auto first = m.layers[i].hole.begin() + h*m.n_cells;
            n = std::min<int64_t>(n, std::find(first, first + m.n_cells, 0) - first);
        }
        const bool on_host = ggml_backend_buffer_is_host(layers[i].k->buffer) && ggml_backend_buffer_is_host(layers[i].v->buffer);
        const int64_t pad  = on_host ? PAD_OFFSET_HOST : PAD_OFFSET;
        res[i] = (uint32_t) (n/pad*pad);
    }
    return res;
}

namespace {

// rows [c0, c1) of one layer and stream from one tensor to another
struct row_copy {
    ggml_tensor * src;
    ggml_tensor * dst;

    uint32_t src_off; // cell of row 0
    uint32_t dst_off;

    bool trans;

    void run(uint32_t c0, uint32_t c1) const {
        if (c1 <= c0) {
            return;
        }
        std::vector<uint8_t> buf;
        if (!trans) {
            buf.resize((c1 - c0)*src->nb[1]);
            ggml_backend_tensor_get(src, buf.data(), (c0 - src_off)*src->nb[1], buf.size());
            ggml_backend_tensor_set(dst, buf.data(), (c0 - dst_off)*dst->nb[1], buf.size());
            return;
        }

        // one row of cells per channel. whole tensors pass through the host: channel by channel would be thousands of copies
        const size_t es = ggml_type_size(src->type);
        std::vector<uint8_t> all(ggml_nbytes(dst), 0);
        buf.resize(ggml_nbytes(src));
        ggml_backend_tensor_get(src, buf.data(), 0, buf.size());
        for (int64_t i = 0; i < src->ne[0]; ++i) {
            memcpy(all.data() + (i*dst->ne[1] + (c0 - dst_off))*es, buf.data() + (i*src->ne[1] + (c0 - src_off))*es, (c1 - c0)*es);
        }
        ggml_backend_tensor_set(dst, all.data(), 0, all.size());
    }
};

} // namespace

int32_t ecokv_reallocate(llama_ecokv_store & store, llama_kv_cache & kv, uint32_t n_cells, const std::vector<uint32_t> & offset) {
    auto layout = llama_ecokv_access::new_layout(kv, n_cells, offset);
    if (layout.layers.empty()) {
        return ecokv_fail(LLAMA_ECOKV_ERR_ALLOC, "no memory for %u cells: the cache stays as it is", n_cells);
    }

    const auto old = store.masks;
    try {
        if (store.masks) {
            ecokv_masks_resize(store, kv, store.masks->layers[0].mask->type, n_cells);
        }

        for (uint32_t s = 0; s < kv.get_n_stream(); ++s) {
            const auto     before = llama_ecokv_access::layers(kv, s);
            const uint32_t n_used = llama_ecokv_access::n_used(kv, s);
            for (size_t i = 0; i < before.size(); ++i) {
                const uint32_t from = ecokv_offset(store, (int32_t) i);
                const uint32_t c0   = std::max(from, offset[i]);
                row_copy { before[i].k, layout.layers[i].k_stream[s], from, offset[i], false            }.run(c0, n_used);
                row_copy { before[i].v, layout.layers[i].v_stream[s], from, offset[i], before[i].v_trans }.run(c0, n_used);
            }
        }
    } catch (const std::bad_alloc &) {
        store.masks = old;
        return ecokv_fail(LLAMA_ECOKV_ERR_ALLOC, "no memory to move to %u cells: the cache stays as it is", n_cells);
    }

    store.offset = offset;
    store.n_layouts++;
    llama_ecokv_access::replace(kv, std::move(layout));
    llama_ecokv_access::rebuild(*store.ctx);

    return LLAMA_ECOKV_OK;
}

int32_t ecokv_make_room(llama_ecokv_store & store, llama_kv_cache & kv, const std::vector<uint32_t> & need) {
    auto offset  = store.offset;
    bool changed = false;
    for (size_t i = 0; i < offset.size(); ++i) {
        if (need[i] < offset[i]) {
            offset[i] = 0;
            changed   = true;
        }
    }
    return changed ? ecokv_reallocate(store, kv, kv.get_size(), offset) : (int32_t) LLAMA_ECOKV_OK;
}

int32_t llama_ecokv_resize(llama_context * ctx, int32_t n_cells) {
    try {
        int32_t status;
        auto * kv = llama_ecokv_access::find(ctx, status);
        if (!kv) {
            return status;
        }
        const auto & store = llama_ecokv_access::store(*kv);
        if (!store) {
            return ecokv_fail(LLAMA_ECOKV_ERR_STATE, "eviction is not enabled on this context");
        }

        uint32_t n_used = 0;
        for (uint32_t s = 0; s < kv->get_n_stream(); ++s) {
            n_used = std::max(n_used, llama_ecokv_access::n_used(*kv, s));
        }
        if (n_cells < 1 || n_cells > INT32_MAX - (int32_t) PAD_CELLS || (uint32_t) n_cells < n_used) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "%d cells: %u are in use", n_cells, n_used);
        }

        llama_ecokv_access::settle(*ctx, *kv);

        const uint32_t n      = GGML_PAD((uint32_t) n_cells, PAD_CELLS);
        const auto     offset = ecokv_offsets_possible(*store, *kv);
        auto           now    = store->offset;
        now.resize(offset.size(), 0);

        if (n != kv->get_size() || offset != now) {
            status = ecokv_reallocate(*store, *kv, n, offset);
        }
        return status == LLAMA_ECOKV_OK ? (int32_t) n : status;
    } catch (const std::exception & e) {
        return ecokv_fail(LLAMA_ECOKV_ERR_ALLOC, "%s", e.what());
    }
}

// of the context that this thread is making, 0: nothing was said
static thread_local uint32_t initial_cells = 0;

uint32_t ecokv_initial_cells() {
    return initial_cells;
}

llama_context * llama_ecokv_init_from_model(llama_model * model, llama_context_params params, int32_t n_cells) {
    if (n_cells < 1 || n_cells > INT32_MAX - (int32_t) PAD_CELLS) {
        ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "%d cells to begin with", n_cells);
        return nullptr;
    }
    initial_cells = GGML_PAD((uint32_t) n_cells, PAD_CELLS);
    llama_context * ctx = llama_init_from_model(model, params);
    initial_cells = 0;
    return ctx;
}

int64_t llama_ecokv_kv_bytes(llama_context * ctx) {
    int32_t status;
    auto * kv = llama_ecokv_access::find(ctx, status);
    if (!kv) {
        return status;
    }
    int64_t res = 0;
    for (const auto & [_, size] : kv->memory_breakdown()) {
        res += (int64_t) size;
    }
    return res;
}

//
// hooks
//

// the cells in front of a layer that does not hold them are still holes
static bool offsets_hold(const llama_ecokv_store & store, llama_kv_cache & kv) {
    if (std::all_of(store.offset.begin(), store.offset.end(), [](uint32_t x) { return x == 0; })) {
        return true;
    }
    const auto possible = ecokv_offsets_possible(store, kv);
    for (size_t i = 0; i < store.offset.size(); ++i) {
        if (store.offset[i] > possible[i]) {
            return false;
        }
    }
    return true;
}

int32_t ecokv_make_whole(llama_kv_cache & kv) {
    const auto & store = llama_ecokv_access::store(kv);
    store->ctx->synchronize();
    return ecokv_make_room(*store, kv, std::vector<uint32_t>(store->offset.size(), 0));
}

uint32_t llama_ecokv_initial_size(uint32_t kv_size, uint32_t n_swa) {
    if (n_swa > 0) {
        return kv_size;
    }
    if (initial_cells > 0) {
        return std::min(kv_size, initial_cells);
    }
    ecokv_auto wanted;
    return ecokv_auto_read(wanted) ? std::min(kv_size, ecokv_pad_cells(wanted.config.budget + wanted.slack)) : kv_size;
}

bool llama_ecokv_on_prepare(llama_kv_cache * kv) {
    const auto * store = llama_ecokv_access::store_of(kv);
    if (!store || store->owner != kv || offsets_hold(*store, *kv)) {
        return true;
    }
    if (ecokv_make_whole(*kv) == LLAMA_ECOKV_OK) {
        return true;
    }
    LLAMA_LOG_ERROR("%s: %s\n", __func__, llama_ecokv_last_error());
    return false;
}

namespace {

// where the tokens of an ubatch go in layers that do not hold the first cells
class input_rows : public llm_graph_input_i {
public:
    input_rows(const llama_kv_cache_context * mctx, std::shared_ptr<llama_ecokv_store> store, bool iswa) :
        mctx(mctx), store(std::move(store)), iswa(iswa), version(this->store->n_layouts) {}

    void set_input(const llama_ubatch *) override {
        const auto & sinfo = llama_ecokv_access::slots_of(*mctx); // of one stream

        std::vector<int64_t> data;
        for (const auto & r : rows) {
            if (!r.idxs->buffer) {
                continue;
            }
            const int64_t n_channels = r.idxs->ne[0]/(int64_t) sinfo.size();
            data.clear();
            for (uint32_t cell : sinfo.idxs[0]) {
                for (int64_t j = 0; j < n_channels; ++j) {
                    data.push_back(j*r.n_rows + (int64_t) cell - r.offset);
                }
            }
            ggml_backend_tensor_set(r.idxs, data.data(), 0, ggml_nbytes(r.idxs));
        }
    }

    bool can_reuse(const llm_graph_params & params) override {
        mctx = iswa ?
            static_cast<const llama_kv_cache_iswa_context *>(params.mctx)->get_base() :
            static_cast<const llama_kv_cache_context      *>(params.mctx);

        return store->n_layouts == version;
    }

    std::vector<llama_ecokv_store::rows> rows;

private:
    const llama_kv_cache_context * mctx;

    const std::shared_ptr<llama_ecokv_store> store;

    const bool     iswa;
    const uint64_t version;
};

} // namespace

ggml_tensor * llama_ecokv_idxs(const llama_kv_cache * kv, ggml_context * ctx, ggml_tensor * idxs, int il) {
    auto * st = llama_ecokv_access::store_of(kv);
    if (!st || st->owner != kv || st->offset.empty()) {
        return idxs;
    }
    const int32_t i = llama_ecokv_access::layer_of(*kv, il);
    if (i < 0 || st->offset[i] == 0) {
        return idxs;
    }
    ggml_tensor * res = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, idxs->ne[0]);
    ggml_set_input(res);
    ggml_format_name(res, "ecokv_rows_l%d", il);
    st->pending.push_back({ res, st->offset[i], (int64_t) kv->get_size() - st->offset[i] });
    return res;
}

void ecokv_claim_rows(const llm_graph_context & graph, const llama_kv_cache_context * mctx, const std::shared_ptr<llama_ecokv_store> & store) {
    if (store->offset.empty()) {
        return;
    }
    input_rows * inp = nullptr;
    for (auto & x : graph.res->inputs) {
        if (auto * found = dynamic_cast<input_rows *>(x.get())) {
            inp = found;
        }
    }
    if (!inp) {
        const bool iswa = dynamic_cast<const llama_kv_cache_iswa_context *>(graph.mctx) != nullptr;
        inp = static_cast<input_rows *>(graph.res->add_input(std::make_unique<input_rows>(mctx, store, iswa)));
    }
    inp->rows.insert(inp->rows.end(), store->pending.begin(), store->pending.end());
    store->pending.clear();
}

ggml_tensor * llama_ecokv_get_k(const llama_kv_cache * kv, ggml_context * ctx, int il, uint32_t n_kv) {
    const auto * st = llama_ecokv_access::store_of(kv);
    const int32_t i = st && st->owner == kv && !st->offset.empty() ? llama_ecokv_access::layer_of(*kv, il) : -1;
    if (i < 0 || st->offset[i] == 0) {
        return nullptr;
    }
    const auto l = llama_ecokv_access::layers(*const_cast<llama_kv_cache *>(kv), 0)[i];
    return ggml_view_4d(ctx, l.k, l.d_k, l.n_head_kv, n_kv - st->offset[i], 1, ggml_row_size(l.k->type, l.d_k), l.k->nb[1], l.k->nb[2], 0);
}

ggml_tensor * llama_ecokv_get_v(const llama_kv_cache * kv, ggml_context * ctx, int il, uint32_t n_kv) {
    const auto * st = llama_ecokv_access::store_of(kv);
    const int32_t i = st && st->owner == kv && !st->offset.empty() ? llama_ecokv_access::layer_of(*kv, il) : -1;
    if (i < 0 || st->offset[i] == 0) {
        return nullptr;
    }
    const auto    l = llama_ecokv_access::layers(*const_cast<llama_kv_cache *>(kv), 0)[i];
    const int64_t n = n_kv - st->offset[i];
    if (!l.v_trans) {
        return ggml_view_4d(ctx, l.v, l.d_v, l.n_head_kv, n, 1, ggml_row_size(l.v->type, l.d_v), l.v->nb[1], l.v->nb[2], 0);
    }
    const size_t channel = ggml_row_size(l.v->type, l.v->ne[1]);
    return ggml_view_4d(ctx, l.v, n, l.n_head_kv, l.d_v, 1, channel*l.d_v, channel, channel*l.v->ne[0], 0);
}
