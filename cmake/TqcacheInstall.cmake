# What `cmake --install` lays down: the library, its headers, the tool, and how CMake
# (find_package(tqcache)) and pkg-config find them.

include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tqcache)

install(TARGETS tqcache EXPORT tqcacheTargets)
if(TARGET tqcache_c)
  install(TARGETS tqcache_c EXPORT tqcacheTargets)
endif()
install(EXPORT tqcacheTargets NAMESPACE tqcache:: DESTINATION ${config_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/lib/include/tqcache
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
if(TARGET tqcache_cli)
  # In the build tree as well: CMake would leave room there for a longer one, an empty entry, which the
  # dynamic linker takes for the current folder.
  set_target_properties(tqcache_cli PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}" BUILD_WITH_INSTALL_RPATH ON)
  install(TARGETS tqcache_cli)
  # tools/reference.cpp generates these from the program's flags; a test keeps them in step.
  file(GLOB man_pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/man/*.1)
  install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  set(completions ${PROJECT_SOURCE_DIR}/completions)
  install(FILES ${completions}/tqcache.bash RENAME tqcache
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${completions}/_tqcache
    DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
  install(FILES ${completions}/tqcache.fish
    DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  # What transformers writes and reads caches with, from Python.
  install(PROGRAMS ${PROJECT_SOURCE_DIR}/tools/tqcache_hf.py DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# Debian wants the license under the name "copyright". NOTICE names the licenses of what is linked.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE RENAME copyright
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tqcache)
install(FILES ${PROJECT_SOURCE_DIR}/NOTICE ${PROJECT_SOURCE_DIR}/CHANGELOG.md
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tqcache)

get_target_property(library_type tqcache TYPE)
configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/tqcacheConfig.cmake.in ${PROJECT_BINARY_DIR}/tqcacheConfig.cmake
  INSTALL_DESTINATION ${config_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tqcacheConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)  # 0.x: every minor version may change the interface
install(FILES
  ${PROJECT_BINARY_DIR}/tqcacheConfig.cmake ${PROJECT_BINARY_DIR}/tqcacheConfigVersion.cmake
  DESTINATION ${config_dir})

# A program links a static libtqcache.a together with the (shared) libraries that it uses, so they
# are "Requires". Not "Requires.private" and `pkg-config --static`: that would ask for the private
# libraries of those libraries as well, such as those of libcurl, which nobody needs to have.
list(JOIN TQCACHE_LIBRARY_MODULES " " TQCACHE_PC_REQUIRES)
string(APPEND TQCACHE_PC_REQUIRES " tbb")
set(TQCACHE_PC_REQUIRES_FIELD Requires)
if(library_type STREQUAL "SHARED_LIBRARY")
  set(TQCACHE_PC_REQUIRES_FIELD Requires.private)
endif()
# The prefix is told relative to the .pc file, so that an installed tree can be moved.
file(RELATIVE_PATH TQCACHE_PC_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" TQCACHE_PC_PREFIX ${TQCACHE_PC_PREFIX})
configure_file(
  ${CMAKE_CURRENT_LIST_DIR}/tqcache.pc.in ${PROJECT_BINARY_DIR}/tqcache.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tqcache.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TARGET tqcache_c)
  configure_file(
    ${CMAKE_CURRENT_LIST_DIR}/tqcache-c.pc.in ${PROJECT_BINARY_DIR}/tqcache-c.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/tqcache-c.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
