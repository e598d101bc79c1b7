// Reads the manifest's FlatBuffer. Only this file and manifest_write.cpp know it.
//
// Safe for untrusted input: the verifier checks every offset before it is followed. It does not
// check the alignment of 8-byte vector elements, the range of enumerations, the length of vectors
// that are copied, or the size of the buffers they need; those are checked here.

#include <cache_v2_generated.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "tqcache/cache/blocks.h"
#include "tqcache/cache/checkpoint_views.h"
#include "tqcache/description.h"
#include "tqcache/error.h"
#include "tqcache/format/checksum_bytes.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/predicted_blocks.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/type_names.h"

namespace tqcache::format {
namespace {

using cache::LayerDesc;

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

// Rejects more than `limit` elements. Many tables may point to the same vector, so unlimited copies
// could take thousands of times the memory of the manifest.
Result<void> check_count(std::uint64_t count, std::uint64_t limit, std::string_view what) {
  if (count <= limit) return {};
  return Error{ErrorCode::kTooLarge, std::to_string(count) + " " + std::string(what)};
}

Result<std::string> read_text(const flatbuffers::String& text) {
  TQC_TRY(check_count(text.size(), cache::kMaxTextBytes, "bytes of text"));
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
  if (const auto* factors = in.rope()->factors()) {
    TQC_TRY(check_count(factors->size(), cache::kMaxHeadDim / 2, "rope factors"));
    if (factors->size() == 0) return corrupt("rope factors, but none");
    identity.rope.factors = to_vector(*factors);
  }
  identity.weights_fingerprint = to_sha256(*in.weights_fingerprint());
  identity.tokenizer_fingerprint = to_sha256(*in.tokenizer_fingerprint());
  if (in.adapter_fingerprint()) identity.adapter_fingerprint = to_sha256(*in.adapter_fingerprint());
  TQC_TRY_ASSIGN(identity.source_format, read_text(*in.source_format()));
  const std::uint8_t version = in.fingerprint_version();
  if (version == 1 || (version == 0) != (in.model_fingerprint() == nullptr)) {
    return corrupt("fingerprint version " + std::to_string(version) +
                   (in.model_fingerprint() ? " with a" : " without a") + " model fingerprint");
  }
  if (version != 0) identity.model_fingerprint = {version, to_sha256(*in.model_fingerprint())};
  identity.llama_streams = in.llama_streams();
  if (const auto* layout = in.source_layout()) {
    TQC_TRY_ASSIGN(identity.source_layout, read_text(*layout));
    if (identity.source_layout.empty()) return corrupt("a source layout, but an empty one");
  }
  if (in.standing() > static_cast<std::uint8_t>(cache::Standing::kShifted)) {
    return corrupt("standing: " + std::to_string(in.standing()));
  }
  identity.standing = static_cast<cache::Standing>(in.standing());
  return identity;
}

// Limits on the values that all layers of a manifest may copy together. Many layers may point to
// the same vector, so a small file could need much memory.
struct Budget {
  std::uint64_t mean_values = kMaxMeanValues;
  std::uint64_t ordered_channels = kMaxOrderedChannels;
  std::uint64_t matrix_values = cache::kMaxMatrixValues;
  std::uint64_t map_entries = kMaxMapEntries;
  // Matrices already read, by their address: parts that share one in the file share it in memory.
  std::map<const flatbuffers::Vector<float>*, codec::TransformMatrix> matrices = {};
};

Result<std::vector<float>> read_mean(const flatbuffers::Vector<float>& mean, Budget& budget) {
  if (mean.size() == 0) return corrupt("a mean of no values");
  TQC_TRY(
      check_count(mean.size(), budget.mean_values, "values of a mean, beyond those of all means"));
  budget.mean_values -= mean.size();
  return to_vector(mean);
}

// Each tensor with outlier channels gets an order of all channels when loaded, so these count.
Result<std::vector<std::uint16_t>> read_outliers(const flatbuffers::Vector<std::uint16_t>& outliers,
                                                 std::uint64_t n_channels, Budget& budget) {
  if (outliers.size() == 0) return corrupt("a list of no outlier channels");
  if (outliers.size() > n_channels) return corrupt("more outlier channels than channels");
  TQC_TRY(
      check_count(n_channels, budget.ordered_channels,
                  "channels of tensors with outliers, more than all tensors together may have"));
  budget.ordered_channels -= n_channels;
  return to_vector(outliers);
}

Result<codec::TransformMatrix> read_matrix(const flatbuffers::Vector<float>& in, Budget& budget) {
  if (const auto known = budget.matrices.find(&in); known != budget.matrices.end()) {
    return known->second;
  }
  if (in.size() == 0) return corrupt("a matrix of no values");
  TQC_TRY(check_count(in.size(), budget.matrix_values, "values of a matrix, beyond those of all"));
  budget.matrix_values -= in.size();
  TQC_TRY_ASSIGN(codec::TransformMatrix matrix,
                 codec::TransformMatrix::make(AlignedFloats(in.begin(), in.end())));
  budget.matrices.emplace(&in, matrix);
  return matrix;
}

// Transforms with `n_channels` rows of this many entries, stored raw or as a zstd frame.
Result<std::vector<std::int8_t>> read_maps(const flatbuffers::Vector<std::uint8_t>& in,
                                           std::uint64_t n_channels, int head_dim, Budget& budget) {
  if (in.size() == 0) return corrupt("maps of no entries");
  TQC_TRY(check_count(n_channels, kMaxMapEntries, "rows of maps"));
  const std::uint64_t count = n_channels * static_cast<std::uint64_t>(head_dim);
  TQC_TRY(check_count(count, budget.map_entries, "entries of maps, beyond those of all tensors"));
  budget.map_entries -= count;
  const ByteView stored(reinterpret_cast<const std::byte*>(in.data()), in.size());
  const bool is_frame = stored.size() != count;
  if (is_frame) {
    if (auto checked = Decompressor::check_frame(stored, count); !checked) {
      return in_context("maps", std::move(checked).error());
    }
  }
  std::vector<std::int8_t> entries(count);
  const auto bytes = std::as_writable_bytes(std::span(entries));
  if (is_frame) {
    auto done = Decompressor().decompress(stored, bytes);
    if (!done) return in_context("maps", std::move(done).error());
  } else {
    std::ranges::copy(stored, bytes.begin());
  }
  return entries;
}

template <class Kind, std::size_t n>
Result<Kind> read_kind(const std::array<KindName<Kind>, n>& table, std::string_view what,
                       const flatbuffers::String& name) {
  TQC_TRY_ASSIGN(const std::string text, read_text(name));
  return kind_of(table, what, text);
}

Result<bool> read_yes_no(fb::YesNo value, std::string_view what) {
  TQC_TRY_ASSIGN(const auto checked, checked_enum(value, fb::YesNo::yes, what));
  return checked == fb::YesNo::yes;
}

Result<codec::PartSpec> read_part(const fb::Part& in, Budget& budget) {
  codec::PartSpec part;
  TQC_TRY(check_count(in.first(), cache::kMaxHeadDim, "channels before a part"));
  TQC_TRY(check_count(in.size(), cache::kMaxHeadDim, "channels of a part"));
  part.first = static_cast<int>(in.first());
  part.head_dim = static_cast<int>(in.size());
  part.bits = in.bits();
  TQC_TRY_ASSIGN(part.rotation, read_kind(kTransformNames, "rotation", *in.rotation()));
  part.rounds = in.rounds();
  part.seed = in.seed();
  part.step = in.step();
  TQC_TRY_ASSIGN(part.scale, read_kind(kScaleNames, "scale", *in.scale()));
  TQC_TRY_ASSIGN(part.of_residual, read_yes_no(in.of_residual(), "value of of_residual"));
  TQC_TRY_ASSIGN(part.has_bias, read_yes_no(in.has_bias(), "value of has_bias"));
  TQC_TRY(check_count(in.centroids()->size(), kMaxCentroids, "centroids"));
  part.centroids = to_vector(*in.centroids());
  if (in.matrix() != nullptr) {
    TQC_TRY_ASSIGN(part.matrix, read_matrix(*in.matrix(), budget));
  }
  return part;
}

Result<std::vector<codec::PartSpec>> read_codec(const fb::Codec& in, Budget& budget) {
  TQC_TRY_ASSIGN(const std::string layout, read_text(*in.layout()));
  if (layout != kLayoutName) return unknown_name("layout", layout);
  if (in.parts()->size() == 0) return corrupt("a codec without parts");
  TQC_TRY(check_count(in.parts()->size(), codec::kMaxParts, "parts of a codec"));
  std::vector<codec::PartSpec> parts;
  for (const fb::Part* each : *in.parts()) {
    auto part = read_part(*each, budget);
    if (!part) return in_context("part " + std::to_string(parts.size()), std::move(part).error());
    parts.push_back(std::move(part).value());
  }
  return parts;
}

// A codec and its fields. `n_channels` counts the channels of all kv heads.
Result<cache::QuantSpec> read_quant(const fb::Tensor& in, codec::Mode mode,
                                    std::uint64_t n_channels, Budget& budget) {
  cache::QuantSpec quant;
  quant.mode = mode;
  TQC_TRY_ASSIGN(quant.parts, read_codec(*in.codec(), budget));
  if (in.centring() == nullptr) return corrupt("a codec without centering");
  TQC_TRY_ASSIGN(const std::string centering, read_text(*in.centring()));
  const bool has_factors = is_centering_with_factors(centering);
  TQC_TRY_ASSIGN(quant.centering, centering_of(centering));
  if (has_factors != (in.factors() != nullptr)) {
    return corrupt(has_factors ? "centering with factors, without them"
                               : "factors of no centering");
  }
  if (has_factors) {
    if (in.factors()->size() == 0) return corrupt("factors of no values");
    if (in.factors()->size() > n_channels) return corrupt("more factors than channels");
    TQC_TRY(check_count(n_channels, budget.ordered_channels,
                        "channels with factors or outliers, beyond those of all tensors"));
    budget.ordered_channels -= n_channels;
    quant.factors = to_vector(*in.factors());
  }
  if (in.mean() != nullptr) {
    TQC_TRY_ASSIGN(quant.mean, read_mean(*in.mean(), budget));
  }
  if (in.outliers() != nullptr) {
    TQC_TRY_ASSIGN(quant.outliers, read_outliers(*in.outliers(), n_channels, budget));
  }
  quant.n_sinks = in.n_sinks();
  if (in.maps() != nullptr) {
    const int head_dim = quant.parts.front().head_dim;
    TQC_TRY_ASSIGN(quant.transforms, read_maps(*in.maps(), n_channels, head_dim, budget));
  }
  return quant;
}

// K or V of a layer in token blocks.
Result<cache::TensorDesc> read_tensor(const fb::Tensor& in, std::uint64_t n_channels,
                                      Budget& budget) {
  cache::TensorDesc tensor;
  TQC_TRY_ASSIGN(const std::string type, read_text(*in.cache_type_id()));
  TQC_TRY_ASSIGN(tensor.dtype, to_dtype(in.dtype()));
  if (type == kDenseType) {
    if (in.codec() != nullptr) return corrupt("a dense tensor with a codec");
    if (in.centring() || in.mean() || in.outliers() || in.n_sinks() != 0 || in.maps() ||
        in.factors()) {
      return corrupt("what belongs to a codec without one");
    }
    return tensor;
  }
  TQC_TRY_ASSIGN(const codec::Mode mode, kind_of(kTurboTypes, "cache type", type));
  if (in.codec() == nullptr) return corrupt("a turbo tensor without a codec");
  TQC_TRY_ASSIGN(tensor.quant, read_quant(in, mode, n_channels, budget));
  return tensor;
}

Result<cache::TensorDesc> read_tensor_at(std::string_view place, const fb::Tensor& in,
                                         std::uint64_t n_channels, Budget& budget) {
  auto tensor = read_tensor(in, n_channels, budget);
  if (!tensor) return in_context(place, std::move(tensor).error());
  return tensor;
}

Result<cache::AttentionDesc> read_attention(const fb::Layer& in, Budget& budget) {
  cache::AttentionDesc attention{{in.n_kv_heads(), in.head_dim()}, {}, {}, in.value_dim()};
  const auto n_channels = [](cache::HeadShape shape) {
    return static_cast<std::uint64_t>(shape.n_kv_heads) *
           static_cast<std::uint64_t>(shape.head_dim);
  };
  TQC_TRY_ASSIGN(attention.k, read_tensor_at("k", *in.k(), n_channels(attention.shape), budget));
  TQC_TRY_ASSIGN(attention.v,
                 read_tensor_at("v", *in.v(), n_channels(attention.value_shape()), budget));
  return attention;
}

Result<cache::ArrayDesc> read_array(const fb::Array& in) {
  cache::ArrayDesc array;
  TQC_TRY_ASSIGN(array.name, read_text(*in.name()));
  TQC_TRY_ASSIGN(array.dtype, to_dtype(in.dtype()));
  TQC_TRY(check_count(in.shape()->size(), cache::kMaxArrayRank, "dimensions of an array"));
  TQC_TRY(check_aligned(*in.shape(), "shape"));
  array.shape = to_vector(*in.shape());
  return array;
}

Result<std::vector<cache::ArrayDesc>> read_arrays(const fb::Layer& in) {
  TQC_TRY(check_count(in.arrays()->size(), cache::kMaxArrays, "arrays"));
  std::vector<cache::ArrayDesc> arrays;
  for (const fb::Array* each : *in.arrays()) {
    TQC_TRY_ASSIGN(cache::ArrayDesc array, read_array(*each));
    arrays.push_back(std::move(array));
  }
  return arrays;
}

// A dense window is stored as two arrays, which follow from the window.
Result<LayerDesc> read_dense_window(const fb::Layer& in, WindowTokens window_tokens) {
  cache::AttentionDesc attention{{in.n_kv_heads(), in.head_dim()}, {}, {}, in.value_dim()};
  const cache::Window window = {in.window(), in.keep()};
  TQC_TRY(cache::validate_shapes(attention.shape, attention.value_dim));
  TQC_TRY(cache::validate_window(attention.shape, window));
  TQC_TRY_ASSIGN(const std::vector<cache::ArrayDesc> arrays, read_arrays(in));
  if (arrays.size() != 2 || arrays[0].name != cache::kWindowKeys ||
      arrays[1].name != cache::kWindowValues) {
    return corrupt("a rotating layer with other arrays than keys and values");
  }
  attention.k.dtype = arrays[0].dtype;
  attention.v.dtype = arrays[1].dtype;
  LayerDesc layer = cache::WindowDesc{std::move(attention), window};
  const std::vector<cache::ArrayDesc> expected = cache::arrays_of(layer, window_tokens);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].shape != expected[i].shape) {
      return corrupt(arrays[i].name + ": not of the window's shape");
    }
  }
  return layer;
}

