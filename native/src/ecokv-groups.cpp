#include "ecokv-groups.h"

#include "ecokv-budgets.h"
#include "ecokv-common.h"

#include <algorithm>
#include <cmath>

int32_t ecokv_groups_check(const llama_ecokv_config & c) {
    if (c.n_groups < 0 || (c.n_groups > 0 && !c.groups)) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "%d groups, and none are given", c.n_groups);
    }
    if (c.n_groups > 0 && (ecokv_pyramid(c) || ecokv_ada(c))) {
        return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "groups of rows need a budget that is the same in all layers and heads");
    }
    for (int32_t g = 0; g < c.n_groups; ++g) {
        const auto & x = c.groups[g];
        if (x.p0 < 0 || x.p1 < x.p0 || (g > 0 && x.p0 < c.groups[g - 1].p1)) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "group %d: positions [%d, %d) are not ascending and apart", g, x.p0, x.p1);
        }
    }
    return LLAMA_ECOKV_OK;
}

namespace {

// rows of a group in one head
struct member {
    std::vector<int32_t> cand; // candidates that are finite, the best first
    int32_t              need; // of them, so that the floor is held
};

} // namespace

// the greatest common cap at which the floors fit into `room`
static void fit(std::vector<member> & members, int32_t room) {
    auto total = [&](int32_t cap) {
        int64_t res = 0;
        for (const auto & m : members) {
            res += std::min(m.need, cap);
        }
        return res;
    };
    int32_t lo = 0;
    int32_t hi = room;
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo + 1)/2;
        if (total(mid) <= room) { lo = mid; } else { hi = mid - 1; }
    }
    if (lo > 0) {
        for (auto & m : members) {
            m.need = std::min(m.need, lo);
        }
        return;
    }
    for (auto it = members.rbegin(); it != members.rend(); ++it) { // not one for each: the latest have it
        it->need = std::min(it->need, std::min(room, 1));
        room -= it->need;
    }
}

int32_t ecokv_groups_select(const ecokv_head & h, const llama_ecokv_config & c, const llama_pos * pos,
        const std::vector<float> & score, int32_t n_best, std::vector<int32_t> & best) {
    const int32_t n = h.n_cand();

    auto better = [&](int32_t a, int32_t b) { return score[a] != score[b] ? score[a] > score[b] : a > b; };

    std::vector<char>   stays(n, 0);
    std::vector<member> members;

    int32_t room = n_best;
    for (int32_t g = 0; g < c.n_groups; ++g) {
        const auto & group = c.groups[g];

        member m = { {}, 0 };
        int32_t n_held = 0; // sinks and recents of the group
        const auto * p0 = std::lower_bound(pos + h.first, pos + h.n, group.p0); // positions ascend
        const auto * p1 = std::lower_bound(p0, pos + h.n, group.p1);
        for (int32_t r = (int32_t) (p0 - pos); r < p1 - pos; ++r) {
            if (r < h.lo || r >= h.hi) {
                n_held++;
            } else if (std::isfinite(score[r - h.lo])) {
                m.cand.push_back(r - h.lo);
            } else if (group.floor < 0) {
                return ecokv_fail(LLAMA_ECOKV_ERR_NONFINITE, "layer %d, KV head %d: the protected row %d holds NaN or Inf", h.layer, h.head, r);
            }
        }
        if (group.floor < 0) {
            for (int32_t i : m.cand) {
                stays[i] = 1;
            }
            room -= (int32_t) m.cand.size();
            continue;
        }
        m.need = std::min(std::max(group.floor - n_held, 0), (int32_t) m.cand.size());
        members.push_back(std::move(m));
    }
    if (room < 0) {
        return ecokv_fail(LLAMA_ECOKV_ERR_BUDGET, "a budget of %d is below what is protected: %d KV pairs, %d of them sinks and recents",
                c.budget, c.budget - room, ecokv_n_protected(c));
    }
    for (const auto & m : members) {
        if (m.need > room) {
            return ecokv_fail(LLAMA_ECOKV_ERR_BUDGET, "a budget of %d leaves %d KV pairs for images, and one image alone is to keep %d more",
                    c.budget, room, m.need);
        }
    }
    fit(members, room);

    for (auto & m : members) {
        std::partial_sort(m.cand.begin(), m.cand.begin() + m.need, m.cand.end(), better);
        for (int32_t i = 0; i < m.need; ++i) {
            stays[m.cand[i]] = 1;
        }
        room -= m.need;
    }

    std::vector<int32_t> others;
    for (int32_t i = 0; i < n; ++i) {
        if (!stays[i]) {
            others.push_back(i);
        }
    }
    room = std::min(room, (int32_t) others.size());
    std::partial_sort(others.begin(), others.begin() + room, others.end(), better);
    for (int32_t i = 0; i < room; ++i) {
        stays[others[i]] = 1;
    }

    best.clear();
    for (int32_t i = 0; i < n; ++i) {
        if (stays[i]) {
            best.push_back(i);
        }
    }
    return LLAMA_ECOKV_OK;
}
