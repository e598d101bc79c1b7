#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "interop/foreign_cache_reading.h"
#include "interop/llama_models.h"
#include "interop/llama_state_writer.h"
#include "interop/mlx_lm_small_files.h"
#include "interop/zip_builder.h"
#include "support/cache_builder.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/interop.h"
#include "tqcache/interop/hf/hf.h"
#include "tqcache/tqkv.h"

namespace tqcache::interop {
namespace open_any_test {

using test::CacheBuilder;
using testing::HasSubstr;

std::string file_named(const std::string& name) {
  return std::string(TQCACHE_TEST_DATA "/interop/") + name;
}

std::string name_of_pickle_in(Bytes bytes) {
  return name_of_pickle(*memory_source(std::move(bytes))).value_or("none");
}

Result<std::optional<FileKind>> kind_of(Bytes bytes) {
  return detect_kind(*memory_source(std::move(bytes)));
}

Result<OpenedCache> open_bytes(Bytes bytes, const OpenHints& hints = {}) {
  return open_any(std::shared_ptr<const ByteSource>(memory_source(std::move(bytes))), hints);
}

testing::AssertionResult is_refused(const Result<OpenedCache>& opened, ErrorCode code,
                                    const std::string& part) {
  if (opened) return testing::AssertionFailure() << "was opened";
  if (opened.error().code == code && opened.error().message.find(part) != std::string::npos) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << opened.error().message;
}

Bytes hf_file(std::int64_t n_tokens = 300) {
  const test::TempDir folder;
  test::must(export_hf(*test::sections_of(CacheBuilder(n_tokens).dense({2, 32}).build()),
                       folder / "x", Overwrite::kRefuse));
  return test::read_all(folder / "x");
}

// A session of llama.cpp whose rows are quantized, of a version that does not say whether they are
// rotated.
Bytes quantized_llama_file(bool rotated) {
  const LlamaGeometry model = test::plain_model(64);
  test::StateSpec spec = test::plain_spec(model, 3);
  spec.k_type = spec.v_type = "q8_0";
  spec.rotated = rotated;
  return test::write_state(model, spec);
}

// --- detection

TEST(DetectKind, KnowsEachKindByItsContent) {
  const LlamaGeometry model = test::plain_model();
  const std::vector<std::pair<FileKind, Bytes>> files = {
      {FileKind::kHf, hf_file()},
      {FileKind::kLlama, test::write_state(model, test::plain_spec(model, 3))},
      {FileKind::kMlxLm, test::small_mlx_file(MlxLayout::kMetaState)},
      {FileKind::kMlxLm, test::small_mlx_pairs()},
      {FileKind::kTqkvVersion1, test::bytes_of("....TQK1....")},
      {FileKind::kTurboMlx, test::bytes_of("TQS3........")}};
  for (const auto& [kind, bytes] : files) {
    const auto found = kind_of(bytes);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(*found, kind) << name_of(kind);
  }
}

// The same file with spaces behind its header, which then has this many bytes.
Bytes with_header_of(const Bytes& file, std::uint64_t size) {
  const auto old_size = test::must(ByteReader(file).read<std::uint64_t>());
  EXPECT_LE(old_size, size);
  ByteWriter out;
  out.write(size);
  out.append(ByteView(file).subspan(8, old_size));
  out.append(test::bytes_of(std::string(size - old_size, ' ')));
  out.append(ByteView(file).subspan(8 + old_size));
  return std::move(out).take();
}

// These sizes begin with the bytes of a pickle's protocol: 80 02 to 80 05.
TEST(DetectKind, TakesNoSafetensorsFileForAPickle) {
  for (const std::uint64_t size : {0x10280u, 0x10380u, 0x480u, 0x580u}) {
    const Bytes mlx = with_header_of(test::small_mlx_file(MlxLayout::kMetaState), size);
    EXPECT_EQ(kind_of(mlx).value(), FileKind::kMlxLm) << size;
    EXPECT_EQ(name_of_pickle_in(mlx), "none") << size;
    EXPECT_TRUE(open_bytes(mlx)) << size;
    const Bytes hf = with_header_of(hf_file(), size + 0x10000);
    EXPECT_EQ(kind_of(hf).value(), FileKind::kHf) << size;
    EXPECT_TRUE(open_bytes(hf)) << size;
  }
}

TEST(DetectKind, IsNulloptForOtherFiles) {
  for (const std::string_view text : {"", "x", "GGUF....", "TQK1", "....TQK"}) {
    const auto found = kind_of(test::bytes_of(std::string(text)));
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(*found, std::nullopt) << text;
  }
}

TEST(DetectKind, RefusesPicklesByName) {
  EXPECT_THAT(kind_of(test::read_all(file_named("torch.pt"))),
              test::FailsWith(ErrorCode::kUnsupported, HasSubstr("tools/tqcache_hf.py")));
}

TEST(DetectKind, NamesTheProgramsOfOtherFiles) {
  const auto words_of = [](const Bytes& bytes) {
    const auto kind = kind_of(bytes);
    EXPECT_FALSE(kind);
    EXPECT_EQ(kind.error().code, ErrorCode::kUnsupported);
    return kind.error().message;
  };
  // The header of aither-kvcache: version 1, 4 bits, heads of 128.
  const Bytes aither = test::bytes_of(std::string("TQKV\x01\x04\x80\x00\x08\x00\x02\x00", 12));
  EXPECT_THAT(words_of(aither), HasSubstr("of aither-kvcache, version 1"));
  EXPECT_THAT(words_of(test::bytes_of("PKCL....")), HasSubstr("TheTom/llama-cpp-turboquant"));
  EXPECT_THAT(words_of(test::bytes_of(std::string("LSCKPT2\0....", 12))),
              HasSubstr("pull request 24028"));
  EXPECT_THAT(words_of(test::bytes_of("SCKP....")), HasSubstr("llama-server"));
  EXPECT_THAT(words_of(test::bytes_of("\x93NUMPY..")),
              HasSubstr("a single array (.npy), of NumPy"));
  const auto safetensors = [](const std::string& key, const std::string& value,
                              const std::string& tensor) {
    return tensors::make_safetensors_header({{tensor, "F32", {0}}}, {{key, value}});
  };
  EXPECT_THAT(words_of(safetensors("layout", "exact_cache_v1", "c0_k")),
              HasSubstr("a prompt of its prefix cache (APC, disk tier), of mlx-vlm"));
  EXPECT_THAT(words_of(safetensors("layout", "layer_major_v2", "k0")),
              HasSubstr("blocks of its prefix cache (APC, disk tier), of mlx-vlm"));
  EXPECT_THAT(words_of(safetensors("omlx_cache_format_version", "3", "layer_0_state_0")),
              HasSubstr("on disk, of omlx, version \"3\""));
  EXPECT_THAT(words_of(safetensors("format", "pt", "model.norm.weight")),
              HasSubstr("weights (safetensors), and not a cache, of a model"));
}

TEST(NameOfPickle, SaysWhatItIs) {
  const auto name_in_file = [](const std::string& name) {
    return name_of_pickle_in(test::read_all(file_named(name)));
  };
  EXPECT_TRUE(name_in_file("torch.pt").starts_with("a file of torch.save"));
  EXPECT_TRUE(name_in_file("torch_legacy.pt").starts_with("an old file of torch.save"));
  EXPECT_TRUE(name_in_file("protocol4.pkl").starts_with("a pickle"));
  EXPECT_THAT(name_in_file("torch.pt"), HasSubstr("tools/tqcache_hf.py"));
}

TEST(NameOfPickle, IsNulloptForOtherFiles) {
  EXPECT_EQ(name_of_pickle_in(test::read_all(file_named("numpy.npz"))), "none");
  EXPECT_EQ(name_of_pickle_in({}), "none");
  EXPECT_EQ(name_of_pickle_in(test::bytes_of("\x80")), "none");
  EXPECT_EQ(name_of_pickle_in(test::bytes_of("\x80\x04hello")), "none");
  EXPECT_EQ(name_of_pickle_in(test::bytes_of("\x80\x06\x95")), "none");
  EXPECT_EQ(name_of_pickle_in(test::bytes_of("PK\x03\x04 and no zip")), "none");
}

// --- opening

TEST(OpenAny, OpensATqkvFile) {
  const test::TempDir folder;
  const cache::Cache cache = CacheBuilder(300).dense({2, 32}).build();
  test::must(format::write_cache_file(cache, folder / "a.tqkv", {}));
  const OpenedCache opened = test::must(open_any(folder / "a.tqkv"));
  EXPECT_EQ(opened.kind, FileKind::kTqkv);
  EXPECT_EQ(test::must(test::read_sections(*opened.cache)).tokens, cache.tokens);
  const OpenedCache part = test::must(open_any(folder / "a.tqkv", {.first_tokens = 260}));
  EXPECT_EQ(test::must(test::read_sections(*part.cache)).n_tokens(), 260);
}

TEST(OpenAny, OpensFilesOfOtherPrograms) {
  const OpenedCache hf = test::must(open_bytes(hf_file()));
  EXPECT_EQ(hf.kind, FileKind::kHf);
  EXPECT_EQ(test::must(test::read_sections(*hf.cache)).n_tokens(), 300);
  const OpenedCache npz = test::must(open_any(file_named("numpy.npz")));
  EXPECT_EQ(npz.kind, FileKind::kNpz);
  EXPECT_TRUE(test::read_sections(*npz.cache));
  const OpenedCache mlx = test::must(open_bytes(test::small_mlx_file(MlxLayout::kScalars)));
  EXPECT_EQ(mlx.kind, FileKind::kMlxLm);
  EXPECT_FALSE(mlx.metadata.empty());
  EXPECT_FALSE(mlx.dropped_fields.empty());
  EXPECT_TRUE(test::read_sections(*mlx.cache));
}

TEST(OpenAny, CompletesACacheWithHints) {
  const Bytes file = hf_file();
  cache::Identity identity;
  identity.architecture = "qwen3";
  identity.source_format = "not this";
  std::vector<std::int32_t> ids =
      test::must(test::read_sections(*test::must(open_bytes(file)).cache)).tokens;
  const OpenedCache opened =
      test::must(open_bytes(file, {.identity = identity, .tokens = ids, .first_tokens = 260}));
  EXPECT_EQ(opened.cache->description().identity.architecture, "qwen3");
  EXPECT_EQ(opened.cache->description().identity.source_format, "transformers");
  EXPECT_EQ(test::must(test::read_sections(*opened.cache)).n_tokens(), 260);
  ids[0] += 1;
  EXPECT_TRUE(is_refused(open_bytes(file, {.tokens = ids}), ErrorCode::kMismatch, "token ids"));
  EXPECT_TRUE(is_refused(open_bytes(test::small_mlx_file(MlxLayout::kScalars), {.first_tokens = 2}),
                         ErrorCode::kInvalidArgument, "cannot be cut"));
  EXPECT_TRUE(is_refused(open_bytes(file, {.tokens = std::vector{1, 2}}), ErrorCode::kMismatch,
                         "token ids differ"));
}

TEST(OpenAny, SaysWhichHintIsMissing) {
  const LlamaGeometry model = test::plain_model(64);
  EXPECT_TRUE(is_refused(open_bytes(quantized_llama_file(true)), ErrorCode::kInvalidArgument,
                         "give the model's GGUF"));
  EXPECT_TRUE(is_refused(open_bytes(quantized_llama_file(true), {.geometry = model}),
                         ErrorCode::kInvalidArgument, "say whether they are"));
}

TEST(OpenAny, AsksWhetherQuantizedRowsAreRotated) {
  OpenHints hints{.geometry = test::plain_model(64)};
  int n_asked = 0;
  hints.decide_rotation = [&](const cache::CacheReader& rotated,
                              const cache::CacheReader& not_rotated) -> Result<LlamaRotation> {
    EXPECT_EQ(rotated.n_tokens(), not_rotated.n_tokens());
    ++n_asked;
    return LlamaRotation::kOn;
  };
  const auto first_value = [&](bool rotated) {
    const auto opened = test::must(open_bytes(quantized_llama_file(rotated), hints));
    EXPECT_THAT(opened.cache->description().identity.source_format, HasSubstr("(quantized)"));
    AlignedBytes raw;
    test::must(opened.cache->read(0, raw));
    float value = 0;
    std::memcpy(&value, raw.data(), sizeof(value));
    return value;
  };
  const float rotated = first_value(true);
  EXPECT_NEAR(rotated, test::state_value(0, true, 0, 0), 0.02);
  EXPECT_EQ(n_asked, 1);
  // Without the question: the same answer as a hint.
  hints.decide_rotation = nullptr;
  hints.rotation = LlamaRotation::kOn;
  EXPECT_EQ(first_value(true), rotated);
  hints.rotation = LlamaRotation::kOff;
  EXPECT_NEAR(first_value(false), rotated, 0.02);
  EXPECT_EQ(n_asked, 1);
}

TEST(OpenAny, RefusesWhatItDoesNotKnow) {
  EXPECT_TRUE(is_refused(open_bytes(test::bytes_of("hello")), ErrorCode::kUnsupported,
                         "of any known kind"));
  EXPECT_TRUE(is_refused(open_bytes(test::bytes_of("....TQK1....")), ErrorCode::kUnsupported,
                         "version 1: migrate it first"));
  EXPECT_FALSE(open_any("/no/such/file"));
#ifndef TQCACHE_TURBOMLX
  EXPECT_TRUE(is_refused(open_bytes(test::bytes_of("TQS3........")), ErrorCode::kUnsupported,
                         "built without TurboMLX"));
#endif
}

}  // namespace open_any_test
}  // namespace tqcache::interop
