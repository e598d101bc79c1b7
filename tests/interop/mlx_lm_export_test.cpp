#include <gtest/gtest.h>

#include <numeric>

#include "interop/mlx_lm_builder.h"
#include "support/failing_source.h"
#include "support/temp_dir.h"
#include "tqcache/cache/blocks.h"
#include "tqcache/format/section_reader.h"
#include "tqcache/interop/mlx/mlx_lm_rows.h"
#include "tqcache/reader.h"
#include "tqcache/tqkv.h"

namespace tqcache::interop {
namespace mlx_lm_export_test {

using cache::TensorKind;
using test::CacheBuilder;
using test::must;
using test::TempDir;

constexpr int kMinors[] = {31, 32};  // one version of each layout

Bytes export_bytes(const cache::CacheReader& cache, const MlxLmExport& options) {
  const TempDir folder;
  must(export_mlx_lm(cache, folder / "cache.safetensors", options));
  return test::read_all(folder / "cache.safetensors");
}
Bytes export_bytes(cache::Cache cache, const MlxLmExport& options) {
  return export_bytes(*test::sections_of(std::move(cache)), options);
}

tensors::SafetensorsIndex index_of(const Bytes& file) {
  return must(tensors::index_safetensors(*memory_source(file)));
}

MlxLmExport for_minor(int minor) {
  MlxLmExport options;
  options.version_minor = minor;
  return options;
}

void expect_same_sections(const cache::CacheReader& a, const cache::CacheReader& b) {
  ASSERT_EQ(a.blocks().size(), b.blocks().size());
  for (std::size_t i = 0; i < a.blocks().size(); ++i) {
    AlignedBytes raw_a, raw_b;
    must(a.read(i, raw_a));
    must(b.read(i, raw_b));
    EXPECT_TRUE(raw_a == raw_b) << cache::block_place(i, a.blocks()[i]);
  }
}

Error refusal(cache::Cache cache, const MlxLmExport& options) {
  const TempDir folder;
  const auto done = export_mlx_lm(*test::sections_of(std::move(cache)), folder / "x", options);
  EXPECT_FALSE(done.ok());
  EXPECT_EQ(folder.entry_count(), 0u);
  return done ? Error{ErrorCode::kIo, ""} : done.error();
}

void expect_refused(cache::Cache cache, const MlxLmExport& options, const std::string& message) {
  const Error error = refusal(std::move(cache), options);
  EXPECT_EQ(error.message, message);
  EXPECT_EQ(error.code, ErrorCode::kInvalidArgument);
}

cache::Cache small_cache() { return CacheBuilder(5).dense({2, 64}, Dtype::kBF16).build(); }

TEST(MlxExport, GivesBackWhatWasImported) {
  for (const std::int64_t n_tokens : {1, 255, 256, 300, 600}) {
    const auto cache = CacheBuilder(n_tokens)
                           .dense({2, 64}, Dtype::kBF16)
                           .mixed({3, 32}, Dtype::kF32, 16, Dtype::kF16, 16)
                           .rotating({{2, 32}, 100, 4}, Dtype::kBF16, Dtype::kF32)
                           .arrays()
                           .build();
    const auto source = test::sections_of(cache);
    for (const int minor : kMinors) {
      const Bytes file = export_bytes(*source, for_minor(minor));
      ForeignCache foreign = must(test::import_mlx(file));
      EXPECT_EQ(foreign.n_tokens, n_tokens);
      EXPECT_EQ(std::get<cache::WindowDesc>(foreign.layers[2].description).window,
                (cache::Window{100, 4}));
      EXPECT_EQ(foreign.identity.model_name, "a test's model");
      expect_same_sections(*source, *must(reader_of(std::move(foreign))));
    }
  }
}

TEST(MlxExport, DecodesTurboTensors) {
  const auto source = test::sections_of(
      CacheBuilder(600).turbo({2, 64}, 4, 3).turbo_rotating({{2, 32}, 300, 0}, 4, 3).build());
  const auto dense = must(cache::dequantize(source));
  for (const int minor : kMinors) {
    const Bytes file = export_bytes(*source, for_minor(minor));
    expect_same_sections(*dense, *must(reader_of(must(test::import_mlx(file)))));
  }
}

TEST(MlxExport, WritesTheNamesOfMlxLmBefore032) {
  const auto cache =
      CacheBuilder(5).dense({2, 64}, Dtype::kBF16).rotating({{2, 32}, 4, 1}).arrays().build();
  MlxLmExport options = for_minor(31);
  options.model = "org/model";
  options.tokenizer_config = R"({"trust_remote_code": false})";
  const auto index = index_of(export_bytes(cache, options));
  EXPECT_EQ(index.metadata, (std::map<std::string, std::string>{
                                {"0.0", ""},
                                {"0.1.0", "1"},
                                {"0.1.1", "4"},
                                {"0.1.2", "5"},
                                {"0.1.3", "4"},
                                {"0.2", ""},
                                {"1.model", "org/model"},
                                {"1.tokenizer_config", R"({"trust_remote_code": false})"},
                                {"2.0", "KVCache"},
                                {"2.1", "RotatingKVCache"},
                                {"2.2", "ArraysCache"}}));
  ASSERT_EQ(index.tensors.size(), 6u);
  EXPECT_EQ(index.tensors.at("0.0").shape, (test::Shape{1, 2, 5, 64}));
  EXPECT_EQ(index.tensors.at("0.1").type_name, "BF16");
  EXPECT_EQ(index.tensors.at("1.1").shape, (test::Shape{1, 2, 4, 32}));
  EXPECT_EQ(index.tensors.at("2.0").shape, (test::Shape{1, 3, 20}));
  EXPECT_EQ(index.tensors.at("2.1").type_name, "F32");
}

TEST(MlxExport, WritesTheNamesOfMlxLmSince032) {
  const auto cache = CacheBuilder(5).dense({2, 64}).rotating({{2, 32}, 16, 1}).arrays().build();
  const auto index = index_of(export_bytes(cache, {}));
  std::map<std::string, std::string> expected = {
      {"0.model", "a test's model"}, {"0.tokenizer_config", "{}"}, {"1.0", "KVCache"},
      {"1.1", "RotatingKVCache"},    {"1.2", "ArraysCache"},       {"2.0", ""}};
  const std::pair<const char*, const char*> scalars[] = {
      {"0.2", "scalar"}, {"1.2", "scalar"}, {"1.3", "scalar"}, {"1.4", "scalar"},
      {"1.5", "scalar"}, {"2.1", "none"},   {"2.2", "none"}};
  for (std::size_t i = 0; i < std::size(scalars); ++i) {
    const std::string key = "2." + std::to_string(i + 1);
    expected[key + ".0"] = scalars[i].first;
    expected[key + ".1"] = scalars[i].second;
  }
  EXPECT_EQ(index.metadata, expected);
  EXPECT_EQ(index.tensors.size(), 13u);
  EXPECT_EQ(index.tensors.at("0.2").type_name, "I32");
  EXPECT_TRUE(index.tensors.at("0.2").shape.empty());
  EXPECT_EQ(index.tensors.at("2.0.1").shape, (test::Shape{1, 2, 5, 7}));
  EXPECT_EQ(index.tensors.at("2.2").shape, (test::Shape{0}));
}

// Values of an exported cache that went through groups, made here by hand.
std::vector<float> through_groups(const std::vector<float>& values, std::size_t head_dim,
                                  AffineGroups form, Dtype dtype) {
  std::vector<float> result(values.size());
  for (std::size_t at = 0; at < values.size(); at += head_dim) {
    const auto row = std::span(values).subspan(at, head_dim);
    Bytes codes(affine_code_bytes(form, std::ssize(row)));
    const std::size_t n_groups = affine_groups(form, std::ssize(row));
    Bytes scales(n_groups * dtype_size(dtype)), biases(n_groups * dtype_size(dtype));
    affine_encode(form, dtype, row, codes, scales, biases);
    std::vector<float> wide_scales(n_groups), wide_biases(n_groups);
    load_f32(dtype, scales.data(), wide_scales);
    load_f32(dtype, biases.data(), wide_biases);
    affine_decode(form, codes, wide_scales, wide_biases, std::span(result).subspan(at, head_dim));
  }
  return result;
}

TEST(MlxExport, PacksKeysAndValuesIntoGroups) {
  const auto source = test::sections_of(
      CacheBuilder(300).dense({2, 128}, Dtype::kBF16).rotating({{2, 32}, 100, 4}).build());
  for (const int minor : kMinors) {
    for (const int bits : {2, 4, 8}) {
      for (const std::int64_t group_size : {32, 64, 128}) {
        MlxLmExport options = for_minor(minor);
        options.kv_bits = bits;
        options.group_size = group_size;
        const ForeignCache back = must(test::import_mlx(export_bytes(*source, options)));
        for (const std::size_t section : {0u, 1u, 2u, 3u}) {
          const cache::BlockInfo& info = source->blocks()[section];
          AlignedBytes raw;
          must(source->read(section, raw));
          std::vector<float> values(raw.size() / 2);
          load_f32(Dtype::kBF16, raw.data(), values);
          EXPECT_EQ(test::section_values(back, 0, info.tensor, info.block),
                    through_groups(values, 128, {bits, group_size}, Dtype::kBF16));
        }
        EXPECT_TRUE(std::holds_alternative<cache::WindowDesc>(back.layers[1].description));
      }
    }
  }
}

TEST(MlxExport, WritesTheNumbersOfGroups) {
  MlxLmExport options = for_minor(31);
  options.kv_bits = 4;
  const auto old = index_of(export_bytes(small_cache(), options));
  EXPECT_EQ(old.metadata.at("2.0"), "QuantizedKVCache");
  EXPECT_EQ(old.metadata.at("0.0.0"), "5");
  EXPECT_EQ(old.metadata.at("0.0.1"), "64");
  EXPECT_EQ(old.metadata.at("0.0.2"), "4");
  EXPECT_EQ(old.tensors.at("0.0.0").type_name, "U32");
  EXPECT_EQ(old.tensors.at("0.0.0").shape, (test::Shape{1, 2, 5, 8}));
  EXPECT_EQ(old.tensors.at("0.1.2").shape, (test::Shape{1, 2, 5, 1}));
  EXPECT_EQ(old.tensors.at("0.1.2").type_name, "BF16");
  options.version_minor = 32;
  const auto since = index_of(export_bytes(small_cache(), options));
  EXPECT_EQ(since.tensors.size(), 9u);
  EXPECT_EQ(since.metadata.at("2.3.0"), "0.4");
}

TEST(MlxExport, ReplacesWhatIsNoUtf8) {
  MlxLmExport options;
  options.model = "m\xff";
  EXPECT_EQ(index_of(export_bytes(small_cache(), options)).metadata.at("0.model"), "m\xef\xbf\xbd");
}

TEST(MlxExport, RefusesWhatMlxLmDoesNotHave) {
  MlxLmExport bits;
  bits.kv_bits = 3;
  expect_refused(small_cache(), bits, "groups of 3 bits");
  MlxLmExport size;
  size.kv_bits = 4;
  size.group_size = 16;
  expect_refused(small_cache(), size, "groups of 16 components");
  size.group_size = 128;
  expect_refused(small_cache(), size, "layer 0: groups of 128 in head_dim 64");
  expect_refused(small_cache(), for_minor(-1), "no such version");
  expect_refused(CacheBuilder(0).dense({2, 64}).build(), {}, "an empty cache");
  expect_refused(CacheBuilder(5).build(), {}, "an empty cache");
  cache::Cache no_arrays = small_cache();
  no_arrays.layers.emplace_back(cache::StateLayer{});
  expect_refused(no_arrays, {}, "layer 1: without arrays: mlx-lm has no such cache");
}

TEST(MlxExport, LeavesAFileThatStandsThere) {
  const TempDir folder;
  test::write_all(folder / "x", "old");
  const auto source = test::sections_of(small_cache());
  const auto done = export_mlx_lm(*source, folder / "x", {});
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(test::read_all(folder / "x").size(), 3u);
  MlxLmExport options;
  options.overwrite = Overwrite::kAllow;
  must(export_mlx_lm(*source, folder / "x", options));
  EXPECT_GT(test::read_all(folder / "x").size(), 3u);
}

TEST(MlxExport, TellsHowFarItIs) {
  const TempDir folder;
  const auto source =
      test::sections_of(CacheBuilder(300).turbo({2, 64}, 4, 4).arrays().dense({1, 32}).build());
  const auto dense = must(cache::dequantize(source));
  std::vector<std::uint64_t> seen;
  std::uint64_t total = 0;
  must(export_mlx_lm(*source, folder / "x", {}, [&](std::uint64_t done, std::uint64_t all) {
    seen.push_back(done);
    total = all;
    return true;
  }));
  EXPECT_EQ(seen.size(), source->blocks().size());
  EXPECT_EQ(seen.back(), total);
  EXPECT_EQ(total, cache::total_raw_bytes(dense->blocks()));
}

TEST(MlxExport, StopsWhenItIsAskedTo) {
  const TempDir folder;
  const auto source = test::sections_of(small_cache());
  const auto done =
      export_mlx_lm(*source, folder / "x", {}, [](std::uint64_t, std::uint64_t) { return false; });
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::kInterrupted);
  EXPECT_EQ(folder.entry_count(), 0u);
}

TEST(MlxExport, PassesOnWhatGoesWrongWithTheSource) {
  test::MlxBuilder file(MlxLayout::kScalars);
  test::add_kv(file, 5);
  file.layer("ArraysCache").tensor("0.0", "F32", {1, 2}, Bytes(8)).none("1").none("2");
  file.layer("RotatingKVCache").pair({1, 4}, test::positions(5));
  file.number("2", 5).number("3", 0).number("4", 8).number("5", 5);
  const std::size_t n_reads = test::fail_every_read(file.build(), [](const ByteSource& source) {
    const TempDir folder;
    const std::shared_ptr<const ByteSource> shared(&source, [](const ByteSource*) {});
    auto foreign = import_mlx_lm(shared);
    if (!foreign) {
      EXPECT_EQ(foreign.error().code, ErrorCode::kIo);
      return;
    }
    const auto done = export_mlx_lm(*must(reader_of(std::move(foreign).value())), folder / "x", {});
    if (!done) {
      EXPECT_EQ(done.error().code, ErrorCode::kIo);
      EXPECT_EQ(folder.entry_count(), 0u);
    }
  });
  EXPECT_GT(n_reads, 10u);
}

}  // namespace mlx_lm_export_test
}  // namespace tqcache::interop
