#pragma once

// Rows of K or V of one layer as raw bytes, whatever buffer they lie in and however V is stored.

#include "ecokv-access.h"

class ecokv_raw_rows {
public:
    // first: holes of every head, which come first and are left out; empty: none
    ecokv_raw_rows(const ecokv_layer & layer, bool value, std::vector<int32_t> first);

    // false if a head is no whole number of blocks: then its rows cannot be told from those of other heads
    bool can_split() const;

    // bytes of n ranks: rank by rank where all heads have the same, else head by head
    size_t bytes(int64_t n) const;

    // rows: rank -> row of the tensor
    void get(const std::vector<uint32_t> & rows, uint8_t * out) const;
    // holes get the first row of their head, so that they never hold NaN
    void set(const std::vector<uint32_t> & rows, const uint8_t * src) const;

private:
    void get_whole(const std::vector<uint32_t> & rows, size_t r0, uint8_t * out) const; // rows [r0, end)
    void set_whole(const std::vector<uint32_t> & rows, const uint8_t * src) const;

    ggml_tensor * t;
    bool          trans;
    int32_t       n_head;
    size_t        head_size;
    size_t        row_size;

    std::vector<int32_t> first;
    bool                 even; // the same in all heads
};