Result<LayerDesc> read_turbo_window(const fb::Layer& in, Budget& budget) {
  const cache::Window window = {in.window(), in.keep()};
  TQC_TRY_ASSIGN(cache::AttentionDesc attention, read_attention(in, budget));
  // A window has only one valid encoding: two dense tensors are written as arrays.
  if (!cache::is_quantized(attention)) return corrupt("a turbo window of dense tensors");
  return LayerDesc(cache::WindowDesc{std::move(attention), window});
}

bool has_window(const fb::Layer& in) { return in.window() != 0 || in.keep() != 0; }

Result<LayerDesc> read_layer(const fb::Layer& in, WindowTokens window_tokens, Budget& budget) {
  TQC_TRY_ASSIGN(const std::string type, read_text(*in.cache_type_id()));
  if ((in.k() == nullptr) != (in.v() == nullptr) ||
      (in.k() == nullptr) == (in.arrays() == nullptr)) {
    return corrupt("neither k and v alone nor arrays alone");
  }
  const bool has_arrays = in.arrays() != nullptr;
  const bool is_unequal = type == kUnequalAttentionType || type == kUnequalRotatingType ||
                          type == kUnequalTurboRotatingType;
  // Before any field of a kind is used whose values have the size of the keys.
  if (is_unequal != (in.value_dim() != 0)) {
    return corrupt(fmt::format("value_dim {} in a layer of type \"{}\"", in.value_dim(), type));
  }
  if (type == kAttentionType || type == kUnequalAttentionType) {
    if (has_window(in)) return corrupt("an attention layer with a window");
    if (has_arrays) return corrupt("an attention layer with arrays");
    TQC_TRY_ASSIGN(cache::AttentionDesc attention, read_attention(in, budget));
    return LayerDesc(std::move(attention));
  }
  if (type == kRotatingType || type == kUnequalRotatingType) {
    if (!has_arrays) return corrupt("arrays beside k or v");
    return read_dense_window(in, window_tokens);
  }
  if (type == kTurboRotatingType || type == kUnequalTurboRotatingType) {
    if (has_arrays) return corrupt("a turbo window with arrays");
    return read_turbo_window(in, budget);
  }
  if (type != kArraysType && type != kOpaqueType) return unknown_name("cache type", type);
  if (in.n_kv_heads() != 0 || in.head_dim() != 0) return corrupt("an arrays layer with heads");
  if (has_window(in)) return corrupt("an arrays layer with a window");
  if (!has_arrays) return corrupt("arrays beside k or v");
  cache::StateDesc state;
  TQC_TRY_ASSIGN(state.arrays, read_arrays(in));
  state.is_opaque = type == kOpaqueType;
  return LayerDesc(std::move(state));
}

