#pragma once

// Rows of K or V of one layer, by rank, as f32. Reads host memory in place and copies other buffers first.

#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <vector>

// not finite if and only if x is not: f32 squares may overflow, these do not
double ecokv_norm_f64(const float * x, int64_t n);

class ecokv_rows {
public:
    // t: [d*n_head, n_cells], or transposed with n_cells values per channel; cells: rank -> cell, must outlive this
    ecokv_rows(const ggml_tensor * t, int32_t n_head, int32_t d, bool trans, const std::vector<uint32_t> & cells);

    void   head_f32  (int32_t head, float * out) const; // [n][d]
    void   head_norm2(int32_t head, float * out) const; // [n], sums of squares
    double row_norm  (int32_t head, int32_t rank) const;

    size_t copied_bytes() const { return copy.size(); }

private:
    const uint8_t * base() const { return copy.empty() ? host : copy.data(); }

    void row_f32(int32_t head, uint32_t cell, float * out) const; // not transposed
    void channel_f32(int32_t channel, float * out) const;         // transposed: [n]

    ggml_type type;
    int32_t   d;
    bool      trans;
    size_t    row_size;  // bytes between cells (channels when transposed)
    size_t    head_size; // bytes of a head in a row

    const uint8_t      * host = nullptr;
    std::vector<uint8_t> copy;

    const std::vector<uint32_t> & cells;
};
