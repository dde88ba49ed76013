#pragma once

// What the functions of the public C API share.

#include "ecokv-access.h"

#include <new>

// no exception may cross the C API
template <typename F>
int32_t ecokv_guarded(F fn) {
    try {
        return fn();
    } catch (const std::bad_alloc &) {
        return ecokv_fail(LLAMA_ECOKV_ERR_ALLOC, "out of memory");
    } catch (const std::exception & e) {
        return ecokv_fail(LLAMA_ECOKV_ERR_COMPUTE, "%s", e.what());
    }
}

template <typename F>
int32_t ecokv_with_seq(llama_context * ctx, llama_seq_id seq_id, F fn) {
    return ecokv_guarded([&]() -> int32_t {
        ecokv_seq seq;
        const int32_t status = llama_ecokv_access::open(ctx, seq_id, seq);
        return status == LLAMA_ECOKV_OK ? fn(seq) : status;
    });
}
