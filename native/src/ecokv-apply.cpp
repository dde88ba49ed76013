#include "ecokv-apply.h"
#include "ecokv-mask.h"
#include "ecokv-resize.h"

#include <algorithm>
#include <atomic>
#include <cstring>

int32_t ecokv_apply_check(const ecokv_seq & seq, const ecokv_kept & kept) {
    const int32_t n = seq.n();

    if (seq.shared) {
        return ecokv_fail(LLAMA_ECOKV_ERR_SHARED, "sequence %d shares cells with another sequence", seq.id);
    }
    if (kept.n_layer != (int32_t) seq.layers.size() || kept.n_head_kv != seq.n_head_kv || kept.n_keep < 1 || kept.n_keep > n) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "a kept set of %d x %d x %d does not fit %zu layers, %d heads, %d rows",
                kept.n_layer, kept.n_head_kv, kept.n_keep, seq.layers.size(), seq.n_head_kv, n);
    }

    // of one head: holes first, then ascending, among the rows that it has
    auto head_check = [&](int32_t i, int32_t h) {
        const int32_t * ranks   = kept.head(i, h);
        const int32_t   n_holes = kept.n_holes(i, h);
        if (n_holes == kept.n_keep) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "layer %d, KV head %d: no row stays", i, h);
        }
        for (int32_t j = n_holes, low = seq.first(i, h); j < kept.n_keep; low = ranks[j++] + 1) {
            if (ranks[j] < low || ranks[j] >= n) {
                return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "layer %d, KV head %d: rank %d at %d is not ascending in [%d, %d)",
                        i, h, ranks[j], j, seq.first(i, h), n);
            }
        }
        return (int32_t) LLAMA_ECOKV_OK;
    };

    int32_t last = -1;
    for (int32_t i = 0; i < kept.n_layer; ++i) {
        for (int32_t h = 0; h < seq.layers[i].n_head_kv; ++h) {
            const int32_t status = head_check(i, h);
            if (status != LLAMA_ECOKV_OK) {
                return status;
            }
            last = std::max(last, kept.head(i, h)[kept.n_keep - 1]);
        }
    }
    bool whole = false;
    for (int32_t i = 0; i < kept.n_layer; ++i) {
        for (int32_t h = 0; h < seq.layers[i].n_head_kv; ++h) {
            whole = whole || kept.n_holes(i, h) == 0;
        }
    }
    if (!whole) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "rank 0 is a hole in every head: keep one row less");
    }
    if (last != n - 1) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "the last row (%d) stays in no head: the next position would not follow", n - 1);
    }
    return ecokv_masks_prepare(seq, kept);
}

std::vector<uint32_t> ecokv_destinations(const ecokv_seq & seq, int32_t n_keep) {
    std::vector<uint32_t> res;
    for (uint32_t c = 0; c < seq.cells->size() && (int32_t) res.size() < n_keep; ++c) {
        if (seq.cells->is_empty(c) || seq.cells->seq_has(c, seq.id)) {
            res.push_back(c);
        }
    }
    return res;
}

//
// host rows
//

namespace {

// raw bytes of K or V of one layer, copied to the host and back where the buffer is elsewhere
struct raw_rows {
    ggml_tensor * t;
    bool          trans;
    uint8_t     * data;

    std::vector<uint8_t> copy;

    raw_rows(ggml_tensor * t, bool trans) : t(t), trans(trans), data((uint8_t *) t->data) {
        if (!ggml_backend_buffer_is_host(t->buffer)) {
            copy.resize(ggml_nbytes(t));
            ggml_backend_tensor_get(t, copy.data(), 0, copy.size());
            data = copy.data();
        }
    }

    void write_back() const {
        if (!copy.empty()) {
            ggml_backend_tensor_set(t, copy.data(), 0, copy.size());
        }
    }

    // rows of one head: gathered whole before the first is written, so that the order of the cells does not matter
    void move(int32_t head, int32_t d, const std::vector<uint32_t> & src, const std::vector<uint32_t> & dst) {
        const size_t n = src.size();

        const size_t size   = trans ? ggml_type_size(t->type)          : ggml_row_size(t->type, d);
        const size_t stride = trans ? ggml_type_size(t->type)          : t->nb[1];
        const size_t piece  = trans ? t->ne[1]*ggml_type_size(t->type) : 0; // between the channels of a transposed head

        std::vector<uint8_t> tmp(n*size);
        for (int32_t i = 0; i < (trans ? d : 1); ++i) {
            uint8_t * base = trans ? data + ((size_t) head*d + i)*piece : data + head*size;
            for (size_t j = 0; j < n; ++j) {
                memcpy(tmp.data() + j*size, base + src[j]*stride, size);
            }
            for (size_t j = 0; j < n; ++j) {
                memcpy(base + dst[j]*stride, tmp.data() + j*size, size);
            }
        }
    }
};

} // namespace

