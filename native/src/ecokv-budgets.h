#pragma once

// How a budget is shared out: between layers by depth, between the KV heads of a layer by score. Pure.

#include "llama-ecokv.h"

#include <cstdint>
#include <vector>

// what the policy of a config asks for, or the config itself
bool ecokv_pyramid(const llama_ecokv_config & config);
bool ecokv_ada    (const llama_ecokv_config & config);

// rows that a plan keeps everywhere: sinks and recents
int32_t ecokv_n_protected(const llama_ecokv_config & config);

// pairs per head (on average) of every layer, protected ones included, for n rows. They sum up to n_layer*min(n, budget)
std::vector<int32_t> ecokv_layer_budgets(const llama_ecokv_config & config, int32_t n_layer, int32_t n);

// candidates that stay of every head of a layer, k per head on average; scores: [n_head] of [n_cand], -inf is out of question
std::vector<int32_t> ecokv_head_budgets(const llama_ecokv_config & config, const std::vector<std::vector<float>> & scores, int32_t k);

// rows of a sequence by head
struct ecokv_rows_of_heads {
    int32_t         n_layer;
    int32_t         n_head_kv;
    int32_t         n;       // rows of the head that has most
    const int32_t * n_heads; // [n_layer] KV heads, NULL: n_head_kv
    const int32_t * first;   // [n_layer][n_head_kv] holes, NULL: none

    int32_t heads_of(int32_t layer) const { return n_heads ? n_heads[layer] : n_head_kv; }
    int32_t holes_of(int32_t layer, int32_t head) const { return first ? first[(int64_t) layer*n_head_kv + head] : 0; }

    int64_t n_slots() const; // rows of all layers and heads, holes included
    int64_t n_pairs() const; // without holes
};

// nothing has to go
bool ecokv_fits(const llama_ecokv_config & config, const ecokv_rows_of_heads & rows);
