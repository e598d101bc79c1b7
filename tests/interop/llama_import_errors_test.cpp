// State files of llama.cpp that must be refused, and why.

#include <cstring>
#include <limits>
#include <string>

#include "damage.h"
#include "llama_import_fixture.h"
#include "support/failing_source.h"
#include "support/long_tests.h"
#include "tqcache/interop/llama/llama_parse.h"

namespace tqcache::test {
namespace llama_import_errors_test {

using enum LlamaLayerKind;
using interop::ForeignCache;
using interop::read_llama_envelope;

// Refused with `code`, and with a message that contains `part`.
testing::AssertionResult is_refused(const Result<LlamaImported>& imported, ErrorCode code,
                                    std::string_view part = "") {
  if (imported) return testing::AssertionFailure() << "was read";
  const Error& error = imported.error();
  if (error.code != code || error.message.find(part) == std::string::npos) {
    return testing::AssertionFailure() << static_cast<int>(error.code) << ": " << error.message;
  }
  return testing::AssertionSuccess();
}

std::string message_of(const Result<LlamaImported>& imported, ErrorCode code) {
  EXPECT_TRUE(is_refused(imported, code));
  return imported ? "" : imported.error().message;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class T>
void patch(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

// --- the first bytes

TEST(LlamaEnvelope, IsReadFromTheFirstBytes) {
  StateSpec spec = plain_spec(plain_model(), 3);
  auto envelope = read_llama_envelope(*memory_source(write_state(plain_model(), spec)));
  ASSERT_TRUE(envelope && *envelope);
  EXPECT_EQ((*envelope)->kind, LlamaFile::kSession);
  EXPECT_EQ((*envelope)->version, 9U);
  EXPECT_EQ((*envelope)->n_u32, 3U);
  spec.kind = LlamaFile::kSequence;
  spec.version = 3;
  spec.wrapped = true;
  envelope = read_llama_envelope(*memory_source(write_state(plain_model(), spec)));
  ASSERT_TRUE(envelope && *envelope);
  EXPECT_EQ((*envelope)->kind, LlamaFile::kSequence);
  EXPECT_EQ((*envelope)->version, 3U);
  EXPECT_EQ((*envelope)->n_u32, 7U);
}

TEST(LlamaEnvelope, IsNothingInOtherFiles) {
  for (const std::string_view text : {"", "GGU", "GGUF", "ggsn and more", "TQKV............"}) {
    const ByteView view = as_bytes(text);
    const auto envelope = read_llama_envelope(*memory_source(Bytes(view.begin(), view.end())));
    ASSERT_TRUE(envelope);
    EXPECT_FALSE(*envelope) << text;
  }
}

TEST(LlamaEnvelope, IsWholeOrTruncated) {
  Bytes file = write_state(plain_model(), plain_spec(plain_model(), 3));
  for (std::size_t n = 4; n < 12; ++n) {
    const auto envelope = read_llama_envelope(
        *memory_source(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(n))));
    ASSERT_FALSE(envelope);
    EXPECT_EQ(envelope.error().code, ErrorCode::kTruncated);
  }
}

TEST(LlamaImport, RefusesOtherFiles) {
  const ByteView text = as_bytes("GGUF............");
  EXPECT_TRUE(is_refused(import_bytes(Bytes(text.begin(), text.end()), plain_model()),
                         ErrorCode::kCorrupt));
}

TEST(LlamaImport, RefusesVersionsItDoesNotKnow) {
  for (const LlamaFile kind : {LlamaFile::kSession, LlamaFile::kSequence}) {
    for (std::uint32_t version = 0; version < 14; ++version) {
      if (!interop::llama_profiles(kind, version, plain_model()).empty()) continue;
      StateSpec spec = plain_spec(plain_model(), 3);
      spec.kind = kind;
      spec.version = version;
      EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kUnsupported,
                             "version " + std::to_string(version)));
    }
  }
}

// --- tokens

TEST(LlamaImport, RefusesTokensThatAreNoIds) {
  StateSpec spec = plain_spec(plain_model(), 3);
  spec.tokens[1] = -5;
  EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kCorrupt, "token 1: -5"));
}

