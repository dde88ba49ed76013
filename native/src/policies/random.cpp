// Seeded noise per layer, KV head and rank: the control.

#include "ecokv-policy.h"

// splitmix64, public domain algorithm
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30))*0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27))*0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

void ecokv_score_random(const ecokv_head & head, const llama_ecokv_config & config, float * score) {
    const uint64_t s = mix(mix(mix(config.seed) + (uint64_t) head.layer) + (uint64_t) head.head);
    for (int32_t i = 0; i < head.n_cand(); ++i) {
        score[i] = (float) (mix(s + (uint64_t) (head.lo + i)) >> 40)*0x1p-24f;
    }
}
