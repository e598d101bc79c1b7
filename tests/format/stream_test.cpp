// Writing and reading as a piece of work: progress, stopping, where the file goes.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "file_fixture.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace stream_test {

constexpr std::uint64_t kArrayBytes = 1 << 20;

// Three large sections.
cache::Cache large_cache() {
  cache::Cache cache = CacheBuilder(0).build();
  cache::StateLayer layer;
  for (int i = 0; i < 3; ++i) {
    layer.arrays.push_back(
        {"a", Dtype::kF32, {kArrayBytes / 4}, AlignedBytes(kArrayBytes, std::byte(i))});
  }
  cache.layers.emplace_back(std::move(layer));
  return cache;
}

struct Calls {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;
  Progress all() {
    return [this](std::uint64_t done, std::uint64_t total) {
      seen.emplace_back(done, total);
      return true;
    };
  }
  Progress stop_after(std::size_t n) {
    return [this, n](std::uint64_t done, std::uint64_t total) {
      seen.emplace_back(done, total);
      return seen.size() < n;
    };
  }
};

TEST(CacheFileWork, TellsItsProgressInBytesBeforeCompression) {
  const cache::Cache cache = large_cache();
  const std::uint64_t total = 3 * kArrayBytes;
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected = {
      {total / 3, total}, {total / 3 * 2, total}, {total, total}};
  Calls writing;
  const Bytes file = must(format::write_cache_bytes(cache, {}, writing.all()));
  EXPECT_EQ(writing.seen, expected);
  EXPECT_LT(file.size(), 10000u);
  Calls reading;
  EXPECT_EQ(difference(must(format::read_cache(*memory_source(file), {}, reading.all())), cache),
            "");
  EXPECT_EQ(reading.seen, expected);
  Calls verifying;
  must(format::verify_cache(*memory_source(file), {}, verifying.all()));
  EXPECT_EQ(verifying.seen, expected);
}

TEST(CacheFileWork, StopsWhenAskedAndLeavesNothingBehind) {
  const TempDir dir;
  const cache::Cache cache = large_cache();
  Calls writing;
  expect_error(format::write_cache_file(cache, dir / "a.tqkv", {}, writing.stop_after(2)),
               ErrorCode::kInterrupted, "interrupted");
  EXPECT_EQ(dir.entry_count(), 0u);
  const auto source = memory_source(must(format::write_cache_bytes(cache, {})));
  Calls reading;
  expect_error(dropped(format::read_cache(*source, {}, reading.stop_after(1))),
               ErrorCode::kInterrupted, "interrupted");
  EXPECT_EQ(reading.seen.size(), 1u);
  Calls verifying;
  expect_error(dropped(format::verify_cache(*source, {}, verifying.stop_after(1))),
               ErrorCode::kInterrupted, "interrupted");
}

TEST(CacheFileWork, GivesTheSameBytesForAnyWindowAndAnyNumberOfThreads) {
  cache::Cache cache = CacheBuilder(700).dense({2, 32}).turbo({2, 64}, 4, 3).arrays().build();
  cache.layers.emplace_back(large_cache().layers[0]);
  for (const Compression compression : kCompressions) {
    const Bytes expected = file_of(cache, compression);
    for (const unsigned n_threads : {0u, 2u, 5u}) {
      for (const std::uint64_t window : {std::uint64_t{0}, kArrayBytes / 2, 10 * kArrayBytes}) {
        EXPECT_TRUE(must(format::write_cache_bytes(cache, {.compression = compression,
                                                           .n_threads = n_threads,
                                                           .window_bytes = window})) == expected);
      }
    }
  }
}

TEST(CacheFileWork, RefusesToOverwriteUnlessTold) {
  const TempDir dir;
  write_all(dir / "a.tqkv", "old");
  const cache::Cache cache = CacheBuilder(2).dense({1, 4}).build();
  expect_error(format::write_cache_file(cache, dir / "a.tqkv", {}), ErrorCode::kInvalidArgument,
               "exists");
  EXPECT_EQ(read_all(dir / "a.tqkv").size(), 3u);
  must(format::write_cache_file(cache, dir / "a.tqkv", {.overwrite = Overwrite::kAllow}));
  EXPECT_EQ(difference(must(load(read_all(dir / "a.tqkv"))), cache), "");
}

TEST(CacheFileWork, RefusesALevelThatZstdShouldNotBeAskedFor) {
  const cache::Cache cache = CacheBuilder(2).dense({1, 4}).build();
  for (const int level : {-1, 0, 20}) {
    expect_error(dropped(format::write_cache_bytes(cache, {.zstd_level = level})),
                 ErrorCode::kInvalidArgument, "level");
  }
}

TEST(CacheFileWork, TellsAFullDisk) {
  const cache::Cache cache = CacheBuilder(2).dense({1, 4}).build();
  const auto result = format::write_cache_file(cache, "/dev/full", {});
  expect_error(result, ErrorCode::kIo, "No space left");
}

TEST(CacheFileWork, WritesAPipeInOnePass) {
  const TempDir dir;
  const std::string pipe = (dir / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const cache::Cache cache = CacheBuilder(300).dense({2, 32}).build();
  Bytes received;
  std::thread reader([&] { received = read_all(pipe); });
  const auto written = format::write_cache_file(cache, pipe, {});
  reader.join();
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_TRUE(received == must(format::write_cache_bytes(cache, {})));
}

TEST(CacheFileWork, WritesNoCacheThatCouldNotBeRead) {
  cache::Cache cache = CacheBuilder(2).dense({1, 4}).build();
  std::get<0>(std::get<0>(cache.layers[0]).k).blocks.clear();
  expect_error(dropped(format::write_cache_bytes(cache, {})), ErrorCode::kCorrupt, "layer 0");

  cache = CacheBuilder(2).dense({1, 4}).build();
  cache.identity.model_name.assign(cache::kMaxTextBytes + 1, 'x');
  expect_error(dropped(format::write_cache_bytes(cache, {})), ErrorCode::kTooLarge, "model name");

  cache = CacheBuilder(2).dense({1, 4}).build();
  cache.tokens[1] = -1;
  expect_error(dropped(format::write_cache_bytes(cache, {})), ErrorCode::kCorrupt, "token");

  cache = CacheBuilder(0).build();
  cache.layers.emplace_back(cache::StateLayer{
      std::vector<cache::NamedArray>(cache::kMaxArrays + 1, {"", Dtype::kF32, {0}, {}})});
  expect_error(dropped(format::write_cache_bytes(cache, {})), ErrorCode::kTooLarge, "65 arrays");
}

}  // namespace stream_test
}  // namespace tqcache::test
