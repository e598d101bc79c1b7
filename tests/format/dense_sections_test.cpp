// A cache from anywhere, section by section: unpacked, and written again.

#include <gtest/gtest.h>

#include "file_fixture.h"
#include "support/scripted_reader.h"
#include "support/temp_dir.h"
#include "tqcache/bytes.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/quantize.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {
namespace dense_sections_test {

using format::SectionReader;

cache::ConvertOptions all_dense() {
  cache::ConvertOptions options{.n_threads = 2};
  options.keys.dense = options.values.dense = true;
  return options;
}

// Writes what a source holds, and reads it.
cache::Cache passed_on(const cache::CacheReader& source, const cache::ConvertOptions& options) {
  const TempDir dir;
  must(format::convert_file(source, dir / "a.tqkv", options, {}));
  return load(read_all(dir / "a.tqkv")).value();
}

// The values of a tensor, [n_kv_heads, n_tokens, head_dim], as they are after rounding to its
// dtype.
std::vector<float> values_of(const cache::Tensor& tensor, cache::HeadShape shape,
                             std::int64_t n_tokens) {
  std::vector<float> values;
  for (std::int64_t head = 0; head < shape.n_kv_heads; ++head) {
    for (std::int64_t block = 0; block < cache::block_count(n_tokens); ++block) {
      const std::int64_t n = cache::tokens_in_block(n_tokens, block);
      std::vector<float> part(static_cast<std::size_t>(n * shape.head_dim));
      cache::read_block(tensor, shape, n_tokens, block, head, part);
      std::vector<std::byte> rounded(part.size() * dtype_size(cache::dense_dtype(tensor)));
      store_f32(cache::dense_dtype(tensor), part, rounded.data());
      load_f32(cache::dense_dtype(tensor), rounded.data(), part);
      values.insert(values.end(), part.begin(), part.end());
    }
  }
  return values;
}

TEST(CacheReader, OfAFileIsPassedOnAsItIs) {
  const cache::Cache cache = preset_cache();
  const auto file = memory_source(file_of(cache));
  const SectionReader reader = must(SectionReader::open(*file));
  const cache::Cache once = passed_on(*must(cache::dequantize(cache::borrow(reader))), all_dense());
  const auto again = memory_source(file_of(once));
  EXPECT_EQ(difference(passed_on(must(SectionReader::open(*again)), all_dense()), once), "");
}

TEST(Dequantize, HaveTheValuesOfWhatIsPacked) {
  const cache::Cache cache = preset_cache();
  const auto file = memory_source(file_of(cache));
  const SectionReader reader = must(SectionReader::open(*file));
  const cache::Cache dense =
      passed_on(*must(cache::dequantize(cache::borrow(reader))), all_dense());
  ASSERT_EQ(dense.layers.size(), cache.layers.size());
  EXPECT_EQ(dense.tokens, cache.tokens);
  for (std::size_t i = 0; i < cache.layers.size(); ++i) {
    const auto* packed = std::get_if<cache::AttentionLayer>(&cache.layers[i]);
    if (packed == nullptr) continue;
    const auto& plain = std::get<cache::AttentionLayer>(dense.layers[i]);
    EXPECT_TRUE(std::holds_alternative<cache::DenseTensor>(plain.k)) << i;
    EXPECT_TRUE(std::holds_alternative<cache::DenseTensor>(plain.v)) << i;
    EXPECT_EQ(values_of(plain.k, plain.shape, 600), values_of(packed->k, packed->shape, 600)) << i;
    EXPECT_EQ(values_of(plain.v, plain.shape, 600), values_of(packed->v, packed->shape, 600)) << i;
  }
}

TEST(Dequantize, CanBePackedAgain) {
  const auto file = memory_source(file_of(preset_cache()));
  const SectionReader reader = must(SectionReader::open(*file));
  const auto dense = must(cache::dequantize(cache::borrow(reader)));
  const cache::Cache unpacked = passed_on(*dense, all_dense());
  cache::ConvertOptions options{.n_threads = 2};
  EXPECT_EQ(difference(passed_on(*dense, options), must(cache::convert(unpacked, options))), "");
}

// Has no bytes.
ScriptedReader reader_without_bytes(const Manifest& manifest) {
  return {manifest, format::blocks_of(manifest.sections),
          [](std::size_t, AlignedBytes&) -> Result<void> { return corrupt("nothing to read"); }};
}

TEST(Dequantize, RefuseACodecThatIsNone) {
  Manifest manifest = info_of(file_of(preset_cache()));
  k_of(manifest, 0).parts[0].bits = 9;
  const ScriptedReader source = reader_without_bytes(manifest);
  EXPECT_FALSE(cache::dequantize(cache::borrow(source)).ok());
  const TempDir dir;
  EXPECT_FALSE(format::convert_file(source, dir / "a.tqkv", all_dense(), {}).ok());
  EXPECT_FALSE(std::filesystem::exists(dir / "a.tqkv"));
}

TEST(CacheReader, IsNotAskedForWhatCannotBeWritten) {
  const ScriptedReader source = reader_without_bytes(info_of(small_file()));
  const TempDir dir;
  expect_error(format::convert_file(source, dir / "a.tqkv", all_dense(), {.zstd_level = 99}),
               ErrorCode::kInvalidArgument, "99");
  write_all(dir / "a.tqkv", Bytes(1));
  expect_error(format::convert_file(source, dir / "a.tqkv", all_dense(), {}),
               ErrorCode::kInvalidArgument, "");
  expect_error(format::convert_file(source, dir / "b.tqkv", all_dense(), {}), ErrorCode::kCorrupt,
               "nothing to read");
  EXPECT_FALSE(std::filesystem::exists(dir / "b.tqkv"));
}

TEST(Dequantize, HandErrorsOfTheirSourceOn) {
  Bytes bytes = file_of(preset_cache(), Compression::kNone);
  const auto info = must(format::read_cache_info(*memory_source(bytes)));
  bytes[info.sections[0].file_offset] ^= std::byte{1};
  const auto file = memory_source(bytes);
  const SectionReader reader = must(SectionReader::open(*file));
  const auto dense = must(cache::dequantize(cache::borrow(reader)));
  AlignedBytes raw;
  expect_error(dense->read(0, raw), ErrorCode::kCorrupt, "section 0 (layer 0 k, block 0)");
}

}  // namespace dense_sections_test
}  // namespace tqcache::test
