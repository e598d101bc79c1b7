// What the sanitizers do in a fuzz target, unless ASAN_OPTIONS says otherwise. Short backtraces of
// allocations and a small quarantine make a run about a third faster; to look into a find, run it
// again with ASAN_OPTIONS=malloc_context_size=30.

extern "C" const char* __asan_default_options();

extern "C" const char* __asan_default_options() {
  return "malloc_context_size=2:quarantine_size_mb=16";
}