TEST(LlamaImport, RefusesMediaThatAreNotThere) {
  StateSpec spec = plain_spec(plain_model(), 3);
  spec.wrapped = true;
  spec.n_media = 1;
  EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kCorrupt, "too short"));
}

TEST(LlamaImport, RefusesBrokenWrappers) {
  StateSpec spec = plain_spec(plain_model(), 3);
  spec.wrapped = true;
  const Bytes good = write_state(plain_model(), spec);
  Bytes file = good;
  patch<std::int32_t>(file, 16, 2);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kUnsupported));
  file = good;
  patch<std::int32_t>(file, 20, 4);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kCorrupt));
  patch<std::int32_t>(file, 20, -1);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kCorrupt));
  file = good;  // a count too small: the words behind it are not zeros for a whole word
  patch<std::int32_t>(file, 20, 2);
  patch<std::int32_t>(file, 32, 0);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kCorrupt));
  file = good;
  patch<std::uint32_t>(file, 8, 3);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kCorrupt));
}

TEST(LlamaImport, RefusesMoreTokensThanACacheMayHave) {
  Bytes file = write_state(plain_model(), plain_spec(plain_model(), 3));
  patch<std::uint32_t>(file, 8, std::numeric_limits<std::uint32_t>::max());
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kTooLarge));
  patch<std::uint32_t>(file, 8, 16 << 20);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kTruncated));
}

TEST(LlamaImport, RefusesAnotherNumberOfTokensThanOfCells) {
  for (const std::size_t n : {0U, 2U, 5U}) {
    StateSpec spec = plain_spec(plain_model(), 3);
    spec.tokens.resize(n, 1);
    EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kCorrupt));
  }
}

// --- models

TEST(LlamaImport, RefusesAnotherArchitecture) {
  StateSpec spec = plain_spec(plain_model(), 3);
  spec.architecture = "llama\n";
  EXPECT_EQ(message_of(import_spec(plain_model(), spec), ErrorCode::kMismatch),
            "a session of architecture \"llama?\", the model is \"test\"");
}

TEST(LlamaImport, RefusesAnotherShape) {
  const auto refused = [](const LlamaGeometry& written, const LlamaGeometry& model,
                          bool transposed = false) {
    StateSpec spec = plain_spec(written, 6);
    spec.transposed = transposed;
    return message_of(import_bytes(write_state(written, spec), model), ErrorCode::kMismatch);
  };
  EXPECT_TRUE(contains(refused(plain_model(), plain_model(64)), "layer 0 k"));
  EXPECT_TRUE(contains(refused(plain_model(), model_of({kAttention})), "layers of cells"));
  LlamaGeometry other = plain_model();
  other.layers[1].n_kv_heads = 3;
  EXPECT_TRUE(contains(refused(plain_model(), other), "layer 1 k"));
  LlamaGeometry values = plain_model();  // a writer with values of another size than its keys
  values.layers[1].v_head_dim = 16;
  EXPECT_TRUE(contains(refused(values, plain_model()), "layer 1 v"));
  EXPECT_TRUE(contains(refused(values, plain_model(), true), "layer 1 v"));
  LlamaGeometry states = hybrid_model();
  states.layers[2].s_values = 11;
  EXPECT_TRUE(contains(refused(hybrid_model(), states), "layer 2 s"));
}

TEST(LlamaImport, RefusesFewerLayersOfStateThanTheModelHas) {
  const LlamaGeometry model = hybrid_model();
  Bytes file = write_state(model, plain_spec(model, 2));
  const std::size_t state_bytes = 2 * (2 * 12 + 6 * 4 + 10 * 4);
  for (const std::uint32_t n : {2U, 1025U}) {
    patch<std::uint32_t>(file, file.size() - state_bytes - 4, n);
    EXPECT_TRUE(is_refused(import_bytes(file, model), ErrorCode::kMismatch));
  }
}

TEST(LlamaImport, RefusesModelsBeyondTheLimits) {
  const Bytes file = write_state(plain_model(), plain_spec(plain_model(), 3));
  LlamaGeometry model = plain_model();
  model.layers[0].n_kv_heads = std::int64_t{1} << 40;
  EXPECT_FALSE(import_bytes(file, model));
  model.layers.assign(1025, plain_model().layers[0]);
  EXPECT_TRUE(is_refused(import_bytes(file, model), ErrorCode::kTooLarge));
}

