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
  list(APPEND TQCACHE_LIBRARY_PACKAGES ${package})
endmacro()

# tqcache_package(<CMake package> <Debian package>...)
macro(tqcache_package name)
  find_package(${name} QUIET)
  if(NOT ${name}_FOUND)
    list(APPEND TQCACHE_MISSING_PACKAGES ${ARGN})
  endif()
endmacro()

# tqcache_store_engine_pkg(<engine> <target> <pkg-config module> <Debian package> [...]): the libraries of
# an engine of the store. TQCACHE_STORE_<engine> is AUTO, ON or OFF; with ON a missing one is an error.
# TQCACHE_HAS_STORE_<engine> tells whether it is built.
macro(tqcache_store_engine_pkg engine)
  set(TQCACHE_STORE_${engine} AUTO CACHE STRING "Build the store's engine ${engine}: AUTO, ON or OFF")
  set_property(CACHE TQCACHE_STORE_${engine} PROPERTY STRINGS AUTO ON OFF)
  set(TQCACHE_HAS_STORE_${engine} ${TQCACHE_STORE_${engine}})
  set(engine_libraries ${ARGN})
  while(TQCACHE_HAS_STORE_${engine} AND engine_libraries)
    list(POP_FRONT engine_libraries target module package)
    if(PkgConfig_FOUND)
      pkg_check_modules(${target} QUIET IMPORTED_TARGET GLOBAL ${module})
    endif()
    if(${target}_FOUND)
      list(APPEND TQCACHE_LIBRARY_TARGETS ${target})
      list(APPEND TQCACHE_LIBRARY_MODULES ${module})
      list(APPEND TQCACHE_LIBRARY_PACKAGES ${package})
    elseif(TQCACHE_STORE_${engine} STREQUAL "AUTO")
      set(TQCACHE_HAS_STORE_${engine} OFF)
    else()
      list(APPEND TQCACHE_MISSING_PACKAGES ${package})
    endif()
  endwhile()
endmacro()

# tqcache_blas(): how the model gets its BLAS, OpenBLAS.
#
# TQCACHE_BLAS=load: at run time, when a model first reads a prompt. Debian's variant with POSIX
# threads is tried first, then TQCACHE_BLAS_LIBRARY, the file that was found here, then what the
# dynamic linker finds. A variant without threads is the last choice: its products take turns. Only
# the file is needed, no header. TQCACHE_BLAS=link: it is linked with the library, as a self-contained
# package wants it. TQCACHE_BLAS=none: the model multiplies by itself
# (model/linear/plain_products.h), as it does if there is none at run time.
macro(tqcache_blas)
  set(TQCACHE_BLAS load CACHE STRING "How OpenBLAS is reached: load (at run time), link or none")
  set_property(CACHE TQCACHE_BLAS PROPERTY STRINGS load link none)
  if(TQCACHE_BLAS STREQUAL "link")
    tqcache_library_pkg(OPENBLAS openblas libopenblas-dev)
    set(TQCACHE_BLAS_LIBRARIES PkgConfig::OPENBLAS)
    set(TQCACHE_BLAS_DEFINITIONS TQCACHE_BLAS_LINKED)
  elseif(TQCACHE_BLAS STREQUAL "load")
    set(blas_dir /usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
    find_file(TQCACHE_BLAS_LIBRARY NAMES libopenblasp.so.0 libopenblas.so.0 libopenblas.dylib
      PATHS ${blas_dir}/openblas-pthread ${blas_dir}/openblas-openmp ${blas_dir} /usr/lib64 /usr/lib
            /usr/local/lib /opt/homebrew/opt/openblas/lib ${blas_dir}/openblas-serial
      DOC "The OpenBLAS that is loaded at run time" NO_DEFAULT_PATH)
    mark_as_advanced(TQCACHE_BLAS_LIBRARY)
    if(NOT TQCACHE_BLAS_LIBRARY)
      list(APPEND TQCACHE_MISSING_PACKAGES libopenblas0-pthread)
    endif()
    set(TQCACHE_BLAS_LIBRARIES ${CMAKE_DL_LIBS})
    set(blas_files ${blas_dir}/openblas-pthread/libopenblas.so.0 ${TQCACHE_BLAS_LIBRARY}
      libopenblasp.so.0 libopenblas.so.0)
    list(JOIN blas_files "\",\"" blas_files)
    set(TQCACHE_BLAS_DEFINITIONS TQCACHE_BLAS_FILES="${blas_files}")
  elseif(TQCACHE_BLAS STREQUAL "none")
    set(TQCACHE_BLAS_LIBRARIES "")
    set(TQCACHE_BLAS_DEFINITIONS "")
  else()
    message(FATAL_ERROR "TQCACHE_BLAS is ${TQCACHE_BLAS}; it has to be load, link or none")
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
tqcache_blas()
tqcache_library_pkg(LIBZIP libzip libzip-dev)
tqcache_library_pkg(ZLIB zlib zlib1g-dev)
tqcache_library_pkg(FMT fmt libfmt-dev)
tqcache_library_pkg(SQLITE sqlite3 libsqlite3-dev)
tqcache_store_engine_pkg(REDIS HIREDIS hiredis libhiredis-dev)
tqcache_store_engine_pkg(S3 CURL libcurl libcurl4-openssl-dev EXPAT expat libexpat1-dev)
# Lines typed at a terminal are edited with libedit, in `chat`. Without it the terminal's own keys
# remain.
set(TQCACHE_LINE_EDITING ON CACHE BOOL "Edit typed lines with libedit")
if(TQCACHE_LINE_EDITING)
  tqcache_pkg(LIBEDIT libedit libedit-dev)
endif()
# `tqcache serve` is a part of the program, not of the library. libcurl is its client.
set(TQCACHE_SERVE AUTO CACHE STRING "Build `tqcache serve`: AUTO, ON or OFF")
set_property(CACHE TQCACHE_SERVE PROPERTY STRINGS AUTO ON OFF)
set(TQCACHE_HAS_SERVE OFF)
if(TQCACHE_SERVE AND PkgConfig_FOUND)
  pkg_check_modules(CURL QUIET IMPORTED_TARGET GLOBAL libcurl)
  if(CURL_FOUND)
    set(TQCACHE_HAS_SERVE ON)
  endif()
endif()
if(TQCACHE_SERVE AND NOT TQCACHE_SERVE STREQUAL "AUTO" AND NOT TQCACHE_HAS_SERVE)
  list(APPEND TQCACHE_MISSING_PACKAGES libcurl4-openssl-dev)
endif()
find_package(Threads REQUIRED)  # a static TBB asks for it
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
# `cpack -G DEB` needs both; they are not needed to build (Debian package: dpkg-dev).
find_program(DPKG_DEB_EXECUTABLE dpkg-deb)
find_program(SHLIBDEPS_EXECUTABLE dpkg-shlibdeps)
mark_as_advanced(DPKG_DEB_EXECUTABLE SHLIBDEPS_EXECUTABLE)
if(TQCACHE_BUILD_BENCH)
  tqcache_package(benchmark libbenchmark-dev)
endif()

if(TQCACHE_MISSING_PACKAGES)
  list(JOIN TQCACHE_MISSING_PACKAGES " " packages)
  # A message that begins with a space is not cut into lines.
  message(FATAL_ERROR " missing packages, to be had by: apt-get install ${packages}")
endif()
