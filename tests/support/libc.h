#pragma once
// support/libc.h: for tests that stand in the place of functions of the C library.

#include <features.h>

// glibc declares that most of its functions do not throw, musl does not.
#ifdef __GLIBC__
#define TQCACHE_LIBC_NOEXCEPT noexcept
#else
#define TQCACHE_LIBC_NOEXCEPT
#endif
