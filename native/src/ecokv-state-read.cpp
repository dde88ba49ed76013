#include "ecokv-state.h"

#include "ecokv-mask.h"
#include "ecokv-raw.h"
#include "ecokv-resize.h"
#include "ecokv-state-format.h"

#include <string>

using namespace ecokv_format;

// everything is checked before the first row is written

namespace {

// one cache of a state that was read: rows point into the bytes
struct part {
    part_head             head;
    std::vector<row_meta> rows;

    std::vector<const uint8_t *> k;
    std::vector<const uint8_t *> v;
};

struct contents {
    store_head               st = {};
    std::vector<llama_pos>   pos;   // [n_layer][n_head_kv][st.n_rows]
    std::vector<int32_t>     first; // [n_layer][n_head_kv], empty: no holes
    std::vector<query_meta>  queries;
    std::vector<const uint8_t *> q; // of every layer: [n_query][d*n_head] f32

    std::vector<part> parts;
};

} // namespace

static const char * const DAMAGED = "the state is damaged";

static head read_head(const uint8_t * data, size_t size) {
    head h;
    if (size < sizeof(h)) {
        throw damaged("the state ends early");
    }
    memcpy(&h, data, sizeof(h));
    if (h.magic != MAGIC) {
        throw damaged("these bytes are no state of a sequence");
    }
    if (h.version != VERSION) {
        throw damaged("the state has version " + std::to_string(h.version) + ", this library reads " + std::to_string(VERSION));
    }
    if (h.size != size) {
        throw damaged("the state has " + std::to_string(size) + " bytes, not " + std::to_string(h.size));
    }
    if (h.checksum != checksum_of(data, size) || h.n_part < 1 || h.n_part > 2 || h.has_store > 1 ||
        h.arch[sizeof(h.arch) - 1] != 0) {
        throw damaged(DAMAGED);
    }
    return h;
}

static void read_store(reader & r, const llama_ecokv_store & st, contents & res) {
    const auto & layers = st.layers;

    res.st = r.one<store_head>();
    const auto & h = res.st;

    int32_t n_head_kv = 0;
    for (const auto & c : st.counters) {
        n_head_kv = std::max(n_head_kv, c.n_head_kv);
    }
    if (h.n_rows < 0 || h.n_evictions < 0 || h.safe_pos < 0 || h.n_query < 0 || h.n_query > 1024 || h.n_head_kv != n_head_kv) {
        throw damaged(DAMAGED);
    }
    const uint64_t n_heads = (uint64_t) layers.size()*n_head_kv;

    res.pos = r.get<llama_pos>(n_heads*h.n_rows);
    from_deltas(res.pos, (size_t) h.n_rows);
    res.first   = r.get<int32_t>(h.has_holes ? n_heads : 0);
    res.queries = r.get<query_meta>(h.n_query);
    for (const auto & l : layers) {
        res.q.push_back(r.room((uint64_t) h.n_query*l.q->nb[1]));
    }
}

static part read_part(reader & r, llama_kv_cache & kv, const std::vector<int32_t> & first) {
    const auto layers = llama_ecokv_access::layers(kv, 0);

    part res;
    res.head = r.one<part_head>();
    if (res.head.n_layer != layers.size()) {
        throw damaged("the state has " + std::to_string(res.head.n_layer) + " layers, the cache " + std::to_string(layers.size()));
    }
    if (res.head.n_rows > INT32_MAX) {
        throw damaged(DAMAGED);
    }
    const int32_t n = (int32_t) res.head.n_rows;

    res.rows = r.get<row_meta>(n);
    for (int32_t i = 0; i < n; ++i) {
        if (res.rows[i].pos < (i ? res.rows[i - 1].pos : 0)) {
            throw damaged(DAMAGED);
        }
    }
    for (size_t i = 0; i < layers.size(); ++i) {
        const auto meta = r.one<layer_meta>();
        if (!(meta == meta_of(kv, layers[i]))) {
            throw damaged("layer " + std::to_string(layers[i].il) + " has another shape, cache type or rotation than in the state");
        }
        const auto holes = holes_of(first, i, layers.size(), layers[i].n_head_kv);
        if (std::any_of(holes.begin(), holes.end(), [&](int32_t x) { return x < 0 || x >= n; })) {
            throw damaged(DAMAGED);
        }
        for (bool value : { false, true }) {
            const ecokv_raw_rows raw(layers[i], value, holes);
            if (!raw.can_split()) {
                throw damaged(DAMAGED);
            }
            (value ? res.v : res.k).push_back(r.room(n ? raw.bytes(n) : 0));
        }
    }
    return res;
}

