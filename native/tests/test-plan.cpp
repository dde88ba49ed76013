// Policies and selection on made-up features: every sentence of the method that needs no model.

#include "test-common.h"

#include <algorithm>
#include <numeric>

static std::vector<int32_t> plan(const features & f, const llama_ecokv_config & c) {
    std::vector<int32_t> keep((size_t) f.f.n_layer*f.f.n_head_kv*std::max(f.f.n, 1));
    const int32_t n = llama_ecokv_plan(&f.f, &c, keep.data());
    CHECK(n >= 0);
    keep.resize((size_t) f.f.n_layer*f.f.n_head_kv*n);
    return keep;
}

static void test_budget_edges() {
    for (int32_t policy = LLAMA_ECOKV_POLICY_ECOKV; policy < LLAMA_ECOKV_POLICY_COUNT; ++policy) {
        if (is_uneven(policy)) {
            continue; // test-uneven
        }
        for (int n : { 1, 12, 13, 14, 31, 32, 33, 64, 65, 130 }) {
            const auto f = random_features(2, 3, n, n);
            for (int budget = 13; budget <= 131; ++budget) {
                const auto keep = plan(f, config(policy, budget));
                const int  k    = std::min(n, budget);
                CHECK(keep.size() == (size_t) 2*3*k);
                for (size_t i = 0; i < keep.size(); i += k) {
                    CHECK(std::is_sorted(keep.begin() + i, keep.begin() + i + k));
                    CHECK(std::adjacent_find(keep.begin() + i, keep.begin() + i + k) == keep.begin() + i + k);
                    CHECK(keep[i] == 0 && keep[i + k - 1] == n - 1);
                    for (int s = 0; s < std::min(4, k); ++s) {
                        CHECK(keep[i + s] == s); // sinks
                    }
                    for (int r = 0; r < std::min(8, k); ++r) {
                        CHECK(keep[i + k - 1 - r] == n - 1 - r); // recents
                    }
                }
            }
            std::vector<int32_t> out(1000);
            auto c = config(policy, 12);
            CHECK(llama_ecokv_plan(&f.f, &c, out.data()) == LLAMA_ECOKV_ERR_BUDGET);
            CHECK(strstr(llama_ecokv_last_error(), "13"));
        }
    }
}

static void test_ties_go_to_the_later_position() {
    features f(1, 1, 64);
    std::fill(f.key_norm.begin(), f.key_norm.end(), 1.0f);
    // identical keys, flat attention: the most recent stay
    for (int32_t policy : { LLAMA_ECOKV_POLICY_ECOKV, LLAMA_ECOKV_POLICY_SNAPKV }) {
        auto c = config(policy, 20);
        c.kernel = 1; // pooling would lower the ends
        std::fill(f.attn.begin(), f.attn.end(), 1.0f/64);
        const auto keep = plan(f, c);
        for (int i = 0; i < 16; ++i) {
            CHECK(keep[4 + i] == 64 - 16 + i);
        }
    }
    // identical keys: importance decides
    f.attn[30] = 0.5f;
    const auto keep = plan(f, config(LLAMA_ECOKV_POLICY_ECOKV, 17));
    for (int i = 28; i <= 32; ++i) {
        CHECK(std::find(keep.begin(), keep.end(), i) != keep.end()); // the pooled neighbourhood
    }
}

static void test_nonfinite() {
    auto f = random_features(1, 2, 100, 1);
    f.key_norm[50] = NAN; // head 0
    f.attn[50] = f.key_cos[50] = f.key_euc[50] = f.value_norm[50] = NAN;

    for (int32_t policy = LLAMA_ECOKV_POLICY_ECOKV; policy < LLAMA_ECOKV_POLICY_COUNT; ++policy) {
        if (is_uneven(policy)) {
            continue;
        }
        auto c = config(policy, 99);
        const auto keep = plan(f, c);
        CHECK(std::find(keep.begin(), keep.begin() + 99, 50) == keep.begin() + 99); // the first to go

        std::vector<float> scores(100);
        CHECK(llama_ecokv_scores(&f.f, &c, 0, 0, scores.data()) == LLAMA_ECOKV_OK);
        for (int i = 4; i < 92; ++i) {
            CHECK(i == 50 ? scores[i] == -INFINITY : std::isfinite(scores[i]));
        }
    }

    f.key_norm[99] = NAN; // a recent token
    std::vector<int32_t> out(2*50);
    auto c = config(LLAMA_ECOKV_POLICY_ECOKV, 50);
    CHECK(llama_ecokv_plan(&f.f, &c, out.data()) == LLAMA_ECOKV_ERR_NONFINITE);
}

