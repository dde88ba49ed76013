// Another number of cells: the same bits afterwards, and really less memory.

#include "test-common.h"

#include "llama-memory.h" // memory_breakdown

#include <algorithm>
#include <cstdio>
#include <cstring>

#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>
#endif

static const int N = 400; // tokens before an eviction

static long rss_kib() {
    long total = 0;
    long resident = 0;
    if (FILE * f = fopen("/proc/self/statm", "r")) {
        CHECK(fscanf(f, "%ld %ld", &total, &resident) == 2);
        fclose(f);
    }
    return resident*4;
}

static int64_t breakdown(const session & s) {
    int64_t res = 0;
    for (const auto & [_, size] : ((llama_memory_i *) llama_get_memory(s.ctx))->memory_breakdown()) {
        res += (int64_t) size;
    }
    return res;
}

// K and V of so many cells of all layers
static int64_t bytes_of(const session & s, int64_t n_cells) {
    int64_t res = 0;
    for (int i = 0; i < s.shape().n_layer; ++i) {
        res += n_cells*(llama_ecokv_row_bytes(s.ctx, i, false) + llama_ecokv_row_bytes(s.ctx, i, true));
    }
    return res*s.shape().n_stream;
}

static int argmax(const std::vector<float> & x) {
    return (int) (std::max_element(x.begin(), x.end()) - x.begin());
}

// greedy text; the logits of every step
static std::vector<float> greedy(session & s, int pos, int n, int token, llama_seq_id seq = 0) {
    std::vector<float> res;
    for (int i = 0; i < n; ++i) {
        llama_batch batch = llama_batch_init(1, 0, 1);
        batch.n_tokens     = 1;
        batch.token[0]     = token;
        batch.pos[0]       = pos + i;
        batch.n_seq_id[0]  = 1;
        batch.seq_id[0][0] = seq;
        batch.logits[0]    = true;
        CHECK(llama_decode(s.ctx, batch) == 0);
        llama_batch_free(batch);
        const float * l = llama_get_logits_ith(s.ctx, 0);
        const std::vector<float> logits(l, l + s.n_vocab);
        token = argmax(logits);
        res.insert(res.end(), logits.begin(), logits.end());
    }
    return res;
}

struct cache_type {
    ggml_type k;
    ggml_type v;
    bool      fa;
};

static const cache_type TYPES[] = {
    { GGML_TYPE_F16,  GGML_TYPE_F16,  true  }, { GGML_TYPE_F16,  GGML_TYPE_F16,  false },
    { GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, true  }, { GGML_TYPE_Q8_0, GGML_TYPE_F16,  false },
};

static session_config with(const cache_type & t, int n_ctx) {
    session_config c;
    c.type_k = t.k;
    c.type_v = t.v;
    c.fa     = t.fa;
    c.n_ctx  = n_ctx;
    return c;
}

