#include "ecokv-budgets.h"

#include "ecokv-plan.h"
#include "ecokv-common.h"

#include <algorithm>
#include <cmath>
#include <numeric>

static int32_t host_of(const llama_ecokv_config & c) {
    return c.policy & ~LLAMA_ECOKV_PLUS_ECOKV;
}

bool ecokv_pyramid(const llama_ecokv_config & c) {
    return c.layer_budgets == LLAMA_ECOKV_LAYERS_PYRAMID || host_of(c) == LLAMA_ECOKV_POLICY_PYRAMID;
}

bool ecokv_ada(const llama_ecokv_config & c) {
    return c.head_budgets == LLAMA_ECOKV_HEADS_ADA || host_of(c) == LLAMA_ECOKV_POLICY_ADA;
}

int32_t ecokv_n_protected(const llama_ecokv_config & c) {
    return c.n_sink + c.n_recent;
}

// PyramidKV: candidates fall linearly from 2k - k/beta in the first layer to k/beta in the last; where the first layers have
// fewer candidates than that, the slope is flatter (arXiv:2406.02069)
static std::vector<int32_t> pyramid(int32_t k, int32_t n_cand, float beta, int32_t n_layer) {
    double lo = k/(double) beta;
    double hi = 2.0*k - lo;
    if (hi > n_cand) {
        hi = n_cand;
        lo = 2.0*k - hi;
    }

    std::vector<int32_t> res(n_layer, k);
    if (n_layer == 1) {
        return res;
    }

    int64_t left = (int64_t) k*n_layer;
    for (int32_t i = 0; i < n_layer; ++i) {
        res[i] = (int32_t) std::floor(hi - (hi - lo)*i/(n_layer - 1));
        left  -= res[i];
    }
    for (int32_t i = 0; left > 0; i = (i + 1) % n_layer) { // the rest of the rounding, first layers first: never rising
        if (res[i] < n_cand) {
            res[i]++;
            left--;
        }
    }
    return res;
}

std::vector<int32_t> ecokv_layer_budgets(const llama_ecokv_config & c, int32_t n_layer, int32_t n) {
    if (n <= c.budget || !ecokv_pyramid(c)) {
        return std::vector<int32_t>(n_layer, std::min(n, c.budget));
    }
    const int32_t n_protected = ecokv_n_protected(c);

    auto res = pyramid(c.budget - n_protected, n - n_protected, c.beta, n_layer);
    for (auto & b : res) {
        b += n_protected;
    }
    return res;
}

// how many of the best k*n_head candidates of the layer lie in each head: higher score, then the later position
static std::vector<int64_t> count_best(const std::vector<std::vector<float>> & scores, int64_t n_best) {
    struct candidate {
        float   score;
        int32_t from_end; // positions are comparable from the end only: heads may have different holes
        int32_t head;
    };

    std::vector<candidate> all;
    for (size_t h = 0; h < scores.size(); ++h) {
        for (size_t i = 0; i < scores[h].size(); ++i) {
            if (scores[h][i] > -INFINITY) {
                all.push_back({ scores[h][i], (int32_t) (scores[h].size() - i), (int32_t) h });
            }
        }
    }
    if (n_best < (int64_t) all.size()) {
        std::nth_element(all.begin(), all.begin() + n_best, all.end(), [](const candidate & a, const candidate & b) {
            return a.score    != b.score    ? a.score    > b.score :
                   a.from_end != b.from_end ? a.from_end < b.from_end : a.head < b.head;
        });
        all.resize(n_best);
    }

    std::vector<int64_t> res(scores.size(), 0);
    for (const auto & x : all) {
        res[x.head]++;
    }
    return res;
}

// the most candidates that one head can get
static int32_t ada_max(const llama_ecokv_config & c, int32_t k, int32_t n_head) {
    return (int32_t) std::min((double) INT32_MAX, std::ceil(k*((double) c.floor + (1.0 - c.floor)*n_head)));
}

