// MixKV: attention and value norm against the direction of the key, mixed by the redundancy of the head (arXiv:2510.20707)

#include "ecokv-policy.h"

#include <algorithm>

// x scaled to [0, 1] over the candidates, then to a given mean
static std::vector<double> scaled_to(const ecokv_head & head, const float * f, double mean) {
    auto x = ecokv_candidates(head, f);

    double min =  INFINITY;
    double max = -INFINITY;
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        if (head.finite(head.lo + i)) {
            min = std::min(min, x[i]);
            max = std::max(max, x[i]);
        }
    }
    for (double & v : x) {
        v = max > min ? (v - min)/(max - min) : 0.0;
    }

    ecokv_over_mean(head, x);
    for (double & v : x) {
        v *= mean;
    }
    return x;
}

void ecokv_score_mixkv(const ecokv_head & head, const llama_ecokv_config & config, float * score) {
    const auto   a    = ecokv_pool_attention(head, config);
    const double mean = ecokv_mean(head, a);
    const auto   v    = scaled_to(head, head.value_norm, mean);
    const auto   c    = scaled_to(head, head.key_cos,    mean);
    const double r    = ecokv_redundancy_cos(head);

    for (int32_t i = 0; i < head.n_cand(); ++i) {
        score[i] = (float) ((1.0 - r)*(a[i] + v[i]) + r*c[i]);
    }
}
