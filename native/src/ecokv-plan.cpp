#include "ecokv-plan.h"

#include "ecokv-budgets.h"
#include "ecokv-common.h"
#include "ecokv-groups.h"
#include "ecokv-policy.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

static const int32_t MAX_PROTECTED = 1 << 24;
static const int32_t MAX_KERNEL    = 1023;

llama_ecokv_config llama_ecokv_config_default(void) {
    return {
        /*.policy            =*/ LLAMA_ECOKV_POLICY_ECOKV,
        /*.budget            =*/ 512,
        /*.n_sink            =*/ 4,
        /*.n_recent          =*/ 8,
        /*.kernel            =*/ 5,
        /*.pooling           =*/ LLAMA_ECOKV_POOL_AVG,
        /*.gqa               =*/ LLAMA_ECOKV_GQA_MEAN,
        /*.compose           =*/ LLAMA_ECOKV_COMPOSE_OR,
        /*.head_weight       =*/ LLAMA_ECOKV_HEAD_BOTH,
        /*.value_norm        =*/ LLAMA_ECOKV_VALUE_OFF,
        /*.lambda            =*/ 0.5f,
        /*.head_weight_fixed =*/ 0.5f,
        /*.seed              =*/ 0,
        /*.layer_budgets     =*/ LLAMA_ECOKV_LAYERS_EVEN,
        /*.head_budgets      =*/ LLAMA_ECOKV_HEADS_EVEN,
        /*.beta              =*/ 20.0f,
        /*.floor             =*/ 0.2f,
        /*.groups            =*/ nullptr,
        /*.n_groups          =*/ 0,
    };
}

int32_t llama_ecokv_budget_min(const llama_ecokv_config * config) {
    return config->n_sink + config->n_recent + 1;
}

int32_t ecokv_config_check(const llama_ecokv_config & c) {
    auto in = [](int32_t x, int32_t n) { return x >= 0 && x < n; };

    if (!ecokv_policy_get(c.policy)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "unknown policy %d", c.policy);
    }
    if (!in(c.n_sink, MAX_PROTECTED) || !in(c.n_recent, MAX_PROTECTED) || c.n_recent < 1) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "n_sink = %d (from 0), n_recent = %d (from 1: the next position follows on the last row)",
                c.n_sink, c.n_recent);
    }
    if (!in(c.kernel, MAX_KERNEL + 1) || c.kernel % 2 == 0) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "kernel = %d: an odd number up to %d is needed", c.kernel, MAX_KERNEL);
    }
    if (!in(c.pooling, 2) || !in(c.gqa, 2)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "pooling = %d, gqa = %d: one is unknown", c.pooling, c.gqa);
    }
    if (!in(c.compose, 4) || !in(c.head_weight, 4) || !in(c.value_norm, 3)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "compose = %d, head_weight = %d, value_norm = %d: one is unknown", c.compose, c.head_weight, c.value_norm);
    }
    if (!(c.lambda >= 0.0f && c.lambda <= 1.0f) || !(c.head_weight_fixed >= 0.0f && c.head_weight_fixed <= 1.0f)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "lambda = %g, head_weight = %g: both lie in [0, 1]", c.lambda, c.head_weight_fixed);
    }
    if (!in(c.layer_budgets, 2) || !in(c.head_budgets, 2)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "layer_budgets = %d, head_budgets = %d: one is unknown", c.layer_budgets, c.head_budgets);
    }
    if (!(c.beta >= 1.0f) || !(c.floor >= 0.0f && c.floor <= 1.0f)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "beta = %g (from 1), floor = %g (in [0, 1])", c.beta, c.floor);
    }
    if (c.policy != LLAMA_ECOKV_POLICY_NONE && c.budget < llama_ecokv_budget_min(&c)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_BUDGET, "a budget of %d is below the smallest that works: %d (%d sinks + %d recent + 1)",
                c.budget, llama_ecokv_budget_min(&c), c.n_sink, c.n_recent);
    }
    return ecokv_groups_check(c);
}

