// StreamingLLM: sinks and the most recent tokens (arXiv:2309.17453)

#include "ecokv-policy.h"

void ecokv_score_streaming(const ecokv_head & head, const llama_ecokv_config &, float * score) {
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        score[i] = (float) i;
    }
}
