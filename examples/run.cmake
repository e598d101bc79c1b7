# Runs the examples one after another on the bundled model.
cmake_minimum_required(VERSION 3.25)

file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})
set(model ${SOURCE_DIR}/models/demo/tqcache-demo-17m.q8_0.gguf)
file(READ ${SOURCE_DIR}/models/demo/alice-excerpt.txt excerpt LIMIT 2400)
string(REPLACE ";" "," excerpt "${excerpt}")  # CMake's lists

# expect(<regular expression> <command>...): it succeeds, and its output matches.
function(expect wanted)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${WORK_DIR}
    OUTPUT_VARIABLE out COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
  if(NOT out MATCHES "${wanted}")
    message(FATAL_ERROR "expected ${wanted} in:\n${out}")
  endif()
endfunction()

# A cache to begin with, and one of llama.cpp.
file(WRITE ${WORK_DIR}/text.txt "${excerpt}")
expect("" ${PROGRAM} prefill -m ${model} --file text.txt -o text.kv)
set(state ${SOURCE_DIR}/tests/data/llama.cpp/alice_f16.ggsn)

expect("[0-9]+ tokens, [0-9]+ bytes, 0 damaged" ${EXAMPLES}/01_convert text.kv text.tqkv k4v3)
expect("." ${EXAMPLES}/02_resume ${model} text.tqkv " Then Alice" more.tqkv)
expect("more.tqkv" ${PROGRAM} info more.tqkv)
expect("^0 of [0-9]+ tokens" ${EXAMPLES}/03_store ${model} dir:store "${excerpt}")
expect("^[1-9][0-9]* of [0-9]+ tokens" ${EXAMPLES}/03_store ${model} dir:store "${excerpt}")
expect("^511 tokens\n$" ${EXAMPLES}/04_llama_to_hf ${model} ${state} alice.safetensors)
expect("." ${PROGRAM} info alice.safetensors)