static int32_t features_check(const llama_ecokv_features & f, const llama_ecokv_config & c) {
    const auto * info = ecokv_policy_get(c.policy);

    if (f.n_layer < 1 || f.n_head_kv < 1 || f.n < 0) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "features of %d layers, %d heads, %d rows", f.n_layer, f.n_head_kv, f.n);
    }
    if (info->want_attn && !f.attn) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "policy '%s' needs the attention of the window", info->name);
    }
    if (info->want_last && !f.attn_last) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "policy '%s' needs the attention of the last query", info->name);
    }
    if ((info->want_attn || info->want_last) && f.gqa != c.gqa) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "features were taken with gqa = %d, not %d", f.gqa, c.gqa);
    }
    if (info->want_geometry && (!f.key_norm || !f.key_cos || !f.key_euc || !f.head_m2)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "policy '%s' needs the geometry of the keys", info->name);
    }
    if (info->want_geometry && (f.n_sink != c.n_sink || f.n_recent != c.n_recent)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "features were taken with %d sinks and %d recents, not %d and %d",
                f.n_sink, f.n_recent, c.n_sink, c.n_recent);
    }
    if (c.n_groups > 0 && !f.pos) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "groups need the true positions of the rows");
    }
    if (info->score && (!f.key_norm || !f.value_norm)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "the norms of keys and values are missing: they tell which rows are finite");
    }
    return LLAMA_ECOKV_OK;
}

static ecokv_head head_of(const llama_ecokv_features & f, const llama_ecokv_config & c, int32_t layer, int32_t head) {
    const int64_t i0 = (int64_t) layer*f.n_head_kv;
    const int64_t i  = i0 + head;
    const int64_t at = i*f.n;

    auto off = [&](const float * x) { return x ? x + at : nullptr; };

    const int32_t first = f.head_first ? f.head_first[i] : 0;
    const int32_t lo    = std::min(first + c.n_sink, f.n);

    return {
        layer, head, f.layer_n_head_kv ? f.layer_n_head_kv[layer] : f.n_head_kv,
        f.n, lo, std::max(lo, f.n - c.n_recent), first,
        off(f.attn), f.attn_last ? f.attn_last + i0*f.n : nullptr, off(f.key_norm), off(f.key_cos), off(f.key_euc), off(f.value_norm),
        f.head_m2 ? f.head_m2[i] : 0.0,
    };
}

// -inf for rows that are not finite
static void score_candidates(const ecokv_head & head, const llama_ecokv_config & c, std::vector<float> & score) {
    score.assign(head.n_cand(), 0.0f);
    ecokv_policy_get(c.policy)->score(head, c, score.data());

    for (int32_t i = 0; i < head.n_cand(); ++i) {
        if (!head.finite(head.lo + i) || std::isnan(score[i])) {
            score[i] = -INFINITY;
        }
    }
}

// the k best candidates: higher score, then the later position
static void select_top(const std::vector<float> & score, int32_t k, std::vector<int32_t> & best) {
    best.resize(score.size());
    std::iota(best.begin(), best.end(), 0);

    if (k < (int32_t) best.size()) {
        std::nth_element(best.begin(), best.begin() + k, best.end(), [&](int32_t a, int32_t b) {
            return score[a] != score[b] ? score[a] > score[b] : a > b;
        });
        best.resize(k);
    }
    std::sort(best.begin(), best.end());
}

int32_t llama_ecokv_scores(const llama_ecokv_features * f, const llama_ecokv_config * c, int32_t layer, int32_t head, float * scores) {
    int32_t status = ecokv_config_check(*c);
    if (status == LLAMA_ECOKV_OK) {
        status = features_check(*f, *c);
    }
    if (status != LLAMA_ECOKV_OK) {
        return status;
    }
    if (layer < 0 || layer >= f->n_layer || head < 0 || head >= f->n_head_kv) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "layer %d, head %d do not exist", layer, head);
    }

    const auto h = head_of(*f, *c, layer, head);

    std::fill(scores, scores + f->n, INFINITY);
    if (ecokv_policy_get(c->policy)->score) {
        std::vector<float> score;
        score_candidates(h, *c, score);
        std::copy(score.begin(), score.end(), scores + h.lo);
    }
    return LLAMA_ECOKV_OK;
}

