// Another program, written from docs/reference/format.md alone, reads the same in our files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "archive_fixture.h"
#include "python_reader.h"
#include "section_values.h"
#include "support/temp_dir.h"

namespace tqcache::test {
namespace independent_reader_test {

using Json = nlohmann::json;

// Where the mean is, the other program has it from its own sines.
void expect_decoded(const std::vector<float>& values, const std::vector<float>& told,
                    cache::Centering centering) {
  if (centering == cache::Centering::kNone) {
    EXPECT_EQ(told, values);
  } else {
    EXPECT_THAT(told, testing::Pointwise(testing::FloatNear(1e-5f), values));
  }
}

// Hexadecimal, or null where the ids are there.
Json hashes_of(const cache::Cache& cache) {
  if (!cache.hidden_tokens) return nullptr;
  Json hashes = Json::array();
  for (const Sha256& hash : *cache.hidden_tokens) hashes.push_back(to_hex(hash));
  return hashes;
}

void expect_same(const cache::Cache& cache, const CacheFileInfo& info, const Json& told) {
  EXPECT_EQ(told["tokens"].get<std::vector<std::int32_t>>(), cache.tokens);
  EXPECT_EQ(told["token_block_hashes"], hashes_of(cache));
  EXPECT_EQ(told["generation"], info.generation);
  EXPECT_EQ(told["n_gaps"], info.gaps.size());
  EXPECT_EQ(told["other_slot_damaged"], !info.damage.empty());
  EXPECT_EQ(told["architecture"], cache.identity.architecture);
  EXPECT_EQ(told["content_name"], to_hex(info.content_name));
  ASSERT_EQ(told["sections"].size(), info.sections.size());
  for (std::size_t i = 0; i < info.sections.size(); ++i) {
    const SectionInfo& section = info.sections[i];
    const Json& row = told["sections"][i];
    EXPECT_EQ(row["layer"], section.layer);
    EXPECT_EQ(row["side"], static_cast<int>(section.tensor));
    EXPECT_EQ(row["block"], section.block);
    EXPECT_EQ(row["form"] == 1, section.packed);
    SCOPED_TRACE("section " + std::to_string(i));
    if (!row.contains("values")) continue;  // compressed, and the other program cannot
    if (section.packed) {
      const auto& tensor =
          tensor_of(info.layers[static_cast<std::size_t>(section.layer)], section.tensor);
      expect_decoded(packed_values(cache, section), row["values"].get<std::vector<float>>(),
                     tensor.quant->centering);
    } else {
      EXPECT_EQ(row["values"].get<std::vector<float>>(), dense_values(cache, info, section));
    }
  }
}

class IndependentReader : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_python()) GTEST_SKIP() << "no python3";
  }
  ReaderOutcome read(const Bytes& file) {
    write_all(dir_ / "a.tqkv", file);
    return run_reader("'" + (dir_ / "a.tqkv").string() + "'");
  }

  // This library and the other program find the same in a file.
  void expect_read_alike(const Bytes& file) {
    const ReaderOutcome outcome = read(file);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const Json told = Json::parse(outcome.output);
    expect_same(must(load(file)), info_of(file), told);
    if (!told["not_checked"].empty())
      std::printf("not checked: %s\n", told["not_checked"].dump().c_str());
  }

  TempDir dir_;
};

TEST_F(IndependentReader, ReadsTheSameFromEveryKindOfFile) {
  const auto finite_arrays = [](cache::Cache cache) {  // JSON has no NaN
    for (cache::Layer& layer : cache.layers) {
      const auto make_finite = [](auto& bytes) {
        for (std::byte& byte : bytes) byte &= std::byte{0x3f};
      };
      if (auto* state = std::get_if<cache::StateLayer>(&layer)) {
        for (cache::NamedArray& array : state->arrays) make_finite(array.data);
      }
      auto* window = std::get_if<cache::WindowLayer>(&layer);
      if (window == nullptr || cache::is_quantized(window->attention)) continue;
      for (cache::Tensor* tensor : {&window->attention.k, &window->attention.v}) {
        for (AlignedBytes& block : std::get<cache::DenseTensor>(*tensor).blocks) make_finite(block);
      }
    }
    return cache;
  };
  for (const std::int64_t n_tokens : {0, 3, 256, 300}) {
    const cache::Cache cache = finite_arrays(CacheBuilder(n_tokens)
                                                 .dense({2, 4}, Dtype::kF16)
                                                 .arrays()
                                                 .mixed({1, 36}, Dtype::kBF16, 16, Dtype::kF32, 3)
                                                 .dense({1, 7}, Dtype::kF32)
                                                 .center(cache::Centering::kPreRope)
                                                 .turbo({2, 64}, 4, 2)
                                                 .build());
    expect_read_alike(file_of(cache));
    expect_read_alike(file_of(cache, Compression::kPlanes));
  }
}

