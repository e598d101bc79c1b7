// Images in slots of llama-server.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "llama_models.h"
#include "llama_state_writer.h"
#include "support/cache_builder.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/interop/foreign_cache.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace llama_media_test {

using interop::LlamaFile;
using interop::LlamaGeometry;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kDigest = "3797680d402665efcdb237f0dfea4150022e18699978758aaf45d51320746d94";

// As mtmd_input_chunk_save() begins: u64 version, u32 kind; the digest stands somewhere behind.
std::string chunk_of(char kind, const std::string& digest) {
  return std::string("\2\0\0\0\0\0\0\0", 8) + kind + std::string(12, '\0') + digest +
         std::string("\0\x30", 2);
}

// 12 tokens: text, an image of two rows and three columns from token 2 on, text, a sound of two.
StateSpec slot(const LlamaGeometry& model) {
  StateSpec spec = plain_spec(model, 12);
  spec.kind = LlamaFile::kSequence;
  spec.version = 4;
  for (const auto& profile : interop::llama_profiles(spec.kind, 4, model)) {
    if ((profile.cell_ext > 0) == model.has_positions_2d) spec.profile = profile;
  }
  spec.wrapped = true;
  spec.n_media = 2;
  spec.media = {{2, chunk_of(1, kDigest)}, {10, chunk_of(2, "none")}};
  for (const std::size_t i : {2U, 3U, 4U, 5U, 6U, 7U, 10U, 11U}) spec.tokens[i] = -1;
  if (!model.has_positions_2d) return spec;
  // The image takes 3 positions, the sound 2.
  spec.cells = {{0, 0, 0}, {1, 1, 1}, {2, 2, 2}, {2, 3, 2}, {2, 4, 2}, {2, 2, 3},
                {2, 3, 3}, {2, 4, 3}, {5, 5, 5}, {6, 6, 6}, {7, 7, 7}, {8, 8, 8}};
  return spec;
}

LlamaGeometry model_2d() {
  LlamaGeometry model = plain_model();
  model.has_positions_2d = true;
  return model;
}

Result<std::shared_ptr<const cache::CacheReader>> import_file(const LlamaGeometry& model,
                                                              const Bytes& file) {
  TQC_TRY_ASSIGN(auto imported, interop::import_llama_state(memory_source(file), model, {}));
  return interop::reader_of(std::move(imported.cache));
}

TEST(LlamaMedia, HaveTheirPlacesAndNames) {
  for (const LlamaGeometry& model : {plain_model(), model_2d()}) {
    const auto reader = must(import_file(model, write_state(model, slot(model))));
    const auto& media = reader->description().media;
    ASSERT_EQ(media.size(), 2u);
    EXPECT_EQ(media[0].kind, cache::MediaKind::kImage);
    EXPECT_EQ(media[0].id, "sha256:" + kDigest);
    EXPECT_EQ(std::pair(media[0].begin, media[0].n_tokens), std::pair(2l, 6l));
    EXPECT_EQ(media[1].kind, cache::MediaKind::kAudio);
    EXPECT_THAT(media[1].id, testing::StartsWith("chunk:"));
    EXPECT_EQ(std::pair(media[1].begin, media[1].n_tokens), std::pair(10l, 2l));
    if (!model.has_positions_2d) {
      EXPECT_THAT(media[0].coordinates, ElementsAre());
      EXPECT_EQ(cache::position_of(media, 12), 12);
      continue;
    }
    EXPECT_THAT(media[0].coordinates,
                ElementsAre(2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 2, 3, 4, 2, 3, 4));
    EXPECT_EQ(media[0].next_position, 5);
    EXPECT_EQ(cache::position_of(media, 12), 9);
  }
}

