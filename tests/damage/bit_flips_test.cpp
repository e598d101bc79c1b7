// Every bit of a file is held by something: whichever flips, it is found, and nothing crashes.

#include <functional>

#include "damage.h"
#include "support/long_tests.h"

namespace tqcache::test {
namespace bit_flips_test {

// The smallest files of every mode of the codec: a packed token block needs 256 tokens.
Bytes smallest_of_mode(codec::Mode mode) {
  CacheBuilder builder(256);
  builder.identity().rope.n_dims = 32;
  cache::TensorPlan plan;
  plan.codec = {
      .mode = mode, .bits = 2, .outlier_channels = 8, .outlier_bits = 3, .group_size = 32};
  plan.n_sinks = 1;
  return file_of(builder.tensors({1, 32}, Dtype::kF16, plan, Dtype::kF16, plan).build());
}

// All kinds of layers in two tokens, and something that can be compressed.
Bytes smallest_mixed(Compression compression) {
  cache::Cache cache =
      CacheBuilder(2).dense({1, 8}, Dtype::kBF16).turbo({1, 32}, 4, 3).arrays().build();
  cache::StateLayer zeros;
  zeros.arrays.push_back({"zeros", Dtype::kF32, {50}, AlignedBytes(200)});
  cache.layers.emplace_back(std::move(zeros));
  return file_of(cache, compression);
}

using Bits = std::function<unsigned(std::size_t offset)>;

unsigned all_bits(std::size_t) { return 0xff; }
unsigned one_bit(std::size_t i) { return 1u << (i % 8); }

// What `outside` says, but of the bytes of sections one bit of every `step`th: to go through all of
// them takes long, and one is like the other.
Bits fewer_in_sections(const Bytes& file, std::size_t step, Bits outside) {
  std::vector<bool> in_section(file.size());
  for (const SectionInfo& section : info_of(file).sections) {
    std::fill_n(in_section.begin() + static_cast<std::ptrdiff_t>(section.file_offset),
                section.stored_bytes, true);
  }
  return [=](std::size_t i) -> unsigned {
    if (!in_section[i]) return outside(i);
    return i % step == 0 ? one_bit(i / step) : 0;
  };
}

// Verify is run with each of `bits` flipped, one at a time, and a load with those of them that are
// in `loaded` too: for a packed file it takes several times as long.
void expect_flips_found(Bytes file, const Bits& bits, const Bits& loaded) {
  ASSERT_FALSE(is_reported(file));
  const cache::Cache original = must(load_view(file));
  for (std::size_t i = 0; i < file.size(); ++i) {
    for (unsigned flip = 1; flip < 256; flip <<= 1) {
      if ((bits(i) & flip) == 0) continue;
      const std::string what = "byte " + std::to_string(i) + " flip " + std::to_string(flip);
      file[i] ^= std::byte(flip);
      ASSERT_TRUE(is_reported(file)) << what;
      if ((loaded(i) & flip) != 0) expect_not_another(file, original, what);
      file[i] ^= std::byte(flip);
    }
  }
}

TEST(FlippedBit, OfTheSmallestGoldenFilesIsFound) {
  expect_flips_found(golden("empty"), all_bits, all_bits);
  expect_flips_found(golden("dense"), all_bits, one_bit);
}

TEST(FlippedBit, OfAllKindsOfLayersIsFound) {
  expect_flips_found(smallest_mixed(Compression::kNone), all_bits, all_bits);
  expect_flips_found(smallest_mixed(Compression::kZstd), all_bits, all_bits);
  expect_flips_found(smallest_mixed(Compression::kPlanes), all_bits, all_bits);
}

TEST(FlippedBit, OfPlanesIsFound) {
  const Bytes file =
      file_of(CacheBuilder(20).dense({1, 8}, Dtype::kBF16).build(), Compression::kPlanes);
  ASSERT_EQ(info_of(file).sections[0].compression, Compression::kPlanes);
  expect_flips_found(file, all_bits, all_bits);
}

class FlippedBitOfMode : public testing::TestWithParam<codec::Mode> {};

TEST_P(FlippedBitOfMode, IsFound) {
  const Bytes file = smallest_of_mode(GetParam());
  expect_flips_found(file, fewer_in_sections(file, 1, all_bits), one_bit);
}

INSTANTIATE_TEST_SUITE_P(Of, FlippedBitOfMode,
                         testing::Values(codec::Mode::kMse, codec::Mode::kProd, codec::Mode::kMixed,
                                         codec::Mode::kAffine));

class FlippedBitOfGolden : public testing::TestWithParam<std::string> {};

TEST_P(FlippedBitOfGolden, IsFoundInEveryByteOutsideOfSectionsAndSomeInThem) {
  const Bytes file = golden(GetParam());
  const Bits bits = fewer_in_sections(file, 31, one_bit);
  // Files take long to load: every byte with tools/check.sh --long.
  const std::size_t step = runs_long_tests() ? 1 : 1 + file.size() / 4'000 * 2;
  expect_flips_found(file, bits, [&](std::size_t i) { return i % step == 0 ? bits(i) : 0; });
}

INSTANTIATE_TEST_SUITE_P(Of, FlippedBitOfGolden, testing::ValuesIn(golden_names()),
                         [](const auto& instance) { return instance.param; });

}  // namespace bit_flips_test
}  // namespace tqcache::test
