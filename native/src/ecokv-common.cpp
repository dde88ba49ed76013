#include "ecokv-common.h"

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

static thread_local std::string g_last_error;

int32_t ecokv_fail(int32_t status, const char * fmt, ...) {
    char text[512];

    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);

    g_last_error = text;

    return status;
}

const char * llama_ecokv_last_error(void) {
    return g_last_error.c_str();
}

void ecokv_parallel_for(int32_t n_threads, int64_t n, const std::function<void(int64_t)> & fn) {
    n_threads = (int32_t) std::min<int64_t>(std::max(1, n_threads), n);

    std::atomic<int64_t> next { 0 };

    std::exception_ptr error;
    std::mutex         error_mutex;

    auto work = [&]() {
        try {
            for (int64_t i = next++; i < n; i = next++) {
                fn(i);
            }
        } catch (...) {
            next = n;
            std::lock_guard<std::mutex> lock(error_mutex);
            error = std::current_exception();
        }
    };

    std::vector<std::thread> threads;
    for (int32_t t = 1; t < n_threads; ++t) {
        try {
            threads.emplace_back(work);
        } catch (const std::system_error &) {
            break; // fewer threads do the same work
        }
    }

    work();

    for (auto & t : threads) {
        t.join();
    }

    if (error) {
        std::rethrow_exception(error);
    }
}

const char * llama_ecokv_status_text(int32_t status) {
    switch (status) {
        case LLAMA_ECOKV_OK:            return "ok";
        case LLAMA_ECOKV_ERR_MEMORY:    return "the memory of this model is not a plain attention KV cache";
        case LLAMA_ECOKV_ERR_MODEL:     return "the attention of this model cannot be scored";
        case LLAMA_ECOKV_ERR_STATE:     return "not enabled, or nothing to score with";
        case LLAMA_ECOKV_ERR_PARAM:     return "argument out of range";
        case LLAMA_ECOKV_ERR_BUDGET:    return "budget too small";
        case LLAMA_ECOKV_ERR_SHARED:    return "the cells are shared";
        case LLAMA_ECOKV_ERR_NONFINITE: return "a protected token holds NaN or Inf";
        case LLAMA_ECOKV_ERR_COMPUTE:   return "a backend failed, nothing was changed";
        case LLAMA_ECOKV_ERR_CLEARED:   return "a backend failed while rows were moved, the sequence was cleared";
        case LLAMA_ECOKV_ERR_ALLOC:     return "out of memory";
        case LLAMA_ECOKV_ERR_DATA:      return "the saved state cannot be used here";
        default:                        return status > 0 ? "ok" : "unknown status";
    }
}
