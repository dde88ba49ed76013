// VATP: attention times the norm of the value (arXiv:2406.12335), pooled as in SnapKV

#include "ecokv-policy.h"

void ecokv_score_vatp(const ecokv_head & head, const llama_ecokv_config & config, float * score) {
    const auto a = ecokv_pool_attention(head, config);
    const auto v = ecokv_candidates(head, head.value_norm);
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        score[i] = (float) (a[i]*v[i]);
    }
}
