# The build folder outlives one build, and with it CMake's cache: an option that was given once in
# the environment variable CMAKE_ARGS (CMAKE_ARGS="-DGGML_CUDA=on" pip install .) would stay on in
# later builds without it. So forget options that are no longer given.
string(REGEX MATCHALL "-D *[A-Za-z0-9_]+" _now    "$ENV{CMAKE_ARGS}")
string(REGEX MATCHALL "-D *[A-Za-z0-9_]+" _before "${ECOKV_LAST_CMAKE_ARGS}")

list(REMOVE_ITEM _before ${_now} "")
foreach(_arg IN LISTS _before)
    string(REGEX REPLACE "-D *" "" _name "${_arg}")
    message(STATUS "${_name} is no longer in CMAKE_ARGS: back to its default")
    unset(${_name} CACHE)
endforeach()

set(ECOKV_LAST_CMAKE_ARGS "$ENV{CMAKE_ARGS}" CACHE INTERNAL "CMAKE_ARGS of the last configure run")