int32_t ecokv_move_rows_host(const ecokv_seq & seq, const ecokv_kept & kept, const std::vector<uint32_t> & dst,
        const std::vector<int32_t> & layers, ecokv_apply_stats & stats) {
    std::atomic<size_t> scratch { 0 };

    ecokv_parallel_for(llama_ecokv_access::n_threads(*seq.ctx), (int64_t) layers.size(), [&](int64_t w) {
        const int32_t i = layers[w];
        const auto  & l = seq.layers[i];

        raw_rows k(l.k, false);
        raw_rows v(l.v, seq.v_trans);
        scratch = std::max(scratch.load(), k.copy.size() + v.copy.size());

        // rows of the layer; holes in cells that it does not hold need no row
        const auto row_of = seq.rows(i);
        const auto j0     = std::lower_bound(dst.begin(), dst.end(), l.offset) - dst.begin();

        std::vector<uint32_t> to(dst.begin() + j0, dst.end());
        for (auto & row : to) {
            row -= l.offset;
        }

        std::vector<uint32_t> from(to.size());
        for (int32_t h = 0; h < l.n_head_kv; ++h) {
            const int32_t n_holes = kept.n_holes(i, h);
            for (size_t j = 0; j < from.size(); ++j) {
                from[j] = row_of[kept.source(i, h, (int32_t) (j0 + j), n_holes)];
            }
            k.move(h, l.d_k, from, to);
            v.move(h, l.d_v, from, to);
        }

        k.write_back();
        v.write_back();
    });

    stats.scratch_bytes = std::max(stats.scratch_bytes, scratch.load());

    return LLAMA_ECOKV_OK;
}

//
// metadata
//

// length of the tail that is the same unbroken run of rows in all heads, and was exact before
static int32_t exact_tail(const ecokv_seq & seq, const ecokv_kept & kept) {
    const int32_t n       = seq.n();
    const int32_t n_lossy = seq.store->seqs[seq.id].n_rows;

    int32_t tail = 0;
    for (; tail < kept.n_keep; ++tail) {
        const int32_t rank = n - 1 - tail;
        if (rank < n_lossy) {
            return tail;
        }
        for (int32_t i = 0; i < kept.n_layer; ++i) {
            for (int32_t h = 0; h < seq.layers[i].n_head_kv; ++h) {
                if (kept.head(i, h)[kept.n_keep - 1 - tail] != rank) {
                    return tail;
                }
            }
        }
    }
    return tail;
}

// largest rank over all layers and heads: taking its position for the cell keeps positions ascending, and
// seq_rm(p, inf) can then never leave behind a row of a token at or after p
static std::vector<int32_t> nominal_ranks(const ecokv_seq & seq, const ecokv_kept & kept) {
    std::vector<int32_t> res(kept.n_keep, 0);
    for (int32_t i = 0; i < kept.n_layer; ++i) {
        for (int32_t h = 0; h < seq.layers[i].n_head_kv; ++h) {
            for (int32_t j = 0; j < kept.n_keep; ++j) {
                res[j] = std::max(res[j], kept.head(i, h)[j]);
            }
        }
    }
    return res;
}

static void update_state(const ecokv_seq & seq, const ecokv_kept & kept, int32_t tail) {
    auto & old = seq.store->seqs[seq.id];

    llama_ecokv_store::lossy res;
    res.edited      = true;
    res.n_evictions = old.n_evictions + 1;
    res.n_rows = kept.n_keep - tail;
    res.first     = std::move(old.first);
    res.hole_cell = std::move(old.hole_cell);
    res.pos.resize((size_t) kept.n_layer*kept.n_head_kv*res.n_rows, -1);

    for (int32_t i = 0; i < kept.n_layer; ++i) {
        for (int32_t h = 0; h < seq.layers[i].n_head_kv; ++h) {
            const int64_t at = (int64_t) i*kept.n_head_kv + h;
            for (int32_t j = 0; j < res.n_rows; ++j) {
                const int32_t rank = kept.head(i, h)[j];
                if (rank < 0) {
                    continue;
                }
                res.pos[at*res.n_rows + j] = rank < old.n_rows ? old.pos[at*old.n_rows + rank] : seq.cells->pos_get(seq.cell[rank]);
            }
        }
    }

    // one exact row has to stay, so that the next position still follows on the last one
    const int32_t first = seq.n() - std::max(1, tail);
    res.safe_pos = seq.cells->pos_get(seq.cell[first]) + 1;

    old = std::move(res);
}

