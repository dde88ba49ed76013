# An unpatched libllama of the same pin, against the same ggml, with the same sources and flags but
# ours: tests and benchmarks compare the patched one with it.
if (NOT ECOKV_STOCK)
    return()
endif()

get_target_property(_sources     llama SOURCES)
get_target_property(_source_dir  llama SOURCE_DIR)
get_target_property(_binary_dir  llama BINARY_DIR)
get_target_property(_options     llama COMPILE_OPTIONS)
get_target_property(_definitions llama COMPILE_DEFINITIONS)

list(REMOVE_ITEM _sources ${ECOKV_SOURCES} "")
set(_stock)
set(_core)
foreach(_source IN LISTS _sources)
    file(REAL_PATH ${_source} _source BASE_DIRECTORY ${_source_dir})
    file(RELATIVE_PATH _source ${ECOKV_LLAMA_REAL} ${_source})
    list(APPEND _stock ${ECOKV_PRISTINE_DIR}/${_source})
    if (NOT _source MATCHES "^src/models/")
        list(APPEND _core ${ECOKV_PRISTINE_DIR}/${_source})
    endif()
endforeach()

add_library(llama-stock SHARED ${_stock})
set_source_files_properties(${_core} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
set_target_properties(llama-stock PROPERTIES
    OUTPUT_NAME              llama
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/stock
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/stock
    INSTALL_RPATH            ${ECOKV_ORIGIN}/..
    UNITY_BUILD              ON
    UNITY_BUILD_BATCH_SIZE   16)
target_include_directories(llama-stock
    PRIVATE ${ECOKV_PRISTINE_DIR}/src ${_binary_dir} # llama-version.h
    PUBLIC  ${ECOKV_PRISTINE_DIR}/include)
if (_options)
    target_compile_options(llama-stock PRIVATE ${_options})
endif()
if (_definitions)
    target_compile_definitions(llama-stock PRIVATE ${_definitions})
endif()
target_compile_definitions(llama-stock PUBLIC LLAMA_SHARED)
target_link_libraries(llama-stock PUBLIC ggml)
