// Features of rows in host memory. The stock path is ecokv-features-graph.cpp; this one exists because it is
// several times faster on a CPU, dequantises exactly and can leave single rows out.

#include "ecokv-features.h"
#include "ecokv-rows.h"

#include "llama-context.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

// eight lanes: fixed order of summation, and the compiler may use vectors for them
static inline float dot(const float * a, const float * b, int32_t d) {
    float acc[8] = {};

    int32_t i = 0;
    for (; i + 8 <= d; i += 8) {
        for (int32_t l = 0; l < 8; ++l) {
            acc[l] += a[i + l]*b[i + l];
        }
    }
    float tail = 0.0f;
    for (; i < d; ++i) {
        tail += a[i]*b[i];
    }

    return ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7])) + tail;
}

static inline float dist2(const float * a, const float * b, int32_t d) {
    float acc[8] = {};

    int32_t i = 0;
    for (; i + 8 <= d; i += 8) {
        for (int32_t l = 0; l < 8; ++l) {
            const float x = a[i + l] - b[i + l];
            acc[l] += x*x;
        }
    }
    float tail = 0.0f;
    for (; i < d; ++i) {
        const float x = a[i] - b[i];
        tail += x*x;
    }

    return ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7])) + tail;
}

namespace {

// one KV head of one layer
struct head_work {
    const ecokv_feature_job    & job;
    const std::vector<int32_t> & n_seen;

    int32_t layer;
    int32_t head;

    const ecokv_layer & l = job.seq.layers[layer];

    const int32_t n = job.out.n;
    const int32_t d = l.d_k;

    const int32_t first = job.seq.first(layer, head); // rows before it are holes: treated as not finite
    const int32_t lo    = job.lo(first);
    const int32_t hi    = job.hi(first);

    std::vector<float>   k    = {}; // [n][d]
    std::vector<float>   norm = {}; // [n], NaN: not finite
    std::vector<uint8_t> finite = std::vector<uint8_t>(n);

    int64_t at() const { return job.at(layer, head); }

    size_t scratch_bytes() const {
        return ((size_t) n*(d + 2 + job.queries.ranks.size()*l.gqa()))*sizeof(float);
    }

    void norms(const ecokv_rows & rows_k, const ecokv_rows & rows_v) {
        k.resize((size_t) n*d);
        rows_k.head_f32(head, k.data());

        std::vector<float> v2(n);
        rows_v.head_norm2(head, v2.data());

        norm.resize(n);
        for (int32_t r = 0; r < n; ++r) {
            const float * kr = &k[(size_t) r*d];

            // the square of a large row may overflow in f32: ask again in f64 before calling the row bad
            double nk = std::sqrt((double) dot(kr, kr, d));
            double nv = std::sqrt((double) v2[r]);
            nk = std::isfinite(nk) ? nk : ecokv_norm_f64(kr, d);
            nv = std::isfinite(nv) ? nv : rows_v.row_norm(head, r);

            finite[r] = r >= first && std::isfinite(nk) && std::isfinite(nv);
            norm[r]   = finite[r] ? (float) nk : NAN;

            if (job.out.key_norm) {
                job.out.key_norm[at() + r] = norm[r];
            }
            if (job.out.value_norm) {
                job.out.value_norm[at() + r] = finite[r] ? (float) nv : NAN;
            }
        }
    }

