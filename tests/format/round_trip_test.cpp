// What is written is what is read, whatever the cache holds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "file_fixture.h"
#include "support/matchers.h"
#include "support/temp_dir.h"
#include "tqcache/format/type_names.h"

namespace tqcache::test {
namespace round_trip_test {

struct Case {
  std::string name;
  std::function<cache::Cache(std::int64_t n_tokens)> make;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {"DenseF16",
       [](auto n) {
         return CacheBuilder(n).dense({2, 32}, Dtype::kF16).build();
       }},
      {"DenseBF16",
       [](auto n) {
         return CacheBuilder(n).dense({3, 5}, Dtype::kBF16).build();
       }},
      {"DenseF32",
       [](auto n) {
         return CacheBuilder(n).dense({1, 1}, Dtype::kF32).build();
       }},
      {"Turbo",
       [](auto n) {
         return CacheBuilder(n).turbo({2, 64}, 4, 3).build();
       }},
      {"TurboFullTail",
       [](auto n) {
         return CacheBuilder(n).keep_full_tail().turbo({1, 36}, 2, 1).build();
       }},
      {"Centered",
       [](auto n) {
         return CacheBuilder(n)
             .center(cache::Centering::kPreRope)
             .turbo({2, 64}, 4, 4)
             .turbo({1, 80}, 3, 16)
             .turbo({1, 32}, 4, 4)  // too small for the RoPE: after RoPE
             .center(cache::Centering::kPostRope)
             .keep_full_tail()
             .turbo({1, 64}, 4, 4)
             .build();
       }},
      {"Mixed",
       [](auto n) {
         return CacheBuilder(n)
             .turbo({1, 32}, 8, 5, Dtype::kF32)
             .mixed({2, 32}, Dtype::kF16, 16, Dtype::kBF16, 4)
             .dense({1, 3}, Dtype::kBF16)
             .build();
       }},
      {"Modes",
       [](auto n) {
         return CacheBuilder(n)
             .preset({2, 64}, "turbo4")
             .preset({1, 96}, "prod3", Dtype::kBF16)
             .preset({2, 80}, "turbo2.5")
             .preset({1, 128}, "affine8", Dtype::kF32)
             .preset({1, 64}, "kfv4")
             .build();
       }},
      {"Sinks",
       [](auto n) {
         cache::TensorPlan few;
         few.n_sinks = 3;
         cache::TensorPlan all = few;
         all.n_sinks = 256;
         return CacheBuilder(n)
             .tensors({2, 64}, Dtype::kF16, few, Dtype::kBF16, few)
             .tensors({1, 32}, Dtype::kF32, all, Dtype::kF16, few)
             .build();
       }},
      {"Arrays",
       [](auto n) {
         return CacheBuilder(n).arrays().dense({1, 8}).arrays().turbo({1, 32}, 4, 4).build();
       }},
      {"Rotating",
       [](auto n) {
         return CacheBuilder(n)
             .rotating({{2, 8}, 256, 4})
             .turbo({1, 32}, 4, 4)
             .rotating({{1, 3}, 100, 0}, Dtype::kF32, Dtype::kBF16)
             .build();
       }},
      {"HiddenTokens",
       [](auto n) {
         return CacheBuilder(n).dense({1, 8}).turbo({1, 32}, 4, 4).hide_tokens().build();
       }},
      {"UnknownTokens",
       [](auto n) {
         return CacheBuilder(n).dense({1, 8}).arrays().forget_tokens().build();
       }},
      {"NoLayers", [](auto n) { return CacheBuilder(n).build(); }},
  };
  return kCases;
}

class RoundTrip
    : public testing::TestWithParam<std::tuple<std::size_t, std::int64_t, Compression>> {};

TEST_P(RoundTrip, GivesTheSameCacheBack) {
  const auto [kind, n_tokens, compression] = GetParam();
  const cache::Cache cache = cases()[kind].make(n_tokens);
  const Bytes file = file_of(cache, compression);
  const auto loaded = load(file);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_EQ(difference(cache, *loaded), "");
  EXPECT_THAT(damage_of(file), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(CacheFile, RoundTrip,
                         testing::Combine(testing::Range<std::size_t>(0, cases().size()),
                                          testing::Values<std::int64_t>(0, 1, 255, 256, 257, 511,
                                                                        512, 513),
                                          testing::ValuesIn(kCompressions)),
                         [](const auto& test) {
                           return cases()[std::get<0>(test.param)].name +
                                  std::to_string(std::get<1>(test.param)) +
                                  name_of(std::get<2>(test.param));
                         });

TEST(CacheFile, KeepsTheWholeIdentity) {
  CacheBuilder builder(1);
  builder.identity().model_name = "name with \"quotes\", \xc3\xbc and \n";
  builder.identity().adapter_fingerprint = Sha256{std::byte{7}};
  builder.identity().rope = {cache::RopeStyle::kInterleaved, 12, 10000.5};
  builder.identity().source_format = "mlx-lm";
  builder.identity().llama_streams = 4;
  builder.identity().source_layout = "CacheList(ArraysCache,KVCache)*24";
  builder.identity().standing = cache::Standing::kShifted;
  const cache::Cache cache = builder.dense({1, 4}).build();
  EXPECT_EQ(difference(cache, must(load(file_of(cache)))), "");
}

// The content digest stays the same, so that readers that do not know the fingerprint agree on it.
TEST(CacheFile, KeepsAModelFingerprintOfAnyVersion) {
  cache::Cache cache = CacheBuilder(1).dense({1, 4}).build();
  const Sha256 name = info_of(file_of(cache)).content_name;
  for (const std::uint8_t version : std::initializer_list<std::uint8_t>{2, 3, 255}) {
    cache.identity.model_fingerprint = {version, Sha256{std::byte{7}}};
    const Bytes file = file_of(cache);
    EXPECT_EQ(difference(cache, must(load(file))), "");
    EXPECT_EQ(info_of(file).content_name, name);
    EXPECT_THAT(damage_of(file), testing::IsEmpty());
  }
}

// The content digest stays the same, so that readers that do not know the field agree on it.
TEST(CacheFile, KeepsTheNumberOfStreams) {
  cache::Cache cache = CacheBuilder(1).dense({1, 4}).build();
  const Bytes plain = file_of(cache);
  for (const std::uint32_t n_streams : {2U, 1024U}) {
    cache.identity.llama_streams = n_streams;
    const Bytes file = file_of(cache);
    EXPECT_EQ(must(load(file)).identity.llama_streams, n_streams);
    EXPECT_EQ(info_of(file).content_name, info_of(plain).content_name);
    EXPECT_THAT(damage_of(file), testing::IsEmpty());
  }
  EXPECT_EQ(must(load(plain)).identity.llama_streams, 1u);
}

TEST(CacheFile, KeepsWhatIsKnownOfTheOriginOutOfTheContent) {
  cache::Cache cache = CacheBuilder(1).dense({1, 4}).build();
  const Bytes plain = file_of(cache);
  cache.identity.source_layout = "CacheList(KVCache,KVCache)";
  cache.identity.standing = cache::Standing::kUnchecked;
  const Bytes file = file_of(cache);
  EXPECT_EQ(must(load(file)).identity.source_layout, "CacheList(KVCache,KVCache)");
  EXPECT_EQ(must(load(file)).identity.standing, cache::Standing::kUnchecked);
  EXPECT_EQ(info_of(file).content_name, info_of(plain).content_name);
  EXPECT_THAT(damage_of(file), testing::IsEmpty());
  EXPECT_EQ(must(load(plain)).identity.source_layout, "");
  EXPECT_EQ(must(load(plain)).identity.standing, cache::Standing::kNone);
}

// Writing them does not check the version.
TEST(CacheFile, RefusesAModelFingerprintOfVersion1OrOfNone) {
  cache::Cache cache = CacheBuilder(1).dense({1, 4}).build();
  for (const std::uint8_t version : std::initializer_list<std::uint8_t>{0, 1}) {
    cache.identity.model_fingerprint = {version, Sha256{std::byte{7}}};
    EXPECT_THAT(load(file_of(cache)),
                test::FailsWith(ErrorCode::kCorrupt, testing::HasSubstr("fingerprint version")));
  }
}

TEST(CacheFile, KeepsArraysOfNoValueAndOfOneValue) {
  cache::Cache cache = CacheBuilder(2).build();
  cache::StateLayer layer;
  layer.arrays.push_back({"none", Dtype::kF16, {4, 0, 3}, {}});
  layer.arrays.push_back({"one", Dtype::kF32, {}, AlignedBytes(4, std::byte{9})});
  layer.arrays.push_back({"", Dtype::kBF16, {1, 1, 1, 1, 1, 1, 1, 2}, AlignedBytes(4)});
  cache.layers.emplace_back(layer);
  for (const Compression compression : kCompressions) {
    const Bytes file = file_of(cache, compression);
    EXPECT_EQ(difference(cache, must(load(file))), "");
    EXPECT_THAT(damage_of(file), testing::IsEmpty());
  }
}

TEST(CacheFile, HasTheSameBytesForAnyNumberOfThreads) {
  const cache::Cache cache = CacheBuilder(700).dense({2, 32}).turbo({2, 64}, 4, 3).arrays().build();
  for (const Compression compression : kCompressions) {
    const Bytes one =
        must(format::write_cache_bytes(cache, {.compression = compression, .n_threads = 1}));
    const Bytes four =
        must(format::write_cache_bytes(cache, {.compression = compression, .n_threads = 4}));
    EXPECT_TRUE(one == four);
    EXPECT_EQ(difference(must(load(one, {.n_threads = 4})), cache), "");
  }
}

TEST(CacheFile, OnDiskHasTheBytesOfTheFileInMemory) {
  const TempDir dir;
  const cache::Cache cache = CacheBuilder(300).turbo({2, 32}, 4, 4).arrays().build();
  must(format::write_cache_file(cache, dir / "a.tqkv", {}));
  EXPECT_TRUE(read_all(dir / "a.tqkv") == must(format::write_cache_bytes(cache, {})));
  const auto source = must(open_file(dir / "a.tqkv"));
  EXPECT_EQ(difference(must(format::read_cache(*source)), cache), "");
}

TEST(CacheFile, CompressesWhatShrinksAndStoresWhatDoesNot) {
  cache::Cache cache = CacheBuilder(256).turbo({2, 64}, 4, 4).build();
  cache.layers.emplace_back(
      cache::AttentionLayer{{1, 8},
                            cache::DenseTensor{Dtype::kF16, {AlignedBytes(256 * 8 * 2)}},
                            cache::DenseTensor{Dtype::kF16, {AlignedBytes(256 * 8 * 2)}}});
  const CacheFileInfo info = info_of(file_of(cache, Compression::kZstd));
  ASSERT_EQ(info.sections.size(), 4u);
  EXPECT_EQ(info.sections[2].compression, Compression::kZstd);
  EXPECT_LT(info.sections[2].stored_bytes, 100u);
  const Bytes random = file_of(CacheBuilder(0).arrays().build(), Compression::kZstd);
  EXPECT_EQ(info_of(random).sections[1].compression, Compression::kNone);
}

TEST(CacheFile, IsListedWithoutReadingASection) {
  const Bytes file = mixed_file();
  const CacheFileInfo info = info_of(file);
  EXPECT_EQ(info.version, 2u);
  EXPECT_EQ(info.generation, 1u);
  EXPECT_EQ(info.required_features, 0u);
  EXPECT_EQ(info.file_bytes, file.size());
  EXPECT_EQ(info.tokens.size(), 300u);
  EXPECT_THAT(info.writer, testing::StartsWith("tqcache "));
  ASSERT_EQ(info.layers.size(), 4u);
  EXPECT_EQ(format::type_name(info.layers[0]), "tqcache.attention.v1");
  EXPECT_EQ(format::type_name(attention_of(info, 0).k), "tqcache.dense.v1");
  EXPECT_EQ(format::type_name(attention_of(info, 1).v), "tqcache.turbo_mse.v1");
  ASSERT_EQ(v_of(info, 1).parts.size(), 1u);
  EXPECT_EQ(v_of(info, 1).parts[0].bits, 3);
  EXPECT_EQ(v_of(info, 1).parts[0].centroids.size(), 8u);
  EXPECT_EQ(format::type_name(info.layers[2]), "tqcache.arrays.v1");
  EXPECT_EQ(std::get<cache::StateDesc>(info.layers[2]).arrays[1].name, "state");
  std::uint64_t bytes = format::kHeaderBytes + info.padding_bytes + info.manifest_bytes;
  for (const SectionInfo& section : info.sections) bytes += section.stored_bytes;
  EXPECT_EQ(bytes, file.size());
}

TEST(CacheFile, ListsWhatWasTakenOut) {
  using cache::Centering;
  const auto expect_listed = [](std::int64_t n_tokens, Centering center, Centering k, Centering v,
                                std::size_t n_values) {
    const Bytes file =
        file_of(CacheBuilder(n_tokens).center(center).turbo({2, 64}, 4, 4).dense({1, 64}).build());
    const CacheFileInfo info = info_of(file);
    EXPECT_EQ(k_of(info, 0).centering, k);
    EXPECT_EQ(v_of(info, 0).centering, v);
    EXPECT_EQ(k_of(info, 0).mean.size(), n_values);
    EXPECT_EQ(v_of(info, 0).mean.size(), n_values);
    EXPECT_FALSE(cache::is_quantized(attention_of(info, 1)));
  };
  expect_listed(300, Centering::kPreRope, Centering::kPreRope, Centering::kPostRope, 128);
  expect_listed(300, Centering::kPostRope, Centering::kPostRope, Centering::kPostRope, 128);
  expect_listed(300, Centering::kNone, Centering::kNone, Centering::kNone, 0);
  expect_listed(200, Centering::kPreRope, Centering::kPreRope, Centering::kPostRope, 0);
}

TEST(CacheFile, ListsHowEachModeIsMadeOfParts) {
  const CacheFileInfo info = info_of(modes_file());
  const auto listed = [&](std::size_t layer) {
    const cache::TensorDesc& k = std::get<cache::AttentionDesc>(info.layers[layer]).k;
    std::string text(format::type_name(k));
    for (const codec::PartSpec& part : k.quant->parts) {
      text += " " + std::to_string(part.first) + "+" + std::to_string(part.head_dim) + ":" +
              std::to_string(part.bits) + (part.of_residual ? "r" : "") +
              (part.has_bias ? "b" : "");
    }
    return text;
  };
  EXPECT_EQ(listed(0), "tqcache.turbo_mse.v1 0+64:4");
  EXPECT_EQ(listed(1), "tqcache.turbo_prod.v1 0+64:2 0+64:1r");
  EXPECT_EQ(listed(2), "tqcache.turbo_mixed.v1 0+16:3 16+48:2");
  EXPECT_EQ(listed(3), "tqcache.affine.v1 0+64:4b");
  EXPECT_EQ(std::get<cache::AttentionDesc>(info.layers[2]).k.quant->outliers.size(), 32u);
  EXPECT_EQ(k_of(info, 4).n_sinks, 4);
}

TEST(CacheFile, KeepsPackedBlocksAsTheyStandInTheFile) {
  const Bytes file = modes_file();
  const cache::Cache cache = must(load(file));
  for (const SectionInfo& section : info_of(file).sections) {
    if (!section.packed) continue;
    const auto& layer = std::get<0>(cache.layers[static_cast<std::size_t>(section.layer)]);
    const cache::Tensor& tensor = section.tensor == cache::TensorKind::kKeys ? layer.k : layer.v;
    const ByteView packed = std::get<cache::TurboTensor>(tensor).packed[0].bytes.view();
    const auto stored = ByteView(file).subspan(section.file_offset, section.stored_bytes);
    EXPECT_TRUE(std::ranges::equal(packed, stored)) << section.layer;
  }
}

TEST(CacheFile, HasItsSectionsBlockByBlockAndArraysLast) {
  std::string order;
  for (const SectionInfo& section : info_of(mixed_file()).sections) {
    constexpr std::string_view kTensors = "kva";
    order += std::to_string(section.layer);
    order += kTensors[static_cast<std::size_t>(section.tensor)];
    order += std::to_string(section.block) + (section.packed ? "p " : " ");
  }
  EXPECT_EQ(order, "0k0 0v0 1k0p 1v0p 3k0 3v0p 0k1 0v1 1k1 1v1 3k1 3v1 2a0 2a1 ");
}

TEST(CacheFile, HasOneContentNameHoweverItIsCompressedAndWhoeverWroteIt) {
  const cache::Cache cache = CacheBuilder(300).dense({2, 32}).turbo({1, 64}, 4, 4).build();
  const auto name = [](const Bytes& file) { return to_hex(info_of(file).content_name); };
  const std::string stored = name(file_of(cache, Compression::kNone));
  EXPECT_EQ(name(file_of(cache, Compression::kZstd)), stored);
  EXPECT_EQ(name(file_of(cache, Compression::kPlanes)), stored);
  EXPECT_EQ(name(must(format::write_cache_bytes(cache, {.writer = "another"}))), stored);
}

// Found by fuzz_manifest: a manifest does not tell -0 from 0, so their content has one name.
TEST(CacheFile, HasOneContentNameForBothZerosOfARope) {
  cache::Cache cache = CacheBuilder(3).dense({1, 4}).build();
  cache.identity.rope = {cache::RopeStyle::kNone, 0, 0.0};
  const Bytes plus = file_of(cache);
  cache.identity.rope.base = -0.0;
  const Bytes minus = file_of(cache);
  EXPECT_EQ(info_of(minus).content_name, info_of(plus).content_name);
  EXPECT_EQ(difference(must(load(minus)), cache), "");
}

TEST(CacheFile, HasAnotherContentNameForAnyOtherContent) {
  const auto name = [](const cache::Cache& cache) {
    return to_hex(info_of(file_of(cache)).content_name);
  };
  const auto make = [] { return CacheBuilder(3).dense({1, 4}).arrays().build(); };
  std::vector<std::string> names = {name(make())};
  const auto add = [&](const std::function<void(cache::Cache&)>& change) {
    cache::Cache cache = make();
    change(cache);
    names.push_back(name(cache));
  };
  add([](auto& c) { c.identity.architecture = "llama"; });
  add([](auto& c) { c.identity.adapter_fingerprint = Sha256{}; });
  add([](auto& c) { c.identity.rope.base = 1; });
  add([](auto& c) { c.tokens[2] ^= 1; });
  add([](auto& c) { std::get<0>(c.layers[0]).k = std::get<0>(c.layers[0]).v; });
  add([](auto& c) { std::get<cache::StateLayer>(c.layers[1]).arrays[0].name = "x"; });
  add([](auto& c) { std::get<cache::StateLayer>(c.layers[1]).arrays[0].shape = {20, 3}; });
  add([](auto& c) { std::get<cache::StateLayer>(c.layers[1]).arrays[0].data[0] ^= std::byte{1}; });
  add([](auto& c) { std::swap(c.layers[0], c.layers[1]); });
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

// What is said of tokens is told apart, and so is a rotating layer from its arrays alone.
TEST(CacheFile, HasAnotherContentNameForHiddenTokensAndForAnotherWindow) {
  std::vector<std::string> names;
  const auto add = [&](const std::function<void(cache::Cache&)>& change) {
    cache::Cache cache = CacheBuilder(300).rotating({{2, 4}, 8, 1}).build();
    change(cache);
    names.push_back(to_hex(info_of(file_of(cache)).content_name));
  };
  add([](auto&) {});
  add([](auto& c) { cache::hide_tokens(c); });
  add([](auto& c) {
    c.tokens[0] ^= 1;
    cache::hide_tokens(c);
  });
  add([](auto& c) {
    cache::hide_tokens(c);
    c.hidden_tokens->clear();
  });
  add([](auto& c) {
    cache::hide_tokens(c);
    c.hidden_tokens->clear();
    c.tokens.pop_back();
  });
  add([](auto& c) { std::get<cache::WindowLayer>(c.layers[0]).window.keep = 2; });
  add([](auto& c) {
    const auto window = std::get<cache::WindowLayer>(c.layers[0]);
    const auto shape = cache::window_array_shape({2, 4}, window.window, 300);
    const auto array = [&](const char* name, const cache::Tensor& tensor) {
      return cache::NamedArray{name, Dtype::kF16, shape, cache::gather_window(window, tensor, 300)};
    };
    const cache::AttentionLayer& attention = window.attention;
    c.layers[0] = cache::StateLayer{{array("keys", attention.k), array("values", attention.v)}};
  });
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(CacheFile, HasAnotherContentNameForAnotherMeanOfTheSameCodes) {
  cache::Cache cache =
      CacheBuilder(256).center(cache::Centering::kPreRope).turbo({1, 64}, 4, 4).build();
  const auto name = [&] { return to_hex(info_of(file_of(cache)).content_name); };
  std::vector<std::string> names = {name()};
  cache::KvCodec& codec = std::get<cache::TurboTensor>(std::get<0>(cache.layers[0]).k).codec;
  edit_codec(codec, [](auto& state) { state.mean.values[3] += 1; });
  names.push_back(name());
  edit_codec(codec, [](auto& state) { state.mean.kind = cache::Centering::kPostRope; });
  names.push_back(name());
  edit_codec(codec, [](auto& state) { state.mean = {}; });
  names.push_back(name());
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(CacheFile, HasAnotherContentNameForAnyOtherCodec) {
  Manifest manifest = info_of(modes_file());
  std::vector<std::string> names;
  const auto add = [&] { names.push_back(to_hex(format::content_name(manifest))); };
  add();
  cache::QuantSpec& tensor = k_of(manifest, 2);
  codec::PartSpec& part = tensor.parts[1];
  ++part.first, add();
  ++part.head_dim, add();
  ++part.bits, add();
  ++part.seed, add();
  ++part.rounds, add();
  part.rotation = codec::TransformKind::kDenseQr, add();
  part.scale = codec::ScaleRule::kNorm, add();
  part.of_residual = true, add();
  part.has_bias = true, add();
  part.centroids[1] += 0.25f, add();
  part.rotation = codec::TransformKind::kMatrix, add();
  part.matrix = must(codec::TransformMatrix::make({1, 0})), add();
  part.matrix = must(codec::TransformMatrix::make({1, -0.0f})), add();
  tensor.parts.push_back(part), add();
  tensor.outliers[3] ^= 1, add();
  ++tensor.n_sinks, add();
  tensor.centering = cache::Centering::kPostRope, add();
  tensor.mode = codec::Mode::kAffine, add();
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(CacheFile, BringsMapsAlongByValue) {
  const cache::Cache cache = matrix_cache();
  const cache::Cache again = must(load(file_of(cache)));
  EXPECT_EQ(difference(cache, again), "");
  const auto matrix = [&](std::size_t layer, bool keys) {
    const auto& attention = std::get<cache::AttentionLayer>(again.layers[layer]);
    const auto& tensor = std::get<cache::TurboTensor>(keys ? attention.k : attention.v);
    return tensor.codec.parts()[0].matrix.values();
  };
  ASSERT_EQ(matrix(0, true).size(), 32u * 32u);
  EXPECT_EQ(matrix(0, true).data(), matrix(1, false).data());  // all tensors share one
  // Two matrices of 4 KiB, each once.
  EXPECT_LT(info_of(file_of(cache)).manifest_bytes, 2 * 4096 + 4096u);
}

TEST(CacheFile, IsDetectedByItsFirstBytes) {
  const auto looks = [](const Bytes& bytes) {
    return format::looks_like_cache_file(*memory_source(bytes));
  };
  Bytes file = small_file();
  EXPECT_TRUE(looks(file));
  EXPECT_TRUE(looks(Bytes(file.begin(), file.begin() + 4)));
  file[70] ^= std::byte{1};
  file[20] ^= std::byte{1};
  EXPECT_TRUE(looks(file));
  EXPECT_FALSE(looks({}));
  EXPECT_FALSE(looks(Bytes(200)));
  const ByteView text = as_bytes("GGUF, a text of more than four bytes");
  EXPECT_FALSE(looks(Bytes(text.begin(), text.end())));
}

}  // namespace round_trip_test
}  // namespace tqcache::test