TEST(LlamaImport, RefusesPairsThatAHeadHasNoRoomFor) {
  const Bytes file = write_state(plain_model(), plain_spec(plain_model(), 3));
  LlamaGeometry model = plain_model();
  model.interleaved_keys = true;
  for (const std::int64_t n_rot : {-2, 3, 34}) {
    model.n_rot = n_rot;
    EXPECT_TRUE(is_refused(import_bytes(file, model), ErrorCode::kUnsupported));
  }
}

// --- cells

TEST(LlamaImport, RefusesStatesWithoutCells) {
  StateSpec spec = plain_spec(plain_model(), 1);
  spec.positions.clear();
  EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kUnsupported));
}

TEST(LlamaImport, RefusesGapsAndDuplicates) {
  StateSpec spec = plain_spec(plain_model(), 4);
  spec.positions = {0, 1, 2, 5};
  EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kUnsupported, "position 5"));
  spec.positions = {0, 1, 1, 3};
  EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kUnsupported,
                         "two cells at position 1"));
}

TEST(LlamaImport, RefusesPositionsBeforeTheFirst) {
  StateSpec spec = plain_spec(plain_model(), 4);
  spec.positions[2] = -1;
  EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kCorrupt));
}

TEST(LlamaImport, RefusesSeveralSequences) {
  StateSpec spec = plain_spec(plain_model(), 4);
  spec.ids = {0, 1};
  EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kUnsupported,
                         "more than one sequence"));
  spec.ids = {0};
  Bytes file = write_state(plain_model(), spec);  // the last cell belongs to another one
  const std::size_t cells = 12 + 16 + 4 + 4 + 4 + 4;
  patch<std::int32_t>(file, cells + 3 * 12 + 8, 1);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kUnsupported));
  patch<std::int32_t>(file, cells + 3 * 12 + 8, 4096);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kCorrupt));
  spec.ids = {};  // a session says whose its cells are
  EXPECT_TRUE(is_refused(import_spec(plain_model(), spec), ErrorCode::kCorrupt));
}

TEST(LlamaImport, RefusesCellsOfWhichSomeHaveASequence) {
  StateSpec spec = plain_spec(plain_model(), 1);
  spec.kind = LlamaFile::kSequence;
  spec.version = 2;
  spec.profile.has_streams = false;
  Bytes file = write_state(plain_model(), spec);
  ByteWriter more;  // a cell in front, without
  more.append(ByteView(file).first(16));
  more.write<std::uint32_t>(2);
  more.write<std::uint64_t>(0);
  more.append(ByteView(file).subspan(20));
  EXPECT_TRUE(is_refused(import_bytes(more.bytes(), plain_model()), ErrorCode::kCorrupt));
}

TEST(LlamaImport, RefusesSeveralFilledStreams) {
  StateSpec spec = plain_spec(plain_model(), 2);
  spec.kind = LlamaFile::kSequence;
  spec.version = 3;
  Bytes file = write_state(plain_model(), spec);
  const std::size_t streams = 12 + 8;
  const Bytes stream(file.begin() + streams + 4, file.end());
  file.insert(file.end(), stream.begin(), stream.end());
  patch<std::uint32_t>(file, streams, 2);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kUnsupported));
  patch<std::uint32_t>(file, streams, 257);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kCorrupt));
}

TEST(LlamaImport, RefusesMoreCellsThanTheFileHas) {
  StateSpec spec = plain_spec(plain_model(), 2);
  spec.kind = LlamaFile::kSequence;
  spec.version = 3;
  Bytes file = write_state(plain_model(), spec);
  const std::size_t count = 12 + 8 + 4;
  patch<std::uint32_t>(file, count, 1 << 20);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kTruncated));
  patch<std::uint32_t>(file, count, 1 << 30);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kTooLarge));
}

