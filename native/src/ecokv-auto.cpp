#include "ecokv-auto.h"

#include "ecokv-access.h"
#include "ecokv-common.h"
#include "ecokv-hooks.h"
#include "ecokv-resize.h"

#include "llama-batch.h"
#include "llama-context.h"
#include "llama-impl.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>

//
// the environment
//

// a variable that is set and not empty, else null
static const char * variable(const char * name) {
    const char * value = getenv(name);
    return value && *value ? value : nullptr;
}

static int32_t number(const char * name, const char * value, int32_t least) {
    char * end = nullptr;
    errno = 0;
    const long res = strtol(value, &end, 10);
    if (*end || errno || res < least || res > (1 << 30)) {
        throw std::runtime_error(format("%s=%s: not a whole number of at least %d", name, value, least));
    }
    return (int32_t) res;
}

bool ecokv_auto_read(ecokv_auto & res) {
    const char * budget = variable("LLAMA_ECOKV_BUDGET");
    if (!budget) {
        return false;
    }
    res.config = llama_ecokv_config_default();
    res.slack  = 64;
    if (const char * policy = variable("LLAMA_ECOKV_POLICY")) {
        res.config.policy = llama_ecokv_policy_by_name(policy);
        if (res.config.policy < 0 || res.config.policy == LLAMA_ECOKV_POLICY_NONE) {
            throw std::runtime_error(format("LLAMA_ECOKV_POLICY=%s: there is no such policy", policy));
        }
    }
    if (const char * slack = variable("LLAMA_ECOKV_SLACK")) {
        res.slack = number("LLAMA_ECOKV_SLACK", slack, 1);
    }
    res.config.budget = number("LLAMA_ECOKV_BUDGET", budget, llama_ecokv_budget_min(&res.config));
    return true;
}

//
// hooks
//

void llama_ecokv_on_create(llama_context * ctx) {
    ecokv_auto wanted;
    if (ecokv_initial_cells() > 0 || !llama_get_memory(ctx) || !ecokv_auto_read(wanted)) {
        return; // the caller cares for it, or has nothing to evict
    }
    if (llama_ecokv_enable(ctx, llama_ecokv_params_default()) != LLAMA_ECOKV_OK) {
        throw std::runtime_error(format("LLAMA_ECOKV_BUDGET=%d: %s", wanted.config.budget, llama_ecokv_last_error()));
    }
    int32_t status;
    auto & store = *llama_ecokv_access::store(*llama_ecokv_access::find(ctx, status));
    wanted.n_rows.resize(store.n_seq);
    store.automatic = std::make_unique<ecokv_auto>(wanted);
    LLAMA_LOG_INFO("%s: KV cache within %d pairs per layer and KV head, policy %s\n", __func__, wanted.config.budget,
            llama_ecokv_policy_name(wanted.config.policy));
}

// evicts a sequence that would exceed the budget by more than the slack. what cannot be evicted just now (no query to score with,
// cells of several sequences) is kept: the cache grows
static void evict(llama_context * ctx, const llama_ecokv_store & store, llama_seq_id seq_id, int32_t n_new) {
    ecokv_auto  & wanted = *store.automatic;
    const int32_t budget = wanted.config.budget;
    const int32_t n_rows = llama_ecokv_n_rows(ctx, seq_id);
    // on average: with uneven budgets some heads have more rows, others fewer
    const int32_t n_held = store.seqs[seq_id].edited ? budget + n_rows - wanted.n_rows[seq_id] : n_rows;
    if (n_held <= budget || n_held + n_new <= budget + wanted.slack) {
        return;
    }
    if (llama_ecokv_evict(ctx, seq_id, &wanted.config, nullptr) != LLAMA_ECOKV_OK) {
        LLAMA_LOG_WARN("%s: sequence %d stays at %d rows: %s\n", __func__, seq_id, n_rows, llama_ecokv_last_error());
    }
    wanted.n_rows[seq_id] = llama_ecokv_n_rows(ctx, seq_id);
}

// as many cells as the fullest stream needs, and as budget and slack fit into; where there is no memory for them, the decode fails
static void make_room(llama_context * ctx, llama_kv_cache & kv, const ecokv_auto & wanted, const std::map<llama_seq_id, int32_t> & n_new) {
    llama_ecokv_shape shape;
    llama_ecokv_access::shape(kv, shape);

    std::vector<uint32_t> need(shape.n_stream);
    for (int32_t s = 0; s < shape.n_stream; ++s) {
        need[s] = llama_ecokv_access::n_used(kv, s);
    }
    for (const auto & [seq_id, n] : n_new) {
        need[llama_ecokv_access::stream_of(kv, seq_id)] += n;
    }
    const uint32_t least   = std::max<uint32_t>(*std::max_element(need.begin(), need.end()), wanted.config.budget + wanted.slack);
    const uint32_t n_ctx   = shape.n_stream > 1 ? llama_n_ctx_seq(ctx) : llama_n_ctx(ctx);
    const uint32_t n_cells = std::min(n_ctx, ecokv_pad_cells(least));

    if (n_cells != (uint32_t) shape.n_cells && llama_ecokv_resize(ctx, n_cells) < 0) {
        LLAMA_LOG_WARN("%s: the cache stays at %d cells: %s\n", __func__, shape.n_cells, llama_ecokv_last_error());
    }
}

void llama_ecokv_on_decode(llama_context * ctx, const llama_batch_ext & batch) {
    int32_t status;
    auto * kv = llama_ecokv_access::find(ctx, status);
    auto * store = kv ? llama_ecokv_access::store_of(kv) : nullptr;
    if (!store || !store->automatic) {
        return;
    }
    std::map<llama_seq_id, int32_t> n_new;
    for (const auto & token : batch.tokens) {
        for (const llama_seq_id seq_id : token.seq_ids) {
            if (seq_id < 0 || (uint32_t) seq_id >= store->n_seq) {
                return; // refused by the decode
            }
            n_new[seq_id]++;
        }
    }
    for (const auto & [seq_id, n] : n_new) {
        evict(ctx, *store, seq_id, n);
    }
    make_room(ctx, *kv, *store->automatic, n_new);
}

llama_pos llama_ecokv_pos_min(const llama_ecokv_store * store, llama_seq_id seq_id, llama_pos pos_min) {
    if (!store || !store->automatic || (uint32_t) seq_id >= store->n_seq || !store->seqs[seq_id].edited) {
        return 0;
    }
    return std::max(pos_min, store->seqs[seq_id].safe_pos); // of a sliding window it may be higher
}
