// Files cut anywhere, and changed in any bit: an error, or a cache that can be read to its end.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "interop/damage.h"
#include "interop/foreign_cache_reading.h"
#include "interop/turbomlx_files.h"
#include "support/failing_source.h"
#include "support/long_tests.h"

namespace tqcache::interop {
namespace turbomlx_damage_test {

class Damage : public ::testing::TestWithParam<std::string> {};

TEST_P(Damage, AFileCutAnywhereIsRefused) {
  const Bytes file = test::turbomlx_file(GetParam());
  for (std::size_t size = 0; size < file.size(); ++size) {
    const auto cache =
        test::import_bytes(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)));
    ASSERT_FALSE(cache.ok()) << size;
    const ErrorCode code = cache.error().code;
    EXPECT_TRUE(code == ErrorCode::kTruncated || code == ErrorCode::kCorrupt) << size;
  }
}

TEST_P(Damage, AChangedBitIsRefusedOrGivesAValidCache) {
  std::size_t n_valid = 0;
  const Bytes file = test::turbomlx_file(GetParam());
  for (std::size_t bit = 0; bit < 8 * file.size(); bit += test::bit_step()) {
    Bytes changed = file;
    changed[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_TRUE(test::refused_or_valid(test::import_bytes(std::move(changed)), n_valid)) << bit;
  }
  EXPECT_GT(n_valid, 0u);
}

TEST_P(Damage, BytesBehindTheEndAreRefused) {
  Bytes file = test::turbomlx_file(GetParam());
  file.push_back(std::byte{0});
  EXPECT_FALSE(test::import_bytes(std::move(file)).ok());
}

TEST_P(Damage, EveryReadMayFail) {
  const Bytes file = test::turbomlx_file(GetParam());
  for (std::size_t failing = 0;; ++failing) {
    auto source = std::make_shared<test::FailingSource>(file, failing);
    auto cache = import_turbomlx(source);
    if (cache.ok()) {
      const auto read = test::read_foreign(std::move(cache).value());
      if (!source->has_failed()) {
        EXPECT_TRUE(read.ok());
        break;
      }
      ASSERT_FALSE(read.ok());
      EXPECT_EQ(read.error().code, ErrorCode::kIo);
    } else {
      EXPECT_EQ(cache.error().code, ErrorCode::kIo) << cache.error().message;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(TurboMlx, Damage,
                         ::testing::Values("v2_mse_p2", "v2_mse_p5", "v1_prod_p4", "v2_mixed_p5",
                                           "v2_calibrating_p5", "v3_prod", "v3_mixed",
                                           "v3_calibrating", "v2_hybrid_p5"),
                         [](const auto& each) { return each.param; });

// A length that is none is seen when its token is read.
TEST(TurboMlxLengths, AreFiniteNumbersFromZeroOn) {
  const auto original = test::import_bytes(test::turbomlx_file("v3_prod"));
  ASSERT_TRUE(original.ok());
  const Bytes file = test::turbomlx_file("v3_prod");
  std::size_t n_refused = 0;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -1.0f, std::numeric_limits<float>::infinity()}) {
    // f32 values stand first behind the header, at any address.
    for (std::size_t at = file.size() - 120; at + 4 <= file.size(); ++at) {
      Bytes changed = file;
      std::memcpy(changed.data() + at, &bad, sizeof bad);
      auto cache = test::import_bytes(std::move(changed));
      if (!cache.ok()) continue;
      const auto keys =
          test::read_tensor(cache->layers[0], cache::TensorKind::kKeys, cache->n_tokens);
      if (keys.ok()) continue;
      EXPECT_EQ(keys.error().code, ErrorCode::kCorrupt);
      EXPECT_NE(keys.error().message.find("a length that is no finite number from 0 on"),
                std::string::npos);
      ++n_refused;
    }
  }
  EXPECT_GE(n_refused, 12u);  // two tokens, two lengths each, three values
}

}  // namespace turbomlx_damage_test
}  // namespace tqcache::interop