static void test_shrink_and_grow(const tiny_model & m) {
    for (const auto & t : TYPES) {
        for (int32_t policy : { LLAMA_ECOKV_POLICY_SNAPKV, LLAMA_ECOKV_POLICY_PYRAMID, LLAMA_ECOKV_POLICY_ADA }) {
            session a(m, with(t, 4096));
            session b(m, with(t, 4096));
            a.decode(0, N);
            b.decode(0, N);
            a.evict(config(policy, 90));
            b.evict(config(policy, 90));

            CHECK(llama_ecokv_kv_bytes(a.ctx) == bytes_of(a, 4096) && breakdown(a) == bytes_of(a, 4096));
            CHECK(llama_ecokv_resize(a.ctx, a.n_rows() + 64 + 30) > 0);
            CHECK(a.shape().n_cells == (a.n_rows() + 94 <= 256 ? 256 : 512));
            CHECK(llama_ecokv_kv_bytes(a.ctx) == breakdown(a));
            if (policy == LLAMA_ECOKV_POLICY_SNAPKV) {
                CHECK(breakdown(a) == bytes_of(a, 256));
            } else {
                CHECK(breakdown(a) <= bytes_of(a, a.shape().n_cells));
            }
            CHECK(llama_n_ctx(a.ctx) == 4096); // positions do not change

            CHECK(a.pos() == b.pos());
            for (int i = 0; i < 3; ++i) {
                for (bool v : { false, true }) {
                    const auto ra = a.rows(i, v);
                    const auto rb = b.rows(i, v);
                    if (policy == LLAMA_ECOKV_POLICY_SNAPKV) {
                        CHECK(ra == rb);
                    }
                }
            }

            const auto la = greedy(a, N, 40, 7);
            const auto lb = greedy(b, N, 40, 7);
            double diff = 0.0;
            for (size_t i = 0; i < la.size(); ++i) {
                diff = std::max(diff, (double) std::fabs(la[i] - lb[i]));
            }
            printf("  %s/%s fa %d %s: %d cells, %lld bytes (%lld before), logits off by %.2g\n", ggml_type_name(t.k), ggml_type_name(t.v),
                    t.fa, llama_ecokv_policy_name(policy), a.shape().n_cells, (long long) breakdown(a), (long long) breakdown(b), diff);
            CHECK(policy == LLAMA_ECOKV_POLICY_PYRAMID ? diff < 1e-4 : la == lb);

            // too small is refused, and changes nothing
            const auto bytes = breakdown(a);
            CHECK(llama_ecokv_resize(a.ctx, a.n_rows() - 1) == LLAMA_ECOKV_ERR_PARAM && breakdown(a) == bytes);
            CHECK(llama_ecokv_resize(a.ctx, -1)             == LLAMA_ECOKV_ERR_PARAM);

            // the next prompt needs more
            CHECK(llama_ecokv_resize(a.ctx, 2000) == 2048);
            const auto pa = a.decode(N + 40, 300);
            const auto pb = b.decode(N + 40, 300);
            for (size_t i = 0; i < pa.size(); ++i) {
                CHECK(std::fabs(pa[i] - pb[i]) <= (policy == LLAMA_ECOKV_POLICY_PYRAMID ? 1e-4 : 0.0));
            }

            // and once more
            a.evict(config(policy, 90));
            b.evict(config(policy, 90));
            CHECK(a.n_rows() == b.n_rows());
            CHECK(llama_ecokv_resize(a.ctx, a.n_rows() + 30) > 0);
            a.decode(N + 340, 5);
        }
    }
}

