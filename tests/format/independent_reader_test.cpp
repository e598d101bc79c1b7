// Another program, written from docs/format.md alone, reads the same in our files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "file_fixture.h"
#include "support/temp_dir.h"
#include "tqcache/format/section_bytes.h"

namespace tqcache::test {
namespace {

using Json = nlohmann::json;

struct Outcome {
  int status = 0;
  std::string output;
};

Outcome run_reader(const std::string& arguments) {
  const std::string command = "python3 '" TQCACHE_PYTHON_READER "' " + arguments + " 2>&1";
  Outcome outcome;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("popen failed");
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    outcome.output.append(buffer, n);
  }
  outcome.status = ::pclose(pipe);
  return outcome;
}

bool have_python() { return std::system("python3 --version > /dev/null 2>&1") == 0; }

// The values of a dense section, as the file has them.
std::vector<float> values_of(const cache::Cache& cache, const CacheFileInfo& info,
                             const SectionInfo& section) {
  const format::LayerInfo& layer = info.layers[static_cast<std::size_t>(section.layer)];
  const Dtype dtype = section.side == format::SideName::kArray
                          ? layer.arrays[static_cast<std::size_t>(section.block)].dtype
                          : side_of(layer, section.side).dense_dtype;
  AlignedBytes scratch;
  const ByteView raw = format::section_bytes(cache, section, scratch);
  std::vector<float> values(raw.size() / dtype_size(dtype));
  load_f32(dtype, raw.data(), values);
  return values;
}

void expect_same(const cache::Cache& cache, const CacheFileInfo& info, const Json& told) {
  EXPECT_EQ(told["tokens"].get<std::vector<std::int32_t>>(), cache.tokens);
  EXPECT_EQ(told["architecture"], cache.identity.architecture);
  EXPECT_EQ(told["content_name"], to_hex(info.content_name));
  ASSERT_EQ(told["sections"].size(), info.sections.size());
  for (std::size_t i = 0; i < info.sections.size(); ++i) {
    const SectionInfo& section = info.sections[i];
    const Json& row = told["sections"][i];
    EXPECT_EQ(row["layer"], section.layer);
    EXPECT_EQ(row["side"], static_cast<int>(section.side));
    EXPECT_EQ(row["block"], section.block);
    EXPECT_EQ(row["form"] == 1, section.packed);
    if (section.packed) continue;
    EXPECT_EQ(row["values"].get<std::vector<float>>(), values_of(cache, info, section)) << i;
  }
}

class IndependentReader : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_python()) GTEST_SKIP() << "no python3";
  }
  Outcome read(const Bytes& file) {
    write_all(dir_ / "a.tqkv", file);
    return run_reader("'" + (dir_ / "a.tqkv").string() + "'");
  }

  TempDir dir_;
};

TEST_F(IndependentReader, ReadsTheSameFromEveryKindOfFile) {
  const auto finite_arrays = [](cache::Cache cache) {  // JSON has no NaN
    for (cache::Layer& layer : cache.layers) {
      auto* arrays = std::get_if<cache::ArraysLayer>(&layer);
      if (arrays == nullptr) continue;
      for (cache::NamedArray& array : arrays->arrays) {
        for (std::byte& byte : array.data) byte &= std::byte{0x3f};
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
                                                 .center(cache::Centring::kPreRope)
                                                 .turbo({2, 64}, 4, 2)
                                                 .build());
    const Bytes file = file_of(cache);
    const Outcome outcome = read(file);
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const Json told = Json::parse(outcome.output);
    expect_same(cache, info_of(file), told);
    if (!told["not_checked"].empty())
      std::printf("not checked: %s\n", told["not_checked"].dump().c_str());
  }
}

TEST_F(IndependentReader, RefusesWhatItsDigestsTell) {
  Bytes file = small_file();
  file[format::kHeaderBytes] ^= std::byte{1};
  EXPECT_THAT(read(file).output, testing::HasSubstr("mismatch"));
  file = small_file();
  file.pop_back();
  EXPECT_THAT(read(file).output, testing::HasSubstr("shorter or longer"));
  EXPECT_THAT(read(Bytes(200)).output, testing::HasSubstr("not a .tqkv file"));
}

}  // namespace
}  // namespace tqcache::test
