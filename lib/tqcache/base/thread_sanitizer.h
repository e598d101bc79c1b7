#pragma once
// base/thread_sanitizer.h: whether this is compiled for ThreadSanitizer, by g++ or by clang.

#if defined(__SANITIZE_THREAD__)
#define TQC_THREAD_SANITIZER 1
#elif defined(__has_feature)
#define TQC_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define TQC_THREAD_SANITIZER 0
#endif
