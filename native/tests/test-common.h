#pragma once

// A tiny Llama model with random weights, contexts on it, and checks that say where they failed.

#include "llama-ecokv.h"

#include "ggml.h"
#include "ggml-cpp.h"
#include "gguf.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#define CHECK(cond)                                                                    \
    do {                                                                               \
        if (!(cond)) {                                                                 \
            fprintf(stderr, "%s:%d: CHECK(%s) failed. last error: %s\n",               \
                    __FILE__, __LINE__, #cond, llama_ecokv_last_error());              \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

struct tiny_config {
    int n_layer   = 3;
    int n_head    = 4;
    int n_head_kv = 2;
    int d_head    = 64;
    int n_vocab   = 256;
};

// writes a GGUF to a temporary file; the caller removes it
inline std::string tiny_model_write(const tiny_config & c, const std::string & path) {
    const int n_embd = c.n_head*c.d_head;
    const int n_ff   = 2*n_embd;

    gguf_context_ptr gguf { gguf_init_empty() };

    auto u32 = [&](const char * key, uint32_t v) { gguf_set_val_u32(gguf.get(), (std::string("llama.") + key).c_str(), v); };

    gguf_set_val_str(gguf.get(), "general.architecture", "llama");
    gguf_set_val_str(gguf.get(), "tokenizer.ggml.model", "no_vocab");
    u32("context_length",       4096);
    u32("embedding_length",     n_embd);
    u32("block_count",          c.n_layer);
    u32("feed_forward_length",  n_ff);
    u32("attention.head_count", c.n_head);
    u32("attention.head_count_kv", c.n_head_kv);
    u32("rope.dimension_count", c.d_head);
    u32("vocab_size",           c.n_vocab);
    gguf_set_val_f32(gguf.get(), "llama.attention.layer_norm_rms_epsilon", 1e-5f);

    ggml_context_ptr ctx { ggml_init({ (size_t) 64*1024*1024, nullptr, false }) };

    std::mt19937 rng(42);
    std::normal_distribution<float> normal(0.0f, 1.0f);

    auto add = [&](const std::string & name, int64_t ne0, int64_t ne1, float sd) {
        ggml_tensor * t = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, ne0, ne1);
        ggml_set_name(t, name.c_str());
        for (int64_t i = 0; i < ne0*ne1; ++i) {
            ((float *) t->data)[i] = sd > 0.0f ? sd*normal(rng) : 1.0f;
        }
        gguf_add_tensor(gguf.get(), t);
    };
    auto add_norm = [&](const std::string & name) {
        ggml_tensor * t = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, n_embd);
        ggml_set_name(t, name.c_str());
        for (int64_t i = 0; i < n_embd; ++i) {
            ((float *) t->data)[i] = 1.0f;
        }
        gguf_add_tensor(gguf.get(), t);
    };

    const float sd = 1.0f/std::sqrt((float) n_embd);

    add("token_embd.weight", n_embd, c.n_vocab, 1.0f);
    add("output.weight",     n_embd, c.n_vocab, sd);
    add_norm("output_norm.weight");
    for (int i = 0; i < c.n_layer; ++i) {
        const std::string b = "blk." + std::to_string(i) + ".";
        add_norm(b + "attn_norm.weight");
        add_norm(b + "ffn_norm.weight");
        add(b + "attn_q.weight",      n_embd, n_embd,              2.0f*sd);
        add(b + "attn_k.weight",      n_embd, c.n_head_kv*c.d_head, 2.0f*sd);
        add(b + "attn_v.weight",      n_embd, c.n_head_kv*c.d_head, sd);
        add(b + "attn_output.weight", n_embd, n_embd,              sd);
        add(b + "ffn_gate.weight",    n_embd, n_ff,                sd);
        add(b + "ffn_up.weight",      n_embd, n_ff,                sd);
        add(b + "ffn_down.weight",    n_ff,   n_embd,              sd);
    }

    CHECK(gguf_write_to_file(gguf.get(), path.c_str(), false));
    return path;
}

struct tiny_model {
    std::string   path;
    llama_model * model;
    int           n_vocab;

    explicit tiny_model(const tiny_config & c = {}, llama_model_params params = llama_model_default_params()) : n_vocab(c.n_vocab) {
        const char * dir = getenv("TMPDIR");
        static int count = 0;
        path = std::string(dir ? dir : "/tmp") + "/ecokv-tiny-" + std::to_string((unsigned) std::random_device()()) + "-" + std::to_string(count++) + ".gguf";
        tiny_model_write(c, path);
        model = llama_model_load_from_file(path.c_str(), params);
        CHECK(model);
    }
    tiny_model(const tiny_model &) = delete;
    ~tiny_model() {
        llama_model_free(model);
        remove(path.c_str());
    }
};

struct session_config {
    ggml_type type_k  = GGML_TYPE_F16;
    ggml_type type_v  = GGML_TYPE_F16;
    bool      fa      = true;
    int       n_ctx   = 512;
    int       n_seq   = 1;
    bool      unified = false;
    int       path    = LLAMA_ECOKV_PATH_AUTO;
    int       window  = 8;
    bool      enable  = true;
    ggml_backend_sched_eval_callback on_node = nullptr; // sees every node of a graph
    void    * on_node_data = nullptr;
};

struct session {
    llama_context * ctx;
    int             n_vocab;

    session(const tiny_model & m, const session_config & c) : n_vocab(m.n_vocab) {
        llama_context_params p = llama_context_default_params();
        p.n_ctx           = c.n_ctx;
        p.n_batch         = 512;
        p.n_ubatch        = 64;
        p.n_seq_max       = c.n_seq;
        p.kv_unified      = c.unified;
        p.type_k          = c.type_k;
        p.type_v          = c.type_v;
        p.flash_attn_type = c.fa ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
        p.n_threads       = 1;
        p.n_threads_batch = 2;
        p.cb_eval           = c.on_node;
        p.cb_eval_user_data = c.on_node_data;
        ctx = llama_init_from_model(m.model, p);
        CHECK(ctx);
        if (c.enable) {
            llama_ecokv_params ep = llama_ecokv_params_default();
            ep.path     = c.path;
            ep.n_window = c.window;
            CHECK(llama_ecokv_enable(ctx, ep) == LLAMA_ECOKV_OK);
        }
    }
    session(const session &) = delete;
    ~session() { llama_free(ctx); }

    llama_token token(int pos, llama_seq_id seq) const {
        return (llama_token) ((pos*2654435761u + seq*97u) >> 8) % n_vocab;
    }

    // logits of the last token; n tokens of a seeded text from position pos
    std::vector<float> decode(int pos, int n, llama_seq_id seq = 0) {
        llama_batch batch = llama_batch_init(n, 0, 1);
        batch.n_tokens = n;
        for (int i = 0; i < n; ++i) {
            batch.token[i]     = token(pos + i, seq);
            batch.pos[i]       = pos + i;
            batch.n_seq_id[i]  = 1;
            batch.seq_id[i][0] = seq;
            batch.logits[i]    = i == n - 1;
        }
        const int status = llama_decode(ctx, batch);
        llama_batch_free(batch);
        CHECK(status == 0);
        const float * logits = llama_get_logits_ith(ctx, -1);
        return std::vector<float>(logits, logits + n_vocab);
    }

    llama_ecokv_shape shape() const {
        llama_ecokv_shape s;
        CHECK(llama_ecokv_get_shape(ctx, &s) == LLAMA_ECOKV_OK);
        return s;
    }

    int n_rows(llama_seq_id seq = 0) const { return llama_ecokv_n_rows(ctx, seq); }

    std::vector<uint8_t> rows(int layer, bool value, llama_seq_id seq = 0) const {
        std::vector<uint8_t> res(n_rows(seq)*llama_ecokv_row_bytes(ctx, layer, value));
        CHECK(llama_ecokv_get_rows(ctx, seq, layer, value, res.data()) == n_rows(seq));
        return res;
    }

    std::vector<llama_pos> pos(llama_seq_id seq = 0) const {
        std::vector<llama_pos> res(n_rows(seq));
        CHECK(llama_ecokv_get_pos(ctx, seq, res.data()) == (int) res.size());
        return res;
    }

    llama_ecokv_result evict(llama_ecokv_config c, llama_seq_id seq = 0) {
        llama_ecokv_result res;
        CHECK(llama_ecokv_evict(ctx, seq, &c, &res) == LLAMA_ECOKV_OK);
        return res;
    }
};

// logits of several tokens at once, then of single ones
inline std::vector<float> go_on(session & s, int pos, llama_seq_id seq = 0) {
    std::vector<float> res = s.decode(pos, 40, seq);
    for (int i = 0; i < 3; ++i) {
        const auto l = s.decode(pos + 40 + i, 1, seq);
        res.insert(res.end(), l.begin(), l.end());
    }
    return res;
}

// features with their storage
struct features {
    std::vector<float>   attn, attn_last, key_norm, key_cos, key_euc, value_norm, head_m2;
    std::vector<int32_t> head_first;
    llama_ecokv_features f = {};

    features(int n_layer, int n_head_kv, int n, int n_sink = 4, int n_recent = 8) {
        const size_t n_all = (size_t) n_layer*n_head_kv*n;
        for (auto * v : { &attn, &attn_last, &key_norm, &key_cos, &key_euc, &value_norm }) {
            v->resize(n_all);
        }
        head_m2   .resize((size_t) n_layer*n_head_kv);
        head_first.resize((size_t) n_layer*n_head_kv);
        f = { n_layer, n_head_kv, n, n_sink, n_recent, 0, LLAMA_ECOKV_GQA_MEAN, nullptr,
              attn.data(), attn_last.data(), key_norm.data(), key_cos.data(), key_euc.data(), value_norm.data(), head_m2.data(),
              head_first.data() };
    }

    // of a sequence in a context
    explicit features(const session & s, llama_seq_id seq = 0, int n_sink = 4, int n_recent = 8) :
        features(s.shape().n_layer, s.shape().n_head_kv, s.n_rows(seq), n_sink, n_recent) {
        CHECK(llama_ecokv_features_get(s.ctx, seq, &f) == LLAMA_ECOKV_OK);
    }
};

inline features random_features(int n_layer, int n_head, int n, unsigned seed) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> u(0.01f, 1.0f);

    features f(n_layer, n_head, n);
    for (auto * v : { &f.attn, &f.attn_last, &f.key_norm, &f.key_cos, &f.key_euc, &f.value_norm }) {
        std::generate(v->begin(), v->end(), [&]() { return u(rng); });
    }
    std::generate(f.head_m2.begin(), f.head_m2.end(), [&]() { return 0.9f*u(rng); });
    return f;
}

// budgets that differ between layers or heads
inline bool is_uneven(int32_t policy) {
    return policy == LLAMA_ECOKV_POLICY_PYRAMID || policy == LLAMA_ECOKV_POLICY_ADA;
}

inline llama_ecokv_config config(int32_t policy, int32_t budget) {
    llama_ecokv_config c = llama_ecokv_config_default();
    c.policy = policy;
    c.budget = budget;
    return c;
}
