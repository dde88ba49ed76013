#include "ecokv-store.h"

#include "ecokv-access.h"
#include "ecokv-hooks.h"
#include "ecokv-mask.h"
#include "ecokv-resize.h"

#include "llama-graph.h"
#include "llama-kv-cache-iswa.h"

#include <algorithm>
#include <limits>

//
// llama_ecokv_store
//

void llama_ecokv_store::reset(llama_seq_id seq_id) {
    for (uint32_t s = 0; s < n_seq; ++s) {
        if (seq_id >= 0 && s != (uint32_t) seq_id) {
            continue;
        }
        ecokv_masks_forget(*this, s);
        std::fill(slots.begin() + s*n_ring, slots.begin() + (s + 1)*n_ring, slot {});
        head[s] = 0;
        seqs[s] = {};
    }
}

void llama_ecokv_store::adopt(const llama_ecokv_store & other) {
    seqs     = other.seqs;
    counters = other.counters;
    masks    = other.masks;
    offset   = other.offset;
    n_layouts = other.n_layouts;
    tick     = other.tick;

    std::vector<uint8_t> row;

    for (uint32_t s = 0; s < n_seq; ++s) {
        std::vector<uint32_t> from;
        for (uint32_t i = s*other.n_ring; i < (s + 1)*other.n_ring; ++i) {
            if (other.slots[i].tick >= 0) {
                from.push_back(i);
            }
        }
        std::sort(from.begin(), from.end(), [&](uint32_t a, uint32_t b) { return other.slots[a].tick < other.slots[b].tick; });
        if (from.size() > n_ring) {
            from.erase(from.begin(), from.end() - n_ring);
        }

        for (size_t j = 0; j < from.size(); ++j) {
            const uint32_t to = s*n_ring + (uint32_t) j;
            slots[to] = other.slots[from[j]];
            for (size_t i = 0; i < layers.size(); ++i) {
                row.resize(layers[i].q->nb[1]);
                ggml_backend_tensor_get(other.layers[i].q, row.data(), from[j]*row.size(), row.size());
                ggml_backend_tensor_set(layers[i].q,       row.data(), to*row.size(),      row.size());
            }
        }
        head[s] = (uint32_t) (from.size() % n_ring);
    }

    for (size_t i = 0; i < layers.size(); ++i) {
        layers[i].kq_scale = other.layers[i].kq_scale;
        layers[i].sinks    = other.layers[i].sinks;
    }
}

void llama_ecokv_store::rewind(llama_seq_id seq_id, llama_pos p0) {
    for (uint32_t i = 0; i < n_ring; ++i) {
        const uint32_t last = (head[seq_id] + n_ring - 1) % n_ring;
        auto & s = slots[seq_id*n_ring + last];
        if (s.tick < 0 || s.pos < p0) {
            return;
        }
        s = {};
        head[seq_id] = last;
    }
}

size_t llama_ecokv_store::bytes() const {
    size_t res = 0;
    for (const auto & [_, buf] : ctxs_bufs) {
        res += ggml_backend_buffer_get_size(buf.get());
    }
    return res;
}

//
// ring
//

int32_t ecokv_rank_of(const ecokv_seq & seq, uint32_t cell) {
    const auto it = std::find(seq.cell.begin(), seq.cell.end(), cell);
    return it == seq.cell.end() ? -1 : (int32_t) (it - seq.cell.begin());
}

int32_t ecokv_rank_of_slot(const ecokv_seq & seq, const llama_ecokv_store::slot & slot) {
    if (slot.cell != llama_ecokv_store::slot::NO_CELL) {
        return ecokv_rank_of(seq, slot.cell);
    }
    const auto end = std::partition_point(seq.cell.begin(), seq.cell.end(), [&](uint32_t c) { return seq.cells->pos_get(c) <= slot.pos; });
    return (int32_t) (end - seq.cell.begin()) - 1;
}

std::vector<uint32_t> ecokv_valid_slots(const ecokv_seq & seq) {
    const auto & st    = *seq.store;
    const auto & cells = *seq.cells;

    const uint32_t i0 = seq.id*st.n_ring;
    const uint32_t i1 = i0 + st.n_ring;

    auto valid = [&](const llama_ecokv_store::slot & s) {
        if (s.tick >= 0 && s.cell == llama_ecokv_store::slot::NO_CELL) {
            return ecokv_rank_of_slot(seq, s) >= 0;
        }
        return s.tick >= 0 && !cells.is_empty(s.cell) && cells.seq_has(s.cell, seq.id) && cells.pos_get(s.cell) == s.pos;
    };

    std::vector<uint32_t> res;
    for (uint32_t i = i0; i < i1; ++i) {
        const auto & s = st.slots[i];
        // after a rollback two slots may name one cell: the newer one holds its query
        const bool newest = std::none_of(st.slots.begin() + i0, st.slots.begin() + i1, [&](const auto & o) {
            return s.cell != llama_ecokv_store::slot::NO_CELL && o.cell == s.cell && o.tick > s.tick;
        });
        if (valid(s) && newest) {
            res.push_back(i);
        }
    }

    std::sort(res.begin(), res.end(), [&](uint32_t a, uint32_t b) { return st.slots[a].tick < st.slots[b].tick; });

    const size_t window = st.params.n_window;
    if (res.size() > window) {
        res.erase(res.begin(), res.end() - window);
    }
    return res;
}

