#include "ecokv-rows.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>

double ecokv_norm_f64(const float * x, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        sum += (double) x[i]*x[i];
    }
    return std::sqrt(sum);
}

// branch-free, so that the compiler can use vectors: ggml's own conversion of a row is a scalar loop outside of its CPU backend
static void f16_to_f32(const uint16_t * src, float * dst, int64_t n) {
    const uint32_t magic_bits = (254u - 15u) << 23; // 2^112
    float magic;
    memcpy(&magic, &magic_bits, sizeof(magic));

    for (int64_t i = 0; i < n; ++i) {
        const uint32_t h    = src[i];
        const uint32_t bits = (h & 0x7fffu) << 13;

        float f;
        memcpy(&f, &bits, sizeof(f));
        f *= magic;

        uint32_t u;
        memcpy(&u, &f, sizeof(u));
        u |= (h & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u; // Inf and NaN
        u |= (h & 0x8000u) << 16;

        memcpy(&dst[i], &u, sizeof(u));
    }
}

static void to_f32(ggml_type type, const void * src, float * dst, int64_t n) {
    switch (type) {
        case GGML_TYPE_F32: memcpy(dst, src, n*sizeof(float)); break;
        case GGML_TYPE_F16: f16_to_f32((const uint16_t *) src, dst, n); break;
        default:            ggml_get_type_traits(type)->to_float(src, dst, n); break;
    }
}

ecokv_rows::ecokv_rows(const ggml_tensor * t, int32_t n_head, int32_t d, bool trans, const std::vector<uint32_t> & cells) :
    type(t->type), d(d), trans(trans),
    row_size (trans ? t->ne[1]*ggml_type_size(t->type) : t->nb[1]),
    head_size(trans ? 0 : ggml_row_size(t->type, d)),
    cells(cells) {
    if (ggml_backend_buffer_is_host(t->buffer)) {
        host = (const uint8_t *) t->data;
        return;
    }

    const uint32_t n_used = cells.empty() ? 0 : *std::max_element(cells.begin(), cells.end()) + 1;

    copy.resize(trans ? (size_t) n_head*d*row_size : n_used*row_size);
    ggml_backend_tensor_get(t, copy.data(), 0, copy.size());
}

void ecokv_rows::row_f32(int32_t head, uint32_t cell, float * out) const {
    to_f32(type, base() + cell*row_size + head*head_size, out, d);
}

void ecokv_rows::channel_f32(int32_t channel, float * out) const {
    const size_t es = ggml_type_size(type);

    std::vector<uint8_t> raw(cells.size()*es);
    for (size_t r = 0; r < cells.size(); ++r) {
        memcpy(raw.data() + r*es, base() + channel*row_size + cells[r]*es, es);
    }
    to_f32(type, raw.data(), out, (int64_t) cells.size());
}

void ecokv_rows::head_f32(int32_t head, float * out) const {
    const int64_t n = (int64_t) cells.size();

    if (!trans) {
        for (int64_t r = 0; r < n; ++r) {
            row_f32(head, cells[r], out + r*d);
        }
        return;
    }

    std::vector<float> x(n);
    for (int32_t i = 0; i < d; ++i) {
        channel_f32(head*d + i, x.data());
        for (int64_t r = 0; r < n; ++r) {
            out[r*d + i] = x[r];
        }
    }
}

void ecokv_rows::head_norm2(int32_t head, float * out) const {
    const int64_t n = (int64_t) cells.size();

    std::vector<float> x(trans ? n : d);

    if (!trans) {
        for (int64_t r = 0; r < n; ++r) {
            row_f32(head, cells[r], x.data());
            float acc[8] = {};
            for (int32_t i = 0; i < d; ++i) {
                acc[i % 8] += x[i]*x[i];
            }
            out[r] = ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7]));
        }
        return;
    }

    std::fill(out, out + n, 0.0f);
    for (int32_t i = 0; i < d; ++i) {
        channel_f32(head*d + i, x.data());
        for (int64_t r = 0; r < n; ++r) {
            out[r] += x[r]*x[r];
        }
    }
}

double ecokv_rows::row_norm(int32_t head, int32_t rank) const {
    std::vector<float> x(d);
    if (!trans) {
        row_f32(head, cells[rank], x.data());
        return ecokv_norm_f64(x.data(), d);
    }

    const size_t es = ggml_type_size(type);
    for (int32_t i = 0; i < d; ++i) {
        to_f32(type, base() + ((size_t) head*d + i)*row_size + cells[rank]*es, &x[i], 1);
    }
    return ecokv_norm_f64(x.data(), d);
}
