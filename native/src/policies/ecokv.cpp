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
    res.x.assign(n, 0.0);
    for (int32_t i = 0; i < n; ++i) {
        if (head.finite(head.lo + i)) {
            res.x[i] = f[head.lo + i];
        }
    }

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

// step 2
static std::vector<double> importance(const ecokv_head & head, const llama_ecokv_config & config) {
    auto I = ecokv_pool_attention(head, config.kernel);

    const int32_t n = head.n_cand();

    auto over_mean = [&](std::vector<double> & x) {
        const double mean = ecokv_mean(head, x);
        for (double & v : x) {
            v = mean > 0.0 ? v/mean : 0.0;
        }
    };

    if (config.value_norm == LLAMA_ECOKV_VALUE_MUL) {
        for (int32_t i = 0; i < n; ++i) {
            I[i] = head.finite(head.lo + i) ? I[i]*head.value_norm[head.lo + i] : 0.0;
        }
    }

    over_mean(I);

    if (config.value_norm == LLAMA_ECOKV_VALUE_ADD) {
        auto v = scale(head, head.value_norm, 0.0).x;
        over_mean(v);
        for (int32_t i = 0; i < n; ++i) {
            I[i] = (I[i] + v[i])/2.0;
        }
    }

    return I;
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

    int64_t n = 0;
    for (int32_t i = head.lo; i < head.hi; ++i) {
        n += head.finite(i);
    }

    const double r_cos = n > 1 ? std::clamp((n*head.m2 - 1.0)/(n - 1.0), 0.0, 1.0) : 0.0;
    const double r_euc = 1.0 - ecokv_mean(head, E.x);

    switch (config.head_weight) {
        case LLAMA_ECOKV_HEAD_COS:    return r_cos;
        case LLAMA_ECOKV_HEAD_EUCLID: return std::clamp(r_euc, 0.0, 1.0);
        default:                      return std::clamp(0.5*r_cos + 0.5*r_euc, 0.0, 1.0);
    }
}

// step 7
void ecokv_score_ecokv(const ecokv_head & head, const llama_ecokv_config & config, float * score) {
    const int32_t n = head.n_cand();

    double  k2     = 0.0;
    int64_t n_good = 0;
    for (int32_t i = head.lo; i < head.hi; ++i) {
        if (head.finite(i)) {
            k2 += (double) head.key_norm[i]*head.key_norm[i];
            n_good++;
        }
    }
    const double rms = n_good > 0 ? std::sqrt(k2/n_good) : 0.0;

    const auto C = scale(head, head.key_cos, 1e-6);
    const auto E = scale(head, head.key_euc, 1e-3*rms);
    const auto I = importance(head, config);
    const auto D = diversity(E, C, config);

    const double w      = head_weight(head, E, C, config);
    const double mean_d = ecokv_mean(head, D);

    for (int32_t i = 0; i < n; ++i) {
        const double d = mean_d > 0.0 ? D[i]/mean_d : 0.0;
        score[i] = (float) (w*d + (1.0 - w)*I[i]);
    }
}
