# The generated pages are those of the flags: docs/reference/cli.md, man/ and completions/.
#
# usage: cmake -DPROGRAM=... -DSOURCE_DIR=... -DWORK_DIR=... -P reference.cmake
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK_DIR})
execute_process(COMMAND ${PROGRAM} --write-reference ${WORK_DIR} COMMAND_ERROR_IS_FATAL ANY)
file(GLOB made RELATIVE ${WORK_DIR}
  ${WORK_DIR}/docs/reference/*.md ${WORK_DIR}/man/*.1 ${WORK_DIR}/completions/*)
file(GLOB kept RELATIVE ${SOURCE_DIR} ${SOURCE_DIR}/man/*.1 ${SOURCE_DIR}/completions/*)
list(APPEND kept docs/reference/cli.md)
list(SORT made)
list(SORT kept)

set(differences "")
foreach(file IN LISTS made kept)
  execute_process(COMMAND diff -u ${SOURCE_DIR}/${file} ${WORK_DIR}/${file}
    RESULT_VARIABLE result OUTPUT_VARIABLE diff ERROR_VARIABLE diff_error)
  if(NOT result EQUAL 0)
    string(APPEND differences "${diff}${diff_error}")
  endif()
endforeach()
if(NOT differences STREQUAL "")
  message(FATAL_ERROR "${differences}\nThe flags have changed. Write the pages anew:\n"
    "  ${PROGRAM} --write-reference ${SOURCE_DIR}")
endif()
list(LENGTH made n)
message(STATUS "${n} generated files are in step with the flags")
