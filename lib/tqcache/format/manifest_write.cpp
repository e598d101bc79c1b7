// Builds the manifest's FlatBuffer. With manifest_read.cpp the only place that knows it.

#include <cache_v2_generated.h>

#include <algorithm>
#include <array>
#include <span>

#include "tqcache/format/checksum_bytes.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {
namespace {

using Builder = flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;

template <std::size_t n>
std::array<std::uint8_t, n> to_u8(const std::array<std::byte, n>& bytes) {
  std::array<std::uint8_t, n> result;
  std::ranges::transform(bytes, result.begin(),
                         [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
  return result;
}

fb::Sha256 make_sha256(const Sha256& digest) {
  const auto bytes = to_u8(digest);
  return fb::Sha256(flatbuffers::make_span(bytes));
}

fb::Xxh128 make_checksum(const Checksum128& checksum) {
  const auto bytes = to_u8(to_bytes(checksum));
  return fb::Xxh128(flatbuffers::make_span(bytes));
}

fb::Dtype make_dtype(Dtype dtype) { return static_cast<fb::Dtype>(dtype); }
static_assert(static_cast<int>(fb::Dtype::f32) == static_cast<int>(Dtype::kF32) &&
              static_cast<int>(fb::Dtype::f16) == static_cast<int>(Dtype::kF16) &&
              static_cast<int>(fb::Dtype::bf16) == static_cast<int>(Dtype::kBF16));

Offset<fb::Identity> make_identity(Builder& out, const cache::Identity& identity) {
  const auto architecture = out.CreateString(identity.architecture);
  const auto model_name = out.CreateString(identity.model_name);
  const auto rope =
      fb::CreateRope(out, static_cast<fb::RopeStyle>(identity.rope.style),
                     static_cast<std::uint32_t>(identity.rope.n_dims), identity.rope.base);
  const auto source_format = out.CreateString(identity.source_format);
  const fb::Sha256 weights = make_sha256(identity.weights_fingerprint);
  const fb::Sha256 tokenizer = make_sha256(identity.tokenizer_fingerprint);
  const fb::Sha256 adapter = make_sha256(identity.adapter_fingerprint.value_or(Sha256{}));
  return fb::CreateIdentity(out, architecture, model_name, rope, &weights, &tokenizer,
                            identity.adapter_fingerprint ? &adapter : nullptr, source_format);
}

Offset<fb::Side> make_side(Builder& out, const SideInfo& side) {
  const auto type = out.CreateString(side.cache_type_id);
  Offset<fb::Codec> codec;
  if (side.codec) {
    const auto rotation = out.CreateString(side.rotation);
    const auto scale = out.CreateString(side.scale);
    const auto layout = out.CreateString(side.layout);
    const auto centroids = out.CreateVector(side.centroids);
    const auto centring = out.CreateString(side.centring);
    const Offset<flatbuffers::Vector<float>> absent;
    const auto mean = side.mean.empty() ? absent : out.CreateVector(side.mean);
    codec = fb::CreateCodec(out, static_cast<std::uint8_t>(side.codec->bits), side.codec->sign_seed,
                            rotation, scale, layout, centroids, centring, mean);
  }
  return fb::CreateSide(out, type, make_dtype(side.dense_dtype), codec);
}

Offset<fb::Array> make_array(Builder& out, const ArrayInfo& array) {
  const auto name = out.CreateString(array.name);
  const auto shape = out.CreateVector(array.shape);
  return fb::CreateArray(out, name, make_dtype(array.dtype), shape);
}

Offset<fb::Layer> make_layer(Builder& out, const LayerInfo& layer) {
  const auto type = out.CreateString(layer.cache_type_id);
  if (is_attention(layer)) {
    const auto k = make_side(out, layer.k);
    const auto v = make_side(out, layer.v);
    return fb::CreateLayer(out, type, static_cast<std::uint32_t>(layer.shape.n_kv_heads),
                           static_cast<std::uint32_t>(layer.shape.head_dim), k, v);
  }
  std::vector<Offset<fb::Array>> arrays;
  for (const ArrayInfo& array : layer.arrays) arrays.push_back(make_array(out, array));
  return fb::CreateLayer(out, type, 0, 0, 0, 0, out.CreateVector(arrays));
}

fb::Section make_section(const SectionInfo& section) {
  constexpr std::uint8_t kReserved = 0;
  return {section.file_offset,
          section.stored_bytes,
          section.raw_bytes,
          make_checksum(section.checksum),
          make_sha256(section.raw_sha256),
          static_cast<std::uint32_t>(section.layer),
          static_cast<std::uint32_t>(section.block),
          static_cast<fb::SideName>(section.side),
          section.packed ? fb::Form::packed : fb::Form::dense,
          static_cast<fb::Compression>(section.compression),
          kReserved,
          kReserved};
}

void build(Builder& out, const Manifest& manifest) {
  const auto writer = out.CreateString(manifest.writer);
  const auto identity = make_identity(out, manifest.identity);
  const auto tokens = out.CreateVector(manifest.tokens);
  std::vector<Offset<fb::Layer>> layer_offsets;
  for (const LayerInfo& layer : manifest.layers) layer_offsets.push_back(make_layer(out, layer));
  const auto layers = out.CreateVector(layer_offsets);
  std::vector<fb::Section> rows;
  rows.reserve(manifest.sections.size());
  for (const SectionInfo& section : manifest.sections) rows.push_back(make_section(section));
  const auto sections = out.CreateVectorOfStructs(rows);
  const fb::Sha256 content_name = make_sha256(manifest.content_name);
  fb::FinishManifestBuffer(
      out, fb::CreateManifest(out, writer, identity, tokens, layers, sections, &content_name));
}

// At least what the FlatBuffer will hold, to refuse what is too large before it is built: the
// builder itself only asserts that it stays below 2 GiB.
std::uint64_t least_size(const Manifest& manifest) {
  std::uint64_t size = manifest.sections.size() * sizeof(fb::Section) +
                       manifest.tokens.size() * sizeof(std::int32_t);
  for (const LayerInfo& layer : manifest.layers) {
    size += (layer.k.mean.size() + layer.v.mean.size()) * sizeof(float);
  }
  return size;
}

Error too_large(std::uint64_t size) {
  return {ErrorCode::kTooLarge, "manifest: " + std::to_string(size) + " bytes or more"};
}

}  // namespace

Result<Bytes> encode_manifest(const Manifest& manifest) {
  if (least_size(manifest) > kMaxManifestBytes) return too_large(least_size(manifest));
  Builder out;
  build(out, manifest);
  if (out.GetSize() > kMaxManifestBytes) return too_large(out.GetSize());
  const auto bytes = std::as_bytes(std::span(out.GetBufferPointer(), out.GetSize()));
  return Bytes(bytes.begin(), bytes.end());
}

}  // namespace tqcache::format
