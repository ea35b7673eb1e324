// What the leak sanitizer should not report: memory that libraries lose, not we. HDF5 drops some on
// its way out of opening a damaged file.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }
