// What the sanitizers do in a fuzz target, unless ASAN_OPTIONS says otherwise. A quarantine that
// stays in the processor's cache, new memory that is filled at its beginning only, and no
// backtraces of allocations make a run up to twice as fast; to look into a find, run it again with
// ASAN_OPTIONS=malloc_context_size=30:quarantine_size_mb=256.

extern "C" const char* __asan_default_options();

extern "C" const char* __asan_default_options() {
  return "malloc_context_size=0:quarantine_size_mb=1:thread_local_quarantine_size_kb=64:"
         "max_malloc_fill_size=64";
}