TEST_F(IndependentReader, ReadsCheckpoints) {
  const auto folder = std::filesystem::path(TQCACHE_GOLDEN_FILES) / "../v2_checkpoints";
  for (const char* name : {"hybrid.tqkv", "windows.tqkv", "draft.tqkv"}) {
    const Bytes file = read_all(folder / name);
    const ReaderOutcome outcome = read(file);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const Json told = Json::parse(outcome.output);
    const CacheFileInfo info = info_of(file);
    EXPECT_EQ(told["checkpoints"], Json({96, 100, 146}));
    EXPECT_EQ(told["content_name"], to_hex(info.content_name));
    EXPECT_EQ(told["sections"].size(), info.sections.size());
  }
}

TEST_F(IndependentReader, RefusesOtherCheckpoints) {
  const auto folder = std::filesystem::path(TQCACHE_GOLDEN_FILES) / "../v2_checkpoints";
  const Bytes file = read_all(folder / "hybrid.tqkv");
  const auto expect_told = [&](const std::function<void(Manifest&)>& change, const char* what) {
    const ReaderOutcome outcome = read(change_manifest(file, change));
    EXPECT_NE(outcome.status, 0) << what;
    EXPECT_NE(outcome.output.find(what), std::string::npos) << outcome.output;
  };
  expect_told([](Manifest& m) { m.checkpoints[2].n_tokens = 151; }, "number of tokens");
  expect_told([](Manifest& m) { std::swap(m.checkpoints[0], m.checkpoints[1]); }, "order");
  expect_told([](Manifest& m) { m.checkpoints[0].first_position = 96; }, "first position");
  expect_told([](Manifest& m) { m.checkpoints[0].layers.pop_back(); }, "number of layers");
  expect_told(
      [](Manifest& m) {
        std::get<cache::StateDesc>(m.checkpoints[1].layers[0]).arrays[0].name = "q";
      },
      "a checkpoint of other layers");
}

TEST_F(IndependentReader, RefusesOpaqueLayersElsewhere) {
  const auto folder = std::filesystem::path(TQCACHE_GOLDEN_FILES) / "../v2_checkpoints";
  const Bytes file = read_all(folder / "draft.tqkv");
  const auto expect_told = [&](const std::function<void(Manifest&)>& change, const char* what) {
    const ReaderOutcome outcome = read(change_manifest(file, change));
    EXPECT_NE(outcome.status, 0) << what;
    EXPECT_NE(outcome.output.find(what), std::string::npos) << outcome.output;
  };
  expect_told([](Manifest& m) { std::get<cache::StateDesc>(m.layers[0]).is_opaque = true; },
              "an opaque layer of the cache itself");
  expect_told([](Manifest& m) { m.checkpoints[1].layers.pop_back(); }, "opaque layers in some");
  expect_told(
      [](Manifest& m) {
        std::get<cache::StateDesc>(m.checkpoints[1].layers[3]).arrays[0].dtype = Dtype::kF16;
      },
      "an opaque array");
}

TEST_F(IndependentReader, ReadsTurboWindows) {
  for (const std::int64_t n_tokens : {0, 3, 256, 300, 600}) {
    expect_read_alike(file_of(CacheBuilder(n_tokens)
                                  .turbo_rotating({{1, 32}, 300, 0}, 2, 3)
                                  .dense({1, 4})
                                  .center(cache::Centering::kPreRope)
                                  .turbo_rotating({{1, 64}, 40, 0}, 2, 16)
                                  .build()));
  }
}

TEST_F(IndependentReader, ReadsSymbolsAndMaps) {
  const Bytes file = file_of(archive_cache());
  expect_read_alike(replace_first_section(file, symbols_of(file).bytes(), Compression::kSymbols));
  expect_read_alike(file_of(mapped_cache()));
}

TEST_F(IndependentReader, ReadsHiddenTokens) {
  for (const std::int64_t n_tokens : {0, 256, 300}) {
    expect_read_alike(file_of(CacheBuilder(n_tokens).dense({1, 4}).hide_tokens().build()));
    expect_read_alike(file_of(CacheBuilder(n_tokens).dense({1, 4}).forget_tokens().build()));
  }
}

// The file with an announcement in slot 1, and something behind its end.
Bytes with_announcement(Bytes file) {
  format::HeaderSlot current;
  current.file_bytes = file.size();
  const format::SlotBytes slot = format::encode_slot(format::announcement(current));
  std::ranges::copy(slot, file.begin() + format::kSlotBytes);
  file.resize(file.size() + 1000, std::byte{7});
  return file;
}

TEST_F(IndependentReader, ReadsTheStateBeforeAnAppendThatWasCutShort) {
  Bytes file = with_announcement(small_file());
  EXPECT_EQ(info_of(file).trailing_bytes, 1000u);
  expect_read_alike(file);
  file[format::kSlotBytes] ^= std::byte{1};  // the slot was being written
  ASSERT_EQ(info_of(file).damage.size(), 1u);
  expect_read_alike(file);
}

TEST_F(IndependentReader, RefusesBytesBehindTheEndThatNothingAnnounces) {
  Bytes file = small_file();
  file.push_back(std::byte{0});
  EXPECT_THAT(read(file).output, testing::HasSubstr("longer than it says"));
}

