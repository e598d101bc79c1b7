# tqcache_unity(<target> [BY_FOLDER] [<file>...]): compiles the sources of a target in batches of at
# most TQCACHE_UNITY files, and the files named by themselves. Two thirds of the time that a small file
# takes to compile goes into the headers that its neighbors include as well. So the files of a target
# must not have equal names in their anonymous namespaces; with BY_FOLDER, those of one folder.
set(TQCACHE_UNITY 20 CACHE STRING "Source files that are compiled as one; 0: each by itself")
# With UBSan's checks of loads and stores, vector kernels take eight times as long to compile as with
# AddressSanitizer alone, which is what the preset "replay" does.
set(TQCACHE_KERNEL_OPTIONS "" CACHE STRING "Options for files of vector instructions alone")
function(tqcache_unity target)
  if(NOT TQCACHE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cpp$")
  list(SORT sources)
  set(folder_before "-")
  set(n_batches 0)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME)
    # Kernels of one instruction set each have the same names as those of the others.
    if(name MATCHES "_(avx2|avx512|neon|scalar)")
      set(options "$<$<CONFIG:Release>:-O3>")
      if(NOT name MATCHES "_scalar")
        list(APPEND options ${TQCACHE_KERNEL_OPTIONS})
      endif()
      set_source_files_properties(${source} PROPERTIES
        SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS "${options}")
      continue()
    # windows.h defines words that other files use.
    elseif(name MATCHES "_windows" OR name IN_LIST ARGN)
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      continue()
    endif()
    set(folder "all")
    if("BY_FOLDER" IN_LIST ARGN)
      get_filename_component(folder ${source} DIRECTORY)
    endif()
    if(NOT "${folder}" STREQUAL "${folder_before}" OR n_files EQUAL TQCACHE_UNITY)
      math(EXPR n_batches "${n_batches} + 1")
      set(n_files 0)
      set(folder_before "${folder}")
    endif()
    math(EXPR n_files "${n_files} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${n_batches})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
