// TOVA: the attention of the last query, one set for all heads of a layer (arXiv:2401.06104)

#include "ecokv-policy.h"

void ecokv_score_tova(const ecokv_head & head, const llama_ecokv_config &, float * score) {
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        double sum = 0.0;
        for (int32_t h = 0; h < head.n_head_kv; ++h) {
            sum += head.attn_last[(int64_t) h*head.n + head.lo + i];
        }
        score[i] = (float) (sum/head.n_head_kv);
    }
}