    // step 1, before pooling: softmax over what each query sees, mean over the queries that see a row, then over the group
    void attention(const float * q, const float * sinks) {
        const auto & hparams = job.seq.ctx->get_model().hparams;

        const int32_t n_q   = (int32_t) job.queries.ranks.size();
        const int32_t gqa   = l.gqa();
        const float   scale = job.seq.store->layers[layer].kq_scale;
        const float   cap   = hparams.attn_soft_cap ? hparams.f_attn_logit_softcapping : 0.0f;

        // logits, row by row of K so that each is read once
        std::vector<float> logits((size_t) n_q*gqa*n);
        for (int32_t r = 0; r < n; ++r) {
            for (int32_t j = 0; j < n_q*gqa; ++j) {
                logits[(size_t) j*n + r] = dot(&k[(size_t) r*d], q + (size_t) j*d, d)*scale;
            }
        }

        std::vector<double> sum ((size_t) gqa*n, 0.0);
        std::vector<double> last((size_t) gqa*n, 0.0);
        for (int32_t j = 0; j < n_q; ++j) {
            const int32_t n_vis = job.queries.ranks[j] + 1;
            for (int32_t g = 0; g < gqa; ++g) {
                float * x = &logits[((size_t) j*gqa + g)*n];
                if (cap != 0.0f) {
                    for (int32_t r = 0; r < n_vis; ++r) {
                        x[r] = cap*std::tanh(x[r]/cap);
                    }
                }
                float max = sinks ? sinks[g] : -INFINITY;
                for (int32_t r = 0; r < n_vis; ++r) {
                    if (finite[r]) {
                        max = std::max(max, x[r]);
                    }
                }
                double total = sinks ? std::exp((double) sinks[g] - max) : 0.0;
                for (int32_t r = 0; r < n_vis; ++r) {
                    x[r] = finite[r] ? std::exp(x[r] - max) : 0.0f;
                    total += x[r];
                }
                for (int32_t r = 0; r < n_vis && total > 0.0; ++r) {
                    sum[(size_t) g*n + r] += x[r]/total;
                    if (j == n_q - 1) {
                        last[(size_t) g*n + r] = x[r]/total;
                    }
                }
            }
        }

        // over the query heads of the group
        auto over_group = [&](const std::vector<double> & x, int32_t r) {
            double total = 0.0;
            double max   = 0.0;
            for (int32_t g = 0; g < gqa; ++g) {
                total += x[(size_t) g*n + r];
                max    = std::max(max, x[(size_t) g*n + r]);
            }
            return job.out.gqa == LLAMA_ECOKV_GQA_MAX ? max : total/gqa;
        };

        for (int32_t r = 0; r < n; ++r) {
            if (job.out.attn) {
                job.out.attn[at() + r] = n_seen[r] > 0 ? (float) (over_group(sum, r)/n_seen[r]) : 0.0f;
            }
            if (job.out.attn_last) {
                job.out.attn_last[at() + r] = (float) over_group(last, r);
            }
        }
    }

    // step 3
    void geometry() {
        int64_t n_cand = 0;
        double  k2     = 0.0;

        std::vector<double> mu(d, 0.0);
        std::vector<double> m (d, 0.0);

        for (int32_t r = lo; r < hi; ++r) {
            if (finite[r]) {
                n_cand++;
                k2 += (double) norm[r]*norm[r];
            }
        }

        const double floor = n_cand > 0 ? 1e-6*std::sqrt(k2/n_cand) : 0.0;

        auto inv_norm = [&](int32_t r) {
            const double x = std::max((double) norm[r], floor);
            return x > 0.0 ? 1.0/x : 0.0;
        };

        for (int32_t r = lo; r < hi; ++r) {
            if (!finite[r]) {
                continue;
            }
            const float * kr = &k[(size_t) r*d];
            const double  ir = inv_norm(r);
            for (int32_t i = 0; i < d; ++i) {
                mu[i] += kr[i];
                m [i] += kr[i]*ir;
            }
        }

        std::vector<float> mu_f(d);

        double m2 = 0.0;
        for (int32_t i = 0; i < d && n_cand > 0; ++i) {
            mu[i] /= n_cand;
            m [i] /= n_cand;
            m2    += m[i]*m[i];
            mu_f[i] = (float) mu[i];
        }

        if (job.out.head_m2) {
            job.out.head_m2[(int64_t) layer*job.out.n_head_kv + head] = (float) m2;
        }

        for (int32_t r = 0; r < n; ++r) {
            const float * kr = &k[(size_t) r*d];
            if (job.out.key_cos) {
                double um[4] = {};
                for (int32_t i = 0; i < d; ++i) {
                    um[i % 4] += kr[i]*m[i];
                }
                job.out.key_cos[at() + r] = finite[r] ? (float) (1.0 - ((um[0] + um[1]) + (um[2] + um[3]))*inv_norm(r)) : NAN;
            }
            if (job.out.key_euc) {
                job.out.key_euc[at() + r] = finite[r] ? std::sqrt(dist2(kr, mu_f.data(), d)) : NAN;
            }
        }
    }
};

} // namespace