TEST(LlamaImport, RefusesWindowsThatAreNotWhole) {
  const LlamaGeometry model = window_model();
  StateSpec spec = plain_spec(model, 9);
  spec.window_positions = {4, 5, 7, 8};
  const std::string message = message_of(import_spec(model, spec), ErrorCode::kUnsupported);
  EXPECT_TRUE(contains(message, "a window of 5 tokens: no cell at position 6")) << message;
  spec.window_positions = {};
  EXPECT_TRUE(is_refused(import_spec(model, spec), ErrorCode::kUnsupported));
  spec.window_positions = {5, 6, 7, 8, 9};
  EXPECT_TRUE(is_refused(import_spec(model, spec), ErrorCode::kUnsupported));
}

TEST(LlamaImport, RefusesStateThatIsNotOfTheLastToken) {
  const LlamaGeometry model = hybrid_model();
  for (const std::vector<std::int32_t>& positions :
       std::vector<std::vector<std::int32_t>>{{}, {1}, {3}, {2, 2}}) {
    StateSpec spec = plain_spec(model, 3);
    spec.recurrent_positions = positions;
    EXPECT_TRUE(is_refused(import_spec(model, spec), ErrorCode::kUnsupported));
  }
}

TEST(LlamaImport, RefusesAPositionBeyondWhatACacheMayHave) {
  const LlamaGeometry model = model_of({kRecurrent});
  StateSpec spec = plain_spec(model, 1);
  spec.recurrent_positions = {16 << 20};
  EXPECT_TRUE(is_refused(import_spec(model, spec), ErrorCode::kTooLarge));
}

// --- rows

TEST(LlamaImport, RefusesRowTypesItDoesNotKnow) {
  const Bytes good = write_state(plain_model(), plain_spec(plain_model(), 2));
  const std::size_t type = 12 + 8 + 4 + 4 + 4 + 4 + 2 * 12 + 8;
  for (const std::uint32_t id : {4U, 9U, 40U, 45U, 0xffffffffU}) {
    Bytes file = good;
    patch<std::uint32_t>(file, type, id);
    EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kUnsupported,
                           "layer 0 k: rows of type " + std::to_string(id)));
  }
  for (const std::uint32_t id : {41U, 42U, 43U, 44U}) {
    Bytes file = good;
    patch<std::uint32_t>(file, type, id);
    EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kUnsupported, "forks"));
    EXPECT_TRUE(
        is_refused(import_bytes(file, plain_model(), {.rotation = {}, .turbo_layout = "turbo3"}),
                   ErrorCode::kMismatch));
  }
}

TEST(LlamaImport, RefusesLayoutsThatThereAreNot) {
  const Bytes file = write_state(plain_model(), plain_spec(plain_model(), 2));
  for (const char* name : {"turbo5", "turbo3,x", ",", "turbo3,,turbo4"}) {
    EXPECT_TRUE(
        is_refused(import_bytes(file, plain_model(), {.rotation = {}, .turbo_layout = name}),
                   ErrorCode::kInvalidArgument));
  }
}

TEST(LlamaImport, RefusesRowsThatBlocksDoNotDivide) {
  LlamaGeometry model = plain_model(8);  // rows of 16 values
  Bytes file = write_state(model, plain_spec(model, 2));
  patch<std::uint32_t>(file, 12 + 8 + 4 + 4 + 4 + 4 + 2 * 12 + 8, 8);  // q8_0
  EXPECT_TRUE(is_refused(import_bytes(file, model), ErrorCode::kMismatch));
}

TEST(LlamaImport, RefusesTransposedRowsOfOtherTypes) {
  StateSpec spec = plain_spec(plain_model(), 2);
  spec.transposed = true;
  const Bytes good = write_state(plain_model(), spec);
  const std::size_t type = good.size() - 2 * (12 + 2 * 64 * 2);
  Bytes file = good;
  patch<std::uint32_t>(file, type, 8);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kUnsupported));
  file = good;
  patch<std::uint32_t>(file, type + 4, 4);
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kCorrupt));
  file = good;
  patch<std::uint32_t>(file, 12 + 8 + 4 + 4 + 4 + 4 + 2 * 12, 2);  // neither so nor so
  EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kCorrupt));
}

