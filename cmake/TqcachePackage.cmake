# `cpack -G DEB` in the build folder: one Debian package with the program, its man pages and
# completions, the library and its headers. `cpack -G TGZ` makes an archive of the same files.

set(CPACK_PACKAGE_NAME tqcache)
set(CPACK_PACKAGE_VENDOR "tqcache")
set(CPACK_PACKAGE_CONTACT "The tqcache developers <tqcache@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY
  "Save, shrink, verify and move the prompt caches of language models")
set(CPACK_PACKAGE_DESCRIPTION
"tqcache keeps prompt caches (KV caches) of language models in checksummed, versioned files,
about four times smaller than in memory. It reads and writes the cache files of llama.cpp,
mlx-lm and transformers, shares caches in stores, and resumes from them with its own
reference decoder.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGE_FILE_NAME tqcache-${PROJECT_VERSION}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
# dpkg-shlibdeps finds the libraries that the program is linked with.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib/tqcache)
if(library_type STREQUAL "STATIC_LIBRARY")
  # A program that links the static library links what the library uses as well.
  list(JOIN TQCACHE_LIBRARY_PACKAGES ", " CPACK_DEBIAN_PACKAGE_SUGGESTS)
  string(APPEND CPACK_DEBIAN_PACKAGE_SUGGESTS ", libtbb-dev")
elseif(library_type STREQUAL "SHARED_LIBRARY")
  set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)  # and the trigger of ldconfig
endif()
# transformers reads and writes caches with tqcache_hf.py.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "python3")

include(CPack)
