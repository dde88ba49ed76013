#pragma once

// One sequence as bytes: rows, cells, what was evicted, and the queries that vote. Holes of uneven budgets take no bytes.

#include "ecokv-access.h"

struct ecokv_state {
    llama_context  & ctx;
    llama_kv_cache & kv;
    llama_kv_cache * window; // sliding-window half that is part of the bytes, null: left out
    llama_seq_id     seq_id;

    // bytes written to data, or needed if that is null. throws where the sequence cannot be saved
    size_t write(uint8_t * data) const;

    // puts the rows into the sequence, which has to be empty; check_only: changes nothing. LLAMA_ECOKV_OK, or why they do not fit
    int32_t read(const uint8_t * data, size_t size, bool check_only) const;
};
