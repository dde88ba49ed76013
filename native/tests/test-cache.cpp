// The ring, features and compaction on a real cache of a tiny model: host path against graph path, every
// cache type, one and several sequences, and the guards.

#include "test-common.h"

#include <algorithm>
#include <set>

struct pair_of_types {
    ggml_type k;
    ggml_type v;
    bool      fa;
};

static const pair_of_types TYPES[] = {
    { GGML_TYPE_F16,  GGML_TYPE_F16,  true  }, { GGML_TYPE_F16,  GGML_TYPE_F16,  false },
    { GGML_TYPE_F32,  GGML_TYPE_F32,  true  }, { GGML_TYPE_F32,  GGML_TYPE_F32,  false },
    { GGML_TYPE_BF16, GGML_TYPE_BF16, true  }, { GGML_TYPE_BF16, GGML_TYPE_BF16, false },
    { GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, true  }, { GGML_TYPE_Q8_0, GGML_TYPE_F16,  false },
    { GGML_TYPE_Q4_0, GGML_TYPE_Q4_0, true  }, { GGML_TYPE_Q4_1, GGML_TYPE_Q4_1, true  },
    { GGML_TYPE_Q5_0, GGML_TYPE_Q5_0, true  }, { GGML_TYPE_Q5_1, GGML_TYPE_Q5_1, true  },
    { GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_NL, true },
};

static session_config with(const pair_of_types & t, int path) {
    session_config c;
    c.type_k = t.k;
    c.type_v = t.v;
    c.fa     = t.fa;
    c.path   = path;
    return c;
}

static double max_rel(const std::vector<float> & a, const std::vector<float> & b) {
    CHECK(a.size() == b.size());
    double res = 0.0;
    for (size_t i = 0; i < a.size(); ++i) {
        CHECK(std::isfinite(a[i]) && std::isfinite(b[i]));
        res = std::max(res, std::fabs((double) a[i] - b[i])/std::max(1e-6, std::fabs((double) b[i])));
    }
    return res;
}

static void test_features_of_both_paths(const tiny_model & m) {
    for (const auto & t : TYPES) {
        session host (m, with(t, LLAMA_ECOKV_PATH_HOST));
        session graph(m, with(t, LLAMA_ECOKV_PATH_GRAPH));
        host .decode(0, 150);
        graph.decode(0, 150);

        const features a(host);
        const features b(graph);
        CHECK(a.f.n_query == 8 && b.f.n_query == 8);
        CHECK(max_rel(a.attn,       b.attn)       < 1e-4);
        CHECK(max_rel(a.attn_last,  b.attn_last)  < 1e-4);
        CHECK(max_rel(a.key_norm,   b.key_norm)   < 1e-5);
        CHECK(max_rel(a.key_cos,    b.key_cos)    < 1e-4);
        CHECK(max_rel(a.key_euc,    b.key_euc)    < 1e-5);
        CHECK(max_rel(a.value_norm, b.value_norm) < 1e-5);
        CHECK(max_rel(a.head_m2,    b.head_m2)    < 1e-4);

        // attention of the window sums to one over all rows
        for (int i = 0; i < a.f.n_layer*a.f.n_head_kv; ++i) {
            double sum = 0.0;
            for (int r = 0; r < 143; ++r) { // rows that all queries see
                sum += a.attn[(size_t) i*150 + r];
            }
            CHECK(sum > 0.0 && sum < 1.0 + 1e-5);
        }
    }
}

// a different set for every layer and head
static std::vector<int32_t> random_sets(const llama_ecokv_shape & s, int n, int n_keep, unsigned seed) {
    std::mt19937 rng(seed);
    std::vector<int32_t> res;
    for (int i = 0; i < s.n_layer*s.n_head_kv; ++i) {
        std::set<int32_t> set = { n - 1 };
        while ((int) set.size() < n_keep) {
            set.insert(rng() % n);
        }
        res.insert(res.end(), set.begin(), set.end());
    }
    return res;
}

