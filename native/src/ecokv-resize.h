#pragma once

// Another number of cells for a cache: new buffers, the rows are copied, the old buffers are freed. Layers whose heads all lack
// the first cells (pyramid) need not hold them.

#include "ecokv-access.h"

struct llm_graph_context;

// a number of cells that a cache may have
uint32_t ecokv_pad_cells(uint32_t n_cells);

// cells that the context which this thread is making shall begin with, 0: nothing was said
uint32_t ecokv_initial_cells();

// cells that layer i does not hold; its row 0 is the cell of that number
uint32_t ecokv_offset(const llama_ecokv_store & store, int32_t layer);

// cells in front that no head of a layer uses, rounded down to what the backends like: [n_layer]
std::vector<uint32_t> ecokv_offsets_possible(const llama_ecokv_store & store, llama_kv_cache & kv);

// LLAMA_ECOKV_OK, or what is wrong; then nothing was changed. the backends have to be idle
int32_t ecokv_reallocate(llama_ecokv_store & store, llama_kv_cache & kv, uint32_t n_cells, const std::vector<uint32_t> & offset);

// as many cells as before, and layer i holds those from need[i] on
int32_t ecokv_make_room(llama_ecokv_store & store, llama_kv_cache & kv, const std::vector<uint32_t> & need);

// all layers hold all cells
int32_t ecokv_make_whole(llama_kv_cache & kv);

// the row indices of the layer that is being built become an input of its graph
void ecokv_claim_rows(const llm_graph_context & graph, const llama_kv_cache_context * mctx, const std::shared_ptr<llama_ecokv_store> & store);