static int32_t protected_check(const ecokv_head & h) {
    for (int32_t r = h.first; r < h.n; ++r) {
        if ((r < h.lo || r >= h.hi) && !h.finite(r)) {
            return ecokv_fail(LLAMA_ECOKV_ERR_NONFINITE, "layer %d, KV head %d: the protected row %d holds NaN or Inf", h.layer, h.head, r);
        }
    }
    return LLAMA_ECOKV_OK;
}

// ranks that stay of every head of a layer with `budget` pairs per head on average; all: nothing goes
static int32_t plan_layer(const llama_ecokv_features & f, llama_ecokv_config c, int32_t layer, int32_t budget, bool all,
        std::vector<int32_t> * kept) {
    c.budget = budget;

    std::vector<ecokv_head>         heads;
    std::vector<std::vector<float>> scores;

    for (int32_t ih = 0; ih < (f.layer_n_head_kv ? f.layer_n_head_kv[layer] : f.n_head_kv); ++ih) {
        heads.push_back(head_of(f, c, layer, ih));
        const auto & h = heads.back();
        if (all) {
            kept[ih].resize(h.n - h.first);
            std::iota(kept[ih].begin(), kept[ih].end(), h.first);
            continue;
        }
        const int32_t status = protected_check(h);
        if (status != LLAMA_ECOKV_OK) {
            return status;
        }
        scores.emplace_back();
        score_candidates(h, c, scores.back());
    }
    if (all) {
        return LLAMA_ECOKV_OK;
    }

    const auto n_best = ecokv_head_budgets(c, scores, budget - ecokv_n_protected(c));

    std::vector<int32_t> best;
    for (size_t ih = 0; ih < heads.size(); ++ih) {
        const auto & h   = heads[ih];
        auto       & dst = kept[ih];

        if (c.n_groups > 0) {
            const int32_t status = ecokv_groups_select(h, c, f.pos + ((int64_t) layer*f.n_head_kv + h.head)*f.n, scores[ih], n_best[ih], best);
            if (status != LLAMA_ECOKV_OK) {
                return status;
            }
        } else {
            select_top(scores[ih], n_best[ih], best);
        }
        for (int32_t r = h.first; r < h.lo; ++r) { dst.push_back(r); }
        for (int32_t i : best)                   { dst.push_back(h.lo + i); }
        for (int32_t r = h.hi; r < h.n; ++r)     { dst.push_back(r); }
    }
    return LLAMA_ECOKV_OK;
}

int32_t llama_ecokv_plan(const llama_ecokv_features * f, const llama_ecokv_config * c, int32_t * keep) {
    int32_t status = ecokv_config_check(*c);
    if (status == LLAMA_ECOKV_OK) {
        status = features_check(*f, *c);
    }
    if (status != LLAMA_ECOKV_OK) {
        return status;
    }

    const bool all     = ecokv_fits(*c, { f->n_layer, f->n_head_kv, f->n, f->layer_n_head_kv, f->head_first });
    const auto budgets = ecokv_layer_budgets(*c, f->n_layer, f->n);

    std::vector<std::vector<int32_t>> kept((size_t) f->n_layer*f->n_head_kv);
    for (int32_t il = 0; il < f->n_layer; ++il) {
        status = plan_layer(*f, *c, il, budgets[il], all, &kept[(size_t) il*f->n_head_kv]);
        if (status != LLAMA_ECOKV_OK) {
            return status;
        }
    }

    size_t n_keep = 0;
    for (const auto & ranks : kept) {
        n_keep = std::max(n_keep, ranks.size());
    }
    for (const auto & ranks : kept) { // right-aligned. heads that a layer does not have are all holes; nothing reads them
        keep = std::fill_n(keep, n_keep - ranks.size(), -1);
        keep = std::copy(ranks.begin(), ranks.end(), keep);
    }
    return (int32_t) n_keep;
}
