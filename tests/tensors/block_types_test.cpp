#include "tqcache/tensors/block_types.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tqcache/file.h"
#include "tqcache/tensors/block_layouts.h"
#include "tqcache/tensors/gguf.h"

namespace tqcache::tensors {
namespace block_types_test {

std::vector<float> floats_of(const TensorView& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

void expect_same(const std::vector<float>& values, const std::vector<float>& expected,
                 const std::string& name) {
  ASSERT_EQ(values.size(), expected.size()) << name;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i]) && std::isnan(expected[i])) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected[i]))
        << name << " value " << i << ": " << values[i] << " and " << expected[i];
  }
}

// Compares the types of one file, and returns their number.
std::size_t compare_types(const std::string& path) {
  const auto file = MappedFile::open(path);
  EXPECT_TRUE(file.ok()) << path;
  if (!file) return 0;
  const auto gguf = read_gguf(file->bytes());
  EXPECT_TRUE(gguf.ok()) << path;
  if (!gguf) return 0;
  std::size_t n_types = 0;
  for (const auto& [name, tensor] : gguf->tensors) {
    if (name.ends_with(".values")) continue;
    const std::vector<float> expected = floats_of(gguf->tensors.at(name + ".values"));
    const BlockType* type = find_block_type(tensor.type);
    EXPECT_NE(type, nullptr) << name;
    if (type == nullptr) continue;
    std::vector<float> values(expected.size());
    type->widen(tensor.bytes.data(), values);
    expect_same(values, expected, name);
    ++n_types;
  }
  return n_types;
}

// Of files made by tests/interop/peers/make_blocks.py; the tests with peers name a fresh one, with
// all types.
TEST(BlockTypes, WidenAsTheGgufPackageDoes) {
  if (const char* fresh = std::getenv("TQCACHE_BLOCKS")) {
    EXPECT_EQ(compare_types(fresh), block_types().size());
    return;
  }
  const std::size_t n_types = compare_types(TQCACHE_TEST_DATA "/blocks.gguf") +
                              compare_types(TQCACHE_TEST_DATA "/blocks_mxfp4.gguf");
  EXPECT_EQ(n_types, block_types().size());
}

TEST(BlockTypes, HaveTheSizesThatGgmlHas) {
  for (const BlockType& type : block_types()) {
    bool is_found = false;
    for (std::uint32_t id = 0; id < 64; ++id) {
      const GgmlType* ggml = find_ggml_type(id);
      if (ggml == nullptr || ggml->type != type.type) continue;
      is_found = true;
      EXPECT_EQ(ggml->block_values, type.block_values) << ggml->name;
      EXPECT_EQ(ggml->block_bytes, type.block_bytes) << ggml->name;
    }
    EXPECT_TRUE(is_found);
    EXPECT_EQ(find_block_type(type.type), &type);
  }
  EXPECT_EQ(block_types().size(), layouts::All::kSize);
}

TEST(BlockTypes, AreNotWhatStandsOneByOne) {
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kOther}) {
    EXPECT_EQ(find_block_type(type), nullptr);
  }
}

}  // namespace block_types_test
}  // namespace tqcache::tensors