// The widths stand before the first layer's rows.
TEST(LlamaImport, RefusesRotationsThatLlamaCppDoesNotHave) {
  const LlamaGeometry model = plain_model(128);
  const std::size_t widths = 12 + 8 + 4 + 4 + 4 + 4 + 2 * 12 + 8;
  const auto message = [&](const char* type, std::uint32_t k, std::uint32_t v) {
    StateSpec spec = plain_spec(model, 2);
    spec.version = 11;
    spec.profile.has_rotations = true;
    spec.k_type = spec.v_type = type;
    Bytes file = write_state(model, spec);
    patch(file, widths, k);
    patch(file, widths + 4, v);
    return message_of(import_bytes(file, model), ErrorCode::kUnsupported);
  };
  EXPECT_EQ(message("q8_0", 64, 64),
            "layer 0 k: rotated in runs of 64 components, expected runs of 128");
  EXPECT_EQ(message("q8_0", 128, 128),
            "layer 0 v: rotated in runs of 128 components, expected runs of 64");
  EXPECT_EQ(message("q8_0", 0xffffffff, 0),
            "layer 0 k: rotated in runs of 4294967295 components, expected runs of 128");
  EXPECT_EQ(message("f16", 128, 0), "layer 0 k: rotated rows of f16");
  EXPECT_EQ(message("f32", 0, 64), "layer 0 v: rotated rows of f32");
}

TEST(LlamaImport, RefusesRotationsOfHeadsThatAreNeverRotated) {
  StateSpec spec = plain_spec(plain_model(), 2);
  spec.kind = LlamaFile::kSequence;
  spec.version = 4;
  spec.profile.has_rotations = true;
  spec.k_type = spec.v_type = "q8_0";
  Bytes file = write_state(plain_model(), spec);
  patch<std::uint32_t>(file, 12 + 8 + 4 + 4 + 2 * 12 + 8, 32);
  EXPECT_EQ(message_of(import_bytes(file, plain_model()), ErrorCode::kUnsupported),
            "layer 0 k: rotated in runs of 32 components, expected runs of 0");
}

TEST(LlamaImport, RefusesRotationsOfAnotherLayersHeads) {
  LlamaGeometry model = plain_model(128);
  model.layers[1].k_head_dim = model.layers[1].v_head_dim = 64;
  StateSpec spec = plain_spec(model, 2);
  spec.version = 11;
  spec.profile.has_rotations = true;
  spec.k_type = spec.v_type = "q8_0";
  EXPECT_TRUE(import_spec(model, spec));
  spec.rotated = true;
  EXPECT_EQ(message_of(import_spec(model, spec), ErrorCode::kUnsupported),
            "layer 1 k: rotated in runs of 128 components, expected runs of 64");
}

// Pull requests of llama.cpp wrap tokens and state as payloads of bytes, each behind its type and
// its size, under the numbers of versions that are read: no layout fits such a file by accident.
TEST(LlamaImport, RefusesPayloadsOfBytes) {
  for (const std::uint32_t version : {2U, 3U, 4U}) {
    for (const std::uint64_t n_bytes : {0U, 8U, 64U, 4096U}) {
      for (const int fill : {0, 1, 255}) {
        ByteWriter file;
        file.write(std::uint32_t{0x67677371});  // "ggsq"
        file.write(version);
        for (const std::uint32_t type : {1U, 2U}) {  // tokens, data
          file.write(type);
          file.write(n_bytes);
          file.append(Bytes(n_bytes, static_cast<std::byte>(fill)));
        }
        for (const LlamaGeometry& model : {plain_model(), window_model(), hybrid_model()}) {
          EXPECT_FALSE(import_bytes(file.bytes(), model)) << version << ' ' << n_bytes;
        }
      }
    }
  }
}

// The words that a version has tell it from the one before.
TEST(LlamaImport, RefusesTheRowsOfAnotherVersion) {
  for (const auto& [kind, version] :
       {std::pair(LlamaFile::kSession, 11U), std::pair(LlamaFile::kSequence, 4U)}) {
    for (const bool has_rotations : {false, true}) {
      StateSpec spec = plain_spec(plain_model(), 3);
      spec.kind = kind;
      spec.version = has_rotations ? version - 1 : version;
      spec.profile.has_rotations = has_rotations;
      EXPECT_FALSE(import_spec(plain_model(), spec)) << spec.version;
    }
  }
}

