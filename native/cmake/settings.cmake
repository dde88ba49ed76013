# Compiler, RPATH and llama.cpp's own options. Everything a user may want to change is left to
# llama.cpp's cache variables (GGML_CUDA, GGML_NATIVE, ...).

if (NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# one folder for everything, in the build tree too, so that ECOKV_LIB_DIR can point at it
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

# the libraries find each other beside themselves, wherever the package is put
if (APPLE)
    set(ECOKV_ORIGIN "@loader_path")
    set(CMAKE_MACOSX_RPATH ON)
else()
    set(ECOKV_ORIGIN "$ORIGIN")
endif()
set(CMAKE_INSTALL_RPATH               ${ECOKV_ORIGIN})
set(CMAKE_BUILD_WITH_INSTALL_RPATH    ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON) # e.g. the CUDA runtime

# Normal variables win over llama.cpp's cache variables of the same name.
set(BUILD_SHARED_LIBS    ON)
set(LLAMA_BUILD_COMMON   ${ECOKV_TOOLS})
set(LLAMA_BUILD_TOOLS    ${ECOKV_TOOLS})
set(LLAMA_BUILD_SERVER   ${ECOKV_TOOLS})
set(LLAMA_BUILD_MTMD     ON) # upstream skips this one when the tools are built
set(LLAMA_BUILD_TESTS    OFF)
set(LLAMA_BUILD_EXAMPLES OFF)
set(LLAMA_BUILD_APP      OFF)
set(LLAMA_BUILD_UI       OFF)
set(LLAMA_USE_PREBUILT_UI OFF) # would be downloaded
set(LLAMA_TOOLS_INSTALL  OFF)
set(LLAMA_OPENSSL        OFF)
set(MTMD_VIDEO           OFF)
set(GGML_BUILD_TESTS     OFF)
set(GGML_BUILD_EXAMPLES  OFF)

if (ECOKV_SANITIZE)
    # compiled into our sources, the patched files and the tests: instrumenting all of llama.cpp takes an hour
    set(ECOKV_SANITIZE_FLAGS -fsanitize=address,undefined -fno-omit-frame-pointer -g)
    add_link_options(-fsanitize=address,undefined)
endif()
