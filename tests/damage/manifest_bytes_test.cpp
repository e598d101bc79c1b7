// Whatever byte of the manifest is changed, with all checksums made right again: a load gives what
// the file held before, or an error, and nothing crashes.

#include <initializer_list>

#include "damage.h"

namespace tqcache::test {
namespace manifest_bytes_test {

void expect_manifest_safe(const Bytes& file, std::initializer_list<unsigned> flips) {
  const cache::Cache original = must(load_view(file));
  for (std::size_t i = manifest_offset_of(file); i < file.size(); ++i) {
    for (const unsigned flip : flips) {
      Bytes damaged = file;
      damaged[i] ^= std::byte(flip);
      reseal_header(damaged);
      // Most bytes are the content name's business. What is not is the writer's name, room that
      // FlatBuffers leaves between its parts, and where two parts are equal: all without weight.
      expect_not_another(damaged, original, "byte " + std::to_string(i));
      is_reported(damaged);
    }
  }
}

TEST(ManifestByte, OfAllKindsOfLayersIsSafe) {
  const cache::Cache cache =
      CacheBuilder(2).dense({1, 8}, Dtype::kBF16).turbo({1, 32}, 4, 3).arrays().build();
  for (const Compression compression : {Compression::kNone, Compression::kZstd}) {
    expect_manifest_safe(file_of(cache, compression), {0x01, 0x80, 0xff});
  }
}

TEST(ManifestByte, OfAnyModeIsSafe) {
  CacheBuilder builder(256);
  builder.identity().rope.n_dims = 32;
  cache::TensorPlan plan;
  plan.n_sinks = 1;
  for (const codec::Mode mode : {codec::Mode::kProd, codec::Mode::kMixed, codec::Mode::kAffine}) {
    plan.codec = {
        .mode = mode, .bits = 2, .outlier_channels = 8, .outlier_bits = 3, .group_size = 32};
    builder.tensors({1, 32}, Dtype::kF16, plan, Dtype::kF16, plan);
  }
  expect_manifest_safe(file_of(builder.build()), {0x81});
}

class ManifestByteOfGolden : public testing::TestWithParam<std::string> {};

TEST_P(ManifestByteOfGolden, IsSafe) { expect_manifest_safe(golden(GetParam()), {0x41}); }

INSTANTIATE_TEST_SUITE_P(Of, ManifestByteOfGolden,
                         testing::Values(std::string("appended"), std::string("hidden_tokens"),
                                         std::string("rotating")),
                         [](const auto& instance) { return instance.param; });

}  // namespace manifest_bytes_test
}  // namespace tqcache::test
