// State files of llama.cpp in every layout: what is in them comes out, in the order of positions.

#include <algorithm>
#include <random>

#include "llama_import_fixture.h"
#include "support/matchers.h"
#include "tqcache/interop/llama/llama_parse.h"

namespace tqcache::test {
namespace llama_import_test {

using enum LlamaLayerKind;
using interop::llama_profiles;

// Every layout of every version, and as many tokens.
std::vector<StateSpec> all_layouts(const LlamaGeometry& model, std::int64_t n) {
  std::vector<StateSpec> specs;
  for (const LlamaFile kind : {LlamaFile::kSession, LlamaFile::kSequence}) {
    for (std::uint32_t version = 0; version < 12; ++version) {
      for (const auto& profile : llama_profiles(kind, version, model)) {
        StateSpec spec = plain_spec(model, n);
        spec.kind = kind;
        spec.version = version;
        spec.profile = profile;
        if (!profile.windows_are_apart) spec.window_positions.clear();
        specs.push_back(spec);
      }
    }
  }
  return specs;
}

TEST(LlamaProfiles, AreThoseOfTheVersionsThereAre) {
  EXPECT_EQ(all_layouts(plain_model(), 1).size(), 1U + 4 + 2 + 2 + 3 + 2 + 2);
  EXPECT_EQ(all_layouts(window_model(), 1).size(), 2U + 5 + 2 + 2 + 4 + 2 + 2);
}

TEST(LlamaImport, ReadsEveryLayout) {
  for (const LlamaGeometry& model :
       {plain_model(), window_model(), hybrid_model(), model_of({kSlidingWindow, kSlidingWindow}),
        model_of({kRecurrent, kRecurrent}), model_of({kSlidingWindow, kRecurrent, kAttention})}) {
    for (const StateSpec& spec : all_layouts(model, 9)) {
      SCOPED_TRACE(std::to_string(spec.version) + " " + spec.profile.words);
      expect_imported(model, spec);
    }
  }
}

TEST(LlamaImport, ReadsKeysAndValuesOfDifferentSizes) {
  LlamaGeometry plain = plain_model(), windows = window_model();
  plain.layers[1].v_head_dim = 16;
  for (interop::LlamaLayer& layer : windows.layers) layer.k_head_dim = 48;
  for (const LlamaGeometry& model : {plain, windows}) {
    for (const StateSpec& spec : all_layouts(model, 300)) expect_imported(model, spec);
    StateSpec transposed = plain_spec(model, 300);
    transposed.transposed = true;
    expect_imported(model, transposed);
  }
}

// Cells of a ring are where they were written, and not in the order of positions.
TEST(LlamaImport, ReadsRingsOutOfOrder) {
  for (const LlamaGeometry& model : {plain_model(), window_model()}) {
    for (StateSpec spec : all_layouts(model, 40)) {
      for (auto* cells : {&spec.positions, &spec.window_positions}) {
        std::rotate(cells->begin(), cells->begin() + std::ssize(*cells) / 3, cells->end());
      }
      expect_imported(model, spec);
      std::ranges::reverse(spec.positions);
      std::ranges::reverse(spec.window_positions);
      expect_imported(model, spec);
      spec.transposed = true;
      expect_imported(model, spec);
    }
  }
}

TEST(LlamaImport, SaysWhichLayoutItFound) {
  for (const LlamaGeometry& model : {plain_model(), window_model()}) {
    for (const StateSpec& spec : all_layouts(model, 3)) {
      const auto imported = import_spec(model, spec);
      ASSERT_TRUE(imported) << imported.error().message;
      const auto& facts = imported->cache.metadata;
      ASSERT_EQ(facts.size(), 5U);
      EXPECT_EQ(facts[0].first, "llama.cpp");
      EXPECT_EQ(facts[0].second,
                (spec.kind == LlamaFile::kSession ? "session, version " : "sequence, version ") +
                    std::to_string(spec.version));
      EXPECT_EQ(facts[1], std::pair(std::string("layout"), spec.profile.words));
      EXPECT_EQ(facts[2], std::pair(std::string("keys"), std::string("f16")));
      EXPECT_EQ(facts[3], std::pair(std::string("values"), std::string("f16")));
      EXPECT_EQ(facts[4], std::pair(std::string("cells"), std::string("3")));
    }
  }
}

TEST(LlamaImport, SaysWhatIsLeftOut) {
  StateSpec spec = plain_spec(plain_model(), 2);
  spec.version = 8;
  spec.profile = llama_profiles(spec.kind, 8, plain_model()).front();
  EXPECT_EQ(import_spec(plain_model(), spec)->cache.dropped_fields.size(), 2U);
  spec.version = 9;
  spec.profile.outputs = LlamaOutputs::kOutputs;
  EXPECT_EQ(import_spec(plain_model(), spec)->cache.dropped_fields.size(), 1U);
  EXPECT_TRUE(
      import_spec(plain_model(), plain_spec(plain_model(), 2))->cache.dropped_fields.empty());
}

TEST(LlamaImport, KeepsDenseTypes) {
  for (const char* type : {"f32", "f16", "bf16"}) {
    StateSpec spec = plain_spec(plain_model(), 300);
    spec.k_type = spec.v_type = type;
    for (const bool transposed : {false, true}) {
      spec.transposed = transposed;
      expect_imported(plain_model(), spec);
      const auto imported = import_spec(plain_model(), spec);
      ASSERT_TRUE(imported);
      EXPECT_FALSE(imported->may_be_rotated);
      EXPECT_FALSE(imported->cache.is_quantized);
      const auto& layer = std::get<cache::AttentionDesc>(imported->cache.layers[0].description);
      EXPECT_EQ(layer.k.dtype, dtype_from_name(type));
      EXPECT_EQ(layer.v.dtype, dtype_from_name(type));
    }
  }
}

TEST(LlamaImport, GivesTheValuesThatWereStored) {
  StateSpec spec = plain_spec(plain_model(), 3);
  spec.k_type = spec.v_type = "f32";
  const auto cache = read_foreign(import_spec(plain_model(), spec)->cache);
  ASSERT_TRUE(cache);
  const auto& layer = std::get<cache::AttentionLayer>(cache->layers[1]);
  const std::vector<float> keys = tensor_values(layer.k, layer.shape, 3);
  const std::vector<float> values = tensor_values(layer.v, layer.shape, 3);
  for (std::size_t head = 0; head < 2; ++head) {
    for (std::size_t token = 0; token < 3; ++token) {
      for (std::size_t i = 0; i < 32; ++i) {
        const std::size_t at = (head * 3 + token) * 32 + i;
        const auto component = static_cast<std::int64_t>(head * 32 + i);
        EXPECT_EQ(keys[at], state_value(1, true, static_cast<std::int64_t>(token), component));
        EXPECT_EQ(values[at], state_value(1, false, static_cast<std::int64_t>(token), component));
      }
    }
  }
}

TEST(LlamaImport, DecodesQuantizedRows) {
  for (const char* type : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"}) {
    StateSpec spec = plain_spec(plain_model(), 10);
    spec.k_type = type;
    expect_imported(plain_model(), spec);
    spec.v_type = type;
    expect_imported(plain_model(), spec);
    const auto imported = import_spec(plain_model(), spec);
    ASSERT_TRUE(imported);
    EXPECT_TRUE(imported->may_be_rotated);
    EXPECT_TRUE(imported->cache.is_quantized);
    EXPECT_EQ(std::get<cache::AttentionDesc>(imported->cache.layers[0].description).k.dtype,
              Dtype::kF32);
  }
}

TEST(LlamaImport, UndoesTheRotationOfQuantizedRows) {
  for (const std::int64_t head_dim : {64, 128, 192, 256}) {
    const LlamaGeometry model = plain_model(head_dim);
    StateSpec spec = plain_spec(model, 4);
    spec.k_type = spec.v_type = "q8_0";
    spec.rotated = true;
    expect_imported(model, spec, {.rotation = LlamaRotation::kOn});
    const auto left = read_foreign(import_spec(model, spec)->cache);
    const auto& layer = std::get<cache::AttentionLayer>(left->layers[0]);
    EXPECT_NE(tensor_values(layer.k, layer.shape, 4), expected_tensor(model, spec, 0, true, 0, 4));
    EXPECT_NE(tensor_values(layer.v, layer.shape, 4), expected_tensor(model, spec, 0, false, 0, 4));
  }
}

// The layouts of the versions that say how rows are rotated.
std::vector<StateSpec> telling_layouts(const LlamaGeometry& model, std::int64_t n) {
  std::vector<StateSpec> specs = all_layouts(model, n);
  std::erase_if(specs, [](const StateSpec& spec) { return !spec.profile.has_rotations; });
  return specs;
}

TEST(LlamaImport, TakesTheFilesWordForTheRotation) {
  const LlamaGeometry model = plain_model(128);
  ASSERT_EQ(telling_layouts(model, 3).size(), 4U);
  for (StateSpec spec : telling_layouts(model, 3)) {
    for (const char* type : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "f16", "bf16"}) {
      for (const char* v_type : {type, "f16"}) {
        for (const bool rotated : {false, true}) {
          spec.k_type = type;
          spec.v_type = v_type;
          spec.rotated = rotated;
          expect_imported(model, spec, {.rotation = LlamaRotation::kOff});
          expect_imported(model, spec, {.rotation = LlamaRotation::kOn});
        }
      }
    }
  }
}

TEST(LlamaImport, SaysWhetherTheFileTellsTheRotation) {
  for (const LlamaGeometry& model : {plain_model(), hybrid_model(), model_of({kRecurrent})}) {
    for (const StateSpec& spec : all_layouts(model, 2)) {
      const auto imported = import_spec(model, spec);
      ASSERT_TRUE(imported) << imported.error().message;
      const bool tells = spec.version == (spec.kind == LlamaFile::kSession ? 11U : 4U);
      const bool has_attention = model.layers.size() > 1;
      EXPECT_EQ(imported->rotation_is_stated, tells && has_attention) << spec.version;
    }
  }
}

TEST(LlamaImport, ReadsTransposedValuesAndStreamsOfTheVersionsThatTellTheRotation) {
  for (StateSpec spec : telling_layouts(plain_model(64), 300)) {
    spec.transposed = true;
    spec.k_type = "q8_0";
    spec.rotated = true;
    spec.n_streams = 2;
    expect_imported(plain_model(64), spec);
  }
}

TEST(LlamaImport, LeavesAloneWhatLlamaCppDoesNotRotate) {
  StateSpec spec = plain_spec(plain_model(), 4);
  spec.k_type = spec.v_type = "q8_0";  // head_dim 32: no run divides it
  expect_imported(plain_model(), spec, {.rotation = LlamaRotation::kOn});
  const LlamaGeometry model = plain_model(64);
  spec = plain_spec(model, 4);  // f16
  expect_imported(model, spec, {.rotation = LlamaRotation::kOn});
}

TEST(LlamaImport, BringsInterleavedKeysToHalfSplitOrder) {
  LlamaGeometry model = plain_model(128);
  model.interleaved_keys = true;
  for (const std::int64_t n_rot : {128, 64, 6}) {
    model.n_rot = n_rot;
    for (const char* type : {"f32", "f16", "q8_0"}) {
      StateSpec spec = plain_spec(model, 5);
      spec.k_type = spec.v_type = type;
      expect_imported(model, spec);
      spec.rotated = spec.k_type == "q8_0";
      expect_imported(model, spec, {.rotation = LlamaRotation::kOn});
    }
  }
  // And these are the very values, not only the writer's way back.
  model.n_rot = 128;
  StateSpec spec = plain_spec(model, 1);
  spec.k_type = "f32";
  EXPECT_EQ(expected_row(model, spec, 0, true, 0)[77], state_value(0, true, 0, 77));
}

TEST(LlamaImport, PutsCellsInTheOrderOfPositions) {
  for (const std::int64_t n : {7, 600}) {
    StateSpec spec = plain_spec(plain_model(), n);
    const auto in_order = spec.positions;
    for (const bool transposed : {false, true}) {
      spec.transposed = transposed;
      spec.positions = in_order;
      std::ranges::reverse(spec.positions);
      expect_imported(plain_model(), spec);
      spec.positions = in_order;
      std::rotate(spec.positions.begin(), spec.positions.begin() + n / 3, spec.positions.end());
      expect_imported(plain_model(), spec);
      std::ranges::shuffle(spec.positions, std::mt19937(1));
      expect_imported(plain_model(), spec);
    }
  }
}

// Cells of a block so far apart that they are read one by one.
TEST(LlamaImport, ReadsTransposedCellsThatAreFarApart) {
  LlamaGeometry model = plain_model(2);
  StateSpec spec = plain_spec(model, 400);
  spec.transposed = true;
  std::swap(spec.positions[0], spec.positions[399]);
  spec.positions.pop_back();  // position 0 is cell 399 still: put it first but for one
  spec.positions.push_back(0);
  expect_imported(model, spec);
  // Two tokens in the last block, at the two ends of the cells.
  spec = plain_spec(model, 258);
  spec.transposed = true;
  std::swap(spec.positions[0], spec.positions[257]);
  expect_imported(model, spec);
}

TEST(LlamaImport, FindsTheStreamThatIsFilled) {
  for (const std::uint32_t n_streams : {1U, 2U, 256U}) {
    StateSpec spec = plain_spec(plain_model(), 4);
    spec.n_streams = n_streams;
    spec.ids = {static_cast<std::int32_t>(n_streams - 1)};
    expect_imported(plain_model(), spec);
  }
}

TEST(LlamaImport, ReadsCellsWithoutSequencesInSequenceFiles) {
  StateSpec spec = plain_spec(plain_model(), 4);
  spec.kind = LlamaFile::kSequence;
  spec.version = 2;
  spec.ids = {};
  for (const bool has_streams : {false, true}) {
    spec.profile.has_streams = has_streams;
    expect_imported(plain_model(), spec);
  }
}

TEST(LlamaImport, TakesTheNewestTokensOfAWindow) {
  for (const std::int64_t n : {1, 4, 5, 6, 700}) {
    for (const std::int64_t window : {5, 300}) {
      LlamaGeometry model = window_model();
      model.window = window;
      StateSpec spec = plain_spec(model, n);
      expect_imported(model, spec);
      std::ranges::reverse(spec.window_positions);
      expect_imported(model, spec);
      EXPECT_TRUE(import_spec(model, spec)->cache.dropped_fields.empty());
      // Older cells may be there still.
      spec.window_positions = spec.positions;
      expect_imported(model, spec);
      EXPECT_EQ(import_spec(model, spec)->cache.dropped_fields.empty(), n <= window);
      spec.transposed = true;
      expect_imported(model, spec);
    }
  }
}

TEST(LlamaImport, UnwrapsTheTokensOfLlamaServer) {
  StateSpec spec = plain_spec(plain_model(), 6);
  spec.kind = LlamaFile::kSequence;
  spec.wrapped = true;
  for (const std::uint32_t version : {3U, 4U}) {
    spec.version = version;
    spec.profile = llama_profiles(spec.kind, version, plain_model()).front();
    expect_imported(plain_model(), spec);
    EXPECT_EQ(import_spec(plain_model(), spec)->cache.metadata[0].second,
              "sequence, version " + std::to_string(version) + ", of llama-server");
  }
}

TEST(LlamaImport, TellsTheTokenThatWasToComeNext) {
  StateSpec spec = plain_spec(plain_model(), 6);
  EXPECT_EQ(import_spec(plain_model(), spec)->next_token, std::nullopt);
  spec.tokens.push_back(77);
  const auto imported = import_spec(plain_model(), spec);
  EXPECT_EQ(imported->next_token, 77);
  EXPECT_EQ(imported->cache.n_tokens, 6);
  EXPECT_EQ(imported->cache.tokens->size(), 6U);
}

// M-RoPE: text has its position as coordinates, or (0, 0).
TEST(LlamaImport, ReadsPositionsOfTextAlone) {
  LlamaGeometry model = plain_model();
  model.has_positions_2d = true;
  for (const std::uint32_t version : {2U, 3U, 4U}) {
    StateSpec spec = plain_spec(model, 6);
    spec.kind = LlamaFile::kSequence;
    spec.version = version;
    for (const auto& profile : llama_profiles(spec.kind, version, model)) {
      if (profile.cell_ext == 0) continue;
      spec.profile = profile;
      for (const auto& [x, y] : {std::pair{0, 0}, {5, 5}}) {
        spec.last_coordinates = {x, y};
        expect_imported(model, spec);
      }
      for (const auto& [x, y] : {std::pair{3, 5}, {5, 0}, {7, 7}, {-1, -1}}) {
        spec.last_coordinates = {x, y};
        EXPECT_THAT(import_bytes(write_state(model, spec), model),
                    test::FailsWith(ErrorCode::kUnsupported,
                                    "positions of an image, which the list does not name"));
      }
    }
  }
}

TEST(LlamaImport, NamesItsSource) {
  const auto imported = import_spec(plain_model(), plain_spec(plain_model(), 1));
  EXPECT_EQ(imported->cache.identity.source_format, "llama.cpp");
  EXPECT_TRUE(imported->cache.identity.architecture.empty());
}

TEST(LlamaImport, LeavesOutCheckpointsBehindASequence) {
  StateSpec spec = plain_spec(plain_model(), 3);
  spec.kind = LlamaFile::kSequence;
  spec.version = 3;
  ByteWriter file;
  file.append(write_state(plain_model(), spec));
  for (const std::uint32_t word : {0x504b4353U, 1U, 1U}) file.write(word);
  file.write<std::int64_t>(3);
  file.write<std::int32_t>(0);
  file.write<std::int32_t>(2);
  for (const std::uint64_t size : {2U, 0U, 1U}) {
    file.write(size);
    for (std::uint64_t i = 0; i < size; ++i) file.write<std::uint8_t>(9);
  }
  const auto imported = import_bytes(file.bytes(), plain_model());
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->cache.dropped_fields.size(), 1U);
  // It has to end where the file does.
  for (std::size_t cut = 1; cut < 40; ++cut) {
    Bytes bytes = file.bytes();
    bytes.resize(bytes.size() - cut);
    EXPECT_FALSE(import_bytes(bytes, plain_model())) << cut;
  }
}

// Draft layers of a model count among the layers of its state without attention.
TEST(LlamaImport, TakesMoreLayersThanTheModelUses) {
  const LlamaGeometry model = hybrid_model();
  StateSpec spec = plain_spec(model, 2);
  Bytes file = write_state(model, spec);
  const std::size_t state_bytes = 2 * (2 * 12 + 6 * 4 + 10 * 4);
  file[file.size() - state_bytes - 4] = std::byte{4};
  const auto imported = import_bytes(file, model);
  EXPECT_TRUE(imported) << imported.error().message;
}

}  // namespace llama_import_test
}  // namespace tqcache::test
