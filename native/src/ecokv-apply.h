#pragma once

// In-place compaction: the only writer. Rows move bit for bit; cells, ring and sequence state follow.

#include "ecokv-access.h"

struct ecokv_apply_stats {
    size_t scratch_bytes = 0;
};

// LLAMA_ECOKV_OK, or why this kept set cannot be applied; changes no row
int32_t ecokv_apply_check(const ecokv_seq & seq, const ecokv_kept & kept);

// a failure in the middle clears the sequence and returns LLAMA_ECOKV_ERR_CLEARED
int32_t ecokv_apply(ecokv_seq seq, const ecokv_kept & kept, ecokv_apply_stats & stats);

// cells that the kept rows move to, by rank: the lowest of the sequence's own and of the free ones
std::vector<uint32_t> ecokv_destinations(const ecokv_seq & seq, int32_t n_keep);

// moves the rows of K and V of some layers; host reads and writes raw bytes (through copies where the buffer is elsewhere)
int32_t ecokv_move_rows_host (const ecokv_seq & seq, const ecokv_kept & kept, const std::vector<uint32_t> & dst,
        const std::vector<int32_t> & layers, ecokv_apply_stats & stats);
int32_t ecokv_move_rows_graph(const ecokv_seq & seq, const ecokv_kept & kept, const std::vector<uint32_t> & dst,
        const std::vector<int32_t> & layers, ecokv_apply_stats & stats);

// false if these rows cannot be moved by a graph: an odd row size, or destinations in too many pieces
bool ecokv_graph_can_move(const ecokv_seq & seq, const ecokv_layer & layer, const std::vector<uint32_t> & dst);
