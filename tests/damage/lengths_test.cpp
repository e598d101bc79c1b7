// A file that is cut, or has bytes too many, is told from a whole one at every length.

#include "damage.h"

namespace tqcache::test {
namespace lengths_test {

class Length : public testing::TestWithParam<std::string> {
 protected:
  const Bytes file_ = golden(GetParam());
};

INSTANTIATE_TEST_SUITE_P(OfGolden, Length, testing::ValuesIn(golden_names()),
                         [](const auto& instance) { return instance.param; });

TEST_P(Length, ThatIsTooShortIsRefused) {
  for (std::size_t size = 0; size < file_.size(); ++size) {
    const ByteView cut = ByteView(file_).first(size);
    const auto loaded = load_view(cut);
    ASSERT_FALSE(loaded.ok()) << size;
    ASSERT_EQ(loaded.error().code, ErrorCode::kTruncated) << size << loaded.error().message;
    ASSERT_TRUE(is_reported(cut)) << size;
  }
}

TEST_P(Length, ThatIsTooLongIsRefused) {
  Random random(1);
  for (const bool zeros : {true, false}) {
    Bytes longer = file_;
    for (std::size_t n = 1; n <= 16; ++n) {
      longer.push_back(zeros ? std::byte{0} : std::byte(random.below(256)));
      expect_refused(longer, ErrorCode::kCorrupt, "bytes behind the end");
    }
  }
}

TEST_P(Length, IsNotMadeRightByTakingBytesOutElsewhere) {
  const cache::Cache original = must(load(file_));
  for (std::size_t i = 0; i < file_.size(); i += 1 + i / 256) {
    Bytes shorter = file_;
    shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(i));
    ASSERT_FALSE(load_view(shorter).ok()) << i;
    shorter.push_back(std::byte{0});
    if (shorter == file_) continue;  // taken out of the zeros at the end
    expect_found(shorter, original, "byte " + std::to_string(i) + " taken out");
  }
}

}  // namespace lengths_test
}  // namespace tqcache::test
