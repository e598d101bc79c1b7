# module_graph.cmake finds each kind of violation in a small tree made for it.
cmake_minimum_required(VERSION 3.25)

set(check ${CMAKE_COMMAND} -DSOURCE_DIR=${WORK_DIR} -P ${CMAKE_CURRENT_LIST_DIR}/module_graph.cmake)

function(make_tree)
  file(REMOVE_RECURSE ${WORK_DIR})
  file(COPY ${SOURCE_DIR}/docs/design.md DESTINATION ${WORK_DIR}/docs)
  file(WRITE ${WORK_DIR}/lib/tqcache/cache/good.cpp "#include \"tqcache/codec/a.h\"\n")
endfunction()

# expect_violation(<file> <its text> <what the message must hold>)
function(expect_violation file text message)
  make_tree()
  file(WRITE ${WORK_DIR}/${file} "${text}\n")
  execute_process(COMMAND ${check} RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE err)
  string(FIND "${err}" "${message}" found)
  if(status EQUAL 0 OR found EQUAL -1)
    message(FATAL_ERROR "not found: ${file} with ${text}\n${err}")
  endif()
endfunction()

make_tree()
execute_process(COMMAND ${check} COMMAND_ERROR_IS_FATAL ANY)

expect_violation(lib/tqcache/codec/a.cpp "#include \"tqcache/cache/cache.h\"" "codec may not include")
expect_violation(lib/tqcache/format/a.h "#  include <tqcache/model/model.h>" "format may not include")
expect_violation(lib/tqcache/format/a.h "#include <zstd.h>" "no header may show this")
expect_violation(lib/tqcache/format/a.h "#include \"cache_v2_generated.h\"" "no header may show this")
expect_violation(lib/tqcache/format/a.cpp "#include \"migrations/v1_file.h\"" "format may not include")
expect_violation(migrations/a.cpp "#include \"tqcache/tools/a.h\"" "migrations may not include")
expect_violation(lib/tqcache/base/a.cpp "#include \"../codec/rotation.h\"" "by a relative path")
expect_violation(lib/tqcache/novel/a.cpp "int x" "not in the table")
