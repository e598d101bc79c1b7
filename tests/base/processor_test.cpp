#include "tqcache/base/processor.h"

#include <gtest/gtest.h>

namespace tqcache {
namespace processor_test {

// What processors answer, from their manuals. Model numbers are not among the answers that count.
constexpr std::uint32_t kAvxFmaF16c = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
constexpr std::uint32_t kAvx2 = 1u << 5;
constexpr std::uint32_t kAvx512Skylake = 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31;
constexpr std::uint32_t kVbmiVnni = 1u << 1 | 1u << 11;
constexpr std::uint32_t kAmx = 1u << 22 | 1u << 24 | 1u << 25;
constexpr std::uint32_t kSse = 0x3, kYmm = 0x7, kZmm = 0xe7, kTiles = 0x600e7;

struct Case {
  const char* name;
  CpuidAnswers answers;
  Processor expected;
};

constexpr Case kCases[] = {
    {"nothing at all", {}, {}},
    {"SSE4 (Nehalem)", {1u << 19, 0, 0, 0, 0, kSse}, {}},
    {"AVX without AVX2 (Sandy Bridge)", {1u << 27 | 1u << 28, 0, 0, 0, 0, kYmm}, {}},
    {"AVX2 (Haswell, Zen 1 to 3)", {kAvxFmaF16c, kAvx2, 0, 0, 0, kYmm}, {.avx2 = true}},
    {"AVX2 with VNNI (Alder Lake)",
     {kAvxFmaF16c, kAvx2, 0, 0, 1u << 4, kYmm},
     {.avx2 = true, .avx_vnni = true}},
    {"AVX-512 without VBMI and VNNI (Skylake)",
     {kAvxFmaF16c, kAvx2 | kAvx512Skylake, 0, 0, 0, kZmm},
     {.avx2 = true}},
    {"AVX-512 (Ice Lake, Zen 4 and 5)",
     {kAvxFmaF16c, kAvx2 | kAvx512Skylake, kVbmiVnni, 0, 0, kZmm},
     {.avx2 = true, .avx512 = true}},
    {"AMX (Sapphire Rapids)",
     {kAvxFmaF16c, kAvx2 | kAvx512Skylake, kVbmiVnni, kAmx, 0, kTiles},
     {.avx2 = true, .avx512 = true, .amx_bf16 = true}},
    {"all flags there are",
     {~0u, ~0u, ~0u, ~0u, ~0u, ~0u},
     {.avx2 = true, .avx_vnni = true, .avx512 = true, .amx_bf16 = true}},
    {"AVX-512 that the system does not save",
     {kAvxFmaF16c, kAvx2 | kAvx512Skylake, kVbmiVnni, kAmx, 0, kYmm},
     {.avx2 = true}},
    {"tiles that the system does not save",
     {kAvxFmaF16c, kAvx2 | kAvx512Skylake, kVbmiVnni, kAmx, 0, kZmm},
     {.avx2 = true, .avx512 = true}},
    {"AVX2 whose registers the system does not save",
     {kAvxFmaF16c & ~(1u << 27), kAvx2, 0, 0, 0, 0},
     {}},
};

TEST(Processor, IsKnownByItsInstructionSets) {
  for (const Case& each : kCases) {
    const Processor found = processor_of(each.answers);
    EXPECT_EQ(found.avx2, each.expected.avx2) << each.name;
    EXPECT_EQ(found.avx_vnni, each.expected.avx_vnni) << each.name;
    EXPECT_EQ(found.avx512, each.expected.avx512) << each.name;
    EXPECT_EQ(found.amx_bf16, each.expected.amx_bf16) << each.name;
  }
}

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
TEST(Processor, IsWhatTheCompilersLibrarySays) {
  __builtin_cpu_init();
  const Processor found = find_processor();
  EXPECT_EQ(found.avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(found.avx512,
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni"));
}
#endif

}  // namespace processor_test
}  // namespace tqcache
