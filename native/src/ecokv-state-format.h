#pragma once

// The bytes of a saved sequence: pieces of fixed size, each padded to 8 bytes.
//
//   head
//   with a store:  store_head, positions of the evicted part (as differences), holes, queries of the ring
//   of each cache: part_head, row_meta of every row; of each layer: layer_meta, its K, its V

#include "ecokv-access.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <stdexcept>

namespace ecokv_format {

static const uint32_t MAGIC   = 0x53564b45; // "EKVS"
static const uint32_t VERSION = 1;

struct head {
    uint32_t magic;
    uint32_t version;
    uint64_t size;     // of all
    uint64_t checksum; // of all that follows it
    char     arch[48];
    uint32_t n_part;   // 2: with the sliding-window half
    uint32_t has_store;
};

struct part_head {
    uint32_t n_layer;
    uint32_t n_rows;
    uint32_t head; // cell where the search for free ones goes on
    uint32_t pad;
};

struct row_meta {
    llama_pos pos;
    llama_pos x;
    llama_pos y;
    int32_t   tok;
    uint32_t  cell; // a cache of the same layout goes on bit for bit
    uint32_t  pad;
};

struct layer_meta {
    int32_t il, n_head_kv, d_k, d_v, type_k, type_v, rot_k, rot_v;

    bool operator==(const layer_meta & o) const { return memcmp(this, &o, sizeof(o)) == 0; }
};

struct store_head {
    int32_t edited;
    int32_t n_evictions;
    int32_t n_rows;   // of the evicted part
    int32_t safe_pos;
    int32_t n_head_kv;
    int32_t has_holes;
    int32_t n_query;
    int32_t pad;
};

struct query_meta {
    llama_pos pos;
    int32_t   rank; // -1: the row was evicted
};

struct damaged : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// every step can be undone, so that one word that differs always changes the result
inline uint64_t checksum_of(const uint8_t * data, size_t size) {
    uint64_t res = 0xcbf29ce484222325ull;
    for (size_t i = offsetof(head, checksum) + sizeof(uint64_t); i < size; i += 8) {
        uint64_t word = 0;
        memcpy(&word, data + i, std::min<size_t>(8, size - i));
        res = (res ^ word)*0x100000001b3ull;
        res ^= res >> 32;
    }
    return res;
}

class writer {
public:
    explicit writer(uint8_t * data) : data(data) {}

    // room for n bytes, null while the size is counted
    uint8_t * room(size_t n) {
        uint8_t * res = data ? data + pos : nullptr;
        const size_t padded = GGML_PAD(n, 8);
        if (res) {
            memset(res + n, 0, padded - n);
        }
        pos += padded;
        return res;
    }

    template <typename T>
    void put(const T * src, size_t n) {
        if (uint8_t * dst = room(n*sizeof(T)); dst && n > 0) {
            memcpy(dst, src, n*sizeof(T));
        }
    }

    size_t pos = 0;

private:
    uint8_t * data;
};

class reader {
public:
    reader(const uint8_t * data, size_t size) : at(data), left(size) {}

    const uint8_t * room(uint64_t n) {
        const uint64_t padded = GGML_PAD(n, 8);
        if (padded < n || padded > left) {
            throw damaged("the state ends early");
        }
        const uint8_t * res = at;
        at   += padded;
        left -= padded;
        return res;
    }

    template <typename T>
    std::vector<T> get(uint64_t n) {
        const uint8_t * src = room(n*sizeof(T));
        std::vector<T> res(n);
        if (n > 0) {
            memcpy(res.data(), src, n*sizeof(T));
        }
        return res;
    }

    template <typename T>
    T one() { return get<T>(1)[0]; }

    size_t left_over() const { return left; }

private:
    const uint8_t * at;
    uint64_t        left;
};

inline layer_meta meta_of(const llama_kv_cache & kv, const ecokv_layer & l) {
    return { l.il, l.n_head_kv, l.d_k, l.d_v, l.k->type, l.v->type,
        llama_ecokv_access::rotated(kv, false), llama_ecokv_access::rotated(kv, true) };
}

// holes of the heads of a layer, empty: none
inline std::vector<int32_t> holes_of(const std::vector<int32_t> & first, size_t layer, size_t n_layer, int32_t n_head) {
    if (first.empty()) {
        return {};
    }
    const auto at = first.begin() + layer*(first.size()/n_layer);
    return { at, at + n_head };
}

// ascending positions as differences: small numbers, which compress well
inline void to_deltas(std::vector<llama_pos> & pos, size_t n) {
    for (size_t i = pos.size(); n > 1 && i-- > 0;) {
        pos[i] = (llama_pos) ((uint32_t) pos[i] - (i % n ? (uint32_t) pos[i - 1] : 0u));
    }
}

inline void from_deltas(std::vector<llama_pos> & pos, size_t n) {
    for (size_t i = 0; n > 1 && i < pos.size(); ++i) {
        pos[i] = (llama_pos) ((uint32_t) pos[i] + (i % n ? (uint32_t) pos[i - 1] : 0u));
    }
}

} // namespace ecokv_format
