# The public headers are the only ones installed, at most 27, and each compiles alone without the
# headers of another library.
#
# usage: cmake -DSOURCE_DIR=... -DPREFIX=... -DCXX=... -P public_headers.cmake
cmake_minimum_required(VERSION 3.25)

set(folder ${SOURCE_DIR}/lib/include/tqcache)
file(GLOB headers RELATIVE ${folder} ${folder}/*)
list(LENGTH headers n_headers)
if(n_headers EQUAL 0 OR n_headers GREATER 27)
  message(FATAL_ERROR "${n_headers} public headers; 1 to 27 are allowed")
endif()

file(GLOB_RECURSE installed RELATIVE ${PREFIX}/include ${PREFIX}/include/*)
set(expected ${headers})
list(TRANSFORM expected PREPEND "tqcache/")
list(SORT expected)
list(SORT installed)
if(NOT installed STREQUAL expected)
  message(FATAL_ERROR "installed are\n  ${installed}\nand not\n  ${expected}")
endif()

set(complaints "")

# compile(<compiler> <header>...)
macro(compile compiler)
  set(includes)
  foreach(name ${ARGN})
    list(APPEND includes -include ${PREFIX}/include/tqcache/${name})
  endforeach()
  execute_process(
    COMMAND ${compiler} -std=c++20 -Wall -Wextra -Wpedantic -Wno-pragma-once-outside-header -Werror
            -fsyntax-only -I${PREFIX}/include ${includes} -x c++ /dev/null
    RESULT_VARIABLE status ERROR_VARIABLE messages)
  if(NOT status EQUAL 0)
    string(APPEND complaints "\n  ${ARGN}: does not compile alone with ${compiler}:\n${messages}")
  endif()
endmacro()

foreach(header IN LISTS headers)
  file(STRINGS ${folder}/${header} lines REGEX "^[ \t]*#[ \t]*include")
  foreach(line IN LISTS lines)
    # A header of the standard library, or another public header.
    if(line MATCHES "^#include <[a-z_]+>$")
      continue()
    elseif(header STREQUAL "tqcache.h" AND line MATCHES "^#include <std(def|int).h>$")  # it is C
      continue()
    elseif(line MATCHES "^#include \"tqcache/([a-z_]+\\.h)\"$" AND CMAKE_MATCH_1 IN_LIST headers)
      continue()
    endif()
    string(APPEND complaints "\n  ${header}: ${line}: no public header may show this")
  endforeach()

  file(STRINGS ${folder}/${header} first LIMIT_COUNT 2)
  list(POP_BACK first second)
  if(NOT second MATCHES "^// tqcache/${header}: ")
    string(APPEND complaints "\n  ${header}: its first line does not say what it is for")
  endif()

  compile(${CXX} ${header})
endforeach()

# clang 14 beside the compiler of the build, where it is installed: it takes all of them at once.
find_program(clang NAMES clang++-14)
if(clang AND NOT CXX MATCHES "clang")
  compile(${clang} ${headers})
endif()

if(complaints)
  message(FATAL_ERROR "public headers:${complaints}")
endif()
message(STATUS "${n_headers} public headers, checked with: ${CXX} ${clang}")