static contents parse(const ecokv_state & s, const uint8_t * data, size_t size) {
    const head h = read_head(data, size);

    const char * arch = llama_ecokv_access::arch(s.ctx);
    if (strncmp(h.arch, arch, sizeof(h.arch) - 1) != 0) {
        throw damaged(std::string("the state is of architecture '") + h.arch + "', not '" + arch + "'");
    }
    if (h.n_part != (s.window ? 2u : 1u)) {
        throw damaged("the state and the cache differ in their sliding-window layers");
    }

    contents res;
    reader r(data + sizeof(h), size - sizeof(h));

    const auto & store = llama_ecokv_access::store(s.kv);
    if (h.has_store && !store) {
        throw damaged("the state was saved with eviction enabled: enable it first");
    }
    if (h.has_store) {
        read_store(r, *store, res);
    }
    res.parts.push_back(read_part(r, s.kv, res.first));
    if (s.window) {
        res.parts.push_back(read_part(r, *s.window, {}));
    }

    const int32_t n = (int32_t) res.parts[0].head.n_rows;
    if (r.left_over() > 0 || res.st.n_rows > n) {
        throw damaged(DAMAGED);
    }
    for (const auto & q : res.queries) {
        if (q.rank < -1 || q.rank >= n || (q.rank >= 0 && res.parts[0].rows[q.rank].pos != q.pos)) {
            throw damaged(DAMAGED);
        }
    }
    return res;
}

// cells for the rows of a part: those that they had if they are free, else the lowest free ones. empty: there are not enough
static std::vector<uint32_t> place(llama_kv_cache & kv, llama_seq_id seq_id, const part & p) {
    const auto & cells = llama_ecokv_access::cells_of(kv, seq_id);

    std::vector<uint32_t> res;
    std::vector<uint8_t>  taken(cells.size());
    for (const auto & r : p.rows) {
        if (r.cell >= cells.size() || !cells.is_empty(r.cell) || taken[r.cell]) {
            break;
        }
        taken[r.cell] = 1;
        res.push_back(r.cell);
    }
    if (res.size() == p.rows.size()) {
        return res;
    }

    res.clear();
    for (uint32_t c = 0; c < cells.size() && res.size() < p.rows.size(); ++c) {
        if (cells.is_empty(c)) {
            res.push_back(c);
        }
    }
    return res.size() == p.rows.size() ? res : std::vector<uint32_t>();
}

static void write_rows(llama_kv_cache & kv, llama_seq_id seq_id, const part & p, const std::vector<uint32_t> & dst,
        const std::vector<int32_t> & first) {
    const auto layers = llama_ecokv_access::layers(kv, llama_ecokv_access::stream_of(kv, seq_id));
    for (size_t i = 0; i < layers.size() && !dst.empty(); ++i) {
        const auto holes = holes_of(first, i, layers.size(), layers[i].n_head_kv);
        ecokv_raw_rows(layers[i], false, holes).set(dst, p.k[i]);
        ecokv_raw_rows(layers[i], true,  holes).set(dst, p.v[i]);
    }
}

static void write_cells(llama_kv_cache & kv, llama_seq_id seq_id, const part & p, const std::vector<uint32_t> & dst) {
    auto & cells = llama_ecokv_access::cells_of(kv, seq_id);
    bool   same  = true;
    for (size_t r = 0; r < dst.size(); ++r) {
        llama_kv_cell_ext ext;
        ext.x   = p.rows[r].x;
        ext.y   = p.rows[r].y;
        ext.tok = p.rows[r].tok;
        cells.pos_set(dst[r], p.rows[r].pos);
        cells.ext_set(dst[r], ext);
        cells.seq_add(dst[r], seq_id);
        same = same && dst[r] == p.rows[r].cell;
    }
    const uint32_t strm = llama_ecokv_access::stream_of(kv, seq_id);
    if (!dst.empty()) {
        llama_ecokv_access::set_head(kv, strm, same ? p.head.head : dst.back() + 1);
    }
}

