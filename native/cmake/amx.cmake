# GGML_NATIVE compiles for the CPU that is here, on Xeons also for AMX. llama.cpp's code for it crashes
# at the first matrix product: GCC before 12.4 and 13.3 drops the tile configuration (GCC bug 114098),
# and the kernel's permission for the tiles is asked for by one thread only.
# Drop when: the pin has tile set-up per thread, in memory that the compiler cannot drop.
if (ECOKV_AMX OR NOT GGML_NATIVE OR NOT TARGET ggml-cpu)
    return()
endif()

include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-mno-amx-int8 ECOKV_HAS_NO_AMX)
if (ECOKV_HAS_NO_AMX)
    target_compile_options(ggml-cpu PRIVATE -mno-amx-int8)
endif()
