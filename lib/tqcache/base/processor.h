#pragma once
// base/processor.h: what an x86-64 processor can do, as it says itself.
//
// Kernels are chosen by instruction sets, never by model numbers, so that a processor that nobody
// knows yet gets the fastest ones that it can run. __builtin_cpu_supports() is not asked: that of
// clang 14 does not know F16C and AMX, and that of zig says no to everything.
//
// Source: Intel's manual, CPUID, leaves 1 and 7, and XGETBV for the registers that the system
// saves.

#include <cstdint>

#if defined(__x86_64__) && defined(_WIN32)
#include <intrin.h>  // which cpuid.h contradicts
#elif defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tqcache {

struct Processor {
  bool avx2 = false;      // with FMA and F16C
  bool avx_vnni = false;  // and AVX-VNNI, which processors without AVX-512 may have
  bool avx512 = false;    // and F, CD, BW, DQ, VL, VBMI and VNNI
  bool amx_bf16 = false;  // and tiles; whether the system lets a process use them is another matter
};

// What a processor answers; zero where it has no such leaf.
struct CpuidAnswers {
  std::uint32_t leaf1_ecx = 0;
  std::uint32_t leaf7_ebx = 0;
  std::uint32_t leaf7_ecx = 0;
  std::uint32_t leaf7_edx = 0;
  std::uint32_t leaf7_1_eax = 0;      // of its second part
  std::uint32_t saved_registers = 0;  // XCR0
};

constexpr Processor processor_of(const CpuidAnswers& answers) {
  const auto has = [](std::uint32_t flags, std::uint32_t wanted) {
    return (flags & wanted) == wanted;
  };
  constexpr std::uint32_t kFma = 1u << 12, kSavesRegisters = 1u << 27, kAvx = 1u << 28,
                          kF16c = 1u << 29;
  constexpr std::uint32_t kAvx2 = 1u << 5, kAvxVnni = 1u << 4;
  constexpr std::uint32_t kAvx512F = 1u << 16, kDq = 1u << 17, kCd = 1u << 28, kBw = 1u << 30,
                          kVl = 1u << 31;
  constexpr std::uint32_t kVbmi = 1u << 1, kVnni = 1u << 11;
  constexpr std::uint32_t kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  constexpr std::uint32_t kSavesYmm = 0x6, kSavesZmm = 0xe6, kSavesTiles = 0x60000;
  Processor found;
  found.avx2 = has(answers.leaf1_ecx, kFma | kSavesRegisters | kAvx | kF16c) &&
               has(answers.leaf7_ebx, kAvx2) && has(answers.saved_registers, kSavesYmm);
  found.avx_vnni = found.avx2 && has(answers.leaf7_1_eax, kAvxVnni);
  found.avx512 = found.avx2 && has(answers.leaf7_ebx, kAvx512F | kDq | kCd | kBw | kVl) &&
                 has(answers.leaf7_ecx, kVbmi | kVnni) && has(answers.saved_registers, kSavesZmm);
  found.amx_bf16 = found.avx512 && has(answers.leaf7_edx, kAmxBf16 | kAmxTile) &&
                   has(answers.saved_registers, kSavesTiles);
  return found;
}

#if defined(__x86_64__)

struct CpuidRegisters {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// False: the processor has no such leaf.
inline bool ask_cpuid(unsigned leaf, unsigned part, CpuidRegisters& out) {
#ifdef _WIN32
  int found[4] = {};
  __cpuid(found, 0);
  if (static_cast<unsigned>(found[0]) < leaf) return false;
  __cpuidex(found, static_cast<int>(leaf), static_cast<int>(part));
  out = {static_cast<unsigned>(found[0]), static_cast<unsigned>(found[1]),
         static_cast<unsigned>(found[2]), static_cast<unsigned>(found[3])};
  return true;
#else
  return __get_cpuid_count(leaf, part, &out.eax, &out.ebx, &out.ecx, &out.edx) != 0;
#endif
}

inline CpuidAnswers ask_processor() {
  CpuidAnswers answers;
  CpuidRegisters found;
  if (!ask_cpuid(1, 0, found)) return answers;
  answers.leaf1_ecx = found.ecx;
  constexpr unsigned kSavesRegisters = 1u << 27;  // XGETBV may be executed
  if ((found.ecx & kSavesRegisters) != 0) {
    unsigned high = 0;
    __asm__ volatile("xgetbv" : "=a"(answers.saved_registers), "=d"(high) : "c"(0));
  }
  if (!ask_cpuid(7, 0, found)) return answers;
  answers.leaf7_ebx = found.ebx;
  answers.leaf7_ecx = found.ecx;
  answers.leaf7_edx = found.edx;
  const bool has_second_part = found.eax >= 1;
  if (has_second_part && ask_cpuid(7, 1, found)) answers.leaf7_1_eax = found.eax;
  return answers;
}

// This processor.
inline Processor find_processor() { return processor_of(ask_processor()); }

#endif

// The instruction set that TQCACHE_ISA names; null if it is not set. This is the only variable that
// the library reads unasked: kernels are chosen once for the whole process, by its first call that
// needs one, and no argument reaches all of these.
const char* wanted_isa();

}  // namespace tqcache
