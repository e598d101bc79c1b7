// Sliding windows that are packed, in a file: their sections, what is refused, and how they grow.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "append_fixture.h"
#include "support/matchers.h"
#include "support/scripted_reader.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/cache/window.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/format/type_names.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace turbo_windows_test {

using cache::TensorKind;
using cache::WindowMode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A window of 300 tokens beside full attention.
CacheBuilder windowed(std::int64_t n_tokens) {
  CacheBuilder builder(n_tokens);
  builder.center(cache::Centering::kPostRope);
  builder.turbo_rotating({{1, 32}, 300, 0}, 4, 3).dense({1, 4});
  return builder;
}

Bytes windowed_file(std::int64_t n_tokens = 600) { return file_of(windowed(n_tokens).build()); }

TEST(TurboWindowFile, GivesBackWhatWasWritten) {
  for (const std::int64_t n_tokens : {0, 1, 255, 256, 300, 512, 600, 1000}) {
    SCOPED_TRACE(n_tokens);
    const cache::Cache cache =
        windowed(n_tokens)
            .arrays()
            .center(cache::Centering::kPreRope)
            .turbo_rotating({{2, 64}, 40, 0}, 2, 2, Dtype::kBF16, Dtype::kF32)
            .rotating({{1, 4}, 20, 2})
            .turbo_rotating({{1, 32}, 100, 0}, 16, 1)
            .turbo_rotating({{1, 32}, 5000, 0}, 1, 16)
            .build();
    for (const Compression compression : kCompressions) {
      const Bytes file = file_of(cache, compression);
      const cache::Cache read = must(load(file));
      EXPECT_EQ(difference(read, cache), "");
      EXPECT_EQ(file_of(read, compression), file);
      EXPECT_THAT(damage_of(file), IsEmpty());
    }
  }
}

// The window begins in token block 1.
TEST(TurboWindowFile, HasTheTokenBlocksOfTheWindowAlone) {
  const CacheFileInfo info = info_of(windowed_file(600));
  EXPECT_EQ(format::type_name(info.layers[0]), "tqcache.rotating.v2");
  EXPECT_EQ(std::get<cache::WindowDesc>(info.layers[0]).window.size, 300);
  std::vector<std::string> sections;
  for (const SectionInfo& section : info.sections) {
    sections.push_back(std::to_string(section.layer) +
                       (section.tensor == cache::TensorKind::kKeys ? "k" : "v") +
                       std::to_string(section.block) + (section.packed ? "p" : "d"));
  }
  EXPECT_THAT(sections, ElementsAre("1k0d", "1v0d", "0k1p", "0v1p", "1k1d", "1v1d", "0k2d", "0v2d",
                                    "1k2d", "1v2d"));
}

TEST(TurboWindowFile, IsOfAKindThatOlderReadersRefuse) {
  expect_refused(change_text(windowed_file(), "tqcache.rotating.v2", "tqcache.rotating.v9"),
                 ErrorCode::kUnsupported, "cache type \"tqcache.rotating.v9\"");
}

TEST(TurboWindowFile, KeepsItsTokensHidden) {
  for (const bool forget : {false, true}) {
    CacheBuilder builder = windowed(600);
    forget ? builder.forget_tokens() : builder.hide_tokens();
    const cache::Cache cache = builder.build();
    EXPECT_EQ(difference(must(load(file_of(cache))), cache), "");
  }
}

TEST(TurboWindowFile, CannotBeCutShorter) {
  EXPECT_THAT(
      load(windowed_file(600), {.first_tokens = 500}),
      test::FailsWith(ErrorCode::kUnsupported, HasSubstr("layer 0 keeps a sliding window")));
}

TEST(TurboWindowFile, IsMapped) {
  const CacheOnDisk file(windowed_file(600));
  EXPECT_EQ(difference(must(format::map_cache(file.path(), {})), must(load(file.bytes()))), "");
}

// --- what is refused

void expect_rule(const std::function<void(cache::WindowDesc&)>& change, std::string_view part,
                 ErrorCode code = ErrorCode::kCorrupt) {
  Manifest manifest = info_of(windowed_file());
  change(std::get<cache::WindowDesc>(manifest.layers[0]));
  expect_error(format::check_contents(manifest), code, part);
}

TEST(TurboWindowRules, HoldForItsFields) {
  expect_rule([](auto& layer) { layer.window.size = 0; }, "layer 0: a window of no tokens");
  expect_rule([](auto& layer) { layer.window.size = cache::kMaxTokens + 1; },
              "layer 0: a window of 16777217 tokens", ErrorCode::kTooLarge);
  expect_rule([](auto& layer) { layer.window.keep = 1; }, "a turbo window that keeps first tokens");
  expect_rule([](auto& layer) { layer.window.keep = 300; },
              "300 first tokens kept in a window of 300");
  expect_rule([](auto& layer) { layer.attention.k.quant->n_sinks = 1; }, "sink tokens in a window");
  expect_rule([](auto& layer) { layer.attention.v.quant->n_sinks = 1; }, "sink tokens in a window");
  expect_rule([](auto& layer) { layer.attention.shape.head_dim = 0; },
              "a shape has a size below 1");
}

