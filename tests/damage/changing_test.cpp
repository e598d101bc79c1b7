// A file that changes while it is read: what comes out is one version of it, or an error.

#include <gtest/gtest.h>

#include "damage.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace changing_test {

// Shows other bytes from a certain read on.
class ChangingSource : public ByteSource {
 public:
  // The version that a read finds is a function of how many came before it.
  using Choose = std::function<ByteView(int n_reads)>;
  explicit ChangingSource(Choose choose) : choose_(std::move(choose)) {}

  std::uint64_t size() const override { return choose_(n_reads_).size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    return ViewSource(choose_(n_reads_++)).read_at(offset, out);
  }
  int n_reads() const { return n_reads_; }

 private:
  Choose choose_;
  mutable int n_reads_ = 0;
};

// Ends early between being opened and being read.
class ShrinkingSource : public ByteSource {
 public:
  ShrinkingSource(ByteView file, std::uint64_t readable) : file_(file), readable_(readable) {}
  std::uint64_t size() const override { return file_.size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> out) const override {
    return ViewSource(file_.first(readable_)).read_at(offset, out);
  }

 private:
  ByteView file_;
  std::uint64_t readable_;
};

int reads_of(ByteView file) {
  const ChangingSource source([file](int) { return file; });
  must(format::read_cache(source, {.n_threads = 1}));
  return source.n_reads();
}

// Two versions that have nothing in common but their shapes, and some that share all but a token.
std::vector<std::pair<cache::Cache, cache::Cache>> versions() {
  std::vector<std::pair<cache::Cache, cache::Cache>> pairs;
  const auto all_kinds = [](std::int64_t n_tokens, std::uint64_t seed) {
    return CacheBuilder(n_tokens, seed).preset({1, 32}, "turbo4").dense({1, 8}).arrays().build();
  };
  pairs.emplace_back(all_kinds(300, 1), all_kinds(300, 2));
  pairs.emplace_back(all_kinds(300, 1), all_kinds(3, 2));
  cache::Cache one_token_else = all_kinds(300, 1);
  one_token_else.tokens[299] += 1;
  pairs.emplace_back(all_kinds(300, 1), std::move(one_token_else));
  cache::Cache one_value_else = all_kinds(300, 1);
  std::get<cache::StateLayer>(one_value_else.layers[2]).arrays[1].data[5] ^= std::byte{1};
  pairs.emplace_back(all_kinds(300, 1), std::move(one_value_else));
  return pairs;
}

class Changed : public testing::Test {
 protected:
  // Reads through a source that shows `choose(n_reads)`; it must give `a`, `b` or an error.
  static void expect_one_version(const ChangingSource::Choose& choose, const cache::Cache& a,
                                 const cache::Cache& b) {
    const ChangingSource source(choose);
    const auto loaded = format::read_cache(source, {.n_threads = 1});
    if (!loaded) return;
    EXPECT_TRUE(difference(*loaded, a).empty() || difference(*loaded, b).empty());
  }
};

TEST_F(Changed, ToAnotherVersionAtAnyReadGivesOneOfThemOrAnError) {
  for (const auto& [a, b] : versions()) {
    const Bytes old_file = file_of(a);
    const Bytes new_file = file_of(b);
    const int n_reads = reads_of(old_file);
    ASSERT_GT(n_reads, 10);
    for (int k = 0; k <= n_reads + 1; ++k) {
      expect_one_version([&](int n) -> ByteView { return n < k ? old_file : new_file; }, a, b);
    }
  }
}

TEST_F(Changed, BackAndForthGivesOneVersionOrAnError) {
  Random random(1);
  for (const auto& [a, b] : versions()) {
    const Bytes old_file = file_of(a);
    const Bytes new_file = file_of(b);
    expect_one_version([&](int n) -> ByteView { return n % 2 == 0 ? old_file : new_file; }, a, b);
    for (int k = 0; k < 300; ++k) {
      const std::uint64_t which = random.next();
      expect_one_version(
          [&](int n) -> ByteView { return (which >> (n % 64)) % 2 == 0 ? old_file : new_file; }, a,
          b);
    }
  }
}

