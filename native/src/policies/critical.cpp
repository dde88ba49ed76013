// CriticalKV: half of what is chosen by attention, the rest by attention times the norm of the value (arXiv:2502.03805).
// A score that does this in one selection: the first half lies above everything else.

#include "ecokv-policy.h"

#include <algorithm>
#include <numeric>

void ecokv_score_critical(const ecokv_head & head, const llama_ecokv_config & config, float * score) {
    const int32_t n     = head.n_cand();
    const int32_t first = std::clamp((config.budget - config.n_sink - config.n_recent)/2, 0, n);

    const auto a = ecokv_pool_attention(head, config);
    const auto v = ecokv_candidates(head, head.value_norm);

    double top = 0.0;
    for (int32_t i = 0; i < n; ++i) {
        score[i] = (float) ((a[i] + 1e-4)*v[i]);
        top = std::max(top, (double) score[i]);
    }

    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + first, order.end(), [&](int32_t i, int32_t j) {
        const bool fi = head.finite(head.lo + i);
        const bool fj = head.finite(head.lo + j);
        if (fi != fj) {
            return fi;
        }
        return a[i] != a[j] ? a[i] > a[j] : i > j;
    });
    for (int32_t j = 0; j < first; ++j) {
        score[order[j]] = (float) (2.0*(1.0 + top) + a[order[j]]);
    }
}
