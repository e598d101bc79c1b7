# A missing library stops the configure step with one line that names the Debian package.
cmake_minimum_required(VERSION 3.25)

# expect_missing(<packages as the line names them> <command that configures>...)
function(expect_missing packages)
  file(REMOVE_RECURSE ${WORK_DIR})
  execute_process(COMMAND ${ARGN} -S ${SOURCE_DIR} -B ${WORK_DIR} -G ${GENERATOR}
      -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_C_COMPILER=${CC}
    RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(status EQUAL 0)
    message(FATAL_ERROR "configured although ${packages} was hidden")
  endif()
  string(REGEX MATCHALL "[^\n]*apt-get install[^\n]*" lines "${out}${err}")
  string(STRIP "${lines}" lines)
  set(expected "missing packages, to be had by: apt-get install ${packages}")
  if(NOT lines STREQUAL expected)
    message(FATAL_ERROR "expected the one line\n  ${expected}\nbut got\n  ${lines}\nin\n${err}")
  endif()
endfunction()

expect_missing(libtbb-dev ${CMAKE_COMMAND} -DCMAKE_DISABLE_FIND_PACKAGE_TBB=ON)
expect_missing("libtbb-dev libcli11-dev" ${CMAKE_COMMAND}
  -DCMAKE_DISABLE_FIND_PACKAGE_TBB=ON -DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON)
expect_missing(
  "libzstd-dev libxxhash-dev libssl-dev libpcre2-dev libutf8proc-dev libzip-dev zlib1g-dev libfmt-dev libsqlite3-dev libedit-dev"
  ${CMAKE_COMMAND} -E env PKG_CONFIG_LIBDIR=${WORK_DIR}/nowhere ${CMAKE_COMMAND})
# Engines of the store are left out where their libraries are missing, unless they are asked for.
expect_missing(
  "libzstd-dev libxxhash-dev libssl-dev libpcre2-dev libutf8proc-dev libzip-dev zlib1g-dev libfmt-dev libsqlite3-dev libhiredis-dev libcurl4-openssl-dev libexpat1-dev libedit-dev"
  ${CMAKE_COMMAND} -E env PKG_CONFIG_LIBDIR=${WORK_DIR}/nowhere ${CMAKE_COMMAND}
  -DTQCACHE_STORE_REDIS=ON -DTQCACHE_STORE_S3=ON)