// A few bytes may claim many token blocks, each of which would take a row in memory.
TEST(TurboWindowRules, BoundTheBlocksThatWindowsHaveLeft) {
  Manifest manifest = info_of(windowed_file());
  manifest.layers.resize(1);
  manifest.tokens.assign(1 << 20, 1);
  manifest.layers.assign(128, cache::LayerDesc(manifest.layers[0]));
  must(format::check_contents(manifest));
  manifest.layers.push_back(manifest.layers[0]);
  expect_error(format::check_contents(manifest), ErrorCode::kTooLarge,
               "turbo windows behind 1056768 token blocks");
}

TEST(TurboWindowRules, HoldForTheSectionTable) {
  const Bytes file = windowed_file();
  const auto refused = [&](const std::function<void(Manifest&)>& change, std::string_view part) {
    expect_refused(change_manifest(file, change), ErrorCode::kCorrupt, part);
  };
  // A window that is narrower, or wider, has other blocks.
  refused(
      [](Manifest& manifest) { std::get<cache::WindowDesc>(manifest.layers[0]).window.size = 80; },
      "10 sections where the layers have 8");
  refused(
      [](Manifest& manifest) { std::get<cache::WindowDesc>(manifest.layers[0]).window.size = 400; },
      "10 sections where the layers have 12");
  refused([](Manifest& manifest) { manifest.sections[2].block = 0; },
          "section 2 (layer 0 k, block 0): not the section that follows here");
  refused([](Manifest& manifest) { manifest.sections[2].packed = false; },
          "a token block before the last is not packed");
  refused([](Manifest& manifest) { manifest.sections[6].packed = true; }, "packed, but not full");
  refused([](Manifest& manifest) { v_of(manifest, 0).mean.clear(); },
          "section 3 (layer 0 v, block 1): packed, but without its mean");
}

// --- growing

TEST(TurboWindowFile, LosesTheSectionsThatItsWindowHasLeft) {
  std::mt19937 random(1);
  cache::Cache cache = windowed(500).build();
  const CacheOnDisk file(cache);
  grow(cache, random, 400);  // the window begins in block 2
  must(file.append(cache));
  const CacheFileInfo info = info_of(file.bytes());
  for (const SectionInfo& section : info.sections) {
    EXPECT_GE(section.block, section.layer == 0 ? 2 : 0);
  }
  EXPECT_EQ(difference(must(load(file.bytes())), cache), "");
  EXPECT_EQ(info.content_name, info_of(file_of(cache)).content_name);
  EXPECT_THAT(damage_of(file.bytes()), IsEmpty());
}

TEST(TurboWindowFile, IsNotAppendedToByADenseWindow) {
  const CacheOnDisk file(windowed_file(300));
  cache::Cache other = must(load(file.bytes()));
  make_dense(std::get<cache::WindowLayer>(other.layers[0]), 300);
  EXPECT_THAT(
      file.append(other),
      test::FailsWith(
          ErrorCode::kMismatch,
          HasSubstr("layer 0: tqcache.rotating.v1 where the file has tqcache.rotating.v2")));
}

// --- from file to file

cache::ConvertOptions packing(WindowMode windows) {
  cache::ConvertOptions options{.n_threads = 2, .windows = windows};
  options.values.codec.bits = 3;
  return options;
}

// Dense windows of finite values, from the cache of turbo ones.
cache::Cache with_dense_windows(cache::Cache cache) {
  for (cache::Layer& layer : cache.layers) {
    auto* window = std::get_if<cache::WindowLayer>(&layer);
    if (window != nullptr) make_dense(*window, cache.n_tokens());
  }
  return cache;
}

Bytes converted(const Bytes& file, const cache::ConvertOptions& options) {
  const TempDir dir;
  must(format::convert_file(*memory_source(file), dir / "out.tqkv", options, {}));
  return read_all(dir / "out.tqkv");
}

TEST(TurboWindowFile, IsConvertedAsInMemory) {
  for (const std::int64_t n_tokens : {0, 100, 256, 512, 600, 1000}) {
    SCOPED_TRACE(n_tokens);
    const Bytes dense = file_of(with_dense_windows(
        windowed(n_tokens).dense({2, 64}).arrays().turbo_rotating({{2, 64}, 40, 0}, 8, 8).build()));
    for (const WindowMode windows :
         {WindowMode::kAsTheyAre, WindowMode::kTurbo, WindowMode::kTurboCentered}) {
      cache::ConvertOptions options = packing(windows);
      // The full attention of head_dim 4 has no codec, and stays as it is.
      const Bytes source = file_of([&] {
        cache::Cache cache = must(load(dense));
        cache.layers.erase(cache.layers.begin() + 1);
        return cache;
      }());
      const Bytes given = converted(source, options);
      const cache::Cache expected = must(cache::convert(must(load(source)), options));
      EXPECT_EQ(given, must(format::write_cache_bytes(expected, {})));
      // A turbo window stays what it is, whether it is asked for or not.
      EXPECT_EQ(converted(given, options), given);
      EXPECT_EQ(converted(given, packing(WindowMode::kAsTheyAre)), given);
    }
  }
}

