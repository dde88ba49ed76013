// The public C API: what is in the cache, for statistics, explanations and tests.

#include "llama-ecokv.h"

#include "ecokv-api.h"

#include "llama-context.h"
#include "llama-model.h"

#include <cstring>

int32_t llama_ecokv_get_pos(llama_context * ctx, llama_seq_id seq_id, llama_pos * pos) {
    return ecokv_with_seq(ctx, seq_id, [&](const ecokv_seq & seq) {
        for (int32_t r = 0; r < seq.n(); ++r) {
            pos[r] = seq.cells->pos_get(seq.cell[r]);
        }
        return seq.n();
    });
}

int32_t llama_ecokv_get_kept(llama_context * ctx, llama_seq_id seq_id, llama_pos * pos) {
    return ecokv_with_seq(ctx, seq_id, [&](const ecokv_seq & seq) {
        ecokv_true_positions(seq, pos);
        return seq.n();
    });
}

template <typename F>
static int32_t with_layer(llama_context * ctx, int32_t layer, F fn) {
    return ecokv_guarded([&]() -> int32_t {
        int32_t status;
        auto * kv = llama_ecokv_access::find(ctx, status);
        if (!kv) {
            return status;
        }
        const auto layers = llama_ecokv_access::layers(*kv, 0);
        if (layer < 0 || layer >= (int32_t) layers.size()) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "layer %d does not exist", layer);
        }
        return fn(layers[layer]);
    });
}

int64_t llama_ecokv_row_bytes(llama_context * ctx, int32_t layer, bool value) {
    return with_layer(ctx, layer, [&](const ecokv_layer & l) {
        const ggml_tensor * t = value ? l.v : l.k;
        return (int32_t) ggml_row_size(t->type, (int64_t) (value ? l.d_v : l.d_k)*l.n_head_kv);
    });
}

int32_t llama_ecokv_get_layer(llama_context * ctx, int32_t layer, llama_ecokv_layer_info * info, float * sinks) {
    return ecokv_with_seq(ctx, 0, [&](const ecokv_seq & seq) -> int32_t {
        if (layer < 0 || layer >= (int32_t) seq.layers.size()) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "layer %d does not exist", layer);
        }
        const auto & l       = seq.layers[layer];
        const auto & seen    = seq.store->layers[layer];
        const auto & hparams = ctx->get_model().hparams;

        *info = {
            l.il, l.n_head, l.n_head_kv, l.d_k, l.d_v, l.k->type, l.v->type, seen.sinks != nullptr,
            seen.kq_scale, hparams.attn_soft_cap ? hparams.f_attn_logit_softcapping : 0.0f,
        };
        if (sinks && seen.sinks) {
            ggml_backend_tensor_get(seen.sinks, sinks, 0, ggml_nbytes(seen.sinks));
        }
        return LLAMA_ECOKV_OK;
    });
}

int32_t llama_ecokv_get_rows(llama_context * ctx, llama_seq_id seq_id, int32_t layer, bool value, void * rows) {
    return ecokv_with_seq(ctx, seq_id, [&](const ecokv_seq & seq) -> int32_t {
        if (layer < 0 || layer >= (int32_t) seq.layers.size()) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "layer %d does not exist", layer);
        }
        llama_ecokv_access::settle(seq);

        const auto & l = seq.layers[layer];
        const auto * t = value ? l.v : l.k;

        const int64_t d    = (int64_t) (value ? l.d_v : l.d_k)*l.n_head_kv;
        const size_t  size = ggml_row_size(t->type, d);
        auto        * out  = (uint8_t *) rows;
        const auto    row  = seq.rows(layer);

        if (!value || !seq.v_trans) {
            for (int32_t r = 0; r < seq.n(); ++r) {
                ggml_backend_tensor_get(t, out + r*size, row[r]*t->nb[1], size);
            }
            return seq.n();
        }

        const size_t es = ggml_type_size(t->type);
        std::vector<uint8_t> channel(t->ne[1]*es);
        for (int64_t i = 0; i < d; ++i) {
            ggml_backend_tensor_get(t, channel.data(), i*channel.size(), channel.size());
            for (int32_t r = 0; r < seq.n(); ++r) {
                memcpy(out + r*size + i*es, channel.data() + row[r]*es, es);
            }
        }
        return seq.n();
    });
}

int32_t llama_ecokv_get_queries(llama_context * ctx, llama_seq_id seq_id, int32_t layer, float * q, llama_pos * pos) {
    return ecokv_with_seq(ctx, seq_id, [&](const ecokv_seq & seq) -> int32_t {
        if (layer < 0 || layer >= (int32_t) seq.layers.size()) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "layer %d does not exist", layer);
        }
        llama_ecokv_access::settle(seq);

        const auto   slots = ecokv_valid_slots(seq);
        const auto * t     = seq.store->layers[layer].q;

        for (size_t j = 0; j < slots.size(); ++j) {
            if (q) {
                ggml_backend_tensor_get(t, q + j*t->ne[0], slots[j]*t->nb[1], t->nb[1]);
            }
            if (pos) {
                pos[j] = seq.store->slots[slots[j]].pos;
            }
        }
        return (int32_t) slots.size();
    });
}
