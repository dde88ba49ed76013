#pragma once

// Policies: pure functions from the features of one layer and KV head to scores. Each has a file in policies/.

#include "llama-ecokv.h"

#include <cmath>
#include <cstdint>
#include <vector>

// features of one layer and KV head
struct ecokv_head {
    int32_t layer;
    int32_t head;

    int32_t n;  // rows
    int32_t lo; // candidates: [lo, hi)
    int32_t hi;

    const float * attn;       // [n], NULL where the policy does not want it
    const float * key_norm;
    const float * key_cos;
    const float * key_euc;
    const float * value_norm;

    double m2; // |m|^2

    int32_t n_cand() const { return hi - lo; }

    // rows with NaN or Inf are left out of every mean
    bool finite(int32_t rank) const { return !key_norm || std::isfinite(key_norm[rank]); }
};

struct ecokv_policy_info {
    const char * name;

    bool want_attn;
    bool want_geometry;

    // score: [n_cand], higher stays; rows that are not finite are overwritten with -inf by the caller
    void (*score)(const ecokv_head & head, const llama_ecokv_config & config, float * score);
};

// NULL if unknown; the score of `none` is NULL: it keeps everything
const ecokv_policy_info * ecokv_policy_get(int32_t policy);

// step 1: a_i of the candidates, average-pooled with zero padding, [n_cand]
std::vector<double> ecokv_pool_attention(const ecokv_head & head, int32_t kernel);

// mean over the finite candidates of x [n_cand]
double ecokv_mean(const ecokv_head & head, const std::vector<double> & x);

void ecokv_score_ecokv    (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_snapkv   (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_streaming(const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_random   (const ecokv_head & head, const llama_ecokv_config & config, float * score);
