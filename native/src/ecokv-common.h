#pragma once

#include "llama-ecokv.h"

#include <cstdint>
#include <functional>
#include <vector>

#if defined(__GNUC__)
#define ECOKV_FORMAT(a, b) __attribute__((format(printf, a, b)))
#else
#define ECOKV_FORMAT(a, b)
#endif

// remembers the text for llama_ecokv_last_error and returns the status
int32_t ecokv_fail(int32_t status, const char * fmt, ...) ECOKV_FORMAT(2, 3);

// runs fn(0) .. fn(n - 1) on up to n_threads threads; what one of them throws is thrown again here, after all have ended
void ecokv_parallel_for(int32_t n_threads, int64_t n, const std::function<void(int64_t)> & fn);

// ranks that stay, per layer and KV head: [n_layer][n_head_kv][n_keep], ascending; -1 for holes, which come first
struct ecokv_kept {
    int32_t n_layer   = 0;
    int32_t n_head_kv = 0;
    int32_t n_keep    = 0;

    const int32_t * ranks = nullptr;

    const int32_t * head(int32_t layer, int32_t h) const {
        return ranks + ((int64_t) layer*n_head_kv + h)*n_keep;
    }

    int32_t n_holes(int32_t layer, int32_t h) const {
        const int32_t * r = head(layer, h);
        int32_t res = 0;
        while (res < n_keep && r[res] < 0) {
            res++;
        }
        return res;
    }

    // a rank to copy from: holes are filled with the first row of the head, so that they never hold NaN
    int32_t source(int32_t layer, int32_t h, int32_t j, int32_t n_holes) const {
        return head(layer, h)[j < n_holes ? n_holes : j];
    }
};