// budgets that fall with depth: the last layers hold a few rows only
static void test_pyramid_saves_memory(const tiny_config & shape_of) {
    tiny_model m(shape_of);
    for (const auto & t : TYPES) {
        session_config c = with(t, 2048);
        session even(m, c);
        session pyramid(m, c);
        session roomy(m, c);
        for (auto * s : { &even, &pyramid, &roomy }) {
            s->decode(0, 500);
            s->decode(500, 500);
            s->decode(1000, 500);
        }
        even.evict(config(LLAMA_ECOKV_POLICY_SNAPKV, 512));
        const auto res = pyramid.evict(config(LLAMA_ECOKV_POLICY_PYRAMID, 512));
        roomy.evict(config(LLAMA_ECOKV_POLICY_PYRAMID, 512));
        CHECK(res.pair_bytes == bytes_of(even, 512) && res.hole_bytes > 0);

        const int slack = 64;
        CHECK(llama_ecokv_resize(even.ctx,    even.n_rows()    + slack) > 0);
        CHECK(llama_ecokv_resize(pyramid.ctx, pyramid.n_rows() + slack) > 0);

        CHECK(llama_ecokv_hole_bytes(roomy.ctx, 0) == res.hole_bytes && llama_ecokv_hole_bytes(even.ctx, 0) == 0);
        CHECK(llama_ecokv_hole_bytes(pyramid.ctx, 0) == breakdown(pyramid) - res.pair_bytes -
                bytes_of(pyramid, pyramid.shape().n_cells - pyramid.n_rows())); // pairs, holes, free cells: that is all
        CHECK(llama_ecokv_hole_bytes(pyramid.ctx, 0) < res.hole_bytes/10);

        const int64_t flat = bytes_of(pyramid, pyramid.shape().n_cells);
        printf("  %s/%s fa %d, %d layers: even %lld bytes (%d cells), pyramid %lld bytes (%d cells in the first layer; %lld if all had them); pairs %lld, holes %lld\n",
                ggml_type_name(t.k), ggml_type_name(t.v), t.fa, shape_of.n_layer, (long long) breakdown(even), even.shape().n_cells,
                (long long) breakdown(pyramid), pyramid.shape().n_cells, (long long) flat, (long long) res.pair_bytes, (long long) res.hole_bytes);
        CHECK(breakdown(pyramid) < 0.7*flat);
        // what is left of the holes: less than one tile a layer
        CHECK(breakdown(pyramid) <= res.pair_bytes + bytes_of(pyramid, pyramid.shape().n_cells - pyramid.n_rows() + 32));

        double diff = 0.0;
        auto same = [&](int pos, int n) {
            const auto a = pyramid.decode(pos, n);
            const auto b = roomy.decode(pos, n);
            for (size_t i = 0; i < a.size(); ++i) {
                CHECK(std::isfinite(a[i]));
                diff = std::max(diff, (double) std::fabs(a[i] - b[i]));
            }
        };
        same(1500, 1);
        same(1501, 40);
        same(1541, 1);
        same(1542, 1);
        printf("    logits off by %.2g from those of whole layers\n", diff);
        CHECK(diff < (t.fa ? 5e-3 : 1e-5));

        // rows: those that stay are the same, bit for bit
        std::vector<llama_pos> kept((size_t) shape_of.n_layer*shape_of.n_head_kv*pyramid.n_rows());
        CHECK(llama_ecokv_get_kept(pyramid.ctx, 0, kept.data()) == pyramid.n_rows());
        for (int i = 0; i < shape_of.n_layer; ++i) {
            const auto   a    = pyramid.rows(i, false);
            const auto   b    = roomy.rows(i, false);
            const size_t row  = llama_ecokv_row_bytes(pyramid.ctx, i, false);
            const size_t head = row/shape_of.n_head_kv;
            for (int h = 0; h < shape_of.n_head_kv; ++h) {
                for (int r = 0; r < pyramid.n_rows() - 43; ++r) {
                    const bool hole = kept[((size_t) i*shape_of.n_head_kv + h)*pyramid.n_rows() + r] < 0;
                    CHECK(hole || memcmp(&a[r*row + h*head], &b[r*row + h*head], head) == 0);
                }
            }
        }

        // evictions go on, whatever their budgets are
        const auto small = breakdown(pyramid);
        pyramid.evict(config(LLAMA_ECOKV_POLICY_PYRAMID, 512));
        roomy  .evict(config(LLAMA_ECOKV_POLICY_PYRAMID, 512));
        CHECK(breakdown(pyramid) == small);
        same(1543, 1);
        pyramid.evict(config(LLAMA_ECOKV_POLICY_ADA, 200)); // rows go where a layer had none
        roomy  .evict(config(LLAMA_ECOKV_POLICY_ADA, 200));
        same(1544, 1);
        pyramid.evict(config(LLAMA_ECOKV_POLICY_SNAPKV, 20));
        roomy  .evict(config(LLAMA_ECOKV_POLICY_SNAPKV, 20));
        same(1545, 20);

        // a new text in a cache whose layers were cut: they get their first cells back by themselves
        pyramid.decode(1565, 300);
        pyramid.evict(config(LLAMA_ECOKV_POLICY_PYRAMID, 100));
        CHECK(llama_ecokv_resize(pyramid.ctx, pyramid.n_rows() + slack) > 0);
        CHECK(breakdown(pyramid) < bytes_of(pyramid, pyramid.shape().n_cells));
        CHECK(llama_memory_seq_rm(llama_get_memory(pyramid.ctx), 0, -1, -1));
        CHECK(!llama_memory_can_shift(llama_get_memory(pyramid.ctx)));
        llama_memory_clear(llama_get_memory(roomy.ctx), true);
        same(0, 100);
        CHECK(breakdown(pyramid) == bytes_of(pyramid, pyramid.shape().n_cells));
        CHECK(llama_memory_can_shift(llama_get_memory(pyramid.ctx)));

        // a state is read into one, too
        pyramid.decode(100, 100);
        pyramid.evict(config(LLAMA_ECOKV_POLICY_PYRAMID, 60));
        CHECK(llama_ecokv_resize(pyramid.ctx, pyramid.n_rows() + 150) > 0);
        std::vector<uint8_t> state(llama_state_seq_get_size(roomy.ctx, 0));
        CHECK(llama_state_seq_get_data(roomy.ctx, state.data(), state.size(), 0) == state.size());
        CHECK(llama_state_seq_set_data(pyramid.ctx, state.data(), state.size(), 0) > 0);
        same(100, 1);
    }
}

