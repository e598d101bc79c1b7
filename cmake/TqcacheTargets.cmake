# One object library a module, with its flags; lib/tqcache joins them to the library "tqcache".

# What every target of this project is compiled with.
add_library(tqcache_flags INTERFACE)
target_compile_options(tqcache_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow
  # g++ 12 warns of overlapping copies in std::string's operator+ (gcc.gnu.org/PR105651), of
  # overflows in std::vector's insert (PR105329) and of uninitialized values in std::variant and
  # std::optional (PR80635) where there are none.
  # In a unity batch a .cpp file is an included file to it, whose anonymous namespace is nobody's
  # business (-Wsubobject-linkage).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-stringop-overflow;-Wno-maybe-uninitialized>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>
  # __COUNTER__ (tqcache/error.h) is older than the standard that it will be a part of.
  $<$<AND:$<CXX_COMPILER_ID:Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,22>>:-Wno-c2y-extensions>
  # libstdc++ 12's stable_sort() calls what it deprecates, and clang says so. g++ tells of our own.
  $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>
  # Fused multiply-adds would make the bytes of an encoded cache depend on the compiler and CPU.
  -ffp-contract=off
  # How much memory g++ takes before it collects garbage, in KB. By default that takes a fifth of its
  # time; a batch of the program's files takes 1.3 GB with this value, and 1.0 GB without it.
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1500000>
  $<$<BOOL:${TQCACHE_WERROR}>:-Werror>)
target_link_libraries(tqcache_flags INTERFACE tqcache_hardening)
set(TQCACHE_LINKER "" CACHE STRING
    "The linker, e.g. lld, where it is installed; empty: the compiler's own")
if(TQCACHE_LINKER)
  include(CheckLinkerFlag)
  check_linker_flag(CXX -fuse-ld=${TQCACHE_LINKER} TQCACHE_HAS_LINKER)
  if(TQCACHE_HAS_LINKER)
    target_link_options(tqcache_flags INTERFACE -fuse-ld=${TQCACHE_LINKER})
  endif()