TEST(LlamaImport, RefusesStateOfOtherTypes) {
  const LlamaGeometry model = hybrid_model();
  Bytes file = write_state(model, plain_spec(model, 2));
  const std::size_t states = file.size() - 2 * (2 * 12 + 6 * 4 + 10 * 4);
  patch<std::uint32_t>(file, states, 1);
  EXPECT_TRUE(is_refused(import_bytes(file, model), ErrorCode::kUnsupported, "layer 0 r"));
  patch<std::uint32_t>(file, states, 0);
  patch<std::uint32_t>(file, states - 8, 1);  // s_trans
  EXPECT_TRUE(is_refused(import_bytes(file, model), ErrorCode::kUnsupported));
}

// --- the end

TEST(LlamaImport, RefusesBytesBehindTheState) {
  for (const LlamaFile kind : {LlamaFile::kSession, LlamaFile::kSequence}) {
    StateSpec spec = plain_spec(plain_model(), 2);
    spec.kind = kind;
    spec.version = kind == LlamaFile::kSession ? 9 : 2;
    for (const std::size_t n : {1U, 4U, 100U}) {
      Bytes file = write_state(plain_model(), spec);
      file.resize(file.size() + n);
      EXPECT_TRUE(is_refused(import_bytes(file, plain_model()), ErrorCode::kCorrupt));
    }
  }
}

TEST(LlamaImport, RefusesCheckpointsOfOtherKinds) {
  for (const LlamaGeometry& model : {plain_model(), window_model(), hybrid_model()}) {
    StateSpec spec = plain_spec(model, 2);
    spec.kind = LlamaFile::kSequence;
    spec.version = 2;
    const auto with = [&](std::vector<std::uint32_t> words) {
      ByteWriter file;
      file.append(write_state(model, spec));
      for (const std::uint32_t word : words) file.write(word);
      return import_bytes(file.bytes(), model);
    };
    EXPECT_TRUE(with({0x504b4353, 1, 0}));
    EXPECT_TRUE(is_refused(with({0x504b4353, 2, 0}), ErrorCode::kUnsupported));
    EXPECT_TRUE(is_refused(with({0x504b4353, 1, 1025}), ErrorCode::kTooLarge));
    EXPECT_TRUE(is_refused(with({0x504b4353, 1, 1}), ErrorCode::kTruncated));
    EXPECT_TRUE(is_refused(with({0x504b4353, 1, 0, 0}), ErrorCode::kCorrupt));
    EXPECT_TRUE(
        is_refused(with({0x504b4353, 1, 1, 0, 0, 0, 0, 0, 0xffffffff}), ErrorCode::kTruncated));
  }
}

// --- ik_llama.cpp

// As it writes two layers, the second of which has no rows.
Bytes ik_file(LlamaFile kind, std::uint32_t value_state, bool has_recurrent) {
  const bool is_session = kind == LlamaFile::kSession;
  ByteWriter out;
  out.write<std::uint32_t>(is_session ? 0x6767736e : 0x67677371);
  out.write<std::uint32_t>(is_session ? 10 : 4);
  out.write<std::uint32_t>(1);
  out.write<std::int32_t>(5);
  if (is_session) {
    out.write<std::uint32_t>(4);
    out.append(as_bytes("test"));
    out.write<std::uint32_t>(0);
    out.write<std::uint64_t>(0);
    out.write<std::uint64_t>(0);
  }
  out.write<std::uint32_t>(1);
  out.write<std::int32_t>(0);
  out.write<std::uint32_t>(is_session ? 1 : 0);
  if (is_session) out.write<std::int32_t>(0);
  out.write(value_state);
  out.write<std::uint32_t>(2);
  for (std::uint32_t tensor = 0; tensor < (value_state == 2 ? 1U : 2U); ++tensor) {
    const bool transposed = tensor == 1 && value_state == 1;
    out.write<std::int32_t>(1);
    out.write<std::uint32_t>(transposed ? 2 : 8);
    out.write<std::uint32_t>(transposed ? 4 : 0);
    out.write<std::uint64_t>(77);
    out.write<std::int32_t>(-1);
    out.write<std::uint64_t>(0);
  }
  out.write<std::uint32_t>(has_recurrent ? 1 : 0);
  for (int layer = 0; has_recurrent && layer < 2; ++layer) {
    out.write<std::int32_t>(0);
    out.write<std::uint64_t>(4);
    out.write<std::uint32_t>(1);
    out.write<float>(1);
  }
  out.write<std::uint32_t>(0);
  return std::move(out).take();
}

