// What is put comes back as it was, whatever kind of cache it is.

#include <gtest/gtest.h>

#include "store/library_fixture.h"
#include "support/long_file.h"
#include "support/media.h"

namespace tqcache::test {
namespace library_round_trip_test {

struct Kind {
  std::string name;
  cache::Cache (*make)(std::int64_t n_tokens);
  format::Compression compression = format::Compression::kNone;
};

std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }

const cache::HeadShape kTwoHeads{2, 64};
const TestWindow kWindow{{2, 64}, 300, 4};

cache::Cache dense(std::int64_t n) { return CacheBuilder(n).dense(kTwoHeads).build(); }
cache::Cache dense_of_three(std::int64_t n) {
  return CacheBuilder(n)
      .dense(kTwoHeads, Dtype::kF32)
      .dense(kTwoHeads, Dtype::kBF16)
      .dense(kHeads)
      .build();
}
cache::Cache turbo(std::int64_t n) {
  return CacheBuilder(n)
      .center(cache::Centering::kPostRope)
      .turbo(kTwoHeads, 4, 3)
      .turbo(kTwoHeads, 8, 8)
      .build();
}
cache::Cache grown_turbo(std::int64_t n) {
  return CacheBuilder(n)
      .keep_full_tail()
      .center(cache::Centering::kPostRope)
      .turbo(kTwoHeads, 4, 4)
      .build();
}
cache::Cache sinks(std::int64_t n) {
  cache::TensorPlan plan;
  plan.dense = false;
  plan.codec.bits = 4;
  plan.n_sinks = 4;
  return CacheBuilder(n).tensors(kTwoHeads, Dtype::kF16, plan, Dtype::kF16, plan).build();
}
cache::Cache boundary(std::int64_t n) {
  return CacheBuilder(n)
      .dense(kTwoHeads)
      .turbo(kTwoHeads, 4, 4)
      .mixed(kTwoHeads, Dtype::kF16, 16, Dtype::kF16, 2)
      .build();
}
cache::Cache mixed(std::int64_t n) { return CacheBuilder(n).preset({2, 128}, "turbo2.5").build(); }
cache::Cache rotating(std::int64_t n) {
  return CacheBuilder(n).dense(kTwoHeads).rotating(kWindow).build();
}
cache::Cache hybrid(std::int64_t n) {
  return CacheBuilder(n).arrays().turbo(kTwoHeads, 4, 4).arrays().rotating(kWindow).build();
}
// One that goes over several token blocks, and one that stands in the newest alone.
cache::Cache turbo_windows(std::int64_t n) {
  return CacheBuilder(n)
      .center(cache::Centering::kPostRope)
      .turbo_rotating({kTwoHeads, 300, 0}, 4, 3)
      .turbo(kTwoHeads, 4, 4)
      .turbo_rotating({kTwoHeads, 9, 0}, 4, 16)
      .build();
}
cache::Cache windows_alone(std::int64_t n) {
  return CacheBuilder(n).turbo_rotating({kTwoHeads, 520, 0}, 16, 4).build();
}
cache::Cache all_windows(std::int64_t n) {
  return CacheBuilder(n)
      .arrays()
      .dense(kTwoHeads)
      .turbo_rotating({kTwoHeads, 300, 0}, 4, 4)
      .rotating(kWindow)
      .build();
}
// As many media as there is room for: in a block, over a border, in the tail, at the end.
cache::Cache media(std::int64_t n) {
  std::vector<cache::MediaSpan> spans;
  for (const std::int64_t begin : {3, 250, 270, 505, 700}) {
    if (begin >= n) break;
    spans.push_back({cache::MediaKind::kAudio, begin, 12, "medium-" + std::to_string(begin)});
  }
  return with_media(CacheBuilder(n).turbo(kTwoHeads, 4, 4).arrays().build(), spans);
}
cache::Cache arrays(std::int64_t n) { return CacheBuilder(n).arrays().build(); }

const std::vector<Kind> kKinds = {
    {"dense", dense},
    {"dense_of_three", dense_of_three},
    {"dense_zstd", dense, format::Compression::kZstd},
    {"dense_planes", dense_of_three, format::Compression::kPlanes},
    {"turbo", turbo},
    {"turbo_zstd", turbo, format::Compression::kZstd},
    {"grown_turbo", grown_turbo},
    {"sinks", sinks},
    {"boundary", boundary},
    {"mixed", mixed},
    {"rotating", rotating},
    {"hybrid", hybrid},
    {"turbo_windows", turbo_windows},
    {"turbo_windows_zstd", turbo_windows, format::Compression::kZstd},
    {"windows_alone", windows_alone},
    {"all_windows", all_windows},
    {"arrays", arrays},
    {"media", media},
};

class RoundTrip : public testing::TestWithParam<Kind> {};

TEST_P(RoundTrip, GivesBackTheFile) {
  for (const std::int64_t n : {1, 255, 256, 257, 511, 512, 513, 800}) {
    const cache::Cache cache = GetParam().make(n);
    const Bytes file = file_of(cache, GetParam().compression);
    const auto backend = open_store();
    ToldLibrary library(*backend);
    const store::PutReport report = put(library.library, file, "a prompt");
    EXPECT_EQ(report.n_tokens, n);
    EXPECT_EQ(report.blocks, (n - 1) / 256);
    EXPECT_EQ(report.new_blocks, report.blocks);
    EXPECT_EQ(report.content_name, name_of(file));

    const auto prompt = must(library->fetch(record_of(library.library, "a prompt")));
    EXPECT_EQ(prompt->manifest().content_name, name_of(file));
    EXPECT_EQ(difference(load(*prompt), cache), "") << n;
    EXPECT_EQ(name_of(fetched_file(library.library, "a prompt")), name_of(file));
    EXPECT_TRUE(library.told.empty());
  }
}

// Blobs of blocks and of the snapshot are read in turns, because sections of windows stand among
// those of blocks.
TEST_P(RoundTrip, WritesTheSameFileOneBlobAtATime) {
  for (const std::int64_t n : {255, 513, 1100}) {
    const cache::Cache cache = GetParam().make(n);
    const auto backend = open_store();
    store::Library library(*backend, {});
    put(library, file_of(cache, GetParam().compression), "a prompt");
    const Bytes file = fetched_file(library, "a prompt");
    EXPECT_EQ(difference(load(file), cache), "") << n;
    for (const unsigned n_threads : {1u, 2u}) {
      store::Library slow(*backend, one_blob_at_a_time(n_threads));
      EXPECT_EQ(fetched_file(slow, "a prompt"), file) << n;
      store::Prefix prefix = must(slow.find(cache.identity, and_more(cache)));
      if (prefix.n_tokens == 0) continue;  // without a final block it has only its name
      EXPECT_EQ(fetched_file(slow, prefix), file) << n;
    }
  }
}

TEST_P(RoundTrip, TakesACacheAsItTakesAFile) {
  for (const std::int64_t n : {256, 600}) {
    const cache::Cache cache = GetParam().make(n);
    const auto backend = open_store();
    ToldLibrary library(*backend);
    const auto report = must(library->put_cache(cache, "a prompt"));
    EXPECT_EQ(report.content_name, name_of(file_of(cache)));
    const auto prompt = must(library->fetch(record_of(library.library, "a prompt")));
    EXPECT_EQ(difference(load(*prompt), cache), "");
  }
}

// The whole prompt is its own longest prefix, if more is asked for.
TEST_P(RoundTrip, IsFoundByItsTokens) {
  for (const std::int64_t n : {257, 512, 700}) {
    const cache::Cache cache = GetParam().make(n);
    const auto backend = open_store();
    ToldLibrary library(*backend);
    put(library.library, file_of(cache, GetParam().compression), "");
    store::Prefix prefix = must(library->find(cache.identity, and_more(cache)));
    EXPECT_EQ(prefix.n_tokens, n);
    const auto prompt = must(library->fetch(prefix));
    ASSERT_NE(prompt, nullptr);
    EXPECT_EQ(difference(load(*prompt), cache), "");
    EXPECT_TRUE(library.told.empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RoundTrip, testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

TEST(RoundTripInAFolder, GivesBackTheFileToAnotherProcess) {
  const TempDir folder;
  const std::string url = "dir:" + (folder / "store").string();
  const Bytes file = file_of(hybrid(700));
  {
    const auto backend = open_store(url);
    store::Library library(*backend, {});
    put(library, file, "a prompt");
  }
  const auto backend = open_store(url);
  store::Library library(*backend, {});
  EXPECT_EQ(name_of(fetched_file(library, "a prompt")), name_of(file));
}

// Layers of so many bytes that a block stands in several blobs.
TEST(RoundTrips, BlocksOfSeveralBlobsAreWhole) {
  CacheBuilder builder(600);
  for (int layer = 0; layer < 5; ++layer) builder.dense({8, 256});
  const cache::Cache cache = builder.build();
  const auto backend = open_store();
  ToldLibrary library(*backend);
  put(library.library, file_of(cache), "large");
  EXPECT_EQ(all_keys(*backend, "b/").size(), 2u * 5);
  const auto prompt = must(library->fetch(record_of(library.library, "large")));
  EXPECT_EQ(difference(load(*prompt), cache), "");
  store::Library slow(*backend, one_blob_at_a_time());
  EXPECT_EQ(difference(load(fetched_file(slow, "large")), cache), "");
}

// 64 MiB, in blobs of 256 KiB.
class LongPrompt : public testing::Test {
 protected:
  static constexpr std::uint64_t kMiB = 1 << 20;
  static constexpr std::int64_t kBlocks = 256;

  LongPrompt() { must(write_long_file(dir_ / "in", kBlocks)); }

  void put(const store::BackendOptions& options) const {
    const auto backend = must(store::open_backend(url_, options));
    store::Library library(*backend, {});
    must(library.put_file(*must(open_file(dir_ / "in")), "long"));
  }
  // Fetches it to "out".
  void fetch(const store::BackendOptions& options, const KeyRing& keys) const {
    const auto backend = must(store::open_backend(url_, options));
    store::Library library(*backend, {.n_threads = 2, .window_bytes = 4 * kMiB});
    AtomicFile file = must(AtomicFile::create(dir_ / "out", Overwrite::kAllow));
    must(library.fetch_to(file, record_of(library, "long"), keys));
    must(file.commit());
  }
  void expect_little_memory(const KeyRing& keys) const {
#ifdef TQCACHE_TEST_SANITIZED
    GTEST_SKIP() << "a sanitizer takes memory of its own";
#endif
    const store::BackendOptions options{.keys = keys};
    put(options);
    EXPECT_LT(peak_of([&] { fetch(options, keys); }), 24 * kMiB);
    const auto source = must(open_file(dir_ / "out"));
    EXPECT_EQ(must(format::read_cache_info(*source, keys)).content_name,
              must(format::read_cache_info(*must(open_file(dir_ / "in")))).content_name);
    // What the bound is worth: with the prompt in memory it is passed.
    EXPECT_GT(peak_of([&] {
                const auto backend = must(store::open_backend(url_, options));
                store::Library library(*backend, {});
                must(library.fetch(record_of(library, "long")));
              }),
              64 * kMiB);
  }

  TempDir dir_;
  std::string url_ = "dir:" + (dir_ / "store").string();
};

TEST_F(LongPrompt, GoesToAFileInLittleMemory) { expect_little_memory({}); }

TEST_F(LongPrompt, GoesFromAnEncryptedStoreToAFileInLittleMemory) {
  expect_little_memory(must(KeyRing::parse(Bytes(32, std::byte{1}))));
}

}  // namespace library_round_trip_test
}  // namespace tqcache::test
