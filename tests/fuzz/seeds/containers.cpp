// .tqkv files of every kind of layer and tensor, and their manifests by themselves.

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "format/file_fixture.h"
#include "fuzz/seeds/seeds.h"
#include "support/cache_builder.h"
#include "tqcache/tqkv.h"

namespace tqcache::fuzz {
namespace {

// All codes and scales become zero, so that a packed block takes a few bytes of zstd.
cache::Cache with_zero_codes(cache::Cache cache) {
  for (cache::Layer& any : cache.layers) {
    cache::AttentionLayer* layer = cache::attention_of(any);
    if (layer == nullptr) continue;
    for (cache::Tensor* tensor : {&layer->k, &layer->v}) {
      auto* turbo = std::get_if<cache::TurboTensor>(tensor);
      if (turbo == nullptr) continue;
      for (cache::TurboBlock& block : turbo->packed) {
        block.bytes = SharedBytes(AlignedBytes(block.bytes.size()));
      }
    }
  }
  return cache;
}

test::CacheBuilder small_builder(std::int64_t n_tokens) {
  test::CacheBuilder builder(n_tokens);
  builder.identity().rope = {cache::RopeStyle::kHalfSplit, 2, 100.0, {}};
  return builder;
}

struct NamedCache {
  std::string name;
  cache::Cache cache;
  format::Compression compression = format::Compression::kZstd;
};

// A cache of each kind of layer and of tensor, none larger than it has to be.
std::vector<NamedCache> small_caches() {
  std::vector<NamedCache> all;
  all.push_back({"empty", small_builder(0).build()});
  all.push_back({"dense", small_builder(3).dense({1, 4}).dense({2, 3}, Dtype::kBF16).build()});
  all.push_back({"planes", small_builder(40).dense({1, 2}).dense({1, 2}, Dtype::kF32).build(),
                 format::Compression::kPlanes});
  all.push_back({"arrays", small_builder(2).arrays().build()});
  all.push_back({"rotating", small_builder(5).rotating({{1, 4}, 3, 1}).build()});
  all.push_back(
      {"turbo_rotating",
       with_zero_codes(small_builder(257).turbo_rotating({{1, 32}, 20, 0}, 1, 16).build())});
  all.push_back({"hidden", small_builder(4).dense({1, 2}).hide_tokens().build()});
  all.push_back({"forgotten", small_builder(4).dense({1, 2}).forget_tokens().build()});
  const std::vector<std::pair<std::string, codec::CodecSpec>> modes = {
      {"mse", {.mode = codec::Mode::kMse, .bits = 1}},
      {"prod", {.mode = codec::Mode::kProd, .bits = 2}},
      {"mixed", {.mode = codec::Mode::kMixed, .bits = 1, .outlier_channels = 8, .outlier_bits = 2}},
      {"affine", {.mode = codec::Mode::kAffine, .bits = 1, .group_size = 32}},
      {"trellis", {.mode = codec::Mode::kTrellis, .step = 0.5f}}};
  for (const auto& [name, codec] : modes) {
    cache::TensorPlan plan{.codec = codec, .center = cache::Centering::kNone};
    cache::Cache packed =
        small_builder(257).tensors({1, 32}, Dtype::kF16, plan, Dtype::kF16, plan).build();
    all.push_back({name, with_zero_codes(std::move(packed))});
    plan.center = cache::Centering::kPreRope;
    plan.n_sinks = 1;
    plan.fit_transforms = codec.mode == codec::Mode::kTrellis;
    packed = small_builder(256).tensors({1, 32}, Dtype::kF16, plan, Dtype::kBF16, plan).build();
    all.push_back({name + "_centred", with_zero_codes(std::move(packed))});
  }
  // Coded by a matrix that stands in the file.
  const codec::CodecSpec spec{.head_dim = 32,
                              .mode = codec::Mode::kMse,
                              .bits = 1,
                              .rotation = codec::TransformKind::kDenseQr};
  cache::Cache matrix = test::pack_dense(small_builder(256).dense({1, 32}).build(),
                                         test::by_value(test::must(codec::make_parts(spec))));
  all.push_back({"matrix", with_zero_codes(std::move(matrix))});
  return all;
}

}  // namespace

void make_containers(const SeedFolder& files, const SeedFolder& manifests) {
  for (const NamedCache& each : small_caches()) {
    const Bytes file = test::must(
        format::write_cache_bytes(each.cache, {.compression = each.compression, .n_threads = 1}));
    files.add(each.name, file);
    const auto info = test::must(format::read_cache_info(*memory_source(file)));
    manifests.add(each.name, test::must(format::encode_manifest(info)));
  }
}

}  // namespace tqcache::fuzz
