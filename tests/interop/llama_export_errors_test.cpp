// What cannot be written as a state file of llama.cpp, and that then nothing is.

#include <gtest/gtest.h>

#include "llama_export_fixture.h"
#include "support/matchers.h"
#include "support/scripted_reader.h"

namespace tqcache::test {
namespace llama_export_errors_test {

using interop::LlamaLayerKind;

void expect_refused(const cache::Cache& cache, const LlamaGeometry& model,
                    const LlamaExport& options, ErrorCode code, const std::string& part) {
  const TempDir dir;
  EXPECT_THAT(interop::export_llama_state(*sections_of(cache), model, dir / "a", options),
              test::FailsWith(code, testing::HasSubstr(part)));
  EXPECT_EQ(dir.entry_count(), 0u);
}

cache::Cache small_cache() { return CacheBuilder(3).dense({2, 64}).dense({2, 64}).build(); }

void expect_invalid(const LlamaExport& options, const std::string& part) {
  const cache::Cache cache = small_cache();
  expect_refused(cache, geometry_of(cache), options, ErrorCode::kInvalidArgument, part);
}

TEST(LlamaExport, RefusesOtherVersions) {
  for (const std::uint32_t version : {0u, 2u, 8u, 12u}) {
    expect_invalid({.version = version}, "session files of version " + std::to_string(version));
  }
  for (const std::uint32_t version : {0u, 1u, 5u, 9u}) {
    expect_invalid({.kind = LlamaFile::kSequence, .version = version},
                   "sequence files of version " + std::to_string(version));
  }
}

TEST(LlamaExport, RefusesOtherRowTypes) {
  expect_invalid({.k_type = "turbo3"}, "row type \"turbo3\"");
  expect_invalid({.v_type = "F16\n"}, "row type \"F16?\"");
}

TEST(LlamaExport, RefusesOptionsThatLlamaCppDoesNotHave) {
  expect_invalid({.v_type = "q8_0", .flash_attention = false}, "without flash attention");
  expect_invalid({.server_tokens = true}, "a session file with the tokens of llama-server");
  expect_invalid({.next_token = -1}, "next token -1");
}

TEST(LlamaExport, RefusesBlocksThatDoNotDivideAHead) {
  const cache::Cache cache = CacheBuilder(3).dense({2, 80}).build();
  EXPECT_FALSE(exported(cache, geometry_of(cache)).empty());
  const std::string part = "layer 0: q4_0 has blocks of 32 values, which do not divide";
  expect_refused(cache, geometry_of(cache), {.k_type = "q4_0"}, ErrorCode::kInvalidArgument, part);
  expect_refused(cache, geometry_of(cache), {.v_type = "q4_0"}, ErrorCode::kInvalidArgument, part);
}

TEST(LlamaExport, RefusesHiddenTokens) {
  const cache::Cache cache = CacheBuilder(3).dense({2, 64}).hide_tokens().build();
  expect_refused(cache, geometry_of(cache), {}, ErrorCode::kInvalidArgument, "hides its tokens");
}

TEST(LlamaExport, RefusesAnotherModel) {
  const cache::Cache cache = small_cache();
  LlamaGeometry model = geometry_of(cache);
  model.architecture = "llama";
  expect_refused(cache, model, {}, ErrorCode::kMismatch, "architecture \"qwen3\" for a model of");
  model = geometry_of(cache);
  model.layers.pop_back();
  expect_refused(cache, model, {}, ErrorCode::kMismatch, "2 layers, the model has 1");
  for (auto number : {&interop::LlamaLayer::n_kv_heads, &interop::LlamaLayer::k_head_dim,
                      &interop::LlamaLayer::v_head_dim}) {
    model = geometry_of(cache);
    model.layers[1].*number = 32;
    expect_refused(cache, model, {}, ErrorCode::kMismatch,
                   "layer 1: 2 kv heads with keys of 64 and values of 64, the model");
  }
}

TEST(LlamaExport, TakesACacheOfUnknownOrigin) {
  cache::Cache cache = small_cache();
  const LlamaGeometry model = geometry_of(cache);
  cache.identity.architecture.clear();
  const Bytes bytes = exported(cache, model);
  EXPECT_EQ(take_apart(bytes).architecture, "qwen3");
}

TEST(LlamaExport, RefusesLayersOfAnotherKind) {
  const cache::Cache cache = small_cache();
  LlamaGeometry model = geometry_of(cache);
  model.layers[1].kind = LlamaLayerKind::kRecurrent;
  expect_refused(cache, model, {}, ErrorCode::kMismatch,
                 "layer 1: full attention, the model has recurrent state");
  model.layers[1].kind = LlamaLayerKind::kSlidingWindow;
  expect_refused(cache, model, {}, ErrorCode::kMismatch,
                 "layer 1: full attention, the model has a sliding window");
  const LlamaGeometry plain = geometry_of(cache);
  expect_refused(CacheBuilder(3).dense({2, 64}).rotating({{2, 64}, 8, 0}).build(), plain, {},
                 ErrorCode::kMismatch, "layer 1: a sliding window, the model has full attention");
  expect_refused(CacheBuilder(3).dense({2, 64}).turbo_rotating({{2, 64}, 8, 0}, 4, 4).build(),
                 plain, {}, ErrorCode::kMismatch, "layer 1: a sliding window, the model has");
  expect_refused(CacheBuilder(3).dense({2, 64}).arrays().build(), plain, {}, ErrorCode::kMismatch,
                 "layer 1: recurrent state, the model has full attention");
}

TEST(LlamaExport, RefusesOtherWindowsAndStates) {
  LlamaGeometry model = geometry_of(small_cache());
  model.layers[1].kind = LlamaLayerKind::kSlidingWindow;
  model.window = 8;
  const auto with_window = [](cache::Window window) {
    return CacheBuilder(3).dense({2, 64}).rotating({{2, 64}, window.size, window.keep}).build();
  };
  expect_refused(with_window({7, 0}), model, {}, ErrorCode::kMismatch,
                 "layer 1: a sliding window of 7 tokens, the model has 8");
  expect_refused(with_window({8, 2}), model, {}, ErrorCode::kUnsupported,
                 "layer 1: a sliding window that keeps first tokens");
  expect_refused(CacheBuilder(0).dense({2, 64}).rotating({{2, 64}, 8, 0}).build(), model, {},
                 ErrorCode::kInvalidArgument, "the cache is empty");
  model.layers[1] = {LlamaLayerKind::kRecurrent, 0, 0, 0, 6, 10};
  expect_refused(CacheBuilder(3).dense({2, 64}).arrays().build(), model, {},
                 ErrorCode::kUnsupported, "layer 1: recurrent state whose arrays");
}

TEST(LlamaExport, DoesNotReplaceAFileUnlessToldTo) {
  const cache::Cache cache = small_cache();
  const TempDir dir;
  write_all(dir / "a", "mine");
  const auto refused =
      interop::export_llama_state(*sections_of(cache), geometry_of(cache), dir / "a", {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(read_all(dir / "a").size(), 4u);
  must(interop::export_llama_state(*sections_of(cache), geometry_of(cache), dir / "a",
                                   {.overwrite = Overwrite::kAllow}));
  EXPECT_TRUE(read_all(dir / "a") == exported(cache, geometry_of(cache)));
}

TEST(LlamaExport, LeavesNothingWhenItIsStopped) {
  const cache::Cache cache = small_cache();
  for (int stop = 1; stop <= 4; ++stop) {
    const TempDir dir;
    int calls = 0;
    const auto done = interop::export_llama_state(
        *sections_of(cache), geometry_of(cache), dir / "a", {.flash_attention = stop % 2 == 0},
        [&](std::uint64_t, std::uint64_t) { return ++calls < stop; });
    ASSERT_FALSE(done.ok());
    EXPECT_EQ(done.error().code, ErrorCode::kInterrupted);
    EXPECT_EQ(dir.entry_count(), 0u);
  }
}

// Fails at one block.
ScriptedReader failing_reader(const cache::CacheReader& source, std::size_t failing) {
  return {source, [&source, failing](std::size_t block, AlignedBytes& raw) -> Result<void> {
            if (block == failing) return Error{ErrorCode::kIo, "the disk went bad"};
            return source.read(block, raw);
          }};
}

TEST(LlamaExport, HandsErrorsOfItsSourceOn) {
  const cache::Cache cache = small_cache();
  const auto sections = sections_of(cache);
  for (std::size_t failing = 0; failing < 4; ++failing) {
    for (const bool flash_attention : {true, false}) {
      const TempDir dir;
      const auto done =
          interop::export_llama_state(failing_reader(*sections, failing), geometry_of(cache),
                                      dir / "a", {.flash_attention = flash_attention});
      ASSERT_FALSE(done.ok());
      EXPECT_EQ(done.error().code, ErrorCode::kIo);
      EXPECT_EQ(dir.entry_count(), 0u);
    }
  }
}

TEST(LlamaExport, RefusesACodecThatIsNone) {
  const cache::Cache cache = CacheBuilder(300).turbo({2, 64}, 4, 3).build();
  const auto source = sections_of(cache);
  cache::CacheDesc wrong = source->description();
  std::get<cache::AttentionDesc>(wrong.layers[0]).k.quant->parts[0].bits = 9;
  const ScriptedReader said(wrong, source->blocks(),
                            [](std::size_t, AlignedBytes&) -> Result<void> { return {}; });
  const TempDir dir;
  EXPECT_FALSE(interop::export_llama_state(said, geometry_of(cache), dir / "a", {}).ok());
  EXPECT_EQ(dir.entry_count(), 0u);
}

TEST(LlamaExport, TellsOfADiskThatIsFull) {
  const cache::Cache cache = CacheBuilder(600).dense({2, 64}).build();
  const auto done = interop::export_llama_state(*sections_of(cache), geometry_of(cache),
                                                "/dev/full", {.overwrite = Overwrite::kAllow});
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::kIo);
}

}  // namespace llama_export_errors_test
}  // namespace tqcache::test
