# Finds every library. What is missing is told all at once, in one line that can be pasted into a
# shell: the Debian packages to install.

set(TQCACHE_MISSING_PACKAGES "")

# tqcache_pkg(<target> <pkg-config module> <Debian package>): PkgConfig::<target>
macro(tqcache_pkg target module package)
  if(PkgConfig_FOUND)
    pkg_check_modules(${target} QUIET IMPORTED_TARGET GLOBAL ${module})
  endif()
  if(NOT ${target}_FOUND)
    list(APPEND TQCACHE_MISSING_PACKAGES ${package})
  endif()
endmacro()

# tqcache_library_pkg(...): the same for what the library itself is linked with, which its users have
# to find as well (TqcacheInstall.cmake).
macro(tqcache_library_pkg target module package)
  tqcache_pkg(${target} ${module} ${package})
  list(APPEND TQCACHE_LIBRARY_TARGETS ${target})
  list(APPEND TQCACHE_LIBRARY_MODULES ${module})
endmacro()

# tqcache_package(<CMake package> <Debian package>...)
macro(tqcache_package name)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    list(APPEND TQCACHE_MISSING_PACKAGES ${ARGN})
  endif()
endmacro()

find_package(PkgConfig QUIET)
if(NOT PkgConfig_FOUND)
  list(APPEND TQCACHE_MISSING_PACKAGES pkg-config)
endif()
tqcache_library_pkg(ZSTD libzstd libzstd-dev)
tqcache_library_pkg(XXHASH libxxhash libxxhash-dev)
tqcache_library_pkg(CRYPTO libcrypto libssl-dev)
tqcache_library_pkg(PCRE2 libpcre2-8 libpcre2-dev)
tqcache_library_pkg(UTF8PROC libutf8proc libutf8proc-dev)
tqcache_library_pkg(OPENBLAS openblas libopenblas-dev)
tqcache_library_pkg(LIBZIP libzip libzip-dev)
tqcache_library_pkg(ZLIB zlib zlib1g-dev)
tqcache_library_pkg(FMT fmt libfmt-dev)
tqcache_pkg(LIBEDIT libedit libedit-dev)
tqcache_package(TBB libtbb-dev)
tqcache_package(nlohmann_json nlohmann-json3-dev)
tqcache_package(CLI11 libcli11-dev)

find_path(FLATBUFFERS_INCLUDE_DIR flatbuffers/flatbuffers.h)
if(NOT FLATBUFFERS_INCLUDE_DIR)
  list(APPEND TQCACHE_MISSING_PACKAGES libflatbuffers-dev)
endif()
find_program(FLATC_EXECUTABLE flatc)
if(NOT FLATC_EXECUTABLE)
  list(APPEND TQCACHE_MISSING_PACKAGES flatbuffers-compiler)
endif()
mark_as_advanced(FLATBUFFERS_INCLUDE_DIR FLATC_EXECUTABLE)

if(TQCACHE_BUILD_TESTS)
  tqcache_package(GTest libgtest-dev libgmock-dev)
  if(GTest_FOUND AND NOT TARGET GTest::gmock)
    list(APPEND TQCACHE_MISSING_PACKAGES libgmock-dev)
  endif()
endif()
if(TQCACHE_BUILD_BENCH)
  tqcache_package(benchmark libbenchmark-dev)
endif()

if(TQCACHE_MISSING_PACKAGES)
  list(JOIN TQCACHE_MISSING_PACKAGES " " packages)
  # A message that begins with a space is not cut into lines.
  message(FATAL_ERROR " missing packages, to be had by: apt-get install ${packages}")
endif()
