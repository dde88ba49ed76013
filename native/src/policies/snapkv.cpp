// SnapKV: the pooled attention of the window, per KV head (arXiv:2404.14469)

#include "ecokv-policy.h"

void ecokv_score_snapkv(const ecokv_head & head, const llama_ecokv_config & config, float * score) {
    const auto a = ecokv_pool_attention(head, config);
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        score[i] = (float) a[i];
    }
}
