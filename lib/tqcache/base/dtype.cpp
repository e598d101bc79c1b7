#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tqcache/base/half.h"
#include "tqcache/base/processor.h"
#include "tqcache/bytes.h"

namespace tqcache {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"f32", "f16", "bf16"};

// Values are copied in chunks to aligned memory, because `packed` may have any alignment. Whole
// chunks are converted, whatever is wanted of the last one: compilers make vector code of a loop
// with a fixed number of rounds.
constexpr std::size_t kChunk = 64;

template <class Widen>
void load_halves(const std::byte* packed, std::span<float> values, Widen widen) {
  std::array<std::uint16_t, kChunk> halves = {};
  std::array<float, kChunk> wide;
  for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
    const std::size_t count = std::min(kChunk, values.size() - begin);
    std::memcpy(halves.data(), packed + 2 * begin, 2 * count);
    for (std::size_t i = 0; i < kChunk; ++i) wide[i] = widen(halves[i]);
    std::copy_n(wide.data(), count, values.data() + begin);
  }
}

template <class Round>
void store_halves(std::span<const float> values, std::byte* packed, Round round) {
  std::array<std::uint16_t, kChunk> halves;
  std::array<float, kChunk> wide = {};
  for (std::size_t begin = 0; begin < values.size(); begin += kChunk) {
    const std::size_t count = std::min(kChunk, values.size() - begin);
    std::copy_n(values.data() + begin, count, wide.data());
    for (std::size_t i = 0; i < kChunk; ++i) halves[i] = round(wide[i]);
    std::memcpy(packed + 2 * begin, halves.data(), 2 * count);
  }
}

#if defined(__x86_64__) && !defined(TQCACHE_SCALAR)

// F16C, with which every processor with AVX2 comes: its conversions have the bits of half.h, which
// a test of all f16 and of f32 at its borders checks.
#define TQC_F16C [[gnu::target("avx2,f16c")]]

bool has_f16c() {
  static const bool has = find_processor().avx2;
  return has;
}

// Returns how many values it has converted: all but at most seven.
TQC_F16C std::size_t load_f16_in_eights(const std::byte* packed, std::span<float> values) {
  std::size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + 2 * i));
    _mm256_storeu_ps(values.data() + i, _mm256_cvtph_ps(eight));
  }
  return i;
}

TQC_F16C std::size_t load_bf16_in_eights(const std::byte* packed, std::span<float> values) {
  std::size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(packed + 2 * i));
    const __m256i wide = _mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16);
    _mm256_storeu_ps(values.data() + i, _mm256_castsi256_ps(wide));
  }
  return i;
}

TQC_F16C std::size_t store_f16_in_eights(std::span<const float> values, std::byte* packed) {
  std::size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    const __m128i eight =
        _mm256_cvtps_ph(_mm256_loadu_ps(values.data() + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(packed + 2 * i), eight);
  }
  return i;
}

#else

bool has_f16c() { return false; }
std::size_t load_f16_in_eights(const std::byte*, std::span<float>) { return 0; }
std::size_t load_bf16_in_eights(const std::byte*, std::span<float>) { return 0; }
std::size_t store_f16_in_eights(std::span<const float>, std::byte*) { return 0; }

#endif

// Exponent bits, which are all set in a value that is not finite.
constexpr std::uint32_t exponent_mask(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return 0x7f800000;
    case Dtype::kF16:
      return 0x7c00;
    case Dtype::kBF16:
      return 0x7f80;
  }
  return 0;
}

// Index of the first word with all these bits.
template <class Word>
std::optional<std::size_t> find_masked(ByteView bytes, std::uint32_t mask) {
  for (std::size_t i = 0; i < bytes.size() / sizeof(Word); ++i) {
    Word word;
    std::memcpy(&word, bytes.data() + i * sizeof(Word), sizeof(Word));
    if ((word & mask) == mask) return i;
  }
  return std::nullopt;
}

}  // namespace

std::string_view dtype_name(Dtype dtype) { return kNames[static_cast<std::size_t>(dtype)]; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Dtype>(i);
  }
  return std::nullopt;
}

void load_f32(Dtype dtype, const std::byte* packed, std::span<float> values) {
  switch (dtype) {
    case Dtype::kF32:
      if (!values.empty()) std::memcpy(values.data(), packed, values.size_bytes());
      return;
    case Dtype::kF16: {
      const std::size_t done = has_f16c() ? load_f16_in_eights(packed, values) : 0;
      return load_halves(packed + 2 * done, values.subspan(done),
                         [](std::uint16_t half) { return f16_to_f32(half); });
    }
    case Dtype::kBF16: {
      const std::size_t done = has_f16c() ? load_bf16_in_eights(packed, values) : 0;
      return load_halves(packed + 2 * done, values.subspan(done),
                         [](std::uint16_t half) { return bf16_to_f32(half); });
    }
  }
}

std::optional<std::size_t> find_not_finite(Dtype dtype, ByteView packed) {
  const std::uint32_t mask = exponent_mask(dtype);
  return dtype == Dtype::kF32 ? find_masked<std::uint32_t>(packed, mask)
                              : find_masked<std::uint16_t>(packed, mask);
}

void store_f32(Dtype dtype, std::span<const float> values, std::byte* packed) {
  switch (dtype) {
    case Dtype::kF32:
      if (!values.empty()) std::memcpy(packed, values.data(), values.size_bytes());
      return;
    case Dtype::kF16: {
      const std::size_t done = has_f16c() ? store_f16_in_eights(values, packed) : 0;
      return store_halves(values.subspan(done), packed + 2 * done,
                          [](float value) { return f32_to_f16(value); });
    }
    case Dtype::kBF16:
      return store_halves(values, packed, [](float value) { return f32_to_bf16(value); });
  }
}

}  // namespace tqcache
