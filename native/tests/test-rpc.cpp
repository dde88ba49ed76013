// Buffers that are not host memory, without a GPU: ggml's RPC backend with a server on localhost.
// Features, kept rows and logits must be those of the CPU, for full and half offload.

#include "test-common.h"

#include "ggml-backend.h"

#ifdef _WIN32
int main() {
    printf("rpc: skipped, needs fork\n");
    return 0;
}
#else

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int free_port() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in addr = {};
    addr.sin_family      = AF_INET;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t len = sizeof(addr);
    CHECK(bind(fd, (sockaddr *) &addr, len) == 0);
    CHECK(getsockname(fd, (sockaddr *) &addr, &len) == 0);
    close(fd);
    return ntohs(addr.sin_port);
}

static bool reachable(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in addr = {};
    addr.sin_family      = AF_INET;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    addr.sin_port        = htons((uint16_t) port);
    const bool ok = connect(fd, (sockaddr *) &addr, sizeof(addr)) == 0;
    close(fd);
    return ok;
}

struct rpc_server {
    pid_t pid;
    int   port = free_port();

    explicit rpc_server(const std::string & program) {
        pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            const std::string p = std::to_string(port);
            freopen("/dev/null", "w", stdout);
            freopen("/dev/null", "w", stderr);
            execl(program.c_str(), program.c_str(), "-H", "127.0.0.1", "-p", p.c_str(), "-t", "1", (char *) nullptr);
            _exit(127);
        }
        for (int i = 0; i < 200 && !reachable(port); ++i) {
            usleep(50*1000);
        }
        CHECK(reachable(port));
    }
    ~rpc_server() {
        kill(pid, SIGTERM);
        waitpid(pid, nullptr, 0);
    }
};

static ggml_backend_dev_t rpc_device(int port) {
    ggml_backend_load_all();
    auto * reg = ggml_backend_reg_by_name("RPC");
    CHECK(reg);
    auto add = (ggml_backend_reg_t (*)(const char *)) ggml_backend_reg_get_proc_address(reg, "ggml_backend_rpc_add_server");
    CHECK(add);
    auto * server = add(("127.0.0.1:" + std::to_string(port)).c_str());
    CHECK(server && ggml_backend_reg_dev_count(server) > 0);
    return ggml_backend_reg_dev_get(server, 0);
}

struct result {
    std::vector<float>                attn, cos;
    std::vector<std::vector<uint8_t>> rows;
    std::vector<float>                logits;
    int                               on_host;
    int64_t                           kv_bytes;
};

static result run(const tiny_model & m, const session_config & c) {
    session s(m, c);
    s.decode(0, 120);

    result res;
    res.on_host = s.shape().on_host;

    const features f(s);
    res.attn = f.attn;
    res.cos  = f.key_cos;

    // a different set for every layer and head
    std::vector<int32_t> keep;
    for (int i = 0; i < f.f.n_layer*f.f.n_head_kv; ++i) {
        for (int j = 0; j < 49; ++j) {
            keep.push_back(j*2 + (j*7 + i) % 2);
        }
        keep.push_back(119);
    }
    CHECK(llama_ecokv_apply(s.ctx, 0, keep.data(), 50) == LLAMA_ECOKV_OK);
    for (int i = 0; i < f.f.n_layer; ++i) {
        res.rows.push_back(s.rows(i, false));
        res.rows.push_back(s.rows(i, true));
    }
    s.decode(120, 1);
    s.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 32));
    res.logits = s.decode(121, 1);

    // heads and layers of different length, fewer cells, layers that do not hold the first of them
    auto go_on = [&](int pos, int n) {
        const auto l = s.decode(pos, n);
        res.logits.insert(res.logits.end(), l.begin(), l.end());
    };
    go_on(122, 300);
    s.evict(config(LLAMA_ECOKV_POLICY_ADA, 140));
    go_on(422, 1);
    CHECK(llama_ecokv_resize(s.ctx, 500) == 512);
    go_on(423, 60);
    auto pyramid = config(LLAMA_ECOKV_POLICY_PYRAMID, 150);
    pyramid.beta = 40.0f;
    s.evict(pyramid);
    CHECK(llama_ecokv_resize(s.ctx, s.n_rows() + 100) == 512);
    res.kv_bytes = llama_ecokv_kv_bytes(s.ctx);
    go_on(483, 1);
    go_on(484, 40);
    s.evict(config(LLAMA_ECOKV_POLICY_ECOKV, 60));
    CHECK(llama_ecokv_resize(s.ctx, 1) == LLAMA_ECOKV_ERR_PARAM && llama_ecokv_resize(s.ctx, 60) == 256);
    go_on(524, 20);
    return res;
}

static void check_close(const std::vector<float> & a, const std::vector<float> & b) {
    CHECK(a.size() == b.size());
    for (size_t i = 0; i < a.size(); ++i) {
        CHECK(std::fabs(a[i] - b[i]) <= 1e-4*std::fabs(b[i]) + 1e-7);
    }
}

int main(int, char ** argv) {
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);

    const std::string self = argv[0];
    rpc_server server(self.substr(0, self.rfind('/') + 1) + "ggml-rpc-server");

    llama_backend_init();

    ggml_backend_dev_t devices[] = { rpc_device(server.port), nullptr };

    tiny_config tiny;
    tiny.n_layer = 4;

    llama_model_params none = llama_model_default_params();
    none.n_gpu_layers = 0;
    tiny_model cpu(tiny, none);

    const struct { ggml_type k, v; bool fa; } types[] = {
        { GGML_TYPE_F16,  GGML_TYPE_F16,  true }, { GGML_TYPE_F16,  GGML_TYPE_F16,  false },
        { GGML_TYPE_F32,  GGML_TYPE_F32,  true }, { GGML_TYPE_BF16, GGML_TYPE_BF16, true  },
        { GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, true }, { GGML_TYPE_Q4_0, GGML_TYPE_Q4_0, true  },
    };

    for (int n_gpu_layers : { 0, 2, 99 }) {
        llama_model_params p = llama_model_default_params();
        p.devices      = devices;
        p.n_gpu_layers = n_gpu_layers;
        tiny_model remote(tiny, p);

        for (const auto & t : types) {
            session_config c;
            c.type_k = t.k;
            c.type_v = t.v;
            c.fa     = t.fa;

            const result a = run(cpu, c);
            const result b = run(remote, c);
            CHECK(a.on_host == 1 && b.on_host == (n_gpu_layers == 0));
            CHECK(a.rows == b.rows); // same text on the same kernels: keys, values and their moves are equal byte for byte
            CHECK(a.logits == b.logits);
            check_close(a.attn, b.attn);
            check_close(a.cos,  b.cos);
        }
    }

    printf("rpc: ok\n");
    return 0;
}
#endif
