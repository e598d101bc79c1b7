// Context checkpoints behind the slots of llama-server: of files that it wrote, and of files with
// one field changed.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "llama_export_fixture.h"
#include "llama_import_fixture.h"
#include "support/checkpoint_reader.h"
#include "support/matchers.h"
#include "tqcache/base/integers.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/quantize.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace llama_checkpoints_test {

using enum LlamaLayerKind;

// The models of tests/data/llama.cpp/slot_*.ggsq.
LlamaGeometry qwen35() {
  LlamaGeometry model;
  model.architecture = "qwen35";
  model.n_rot = 8;
  model.has_positions_2d = true;
  for (int i = 0; i < 3; ++i) model.layers.push_back({kRecurrent, 0, 0, 0, 192, 512});
  model.layers.push_back({kAttention, 1, 32, 32});
  return model;
}

LlamaGeometry gemma3() {
  LlamaGeometry model;
  model.architecture = "gemma3";
  model.n_rot = 32;
  model.window = 16;
  for (int i = 0; i < 5; ++i) model.layers.push_back({kSlidingWindow, 1, 32, 32});
  model.layers.push_back({kAttention, 1, 32, 32});
  return model;
}

struct Slot {
  const char* name;
  LlamaGeometry model;
};
std::vector<Slot> slots() {
  return {{"slot_qwen35.ggsq", qwen35()}, {"slot_gemma3.ggsq", gemma3()}};
}

Result<std::shared_ptr<const cache::CacheReader>> open(const Bytes& file,
                                                       const LlamaGeometry& model) {
  TQC_TRY_ASSIGN(LlamaImported imported, import_bytes(file, model));
  return interop::reader_of(std::move(imported.cache));
}

Bytes written(const cache::CacheReader& cache, const LlamaGeometry& model,
              const LlamaExport& options) {
  const TempDir dir;
  must(interop::export_llama_state(cache, model, dir / "a", options));
  return read_all(dir / "a");
}

const LlamaExport kSlot = {.kind = LlamaFile::kSequence, .version = 4, .server_tokens = true};

std::vector<std::int64_t> counts_of(const cache::CacheReader& cache) {
  std::vector<std::int64_t> counts;
  for (const cache::Checkpoint& checkpoint : cache.checkpoints()) {
    counts.push_back(checkpoint.n_tokens());
  }
  return counts;
}

TEST(LlamaCheckpoints, AreReadAndWrittenByteForByte) {
  for (const Slot& slot : slots()) {
    SCOPED_TRACE(slot.name);
    const Bytes file = llama_fixture(slot.name);
    const auto cache = must(open(file, slot.model));
    EXPECT_EQ(cache->n_tokens(), 150);
    EXPECT_EQ(counts_of(*cache), (std::vector<std::int64_t>{96, 100, 146}));
    EXPECT_EQ(written(*cache, slot.model, kSlot), file);
  }
}

TEST(LlamaCheckpoints, StayInATqkvFile) {
  for (const Slot& slot : slots()) {
    SCOPED_TRACE(slot.name);
    const Bytes slot_file = llama_fixture(slot.name);
    const auto cache = must(open(slot_file, slot.model));
    for (const auto compression :
         {format::Compression::kNone, format::Compression::kZstd, format::Compression::kPlanes}) {
      const Bytes file = must(format::write_cache_bytes(*cache, {.compression = compression}));
      EXPECT_TRUE(must(format::verify_cache(*memory_source(file))).damage.empty());
      const auto opened = must(interop::open_any(memory_source(file)));
      EXPECT_EQ(written(*opened.cache, slot.model, kSlot), slot_file);
    }
  }
}

template <class T>
Bytes changed(Bytes file, std::size_t at, T value) {
  std::memcpy(file.data() + at, &value, sizeof(value));
  return file;
}

// Where the appendix begins: the last "SCKP".
std::size_t appendix(const Bytes& file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  return text.rfind("SCKP");
}