void ecokv_true_positions(const ecokv_seq & seq, llama_pos * pos) {
    const auto  & lossy = seq.store->seqs[seq.id];
    const int32_t n     = seq.n();

    for (int64_t at = 0; at < (int64_t) seq.layers.size()*seq.n_head_kv; ++at) {
        for (int32_t r = 0; r < n; ++r) {
            pos[at*n + r] = r < lossy.n_rows ? lossy.pos[at*lossy.n_rows + r] : seq.cells->pos_get(seq.cell[r]);
        }
    }
}

//
// graph hook
//

namespace {

// rows of the ring that the queries of an ubatch go to: I64 [n_sel]
class input_ring_idxs : public llm_graph_input_i {
public:
    input_ring_idxs(const llama_kv_cache_context * mctx, int64_t n_sel, bool iswa) : mctx(mctx), n_sel(n_sel), iswa(iswa) {}

    // how many of the last tokens of an ubatch are looked at
    static int64_t n_sel_of(const llama_ubatch & ubatch, int64_t n_ring) {
        return ubatch.n_seqs_unq == 1 ? std::min<int64_t>(ubatch.n_tokens, n_ring) : (int64_t) ubatch.n_tokens;
    }

    // called once per computed ubatch: this is where the host side of the ring moves on
    void set_input(const llama_ubatch * ubatch) override {
        if (!idxs->buffer) {
            return;
        }

        auto & st = *llama_ecokv_access::store(*llama_ecokv_access::cache_of(*mctx));

        const auto & sinfo = llama_ecokv_access::slots_of(*mctx);

        const int64_t  n     = ubatch->n_tokens;
        const uint32_t n_tps = sinfo.size();

        // tokens that follow in the same sequence
        std::vector<uint32_t> count(st.n_seq, 0);
        std::vector<uint32_t> after(n, UINT32_MAX);
        for (int64_t i = n - 1; i >= 0; --i) {
            const llama_seq_id s = ubatch->seq_id[i][0];
            if (s >= 0 && (uint32_t) s < st.n_seq) {
                after[i] = count[s]++;
            }
        }

        const int64_t trash = (int64_t) st.n_seq*st.n_ring;

        std::vector<int64_t> data(n_sel, trash);
        for (int64_t i = n - n_sel; i < n; ++i) {
            if (after[i] >= st.n_ring) {
                continue;
            }
            const llama_seq_id s = ubatch->seq_id[i][0];
            const uint32_t     h = st.head[s];

            st.head[s] = (h + 1) % st.n_ring;
            st.slots[s*st.n_ring + h] = { st.tick++, ubatch->pos[i], sinfo.idxs[i/n_tps][i%n_tps] };

            data[i - (n - n_sel)] = (int64_t) s*st.n_ring + h;
        }

        ggml_backend_tensor_set(idxs, data.data(), 0, data.size()*sizeof(int64_t));
    }

    bool can_reuse(const llm_graph_params & params) override {
        mctx = iswa ?
            static_cast<const llama_kv_cache_iswa_context *>(params.mctx)->get_base() :
            static_cast<const llama_kv_cache_context      *>(params.mctx);

        const auto & st = llama_ecokv_access::store(*llama_ecokv_access::cache_of(*mctx));

        return st && idxs->ne[0] == n_sel_of(params.ubatch, st->n_ring);
    }

    ggml_tensor * idxs = nullptr;

private:
    const llama_kv_cache_context * mctx;
    const int64_t n_sel;
    const bool    iswa;
};

} // namespace

static input_ring_idxs * get_ring_idxs(const llm_graph_context & graph, const llama_kv_cache_context * mctx, int64_t n_sel) {
    for (auto & inp : graph.res->inputs) {
        if (auto * res = dynamic_cast<input_ring_idxs *>(inp.get())) {
            return res;
        }
    }

    const bool iswa = dynamic_cast<const llama_kv_cache_iswa_context *>(graph.mctx) != nullptr;

    auto inp = std::make_unique<input_ring_idxs>(mctx, n_sel, iswa);

    inp->idxs = ggml_new_tensor_1d(graph.ctx0, GGML_TYPE_I64, n_sel);
    ggml_set_input(inp->idxs);
    ggml_set_name (inp->idxs, "ecokv_ring_idxs");

    return static_cast<input_ring_idxs *>(graph.res->add_input(std::move(inp)));
}

