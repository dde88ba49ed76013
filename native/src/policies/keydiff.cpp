// KeyDiff: the direction of the key, away from the mean direction (arXiv:2504.15364)

#include "ecokv-policy.h"

#include <algorithm>

void ecokv_score_keydiff(const ecokv_head & head, const llama_ecokv_config &, float * score) {
    std::copy(head.key_cos + head.lo, head.key_cos + head.hi, score);
}
