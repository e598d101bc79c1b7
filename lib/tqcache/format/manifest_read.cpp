// Reads the manifest's FlatBuffer. With manifest_write.cpp the only place that knows it.
//
// Safe for untrusted input: the verifier has seen every offset before one is followed. It does
// not check the alignment of 8-byte vector elements, the range of enumerations, the length of
// vectors that will be copied, or how large a buffer it can take; those are checked here.

#include <cache_v2_generated.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <string>
#include <utility>

#include "tqcache/format/checksum_bytes.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/manifest.h"

namespace tqcache::format {
namespace {

Error corrupt(std::string message) { return {ErrorCode::kCorrupt, std::move(message)}; }

template <std::uint16_t n>
std::array<std::byte, n> to_array(const flatbuffers::Array<std::uint8_t, n>& bytes) {
  std::array<std::byte, n> result;
  std::transform(bytes.begin(), bytes.end(), result.begin(),
                 [](std::uint8_t byte) { return std::byte{byte}; });
  return result;
}

Sha256 to_sha256(const fb::Sha256& digest) { return to_array(*digest.bytes()); }

template <class T>
std::vector<T> to_vector(const flatbuffers::Vector<T>& values) {
  return std::vector<T>(values.begin(), values.end());
}

// Refuses more than `limit` elements. Many tables may point to the same vector, so that copies
// without a limit could take thousands of times the memory of the manifest.
Result<void> check_count(std::uint64_t count, std::uint64_t limit, std::string_view what) {
  if (count <= limit) return {};
  return Error{ErrorCode::kTooLarge, std::to_string(count) + " " + std::string(what)};
}

Result<std::string> read_text(const flatbuffers::String& text) {
  TQC_TRY(check_count(text.size(), kMaxTextBytes, "bytes of text"));
  return text.str();
}

// Elements of 8 bytes must not be read from an odd multiple of 4. (FlatBuffers does not align an
// empty vector.)
template <class T>
Result<void> check_aligned(const flatbuffers::Vector<T>& values, std::string_view what) {
  if (values.size() == 0) return {};
  if (reinterpret_cast<std::uintptr_t>(values.Data()) % 8 == 0) return {};
  return corrupt(std::string(what) + ": not aligned to 8 bytes");
}

// `value` as the enumeration To, whose values are 0 to `last`.
template <class To, class From>
Result<To> checked_enum(From value, To last, std::string_view what) {
  const auto number = static_cast<std::uint8_t>(value);
  if (number <= static_cast<std::uint8_t>(last)) return static_cast<To>(number);
  return corrupt("unknown " + std::string(what) + " " + std::to_string(number));
}

Result<Dtype> to_dtype(fb::Dtype dtype) { return checked_enum(dtype, Dtype::kBF16, "dtype"); }

Result<cache::Identity> read_identity(const fb::Identity& in) {
  cache::Identity identity;
  TQC_TRY_ASSIGN(identity.architecture, read_text(*in.architecture()));
  TQC_TRY_ASSIGN(identity.model_name, read_text(*in.model_name()));
  TQC_TRY_ASSIGN(identity.rope.style,
                 checked_enum(in.rope()->style(), cache::RopeStyle::kInterleaved, "rope style"));
  identity.rope.n_dims = in.rope()->n_dims();
  identity.rope.base = in.rope()->base();
  identity.weights_fingerprint = to_sha256(*in.weights_fingerprint());
  identity.tokenizer_fingerprint = to_sha256(*in.tokenizer_fingerprint());
  if (in.adapter_fingerprint()) identity.adapter_fingerprint = to_sha256(*in.adapter_fingerprint());
  TQC_TRY_ASSIGN(identity.source_format, read_text(*in.source_format()));
  return identity;
}

// Takes what it copies off `budget`, which is for all means together.
Result<std::vector<float>> read_mean(const flatbuffers::Vector<float>& mean, std::size_t& budget) {
  if (mean.size() == 0) return corrupt("a mean of no values");
  TQC_TRY(check_count(mean.size(), budget, "values of a mean, beyond those of all means"));
  budget -= mean.size();
  return to_vector(mean);
}

Result<SideInfo> read_side(const fb::Side& in, int head_dim, std::size_t& budget) {
  SideInfo side;
  TQC_TRY_ASSIGN(side.cache_type_id, read_text(*in.cache_type_id()));
  TQC_TRY_ASSIGN(side.dense_dtype, to_dtype(in.dtype()));
  if (const fb::Codec* codec = in.codec()) {
    side.codec = codec::CodecSpec{head_dim, codec->bits(), codec->sign_seed()};
    TQC_TRY_ASSIGN(side.rotation, read_text(*codec->rotation()));
    TQC_TRY_ASSIGN(side.scale, read_text(*codec->scale()));
    TQC_TRY_ASSIGN(side.layout, read_text(*codec->layout()));
    TQC_TRY(check_count(codec->centroids()->size(), kMaxCentroids, "centroids"));
    side.centroids = to_vector(*codec->centroids());
    TQC_TRY_ASSIGN(side.centring, read_text(*codec->centring()));
    if (codec->mean() != nullptr) {
      TQC_TRY_ASSIGN(side.mean, read_mean(*codec->mean(), budget));
    }
  }
  return side;
}

Result<ArrayInfo> read_array(const fb::Array& in) {
  ArrayInfo array;
  TQC_TRY_ASSIGN(array.name, read_text(*in.name()));
  TQC_TRY_ASSIGN(array.dtype, to_dtype(in.dtype()));
  TQC_TRY(check_count(in.shape()->size(), kMaxArrayRank, "dimensions of an array"));
  TQC_TRY(check_aligned(*in.shape(), "shape"));
  array.shape = to_vector(*in.shape());
  return array;
}

Result<LayerInfo> read_layer(const fb::Layer& in, std::size_t& mean_budget) {
  LayerInfo layer;
  TQC_TRY_ASSIGN(layer.cache_type_id, read_text(*in.cache_type_id()));
  layer.shape = {in.n_kv_heads(), in.head_dim()};
  if ((in.k() == nullptr) != (in.v() == nullptr) ||
      (in.k() == nullptr) == (in.arrays() == nullptr)) {
    return corrupt("neither k and v alone nor arrays alone");
  }
  if (in.k() != nullptr) {
    TQC_TRY(check_count(in.head_dim(), cache::kMaxHeadDim, "components of a head vector"));
    const int head_dim = static_cast<int>(in.head_dim());
    TQC_TRY_ASSIGN(layer.k, read_side(*in.k(), head_dim, mean_budget));
    TQC_TRY_ASSIGN(layer.v, read_side(*in.v(), head_dim, mean_budget));
    return layer;
  }
  TQC_TRY(check_count(in.arrays()->size(), kMaxArrays, "arrays"));
  for (const fb::Array* array : *in.arrays()) {
    TQC_TRY_ASSIGN(ArrayInfo info, read_array(*array));
    layer.arrays.push_back(std::move(info));
  }
  return layer;
}

Result<SectionInfo> read_section(const fb::Section& in) {
  if (in.reserved_8() != 0 || in.reserved_32() != 0) return corrupt("reserved bytes not zero");
  SectionInfo section;
  section.layer = in.layer();
  TQC_TRY_ASSIGN(section.side, checked_enum(in.side(), SideName::kArray, "side"));
  section.block = in.block();
  TQC_TRY_ASSIGN(const auto form, checked_enum(in.form(), fb::Form::packed, "form"));
  section.packed = form == fb::Form::packed;
  TQC_TRY_ASSIGN(section.compression,
                 checked_enum(in.compression(), Compression::kZstd, "compression"));
  section.file_offset = in.offset();
  section.stored_bytes = in.stored_size();
  section.raw_bytes = in.raw_size();
  section.checksum = checksum_from_bytes(to_array(*in.checksum().bytes()));
  section.raw_sha256 = to_sha256(in.raw_sha256());
  return section;
}

Result<const fb::Manifest*> verified_root(ByteView bytes) {
  TQC_TRY(check_count(bytes.size(), kMaxManifestBytes, "bytes of manifest"));
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  flatbuffers::Verifier::Options options;
  options.max_depth = kMaxManifestDepth;
  options.max_tables = kMaxManifestTables;
  flatbuffers::Verifier verifier(data, bytes.size(), options);
  if (!fb::VerifyManifestBuffer(verifier)) return corrupt("manifest: not a valid FlatBuffer");
  return fb::GetManifest(data);
}

Result<void> read_layers(const fb::Manifest& root, Manifest& manifest) {
  TQC_TRY(check_count(root.layers()->size(), cache::kMaxLayers, "layers"));
  std::size_t mean_budget = kMaxMeanValues;
  for (const fb::Layer* in : *root.layers()) {
    auto layer = read_layer(*in, mean_budget);
    if (!layer) {
      return in_context("layer " + std::to_string(manifest.layers.size()),
                        std::move(layer).error());
    }
    manifest.layers.push_back(std::move(layer).value());
  }
  return {};
}

Result<void> read_sections(const fb::Manifest& root, Manifest& manifest) {
  TQC_TRY(check_aligned(*root.sections(), "section table"));
  manifest.sections.reserve(root.sections()->size());
  for (const fb::Section* in : *root.sections()) {
    auto section = read_section(*in);
    if (!section) {
      return in_context("section " + std::to_string(manifest.sections.size()),
                        std::move(section).error());
    }
    manifest.sections.push_back(std::move(section).value());
  }
  return {};
}

}  // namespace

Result<Manifest> decode_manifest(ByteView bytes) {
  assert(reinterpret_cast<std::uintptr_t>(bytes.data()) % kSectionAlignment == 0);
  TQC_TRY_ASSIGN(const fb::Manifest* root, verified_root(bytes));
  Manifest manifest;
  TQC_TRY_ASSIGN(manifest.writer, read_text(*root->writer()));
  TQC_TRY_ASSIGN(manifest.identity, read_identity(*root->identity()));
  TQC_TRY(check_count(root->tokens()->size(), cache::kMaxTokens, "tokens"));
  manifest.tokens = to_vector(*root->tokens());
  TQC_TRY(read_layers(*root, manifest));
  TQC_TRY(read_sections(*root, manifest));
  manifest.content_name = to_sha256(*root->content_name());
  return manifest;
}

}  // namespace tqcache::format