static void check_gather(const session & s, const std::vector<std::vector<uint8_t>> & before, const std::vector<int32_t> & keep, int n_keep) {
    const auto shape = s.shape();
    CHECK(s.n_rows() == n_keep);
    for (int i = 0; i < shape.n_layer; ++i) {
        for (int v = 0; v < 2; ++v) {
            const auto   after = s.rows(i, v);
            const size_t row   = llama_ecokv_row_bytes(s.ctx, i, v);
            const size_t head  = row/shape.n_head_kv;
            for (int h = 0; h < shape.n_head_kv; ++h) {
                for (int j = 0; j < n_keep; ++j) {
                    const int r = keep[((size_t) i*shape.n_head_kv + h)*n_keep + j];
                    CHECK(memcmp(after.data() + j*row + h*head, before[2*i + v].data() + r*row + h*head, head) == 0);
                }
            }
        }
    }
}

static std::vector<std::vector<uint8_t>> all_rows(const session & s, llama_seq_id seq = 0) {
    std::vector<std::vector<uint8_t>> res;
    for (int i = 0; i < s.shape().n_layer; ++i) {
        res.push_back(s.rows(i, false, seq));
        res.push_back(s.rows(i, true,  seq));
    }
    return res;
}

static void test_rows_move_bit_for_bit(const tiny_model & m) {
    for (const auto & t : TYPES) {
        for (int path : { LLAMA_ECOKV_PATH_HOST, LLAMA_ECOKV_PATH_GRAPH }) {
            session s(m, with(t, path));
            s.decode(0, 100);

            const auto before = all_rows(s);
            const auto keep   = random_sets(s.shape(), 100, 37, 1);
            CHECK(llama_ecokv_apply(s.ctx, 0, keep.data(), 37) == LLAMA_ECOKV_OK);
            check_gather(s, before, keep, 37);

            const auto pos = s.pos();
            CHECK(std::is_sorted(pos.begin(), pos.end()) && std::adjacent_find(pos.begin(), pos.end()) == pos.end());

            std::vector<llama_pos> kept((size_t) s.shape().n_layer*s.shape().n_head_kv*37);
            CHECK(llama_ecokv_get_kept(s.ctx, 0, kept.data()) == 37);
            CHECK(std::equal(kept.begin(), kept.end(), keep.begin())); // positions started at 0

            for (float x : s.decode(100, 3)) { // goes on at the true position
                CHECK(std::isfinite(x));
            }
            CHECK(s.n_rows() == 40);
        }
    }
}

static void test_evict_for_ever(const tiny_model & m) {
    for (int32_t policy = LLAMA_ECOKV_POLICY_ECOKV; policy < LLAMA_ECOKV_POLICY_COUNT; ++policy) {
        if (is_uneven(policy)) {
            continue; // test-uneven
        }
        session_config c;
        c.n_ctx = 256; // fewer cells than positions
        session s(m, c);
        int pos = 0;
        s.decode(pos, 200);
        pos += 200;
        for (int turn = 0; turn < 20; ++turn) {
            const auto res = s.evict(config(policy, 64));
            CHECK(res.n_after == 64 && s.n_rows() == 64);
            CHECK(s.pos().back() == pos - 1);
            s.decode(pos, 30);
            s.decode(pos + 30, 1);
            pos += 31;
            CHECK(s.n_rows() == 95);
        }
        std::vector<llama_ecokv_counters> counters(s.shape().n_layer);
        CHECK(llama_ecokv_get_counters(s.ctx, counters.data(), (int) counters.size()) == (int) counters.size());
        CHECK(counters[0].n_evictions == 20 && counters[0].n_pairs_kept == 20*64*2);
    }
}

static void test_budget_that_fits_is_a_no_op(const tiny_model & m) {
    session a(m, {});
    session b(m, {});
    a.decode(0, 60);
    b.decode(0, 60);
    for (int budget : { 60, 61, 1000 }) {
        const auto res = a.evict(config(LLAMA_ECOKV_POLICY_ECOKV, budget));
        CHECK(res.n_before == 60 && res.n_after == 60);
    }
    a.evict(config(LLAMA_ECOKV_POLICY_NONE, 0));
    CHECK(llama_ecokv_is_lossy(a.ctx, 0) == 0);
    CHECK(a.decode(60, 1) == b.decode(60, 1));
}

