#include "ecokv-raw.h"

#include <algorithm>
#include <cstring>
#include <functional>

ecokv_raw_rows::ecokv_raw_rows(const ecokv_layer & layer, bool value, std::vector<int32_t> first) :
    t(value ? layer.v : layer.k), trans(value && layer.v_trans), n_head(layer.n_head_kv),
    head_size(ggml_type_size(t->type)*(value ? layer.d_v : layer.d_k)/ggml_blck_size(t->type)),
    row_size(ggml_row_size(t->type, (int64_t) (value ? layer.d_v : layer.d_k)*n_head)),
    first(std::move(first)) {
    this->first.resize(n_head, 0);
    even = std::adjacent_find(this->first.begin(), this->first.end(), std::not_equal_to<int32_t>()) == this->first.end();
}

bool ecokv_raw_rows::can_split() const {
    return even || head_size*n_head == row_size;
}

size_t ecokv_raw_rows::bytes(int64_t n) const {
    if (even) {
        return (n - first[0])*row_size;
    }
    size_t res = 0;
    for (int32_t f : first) {
        res += (n - f)*head_size;
    }
    return res;
}

void ecokv_raw_rows::get(const std::vector<uint32_t> & rows, uint8_t * out) const {
    const size_t r0 = *std::min_element(first.begin(), first.end());
    if (even) {
        get_whole(rows, r0, out);
        return;
    }

    std::vector<uint8_t> whole((rows.size() - r0)*row_size);
    get_whole(rows, r0, whole.data());
    for (int32_t h = 0; h < n_head; ++h) {
        for (size_t r = first[h]; r < rows.size(); ++r, out += head_size) {
            memcpy(out, whole.data() + (r - r0)*row_size + h*head_size, head_size);
        }
    }
}

void ecokv_raw_rows::set(const std::vector<uint32_t> & rows, const uint8_t * src) const {
    if (even && first[0] == 0) {
        set_whole(rows, src);
        return;
    }

    std::vector<uint8_t> whole(rows.size()*row_size);
    if (even) { // rows of all heads
        memcpy(whole.data() + first[0]*row_size, src, (rows.size() - first[0])*row_size);
        for (int32_t r = 0; r < first[0]; ++r) {
            memcpy(whole.data() + r*row_size, src, row_size);
        }
    } else {
        for (int32_t h = 0; h < n_head; ++h) {
            for (size_t r = 0; r < rows.size(); ++r) {
                const size_t from = r - std::min(r, (size_t) first[h]);
                memcpy(whole.data() + r*row_size + h*head_size, src + from*head_size, head_size);
            }
            src += (rows.size() - first[h])*head_size;
        }
    }
    set_whole(rows, whole.data());
}

// calls fn(rank, row, count) for runs of rows that follow each other
template <typename F>
static void for_runs(const std::vector<uint32_t> & rows, size_t r0, F fn) {
    for (size_t r = r0, n; r < rows.size(); r += n) {
        n = 1;
        while (r + n < rows.size() && rows[r + n] == rows[r] + n) {
            n++;
        }
        fn(r, rows[r], n);
    }
}

void ecokv_raw_rows::get_whole(const std::vector<uint32_t> & rows, size_t r0, uint8_t * out) const {
    if (!trans) {
        for_runs(rows, r0, [&](size_t r, size_t row, size_t n) {
            ggml_backend_tensor_get(t, out + (r - r0)*row_size, row*t->nb[1], n*row_size);
        });
        return;
    }

    // a row of cells per channel; through one copy where the buffer is elsewhere: channel by channel would be thousands of them
    const size_t es = ggml_type_size(t->type);

    const uint8_t      * base = (const uint8_t *) t->data;
    std::vector<uint8_t> copy;
    if (!ggml_backend_buffer_is_host(t->buffer)) {
        copy.resize(ggml_nbytes(t));
        ggml_backend_tensor_get(t, copy.data(), 0, copy.size());
        base = copy.data();
    }
    for (size_t i = 0; i < row_size/es; ++i) {
        for (size_t r = r0; r < rows.size(); ++r) {
            memcpy(out + (r - r0)*row_size + i*es, base + (i*t->ne[1] + rows[r])*es, es);
        }
    }
}

void ecokv_raw_rows::set_whole(const std::vector<uint32_t> & rows, const uint8_t * src) const {
    if (!trans) {
        for_runs(rows, 0, [&](size_t r, size_t row, size_t n) {
            ggml_backend_tensor_set(t, src + r*row_size, row*t->nb[1], n*row_size);
        });
        return;
    }

    const size_t es   = ggml_type_size(t->type);
    const bool   host = ggml_backend_buffer_is_host(t->buffer);

    uint8_t            * base = (uint8_t *) t->data;
    std::vector<uint8_t> copy;
    if (!host) {
        copy.resize(ggml_nbytes(t));
        ggml_backend_tensor_get(t, copy.data(), 0, copy.size());
        base = copy.data();
    }
    for (size_t i = 0; i < row_size/es; ++i) {
        for (size_t r = 0; r < rows.size(); ++r) {
            memcpy(base + (i*t->ne[1] + rows[r])*es, src + r*row_size + i*es, es);
        }
    }
    if (!host) {
        ggml_backend_tensor_set(t, copy.data(), 0, copy.size());
    }
}
