# The pinned source, fetched, unpacked and patched into the build folder by tools/source.py, which
# does nothing when neither the pin nor a patch has changed and touches only files that differ.
find_package(Python 3.10 COMPONENTS Interpreter REQUIRED)

file(GLOB _inputs CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/patches/* ${CMAKE_CURRENT_SOURCE_DIR}/tools/*.py)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    ${CMAKE_CURRENT_SOURCE_DIR}/llama.cpp.lock ${_inputs})

set(_command ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/tools/source.py
    --pin-file ${CMAKE_BINARY_DIR}/pin.cmake)

if (ECOKV_LLAMA_DIR)
    message(STATUS "llama.cpp: ${ECOKV_LLAMA_DIR} as it is, no patches applied")
    set(ECOKV_LLAMA_SOURCE ${ECOKV_LLAMA_DIR})
else()
    set(ECOKV_LLAMA_SOURCE ${CMAKE_BINARY_DIR}/source/llama.cpp)
    list(APPEND _command --patched ${ECOKV_LLAMA_SOURCE})
endif()

if (ECOKV_STOCK)
    set(ECOKV_PRISTINE_DIR ${CMAKE_BINARY_DIR}/source/pristine)
    list(APPEND _command --pristine ${ECOKV_PRISTINE_DIR})
endif()

execute_process(COMMAND ${_command} RESULT_VARIABLE _result)
if (NOT _result EQUAL 0)
    message(FATAL_ERROR "the llama.cpp source is not ready: see the message above")
endif()

include(${CMAKE_BINARY_DIR}/pin.cmake)
file(REAL_PATH ${ECOKV_LLAMA_SOURCE} ECOKV_LLAMA_REAL)

# The tree may lie inside another repository (ours), whose commits must not show up as llama.cpp's,
# nor cause rebuilds.
set(ENV{GIT_CEILING_DIRECTORIES} ${CMAKE_BINARY_DIR}/source)
set(LLAMA_BUILD_NUMBER 0)
set(LLAMA_BUILD_COMMIT ${ECOKV_PIN_COMMIT})