std::vector<int32_t> ecokv_head_budgets(const llama_ecokv_config & c, const std::vector<std::vector<float>> & scores, int32_t k) {
    const int32_t n_head = (int32_t) scores.size();

    std::vector<int32_t> res(n_head);
    if (!ecokv_ada(c)) {
        std::transform(scores.begin(), scores.end(), res.begin(), [&](const auto & s) { return std::min((int32_t) s.size(), k); });
        return res;
    }

    const auto best = count_best(scores, (int64_t) k*n_head);

    int64_t left = (int64_t) k*n_head;

    std::vector<int32_t> cap(n_head);
    std::vector<double>  rest(n_head);
    for (int32_t h = 0; h < n_head; ++h) {
        const double want = (double) c.floor*k + (1.0 - (double) c.floor)*best[h];

        cap [h] = std::min((int32_t) scores[h].size(), ada_max(c, k, n_head));
        res [h] = std::min(cap[h], (int32_t) want);
        rest[h] = want - res[h];
        left   -= res[h];
    }

    // what rounding and short heads left over: one each, the head that is furthest below its share first
    std::vector<int32_t> order(n_head);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return rest[a] > rest[b]; });

    for (bool room = true; room && left > 0; ) {
        room = false;
        for (int32_t h : order) {
            if (left > 0 && res[h] < cap[h]) {
                res[h]++;
                left--;
                room = true;
            }
        }
    }
    return res;
}

int64_t ecokv_rows_of_heads::n_slots() const {
    int64_t res = 0;
    for (int32_t i = 0; i < n_layer; ++i) {
        res += (int64_t) n*heads_of(i);
    }
    return res;
}

int64_t ecokv_rows_of_heads::n_pairs() const {
    int64_t res = n_slots();
    for (int32_t i = 0; i < n_layer; ++i) {
        for (int32_t h = 0; h < heads_of(i); ++h) {
            res -= holes_of(i, h);
        }
    }
    return res;
}

bool ecokv_fits(const llama_ecokv_config & c, const ecokv_rows_of_heads & rows) {
    if (c.policy == LLAMA_ECOKV_POLICY_NONE || rows.n <= c.budget) {
        return true;
    }
    if (!ecokv_pyramid(c) && !ecokv_ada(c)) {
        return false;
    }
    int64_t n_heads = 0;
    for (int32_t i = 0; i < rows.n_layer; ++i) {
        n_heads += rows.heads_of(i);
    }
    return rows.n_pairs() <= n_heads*c.budget;
}

int32_t llama_ecokv_layer_budgets(const llama_ecokv_config * c, int32_t n_layer, int32_t n, int32_t * budgets) {
    const int32_t status = ecokv_config_check(*c);
    if (status != LLAMA_ECOKV_OK) {
        return status;
    }
    if (n_layer < 1 || n < 0) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "%d layers, %d rows", n_layer, n);
    }
    const auto res = ecokv_layer_budgets(*c, n_layer, c->policy == LLAMA_ECOKV_POLICY_NONE ? std::min(n, c->budget) : n);
    std::copy(res.begin(), res.end(), budgets);
    return LLAMA_ECOKV_OK;
}

int32_t llama_ecokv_plan_max(const llama_ecokv_config * c, int32_t n_layer, int32_t n_head_kv, int32_t n) {
    const int32_t status = ecokv_config_check(*c);
    if (status != LLAMA_ECOKV_OK) {
        return status;
    }
    if (n_layer < 1 || n_head_kv < 1 || n < 0) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "%d layers, %d heads, %d rows", n_layer, n_head_kv, n);
    }
    if (c->policy == LLAMA_ECOKV_POLICY_NONE || n <= c->budget) {
        return n;
    }
    const int32_t most = ecokv_layer_budgets(*c, n_layer, n)[0];
    if (!ecokv_ada(*c)) {
        return most;
    }
    const int32_t n_protected = ecokv_n_protected(*c);
    return (int32_t) std::min<int64_t>(n, (int64_t) n_protected + ada_max(*c, most - n_protected, n_head_kv));
}
