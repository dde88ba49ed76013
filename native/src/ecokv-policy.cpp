#include "ecokv-policy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

// by enum llama_ecokv_policy:  name, then what it wants: attention of the window, of the last query, geometry of the keys
static const ecokv_policy_info POLICIES[LLAMA_ECOKV_POLICY_COUNT] = {
    /* NONE      */ { "none",      false, false, false, nullptr               },
    /* ECOKV     */ { "ecokv",     true,  false, true,  ecokv_score_ecokv     },
    /* SNAPKV    */ { "snapkv",    true,  false, false, ecokv_score_snapkv    },
    /* STREAMING */ { "streaming", false, false, false, ecokv_score_streaming },
    /* RANDOM    */ { "random",    false, false, false, ecokv_score_random    },
    /* MIXKV     */ { "mixkv",     true,  false, true,  ecokv_score_mixkv     },
    /* KEYDIFF   */ { "keydiff",   false, false, true,  ecokv_score_keydiff   },
    /* EUCLID    */ { "euclid",    false, false, true,  ecokv_score_euclid    },
    /* KNORM     */ { "knorm",     false, false, false, ecokv_score_knorm     },
    /* TOVA      */ { "tova",      false, true,  false, ecokv_score_tova      },
    /* CRITICAL  */ { "critical",  true,  false, false, ecokv_score_critical  },
    /* VATP      */ { "vatp",      true,  false, false, ecokv_score_vatp      },
    /* PYRAMID   */ { "pyramid",   true,  false, false, ecokv_score_snapkv    },
    /* ADA       */ { "ada",       true,  false, false, ecokv_score_snapkv    },
};

// a score of any sign as an importance: the least of the candidates is worth nothing, none is worth less
static std::vector<double> lifted(const ecokv_head & head, const float * score) {
    std::vector<double> res(score, score + head.n_cand());

    double min = 0.0;
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        if (head.finite(head.lo + i)) {
            min = std::min(min, res[i]);
        }
    }
    for (double & x : res) {
        x -= min;
    }
    return res;
}

// <host>+ecokv
static void score_plus(const ecokv_head & head, const llama_ecokv_config & config, float * score) {
    POLICIES[config.policy & ~LLAMA_ECOKV_PLUS_ECOKV].score(head, config, score);
    ecokv_score_with(head, config, lifted(head, score), score);
}

namespace {

// `none` scores nothing, and `ecokv` would be its own host
struct plus_policies {
    std::array<std::string,       LLAMA_ECOKV_POLICY_COUNT> names;
    std::array<ecokv_policy_info, LLAMA_ECOKV_POLICY_COUNT> infos = {};

    plus_policies() {
        for (int32_t i = 0; i < LLAMA_ECOKV_POLICY_COUNT; ++i) {
            if (i != LLAMA_ECOKV_POLICY_NONE && i != LLAMA_ECOKV_POLICY_ECOKV) {
                names[i] = std::string(POLICIES[i].name) + "+ecokv";
                infos[i] = POLICIES[i];
                infos[i].name          = names[i].c_str();
                infos[i].want_geometry = true;
                infos[i].score         = score_plus;
            }
        }
    }
};

} // namespace

const ecokv_policy_info * ecokv_policy_get(int32_t policy) {
    static const plus_policies plus;

    const int32_t host = policy & ~LLAMA_ECOKV_PLUS_ECOKV;
    if (host < 0 || host >= LLAMA_ECOKV_POLICY_COUNT) {
        return nullptr;
    }
    if (host == policy) {
        return &POLICIES[policy];
    }
    return plus.infos[host].name ? &plus.infos[host] : nullptr;
}

const char * llama_ecokv_policy_name(int32_t policy) {
    const auto * info = ecokv_policy_get(policy);
    return info ? info->name : nullptr;
}

int32_t llama_ecokv_policy_by_name(const char * name) {
    for (int32_t i = 0; name && i < LLAMA_ECOKV_POLICY_COUNT; ++i) {
        for (int32_t policy : { i, i | LLAMA_ECOKV_PLUS_ECOKV }) {
            const auto * info = ecokv_policy_get(policy);
            if (info && strcmp(info->name, name) == 0) {
                return policy;
            }
        }
    }
    return LLAMA_ECOKV_ERR_PARAM;
}

std::vector<double> ecokv_pool_attention(const ecokv_head & head, const llama_ecokv_config & config) {
    const int32_t n = head.n_cand();
    const int32_t r = config.kernel/2;

    const auto a = ecokv_candidates(head, head.attn);

    std::vector<double> res(n);
    for (int32_t i = 0; i < n; ++i) {
        double sum = 0.0;
        double max = 0.0;
        for (int32_t j = std::max(0, i - r); j <= std::min(n - 1, i + r); ++j) {
            sum += a[j];
            max = std::max(max, a[j]);
        }
        res[i] = config.pooling == LLAMA_ECOKV_POOL_MAX ? max : sum/config.kernel;
    }
    return res;
}

std::vector<double> ecokv_candidates(const ecokv_head & head, const float * x) {
    std::vector<double> res(head.n_cand(), 0.0);
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        if (head.finite(head.lo + i)) {
            res[i] = x[head.lo + i];
        }
    }
    return res;
}

double ecokv_mean(const ecokv_head & head, const std::vector<double> & x) {
    double  sum = 0.0;
    int64_t n   = 0;
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        if (head.finite(head.lo + i)) {
            sum += x[i];
            n++;
        }
    }
    return n > 0 ? sum/n : 0.0;
}

void ecokv_over_mean(const ecokv_head & head, std::vector<double> & x) {
    const double mean = ecokv_mean(head, x);
    for (double & v : x) {
        v = mean > 0.0 ? v/mean : 0.0;
    }
}

double ecokv_redundancy_cos(const ecokv_head & head) {
    int64_t n = 0;
    for (int32_t i = head.lo; i < head.hi; ++i) {
        n += head.finite(i);
    }
    return n > 1 ? std::clamp((n*head.m2 - 1.0)/(n - 1.0), 0.0, 1.0) : 0.0;
}
