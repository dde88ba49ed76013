// A budget that the environment asks for: a program that only decodes runs within it, and gets what it would get by evicting itself.

#include "test-common.h"

#include <cstdlib>

static const int BUDGET = 128;
static const int SLACK  = 32;

static void set(const char * name, const char * value) {
#ifdef _WIN32
    _putenv_s(name, value);
#else
    value[0] ? setenv(name, value, 1) : unsetenv(name);
#endif
}

// as the environment says while a context is made
struct environment {
    explicit environment(const char * budget, const char * policy = "", const char * slack = "32") {
        set("LLAMA_ECOKV_BUDGET", budget);
        set("LLAMA_ECOKV_POLICY", policy);
        set("LLAMA_ECOKV_SLACK",  slack);
    }
    ~environment() {
        for (const char * name : { "LLAMA_ECOKV_BUDGET", "LLAMA_ECOKV_POLICY", "LLAMA_ECOKV_SLACK" }) {
            set(name, "");
        }
    }
};

static session_config plain(int n_seq = 1, bool unified = false) {
    session_config c;
    c.n_ctx   = 2048*n_seq;
    c.n_seq   = n_seq;
    c.unified = unified;
    c.enable  = false;
    return c;
}

static llama_ecokv_config config(int policy) {
    llama_ecokv_config c = llama_ecokv_config_default();
    c.policy = policy;
    c.budget = BUDGET;
    return c;
}

static llama_pos pos_min(const session & s, llama_seq_id seq = 0) {
    return llama_memory_seq_pos_min(llama_get_memory(s.ctx), seq);
}

// batches of a long prompt and single tokens, the same as by evicting with the calls of the C API
static void test_equals_a_program_that_evicts(const tiny_model & m, const char * name) {
    const environment env("128", name);
    session a(m, plain());
    CHECK(llama_ecokv_ring_bytes(a.ctx) > 0);
    CHECK(a.shape().n_cells == 256 && llama_n_ctx(a.ctx) == 2048);
    set("LLAMA_ECOKV_BUDGET", "");
    session_config c = plain();
    c.enable = true;
    session b(m, c);

    int pos    = 0;
    int n_held = 0;
    for (const int n : { 100, 300, 512, 7, 1, 1, 64, 200, 1, 30, 1, 1 }) {
        const auto x = a.decode(pos, n);
        if (n_held > BUDGET && n_held + n > BUDGET + SLACK) {
            b.evict(config(llama_ecokv_policy_by_name(name)));
            n_held = BUDGET; // on average
        }
        n_held += n;
        CHECK(llama_ecokv_resize(b.ctx, std::max(b.n_rows() + n, BUDGET + SLACK)) >= 256); // the same cells, the same order of sums
        const auto y = b.decode(pos, n);
        CHECK(x == y);
        CHECK(a.pos() == b.pos());
        if (name != std::string("pyramid")) {
            CHECK(a.n_rows() <= BUDGET + std::max(SLACK, n));
            CHECK(a.shape().n_cells <= (int) GGML_PAD(BUDGET + std::max(SLACK, n), 256));
        }
        pos += n;
    }
    CHECK(a.shape().n_cells == 256); // a large batch only borrows
    CHECK(pos_min(a) == llama_ecokv_safe_pos(a.ctx, 0) && pos_min(a) > 0 && pos_min(b) == 0);
}

// what llama-server does with the next request of a slot
static void test_a_common_prefix_is_read_again(const tiny_model & m) {
    const environment env("128");
    session s(m, plain());
    const auto first = s.decode(0, 100);
    CHECK(pos_min(s) == 0);
    s.decode(100, 300);
    s.decode(400, 1);
    auto * memory = llama_get_memory(s.ctx);
    CHECK(pos_min(s) > 100);
    CHECK(!llama_memory_seq_rm(memory, 0, 100, -1)); // part of it is gone
    CHECK(llama_memory_seq_rm(memory, 0, 0, -1));
    CHECK(s.n_rows() == 0);
    CHECK(first == s.decode(0, 100));
    CHECK(pos_min(s) == 0);
    s.decode(100, 300);
    s.decode(400, 1);
    CHECK(llama_memory_seq_rm(memory, 0, pos_min(s), -1)); // from there on it works
}

static void test_several_sequences(const tiny_model & m, bool unified) {
    const environment env("128");
    session s(m, plain(3, unified));
    for (int step = 0; step < 12; ++step) {
        for (int seq = 0; seq < 3; ++seq) {
            if (seq < 2 || step == 0) {
                s.decode(50*step, 50, seq);
                CHECK(s.n_rows(seq) <= BUDGET + 50);
            }
        }
    }
    CHECK(s.n_rows(2) == 50 && pos_min(s, 2) == 0); // it never had more than the budget
    CHECK(s.shape().n_cells <= (unified ? 768 : 256));
}

static void test_what_is_refused(const tiny_model & m) {
    llama_context_params p = llama_context_default_params();
    p.n_ctx = 512;
    const char * wrong[][3] = {
        { "12", "", "" }, { "-1", "", "" }, { "25%", "", "" }, { "99999999999999999999", "", "" }, { "128", "none", "" },
        { "128", "snapkw", "" }, { "128", "", "0" }, { "128", "", "many" },
    };
    for (const auto & w : wrong) {
        const environment env(w[0], w[1], w[2]);
        CHECK(!llama_init_from_model(m.model, p));
    }
    session s(m, plain()); // the next one is made, and nothing of it is left
    CHECK(llama_ecokv_ring_bytes(s.ctx) == 0);
    s.decode(0, 500);
    CHECK(llama_memory_seq_pos_max(llama_get_memory(s.ctx), 0) == 499);
}

// who calls the C API is asked, not the environment
static void test_the_program_goes_first(const tiny_model & m) {
    const environment env("128");
    llama_context_params p = llama_context_default_params();
    p.n_ctx = 512;
    llama_context * ctx = llama_ecokv_init_from_model(m.model, p, 512);
    CHECK(ctx && llama_ecokv_ring_bytes(ctx) == 0);
    llama_free(ctx);

    session s(m, plain());
    CHECK(llama_ecokv_enable(s.ctx, llama_ecokv_params_default()) == LLAMA_ECOKV_OK);
    CHECK(llama_ecokv_resize(s.ctx, 512) == 512);
    s.decode(0, 300);
    s.decode(300, 100);
    CHECK(s.n_rows() == 400);
}

int main() {
    llama_backend_init();
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    {
        tiny_model m;
        for (const char * name : { "ecokv", "snapkv", "streaming", "pyramid" }) {
            test_equals_a_program_that_evicts(m, name);
        }
        test_a_common_prefix_is_read_again(m);
        test_several_sequences(m, false);
        test_several_sequences(m, true);
        test_what_is_refused(m);
        test_the_program_goes_first(m);
    }
    llama_backend_free();
    printf("auto: ok\n");
    return 0;
}