endif()
if(TQCACHE_SANITIZE)
  target_compile_options(tqcache_flags INTERFACE
    -fsanitize=${TQCACHE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer
    # clang's check of vtables probes memory with write(), which tests make fail on purpose.
    -fno-sanitize=vptr)
  target_link_options(tqcache_flags INTERFACE -fsanitize=${TQCACHE_SANITIZE})
endif()
if(TQCACHE_COVERAGE)
  target_link_options(tqcache_flags INTERFACE --coverage)
endif()
if(WIN32)
  # off_t has 64 bits, and windows.h neither macros min and max nor what few use.
  target_compile_definitions(tqcache_flags INTERFACE
    _FILE_OFFSET_BITS=64 NOMINMAX WIN32_LEAN_AND_MEAN UNICODE)
endif()
if(TQCACHE_SCALAR)
  target_compile_definitions(tqcache_flags INTERFACE TQCACHE_SCALAR)
endif()

# tqcache_count_branches(<target>): what docs/develop/coverage.md measures. All else is built as
# usual, since the tests would take ten times as long with counters in every loop of a codec.
function(tqcache_count_branches target)
  if(TQCACHE_COVERAGE)
    target_compile_options(${target} PRIVATE
      --coverage -O0 -fno-inline -fprofile-update=atomic)
  endif()
endfunction()

# tqcache_module(<name> [BY_FOLDER] [WITHOUT <regex>...] [APART <file>...] [MODULES <module>...] [PRIVATE <target>...])
#
# All .cpp files below the current folder, but those whose path matches WITHOUT. They are compiled in
# unity batches (BY_FOLDER: those of each folder apart); the files APART each by itself. MODULES are
# the modules this one may include (docs/explain/design.md holds the table); PRIVATE are libraries
# that users of the library need not see.
function(tqcache_module name)
  cmake_parse_arguments(ARG "BY_FOLDER" "" "WITHOUT;APART;MODULES;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cpp)
  foreach(pattern IN LISTS ARG_WITHOUT)
    list(FILTER sources EXCLUDE REGEX ${pattern})
  endforeach()
  add_library(tqcache_${name} OBJECT ${sources})
  target_include_directories(tqcache_${name} PUBLIC
    ${PROJECT_SOURCE_DIR}/lib/include ${PROJECT_SOURCE_DIR}/lib)
  target_link_libraries(tqcache_${name} PRIVATE tqcache_flags ${ARG_PRIVATE})
  set_target_properties(tqcache_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  # With -O2 byte planes take twice as long, saving an archive 1.4 times, affine scores 1.9 times.
  if(name MATCHES "^(base|cache|codec|format|model|predict)$")
    target_compile_options(tqcache_${name} PRIVATE ${TQCACHE_HOT_OPTIONS})
  endif()
  # Loops over values have no assertions of libstdc++, as they would check every index
  # (cmake/TqcacheHardening.cmake). What that would cost has not been measured.
  if(name MATCHES "^(codec|model|predict)$")
    set_target_properties(tqcache_${name} PROPERTIES TQCACHE_HOT_LOOPS ON)
  endif()
  set(by_folder)
  if(ARG_BY_FOLDER)
    set(by_folder BY_FOLDER)
  endif()
  tqcache_unity(tqcache_${name} ${by_folder} ${ARG_APART})
  foreach(module IN LISTS ARG_MODULES)
    add_dependencies(tqcache_${name} tqcache_${module})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY TQCACHE_MODULES ${name})
  set_property(GLOBAL APPEND PROPERTY TQCACHE_PRIVATE_LIBRARIES ${ARG_PRIVATE})
endfunction()

# tqcache_schema(<name>): the command that makes <name>_generated.h of schema/<name>.fbs in the build
# folder `generated`, a variable that the caller gets. It takes the flatc that belongs to the installed
# headers: they refuse any other version's.
function(tqcache_schema name)
  set(schema ${PROJECT_SOURCE_DIR}/schema/${name}.fbs)
  set(generated ${CMAKE_CURRENT_BINARY_DIR}/generated)
  add_custom_command(
    OUTPUT ${generated}/${name}_generated.h
    COMMAND ${FLATC_EXECUTABLE} --cpp --scoped-enums -o ${generated} ${schema}
    DEPENDS ${schema}
    COMMENT "Generating ${name}_generated.h"
    VERBATIM)
  set(generated ${generated} PARENT_SCOPE)
endfunction()

# tqcache_test(<name> SOURCES <file>... [LIBRARIES <target>...] [MODULE <module>] [READING | REPLAY]):
# a GoogleTest program, each of whose tests is a ctest test. MODULE: the only one that it is linked
# with, so that it can be built alone. READING: of what reads bytes that nobody vouches for, which
# tools/check.sh --asan builds and runs. REPLAY: which --replay does, too.
function(tqcache_test name)
  cmake_parse_arguments(ARG "READING;REPLAY" "MODULE" "SOURCES;APART;LIBRARIES" ${ARGN})
  set(library tqcache_internal)
  if(ARG_MODULE)
    set(library tqcache_${ARG_MODULE})
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${library} tqcache_flags tqcache_test_support
                        GTest::gmock GTest::gtest_main ${ARG_LIBRARIES})
  target_compile_options(${name} PRIVATE ${TQCACHE_TEST_OPTIONS})
  target_precompile_headers(${name} REUSE_FROM tqcache_test_headers)
  tqcache_unity(${name} ${ARG_APART})
  set(labels)
  if(ARG_READING)
    add_dependencies(reading_tests ${name})
    set(labels LABELS reading)
  elseif(ARG_REPLAY)
    add_dependencies(reading_tests ${name})
    add_dependencies(replay_tests ${name})
    set(labels LABELS replay)
  endif()
  gtest_discover_tests(${name} TEST_PREFIX ${name}. DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT 300 ${labels})
endfunction()
