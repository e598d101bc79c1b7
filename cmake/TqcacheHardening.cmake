# What makes a fault in a program that reads hostile files harder to use: tqcache_hardening, a part of
# tqcache_flags. tests/packaging/hardening.py reads the built program and checks each of them.

option(TQCACHE_HARDENING "Harden the library and the programs, where compiler and linker can" ON)
add_library(tqcache_hardening INTERFACE)
set(TQCACHE_HARDENING_FLAGS)
if(NOT TQCACHE_HARDENING OR NOT CMAKE_CXX_COMPILER_ID MATCHES "^(GNU|Clang|AppleClang)$")
  return()
endif()

include(CheckCXXCompilerFlag)
include(CheckLinkerFlag)

# Sanitizers find all that the rest is meant to stop, and replace the functions that it checks. They
# do not see an index beyond a std::span, nor one behind the last element of a std::vector.
if(TQCACHE_SANITIZE)
  target_compile_definitions(tqcache_hardening INTERFACE _GLIBCXX_ASSERTIONS)
  return()
endif()

# Bounds of operator[] and the like, in all modules but those of loops over values.
target_compile_definitions(tqcache_hardening INTERFACE
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:TQCACHE_HOT_LOOPS>>>:_GLIBCXX_ASSERTIONS>)
# The same of libc++, which released programs are linked with. zig sets it, too.
target_compile_options(tqcache_hardening INTERFACE
  $<$<AND:$<CXX_COMPILER_ID:Clang>,$<NOT:$<BOOL:$<TARGET_PROPERTY:TQCACHE_HOT_LOOPS>>>>:SHELL:-U_LIBCPP_HARDENING_MODE -D_LIBCPP_HARDENING_MODE=_LIBCPP_HARDENING_MODE_FAST>)

foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection=full)
  string(MAKE_C_IDENTIFIER "TQCACHE_HAS${flag}" has_flag)
  # clang only warns of what a target does not have.
  set(CMAKE_REQUIRED_FLAGS -Werror)
  check_cxx_compiler_flag(${flag} ${has_flag})
  unset(CMAKE_REQUIRED_FLAGS)
  if(${has_flag})
    target_compile_options(tqcache_hardening INTERFACE ${flag})
    list(APPEND TQCACHE_HARDENING_FLAGS ${flag})
  endif()
endforeach()

# The C library checks sizes only in optimized code. A distribution's own level is replaced.
string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
if("${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${build_type}}" MATCHES "-O([1-9sz]|fast)"
   AND NOT TQCACHE_COVERAGE)
  target_compile_options(tqcache_hardening INTERFACE -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3)
  list(APPEND TQCACHE_HARDENING_FLAGS -D_FORTIFY_SOURCE=3)
endif()

# All that follows is of ELF: Windows and macOS have it without being asked.
if(WIN32)
  return()
endif()
# Programs may be loaded anywhere. Libraries and objects of libraries have -fPIC instead.
target_compile_options(tqcache_hardening INTERFACE
  $<$<NOT:$<BOOL:$<TARGET_PROPERTY:POSITION_INDEPENDENT_CODE>>>:-fPIE>)
target_link_options(tqcache_hardening INTERFACE
  $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)
# Tables of addresses are read-only before the first line runs, and no stack is executable.
check_linker_flag(CXX "LINKER:-z,relro,-z,now,-z,noexecstack" TQCACHE_HAS_RELRO)
if(TQCACHE_HAS_RELRO)
  target_link_options(tqcache_hardening INTERFACE "LINKER:-z,relro,-z,now,-z,noexecstack")
endif()
