#include "ecokv-policy.h"

#include <algorithm>
#include <cstring>

// by enum llama_ecokv_policy
static const ecokv_policy_info POLICIES[LLAMA_ECOKV_POLICY_COUNT] = {
    /* NONE      */ { "none",      false, false, nullptr               },
    /* ECOKV     */ { "ecokv",     true,  true,  ecokv_score_ecokv     },
    /* SNAPKV    */ { "snapkv",    true,  false, ecokv_score_snapkv    },
    /* STREAMING */ { "streaming", false, false, ecokv_score_streaming },
    /* RANDOM    */ { "random",    false, false, ecokv_score_random    },
};

const ecokv_policy_info * ecokv_policy_get(int32_t policy) {
    return policy >= 0 && policy < LLAMA_ECOKV_POLICY_COUNT ? &POLICIES[policy] : nullptr;
}

const char * llama_ecokv_policy_name(int32_t policy) {
    const auto * info = ecokv_policy_get(policy);
    return info ? info->name : nullptr;
}

int32_t llama_ecokv_policy_by_name(const char * name) {
    for (int32_t i = 0; name && i < LLAMA_ECOKV_POLICY_COUNT; ++i) {
        if (strcmp(POLICIES[i].name, name) == 0) {
            return i;
        }
    }
    return LLAMA_ECOKV_ERR_PARAM;
}

std::vector<double> ecokv_pool_attention(const ecokv_head & head, int32_t kernel) {
    const int32_t n = head.n_cand();
    const int32_t r = kernel/2;

    auto a = [&](int32_t i) { return head.finite(head.lo + i) ? (double) head.attn[head.lo + i] : 0.0; };

    std::vector<double> res(n);
    for (int32_t i = 0; i < n; ++i) {
        double sum = 0.0;
        for (int32_t j = std::max(0, i - r); j <= std::min(n - 1, i + r); ++j) {
            sum += a(j);
        }
        res[i] = sum/kernel;
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
