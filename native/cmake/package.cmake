# What a build leaves behind: the libraries, the programs if any, the header, build-info.json.

# every ggml library there is, whatever backends were chosen
function(ecokv_shared_libraries dir out)
    get_property(targets DIRECTORY ${dir} PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target IN LISTS targets)
        get_target_property(type ${target} TYPE)
        if (type MATCHES "^(SHARED|MODULE)_LIBRARY$")
            list(APPEND ${out} ${target})
        endif()
    endforeach()
    get_property(subdirs DIRECTORY ${dir} PROPERTY SUBDIRECTORIES)
    foreach(subdir IN LISTS subdirs)
        ecokv_shared_libraries(${subdir} ${out})
    endforeach()
    set(${out} ${${out}} PARENT_SCOPE)
endfunction()

set(ECOKV_GGML_LIBRARIES)
ecokv_shared_libraries(${ECOKV_LLAMA_SOURCE}/ggml ECOKV_GGML_LIBRARIES)

set(ECOKV_LIBRARIES ${ECOKV_GGML_LIBRARIES} llama mtmd)
if (ECOKV_TOOLS)
    list(APPEND ECOKV_LIBRARIES llama-common)
    if (TARGET llama-server-impl)
        get_target_property(_type llama-server-impl TYPE)
        if (_type STREQUAL SHARED_LIBRARY)
            list(APPEND ECOKV_LIBRARIES llama-server-impl)
        endif()
    endif()
endif()

foreach(_target IN LISTS ECOKV_LIBRARIES)
    # plain names without version: a wheel has no symbolic links, so each would be packed three times
    set_property(TARGET ${_target} PROPERTY VERSION)
    set_property(TARGET ${_target} PROPERTY SOVERSION)
    set_property(TARGET ${_target} PROPERTY PUBLIC_HEADER)
    set_property(TARGET ${_target} PROPERTY PRIVATE_HEADER)
    if (WIN32)
        set_property(TARGET ${_target} PROPERTY WINDOWS_EXPORT_ALL_SYMBOLS ON)
    endif()
endforeach()

add_custom_target(ecokv ALL DEPENDS ${ECOKV_LIBRARIES} ${ECOKV_PROGRAMS})

# An editable install works from the source tree, so the libraries go there (ignored by git).
if (SKBUILD_STATE STREQUAL "editable")
    set(ECOKV_PREFIX ${CMAKE_CURRENT_SOURCE_DIR}/../ecokv_local)
elseif (SKBUILD)
    set(ECOKV_PREFIX ecokv_local)
else()
    set(ECOKV_PREFIX .)
endif()
set(ECOKV_LIB ${ECOKV_PREFIX}/lib)

install(TARGETS ${ECOKV_LIBRARIES} ${ECOKV_PROGRAMS}
    LIBRARY DESTINATION ${ECOKV_LIB}
    RUNTIME DESTINATION ${ECOKV_LIB})
if (ECOKV_STOCK)
    install(TARGETS llama-stock
        LIBRARY DESTINATION ${ECOKV_LIB}/stock
        RUNTIME DESTINATION ${ECOKV_LIB}/stock)
endif()
install(FILES ${ECOKV_LLAMA_SOURCE}/LICENSE DESTINATION ${ECOKV_LIB} RENAME LICENSE.llama.cpp)
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/include/llama-ecokv.h DESTINATION ${ECOKV_PREFIX}/include)

# what this build is, for the version check and `ecokv doctor`
list(TRANSFORM ECOKV_GGML_LIBRARIES REPLACE "(.+)" "\"\\1\"" OUTPUT_VARIABLE _names)
string(REPLACE ";" ", " ECOKV_GGML_LIBRARIES_JSON "${_names}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/build-info.json.in ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/build-info.json @ONLY)
install(FILES ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/build-info.json DESTINATION ${ECOKV_LIB})