void llama_ecokv_build_store_q(
        const llm_graph_context      & graph,
        const llama_kv_cache_context * mctx,
        ggml_tensor                  * q_cur,
        ggml_tensor                  * sinks,
        float                          kq_scale,
        int                            il) {
    auto * kv = llama_ecokv_access::cache_of(*mctx);
    if (!kv) {
        return;
    }

    auto * st = llama_ecokv_access::store(*kv).get();
    if (!st || st->owner != kv) {
        return;
    }

    const int32_t i = llama_ecokv_access::layer_of(*kv, il);
    if (i < 0 || st->layers[i].il != il) {
        return; // not cached, or a layer that reuses the keys of another
    }

    ecokv_claim_rows(graph, mctx, llama_ecokv_access::store(*kv));

    auto & layer = st->layers[i];
    layer.kq_scale = kq_scale;
    layer.sinks    = sinks;

    auto * ctx0 = graph.ctx0;

    const int64_t n_sel    = input_ring_idxs::n_sel_of(graph.ubatch, st->n_ring);
    const int64_t n_tokens = q_cur->ne[2];

    ggml_tensor * q = q_cur; // [d, n_head, n_tokens]
    if (q->nb[1] != q->ne[0]*ggml_element_size(q) || q->nb[2] != q->ne[1]*q->nb[1]) {
        q = ggml_cont(ctx0, q);
    }
    q = ggml_view_2d(ctx0, q, q->ne[0]*q->ne[1], n_sel, q->nb[2], (n_tokens - n_sel)*q->nb[2]);

    ggml_build_forward_expand(graph.gf, ggml_set_rows(ctx0, layer.q, q, get_ring_idxs(graph, mctx, n_sel)->idxs));
}

//
// guards: an evicted sequence is never an exact prefix
//

static bool covers_all(llama_pos p0, llama_pos p1) {
    return p0 <= 0 && (p1 < 0 || p1 == std::numeric_limits<llama_pos>::max());
}

static bool is_edited(const llama_ecokv_store & store, llama_seq_id seq_id) {
    if (seq_id < 0) {
        return std::any_of(store.seqs.begin(), store.seqs.end(), [](const auto & s) { return s.edited; });
    }
    return (uint32_t) seq_id < store.n_seq && store.seqs[seq_id].edited;
}

void llama_ecokv_on_seq_keep(llama_ecokv_store * store, llama_seq_id seq_id) {
    for (uint32_t s = 0; store && s < store->n_seq; ++s) {
        if (s != (uint32_t) seq_id) {
            store->reset(s);
        }
    }
}

void llama_ecokv_on_reset(llama_ecokv_store * store, llama_seq_id seq_id) {
    if (store) {
        store->reset(seq_id);
    }
}

bool llama_ecokv_on_seq_rm(const llama_kv_cache * kv, llama_seq_id seq_id, llama_pos p0, llama_pos p1) {
    auto * store = llama_ecokv_access::store_of(kv);
    if (!store) {
        return true;
    }
    if (covers_all(p0, p1)) {
        if (store->owner == kv) { // a restore of the sliding-window half alone empties that first
            store->reset(seq_id);
        }
        return true;
    }
    auto meant = [&](uint32_t s) { return seq_id < 0 || s == (uint32_t) seq_id; };

    for (uint32_t s = 0; s < store->n_seq; ++s) {
        const auto & seq = store->seqs[s];
        if (meant(s) && seq.edited && p0 < seq.safe_pos && (p1 < 0 || p1 > p0)) {
            ecokv_fail(LLAMA_ECOKV_ERR_STATE, "sequence %u was evicted: positions below %d cannot be removed alone", s, seq.safe_pos);
            return false;
        }
    }
    for (uint32_t s = 0; s < store->n_seq; ++s) {
        if (meant(s) && (p1 < 0 || p1 == std::numeric_limits<llama_pos>::max())) {
            store->rewind(s, p0);
        }
    }
    return true;
}

bool llama_ecokv_on_seq_cp(llama_ecokv_store * store, llama_seq_id seq_id_src, llama_seq_id seq_id_dst, llama_pos p0, llama_pos p1) {
    if (!store || seq_id_src == seq_id_dst || !is_edited(*store, seq_id_src)) {
        return true;
    }
    ecokv_fail(LLAMA_ECOKV_ERR_STATE, "sequence %d was evicted: positions [%d, %d) of it cannot be copied", seq_id_src, p0, p1);
    return false;
}

bool llama_ecokv_can_shift(const llama_ecokv_store * store, llama_seq_id seq_id) {
    auto cut = [&]() { return std::any_of(store->offset.begin(), store->offset.end(), [](uint32_t x) { return x > 0; }); };

    if (!store || (!is_edited(*store, seq_id) && !cut())) {
        return true;
    }
    ecokv_fail(LLAMA_ECOKV_ERR_STATE, "sequence %d was evicted: its positions cannot be shifted", seq_id);
    return false;
}