TEST(LlamaMedia, GoBackAsTheyCame) {
  for (const LlamaGeometry& model : {plain_model(), model_2d()}) {
    const Bytes file = write_state(model, slot(model));
    cache::Cache cache = must(cache::load(*must(import_file(model, file))));
    cache.identity.architecture = model.architecture;
    const TempDir dir;
    interop::LlamaExport options;
    options.kind = LlamaFile::kSequence;
    options.version = 4;
    options.server_tokens = true;
    must(interop::export_llama_state(*cache::reader_of(cache), model, dir / "a", options));
    EXPECT_EQ(read_all(dir / "a"), file);
    options.server_tokens = false;
    EXPECT_THAT(interop::export_llama_state(*cache::reader_of(cache), model, dir / "b", options),
                FailsWith(ErrorCode::kUnsupported, HasSubstr("--llama-server-tokens")));
    options.server_tokens = true;
    cache.media[0].source.clear();
    EXPECT_THAT(interop::export_llama_state(*cache::reader_of(cache), model, dir / "b", options),
                FailsWith(ErrorCode::kUnsupported, HasSubstr("media of another program")));
  }
}

// The order of the cells in a file is that of the memory of a server.
TEST(LlamaMedia, AreFoundInAnyOrderOfCells) {
  const LlamaGeometry model = model_2d();
  StateSpec spec = slot(model);
  const auto in_order = must(import_file(model, write_state(model, spec)));
  std::swap(spec.cells[1], spec.cells[9]);
  std::swap(spec.cells[3], spec.cells[6]);
  const auto mixed = must(import_file(model, write_state(model, spec)));
  EXPECT_EQ(mixed->description().media, in_order->description().media);
  // Cell 9 has the values of token 1 now.
  const auto keys = [](const cache::CacheReader& reader) {
    AlignedBytes raw;
    must(reader.read(0, raw));
    return raw;
  };
  const std::size_t row = keys(*mixed).size() / 12 / 2;  // two kv heads, 12 tokens
  const AlignedBytes a = keys(*in_order), b = keys(*mixed);
  EXPECT_TRUE(std::equal(b.begin() + static_cast<std::ptrdiff_t>(row),
                         b.begin() + static_cast<std::ptrdiff_t>(2 * row),
                         a.begin() + static_cast<std::ptrdiff_t>(9 * row)));
}

TEST(LlamaMedia, AreRefusedWhereTheListDoesNotFit) {
  const LlamaGeometry model = model_2d();
  struct Case {
    ErrorCode code;
    std::string part;
    std::function<void(StateSpec&)> spoil;
  };
  using enum ErrorCode;
  for (const Case& each : std::vector<Case>{
           {kCorrupt, "token 5: -1", [](StateSpec& spec) { spec.tokens[4] = 9; }},
           {kCorrupt, "media 0: it begins", [](StateSpec& spec) { spec.media[0].first = 1; }},
           {kCorrupt, "media 1: it begins", [](StateSpec& spec) { spec.media[1].first = 12; }},
           {kCorrupt, "media 1: it begins", [](StateSpec& spec) { spec.media[1].first = 1; }},
           {kCorrupt, "media of 0 bytes", [](StateSpec& spec) { spec.media[0].second.clear(); }},
           {kTooLarge, "media", [](StateSpec& spec) { spec.n_media = 1 << 20; }},
           {kUnsupported, "two cells at position 2",
            [](StateSpec& spec) { spec.cells[4] = spec.cells[3]; }},
           {kUnsupported, "positions with gaps",
            [](StateSpec& spec) {
              spec.cells[9] = {20, 20, 20};
            }},
           {kUnsupported, "does not name", [](StateSpec& spec) {
              spec.media.clear();
              spec.n_media = 0;
              for (std::int32_t& id : spec.tokens) id = std::max(id, 1);
            }}}) {
    StateSpec spec = slot(model);
    each.spoil(spec);
    EXPECT_THAT(import_file(model, write_state(model, spec)),
                FailsWith(each.code, HasSubstr(each.part)))
        << each.part;
  }
}

}  // namespace llama_media_test
}  // namespace tqcache::test