// one sequence never moves another's cells
static void test_sequences_are_apart(const tiny_model & m) {
    for (bool unified : { false, true }) {
        for (int path : { LLAMA_ECOKV_PATH_HOST, LLAMA_ECOKV_PATH_GRAPH }) {
            session_config c;
            c.n_seq   = 2;
            c.unified = unified;
            c.path    = path;
            session s(m, c);
            for (int i = 0; i < 4; ++i) { // interleaved cells
                s.decode(25*i, 25, 0);
                s.decode(25*i, 25, 1);
            }
            const auto other_rows = all_rows(s, 1);
            const auto other_pos  = s.pos(1);

            const auto before = all_rows(s, 0);
            const auto keep   = random_sets(s.shape(), 100, 40, 3);
            CHECK(llama_ecokv_apply(s.ctx, 0, keep.data(), 40) == LLAMA_ECOKV_OK);
            check_gather(s, before, keep, 40);

            CHECK(s.pos(1) == other_pos && all_rows(s, 1) == other_rows);
            CHECK(s.n_rows(1) == 100 && llama_ecokv_is_lossy(s.ctx, 1) == 0);

            s.decode(100, 5, 0);
            s.decode(100, 5, 1);
            s.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 30), 1);
            CHECK(s.n_rows(0) == 45 && s.n_rows(1) == 30);
        }
    }
}

static void test_shared_cells_are_refused(const tiny_model & m) {
    session_config c;
    c.n_seq   = 2;
    c.unified = true;
    session s(m, c);
    s.decode(0, 80, 0);
    llama_memory_seq_cp(llama_get_memory(s.ctx), 0, 1, -1, -1);

    auto cfg = config(LLAMA_ECOKV_POLICY_ECOKV, 32);
    CHECK(llama_ecokv_evict(s.ctx, 0, &cfg, nullptr) == LLAMA_ECOKV_ERR_SHARED);
    CHECK(s.n_rows(0) == 80 && s.n_rows(1) == 80);

    llama_memory_seq_rm(llama_get_memory(s.ctx), 1, -1, -1);
    s.decode(80, 1, 0);
    CHECK(llama_ecokv_evict(s.ctx, 0, &cfg, nullptr) == LLAMA_ECOKV_OK);
}

static void test_an_evicted_sequence_is_no_prefix(const tiny_model & m) {
    session_config c;
    c.n_seq = 2;
    session s(m, c);
    auto * mem = llama_get_memory(s.ctx);
    s.decode(0, 100);
    CHECK(llama_memory_can_shift(mem));
    CHECK(llama_ecokv_safe_pos(s.ctx, 0) == 0);
    s.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 40));

    const auto pos  = s.pos();
    const auto rows = all_rows(s);
    const int  safe = llama_ecokv_safe_pos(s.ctx, 0);
    CHECK(safe > 90 && safe <= 93);

    CHECK(!llama_memory_seq_rm(mem, 0, 50, -1));
    CHECK(!llama_memory_seq_rm(mem, 0, 10, 20));
    CHECK(!llama_memory_seq_rm(mem, -1, 50, -1));
    CHECK(!llama_memory_can_shift(mem));
    llama_memory_seq_add(mem, 0, 0, -1, 5);
    llama_memory_seq_div(mem, 0, 0, -1, 2);
    llama_memory_seq_cp(mem, 0, 1, -1, -1);
    CHECK(s.pos() == pos && all_rows(s) == rows && s.n_rows(1) == 0); // nothing changed

    // from the boundary on rollback works, and is exact
    s.decode(100, 5);
    s.decode(105, 5);
    const auto want = s.decode(110, 1);
    CHECK(llama_memory_seq_rm(mem, 0, 105, -1));
    s.decode(105, 5);
    CHECK(s.decode(110, 1) == want);
    CHECK(llama_memory_seq_rm(mem, 0, safe, -1));
    s.decode(safe, 5);

    CHECK(llama_memory_seq_rm(mem, 0, -1, -1)); // all of it: fresh
    CHECK(llama_ecokv_is_lossy(s.ctx, 0) == 0 && llama_memory_can_shift(mem));
    s.decode(0, 20);
}

