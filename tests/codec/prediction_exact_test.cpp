// Prediction across layers: the same values on every kind of CPU, this one and others.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "support/small_profile.h"
#include "tqcache/predict/predictor.h"
#include "tqcache/predict/symbol_path.h"

namespace tqcache::test {
namespace prediction_exact_test {

using predict::Predictor;

constexpr std::size_t kTokens = 37, kSinks = 2;
constexpr float kStep = 0.11f;

// The sections of a token block of symbols that came by chance: integers alone, so that every
// machine has the same bytes.
std::vector<Bytes> coded_sections(const predict::Profile& profile) {
  const auto dim = to_size(profile.channels());
  EvenNumbers numbers(77);
  predict::SymbolModels models;
  std::vector<std::uint8_t> activities(kTokens, 1);
  std::vector<std::uint32_t> sums(kTokens);
  std::vector<Bytes> sections;
  for (const predict::TensorProfile& tensor : profile.tensors) {
    std::vector<std::uint8_t> classes;
    for (const float each : tensor.deviation) classes.push_back(predict::class_of(each / kStep));
    Bytes& coded = sections.emplace_back();
    predict::RangeEncoder encoder(coded);
    for (std::size_t t = kSinks; t < kTokens; ++t) {
      std::vector<std::int16_t> symbols(dim);
      for (std::int16_t& each : symbols) {
        const float x = numbers.next();
        each = static_cast<std::int16_t>(x * x * x * x * x * 30);
      }
      predict::encode_symbols(encoder, models, classes, activities[t], symbols);
      sums[t] = predict::activity_of(symbols);
    }
    encoder.finish();
    predict::classify_activities(std::span(sums).subspan(kSinks),
                                 std::span(activities).subspan(kSinks));
  }
  return sections;
}

std::vector<std::int32_t> some_tokens() {
  std::vector<std::int32_t> ids;
  for (std::size_t t = 0; t < kTokens; ++t) ids.push_back(static_cast<std::int32_t>(t * 11 % 40));
  return ids;
}

// FNV-1a of the bits of all values.
std::uint64_t digest_of(std::span<const float> values) {
  std::uint64_t hash = 14695981039346656037u;
  for (const float value : values) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    for (unsigned shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ (bits >> shift & 0xff)) * 1099511628211u;
    }
  }
  return hash;
}

TEST(PredictionExact, DecodesTheSameOnEveryKindOfCpu) {
  const predict::Profile profile = small_profile();
  const Predictor predictor(profile, {});
  const auto dim = to_size(profile.channels());
  const std::vector<std::int32_t> ids = some_tokens();
  const std::vector<Bytes> sections = coded_sections(profile);
  const predict::BlockRope rope(predicted_identity().rope, profile.shape, 256, kTokens);
  for (const codec::Kernels* const kernels : codec::all_kernels()) {
    predict::BlockCoder coder(predictor, kStep, ids, kSinks, *kernels);
    std::vector<float> all;
    for (const Bytes& section : sections) {
      AlignedFloats rows(kTokens * dim);
      must(coder.decode(section, rows));
      if (coder.next_tensor() % 2 == 1) rope.rotate(rows);  // these were keys
      all.insert(all.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(digest_of(all), 1636427314075679996u) << kernels->name;
  }
}

}  // namespace prediction_exact_test
}  // namespace tqcache::test
