#pragma once
// tests/support/sanitized.h: whether the test is compiled with a sanitizer, which takes memory of
// its own and several times as long.

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TQCACHE_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TQCACHE_TEST_SANITIZED 1
#endif
#endif
