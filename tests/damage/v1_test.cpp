// Files of version 1: all of one is under a SHA-256, so that any change is found; and one that lies
// with a right SHA-256 takes little memory.

#include "limited_child.h"
#include "migrations/v1_file.h"
#include "migrations/v1_to_v2.h"
#include "support/long_tests.h"

namespace tqcache::test {
namespace v1_test {

constexpr std::size_t kDigestBytes = 32;

Bytes golden_v1(const std::string& name) {
  return read_all(std::filesystem::path(TQCACHE_GOLDEN_V1_FILES) / (name + ".tqcache"));
}

std::vector<std::string> golden_v1_names() {
  return golden_names(TQCACHE_GOLDEN_V1_FILES, ".tqcache");
}

bool is_refused(ByteView file) { return !migrations::read_v1(ViewSource(file)).ok(); }

void reseal_v1(Bytes& file) {
  const Sha256 digest = sha256(ByteView(file).first(file.size() - kDigestBytes));
  std::ranges::copy(digest, file.end() - kDigestBytes);
}

class DamagedV1 : public testing::TestWithParam<std::string> {
 protected:
  Bytes file_ = golden_v1(GetParam());
};

INSTANTIATE_TEST_SUITE_P(OfGolden, DamagedV1, testing::ValuesIn(golden_v1_names()),
                         [](const auto& instance) { return instance.param; });

TEST_P(DamagedV1, ByAFlippedBitIsRefused) {
  ASSERT_FALSE(is_refused(file_));
  const bool is_small = file_.size() < 10'000;
  for (std::size_t i = 0; i < file_.size(); ++i) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      if (!is_small && (bit != i % 8 || !takes_case(i, file_.size(), 5))) continue;
      file_[i] ^= std::byte(1u << bit);
      ASSERT_TRUE(is_refused(file_)) << "byte " << i << " bit " << bit;
      file_[i] ^= std::byte(1u << bit);
    }
  }
}

TEST_P(DamagedV1, ByCuttingIsRefused) {
  const std::size_t step = file_.size() < 10'000 ? 1 : 5;
  for (std::size_t size = 0; size < file_.size(); ++size) {
    if (!takes_case(size, file_.size(), step)) continue;
    ASSERT_TRUE(is_refused(ByteView(file_).first(size))) << size;
  }
}

TEST_P(DamagedV1, ByAddingBytesIsRefused) {
  Random random(1);
  for (const bool zeros : {true, false}) {
    Bytes longer = file_;
    for (std::size_t n = 1; n <= 16; ++n) {
      longer.push_back(zeros ? std::byte{0} : std::byte(random.below(256)));
      ASSERT_TRUE(is_refused(longer)) << n;
    }
  }
}

TEST(HugeNumberV1, AnywhereInTheFileTakesLittleMemory) {
  for (const char* name : {"empty", "arrays"}) {
    const Bytes file = golden_v1(name);
    const auto read = [](const Bytes& bomb) {
      const auto parsed = migrations::read_v1(ViewSource(bomb));
      if (parsed) static_cast<void>(migrations::v1_to_v2(*parsed));
      return false;  // many numbers have no weight, or are as good as another
    };
    expect_harmless(read, [&](const Visit& visit) {
      for (std::size_t at = 0; at + 8 + kDigestBytes <= file.size(); at += 4) {
        for (const std::uint64_t claim : kClaims) {
          for (const bool wide : {false, true}) {
            Bytes bomb = file;
            if (wide) patch(bomb, at, claim);
            if (!wide) patch(bomb, at, static_cast<std::uint32_t>(claim));
            reseal_v1(bomb);
            visit("byte " + std::to_string(at) + " claims " + std::to_string(claim), bomb);
          }
        }
      }
    });
  }
}

}  // namespace v1_test
}  // namespace tqcache::test
