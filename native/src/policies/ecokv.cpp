// ECOKV: importance and diversity, weighed by the redundancy of the head. An implementation of a published abstract;
// the composition of the two distances and the Euclidean redundancy are our reading of it.

#include "ecokv-policy.h"

#include <algorithm>

// step 4: a feature scaled to [0, 1] over the candidates; 0 everywhere if it tells nothing apart
struct scaled {
    std::vector<double> x; // [n_cand]
    bool informative = false;
};

static scaled scale(const ecokv_head & head, const float * f, double min_range) {
    const int32_t n = head.n_cand();

    scaled res;
    res.x = ecokv_candidates(head, f);

    const double mean = ecokv_mean(head, res.x);

    std::vector<double> dev(n);
    double min =  INFINITY;
    double max = -INFINITY;
    for (int32_t i = 0; i < n; ++i) {
        dev[i] = (res.x[i] - mean)*(res.x[i] - mean);
        if (head.finite(head.lo + i)) {
            min = std::min(min, res.x[i]);
            max = std::max(max, res.x[i]);
        }
    }

    const double sd = std::sqrt(ecokv_mean(head, dev));
    const double lo = std::max(min, mean - 3.0*sd);
    const double hi = std::min(max, mean + 3.0*sd);

    res.informative = hi - lo > min_range;
    for (int32_t i = 0; i < n; ++i) {
        res.x[i] = res.informative ? std::clamp((res.x[i] - lo)/(hi - lo), 0.0, 1.0) : 0.0;
    }
    return res;
}

// step 2: x is the attention, or the score of a host
static std::vector<double> importance(const ecokv_head & head, const llama_ecokv_config & config, std::vector<double> x) {
    const int32_t n = head.n_cand();

    if (config.value_norm == LLAMA_ECOKV_VALUE_MUL) {
        const auto v = ecokv_candidates(head, head.value_norm);
        for (int32_t i = 0; i < n; ++i) {
            x[i] *= v[i];
        }
    }

    ecokv_over_mean(head, x);

    if (config.value_norm == LLAMA_ECOKV_VALUE_ADD) {
        auto v = scale(head, head.value_norm, 0.0).x;
        ecokv_over_mean(head, v);
        for (int32_t i = 0; i < n; ++i) {
            x[i] = (x[i] + v[i])/2.0;
        }
    }

    return x;
}

// step 5
static std::vector<double> diversity(const scaled & E, const scaled & C, const llama_ecokv_config & config) {
    const double l = config.lambda;

    if (!E.informative || !C.informative) {
        return E.informative ? E.x : C.x; // C.x is 0 everywhere if neither is informative
    }

    std::vector<double> D(E.x.size());
    for (size_t i = 0; i < D.size(); ++i) {
        const double e = E.x[i];
        const double c = C.x[i];
        switch (config.compose) {
            case LLAMA_ECOKV_COMPOSE_SUM:  D[i] = l*e + (1.0 - l)*c;                                            break;
            case LLAMA_ECOKV_COMPOSE_MAX:  D[i] = std::max(e, c);                                               break;
            case LLAMA_ECOKV_COMPOSE_PROD: D[i] = std::pow(e, 2.0*l)*std::pow(c, 2.0*(1.0 - l));                break;
            default:                       D[i] = 1.0 - std::pow(1.0 - e, 2.0*l)*std::pow(1.0 - c, 2.0*(1.0 - l)); break;
        }
    }
    return D;
}

// step 6
static double head_weight(const ecokv_head & head, const scaled & E, const scaled & C, const llama_ecokv_config & config) {
    if (config.head_weight == LLAMA_ECOKV_HEAD_FIXED) {
        return config.head_weight_fixed;
    }
    if (!E.informative && !C.informative) {
        return 0.0;
    }

    const double r_cos = ecokv_redundancy_cos(head);
    const double r_euc = 1.0 - ecokv_mean(head, E.x);

    switch (config.head_weight) {
        case LLAMA_ECOKV_HEAD_COS:    return r_cos;
        case LLAMA_ECOKV_HEAD_EUCLID: return std::clamp(r_euc, 0.0, 1.0);
        default:                      return std::clamp(0.5*r_cos + 0.5*r_euc, 0.0, 1.0);
    }
}

// step 7
void ecokv_score_with(const ecokv_head & head, const llama_ecokv_config & config, const std::vector<double> & x, float * score) {
    const int32_t n = head.n_cand();

    auto k2 = ecokv_candidates(head, head.key_norm);
    for (double & k : k2) {
        k *= k;
    }
    const double rms = std::sqrt(ecokv_mean(head, k2));

    const auto C = scale(head, head.key_cos, 1e-6);
    const auto E = scale(head, head.key_euc, 1e-3*rms);
    const auto I = importance(head, config, x);

    auto D = diversity(E, C, config);
    ecokv_over_mean(head, D);

    const double w = head_weight(head, E, C, config);

    for (int32_t i = 0; i < n; ++i) {
        score[i] = (float) (w*D[i] + (1.0 - w)*I[i]);
    }
}

void ecokv_score_ecokv(const ecokv_head & head, const llama_ecokv_config & config, float * score) {
    ecokv_score_with(head, config, ecokv_pool_attention(head, config), score);
}
