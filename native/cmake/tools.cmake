# Programs that are only built on demand: upstream's tools for comparisons, the RPC server of the tests.
set(ECOKV_PROGRAMS)

if (ECOKV_TOOLS)
    list(APPEND ECOKV_PROGRAMS llama-bench llama-perplexity llama-server llama-mtmd-cli)
endif()

if (ECOKV_TEST_TOOLS)
    if (NOT TARGET ggml-rpc-server)
        add_subdirectory(${ECOKV_LLAMA_SOURCE}/tools/rpc rpc-server EXCLUDE_FROM_ALL)
    endif()
    list(APPEND ECOKV_PROGRAMS ggml-rpc-server)
endif()
