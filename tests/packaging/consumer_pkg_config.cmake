# Builds the same programs with nothing but a compiler and pkg-config, and runs them.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/consumer.cmake)

file(REMOVE_RECURSE ${WORK_DIR})
extract_readme_example(${SOURCE_DIR}/README.md ${WORK_DIR}/readme_example.cpp)

set(ENV{PKG_CONFIG_PATH} ${PREFIX}/${LIBDIR}/pkgconfig)
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs tqcache
  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")

set(ENV{LD_LIBRARY_PATH} ${PREFIX}/${LIBDIR})  # for a build with BUILD_SHARED_LIBS
run(${CXX} -std=c++20 ${CXX_FLAGS} ${CMAKE_CURRENT_LIST_DIR}/consumer/small_cache.cpp ${flags}
  -o ${WORK_DIR}/small_cache)
run(${CXX} -std=c++20 ${CXX_FLAGS} ${WORK_DIR}/readme_example.cpp ${flags}
  -o ${WORK_DIR}/readme_example)
# The C interface, as C11, with its own library alone.
if(EXISTS ${PREFIX}/${LIBDIR}/pkgconfig/tqcache-c.pc)
  execute_process(COMMAND ${PKG_CONFIG} --cflags --libs tqcache-c
    OUTPUT_VARIABLE c_flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(c_flags UNIX_COMMAND "${c_flags}")
  run(${CC} -std=c11 -Wall -Wextra -Wpedantic -Werror ${CXX_FLAGS}
    ${SOURCE_DIR}/examples/05_c_interface.c ${c_flags} -lm -o ${WORK_DIR}/c_interface)
  run(${WORK_DIR}/c_interface ${WORK_DIR}/c_interface.tqkv)
endif()

run_consumer(${WORK_DIR}/small_cache ${WORK_DIR}/readme_example ${WORK_DIR})
