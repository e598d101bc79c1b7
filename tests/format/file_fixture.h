#pragma once
// format/file_fixture.h: .tqkv files in memory, and files that break one rule with all checksums
// right, so that it is the rule that refuses them.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/cache_builder.h"
#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/codec/rotation.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/content_name.h"
#include "tqcache/format/header.h"
#include "tqcache/format/manifest_rules.h"
#include "tqcache/tqkv.h"

namespace tqcache::test {

using format::CacheFileInfo;
using format::Compression;
using format::Manifest;
using format::SectionInfo;

inline constexpr std::array kCompressions = {Compression::kNone, Compression::kZstd,
                                             Compression::kPlanes};

// For the names of tests.
inline std::string name_of(Compression compression) {
  if (compression == Compression::kNone) return "Stored";
  return compression == Compression::kZstd ? "Zstd" : "Planes";
}

inline Bytes file_of(const cache::Cache& cache, Compression compression = Compression::kNone) {
  return must(format::write_cache_bytes(cache, {.compression = compression, .n_threads = 1}));
}

inline Result<cache::Cache> load(const Bytes& file, format::ReadOptions options = {}) {
  return format::read_cache(*memory_source(file), options);
}

inline CacheFileInfo info_of(const Bytes& file) {
  return must(format::read_cache_info(*memory_source(file)));
}

// The damage that verify reports; its error when it gives none.
inline std::vector<std::string> damage_of(const Bytes& file, const format::Access& access = {}) {
  auto report = format::verify_cache(*memory_source(file), {.n_threads = 1, .access = access});
  if (!report) return {report.error().message};
  return report->damage;
}

// One attention layer, both tensors dense, 3 tokens.
inline Bytes small_file() { return file_of(CacheBuilder(3).dense({2, 4}).build()); }

// All kinds of layers; 300 tokens, so that one token block is full and one is not.
inline Bytes mixed_file(Compression compression = Compression::kNone) {
  return file_of(CacheBuilder(300)
                     .dense({1, 32}, Dtype::kF32)
                     .turbo({2, 32}, 4, 3)
                     .arrays()
                     .mixed({1, 36}, Dtype::kBF16, 16, Dtype::kF16, 1)
                     .build(),
                 compression);
}

// A layer for each kind of preset, arrays and a dense layer; 600 tokens, so that two token blocks
// are full and one is not.
inline cache::Cache preset_cache() {
  return CacheBuilder(600)
      .preset({2, 64}, "turbo4")
      .preset({1, 128}, "turbo2.5")
      .arrays()
      .dense({1, 32}, Dtype::kF32)
      .preset({2, 64}, "prod3")
      .preset({2, 64}, "affine4")
      .build();
}

// One layer of 300 tokens for every mode of the codec, and one with sink tokens; all centered.
inline Bytes modes_file() {
  CacheBuilder builder(300);
  const std::vector<codec::CodecSpec> modes = {
      {.mode = codec::Mode::kMse, .bits = 4},
      {.mode = codec::Mode::kProd, .bits = 3},
      {.mode = codec::Mode::kMixed, .bits = 2, .outlier_channels = 16, .outlier_bits = 3},
      {.mode = codec::Mode::kAffine, .bits = 4}};
  cache::TensorPlan plan;
  for (const codec::CodecSpec& mode : modes) {
    plan.codec = mode;
    builder.tensors({2, 64}, Dtype::kF16, plan, Dtype::kF16, plan);
  }
  plan.codec = modes[0];
  plan.n_sinks = 4;
  return file_of(builder.tensors({2, 64}, Dtype::kF16, plan, Dtype::kBF16, plan).build());
}

// The same parts with their matrices by value instead of seeds.
inline std::vector<codec::PartSpec> by_value(std::vector<codec::PartSpec> parts) {
  for (codec::PartSpec& part : parts) {
    const codec::Rotation rotation(part);
    const std::span<const float> values = rotation.matrix();
    part.rotation = codec::TransformKind::kMatrix;
    part.matrix = must(codec::TransformMatrix::make(AlignedFloats(values.begin(), values.end())));
    part.seed = 0;
  }
  return parts;
}

// The dense tensors of attention layers, packed by these parts.
inline cache::Cache pack_dense(cache::Cache cache, const std::vector<codec::PartSpec>& parts) {
  const auto pack = [&](cache::Tensor& tensor, cache::HeadShape shape, codec::BlockOrder order) {
    auto& dense = std::get<cache::DenseTensor>(tensor);
    cache::QuantSpec quant;
    quant.parts = parts;
    cache::TurboTensor turbo{
        must(cache::KvCodec::make({dense.dtype, quant}, shape, order, cache.identity.rope)),
        {},
        {dense.dtype, {}}};
    for (std::size_t i = 0; i < dense.blocks.size(); ++i) {
      const auto block = static_cast<std::int64_t>(i);
      if (cache::tokens_in_block(cache.n_tokens(), block) < cache::kTokenBlock) {
        turbo.tail.blocks.push_back(dense.blocks[i]);
        continue;
      }
      turbo.packed.push_back(
          {must(turbo.codec.encode({shape, dense.dtype, block, dense.blocks[i]}, 1))});
    }
    tensor = std::move(turbo);
  };
  for (cache::Layer& layer : cache.layers) {
    auto& attention = std::get<cache::AttentionLayer>(layer);
    pack(attention.k, attention.shape, codec::BlockOrder::kKeys);
    pack(attention.v, attention.shape, codec::BlockOrder::kValues);
  }
  return cache;
}

// Two layers, 300 tokens; both tensors of each coded by two matrices that stand in the file.
inline cache::Cache matrix_cache() {
  const codec::CodecSpec spec{.head_dim = 32,
                              .mode = codec::Mode::kProd,
                              .bits = 3,
                              .rotation = codec::TransformKind::kDenseQr};
  return pack_dense(CacheBuilder(300).dense({1, 32}).dense({1, 32}).build(),
                    by_value(must(codec::make_parts(spec))));
}

template <class T>
void patch(Bytes& file, std::size_t offset, T value) {
  ASSERT_LE(offset + sizeof(T), file.size());
  std::memcpy(file.data() + offset, &value, sizeof(T));
}

template <class T>
T value_at(const Bytes& file, std::size_t offset) {
  return number_at<T>(file, offset);
}

// Offsets of the fields of a header slot (docs/reference/format.md §3).
inline constexpr std::size_t kVersionAt = 8;
inline constexpr std::size_t kGenerationAt = 12;
inline constexpr std::size_t kRequiredAt = 16;
inline constexpr std::size_t kOptionalAt = 20;
inline constexpr std::size_t kManifestOffsetAt = 24;
inline constexpr std::size_t kFileBytesAt = 32;
inline constexpr std::size_t kSlotChecksumAt = 56;

inline void reseal_slot(Bytes& file, std::size_t slot = 0) {
  const std::size_t start = slot * format::kSlotBytes;
  patch(file, start + kSlotChecksumAt, xxh3_64(ByteView(file).subspan(start, kSlotChecksumAt)));
}

// Makes the header fit whatever bytes now stand from the manifest's offset on.
inline void reseal(Bytes& file) {
  format::HeaderSlot slot;
  slot.required_features = value_at<std::uint32_t>(file, kRequiredAt);
  slot.manifest_offset = value_at<std::uint64_t>(file, kManifestOffsetAt);
  slot.file_bytes = file.size();
  slot.manifest_checksum = xxh3_128(ByteView(file).subspan(slot.manifest_offset));
  std::ranges::copy(format::encode_slot(slot), file.begin());
}

// The same file with another manifest, everything that covers it made right.
inline Bytes with_manifest(Bytes file, Manifest manifest) {
  manifest.content_name = format::content_name(manifest);
  const Bytes bytes = must(format::encode_manifest(manifest));
  file.resize(value_at<std::uint64_t>(file, kManifestOffsetAt));
  file.insert(file.end(), bytes.begin(), bytes.end());
  patch(file, kRequiredAt, format::required_features(manifest));
  reseal(file);
  return file;
}

// Parts of a description that is to be changed. Requires: the layer has them.
inline cache::AttentionDesc& attention_of(Manifest& manifest, std::size_t layer) {
  return *cache::attention_of(manifest.layers[layer]);
}
inline cache::QuantSpec& k_of(Manifest& manifest, std::size_t layer) {
  return attention_of(manifest, layer).k.quant.value();
}
inline cache::QuantSpec& v_of(Manifest& manifest, std::size_t layer) {
  return attention_of(manifest, layer).v.quant.value();
}
inline const cache::AttentionDesc& attention_of(const Manifest& manifest, std::size_t layer) {
  return *cache::attention_of(manifest.layers[layer]);
}
inline const cache::QuantSpec& k_of(const Manifest& manifest, std::size_t layer) {
  return attention_of(manifest, layer).k.quant.value();
}
inline const cache::QuantSpec& v_of(const Manifest& manifest, std::size_t layer) {
  return attention_of(manifest, layer).v.quant.value();
}
inline std::vector<cache::ArrayDesc>& arrays_of(Manifest& manifest, std::size_t layer) {
  return std::get<cache::StateDesc>(manifest.layers[layer]).arrays;
}

inline Bytes change_manifest(const Bytes& file, const std::function<void(Manifest&)>& change) {
  Manifest manifest = info_of(file);
  change(manifest);
  return with_manifest(file, std::move(manifest));
}

// The same file with another text of the same length wherever its manifest has `text`.
inline Bytes change_text(Bytes file, std::string_view text, std::string_view other) {
  const auto manifest =
      file.begin() + static_cast<std::ptrdiff_t>(value_at<std::uint64_t>(file, kManifestOffsetAt));
  const ByteView old_bytes = as_bytes(text);
  const ByteView new_bytes = as_bytes(other);
  EXPECT_EQ(old_bytes.size(), new_bytes.size());
  auto at = std::search(manifest, file.end(), old_bytes.begin(), old_bytes.end());
  EXPECT_NE(at, file.end()) << text;
  for (; at != file.end(); at = std::search(at, file.end(), old_bytes.begin(), old_bytes.end())) {
    std::ranges::copy(new_bytes, at);
  }
  reseal(file);
  return file;
}

// Changes the bytes of a stored section and makes its checksum fit; its SHA-256 too if asked for.
inline Bytes change_section(Bytes file, std::size_t index, bool also_sha256,
                            const std::function<void(std::span<std::byte>)>& change) {
  Manifest manifest = info_of(file);
  SectionInfo& section = manifest.sections[index];
  const auto bytes = std::span(file).subspan(section.file_offset, section.stored_bytes);
  change(bytes);
  section.checksum = xxh3_128(bytes);
  if (also_sha256) section.raw_sha256 = sha256(bytes);
  return with_manifest(std::move(file), std::move(manifest));
}

// A file whose first section holds `stored` instead, compressed in that way.
inline Bytes replace_first_section(const Bytes& file, const Bytes& stored,
                                   Compression compression) {
  Manifest manifest = info_of(file);
  Bytes out(file.begin(), file.begin() + format::kHeaderBytes);
  for (std::size_t i = 0; i < manifest.sections.size(); ++i) {
    SectionInfo& section = manifest.sections[i];
    Bytes bytes(
        file.begin() + static_cast<std::ptrdiff_t>(section.file_offset),
        file.begin() + static_cast<std::ptrdiff_t>(section.file_offset + section.stored_bytes));
    if (i == 0) {
      bytes = stored;
      section.compression = compression;
    }
    section.file_offset = out.size();
    section.stored_bytes = bytes.size();
    section.checksum = xxh3_128(bytes);
    out.insert(out.end(), bytes.begin(), bytes.end());
    out.resize(format::align_section(out.size()));
  }
  patch(out, kManifestOffsetAt, std::uint64_t{out.size()});
  return with_manifest(std::move(out), std::move(manifest));
}

inline void expect_error(const Result<void>& result, ErrorCode code, std::string_view part) {
  ASSERT_FALSE(result.ok()) << "expected: " << part;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
}

template <class T>
Result<void> dropped(const Result<T>& result) {
  if (!result) return result.error();
  return {};
}

// A load fails with `code` and a message that holds `part`, and verify tells the same.
inline void expect_refused(const Bytes& file, ErrorCode code, std::string_view part,
                           const format::Access& access = {}) {
  expect_error(dropped(load(file, {.access = access})), code, part);
  const std::vector<std::string> damage = damage_of(file, access);
  ASSERT_FALSE(damage.empty());
  EXPECT_NE(damage.front().find(part), std::string::npos) << damage.front();
}

}  // namespace tqcache::test