static void test_bad_calls(const tiny_model & m) {
    CHECK(llama_ecokv_n_rows(nullptr, 0) == LLAMA_ECOKV_ERR_PARAM);
    CHECK(llama_ecokv_check(nullptr) == LLAMA_ECOKV_ERR_PARAM);

    session_config off;
    off.enable = false;
    session plain(m, off);
    plain.decode(0, 50);
    auto cfg = config(LLAMA_ECOKV_POLICY_ECOKV, 20);
    CHECK(llama_ecokv_evict(plain.ctx, 0, &cfg, nullptr) == LLAMA_ECOKV_ERR_STATE);
    CHECK(llama_ecokv_check(plain.ctx) == LLAMA_ECOKV_OK);

    // enabled late: no query yet, then one
    CHECK(llama_ecokv_enable(plain.ctx, llama_ecokv_params_default()) == LLAMA_ECOKV_OK);
    CHECK(llama_ecokv_evict(plain.ctx, 0, &cfg, nullptr) == LLAMA_ECOKV_ERR_STATE);
    plain.decode(50, 1);
    CHECK(llama_ecokv_n_query(plain.ctx, 0) == 1);
    CHECK(llama_ecokv_evict(plain.ctx, 0, &cfg, nullptr) == LLAMA_ECOKV_OK);
    CHECK(plain.n_rows() == 20);
    CHECK(llama_ecokv_disable(plain.ctx) == LLAMA_ECOKV_OK);
    plain.decode(51, 1);

    session s(m, {});
    s.decode(0, 50);
    const auto rows = all_rows(s);
    cfg.budget = 5;
    CHECK(llama_ecokv_evict(s.ctx, 0, &cfg, nullptr) == LLAMA_ECOKV_ERR_BUDGET);
    CHECK(llama_ecokv_n_rows(s.ctx, 7) == LLAMA_ECOKV_ERR_PARAM);
    CHECK(llama_ecokv_n_rows(s.ctx, -1) == LLAMA_ECOKV_ERR_PARAM);
    CHECK(llama_ecokv_row_bytes(s.ctx, 99, false) == LLAMA_ECOKV_ERR_PARAM);

    std::vector<int32_t> keep((size_t) 3*2*20);
    CHECK(llama_ecokv_apply(s.ctx, 0, keep.data(), 20) == LLAMA_ECOKV_ERR_PARAM); // not ascending
    CHECK(llama_ecokv_apply(s.ctx, 0, keep.data(), 51) == LLAMA_ECOKV_ERR_PARAM);
    CHECK(llama_ecokv_apply(s.ctx, 0, keep.data(), 0)  == LLAMA_ECOKV_ERR_PARAM);
    for (size_t i = 0; i < keep.size(); ++i) {
        keep[i] = i % 20; // the last row stays nowhere
    }
    CHECK(llama_ecokv_apply(s.ctx, 0, keep.data(), 20) == LLAMA_ECOKV_ERR_PARAM);
    CHECK(all_rows(s) == rows);

    for (int window : { 0, -1, 5000 }) {
        auto p = llama_ecokv_params_default();
        p.n_window = window;
        CHECK(llama_ecokv_enable(s.ctx, p) == LLAMA_ECOKV_ERR_PARAM);
    }
    cfg.budget = 20;
    s.evict(cfg); // the next good call works
}

static void test_ring_follows_rollback(const tiny_model & m) {
    session s(m, {});
    s.decode(0, 40);
    for (int i = 0; i < 3; ++i) { // drafts that are thrown away
        s.decode(40, 4);
        CHECK(llama_memory_seq_rm(llama_get_memory(s.ctx), 0, 40, -1));
    }
    s.decode(40, 1);
    std::vector<llama_pos> pos(8);
    const int n = llama_ecokv_get_queries(s.ctx, 0, 0, nullptr, pos.data());
    CHECK(n == 8 && pos[7] == 40 && pos[0] == 33 && std::is_sorted(pos.begin(), pos.end()));
}