TEST(LlamaImport, RefusesFilesOfIkLlamaByName) {
  for (const LlamaFile kind : {LlamaFile::kSession, LlamaFile::kSequence}) {
    for (const std::uint32_t value_state : {0U, 1U, 2U}) {
      for (const bool has_recurrent : {false, true}) {
        const Bytes file = ik_file(kind, value_state, has_recurrent);
        EXPECT_TRUE(
            is_refused(import_bytes(file, plain_model()), ErrorCode::kUnsupported, "ik_llama.cpp"));
        for (std::size_t n = 12; n < file.size(); ++n) {
          const Bytes part(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(n));
          const auto cut = import_bytes(part, plain_model());
          ASSERT_FALSE(cut);
          EXPECT_FALSE(contains(cut.error().message, "ik_llama.cpp")) << n;
        }
      }
    }
  }
}

// --- damage

std::vector<std::pair<LlamaGeometry, Bytes>> small_files() {
  std::vector<std::pair<LlamaGeometry, Bytes>> files;
  for (const LlamaGeometry& model : {model_of({kAttention}, 2), window_model(), hybrid_model()}) {
    for (const LlamaFile kind : {LlamaFile::kSession, LlamaFile::kSequence}) {
      StateSpec spec = plain_spec(model, 3);
      spec.kind = kind;
      spec.version = kind == LlamaFile::kSession ? 9 : 3;
      spec.transposed = kind == LlamaFile::kSession;
      files.emplace_back(model, write_state(model, spec));
      spec.version = kind == LlamaFile::kSession ? 11 : 4;
      spec.profile.has_rotations = true;
      files.emplace_back(model, write_state(model, spec));
    }
  }
  return files;
}

TEST(LlamaImport, RefusesFilesCutShortAnywhere) {
  for (const auto& [model, file] : small_files()) {
    ASSERT_TRUE(import_bytes(file, model));
    for (std::size_t n = 0; n < file.size(); ++n) {
      const auto imported =
          import_bytes(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(n)), model);
      ASSERT_FALSE(imported) << n;
      EXPECT_EQ(imported.error().code, n < 4 ? ErrorCode::kCorrupt : ErrorCode::kTruncated)
          << n << ": " << imported.error().message;
    }
  }
}

TEST(LlamaImport, RefusesAnyBitFlippedOrGivesAValidCache) {
  for (const auto& [model, file] : small_files()) {
    std::size_t n_valid = 0;
    for (std::size_t bit = 0; bit < 8 * file.size(); bit += bit_step()) {
      Bytes flipped = file;
      flipped[bit / 8] ^= std::byte(1 << (bit % 8));
      auto imported = import_bytes(flipped, model);
      EXPECT_TRUE(refused_or_valid(
          imported ? Result<ForeignCache>(std::move(imported->cache)) : imported.error(), n_valid))
          << bit;
    }
    EXPECT_GT(n_valid, 0U);
  }
}

TEST(LlamaImport, PassesOnFailingReads) {
  for (const auto& [model, file] : small_files()) {
    std::size_t failing = 0;
    for (bool failed = true; failed; ++failing) {
      auto source = std::make_shared<FailingSource>(file, failing);
      auto imported = interop::import_llama_state(source, model);
      const auto cache = imported ? read_foreign(std::move(imported->cache))
                                  : Result<cache::Cache>(imported.error());
      failed = source->has_failed();
      EXPECT_EQ(cache.ok(), !failed) << failing;
      if (failed) {
        EXPECT_EQ(cache.error().code, ErrorCode::kIo);
      }
    }
    EXPECT_GT(failing, 3U);
  }
}

}  // namespace llama_import_errors_test
}  // namespace tqcache::test
