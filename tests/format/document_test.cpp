// The hex dump in docs/reference/format.md is a real file: this library writes it, byte for byte.

#include <gtest/gtest.h>

#include <fstream>
#include <iomanip>
#include <sstream>

#include "file_fixture.h"

namespace tqcache::test {
namespace document_test {

// One head of 4 components and 3 tokens: counts up from 1 in K (f16), down from -1 in V (bf16).
cache::DenseTensor counting_tensor(Dtype dtype, float step) {
  cache::DenseTensor tensor{dtype, {AlignedBytes(cache::kTokenBlock * 4 * dtype_size(dtype))}};
  std::vector<float> values(3 * 4);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = step * static_cast<float>(i + 1);
  store_f32(dtype, values, tensor.blocks[0].data());
  return tensor;
}

Bytes example_file() {
  cache::Cache cache;
  cache.identity.architecture = "qwen3";
  cache.identity.model_name = "example";
  cache.identity.rope = {cache::RopeStyle::kHalfSplit, 4, 10000};
  cache.identity.weights_fingerprint.fill(std::byte{0x11});
  cache.identity.tokenizer_fingerprint.fill(std::byte{0x22});
  cache.identity.source_format = "tqcache";
  cache.tokens = {151644, 872, 198};
  cache.layers.emplace_back(cache::AttentionLayer{
      {1, 4}, counting_tensor(Dtype::kF16, 1), counting_tensor(Dtype::kBF16, -1)});
  return must(format::write_cache_bytes(
      cache, {.compression = Compression::kNone, .writer = "docs/format.md"}));
}

// The bytes of the document's ```hexdump blocks. A line is an offset of four hexadecimal digits,
// then bytes, then "|" and words; an offset that is not the number of bytes so far ends the test.
Bytes bytes_of_document() {
  std::ifstream in(TQCACHE_FORMAT_DOCUMENT);
  Bytes bytes;
  bool in_dump = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("```")) {
      in_dump = line == "```hexdump";
      continue;
    }
    if (!in_dump || line.empty()) continue;
    std::istringstream words(line.substr(0, line.find('|')));
    std::size_t offset = 0;
    words >> std::hex >> offset;
    EXPECT_EQ(offset, bytes.size()) << line;
    for (unsigned value = 0; words >> value;) bytes.push_back(std::byte(value));
  }
  return bytes;
}

std::string dump(const Bytes& bytes) {
  std::ostringstream out;
  out << std::hex << std::setfill('0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (i % 16 == 0) out << (i == 0 ? "" : "\n") << std::setw(4) << i << ' ';
    out << ' ' << std::setw(2) << std::to_integer<unsigned>(bytes[i]);
  }
  return out.str();
}

TEST(FormatDocument, ShowsTheBytesThatTheLibraryWrites) {
  EXPECT_EQ(dump(bytes_of_document()), dump(example_file()));
}

TEST(FormatDocument, ShowsAFileThatIsReadAndWhole) {
  const Bytes file = bytes_of_document();
  const auto loaded = load(file);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(loaded->n_tokens(), 3);
  EXPECT_EQ(damage_of(file), std::vector<std::string>());
}

}  // namespace document_test
}  // namespace tqcache::test