TEST_F(Changed, InAnyByteAtAnyReadGivesTheOldFileOrAnError) {
  const Bytes file = small_file();
  const cache::Cache cache = must(load(file));
  const int n_reads = reads_of(file);
  for (std::size_t i = 0; i < file.size(); ++i) {
    Bytes damaged = file;
    damaged[i] ^= std::byte{0x10};
    for (int k = 0; k <= n_reads; ++k) {
      expect_one_version([&](int n) -> ByteView { return n < k ? file : damaged; }, cache, cache);
    }
  }
}

TEST_F(Changed, ToAShorterFileAtAnyReadGivesTheOldFileOrAnError) {
  const Bytes file = small_file();
  const cache::Cache cache = must(load(file));
  const int n_reads = reads_of(file);
  for (std::size_t size = 0; size < file.size(); size += 7) {
    const ByteView cut = ByteView(file).first(size);
    for (int k = 0; k <= n_reads; ++k) {
      expect_one_version([&](int n) -> ByteView { return n < k ? ByteView(file) : cut; }, cache,
                         cache);
    }
  }
}

// The file has its size until it is read.
TEST_F(Changed, ToAFileThatEndsWhileItIsReadIsAnError) {
  const Bytes file = small_file();
  for (std::size_t readable = 0; readable < file.size(); ++readable) {
    const ShrinkingSource source(file, readable);
    ASSERT_EQ(format::read_cache(source).error().code, ErrorCode::kTruncated) << readable;
  }
}

// Verify says that a version is whole only if it saw nothing else.
TEST_F(Changed, WhileBeingVerifiedIsReportedUnlessOneVersionWasSeen) {
  for (const auto& [a, b] : versions()) {
    const Bytes old_file = file_of(a);
    const Bytes new_file = file_of(b);
    const auto verify = [](const ByteSource& source) {
      return format::verify_cache(source, {.n_threads = 1});
    };
    const ChangingSource still([&](int) -> ByteView { return old_file; });
    must(verify(still));
    for (int k = 0; k <= still.n_reads() + 1; ++k) {
      const ChangingSource source([&](int n) -> ByteView { return n < k ? old_file : new_file; });
      const auto report = verify(source);
      if (!report || !report->damage.empty()) continue;
      const Sha256 seen = report->info.content_name;
      EXPECT_TRUE(seen == info_of(old_file).content_name || seen == info_of(new_file).content_name);
    }
  }
}

TEST_F(Changed, WhileBeingConvertedGivesTheFileOfOneVersionOrAnError) {
  const Bytes old_file = file_of(CacheBuilder(600, 1).dense({1, 32}).build());
  const Bytes new_file = file_of(CacheBuilder(600, 2).dense({1, 32}).build());
  cache::ConvertOptions options = must(cache::preset("turbo2.5"));
  options.n_threads = 1;
  const TempDir dir;
  const auto convert = [&](const ByteSource& source) -> Result<Bytes> {
    TQC_TRY(format::convert_file(source, dir / "out", options,
                                 {.n_threads = 1, .overwrite = Overwrite::kAllow}));
    return read_all(dir / "out");
  };
  const ChangingSource still([&](int) -> ByteView { return old_file; });
  const Bytes of_old = must(convert(still));
  const Bytes of_new = must(convert(ViewSource(new_file)));
  for (int k = 0; k <= still.n_reads(); ++k) {
    const ChangingSource source([&](int n) -> ByteView { return n < k ? old_file : new_file; });
    const auto converted = convert(source);
    if (!converted) continue;
    EXPECT_TRUE(*converted == of_old || *converted == of_new) << k;
  }
}

}  // namespace changing_test
}  // namespace tqcache::test
