// Moves rows where the cache lives: an I32 alias of the rows through get_rows and cpy. No value is ever decoded.

#include "ecokv-apply.h"

#include "ggml-cpp.h"

#include <algorithm>

// destinations as unbroken runs of cells
struct run {
    int32_t  first; // rank
    int32_t  n;
    uint32_t cell;
};

static std::vector<run> runs_of(const std::vector<uint32_t> & dst) {
    std::vector<run> res;
    for (size_t j = 0; j < dst.size(); ++j) {
        if (res.empty() || res.back().cell + res.back().n != dst[j]) {
            res.push_back({ (int32_t) j, 0, dst[j] });
        }
        res.back().n++;
    }
    return res;
}

bool ecokv_graph_can_move(const ecokv_seq & seq, const ecokv_layer & l, const std::vector<uint32_t> & dst) {
    auto whole_words = [](const ggml_tensor * t, int32_t d) {
        return ggml_row_size(t->type, d) % sizeof(int32_t) == 0 && t->nb[1] % sizeof(int32_t) == 0;
    };

    const size_t max_runs = 16; // every run is a copy per layer; beyond that a detour through the host is cheaper

    return whole_words(l.k, l.d_k) && (seq.v_trans || whole_words(l.v, l.d_v)) && runs_of(dst).size() <= max_runs;
}

namespace {

struct move_graph {
    ggml_context * ctx;
    ggml_cgraph  * gf;

    const std::vector<run> & runs;

    // rows: [n_row, n_keep, n_head] contiguous; dst: view of the cache by run
    template <typename F>
    void store(ggml_tensor * rows, F view_of_run) {
        for (const auto & r : runs) {
            ggml_tensor * part = ggml_view_3d(ctx, rows, rows->ne[0], r.n, rows->ne[2], rows->nb[1], rows->nb[2], r.first*rows->nb[1]);
            ggml_build_forward_expand(gf, ggml_cpy(ctx, part, view_of_run(r)));
        }
    }

    void rows(ggml_tensor * t, int32_t d, int32_t n_head, ggml_tensor * idxs) {
        const size_t  size  = ggml_row_size(t->type, d);
        const int64_t words = size/sizeof(int32_t);

        ggml_tensor * alias = ggml_new_tensor_2d(ctx, GGML_TYPE_I32, t->nb[1]/sizeof(int32_t), t->ne[1]);
        alias->buffer = t->buffer;
        alias->data   = t->data;
        ggml_format_name(alias, "%s_i32", t->name);

        ggml_tensor * src = ggml_view_3d(ctx, alias, words, t->ne[1], n_head, alias->nb[1], size, 0);

        store(ggml_get_rows(ctx, src, idxs), [&](const run & r) {
            return ggml_view_3d(ctx, alias, words, r.n, n_head, alias->nb[1], size, r.cell*alias->nb[1]);
        });
    }

    // a transposed V holds f16, bf16 or f32: through f32 and back is exact
    void columns(ggml_tensor * t, int32_t d, int32_t n_head, ggml_tensor * idxs) {
        const size_t nb1 = t->ne[1]*ggml_type_size(t->type);

        ggml_tensor * src = ggml_view_3d(ctx, t, t->ne[1], d, n_head, nb1, nb1*d, 0);
        src = ggml_cont(ctx, ggml_transpose(ctx, src)); // [d, n_cells, n_head]

        for (const auto & r : runs) {
            ggml_tensor * part_idxs = ggml_cont(ctx, ggml_view_2d(ctx, idxs, r.n, n_head, idxs->nb[1], r.first*sizeof(int32_t)));
            ggml_tensor * part = ggml_cont(ctx, ggml_transpose(ctx, ggml_get_rows(ctx, src, part_idxs))); // [n, d, n_head]
            ggml_tensor * dst  = ggml_view_3d(ctx, t, r.n, d, n_head, nb1, nb1*d, r.cell*ggml_type_size(t->type));
            ggml_build_forward_expand(gf, ggml_cpy(ctx, part, dst));
        }
    }
};

} // namespace

int32_t ecokv_move_rows_graph(const ecokv_seq & seq, const ecokv_kept & kept, const std::vector<uint32_t> & dst,
        const std::vector<int32_t> & layers, ecokv_apply_stats & stats) {
    const auto   runs      = runs_of(dst);
    const size_t max_nodes = layers.size()*(16 + 16*runs.size()) + 16;

    ggml_context_ptr ctx { ggml_init({ 2*max_nodes*ggml_tensor_overhead() + ggml_graph_overhead_custom(max_nodes, false), nullptr, true }) };
    if (!ctx) {
        return ecokv_fail(LLAMA_ECOKV_ERR_ALLOC, "no memory for a graph of %zu nodes", max_nodes);
    }

    move_graph g { ctx.get(), ggml_new_graph_custom(ctx.get(), max_nodes, false), runs };

    std::vector<ggml_tensor *> idxs;
    for (int32_t i : layers) {
        const auto & l = seq.layers[i];

        idxs.push_back(ggml_new_tensor_2d(ctx.get(), GGML_TYPE_I32, kept.n_keep, l.n_head_kv));
        ggml_set_input(idxs.back());

        g.rows(l.k, l.d_k, l.n_head_kv, idxs.back());
        if (seq.v_trans) {
            g.columns(l.v, l.d_v, l.n_head_kv, idxs.back());
        } else {
            g.rows(l.v, l.d_v, l.n_head_kv, idxs.back());
        }
    }

    auto * sched = llama_ecokv_access::sched(*seq.ctx, *seq.store, max_nodes);
    if (!ggml_backend_sched_alloc_graph(sched, g.gf)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_ALLOC, "no memory to move %d rows of %zu layers", kept.n_keep, layers.size());
    }

    std::vector<int32_t> data;
    for (size_t w = 0; w < layers.size(); ++w) {
        data.clear();
        for (int32_t h = 0; h < seq.layers[layers[w]].n_head_kv; ++h) {
            const int32_t n_holes = kept.n_holes(layers[w], h);
            for (int32_t j = 0; j < kept.n_keep; ++j) {
                data.push_back((int32_t) seq.cell[kept.source(layers[w], h, j, n_holes)]);
            }
        }
        ggml_backend_tensor_set(idxs[w], data.data(), 0, data.size()*sizeof(int32_t));
    }

    if (ggml_backend_sched_graph_compute(sched, g.gf) != GGML_STATUS_SUCCESS) {
        return ecokv_fail(LLAMA_ECOKV_ERR_CLEARED, "a backend failed while the rows of sequence %d were moved", seq.id);
    }

    stats.scratch_bytes = std::max(stats.scratch_bytes, llama_ecokv_access::sched_bytes(*seq.ctx, sched));

    return LLAMA_ECOKV_OK;
}
