#include "ecokv-state.h"

#include "ecokv-api.h"
#include "ecokv-hooks.h"
#include "ecokv-resize.h"

#include "llama-io.h"

#include <stdexcept>

//
// C API
//

template <typename F>
static int64_t with_state(llama_context * ctx, llama_seq_id seq_id, F fn) {
    int64_t res = 0;
    const int32_t status = ecokv_guarded([&]() -> int32_t {
        int32_t status;
        auto * kv = llama_ecokv_access::find(ctx, status);
        if (!kv) {
            return status;
        }
        if (seq_id < 0 || (uint32_t) seq_id >= kv->get_n_seq_max()) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "sequence %d does not exist (n_seq_max = %u)", seq_id, kv->get_n_seq_max());
        }
        res = fn(ecokv_state { *ctx, *kv, llama_ecokv_access::window_of(*ctx), seq_id });
        return LLAMA_ECOKV_OK;
    });
    return status == LLAMA_ECOKV_OK ? res : status;
}

int64_t llama_ecokv_state_size(llama_context * ctx, llama_seq_id seq_id) {
    return with_state(ctx, seq_id, [](const ecokv_state & s) { return (int64_t) s.write(nullptr); });
}

int64_t llama_ecokv_state_get(llama_context * ctx, llama_seq_id seq_id, void * data, size_t size) {
    return with_state(ctx, seq_id, [&](const ecokv_state & s) -> int64_t {
        const size_t need = s.write(nullptr);
        if (!data || size < need) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "the state takes %zu bytes, there is room for %zu", need, size);
        }
        return (int64_t) s.write((uint8_t *) data);
    });
}

int32_t llama_ecokv_state_check(llama_context * ctx, llama_seq_id seq_id, const void * data, size_t size) {
    return (int32_t) with_state(ctx, seq_id, [&](const ecokv_state & s) { return s.read((const uint8_t *) data, size, true); });
}

int32_t llama_ecokv_state_set(llama_context * ctx, llama_seq_id seq_id, const void * data, size_t size) {
    return (int32_t) with_state(ctx, seq_id, [&](const ecokv_state & s) { return s.read((const uint8_t *) data, size, false); });
}

//
// hooks: what llama.cpp's own state functions hold of an evicted sequence
//

// in the place of the number of streams: a library that does not know it refuses the state
static const uint32_t MARK = 0xec0c0001;

bool llama_ecokv_on_state_write(const llama_kv_cache * kv, llama_io_write_i & io, llama_seq_id seq_id) {
    const auto * store = llama_ecokv_access::store_of(kv);
    if (!store || store->owner != kv) {
        return false;
    }
    bool plain = std::all_of(store->offset.begin(), store->offset.end(), [](uint32_t x) { return x == 0; });
    for (uint32_t s = 0; s < store->n_seq; ++s) {
        plain = plain && !((seq_id < 0 || s == (uint32_t) seq_id) && store->seqs[s].edited);
    }
    if (plain) {
        return false;
    }
    if (seq_id < 0) {
        ecokv_fail(LLAMA_ECOKV_ERR_STATE, "a sequence was evicted: save one sequence at a time, not the whole context");
        throw std::runtime_error(llama_ecokv_last_error());
    }

    const ecokv_state state = { *store->ctx, const_cast<llama_kv_cache &>(*kv), nullptr, seq_id };

    std::vector<uint8_t> data(state.write(nullptr));
    state.write(data.data());

    const uint64_t size = data.size();
    io.write(&MARK, sizeof(MARK));
    io.write(&size, sizeof(size));
    io.write(data.data(), size);
    return true;
}

bool llama_ecokv_on_state_read(llama_kv_cache * kv, llama_io_read_i & io, llama_seq_id seq_id, uint32_t n_stream) {
    auto * store = llama_ecokv_access::store_of(kv);
    const bool own = store && store->owner == kv;

    if (n_stream != MARK) {
        if (own) {
            store->reset(seq_id);
            ecokv_make_whole(*kv);
        }
        return false;
    }
    if (!own || seq_id < 0) {
        throw std::runtime_error("the state is of an evicted sequence: enable eviction, and read it into one sequence");
    }

    uint64_t size;
    io.read(&size, sizeof(size));

    std::vector<uint8_t> data;
    while (data.size() < size) { // a damaged size must not take all memory
        const size_t n = std::min<uint64_t>(size - data.size(), 1 << 24);
        data.resize(data.size() + n);
        io.read(data.data() + data.size() - n, n);
    }

    const ecokv_state state = { *store->ctx, *kv, nullptr, seq_id };
    if (state.read(data.data(), data.size(), true) == LLAMA_ECOKV_OK) {
        kv->seq_rm(seq_id, -1, -1);
        if (state.read(data.data(), data.size(), false) == LLAMA_ECOKV_OK) {
            return true;
        }
    }
    throw std::runtime_error(llama_ecokv_last_error());
}
