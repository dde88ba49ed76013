#include "ecokv-state.h"

#include "ecokv-common.h"
#include "ecokv-raw.h"
#include "ecokv-state-format.h"

#include <cstdio>

using namespace ecokv_format;

// rows of one cache; first: holes by layer and head
static void write_part(writer & w, llama_kv_cache & kv, llama_seq_id seq_id, const std::vector<int32_t> & first) {
    const uint32_t strm   = llama_ecokv_access::stream_of(kv, seq_id);
    const auto     layers = llama_ecokv_access::layers(kv, strm);
    const auto   & cells  = llama_ecokv_access::cells_of(kv, seq_id);
    const auto     cell   = llama_ecokv_access::cells_by_pos(kv, seq_id);

    const part_head h = { (uint32_t) layers.size(), (uint32_t) cell.size(), llama_ecokv_access::head(kv, strm), 0 };
    w.put(&h, 1);

    std::vector<row_meta> rows;
    for (uint32_t c : cell) {
        const auto & ext = cells.ext_get(c);
        rows.push_back({ cells.pos_get(c), ext.x, ext.y, ext.tok, c, 0 });
    }
    w.put(rows.data(), rows.size());

    for (size_t i = 0; i < layers.size(); ++i) {
        const auto & l    = layers[i];
        const auto   meta = meta_of(kv, l);
        w.put(&meta, 1);

        auto row = cell;
        for (auto & r : row) {
            r -= std::min(r, l.offset);
        }
        const auto holes = holes_of(first, i, layers.size(), l.n_head_kv);
        for (bool value : { false, true }) {
            const ecokv_raw_rows raw(l, value, holes);
            if (!raw.can_split()) {
                throw std::runtime_error("a head of this cache type is no whole number of blocks: uneven budgets cannot be saved");
            }
            if (uint8_t * out = w.room(cell.empty() ? 0 : raw.bytes((int64_t) cell.size())); out && !cell.empty()) {
                raw.get(row, out);
            }
        }
    }
}

static void write_store(writer & w, const ecokv_seq & seq) {
    const auto & st    = *seq.store;
    const auto & lossy = st.seqs[seq.id];
    const auto   slots = ecokv_valid_slots(seq);

    const store_head h = { lossy.edited, lossy.n_evictions, lossy.n_rows, lossy.safe_pos, seq.n_head_kv, !lossy.first.empty(),
        (int32_t) slots.size(), 0 };
    w.put(&h, 1);

    auto pos = lossy.pos;
    to_deltas(pos, (size_t) lossy.n_rows);
    w.put(pos.data(), pos.size());
    w.put(lossy.first.data(), lossy.first.size());

    std::vector<query_meta> queries;
    for (uint32_t s : slots) {
        const auto & slot = st.slots[s];
        queries.push_back({ slot.pos, slot.cell == llama_ecokv_store::slot::NO_CELL ? -1 : ecokv_rank_of(seq, slot.cell) });
    }
    w.put(queries.data(), queries.size());

    for (const auto & l : st.layers) {
        const size_t size = l.q->nb[1];
        uint8_t    * out  = w.room(slots.size()*size);
        for (size_t j = 0; out && j < slots.size(); ++j) {
            ggml_backend_tensor_get(l.q, out + j*size, slots[j]*size, size);
        }
    }
}

size_t ecokv_state::write(uint8_t * data) const {
    llama_ecokv_access::settle(ctx, kv);

    const auto & store = llama_ecokv_access::store(kv);

    head h = {};
    h.magic     = MAGIC;
    h.version   = VERSION;
    h.n_part    = window ? 2 : 1;
    h.has_store = store != nullptr;
    snprintf(h.arch, sizeof(h.arch), "%s", llama_ecokv_access::arch(ctx));

    writer w(data);
    w.put(&h, 1);

    std::vector<int32_t> first;
    if (store) {
        ecokv_seq seq;
        if (llama_ecokv_access::open(&ctx, seq_id, seq) != LLAMA_ECOKV_OK) {
            throw std::runtime_error(llama_ecokv_last_error());
        }
        write_store(w, seq);
        first = store->seqs[seq_id].first;
    }
    write_part(w, kv, seq_id, first);
    if (window) {
        write_part(w, *window, seq_id, {});
    }

    if (data) {
        h.size = w.pos;
        memcpy(data, &h, sizeof(h));
        h.checksum = checksum_of(data, w.pos);
        memcpy(data, &h, sizeof(h));
    }
    return w.pos;
}