// The state of a draft model and of speculative decoding (5 and 8 bytes in the second checkpoint,
// none in the others), and the number of the slot.
Bytes with_draft(const Bytes& file) {
  std::size_t at = appendix(file) + 12;
  const auto partial = [&] { return number_at<std::uint64_t>(file, at + 16); };
  at += 24 + partial() + 16;  // the second checkpoint
  Bytes changed_file = changed<std::int32_t>(file, at + 24 + 4, 3);
  const std::size_t draft = at + 24 + partial();
  Bytes others;
  const auto append_bytes = [&](std::uint64_t n, std::byte value) {
    const auto length = std::as_bytes(std::span(&n, 1));
    others.insert(others.end(), length.begin(), length.end());
    others.insert(others.end(), n, value);
  };
  append_bytes(5, std::byte{9});
  append_bytes(8, std::byte{7});
  const auto begin = changed_file.begin() + static_cast<std::ptrdiff_t>(draft);
  changed_file.erase(begin, begin + 16);
  changed_file.insert(changed_file.begin() + static_cast<std::ptrdiff_t>(draft), others.begin(),
                      others.end());
  return changed_file;
}

// Golden files: tests/golden/v2_checkpoints was written once, and is read the same for good.
TEST(LlamaCheckpoints, OfGoldenFilesAreThoseOfTheSlots) {
  const auto folder = std::filesystem::path(TQCACHE_TEST_DATA) / "../golden/v2_checkpoints";
  const std::vector<std::pair<const char*, const char*>> goldens = {
      {"hybrid.tqkv", "5bbe1acefeb03238ce6ab2df479a2e726a4fc4103a709cef2f42992705deb0d2"},
      {"windows.tqkv", "4c7a369a4a2c075eea97c1e201a47c4dde8a102955f52c2677b35165abfbd8e6"}};
  for (std::size_t i = 0; i < goldens.size(); ++i) {
    const Bytes file = read_all(folder / goldens[i].first);
    const auto report = must(format::verify_cache(*memory_source(file)));
    EXPECT_TRUE(report.damage.empty());
    EXPECT_EQ(to_hex(report.info.content_name), goldens[i].second);
    const auto opened = must(interop::open_any(memory_source(file)));
    EXPECT_EQ(written(*opened.cache, slots()[i].model, kSlot), llama_fixture(slots()[i].name));
  }
  const Bytes slot = with_draft(llama_fixture("slot_qwen35.ggsq"));
  const Bytes draft = read_all(folder / "draft.tqkv");
  EXPECT_TRUE(must(format::verify_cache(*memory_source(draft))).damage.empty());
  const auto opened = must(interop::open_any(memory_source(draft)));
  EXPECT_EQ(written(*opened.cache, qwen35(), kSlot), slot);
}

// The state at a checkpoint is what a slot of so many tokens has.
TEST(LlamaCheckpoints, AreStatesOfTheCache) {
  for (const Slot& slot : slots()) {
    SCOPED_TRACE(slot.name);
    const auto cache = must(open(llama_fixture(slot.name), slot.model));
    const auto first = must(cache::first_tokens(cache, 100));
    EXPECT_EQ(first->n_tokens(), 100);
    EXPECT_EQ(counts_of(*first), std::vector<std::int64_t>{96});
    const cache::Cache loaded = must(read_sections(*first));
    EXPECT_EQ(loaded.layers.size(), slot.model.layers.size());
    const cache::CacheReader& state = *cache->checkpoints()[1].state;
    for (std::size_t i = 0; i < state.blocks().size(); ++i) {
      const cache::BlockIndex index(first->blocks());
      AlignedBytes of_state, of_first;
      must(state.read(i, of_state));
      // Layers that cannot go back come first in both models.
      must(first->read(index.at(cache::key_of(state.blocks()[i])), of_first));
      EXPECT_EQ(of_first, of_state);
    }
    EXPECT_EQ(cache::last_state_before(*cache, 149), 146);
    EXPECT_EQ(cache::last_state_before(*cache, 99), 96);
    EXPECT_EQ(cache::last_state_before(*cache, 95), 0);
    EXPECT_EQ(cache::last_state_before(*cache, 150), 150);
    EXPECT_THAT(cache::first_tokens(cache, 101),
                test::FailsWith(ErrorCode::kUnsupported,
                                testing::HasSubstr("checkpoints at 96, 100, 146")));
  }
}

