// Damages good files in every small way: the result is an error that says what is wrong with the
// content, or a valid cache.

#include <gtest/gtest.h>

#include "interop/damage.h"
#include "interop/mlx_lm_small_files.h"
#include "support/long_tests.h"

namespace tqcache::interop {
namespace mlx_lm_damage_test {

constexpr std::int64_t kManyTokens = 100'000;  // more than the files here can hold

// Whether a file is read to its end; if not, its content is refused.
bool reads_safely(Bytes bytes) {
  auto foreign = test::import_mlx(std::move(bytes));
  if (foreign && foreign->n_tokens > kManyTokens) return true;
  std::size_t n_valid = 0;
  EXPECT_TRUE(test::refused_or_valid(std::move(foreign), n_valid));
  return n_valid > 0;
}

TEST(MlxDamage, EveryPrefixIsRefused) {
  for (const auto& [name, file] : test::small_mlx_files()) {
    ASSERT_TRUE(reads_safely(file)) << name;
    for (std::size_t size = 0; size < file.size(); ++size) {
      EXPECT_FALSE(reads_safely(Bytes(file.begin(), file.begin() + std::ptrdiff_t(size)))) << size;
    }
  }
}

TEST(MlxDamage, EveryFlippedBitIsReadSafely) {
  for (const auto& [name, file] : test::small_mlx_files()) {
    std::size_t n_refused = 0;
    for (std::size_t bit = 0; bit < 8 * file.size(); bit += test::bit_step()) {
      Bytes flipped = file;
      flipped[bit / 8] ^= std::byte(1 << (bit % 8));
      n_refused += reads_safely(std::move(flipped)) ? 0 : 1;
    }
    // Most of a small file is its header.
    EXPECT_GT(n_refused * test::bit_step(), 4 * file.size()) << name;
  }
}

TEST(MlxDamage, AFileCutShortMeanwhileIsToldSo) {
  class Shrinking : public ByteSource {
   public:
    explicit Shrinking(Bytes bytes) : bytes_(std::move(bytes)) {}
    std::uint64_t size() const override { return bytes_.size(); }
    Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
      const std::size_t there = is_cut ? 100 : bytes_.size();
      if (offset > there || out.size() > there - offset) {
        return Error{ErrorCode::kTruncated, "cut"};
      }
      std::ranges::copy(ByteView(bytes_).subspan(std::size_t(offset), out.size()), out.begin());
      return {};
    }
    bool is_cut = false;

   private:
    Bytes bytes_;
  };
  const auto source = std::make_shared<Shrinking>(test::small_mlx_file(MlxLayout::kScalars));
  const auto sections = test::must(reader_of(test::must(import_mlx_lm(source))));
  source->is_cut = true;
  AlignedBytes raw;
  for (std::size_t i = 0; i < sections->blocks().size(); ++i) {
    const auto read = sections->read(i, raw);
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().code, ErrorCode::kTruncated);
    EXPECT_TRUE(read.error().message.starts_with("layer ")) << read.error().message;
  }
}

}  // namespace mlx_lm_damage_test
}  // namespace tqcache::interop