TEST_F(IndependentReader, DecodesEveryNumberOfBits) {
  CacheBuilder builder(256);
  for (int bits = 1; bits <= 8; ++bits) {
    builder.turbo({1, 36 + 4 * bits}, bits, bits);  // keys with a unit cut short at each length
  }
  expect_read_alike(file_of(builder.build()));
}

TEST_F(IndependentReader, DecodesEveryMode) { expect_read_alike(modes_file()); }

TEST_F(IndependentReader, DecodesMapsThatTheFileBringsAlong) {
  expect_read_alike(file_of(matrix_cache()));
}

TEST_F(IndependentReader, ReadsTheGoldenFiles) {
  int n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TQCACHE_GOLDEN_FILES)) {
    if (entry.path().extension() != ".tqkv") continue;
    SCOPED_TRACE(entry.path().filename().string());
    expect_read_alike(read_all(entry.path()));
    ++n_files;
  }
  EXPECT_GT(n_files, 0);
}

std::string golden_key() {
  const Bytes text = read_all(std::filesystem::path(TQCACHE_GOLDEN_ENCRYPTED) / "golden.key");
  return std::string(reinterpret_cast<const char*>(text.data()), 64);
}

TEST_F(IndependentReader, ReadsEncryptedFiles) {
  const KeyRing keys = must(KeyRing::parse(as_bytes(golden_key())));
  const auto read_alike = [&](const Bytes& file) {
    write_all(dir_ / "a.tqkv", file);
    const ReaderOutcome outcome =
        run_reader("'" + (dir_ / "a.tqkv").string() + "' " + golden_key());
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const Json told = Json::parse(outcome.output);
    expect_same(must(load(file, {.access = {keys}})),
                must(format::read_cache_info(*memory_source(file), keys)), told);
  };
  int n_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TQCACHE_GOLDEN_ENCRYPTED)) {
    if (entry.path().extension() != ".tqkv") continue;
    SCOPED_TRACE(entry.path().filename().string());
    read_alike(read_all(entry.path()));
    ++n_files;
  }
  EXPECT_GT(n_files, 0);
  const cache::Cache cache = CacheBuilder(300).dense({1, 4}).turbo({1, 32}, 4, 3).build();
  read_alike(must(format::write_cache_bytes(
      cache, {.compression = Compression::kNone, .n_threads = 1, .keys = keys})));
}

TEST_F(IndependentReader, RefusesEncryptedFilesThatAreChangedOrOfAnotherKey) {
  const KeyRing keys = must(KeyRing::parse(as_bytes(golden_key())));
  Bytes file = must(
      format::write_cache_bytes(CacheBuilder(3).dense({2, 4}).build(),
                                {.compression = Compression::kNone, .n_threads = 1, .keys = keys}));
  EXPECT_THAT(read(file).output, testing::HasSubstr("encrypted with the key"));
  write_all(dir_ / "a.tqkv", file);
  EXPECT_THAT(run_reader("'" + (dir_ / "a.tqkv").string() + "' " + std::string(64, 'a')).output,
              testing::HasSubstr("another key"));
  patch(file, kOptionalAt, std::uint32_t{1});
  reseal_slot(file);
  write_all(dir_ / "a.tqkv", file);
  EXPECT_THAT(run_reader("'" + (dir_ / "a.tqkv").string() + "' " + golden_key()).output,
              testing::HasSubstr("manifest: authentication failed"));
}

// The tables that stand in for the module cryptography.
TEST_F(IndependentReader, DecryptsWithoutModules) {
  const std::string command =
      "cd '" + std::filesystem::path(TQCACHE_PYTHON_READER).parent_path().string() + "' && " +
      python() +
      " -B -c \"import decrypt as d; h=bytes.fromhex; "
      "print(d.own_unseal(h('feffe9928665731c6d6a8f9467308308'*2), h('cafebabefacedbaddecaf888'), "
      "h('feedfacedeadbeeffeedfacedeadbeefabaddad2'), "
      "h('522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
      "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662'), "
      "h('76fc6ece0f4e1768cddf8853bb2d551b')).hex()[:16])\"";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  char text[64] = {};
  ASSERT_NE(std::fgets(text, sizeof(text), pipe), nullptr);
  ::pclose(pipe);
  EXPECT_STREQ(text, "d9313225f88406e5\n");
}

TEST_F(IndependentReader, RefusesWhatItsDigestsTell) {
  Bytes file = small_file();
  file[format::kHeaderBytes] ^= std::byte{1};
  EXPECT_THAT(read(file).output, testing::HasSubstr("mismatch"));
  file = small_file();
  file.pop_back();
  EXPECT_THAT(read(file).output, testing::HasSubstr("shorter than it says"));
  EXPECT_THAT(read(Bytes(200)).output, testing::HasSubstr("not a .tqkv file"));
}

}  // namespace independent_reader_test
}  // namespace tqcache::test
