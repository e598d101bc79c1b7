# Builds a project that uses the installed library through find_package(tqcache), and runs it.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/consumer.cmake)

file(REMOVE_RECURSE ${WORK_DIR})
extract_readme_example(${SOURCE_DIR}/README.md ${WORK_DIR}/readme_example.cpp)
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${WORK_DIR}/build
  -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${PREFIX}
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=${CXX_FLAGS}
  -DREADME_EXAMPLE=${WORK_DIR}/readme_example.cpp)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build)
run_consumer(${WORK_DIR}/build/small_cache ${WORK_DIR}/build/readme_example ${WORK_DIR})