static void update_ring(const ecokv_seq & seq, int32_t n_keep, int32_t tail, const std::vector<uint32_t> & dst) {
    auto & st = *seq.store;
    for (uint32_t i = seq.id*st.n_ring; i < (seq.id + 1)*st.n_ring; ++i) {
        auto & slot = st.slots[i];
        if (slot.tick < 0 || slot.cell == llama_ecokv_store::slot::NO_CELL) {
            continue;
        }
        const int32_t rank = ecokv_rank_of(seq, slot.cell);
        if (rank < 0 || seq.cells->pos_get(slot.cell) != slot.pos) {
            slot = {}; // rolled back
            continue;
        }
        const int32_t from_end = seq.n() - 1 - rank;
        slot.cell = from_end < tail ? dst[n_keep - 1 - from_end] : llama_ecokv_store::slot::NO_CELL;
    }
}

static void update_cells(const ecokv_seq & seq, const std::vector<int32_t> & nominal, const std::vector<uint32_t> & dst) {
    struct meta {
        llama_pos         pos;
        llama_kv_cell_ext ext;
    };

    auto & cells = *seq.cells;

    std::vector<meta> metas;
    for (int32_t rank : nominal) {
        metas.push_back({ cells.pos_get(seq.cell[rank]), cells.ext_get(seq.cell[rank]) });
    }

    for (uint32_t c : seq.cell) {
        cells.rm(c);
    }
    for (size_t j = 0; j < dst.size(); ++j) {
        cells.pos_set(dst[j], metas[j].pos);
        cells.ext_set(dst[j], metas[j].ext);
        cells.seq_add(dst[j], seq.id);
    }

    llama_ecokv_access::set_head(seq, dst.back() + 1);
}

static void count(const ecokv_seq & seq, const ecokv_kept & kept) {
    for (int32_t i = 0; i < kept.n_layer; ++i) {
        auto & c = seq.store->counters[i];
        c.n_evictions += 1;
        for (int32_t h = 0; h < c.n_head_kv; ++h) {
            c.n_pairs_seen += seq.n()     - seq.first(i, h);
            c.n_pairs_kept += kept.n_keep - kept.n_holes(i, h);
        }
    }
}

// layers that do not hold the first cells get them back where a row goes there
static int32_t make_room(ecokv_seq & seq, const ecokv_kept & kept, const std::vector<uint32_t> & dst) {
    std::vector<uint32_t> need;
    for (int32_t i = 0; i < kept.n_layer; ++i) {
        int32_t n_holes = kept.n_keep;
        for (int32_t h = 0; h < seq.layers[i].n_head_kv; ++h) {
            n_holes = std::min(n_holes, kept.n_holes(i, h));
        }
        need.push_back(dst[n_holes]);
    }
    const int32_t status = ecokv_make_room(*seq.store, *seq.kv, need);
    seq.layers = llama_ecokv_access::layers(*seq.kv, seq.strm);
    return status;
}

int32_t ecokv_apply(ecokv_seq seq, const ecokv_kept & kept, ecokv_apply_stats & stats) {
    const auto    dst     = ecokv_destinations(seq, kept.n_keep);
    const auto    nominal = nominal_ranks(seq, kept);
    const int32_t tail    = exact_tail(seq, kept);
    const int32_t path    = seq.store->params.path;

    int32_t status = make_room(seq, kept, dst);
    if (status != LLAMA_ECOKV_OK) {
        return status;
    }

    std::vector<int32_t> host;
    std::vector<int32_t> graph;
    for (int32_t i = 0; i < kept.n_layer; ++i) {
        const auto & l = seq.layers[i];
        const bool on_host = ggml_backend_buffer_is_host(l.k->buffer) && ggml_backend_buffer_is_host(l.v->buffer);
        const bool want    = path == LLAMA_ECOKV_PATH_GRAPH || (path == LLAMA_ECOKV_PATH_AUTO && !on_host);
        (want && l.offset == 0 && ecokv_graph_can_move(seq, l, dst) ? graph : host).push_back(i);
    }

    try {
        if (!graph.empty()) {
            status = ecokv_move_rows_graph(seq, kept, dst, graph, stats);
        }
        if (status == LLAMA_ECOKV_OK && !host.empty()) {
            status = ecokv_move_rows_host(seq, kept, dst, host, stats);
        }
    } catch (const std::exception & e) { // some rows may have moved
        status = ecokv_fail(LLAMA_ECOKV_ERR_CLEARED, "%s while the rows of sequence %d were moved", e.what(), seq.id);
    }
    if (status == LLAMA_ECOKV_ERR_CLEARED) {
        llama_ecokv_access::clear_seq(seq);
    }
    if (status != LLAMA_ECOKV_OK) {
        return status;
    }

    count(seq, kept); // before the holes of the sequence are those of the kept set
    update_state(seq, kept, tail);
    update_ring (seq, kept.n_keep, tail, dst);
    update_cells(seq, nominal, dst);
    ecokv_masks_set(seq, kept, dst);

    return LLAMA_ECOKV_OK;
}
