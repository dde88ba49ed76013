#pragma once

// Which ranks of which layer and KV head stay. Pure: the same code serves evictions, dry runs, traces and tests.

#include "llama-ecokv.h"

// LLAMA_ECOKV_OK, or what is wrong with the numbers of a config
int32_t ecokv_config_check(const llama_ecokv_config & config);
