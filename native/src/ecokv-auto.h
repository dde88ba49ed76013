#pragma once

// A budget that the environment asks for: programs that know nothing of eviction run within it.

#include "llama-ecokv.h"

#include <vector>

struct ecokv_auto {
    llama_ecokv_config config; // LLAMA_ECOKV_BUDGET, LLAMA_ECOKV_POLICY
    int32_t            slack;  // LLAMA_ECOKV_SLACK: rows above the budget before it is evicted again

    std::vector<int32_t> n_rows; // [n_seq] after the last eviction
};

// what the environment asks for. false: nothing. throws std::runtime_error that names the variable and its value
bool ecokv_auto_read(ecokv_auto & res);
