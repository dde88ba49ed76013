#pragma once

// Groups of rows: images that keep a floor of KV pairs, texts that stay whole. Pure.

#include "ecokv-policy.h"

#include <cstdint>
#include <vector>

// LLAMA_ECOKV_OK, or what is wrong with the groups of a config
int32_t ecokv_groups_check(const llama_ecokv_config & config);

// candidates that stay of a head, ascending: `best` is how many, `score` [n_cand] theirs, `pos` [n] the true positions of its rows
int32_t ecokv_groups_select(const ecokv_head & head, const llama_ecokv_config & config, const llama_pos * pos,
        const std::vector<float> & score, int32_t n_best, std::vector<int32_t> & best);
