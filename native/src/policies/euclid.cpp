// Distance of the key to the centroid, as ManifoldKV does

#include "ecokv-policy.h"

#include <algorithm>

void ecokv_score_euclid(const ecokv_head & head, const llama_ecokv_config &, float * score) {
    std::copy(head.key_euc + head.lo, head.key_euc + head.hi, score);
}