TEST(LlamaCheckpoints, CutTheCacheWhenItIsOpened) {
  const TempDir dir;
  write_all(dir / "slot", llama_fixture("slot_gemma3.ggsq"));
  const auto opened =
      must(interop::open_any(dir / "slot", {.first_tokens = 100, .geometry = gemma3()}));
  EXPECT_EQ(opened.cache->n_tokens(), 100);
  const auto between = interop::open_any(dir / "slot", {.first_tokens = 99, .geometry = gemma3()});
  ASSERT_FALSE(between);
  EXPECT_EQ(between.error().code, ErrorCode::kInvalidArgument);
}

// --- files with one field changed

TEST(LlamaCheckpoints, RefuseWrongFields) {
  for (const Slot& slot : slots()) {
    SCOPED_TRACE(slot.name);
    const Bytes file = llama_fixture(slot.name);
    const std::size_t begin = appendix(file);
    const std::size_t first = begin + 12;  // the first checkpoint
    const auto state_bytes = number_at<std::uint64_t>(file, first + 16);
    const std::size_t second = first + 24 + state_bytes + 16;
    const auto refused = [&](const Bytes& bad, const char* part) {
      EXPECT_THAT(open(bad, slot.model),
                  test::FailsWith(ErrorCode::kCorrupt, testing::HasSubstr(part)));
    };
    refused(changed<std::int64_t>(file, first, 0), "at 0 tokens of 150");
    refused(changed<std::int64_t>(file, first, -1), "at -1 tokens of 150");
    refused(changed<std::int64_t>(file, first, 151), "at 151 tokens of 150");
    refused(changed<std::int64_t>(file, first, std::int64_t{1} << 62), "tokens of 150");
    refused(changed<std::int64_t>(file, first, 97), "its last position is 95");
    refused(changed<std::int32_t>(file, first + 12, 94), "its last position is 94");
    refused(changed<std::int32_t>(file, first + 8, 96), "first position 96 of 96 tokens");
    refused(changed<std::int32_t>(file, first + 8, -1), "first position -1 of 96 tokens");
    refused(changed<std::uint32_t>(file, first + 24, 7), "not the state of a sequence");
    refused(changed<std::uint64_t>(file, first + 16, state_bytes - 1), "its sections have");
    refused(changed<std::uint64_t>(file, first + 16, state_bytes + 1), "its sections have");
    refused(changed<std::uint32_t>(file, begin + 8, 2), "behind the last one");
    // Two of the same number of tokens.
    Bytes twice(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(second));
    twice.insert(twice.end(), file.begin() + static_cast<std::ptrdiff_t>(first),
                 file.begin() + static_cast<std::ptrdiff_t>(second));
    refused(changed<std::uint32_t>(twice, begin + 8, 2), "at 96 tokens, after one at 96");
  }
}

// Nobody could resume from a window that lacks tokens.
TEST(LlamaCheckpoints, IncompleteWindowsAreLeftOut) {
  const Bytes file = llama_fixture("slot_gemma3.ggsq");
  const std::size_t first = appendix(file) + 12;
  const auto n = number_at<std::int64_t>(file, first);
  const auto checkpoints_with = [&](std::int32_t first_position) {
    return must(open(changed(file, first + 8, first_position), gemma3()))->checkpoints().size();
  };
  const std::size_t n_all = must(open(file, gemma3()))->checkpoints().size();
  EXPECT_EQ(checkpoints_with(static_cast<std::int32_t>(n - 16)), n_all);
  EXPECT_EQ(checkpoints_with(static_cast<std::int32_t>(n - 15)), n_all - 1);
  const LlamaImported imported =
      must(import_bytes(changed(file, first + 8, static_cast<std::int32_t>(n - 15)), gemma3()));
  EXPECT_TRUE(std::ranges::any_of(imported.cache.dropped_fields, [](const std::string& field) {
    return field.find("lack their first tokens") != std::string::npos;
  }));
}

