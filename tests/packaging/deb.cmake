# Makes the Debian package, unpacks it into an empty folder, and uses what is in it there: the program
# converts a cache that a program built with the package's headers and library has written.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/consumer.cmake)

file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})
run(${CPACK} -G DEB --config ${BUILD_DIR}/CPackConfig.cmake -B ${WORK_DIR})
file(GLOB package ${WORK_DIR}/tqcache_*.deb)
execute_process(COMMAND dpkg-deb --field ${package} Depends
  OUTPUT_VARIABLE depends COMMAND_ERROR_IS_FATAL ANY)
foreach(needed IN ITEMS libzstd1 libssl3 libopenblas0)
  if(NOT depends MATCHES ${needed})
    message(FATAL_ERROR "the package does not depend on ${needed}: ${depends}")
  endif()
endforeach()

set(root ${WORK_DIR}/root)
run(dpkg-deb --extract ${package} ${root})
foreach(file IN ITEMS bin/tqcache share/man/man1/tqcache.1 share/bash-completion/completions/tqcache
        share/zsh/vendor-completions/_tqcache share/fish/vendor_completions.d/tqcache.fish
        share/doc/tqcache/copyright)
  file(GLOB found ${root}/usr/${file} ${root}/usr/${file}.gz)
  if(NOT found)
    message(FATAL_ERROR "the package has no /usr/${file}")
  endif()
endforeach()

# Not "consumer.cmake"'s environment: nothing of the build folder is found by the paths below.
set(ENV{PKG_CONFIG_PATH} ${root}/usr/${LIBDIR}/pkgconfig)
set(ENV{LD_LIBRARY_PATH} ${root}/usr/${LIBDIR})
execute_process(COMMAND ${PKG_CONFIG} --cflags --libs tqcache
  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${CXX} -std=c++20 ${CXX_FLAGS} ${CMAKE_CURRENT_LIST_DIR}/consumer/small_cache.cpp ${flags}
  -o ${WORK_DIR}/small_cache)
run(${WORK_DIR}/small_cache write ${WORK_DIR}/small.kv)
run(${root}/usr/bin/tqcache convert ${WORK_DIR}/small.kv ${WORK_DIR}/small.tqkv)
run(${WORK_DIR}/small_cache check ${WORK_DIR}/small.tqkv)
