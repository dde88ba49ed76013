// A sequence as bytes: it goes on bit for bit elsewhere, and bytes that do not fit change nothing.

#include "test-common.h"

#include <set>

static const int N = 160;

struct kind {
    ggml_type k, v;
    bool      fa;
    int32_t   policy;
};

static std::vector<uint8_t> state_of(const session & s, llama_seq_id seq = 0) {
    std::vector<uint8_t> res(llama_ecokv_state_size(s.ctx, seq));
    CHECK(llama_ecokv_state_get(s.ctx, seq, res.data(), res.size()) == (int64_t) res.size());
    CHECK(llama_ecokv_state_get(s.ctx, seq, res.data(), res.size() - 1) == LLAMA_ECOKV_ERR_PARAM);
    return res;
}

static std::vector<llama_pos> kept(const session & s, llama_seq_id seq = 0) {
    const auto shape = s.shape();
    std::vector<llama_pos> res((size_t) shape.n_layer*shape.n_head_kv*s.n_rows(seq));
    CHECK(llama_ecokv_get_kept(s.ctx, seq, res.data()) == s.n_rows(seq));
    return res;
}

static void test_goes_on(const tiny_model & m) {
    const kind kinds[] = {
        { GGML_TYPE_F16,  GGML_TYPE_F16,  true,  LLAMA_ECOKV_POLICY_ECOKV },
        { GGML_TYPE_F16,  GGML_TYPE_F16,  false, LLAMA_ECOKV_POLICY_ECOKV },
        { GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, true,  LLAMA_ECOKV_POLICY_ECOKV },
        { GGML_TYPE_F16,  GGML_TYPE_F16,  true,  LLAMA_ECOKV_POLICY_ADA },
        { GGML_TYPE_F16,  GGML_TYPE_F16,  false, LLAMA_ECOKV_POLICY_ADA },
        { GGML_TYPE_Q8_0, GGML_TYPE_F16,  false, LLAMA_ECOKV_POLICY_ADA },
        { GGML_TYPE_F32,  GGML_TYPE_F32,  true,  LLAMA_ECOKV_POLICY_PYRAMID },
    };
    for (const auto & x : kinds) {
        for (bool resized : { false, true }) {
            session_config c;
            c.type_k = x.k;
            c.type_v = x.v;
            c.fa     = x.fa;
            session a(m, c);
            a.decode(0, N);
            a.evict(config(x.policy, 50));
            if (resized) { // layers that lack their first cells
                CHECK(llama_ecokv_resize(a.ctx, a.n_rows() + 60) > 0);
            }
            a.decode(N, 5);
            const auto data = state_of(a);

            session b(m, c);
            CHECK(llama_ecokv_state_check(b.ctx, 0, data.data(), data.size()) == LLAMA_ECOKV_OK);
            CHECK(b.n_rows() == 0);
            CHECK(llama_ecokv_state_set(b.ctx, 0, data.data(), data.size()) == LLAMA_ECOKV_OK);
            CHECK(llama_ecokv_state_set(b.ctx, 0, data.data(), data.size()) == LLAMA_ECOKV_ERR_STATE); // not empty any more
            CHECK(a.pos() == b.pos() && kept(a) == kept(b));
            CHECK(state_of(b) == data);
            CHECK(llama_ecokv_safe_pos(a.ctx, 0) == llama_ecokv_safe_pos(b.ctx, 0));
            CHECK(llama_ecokv_is_lossy(b.ctx, 0) == 1);

            // the queries and all else that the next eviction needs are there, before any token
            const auto ea = a.evict(config(x.policy, 40));
            const auto eb = b.evict(config(x.policy, 40));
            CHECK(ea.n_query == 8 && eb.n_query == 8 && kept(a) == kept(b));
            CHECK(go_on(a, N + 5) == go_on(b, N + 5));
        }
    }
}

