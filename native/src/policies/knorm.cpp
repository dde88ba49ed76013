// Keys of small norm draw attention: the smallest stay (arXiv:2406.11430)

#include "ecokv-policy.h"

void ecokv_score_knorm(const ecokv_head & head, const llama_ecokv_config &, float * score) {
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        score[i] = -head.key_norm[head.lo + i];
    }
}
