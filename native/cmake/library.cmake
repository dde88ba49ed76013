# Our sources become part of libllama: they need its private classes, and the hooks in its sources
# need them. Added from here, so that the patches need not touch upstream's CMake files.
file(GLOB ECOKV_SOURCES CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/src/*.cpp
    ${CMAKE_CURRENT_SOURCE_DIR}/src/policies/*.cpp)

target_include_directories(llama
    PUBLIC  ${CMAKE_CURRENT_SOURCE_DIR}/include
    PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)

if (ECOKV_SOURCES)
    target_sources(llama PRIVATE ${ECOKV_SOURCES})
    # upstream's unity build is meant for src/models
    set_source_files_properties(${ECOKV_SOURCES} TARGET_DIRECTORY llama
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endif()

if (ECOKV_SANITIZE)
    set_property(SOURCE ${ECOKV_SOURCES} TARGET_DIRECTORY llama APPEND PROPERTY COMPILE_OPTIONS ${ECOKV_SANITIZE_FLAGS})
    foreach(_name IN ITEMS llama-context llama-graph llama-kv-cache llama-kv-cache-iswa)
        set_property(SOURCE ${ECOKV_LLAMA_SOURCE}/src/${_name}.cpp TARGET_DIRECTORY llama
            APPEND PROPERTY COMPILE_OPTIONS ${ECOKV_SANITIZE_FLAGS})
    endforeach()
endif()
