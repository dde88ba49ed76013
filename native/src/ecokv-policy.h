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
    int32_t n_head_kv; // of the layer

    int32_t n;  // rows
    int32_t lo; // candidates: [lo, hi)
    int32_t hi;
    int32_t first; // first row that is no hole; the sinks are [first, lo)

    const float * attn;       // [n], NULL where the policy does not want it
    const float * attn_last;  // [n_head_kv][n] of the whole layer
    const float * key_norm;
    const float * key_cos;
    const float * key_euc;
    const float * value_norm;

    double m2; // |m|^2

    int32_t n_cand() const { return hi - lo; }

    // rows with NaN or Inf are left out of every mean
    bool finite(int32_t rank) const { return !key_norm || std::isfinite(key_norm[rank]); }
};

// score: [n_cand], higher stays; rows that are not finite are overwritten with -inf by the caller
typedef void (*ecokv_score_fn)(const ecokv_head & head, const llama_ecokv_config & config, float * score);

struct ecokv_policy_info {
    const char * name;

    bool want_attn;
    bool want_last;
    bool want_geometry;

    ecokv_score_fn score;
};

// NULL if unknown; the score of `none` is NULL: it keeps everything
const ecokv_policy_info * ecokv_policy_get(int32_t policy);

// step 1: a_i of the candidates, pooled with zero padding, [n_cand]
std::vector<double> ecokv_pool_attention(const ecokv_head & head, const llama_ecokv_config & config);

// a feature [n] over the candidates, 0 where a row is not finite: [n_cand]
std::vector<double> ecokv_candidates(const ecokv_head & head, const float * x);

// mean over the finite candidates of x [n_cand]
double ecokv_mean(const ecokv_head & head, const std::vector<double> & x);

// x / mean(x), 0 everywhere if the mean is 0
void ecokv_over_mean(const ecokv_head & head, std::vector<double> & x);

// step 6: mean cosine of all pairs of candidates, in [0, 1]
double ecokv_redundancy_cos(const ecokv_head & head);

// steps 3 to 7 with an importance [n_cand] of one's choice
void ecokv_score_with(const ecokv_head & head, const llama_ecokv_config & config, const std::vector<double> & importance, float * score);

void ecokv_score_critical (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_ecokv    (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_euclid   (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_keydiff  (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_knorm    (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_mixkv    (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_random   (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_snapkv   (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_streaming(const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_tova     (const ecokv_head & head, const llama_ecokv_config & config, float * score);
void ecokv_score_vatp     (const ecokv_head & head, const llama_ecokv_config & config, float * score);
