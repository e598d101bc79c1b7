#pragma once
// base/processor.h: what an x86-64 processor can do, where __builtin_cpu_supports() does not know.
//
// The compiler's own library answers that function, and that of zig, which released programs are
// linked with, says no to everything. So this asks the processor: Intel's manual, CPUID, leaves 1
// and 7, and XGETBV for the registers that the system saves.

#if defined(__x86_64__)

#include <cpuid.h>

#include <cstdlib>  // __GLIBC__

// Whether the compiler's library cannot be asked.
#if defined(__clang__) && defined(__linux__) && !defined(__GLIBC__)
#define TQCACHE_ASKS_PROCESSOR 1
#endif

namespace tqcache {

struct Processor {
  bool avx2 = false;         // with FMA and F16C
  bool avx512 = false;       // and F, CD, BW, DQ and VL
  bool avx512_vbmi = false;  // and VBMI and VNNI
};

inline Processor find_processor() {
  Processor found;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kFma = 1u << 12, kSavesRegisters = 1u << 27, kAvx = 1u << 28, kF16c = 1u << 29;
  constexpr unsigned kFirst = kFma | kSavesRegisters | kAvx | kF16c;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kFirst) != kFirst) return found;
  unsigned saved = 0, saved_high = 0;
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(saved_high) : "c"(0));
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return found;
  constexpr unsigned kSavesYmm = 0x6, kSavesZmm = 0xe6;
  constexpr unsigned kAvx2 = 1u << 5;
  found.avx2 = (saved & kSavesYmm) == kSavesYmm && (ebx & kAvx2) != 0;
  // F, DQ, CD, BW, VL
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
  found.avx512 = found.avx2 && (saved & kSavesZmm) == kSavesZmm && (ebx & kAvx512) == kAvx512;
  constexpr unsigned kVbmiVnni = 1u << 1 | 1u << 11;
  found.avx512_vbmi = found.avx512 && (ecx & kVbmiVnni) == kVbmiVnni;
  return found;
}

}  // namespace tqcache

#endif  // __x86_64__