// the window may be larger than the recents: an evicted row does not silence its query
static void test_queries_outlive_their_rows(const tiny_model & m) {
    session_config c;
    c.window = 32;
    session s(m, c);
    s.decode(0, 200);
    for (int i = 0; i < 3; ++i) {
        CHECK(s.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 60)).n_query == 32);
        s.decode(200 + i, 1);
    }
    std::vector<llama_pos> pos(32);
    CHECK(llama_ecokv_get_queries(s.ctx, 0, 0, nullptr, pos.data()) == 32);
    CHECK(pos.front() == 203 - 32 && pos.back() == 202);
    const features host(s);
    for (float a : host.attn) {
        CHECK(std::isfinite(a) && a >= 0.0f);
    }
    CHECK(llama_memory_seq_rm(llama_get_memory(s.ctx), 0, -1, -1));
    s.decode(0, 20);
    CHECK(llama_ecokv_n_query(s.ctx, 0) == 20); // nothing of the old text votes
}

// enabling again with another window keeps what is known of evicted sequences, and the queries
static void test_new_settings_keep_the_state(const tiny_model & m) {
    for (int window : { 4, 8, 24 }) {
        session s(m, {});
        s.decode(0, 120);
        s.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 40));
        s.decode(120, 3);
        const int safe = llama_ecokv_safe_pos(s.ctx, 0);

        std::vector<llama_pos> before(3*2*43);
        std::vector<llama_pos> after (3*2*43);
        CHECK(llama_ecokv_get_kept(s.ctx, 0, before.data()) == 43);

        auto p = llama_ecokv_params_default();
        p.n_window = window;
        CHECK(llama_ecokv_enable(s.ctx, p) == LLAMA_ECOKV_OK);
        CHECK(llama_ecokv_is_lossy(s.ctx, 0) == 1 && llama_ecokv_safe_pos(s.ctx, 0) == safe);
        CHECK(llama_ecokv_get_kept(s.ctx, 0, after.data()) == 43 && after == before);
        CHECK(llama_ecokv_n_query(s.ctx, 0) == std::min(window, 16));
        CHECK(!llama_memory_seq_rm(llama_get_memory(s.ctx), 0, 10, -1));
        CHECK(s.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 30)).n_after == 30);
        s.decode(123, 1);
    }
}

static void test_keeping_one_sequence_forgets_the_others(const tiny_model & m) {
    session_config c;
    c.n_seq   = 2;
    c.unified = true;
    session s(m, c);
    s.decode(0, 60, 0);
    s.decode(0, 60, 1);
    s.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 30), 0);
    llama_memory_seq_keep(llama_get_memory(s.ctx), 1);
    CHECK(s.n_rows(0) == 0 && llama_ecokv_is_lossy(s.ctx, 0) == 0 && s.n_rows(1) == 60);
    s.decode(0, 10, 0);
}

static void test_noise_is_drawn_anew(const tiny_model & m) {
    session s(m, {});
    s.decode(0, 200);
    int pos = 200;
    for (int i = 0; i < 30; ++i) {
        s.evict(config(LLAMA_ECOKV_POLICY_RANDOM, 60));
        s.decode(pos, 4);
        pos += 4;
    }
    std::vector<llama_pos> kept(3*2*s.n_rows());
    CHECK(llama_ecokv_get_kept(s.ctx, 0, kept.data()) == s.n_rows());
    int n_middle = 0; // neither of the first rows nor of the last: both get a chance
    for (llama_pos p : kept) {
        n_middle += p >= 200 && p < pos - 72;
    }
    CHECK(n_middle > 0);
}

int main() {
    llama_backend_init();
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    {
        tiny_model m;
        test_features_of_both_paths(m);
        test_rows_move_bit_for_bit(m);
        test_evict_for_ever(m);
        test_budget_that_fits_is_a_no_op(m);
        test_sequences_are_apart(m);
        test_shared_cells_are_refused(m);
        test_an_evicted_sequence_is_no_prefix(m);
        test_bad_calls(m);
        test_ring_follows_rollback(m);
        test_queries_outlive_their_rows(m);
        test_new_settings_keep_the_state(m);
        test_keeping_one_sequence_forgets_the_others(m);
        test_noise_is_drawn_anew(m);
    }
    {
        tiny_config c; // a head size that fits no vector lane count, and one KV head
        c.d_head    = 32;
        c.n_head    = 3;
        c.n_head_kv = 1;
        tiny_model m(c);
        test_features_of_both_paths(m);
        test_rows_move_bit_for_bit(m);
    }
    llama_backend_free();
    printf("cache: ok\n");
    return 0;
}
