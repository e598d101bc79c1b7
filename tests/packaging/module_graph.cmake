# The modules include each other only as the table of docs/explain/design.md allows.
#
# usage: cmake -DSOURCE_DIR=... -P module_graph.cmake
cmake_minimum_required(VERSION 3.25)

# Reads "| `format` | `cache` `codec` `base` |" rows into allowed_<module>.
file(STRINGS ${SOURCE_DIR}/docs/explain/design.md rows
  REGEX "^\\| `[a-z]+` \\| (`[a-z]+` ?|nothing)+ *\\|")
set(modules "")
foreach(row IN LISTS rows)
  string(REGEX MATCHALL "`[a-z]+`" names "${row}")
  string(REPLACE "`" "" names "${names}")
  list(POP_FRONT names module)
  list(APPEND modules ${module})
  set(allowed_${module} ${module} ${names})
endforeach()
foreach(module IN ITEMS tools migrations eval store format model tokenizer cache tensors codec base)
  if(NOT module IN_LIST modules)
    message(FATAL_ERROR "docs/explain/design.md: the table of modules has no row for ${module}")
  endif()
endforeach()

set(violations "")
set(n_includes 0)

# check_include(<file> <its module> <include line>): adds to `violations`.
macro(check_include file module line)
  if("${line}" MATCHES "\"\\.\\./|/\\.\\./")
    list(APPEND violations "${file}: ${line}: by a relative path")
  endif()
  if("${file}" MATCHES "\\.h$" AND "${line}" MATCHES "zstd\\.h|_generated\\.h|flatbuffers/|sqlite3\\.h|hiredis/|curl/|expat\\.h")
    list(APPEND violations "${file}: ${line}: no header may show this")
  endif()
  if("${line}" MATCHES "_generated\\.h|flatbuffers/" AND NOT "${module}" MATCHES "^(format|store|migrations)$")
    list(APPEND violations "${file}: ${line}: ${module} may not see FlatBuffers")
  endif()
  if("${line}" MATCHES "[\"<]tqcache/([a-z]+)/|\"(migrations)/")
    set(included ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
    math(EXPR n_includes "${n_includes} + 1")
    if(NOT included IN_LIST allowed_${module})
      list(APPEND violations "${file}: ${line}: ${module} may not include ${included}")
    endif()
  endif()
endmacro()

foreach(module IN LISTS modules)
  set(folder lib/tqcache/${module})
  if(module MATCHES "^(tools|migrations)$")
    set(folder ${module})  # not part of the library
  endif()
  file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR}
    ${SOURCE_DIR}/${folder}/*.h ${SOURCE_DIR}/${folder}/*.cpp)
  foreach(file IN LISTS files)
    file(STRINGS ${SOURCE_DIR}/${file} lines REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS lines)
      check_include(${file} ${module} "${line}")
    endforeach()
  endforeach()
endforeach()

# A module that the table does not know would go unchecked.
file(GLOB folders RELATIVE ${SOURCE_DIR}/lib/tqcache ${SOURCE_DIR}/lib/tqcache/*)
foreach(folder IN LISTS folders)
  if(IS_DIRECTORY ${SOURCE_DIR}/lib/tqcache/${folder} AND NOT folder IN_LIST modules)
    list(APPEND violations "lib/tqcache/${folder}: not in the table of docs/explain/design.md")
  endif()
endforeach()

if(violations)
  list(JOIN violations "\n  " text)
  message(FATAL_ERROR "includes that docs/explain/design.md does not allow:\n  ${text}")
endif()
message(STATUS "${n_includes} includes, all allowed")