// llama-server writes them in the order in which it made them.
TEST(LlamaCheckpoints, MayBeInAnyOrder) {
  for (const Slot& slot : slots()) {
    SCOPED_TRACE(slot.name);
    const Bytes file = llama_fixture(slot.name);
    const std::size_t begin = appendix(file);
    std::vector<std::size_t> at = {begin + 12};
    const auto n = number_at<std::uint32_t>(file, begin + 8);
    for (std::uint32_t i = 0; i < n; ++i) {
      std::size_t end = at.back() + 16;
      for (int blob = 0; blob < 3; ++blob) end += 8 + number_at<std::uint64_t>(file, end);
      at.push_back(end);
    }
    ASSERT_EQ(at.back(), file.size());
    Bytes backwards(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(at.front()));
    for (std::size_t i = n; i > 0; --i) {
      backwards.insert(backwards.end(), file.begin() + static_cast<std::ptrdiff_t>(at[i - 1]),
                       file.begin() + static_cast<std::ptrdiff_t>(at[i]));
    }
    const auto sorted = must(open(file, slot.model)), opened = must(open(backwards, slot.model));
    EXPECT_EQ(must(format::write_cache_bytes(*opened, {})),
              must(format::write_cache_bytes(*sorted, {})));
  }
}

TEST(LlamaCheckpoints, RefuseWrongCountsAndLengths) {
  for (const Slot& slot : slots()) {
    SCOPED_TRACE(slot.name);
    const Bytes file = llama_fixture(slot.name);
    const std::size_t begin = appendix(file);
    const auto code_of = [&](const Bytes& bad) {
      const auto cache = open(bad, slot.model);
      return cache ? std::optional<ErrorCode>() : cache.error().code;
    };
    EXPECT_EQ(code_of(changed<std::uint32_t>(file, begin + 4, 2)), ErrorCode::kUnsupported);
    EXPECT_EQ(code_of(changed<std::uint32_t>(file, begin + 8, 1025)), ErrorCode::kTooLarge);
    EXPECT_EQ(code_of(changed<std::uint32_t>(file, begin + 8, 4)), ErrorCode::kTruncated);
    for (const std::uint64_t length : {std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
      EXPECT_EQ(code_of(changed(file, begin + 12 + 16, length)), ErrorCode::kTruncated);
    }
    for (std::size_t cut = 1; cut < file.size() - begin - 4; cut += 997) {
      Bytes bytes = file;
      bytes.resize(bytes.size() - cut);
      EXPECT_TRUE(code_of(bytes).has_value()) << cut;
    }
    // Without the appendix it is a slot without checkpoints.
    Bytes bare = file;
    bare.resize(begin);
    EXPECT_TRUE(must(open(bare, slot.model))->checkpoints().empty());
  }
}

TEST(LlamaCheckpoints, KeepTheStateOfADraftModel) {
  const Bytes file = with_draft(llama_fixture("slot_qwen35.ggsq"));
  LlamaImported imported = must(import_bytes(file, qwen35()));
  EXPECT_TRUE(imported.cache.dropped_fields.empty());
  const auto cache = must(interop::reader_of(std::move(imported.cache)));
  EXPECT_EQ(written(*cache, qwen35(), kSlot), file);
  for (const cache::Checkpoint& checkpoint : cache->checkpoints()) {
    EXPECT_EQ(checkpoint.state->description().layers.size(), 4u);
    EXPECT_NE(cache::opaque_layer(checkpoint.state->description().layers), nullptr);
  }
  const auto turbo = must(cache::quantize(cache, must(cache::preset("turbo4"))));
  for (const auto& reader : {cache, turbo}) {
    const Bytes tqkv = must(format::write_cache_bytes(*reader, {}));
    EXPECT_TRUE(must(format::verify_cache(*memory_source(tqkv))).damage.empty());
    const auto opened = must(interop::open_any(memory_source(tqkv)));
    const Bytes again = written(*opened.cache, qwen35(), kSlot);
    // The whole slot; of the quantized one at least everything behind keys and values.
    if (reader == cache) {
      EXPECT_EQ(again, file);
    }
    ASSERT_EQ(again.size(), file.size());
    const auto begin = static_cast<std::ptrdiff_t>(appendix(file));
    EXPECT_TRUE(std::equal(again.begin() + begin, again.end(), file.begin() + begin));
    // At a checkpoint it is a cache without an opaque layer.
    const auto earlier = must(cache::first_tokens(opened.cache, 100));
    EXPECT_EQ(earlier->description().layers.size(), 4u);
    EXPECT_EQ(counts_of(*earlier), std::vector<std::int64_t>{96});
    must(cache::load(*earlier));
  }
}

// Where no state of a draft model is, nothing is added to what older readers know.
TEST(LlamaCheckpoints, HaveNoOpaqueLayerWithoutADraftModel) {
  const auto cache = must(open(llama_fixture("slot_qwen35.ggsq"), qwen35()));
  for (const cache::Checkpoint& checkpoint : cache->checkpoints()) {
    EXPECT_EQ(cache::opaque_layer(checkpoint.state->description().layers), nullptr);
  }
}

// --- files of caches without checkpoints

TEST(LlamaCheckpoints, AreNotNeededToWriteAHybrid) {
  const Bytes file = llama_fixture("slot_qwen35.ggsq");
  const auto cache = cache::without_checkpoints(must(open(file, qwen35())));
  Bytes bare = file;
  bare.resize(appendix(file));
  EXPECT_EQ(written(*cache, qwen35(), kSlot), bare);
}

TEST(LlamaCheckpoints, OfASlotWithWindowsHaveOneAtTheEnd) {
  const auto cache =
      cache::without_checkpoints(must(open(llama_fixture("slot_gemma3.ggsq"), gemma3())));
  const auto again = must(open(written(*cache, gemma3(), kSlot), gemma3()));
  EXPECT_EQ(counts_of(*again), std::vector<std::int64_t>{150});
  EXPECT_EQ(again->checkpoints()[0].first_position, 0);
  LlamaExport plain = kSlot;
  plain.server_tokens = false;
  EXPECT_TRUE(must(open(written(*cache, gemma3(), plain), gemma3()))->checkpoints().empty());
}

TEST(LlamaCheckpoints, AreDroppedWhereAFileHasNoPlaceForThem) {
  for (const Slot& slot : slots()) {
    const auto cache = must(open(llama_fixture(slot.name), slot.model));
    for (const LlamaExport& options : {LlamaExport{.kind = LlamaFile::kSession, .version = 11},
                                       LlamaExport{.kind = LlamaFile::kSequence, .version = 3}}) {
      const auto again = must(open(written(*cache, slot.model, options), slot.model));
      EXPECT_TRUE(again->checkpoints().empty());
      const cache::Cache a = must(read_sections(*cache)), b = must(read_sections(*again));
      const auto difference = must(cache::diff(a, b, 1));
      EXPECT_TRUE(difference.arrays_equal);
      EXPECT_EQ(difference.k.max_abs, 0);
    }
  }
}

// Columns instead of rows, and rows that are quantized.
TEST(LlamaCheckpoints, AreWrittenInEveryLayout) {
  const auto cache = must(open(llama_fixture("slot_gemma3.ggsq"), gemma3()));
  LlamaExport columns = kSlot;
  columns.flash_attention = false;
  const auto again = must(open(written(*cache, gemma3(), columns), gemma3()));
  EXPECT_EQ(written(*again, gemma3(), kSlot), llama_fixture("slot_gemma3.ggsq"));

  LlamaExport q8 = kSlot;
  q8.k_type = q8.v_type = "q8_0";
  const Bytes first = written(*cache, gemma3(), q8);
  const auto decoded = must(open(first, gemma3()));
  EXPECT_EQ(counts_of(*decoded), counts_of(*cache));
  EXPECT_EQ(written(*decoded, gemma3(), q8), first);
}

// A turbo window in a checkpoint shares the codec of the cache's window.
TEST(LlamaCheckpoints, CanBeQuantized) {
  cache::ConvertOptions options = must(cache::preset("turbo4"));
  options.windows = cache::WindowMode::kTurbo;
  const auto cache = must(open(llama_fixture("slot_gemma3.ggsq"), gemma3()));
  const auto quantized = must(cache::quantize(cache, options));
  const Bytes file = must(format::write_cache_bytes(*quantized, {}));
  EXPECT_TRUE(must(format::verify_cache(*memory_source(file))).damage.empty());
  const auto opened = must(interop::open_any(memory_source(file)));
  EXPECT_EQ(counts_of(*opened.cache), counts_of(*cache));
  EXPECT_EQ(must(open(written(*opened.cache, gemma3(), kSlot), gemma3()))->checkpoints().size(),
            3u);
}

// --- latent attention

LlamaGeometry deepseek2() {
  LlamaGeometry model;
  model.architecture = "deepseek2";
  model.n_rot = 64;
  for (int i = 0; i < 2; ++i) model.layers.push_back({kAttention, 1, 128, 64, 0, 0, true});
  return model;
}

// Rows of llama.cpp are the latent, then the part that rotates; K is the latent, V the other.
TEST(LlamaLatents, AreReadAndWrittenByteForByte) {
  const Bytes file = llama_fixture("slot_deepseek2_f16.ggsq");
  const auto cache = must(open(file, deepseek2()));
  const auto& layer = std::get<cache::AttentionDesc>(cache->description().layers[1]);
  EXPECT_EQ(layer.shape, (cache::HeadShape{1, 128}));
  EXPECT_EQ(layer.value_dim, 64);
  EXPECT_EQ(written(*cache, deepseek2(), kSlot), file);

  // Behind the tokens: streams, cells, then of layer 0 type, bytes of a row, rows.
  const std::size_t begin = 12 + 4 * 44 + 8 + 40 * 12 + 16;
  ASSERT_EQ(number_at<std::uint64_t>(file, begin + 4), 384u);
  const ByteView rows = ByteView(file).subspan(begin + 12, 40 * 384);
  AlignedBytes k, v;
  must(cache->read(0, k));
  must(cache->read(1, v));
  for (std::size_t token = 0; token < 40; ++token) {
    const ByteView row = rows.subspan(token * 384, 384);
    EXPECT_TRUE(std::ranges::equal(row.first(256), std::span(k).subspan(token * 256, 256)));
    EXPECT_TRUE(std::ranges::equal(row.last(128), std::span(v).subspan(token * 128, 128)));
  }

  const Bytes tqkv = must(format::write_cache_bytes(*cache, {}));
  const auto opened = must(interop::open_any(memory_source(tqkv)));
  EXPECT_EQ(written(*opened.cache, deepseek2(), kSlot), file);
}

TEST(LlamaLatents, AreReadFromQuantizedRows) {
  LlamaExport q8 = kSlot;
  q8.k_type = q8.v_type = "q8_0";
  const Bytes file = llama_fixture("slot_deepseek2_q8_0.ggsq");
  const auto cache = must(open(file, deepseek2()));
  EXPECT_EQ(written(*cache, deepseek2(), q8), file);
  // Layer 0 depends on nothing but tokens and positions, and the rotation is undone.
  const cache::Cache a =
      must(read_sections(*must(open(llama_fixture("slot_deepseek2_f16.ggsq"), deepseek2()))));
  const cache::Cache b = must(read_sections(*cache));
  const auto difference = must(cache::diff(a, b, 1));
  EXPECT_LT(difference.layers[0].k.relative_mse, 1e-4);
  EXPECT_LT(difference.layers[0].v.relative_mse, 1e-4);
}

// Without flash attention llama.cpp says that values are transposed, and has none all the same.
TEST(LlamaLatents, HaveNoColumns) {
  LlamaExport columns = kSlot;
  columns.flash_attention = false;
  const Bytes file = llama_fixture("slot_deepseek2_f16.ggsq");
  const std::size_t flag = 12 + 4 * 44 + 8 + 40 * 12;
  const Bytes off = changed<std::uint32_t>(file, flag, 1);
  EXPECT_EQ(written(*must(open(off, deepseek2())), deepseek2(), columns), off);
}

TEST(LlamaLatents, OfAnotherModelAreRefused) {
  const Bytes file = llama_fixture("slot_deepseek2_f16.ggsq");
  LlamaGeometry other = deepseek2();
  for (auto& layer : other.layers) layer.k_head_dim = 64;
  EXPECT_EQ(open(file, other).error().code, ErrorCode::kMismatch);
  other = deepseek2();
  for (auto& layer : other.layers) layer.is_latent = false;
  EXPECT_EQ(open(file, other).error().code, ErrorCode::kMismatch);
  // A run of rotated values, of which there are none.
  const std::size_t run = 12 + 4 * 44 + 8 + 40 * 12 + 12;
  EXPECT_EQ(open(changed<std::uint32_t>(file, run, 64), deepseek2()).error().code,
            ErrorCode::kUnsupported);
  const TempDir dir;
  const cache::Cache plain = CacheBuilder(3).dense({1, 128}).dense({1, 128}).build();
  EXPECT_EQ(
      interop::export_llama_state(*sections_of(plain), deepseek2(), dir / "a", kSlot).error().code,
      ErrorCode::kMismatch);
}

// --- states of other programs

// [1, kernel - 1, channels] and [1, value heads, values, keys], with two heads of one key head
// each.
cache::Cache hybrid_of_ours() {
  cache::Cache cache = CacheBuilder(3).dense({1, 32}).build();
  cache::StateLayer state;
  const auto add = [&](const char* name, std::vector<std::uint64_t> shape) {
    cache::NamedArray array{name, Dtype::kF32, std::move(shape), {}};
    std::vector<float> values(element_count(array.shape).value());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const auto bytes = std::as_bytes(std::span(values));
    array.data.assign(bytes.begin(), bytes.end());
    state.arrays.push_back(std::move(array));
  };
  add("0", {1, 2, 12});  // channels: q and k of one head of 2, v of four heads of 2
  add("1", {1, 4, 2, 2});
  cache.layers.insert(cache.layers.begin(), std::move(state));
  return cache;
}

TEST(LlamaStates, OfOursBecomeRows) {
  const cache::Cache cache = hybrid_of_ours();
  LlamaGeometry model;
  model.architecture = cache.identity.architecture;
  model.n_rot = 32;
  model.layers = {{kRecurrent, 0, 0, 0, 24, 16}, {kAttention, 1, 32, 32}};
  const auto again = must(open(exported(cache, model), model));
  const cache::Cache loaded = must(read_sections(*again));
  const auto& rows = std::get<cache::StateLayer>(loaded.layers[0]);
  const std::vector<float> r = array_values(rows.arrays[0]);
  for (std::size_t channel = 0; channel < 12; ++channel) {
    EXPECT_EQ(r[2 * channel], static_cast<float>(channel));
    EXPECT_EQ(r[2 * channel + 1], static_cast<float>(12 + channel));
  }
  const std::vector<float> s = array_values(rows.arrays[1]);
  for (std::size_t i = 0; i < s.size(); ++i) EXPECT_EQ(s[i], static_cast<float>(i));
}

TEST(LlamaStates, OfOtherSizesAreRefused) {
  const cache::Cache cache = hybrid_of_ours();
  LlamaGeometry model;
  model.architecture = cache.identity.architecture;
  model.layers = {{kRecurrent, 0, 0, 0, 24, 20}, {kAttention, 1, 32, 32}};
  const TempDir dir;
  EXPECT_THAT(interop::export_llama_state(*sections_of(cache), model, dir / "a", {}),
              test::FailsWith(ErrorCode::kMismatch,
                              testing::HasSubstr("layer 0: recurrent state of 24 and 16 values")));
  EXPECT_EQ(dir.entry_count(), 0u);
}

}  // namespace llama_checkpoints_test
}  // namespace tqcache::test
