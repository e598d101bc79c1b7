# The target `docs`: the reference of the public headers, as HTML in the folder docs/html of the
# build. Warnings of Doxygen are errors.

set(TQCACHE_DOCS AUTO CACHE STRING "Make the target docs: AUTO (where doxygen is installed), ON or OFF")
set_property(CACHE TQCACHE_DOCS PROPERTY STRINGS AUTO ON OFF)
set(TQCACHE_HAS_DOCS OFF)
if(NOT TQCACHE_DOCS)
  return()
endif()

find_package(Doxygen QUIET)
find_package(Python3 QUIET COMPONENTS Interpreter)  # for the filter
if(NOT Doxygen_FOUND OR NOT Python3_FOUND)
  if(TQCACHE_DOCS STREQUAL "ON")
    message(FATAL_ERROR " missing packages, to be had by: apt-get install doxygen python3")
  endif()
  return()
endif()

set(DOXYGEN_PROJECT_BRIEF ${PROJECT_DESCRIPTION})
set(DOXYGEN_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/docs)
set(DOXYGEN_GENERATE_LATEX NO)
set(DOXYGEN_HAVE_DOT NO)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
set(DOXYGEN_WARN_IF_UNDOCUMENTED NO)  # a member whose name says all has no comment
set(DOXYGEN_EXTRACT_ALL YES)
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_MARKDOWN_SUPPORT NO)
set(DOXYGEN_SHOW_INCLUDE_FILES YES)
set(DOXYGEN_STRIP_FROM_PATH ${PROJECT_SOURCE_DIR}/lib/include)
set(DOXYGEN_STRIP_FROM_INC_PATH ${PROJECT_SOURCE_DIR}/lib/include)
set(DOXYGEN_INPUT_FILTER
  "${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/doxygen_filter.py")
doxygen_add_docs(docs ${PROJECT_SOURCE_DIR}/lib/include/tqcache
  COMMENT "Writing the reference of the public headers")
set(TQCACHE_HAS_DOCS ON)
