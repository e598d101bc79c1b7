#pragma once
// tests/store/blob_samples.h: one blob of each kind, of one small prompt, made of constants alone:
// 515 tokens of a model with an attention layer, a window, and a layer of arrays.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tqcache/format/type_names.h"
#include "tqcache/store/blobs/blob.h"
#include "tqcache/store/blobs/blob_keys.h"

namespace tqcache::test {

inline constexpr std::int64_t kSampleTokens = 515;

inline Sha256 filled_hash(int value) {
  Sha256 hash;
  hash.fill(static_cast<std::byte>(value));
  return hash;
}

inline cache::Identity sample_identity() {
  cache::Identity identity;
  identity.architecture = "qwen3";
  identity.model_name = "a small model";
  identity.rope = {cache::RopeStyle::kHalfSplit, 4, 10000.0, {1.0f, 2.5f}};
  identity.weights_fingerprint = filled_hash(0x11);
  identity.tokenizer_fingerprint = filled_hash(0x22);
  identity.adapter_fingerprint = filled_hash(0x33);
  identity.source_format = "tqcache";
  return identity;
}

// 0, 7, 14, ...
inline std::vector<std::int32_t> sample_tokens(std::int64_t n = kSampleTokens) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < n; ++i) tokens.push_back(7 * i);
  return tokens;
}

// Keys of 2 bits with a mean, values of bf16; a full window of 8 tokens; two arrays.
inline std::vector<cache::LayerDesc> sample_layers() {
  cache::AttentionDesc attention;
  attention.shape = {1, 32};
  codec::PartSpec part;
  part.head_dim = 32;
  part.bits = 2;
  part.centroids = {-0.5f, -0.125f, 0.125f, 0.5f};
  attention.k.quant = cache::QuantSpec{.mode = codec::Mode::kMse,
                                       .parts = {part},
                                       .centering = cache::Centering::kPostRope,
                                       .mean = std::vector<float>(32, 0.25f)};
  attention.v.dtype = Dtype::kBF16;

  const cache::WindowDesc window{{{1, 2}, {}, {}}, {8, 0}};
  const cache::StateDesc state{{{"conv", Dtype::kBF16, {3, 2}}, {"state", Dtype::kF32, {}}}};
  return {attention, window, state};
}

// Parts of sample_layers(), to be changed.
inline cache::AttentionDesc& sample_attention(std::vector<cache::LayerDesc>& layers) {
  return std::get<cache::AttentionDesc>(layers[0]);
}
inline cache::QuantSpec& sample_keys(std::vector<cache::LayerDesc>& layers) {
  return sample_attention(layers).k.quant.value();
}
inline cache::WindowDesc& sample_window(std::vector<cache::LayerDesc>& layers) {
  return std::get<cache::WindowDesc>(layers[1]);
}
inline std::vector<cache::ArrayDesc>& sample_arrays(std::vector<cache::LayerDesc>& layers) {
  return std::get<cache::StateDesc>(layers[2]).arrays;
}

// Bytes 0, 1, 2, ... in the place of a section's.
inline store::StoredSection sample_section(std::int64_t layer, cache::TensorKind tensor,
                                           std::int64_t block, std::size_t n_stored,
                                           std::size_t n_raw) {
  AlignedBytes bytes(n_stored);
  for (std::size_t i = 0; i < n_stored; ++i) bytes[i] = static_cast<std::byte>(i);
  store::StoredSection section;
  section.info.layer = layer;
  section.info.tensor = tensor;
  section.info.block = block;
  section.info.compression =
      n_stored == n_raw ? format::Compression::kNone : format::Compression::kZstd;
  section.info.stored_bytes = n_stored;
  section.info.raw_bytes = n_raw;
  section.info.checksum = xxh3_128(bytes);
  section.info.raw_sha256 = filled_hash(static_cast<int>(layer) + 0x40);
  section.stored = SharedBytes(std::move(bytes));
  return section;
}

inline store::Namespace sample_scope() { return {sample_identity(), "a tenant"}; }

struct SampleBlob {
  std::string name;
  std::string key;
  store::Content content;
};

inline store::Parameters sample_parameters() {
  store::Parameters parameters{sample_identity(), sample_tokens(256), sample_layers()};
  for (cache::ArrayDesc& array : sample_arrays(parameters.layers)) array.shape.clear();
  return parameters;
}

inline std::vector<Sha256> sample_chain() {
  const Sha256 root = store::hash_root(store::hash_namespace(sample_scope()),
                                       store::hash_parameters(sample_parameters()));
  return store::hash_chain(root, sample_tokens());
}

inline store::Block sample_block() {
  store::Block block;
  block.parent = sample_chain()[0];
  block.index = 1;
  const std::vector<std::int32_t> tokens = sample_tokens();
  block.tokens.assign(tokens.begin() + 256, tokens.begin() + 512);
  block.sections = {sample_section(0, cache::TensorKind::kKeys, 1, 70, 2560),
                    sample_section(0, cache::TensorKind::kValues, 1, 33, 16384)};
  block.sections[0].info.packed = true;
  return block;
}

inline store::Data sample_data() {
  using cache::TensorKind;
  return {{sample_section(0, cache::TensorKind::kKeys, 2, 192, 192),
           sample_section(0, cache::TensorKind::kValues, 2, 5, 192),
           sample_section(1, cache::TensorKind::kArray, 0, 32, 32),
           sample_section(1, cache::TensorKind::kArray, 1, 32, 32),
           sample_section(2, cache::TensorKind::kArray, 0, 12, 12),
           sample_section(2, cache::TensorKind::kArray, 1, 4, 4)}};
}

inline std::string sample_data_key() {
  return store::data_key(store::hash_namespace(sample_scope()), as_bytes("what it holds"));
}

inline store::Snapshot sample_state() {
  store::Snapshot snapshot;
  snapshot.n_tokens = kSampleTokens;
  const std::vector<std::int32_t> tokens = sample_tokens();
  snapshot.tail.assign(tokens.begin() + 512, tokens.end());
  snapshot.layers = store::bare_layers(sample_layers());
  snapshot.data_keys = {sample_data_key()};
  snapshot.data_bytes = 1234;
  snapshot.content_name = filled_hash(0x66);
  return snapshot;
}

inline std::string sample_parameters_key() {
  const auto tokens = sample_tokens(256);
  return store::parameters_key(store::hash_first(store::hash_namespace(sample_scope()), tokens), 3);
}

inline store::PromptRecord sample_record() {
  store::PromptRecord record;
  record.name = "a prompt";
  record.model_name = "a small model";
  record.architecture = "qwen3";
  record.tokens = sample_tokens();
  record.parameters_key = sample_parameters_key();
  record.chain = sample_chain();
  record.snapshot = sample_state();
  record.state_key = store::state_key(record.chain.back(), 0);
  record.created = 1790000000;
  record.bytes = 98765;
  return record;
}

inline store::UsageNote sample_usage() { return {1790000001, 515, 512, 4096, 100}; }

inline std::vector<SampleBlob> sample_blobs() {
  const std::vector<Sha256> chain = sample_chain();
  return {{"parameters", sample_parameters_key(), sample_parameters()},
          {"block", store::block_key(chain[1], 1, 0), sample_block()},
          {"state", store::state_key(chain[1], 15), sample_state()},
          {"data", sample_data_key(), sample_data()},
          {"record", store::record_key("a tenant", "a prompt"), sample_record()},
          {"usage", store::usage_key(filled_hash(0x77)), sample_usage()},
          {"next", store::next_key(chain[0], 3), store::Next{sample_tokens(256)}}};
}

}  // namespace tqcache::test