// window queries of one layer, [n_q][n_head][d]
static std::vector<float> read_queries(const ecokv_feature_job & job, int32_t layer) {
    const ggml_tensor * t = job.seq.store->layers[layer].q;

    std::vector<float> res(job.queries.slots.size()*t->ne[0]);
    for (size_t j = 0; j < job.queries.slots.size(); ++j) {
        ggml_backend_tensor_get(t, res.data() + j*t->ne[0], job.queries.slots[j]*t->nb[1], t->nb[1]);
    }
    return res;
}

static std::vector<float> read_sinks(const ecokv_feature_job & job, int32_t layer) {
    const ggml_tensor * t = job.seq.store->layers[layer].sinks;

    std::vector<float> res(t ? t->ne[0] : 0);
    if (t) {
        ggml_backend_tensor_get(t, res.data(), 0, res.size()*sizeof(float));
    }
    return res;
}

int32_t ecokv_features_host(const ecokv_feature_job & job, const std::vector<int32_t> & layers, ecokv_feature_stats & stats) {
    const auto n_seen = job.n_seen();

    struct layer_data {
        std::unique_ptr<std::vector<uint32_t>> cells; // rank -> row of the layer
        ecokv_rows k;
        ecokv_rows v;
        std::vector<float> q;
        std::vector<float> sinks;
    };

    size_t scratch = 0;

    // a few layers at a time where the rows have to be copied to the host first, all at once where they are there
    for (size_t i0 = 0; i0 < layers.size(); ) {
        std::vector<int32_t>    group;
        std::vector<layer_data> data;

        size_t copied = 0;
        for (; i0 < layers.size() && copied < (size_t) 64*1024*1024; ++i0) {
            const int32_t i = layers[i0];
            const auto  & l = job.seq.layers[i];

            group.push_back(i);
            auto rows = std::make_unique<std::vector<uint32_t>>(job.seq.rows(i));
            const auto & cells = *rows;
            data.push_back({
                std::move(rows),
                ecokv_rows(l.k, l.n_head_kv, l.d_k, false,           cells),
                ecokv_rows(l.v, l.n_head_kv, l.d_v, job.seq.v_trans, cells),
                read_queries(job, i),
                read_sinks(job, i),
            });
            copied += data.back().k.copied_bytes() + data.back().v.copied_bytes();
        }

        std::vector<std::pair<int32_t, int32_t>> work; // index in group, head
        for (size_t g = 0; g < group.size(); ++g) {
            for (int32_t h = 0; h < job.seq.layers[group[g]].n_head_kv; ++h) {
                work.emplace_back((int32_t) g, h);
            }
        }

        ecokv_parallel_for(job.n_threads, (int64_t) work.size(), [&](int64_t w) {
            const auto & [g, h] = work[w];
            const auto & ld     = data[g];

            head_work head { job, n_seen, group[g], h };
            head.norms(ld.k, ld.v);
            if (job.want_attention()) {
                const auto & l = head.l;

                // [n_q][gqa][d] of this group
                std::vector<float> q;
                for (size_t j = 0; j < job.queries.slots.size(); ++j) {
                    const float * src = ld.q.data() + (j*l.n_head + (size_t) h*l.gqa())*l.d_k;
                    q.insert(q.end(), src, src + (size_t) l.gqa()*l.d_k);
                }
                head.attention(q.data(), ld.sinks.empty() ? nullptr : ld.sinks.data() + (size_t) h*l.gqa());
            }
            if (job.want_geometry()) {
                head.geometry();
            }
        });

        const size_t per_head = head_work { job, n_seen, group[0], 0 }.scratch_bytes();
        scratch = std::max(scratch, copied + per_head*std::max(1, job.n_threads));
    }

    stats.scratch_bytes = std::max(stats.scratch_bytes, scratch);

    return LLAMA_ECOKV_OK;
}