static void test_scale_invariance() {
    const auto f = random_features(2, 2, 200, 3);
    for (int compose = 0; compose < 4; ++compose) {
        auto c = config(LLAMA_ECOKV_POLICY_ECOKV, 60);
        c.compose = compose;
        const auto keep = plan(f, c);

        auto g = random_features(2, 2, 200, 3); // K*4: norms and distances scale, directions do not
        for (auto * v : { &g.key_norm, &g.key_euc }) {
            for (float & x : *v) { x *= 4.0f; }
        }
        for (float & x : g.value_norm) { x *= 0.25f; }
        CHECK(plan(g, c) == keep);
    }
}

static void test_heads_do_not_mix() {
    const auto f = random_features(1, 2, 150, 5);
    auto g = random_features(1, 2, 150, 5);
    for (auto * v : { &g.attn, &g.key_norm, &g.key_cos, &g.key_euc, &g.value_norm }) {
        std::swap_ranges(v->begin(), v->begin() + 150, v->begin() + 150);
    }
    std::swap(g.head_m2[0], g.head_m2[1]);

    for (int32_t policy : { LLAMA_ECOKV_POLICY_ECOKV, LLAMA_ECOKV_POLICY_SNAPKV }) {
        const auto a = plan(f, config(policy, 40));
        const auto b = plan(g, config(policy, 40));
        CHECK(std::equal(a.begin(), a.begin() + 40, b.begin() + 40));
        CHECK(std::equal(b.begin(), b.begin() + 40, a.begin() + 40));
    }
}

static void test_random_is_seeded() {
    const auto f = random_features(1, 1, 300, 7);
    auto c = config(LLAMA_ECOKV_POLICY_RANDOM, 100);
    const auto a = plan(f, c);
    CHECK(a == plan(f, c));
    c.seed = 1;
    CHECK(a != plan(f, c));
}

static void test_bad_configs() {
    const auto f = random_features(1, 1, 50, 9);
    std::vector<int32_t> out(50);

    auto refused = [&](const std::function<void(llama_ecokv_config &)> & change) {
        auto c = config(LLAMA_ECOKV_POLICY_ECOKV, 20);
        change(c);
        return llama_ecokv_plan(&f.f, &c, out.data()) == LLAMA_ECOKV_ERR_PARAM;
    };
    CHECK(refused([](auto & c) { c.policy = 99; }));
    CHECK(refused([](auto & c) { c.policy = -1; }));
    CHECK(refused([](auto & c) { c.n_sink = -1; }));
    CHECK(refused([](auto & c) { c.n_recent = 0; })); // the next position follows on the last row
    CHECK(refused([](auto & c) { c.kernel = 4; }));
    CHECK(refused([](auto & c) { c.kernel = 99999999; }));
    CHECK(refused([](auto & c) { c.kernel = 0; }));
    CHECK(refused([](auto & c) { c.compose = 4; }));
    CHECK(refused([](auto & c) { c.lambda = 1.5f; }));
    CHECK(refused([](auto & c) { c.lambda = NAN; }));
    CHECK(refused([](auto & c) { c.n_sink = 5; })); // the features were taken with 4

    CHECK(llama_ecokv_policy_by_name("ecokv") == LLAMA_ECOKV_POLICY_ECOKV);
    CHECK(llama_ecokv_policy_by_name("Ecokv") < 0);
    CHECK(llama_ecokv_policy_by_name(nullptr) < 0);
    CHECK(llama_ecokv_policy_name(77) == nullptr);
}

int main() {
    test_budget_edges();
    test_ties_go_to_the_later_position();
    test_nonfinite();
    test_scale_invariance();
    test_heads_do_not_mix();
    test_random_is_seeded();
    test_bad_configs();
    printf("plan: ok\n");
    return 0;
}
