# Makes the Debian package, unpacks it into an empty folder, and uses it there: a program that is
# built with the package's headers and library writes a cache, the packaged program converts it, and
# the first program checks the result.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/consumer.cmake)

if(NOT DPKG_DEB OR NOT SHLIBDEPS)
  run(${CMAKE_COMMAND} -E echo "NOT RUN: dpkg-deb and dpkg-shlibdeps are not installed")
  return()
endif()

file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})
run(${CPACK} -G DEB --config ${BUILD_DIR}/CPackConfig.cmake -B ${WORK_DIR})
file(GLOB package ${WORK_DIR}/tqcache_${VERSION}_*.deb)

# expect_field(<field> <regular expression>...): the field of the package matches each of them.
function(expect_field field)
  execute_process(COMMAND ${DPKG_DEB} --field ${package} ${field}
    OUTPUT_VARIABLE value COMMAND_ERROR_IS_FATAL ANY)
  foreach(wanted IN LISTS ARGN)
    if(NOT value MATCHES "${wanted}")
      message(FATAL_ERROR "the package's field ${field} lacks ${wanted}: ${value}")
    endif()
  endforeach()
endfunction()

expect_field(Package "^tqcache\n")
expect_field(Version "^${VERSION}\n")
expect_field(Depends libzstd1 libssl3 libstdc)
expect_field(Description "prompt caches")

set(root ${WORK_DIR}/root)
run(${DPKG_DEB} --extract ${package} ${root})
foreach(file IN ITEMS bin/tqcache bin/tqcache_hf.py
        share/man/man1/tqcache.1 share/man/man1/tqcache-convert.1
        share/bash-completion/completions/tqcache share/zsh/vendor-completions/_tqcache
        share/fish/vendor_completions.d/tqcache.fish
        share/doc/tqcache/copyright share/doc/tqcache/NOTICE
        ${LIBDIR}/pkgconfig/tqcache.pc ${LIBDIR}/cmake/tqcache/tqcacheConfig.cmake)
  if(NOT EXISTS ${root}/usr/${file})
    message(FATAL_ERROR "the package has no /usr/${file}")
  endif()
endforeach()

# bash loads the completions from where the package puts them.
run(bash -c "source ${root}/usr/share/bash-completion/completions/tqcache; complete -p tqcache")

# The flags name the unpacked tree alone, not the build folder.
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
