// python/glibc_2_28.c: functions of newer C libraries for programs that run with glibc 2.28
//
// Headers and static libraries of Debian 12 expect them. python/portable_libraries.sh adds them to
// the part of the C library that is linked statically.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

// Weak: libbsd, which libedit needs, has arc4random too.
#define HIDDEN __attribute__((weak, visibility("hidden")))

// 2.32. "Maybe several threads": libstdc++ then counts with atomic operations.
HIDDEN char __libc_single_threaded = 0;

// 2.36.
HIDDEN void arc4random_buf(void* bytes, size_t size) {
  char* at = bytes;
  while (size > 0) {
    const ssize_t n = getrandom(at, size, 0);
    if (n > 0) {
      at += n;
      size -= (size_t)n;
    } else if (errno != EINTR) {
      abort();  // as glibc does
    }
  }
}

HIDDEN uint32_t arc4random(void) {
  uint32_t value;
  arc4random_buf(&value, sizeof value);
  return value;
}

// 2.30. Takes the C library's own where there is one. Otherwise it waits as long by the other clock,
// as libstdc++ does where it was built for an older C library; its caller checks the time again.
HIDDEN int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const struct timespec* until) {
  typedef int Wait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  Wait* const newer = (Wait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
  if (newer) return newer(condition, mutex, clock, until);
  struct timespec now, real;
  if (clock_gettime(clock, &now) || clock_gettime(CLOCK_REALTIME, &real)) return EINVAL;
  real.tv_sec += until->tv_sec - now.tv_sec;
  real.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (real.tv_nsec < 0) {
    real.tv_nsec += 1000000000;
    --real.tv_sec;
  } else if (real.tv_nsec >= 1000000000) {
    real.tv_nsec -= 1000000000;
    ++real.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &real);
}