Result<SectionInfo> read_section(const fb::Section& in) {
  if (in.reserved_8() != 0 || in.reserved_32() != 0) return corrupt("reserved bytes not zero");
  SectionInfo section;
  section.layer = in.layer();
  TQC_TRY_ASSIGN(section.tensor, checked_enum(in.tensor(), TensorKind::kArray, "tensor"));
  section.block = in.block();
  TQC_TRY_ASSIGN(const auto form, checked_enum(in.form(), fb::Form::packed, "form"));
  section.packed = form == fb::Form::packed;
  TQC_TRY_ASSIGN(section.compression,
                 checked_enum(in.compression(), Compression::kPredicted, "compression"));
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

using FbLayers = flatbuffers::Vector<flatbuffers::Offset<fb::Layer>>;

Result<std::vector<LayerDesc>> read_layers(const FbLayers& in, WindowTokens window_tokens,
                                           Budget& budget) {
  TQC_TRY(check_count(in.size(), cache::kMaxLayers, "layers"));
  std::vector<LayerDesc> layers;
  for (const fb::Layer* each : in) {
    auto layer = read_layer(*each, window_tokens, budget);
    if (!layer) {
      return in_context("layer " + std::to_string(layers.size()), std::move(layer).error());
    }
    layers.push_back(std::move(layer).value());
  }
  return layers;
}

Result<cache::CheckpointDesc> read_checkpoint(const fb::Checkpoint& in, Budget& budget) {
  cache::CheckpointDesc checkpoint;
  TQC_TRY(check_count(in.n_tokens(), cache::kMaxTokens, "tokens"));
  checkpoint.n_tokens = in.n_tokens();
  checkpoint.first_position = in.first_position();
  TQC_TRY_ASSIGN(checkpoint.layers, read_layers(*in.layers(), checkpoint.n_tokens, budget));
  return checkpoint;
}

Result<void> read_checkpoints(const fb::Manifest& root, Budget& budget, Manifest& manifest) {
  if (root.checkpoints() == nullptr) return {};
  if (root.checkpoints()->size() == 0) return corrupt("a list of no checkpoints");
  TQC_TRY(check_count(root.checkpoints()->size(), cache::kMaxCheckpoints, "checkpoints"));
  for (const fb::Checkpoint* in : *root.checkpoints()) {
    auto checkpoint = read_checkpoint(*in, budget);
    if (!checkpoint) {
      return in_context(cache::checkpoint_place(manifest.checkpoints.size()),
                        std::move(checkpoint).error());
    }
    manifest.checkpoints.push_back(std::move(checkpoint).value());
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

Result<void> read_gaps(const fb::Manifest& root, Manifest& manifest) {
  if (root.gaps() == nullptr) return {};
  if (root.gaps()->size() == 0) return corrupt("a list of no gaps");
  TQC_TRY(check_count(root.gaps()->size(), kMaxGaps, "gaps"));
  TQC_TRY(check_aligned(*root.gaps(), "list of gaps"));
  manifest.gaps.reserve(root.gaps()->size());
  for (const fb::Gap* in : *root.gaps()) {
    manifest.gaps.push_back(
        {in->offset(), in->size(), checksum_from_bytes(to_array(*in->checksum().bytes()))});
  }
  return {};
}

// Requires: sections have been read.
Result<void> read_encryption(const fb::Manifest& root, Manifest& manifest) {
  if (root.encryption() == nullptr) return {};
  const fb::Encryption& in = *root.encryption();
  const std::size_t n_sections = manifest.sections.size();
  if (in.seals()->size() != n_sections) {
    return corrupt(std::to_string(in.seals()->size()) + " seals for " + std::to_string(n_sections) +
                   " sections");
  }
  const std::size_t n_writes = in.writes()->size();
  if (n_writes == 0 || n_writes > n_sections + 1) {
    return corrupt(std::to_string(n_writes) + " writes of " + std::to_string(n_sections) +
                   " sections");
  }
  Encryption& encryption = manifest.encryption.emplace();
  for (const fb::Salt* write : *in.writes()) {
    encryption.writes.push_back(to_array(*write->bytes()));
  }
  for (std::size_t i = 0; i < n_sections; ++i) {
    const fb::Seal& seal = *in.seals()->Get(static_cast<flatbuffers::uoffset_t>(i));
    if (seal.write() >= n_writes) {
      return corrupt("section " + std::to_string(i) + ": of write " + std::to_string(seal.write()) +
                     ", which is not listed");
    }
    manifest.sections[i].seal = {seal.write(), seal.number(), to_array(*seal.tag())};
  }
  return {};
}

Result<void> read_prediction(const fb::Manifest& root, Manifest& manifest) {
  if (root.prediction() == nullptr) return {};
  const fb::Prediction& in = *root.prediction();
  if (!(in.step() >= kMinPredictedStep && in.step() <= kMaxPredictedStep)) {
    return corrupt("prediction: a step out of range");
  }
  if (in.n_sinks() > cache::kTokenBlock) return corrupt("prediction: more than 256 sink tokens");
  manifest.prediction = Prediction{to_sha256(*in.profile()), in.step(), in.n_sinks()};
  return {};
}

// Ranges alone; cache::validate_tokens() checks the rest.
Result<void> read_media(const fb::Manifest& root, Manifest& manifest) {
  if (root.media() == nullptr) return {};
  if (root.media()->size() == 0) return corrupt("a list of no media");
  TQC_TRY(check_count(root.media()->size(), cache::kMaxMediaSpans, "media"));
  for (const fb::Media* in : *root.media()) {
    const std::string place = "media " + std::to_string(manifest.media.size());
    cache::MediaSpan& span = manifest.media.emplace_back();
    if (in->kind() > fb::MediaKind::MAX) return corrupt(place + ": an unknown kind");
    span.kind = static_cast<cache::MediaKind>(in->kind());
    span.begin = in->begin();
    span.n_tokens = in->n_tokens();
    TQC_TRY(check_count(in->n_tokens(), cache::kMaxTokens, "tokens of a medium"));
    TQC_TRY_ASSIGN(span.id, read_text(*in->id()));
    if (in->coordinates() != nullptr) {
      if (in->coordinates()->size() == 0) return corrupt(place + ": a list of no coordinates");
      span.coordinates = to_vector(*in->coordinates());
    }
    span.next_position = in->next_position();
    span.placeholder = in->placeholder();
    if (in->source() != nullptr) {
      if (in->source()->size() == 0) return corrupt(place + ": a source of no bytes");
      TQC_TRY(check_count(in->source()->size(), cache::kMaxMediaSourceBytes, "bytes of source"));
      const auto bytes = std::as_bytes(std::span(in->source()->data(), in->source()->size()));
      span.source.assign(bytes.begin(), bytes.end());
    }
  }
  return {};
}

// A few bytes may claim many tokens. Memory for them is allocated only if the section table has the
// length that this number of tokens implies; check_sections() checks the rest.
Result<void> read_unknown_ids(std::int64_t n_tokens, Manifest& manifest) {
  TQC_TRY(check_count(static_cast<std::uint64_t>(n_tokens), cache::kMaxTokens, "tokens"));
  std::uint64_t n_sections = count_blocks(manifest.layers, n_tokens);
  for (const cache::CheckpointDesc& checkpoint : manifest.checkpoints) {
    n_sections += count_blocks(checkpoint.layers, checkpoint.n_tokens);
  }
  if (manifest.sections.size() != n_sections) {
    return corrupt("section table: " + std::to_string(manifest.sections.size()) +
                   " sections where the layers have " + std::to_string(n_sections));
  }
  manifest.tokens.assign(static_cast<std::size_t>(n_tokens), cache::kUnknownToken);
  return {};
}

Result<void> read_hidden_tokens(const fb::HiddenTokens& in, Manifest& manifest) {
  constexpr std::int64_t kMaxHashes = cache::block_count(cache::kMaxTokens);
  TQC_TRY(check_count(in.hashes()->size(), kMaxHashes, "hashes of tokens"));
  std::vector<Sha256>& hashes = manifest.hidden_tokens.emplace();
  hashes.reserve(in.hashes()->size());
  for (const fb::Sha256* hash : *in.hashes()) hashes.push_back(to_sha256(*hash));
  return read_unknown_ids(in.n_tokens(), manifest);
}

// Requires: layers and sections have been read.
Result<void> read_tokens(const fb::Manifest& root, Manifest& manifest) {
  if (root.hidden_tokens() != nullptr) {
    if (root.tokens()->size() != 0) return corrupt("tokens that are hidden and in the file");
    return read_hidden_tokens(*root.hidden_tokens(), manifest);
  }
  TQC_TRY(check_count(root.tokens()->size(), cache::kMaxTokens, "tokens"));
  manifest.tokens = to_vector(*root.tokens());
  return {};
}

std::int64_t count_tokens(const fb::Manifest& root) {
  return root.hidden_tokens() != nullptr ? std::int64_t{root.hidden_tokens()->n_tokens()}
                                         : std::int64_t{root.tokens()->size()};
}

Result<Manifest> read_manifest(const fb::Manifest* root, WindowTokens window_tokens) {
  Manifest manifest;
  TQC_TRY_ASSIGN(manifest.writer, read_text(*root->writer()));
  TQC_TRY_ASSIGN(manifest.identity, read_identity(*root->identity()));
  Budget budget;
  TQC_TRY_ASSIGN(manifest.layers, read_layers(*root->layers(), window_tokens, budget));
  for (const LayerDesc& layer : manifest.layers) {
    const auto* state = std::get_if<cache::StateDesc>(&layer);
    if (state != nullptr && state->is_opaque) return corrupt("an opaque layer of the cache itself");
  }
  TQC_TRY(read_checkpoints(*root, budget, manifest));
  TQC_TRY(read_sections(*root, manifest));
  TQC_TRY(read_tokens(*root, manifest));
  TQC_TRY(read_media(*root, manifest));
  TQC_TRY(read_gaps(*root, manifest));
  TQC_TRY(read_encryption(*root, manifest));
  TQC_TRY(read_prediction(*root, manifest));
  manifest.content_name = to_sha256(*root->content_name());
  return manifest;
}

}  // namespace

Result<Manifest> decode_manifest(ByteView bytes) {
  assert(reinterpret_cast<std::uintptr_t>(bytes.data()) % kSectionAlignment == 0);
  TQC_TRY_ASSIGN(const fb::Manifest* root, verified_root(bytes));
  return read_manifest(root, count_tokens(*root));
}

Result<Manifest> decode_manifest(ByteView bytes, WindowTokens window_tokens) {
  assert(reinterpret_cast<std::uintptr_t>(bytes.data()) % kSectionAlignment == 0);
  TQC_TRY_ASSIGN(const fb::Manifest* root, verified_root(bytes));
  return read_manifest(root, window_tokens);
}

}  // namespace tqcache::format
