# What the two consumer tests share: the README's example as a file, and running the programs.

# The README's first C++ block, so that what a reader copies is what is compiled here.
function(extract_readme_example readme out)
  file(READ ${readme} text)
  string(FIND "${text}" "```cpp\n" begin)
  if(begin EQUAL -1)
    message(FATAL_ERROR "${readme} has no C++ example")
  endif()
  math(EXPR begin "${begin} + 7")
  string(SUBSTRING "${text}" ${begin} -1 text)
  string(FIND "${text}" "```" end)
  string(SUBSTRING "${text}" 0 ${end} text)
  file(WRITE ${out} "${text}")
endfunction()

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Writes a small cache, lets the README's example convert it, and checks what came out.
function(run_consumer small_cache readme_example work_dir)
  file(REMOVE ${work_dir}/small.kv ${work_dir}/small.tqkv)
  run(${small_cache} write ${work_dir}/small.kv)
  run(${readme_example} ${work_dir}/small.kv ${work_dir}/small.tqkv)
  run(${small_cache} check ${work_dir}/small.tqkv)
endfunction()