static void test_other_layouts(const tiny_model & m) {
    session_config c;
    session a(m, c);
    a.decode(0, N);
    a.evict(config(LLAMA_ECOKV_POLICY_ADA, 50));
    const auto data = state_of(a);

    // a stream among others; a unified cache whose first cells are taken
    for (bool unified : { false, true }) {
        session_config d = c;
        d.n_seq   = 2;
        d.unified = unified;
        d.n_ctx   = 1024;
        session b(m, d);
        b.decode(0, 30, 0);
        CHECK(llama_ecokv_state_set(b.ctx, 1, data.data(), data.size()) == LLAMA_ECOKV_OK);
        CHECK(kept(a) == kept(b, 1));
        session alone(m, c);
        alone.decode(0, 30, 0);
        CHECK(b.decode(30, 1, 0).size() == alone.decode(30, 1, 0).size());
        CHECK(b.n_rows(0) == 31 && b.n_rows(1) == a.n_rows());
    }

    // too few cells, no eviction, other types, another model: refused, and nothing has changed
    session_config d = c;
    d.n_ctx = 256;
    session small(m, d);
    small.decode(0, 200);
    CHECK(llama_ecokv_state_set(small.ctx, 0, data.data(), data.size()) == LLAMA_ECOKV_ERR_STATE);
    CHECK(small.n_rows() == 200);
    session_config off = c;
    off.enable = false;
    session plain(m, off);
    CHECK(llama_ecokv_state_set(plain.ctx, 0, data.data(), data.size()) == LLAMA_ECOKV_ERR_DATA);
    session_config q = c;
    q.type_k = q.type_v = GGML_TYPE_Q8_0;
    session other(m, q);
    CHECK(llama_ecokv_state_check(other.ctx, 0, data.data(), data.size()) == LLAMA_ECOKV_ERR_DATA);
    tiny_config wide;
    wide.n_layer = 4;
    tiny_model m4(wide);
    session deep(m4, c);
    CHECK(llama_ecokv_state_check(deep.ctx, 0, data.data(), data.size()) == LLAMA_ECOKV_ERR_DATA);
    CHECK(deep.n_rows() == 0);
}

static void test_damage(const tiny_model & m) {
    session_config c;
    session a(m, c);
    a.decode(0, N);
    a.evict(config(LLAMA_ECOKV_POLICY_ADA, 30));
    const auto data = state_of(a);

    session b(m, c);
    auto refused = [&](const std::vector<uint8_t> & x) {
        const std::vector<uint8_t> exact(x); // so that a sanitizer sees a read behind its end
        return llama_ecokv_state_set(b.ctx, 0, exact.data(), exact.size()) == LLAMA_ECOKV_ERR_DATA && b.n_rows() == 0;
    };
    for (size_t i = 0; i < data.size(); i += i < 400 ? 1 : data.size()/200) {
        auto x = data;
        x[i] ^= 1;
        CHECK(refused(x));
    }
    for (size_t n : { (size_t) 0, (size_t) 10, (size_t) 79, (size_t) 80, data.size()/2, data.size() - 8, data.size() - 1 }) {
        CHECK(refused({ data.begin(), data.begin() + n }));
    }
    CHECK(llama_ecokv_state_set(b.ctx, 0, data.data(), data.size()) == LLAMA_ECOKV_OK);
}

// llama.cpp's own functions
static void test_upstream_states(const tiny_model & m) {
    for (int32_t policy : { LLAMA_ECOKV_POLICY_ECOKV, LLAMA_ECOKV_POLICY_ADA }) {
        session_config c;
        session a(m, c);
        session b(m, c);
        session_config off = c;
        off.enable = false;
        session plain(m, off);

        a.decode(0, N);
        a.evict(config(policy, 50));

        std::vector<uint8_t> state(llama_state_seq_get_size(a.ctx, 0));
        CHECK(state.size() > 0);
        CHECK(llama_state_seq_get_data(a.ctx, state.data(), state.size(), 0) == state.size());
        b.decode(0, 20); // is replaced
        CHECK(llama_state_seq_set_data(b.ctx, state.data(), state.size(), 0) == state.size());
        CHECK(llama_ecokv_is_lossy(b.ctx, 0) == 1 && kept(a) == kept(b));
        CHECK(!llama_memory_seq_rm(llama_get_memory(b.ctx), 0, 10, 20)); // still no exact prefix
        CHECK(go_on(a, N) == go_on(b, N));

        CHECK(llama_state_get_size(a.ctx) == 0);                                              // more than one sequence
        CHECK(llama_state_seq_set_data(plain.ctx, state.data(), state.size(), 0) == 0);       // nobody would guard it
        state[state.size()/2] ^= 1;
        const int n = b.n_rows();
        CHECK(llama_state_seq_set_data(b.ctx, state.data(), state.size(), 0) == 0);
        CHECK(b.n_rows() == 0 || b.n_rows() == n);
    }
}

int main() {
    llama_backend_init();
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    {
        const tiny_model m;
        test_goes_on(m);
        test_other_layouts(m);
        test_damage(m);
        test_upstream_states(m);
    }
    llama_backend_free();
    printf("ok\n");
    return 0;
}