static void test_several_sequences(const tiny_model & m) {
    for (bool unified : { false, true }) {
        for (bool fa : { false, true }) {
            session_config c;
            c.fa      = fa;
            c.n_seq   = 2;
            c.unified = unified;
            c.n_ctx   = 2048;
            session a(m, c);
            session b(m, c);
            for (auto * s : { &a, &b }) {
                s->decode(0, N, 0);
                s->decode(0, 100, 1);
                s->evict(config(LLAMA_ECOKV_POLICY_PYRAMID, 90), 0);
            }
            // sequence 1 may lie behind the cells that were given up
            const int status = llama_ecokv_resize(a.ctx, 256);
            CHECK(unified ? status == LLAMA_ECOKV_ERR_PARAM : status == 256);
            CHECK(llama_ecokv_resize(a.ctx, 600) == 768);
            for (llama_seq_id seq : { 0, 1 }) {
                const int  pos = seq == 0 ? N : 100;
                const auto la  = greedy(a, pos, 5, 7, seq);
                const auto lb  = greedy(b, pos, 5, 7, seq);
                for (size_t i = 0; i < la.size(); ++i) {
                    CHECK(std::fabs(la[i] - lb[i]) < 1e-4);
                }
            }
            a.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 50), 1);
            a.decode(105, 5, 1);
            CHECK(llama_memory_seq_rm(llama_get_memory(a.ctx), 0, -1, -1));
            a.decode(110, 60, 1); // into the cells that sequence 0 left
            a.decode(0, 60, 0);
        }
    }
}

static void test_the_process_gets_smaller() {
    tiny_config shape_of;
    shape_of.n_layer = 8;
    tiny_model m(shape_of);
    session_config c;
    c.n_ctx = 65536; // 8 layers of 2 heads of 64 in f16: 256 MiB
    session s(m, c);
    llama_memory_clear(llama_get_memory(s.ctx), true); // touches all of it
    s.decode(0, 300);
    const long before = rss_kib();
    s.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 100));
    CHECK(llama_ecokv_resize(s.ctx, 164) == 256);
    s.decode(300, 1);
    const long after = rss_kib();
    printf("  resident: %ld KiB before, %ld after; buffers %lld bytes\n", before, after, (long long) breakdown(s));
    if (before > 0) {
        CHECK(before - after > 240*1024);
    }
    CHECK(breakdown(s) == bytes_of(s, 256));
}

// the new buffers cannot be had while the old ones are held: nothing is changed, and the old cache works
static void test_no_memory_for_the_new_buffers() {
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
    tiny_config shape;
    shape.n_layer = 8;
    tiny_model m(shape);
    session_config c;
    c.n_ctx = 65536;
    session a(m, c);
    session b(m, c);
    for (session * s : { &a, &b }) {
        s->decode(0, 500);
        s->evict(config(LLAMA_ECOKV_POLICY_ECOKV, 300));
    }
    const int64_t bytes = breakdown(a);
    const auto    pos   = a.pos();

    long pages = 0;
    FILE * f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%ld", &pages) == 1);
    fclose(f);
    rlimit before;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    rlimit tight = before;
    tight.rlim_cur = (rlim_t) pages*sysconf(_SC_PAGESIZE) + 48*1024*1024; // the shrunk cache has 64 MiB
    CHECK(setrlimit(RLIMIT_AS, &tight) == 0);
    const int status = llama_ecokv_resize(a.ctx, 16384);
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);

    CHECK(status == LLAMA_ECOKV_ERR_ALLOC);
    CHECK(strlen(llama_ecokv_last_error()) > 0);
    CHECK(breakdown(a) == bytes && a.pos() == pos && a.shape().n_cells == 65536);
    CHECK(a.decode(500, 40) == b.decode(500, 40));
    CHECK(llama_ecokv_resize(a.ctx, 16384) == 16384);
    CHECK(a.decode(540, 1) == b.decode(540, 1));
#endif
}

int main() {
    llama_backend_init();
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    {
        tiny_model m;
        test_shrink_and_grow(m);
        test_several_sequences(m);
    }
    {
        tiny_config c;
        c.n_layer = 6;
        test_pyramid_saves_memory(c);
    }
    test_the_process_gets_smaller();
    test_no_memory_for_the_new_buffers();
    llama_backend_free();
    printf("resize: ok\n");
    return 0;
}