// A full last block that was kept dense is packed, and a dense tensor beside a packed one.
TEST(TurboWindowFile, PacksWhatIsLeftToPack) {
  std::mt19937 random(1);
  cache::Cache cache = CacheBuilder(0).turbo_rotating({{1, 32}, 300, 0}, 4, 16).build();
  grow(cache, random, 512);
  const Bytes file = file_of(cache);
  for (const bool both : {false, true}) {
    cache::ConvertOptions options = packing(WindowMode::kTurbo);
    options.keys.center = cache::Centering::kNone;
    options.values.dense = !both;
    const Bytes given = converted(file, options);
    EXPECT_EQ(given, must(format::write_cache_bytes(must(cache::convert(cache, options)), {})));
    const cache::Cache packed = must(load(given));
    EXPECT_EQ(cache::packed_block_count(cache::attention_of(packed.layers[0])->k), 2);
    EXPECT_EQ(cache::packed_block_count(cache::attention_of(packed.layers[0])->v), both ? 2 : 0);
  }
}

TEST(TurboWindowFile, TellsWhereAWindowCannotBePacked) {
  cache::Cache cache =
      with_dense_windows(CacheBuilder(300).turbo_rotating({{1, 32}, 300, 0}, 4, 4).build());
  auto& layer = std::get<cache::WindowLayer>(cache.layers[0]);
  change_window(layer, layer.attention.v, 300, [](AlignedBytes& array, Dtype) {
    array[2 * 32 * 5] = std::byte{0};
    array[2 * 32 * 5 + 1] = std::byte{0x7c};  // infinity, of token 5
  });
  const Bytes file = file_of(cache);
  const TempDir dir;
  const auto refused =
      format::convert_file(*memory_source(file), dir / "out.tqkv", packing(WindowMode::kTurbo), {});
  const auto in_memory = cache::convert(must(load(file)), packing(WindowMode::kTurbo));
  expect_error(dropped(refused), ErrorCode::kCorrupt, "layer 0 v: token block 0: head 0");
  ASSERT_FALSE(in_memory.ok());
  EXPECT_EQ(refused.error().message, in_memory.error().message);
  EXPECT_EQ(dir.entry_count(), 0u);
}

// Windows of 64 GiB each: one may be packed, two may not.
ScriptedReader wide_windows(std::size_t n_layers) {
  cache::CacheDesc manifest;
  manifest.tokens.assign(1 << 22, 1);
  const cache::LayerDesc layer = cache::WindowDesc{{{64, 64}, {}, {}}, {1 << 22, 0}};
  manifest.layers.assign(n_layers, layer);
  return {manifest, [](std::size_t, AlignedBytes&) -> Result<void> {
            return Error{ErrorCode::kIo, "read"};
          }};
}

TEST(TurboWindowFile, IsNotMadeOfMoreThanMemoryMayHold) {
  const TempDir dir;
  const auto error_of = [&](std::size_t n_layers) {
    cache::ConvertOptions options = packing(WindowMode::kTurbo);
    options.memory = MemoryBudget::of_user(std::uint64_t{64} << 30);
    return format::convert_file(wide_windows(n_layers), dir / "a.tqkv", options, {});
  };
  expect_error(error_of(1), ErrorCode::kIo, "read");
  expect_error(error_of(2), ErrorCode::kTooLarge, "windows: 137438953472 bytes");
}

// --- for other programs

TEST(TurboWindowFile, IsAnArrayForOtherPrograms) {
  for (const std::int64_t n_tokens : {0, 40, 256, 600}) {
    const cache::Cache cache =
        windowed(n_tokens).arrays().turbo_rotating({{2, 64}, 40, 0}, 2, 16, Dtype::kF32).build();
    const auto file = memory_source(file_of(cache));
    const auto reader = must(format::SectionReader::open(*file));
    const auto dense = must(cache::dequantize(cache::borrow(reader)));
    must(cache::validate(dense->description()));
    cache::ConvertOptions all_dense;
    all_dense.keep_all = true;
    const TempDir dir;
    must(format::convert_file(*dense, dir / "a.tqkv", all_dense, {}));
    EXPECT_EQ(difference(must(load(read_all(dir / "a.tqkv"))), with_dense_windows(cache)), "");
  }
}

}  // namespace turbo_windows_test
}  // namespace tqcache::test