static void write_state(const ecokv_seq & seq, const contents & c, const std::vector<uint32_t> & dst) {
    auto & st    = *seq.store;
    auto & lossy = st.seqs[seq.id];

    lossy = {};
    lossy.edited      = c.st.edited != 0;
    lossy.n_evictions = c.st.n_evictions;
    lossy.n_rows      = c.st.n_rows;
    lossy.safe_pos    = c.st.safe_pos;
    lossy.pos         = c.pos;

    // the newest queries, as many as the ring holds
    const size_t n_skip = c.queries.size() - std::min<size_t>(c.queries.size(), st.n_ring);
    for (size_t j = n_skip; j < c.queries.size(); ++j) {
        const auto   & q  = c.queries[j];
        const uint32_t to = seq.id*st.n_ring + st.head[seq.id];

        st.slots[to] = { st.tick++, q.pos, q.rank < 0 ? llama_ecokv_store::slot::NO_CELL : dst[q.rank] };
        for (size_t i = 0; i < st.layers.size(); ++i) {
            const size_t size = st.layers[i].q->nb[1];
            ggml_backend_tensor_set(st.layers[i].q, c.q[i] + j*size, to*size, size);
        }
        st.head[seq.id] = (st.head[seq.id] + 1) % st.n_ring;
    }
}

// ranks of a set that keeps all rows: -1 for holes
static std::vector<int32_t> ranks_of(const ecokv_seq & seq, const std::vector<int32_t> & first, int32_t n) {
    std::vector<int32_t> res;
    for (int32_t holes : first) {
        for (int32_t r = 0; r < n; ++r) {
            res.push_back(r < holes ? -1 : r);
        }
    }
    GGML_ASSERT(res.size() == seq.layers.size()*seq.n_head_kv*(size_t) n);
    return res;
}

int32_t ecokv_state::read(const uint8_t * data, size_t size, bool check_only) const {
    contents c;
    try {
        c = parse(*this, data, size);
    } catch (const damaged & e) {
        return ecokv_fail(LLAMA_ECOKV_ERR_DATA, "%s", e.what());
    }

    std::vector<llama_kv_cache *> caches = { &kv };
    if (window) {
        caches.push_back(window);
    }
    std::vector<std::vector<uint32_t>> dst;
    for (size_t p = 0; p < caches.size(); ++p) {
        const auto & cells = llama_ecokv_access::cells_of(*caches[p], seq_id);
        const size_t n     = c.parts[p].rows.size();
        if (check_only) {
            if (n > cells.size()) {
                return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "the state has %zu rows, the cache %u cells", n, cells.size());
            }
            continue;
        }
        if (!cells.seq_pos_get(seq_id).empty()) {
            return ecokv_fail(LLAMA_ECOKV_ERR_STATE, "sequence %d is not empty: remove it before a state is read into it", seq_id);
        }
        dst.push_back(place(*caches[p], seq_id, c.parts[p]));
        if (dst.back().size() != n) {
            return ecokv_fail(LLAMA_ECOKV_ERR_PARAM, "the state has %zu rows, of %u cells %u are free", n, cells.size(),
                    cells.size() - cells.get_used());
        }
    }
    if (check_only) {
        return LLAMA_ECOKV_OK;
    }

    llama_ecokv_access::settle(ctx, kv);

    auto * store = llama_ecokv_access::store_of(&kv);
    const int32_t n = (int32_t) dst[0].size();

    ecokv_seq seq;
    ecokv_kept kept;
    std::vector<int32_t> ranks;
    if (store) {
        // all that can fail comes first
        store->reset(seq_id);
        int32_t status = ecokv_make_room(*store, kv, std::vector<uint32_t>(store->offset.size(), 0));
        if (status == LLAMA_ECOKV_OK && std::any_of(store->layers.begin(), store->layers.end(), [](const auto & l) { return l.kq_scale == 0.0f; })) {
            llama_ecokv_access::reserve(ctx); // scores need what a graph would tell: the next eviction may come before the next token
        }
        if (status == LLAMA_ECOKV_OK) {
            status = llama_ecokv_access::open(&ctx, seq_id, seq);
        }
        if (status == LLAMA_ECOKV_OK && !c.first.empty()) {
            ranks  = ranks_of(seq, c.first, n);
            kept   = { (int32_t) seq.layers.size(), seq.n_head_kv, n, ranks.data() };
            status = ecokv_masks_prepare(seq, kept);
        }
        if (status != LLAMA_ECOKV_OK) {
            return status;
        }
    }

    for (size_t p = 0; p < caches.size(); ++p) {
        write_rows(*caches[p], seq_id, c.parts[p], dst[p], p == 0 ? c.first : std::vector<int32_t>());
    }
    for (size_t p = 0; p < caches.size(); ++p) {
        write_cells(*caches[p], seq_id, c.parts[p], dst[p]);
    }
    if (store) {
        write_state(seq, c, dst[0]);
        if (!c.first.empty()) {
            ecokv_masks_set(seq, kept, dst[0]);
        }
    }
    return LLAMA_ECOKV_OK;
}
