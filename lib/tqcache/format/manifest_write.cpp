// Builds the manifest's FlatBuffer. Only this file and manifest_read.cpp know it.

#include <cache_v2_generated.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/format/checksum_bytes.h"
#include "tqcache/format/container_format.h"
#include "tqcache/format/manifest.h"
#include "tqcache/format/sections/compression.h"
#include "tqcache/format/type_names.h"

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
  const auto factors = identity.rope.factors.empty() ? Offset<flatbuffers::Vector<float>>{}
                                                     : out.CreateVector(identity.rope.factors);
  const auto rope =
      fb::CreateRope(out, static_cast<fb::RopeStyle>(identity.rope.style),
                     static_cast<std::uint32_t>(identity.rope.n_dims), identity.rope.base, factors);
  const auto source_format = out.CreateString(identity.source_format);
  const auto source_layout = identity.source_layout.empty()
                                 ? Offset<flatbuffers::String>{}
                                 : out.CreateString(identity.source_layout);
  const fb::Sha256 weights = make_sha256(identity.weights_fingerprint);
  const fb::Sha256 tokenizer = make_sha256(identity.tokenizer_fingerprint);
  const fb::Sha256 adapter = make_sha256(identity.adapter_fingerprint.value_or(Sha256{}));
  const cache::ModelFingerprint own =
      identity.model_fingerprint.value_or(cache::ModelFingerprint{.version = 0, .digest = {}});
  const fb::Sha256 model = make_sha256(own.digest);
  return fb::CreateIdentity(out, architecture, model_name, rope, &weights, &tokenizer,
                            identity.adapter_fingerprint ? &adapter : nullptr, source_format,
                            own.version, identity.model_fingerprint ? &model : nullptr,
                            identity.llama_streams, source_layout,
                            static_cast<std::uint8_t>(identity.standing));
}

// Remembers where a value equal to `key` was written. Keys are kept by address.
template <class Key, class Made>
class Written {
 public:
  template <class Make>
  Offset<Made> get(const Key& key, Make make) {
    for (const auto& [known, offset] : known_) {
      if (cache::same_bits(*known, key)) return offset;
    }
    const Offset<Made> offset = make(key);
    known_.emplace_back(&key, offset);
    return offset;
  }

 private:
  std::vector<std::pair<const Key*, Offset<Made>>> known_;
};

// Writes K and V of layers. What many of them share is written once: texts, codecs, and inside
// codecs, parts, codebooks and matrices. Most files have one codec, and parts of mode affine differ
// only in `first`.
class TensorWriter {
 public:
  // Requires: the arguments of make() outlive this.
  explicit TensorWriter(Builder& out) : out_(out) {}

  Offset<fb::Tensor> make(const cache::TensorDesc& tensor) {
    const auto type = text(type_name(tensor));
    if (!tensor.quant) return fb::CreateTensor(out_, type, make_dtype(tensor.dtype));
    const cache::QuantSpec& quant = *tensor.quant;
    const auto codec =
        codecs_.get(quant.parts, [&](const auto& parts) { return make_codec(parts); });
    const auto centering = text(centering_name(quant));
    const auto mean = quant.mean.empty() ? 0 : out_.CreateVector(quant.mean);
    const auto outliers = quant.outliers.empty() ? 0 : out_.CreateVector(quant.outliers);
    return fb::CreateTensor(out_, type, make_dtype(tensor.dtype), codec, centering, mean, outliers,
                            static_cast<std::uint16_t>(quant.n_sinks), make_maps(quant.transforms),
                            quant.factors.empty() ? 0 : out_.CreateVector(quant.factors));
  }

  Offset<flatbuffers::String> text(std::string_view value) {
    return out_.CreateSharedString(value.data(), value.size());
  }

 private:
  Offset<fb::Codec> make_codec(const std::vector<codec::PartSpec>& parts) {
    std::vector<Offset<fb::Part>> offsets;
    for (const codec::PartSpec& part : parts) {
      offsets.push_back(parts_.get(part, [&](const auto& each) { return make_part(each); }));
    }
    const auto layout = text(kLayoutName);
    return fb::CreateCodec(out_, layout, out_.CreateVector(offsets));
  }

  Offset<fb::Part> make_part(const codec::PartSpec& part) {
    const auto rotation = text(name_of(kTransformNames, part.rotation));
    const auto scale = text(name_of(kScaleNames, part.scale));
    const auto centroids =
        codebooks_.get(part.centroids, [&](const auto& each) { return out_.CreateVector(each); });
    return fb::CreatePart(
        out_, static_cast<std::uint32_t>(part.first), static_cast<std::uint32_t>(part.head_dim),
        static_cast<std::uint8_t>(part.bits), rotation, static_cast<std::uint8_t>(part.rounds),
        part.seed, scale, to_yes_no(part.of_residual), to_yes_no(part.has_bias), centroids,
        make_matrix(part.matrix), part.step);
  }

  // Absent for an empty matrix.
  Offset<flatbuffers::Vector<float>> make_matrix(const codec::TransformMatrix& matrix) {
    const std::span<const float> values = matrix.values();
    if (values.empty()) return {};
    return matrices_.get(
        matrix, [&](const auto&) { return out_.CreateVector(values.data(), values.size()); });
  }

  // Stored raw, or as a zstd frame if that is smaller. Absent if there are no transforms.
  Offset<flatbuffers::Vector<std::uint8_t>> make_maps(const std::vector<std::int8_t>& maps) {
    if (maps.empty()) return {};
    const ByteView entries = std::as_bytes(std::span(maps));
    Bytes frame;
    const bool shrank = compressor_.compress(entries, frame);
    const ByteView stored = shrank ? ByteView(frame) : entries;
    return out_.CreateVector(reinterpret_cast<const std::uint8_t*>(stored.data()), stored.size());
  }

  static fb::YesNo to_yes_no(bool value) { return value ? fb::YesNo::yes : fb::YesNo::no; }

  Builder& out_;
  Compressor compressor_ = Compressor::for_planes();
  Written<std::vector<codec::PartSpec>, fb::Codec> codecs_;
  Written<codec::PartSpec, fb::Part> parts_;
  Written<std::vector<float>, flatbuffers::Vector<float>> codebooks_;
  Written<codec::TransformMatrix, flatbuffers::Vector<float>> matrices_;
};

Offset<fb::Array> make_array(Builder& out, const cache::ArrayDesc& array) {
  const auto name = out.CreateString(array.name);
  const auto shape = out.CreateVector(array.shape);
  return fb::CreateArray(out, name, make_dtype(array.dtype), shape);
}

using ArrayOffsets = Offset<flatbuffers::Vector<Offset<fb::Array>>>;

ArrayOffsets make_arrays(Builder& out, const std::vector<cache::ArrayDesc>& arrays) {
  std::vector<Offset<fb::Array>> offsets;
  for (const cache::ArrayDesc& array : arrays) offsets.push_back(make_array(out, array));
  return out.CreateVector(offsets);
}

struct LayerFields {
  cache::HeadShape shape = {};
  std::int64_t value_dim = 0;
  Offset<fb::Tensor> k = {}, v = {};
  ArrayOffsets arrays = {};
  cache::Window window = {};
};

LayerFields make_fields(TensorWriter& tensors, const cache::AttentionDesc& attention) {
  LayerFields fields;
  fields.shape = attention.shape;
  fields.value_dim = attention.value_dim;
  fields.k = tensors.make(attention.k);
  fields.v = tensors.make(attention.v);
  return fields;
}

// A dense window is stored as two arrays, a quantized one in token blocks.
LayerFields make_fields(Builder& out, TensorWriter& tensors, const cache::WindowDesc& window,
                        WindowTokens window_tokens) {
  LayerFields fields;
  if (cache::is_quantized(window.attention)) {
    fields = make_fields(tensors, window.attention);
  } else {
    fields.shape = window.attention.shape;
    fields.value_dim = window.attention.value_dim;
    fields.arrays = make_arrays(out, cache::arrays_of(window, window_tokens));
  }
  fields.window = window.window;
  return fields;
}

Offset<fb::Layer> make_layer(Builder& out, TensorWriter& tensors, const cache::LayerDesc& layer,
                             WindowTokens window_tokens) {
  const auto type = tensors.text(type_name(layer));
  const LayerFields fields = std::visit(
      Overload{
          [&](const cache::AttentionDesc& attention) { return make_fields(tensors, attention); },
          [&](const cache::WindowDesc& window) {
            return make_fields(out, tensors, window, window_tokens);
          },
          [&](const cache::StateDesc& state) {
            return LayerFields{.arrays = make_arrays(out, state.arrays)};
          }},
      layer);
  return fb::CreateLayer(out, type, static_cast<std::uint32_t>(fields.shape.n_kv_heads),
                         static_cast<std::uint32_t>(fields.shape.head_dim), fields.k, fields.v,
                         fields.arrays, static_cast<std::uint32_t>(fields.window.size),
                         static_cast<std::uint32_t>(fields.window.keep),
                         static_cast<std::uint32_t>(fields.value_dim));
}

// Absent if there are no gaps.
Offset<flatbuffers::Vector<const fb::Gap*>> make_gaps(Builder& out,
                                                      const std::vector<GapInfo>& gaps) {
  if (gaps.empty()) return {};
  std::vector<fb::Gap> rows;
  rows.reserve(gaps.size());
  for (const GapInfo& gap : gaps) {
    rows.emplace_back(gap.file_offset, gap.bytes, make_checksum(gap.checksum));
  }
  return out.CreateVectorOfStructs(rows);
}

// The ids, unless they are hidden.
Offset<flatbuffers::Vector<std::int32_t>> make_tokens(Builder& out, const Manifest& manifest) {
  if (manifest.hidden_tokens) return out.CreateVector(std::vector<std::int32_t>{});
  return out.CreateVector(manifest.tokens);
}

// Absent if the ids are present.
Offset<fb::HiddenTokens> make_hidden_tokens(Builder& out, const Manifest& manifest) {
  if (!manifest.hidden_tokens) return {};
  std::vector<fb::Sha256> hashes;
  hashes.reserve(manifest.hidden_tokens->size());
  for (const Sha256& hash : *manifest.hidden_tokens) hashes.push_back(make_sha256(hash));
  return fb::CreateHiddenTokens(out, static_cast<std::uint32_t>(manifest.n_tokens()),
                                out.CreateVectorOfStructs(hashes));
}

// Absent in a plain file.
Offset<fb::Encryption> make_encryption(Builder& out, const Manifest& manifest) {
  if (!manifest.encryption) return {};
  std::vector<fb::Salt> writes;
  for (const Salt& write : manifest.encryption->writes) {
    const auto bytes = to_u8(write);
    writes.emplace_back(flatbuffers::make_span(bytes));
  }
  std::vector<fb::Seal> seals;
  seals.reserve(manifest.sections.size());
  for (const SectionInfo& section : manifest.sections) {
    const auto tag = to_u8(section.seal.tag);
    seals.emplace_back(section.seal.write, section.seal.number, flatbuffers::make_span(tag));
  }
  const auto writes_offset = out.CreateVectorOfStructs(writes);
  return fb::CreateEncryption(out, writes_offset, out.CreateVectorOfStructs(seals));
}

using LayerOffsets = Offset<flatbuffers::Vector<Offset<fb::Layer>>>;

LayerOffsets make_layers(Builder& out, TensorWriter& tensors,
                         const std::vector<cache::LayerDesc>& layers, WindowTokens window_tokens) {
  std::vector<Offset<fb::Layer>> offsets;
  for (const cache::LayerDesc& layer : layers) {
    offsets.push_back(make_layer(out, tensors, layer, window_tokens));
  }
  return out.CreateVector(offsets);
}

// Absent if there are no checkpoints.
Offset<flatbuffers::Vector<Offset<fb::Checkpoint>>> make_checkpoints(Builder& out,
                                                                     TensorWriter& tensors,
                                                                     const Manifest& manifest) {
  if (manifest.checkpoints.empty()) return {};
  std::vector<Offset<fb::Checkpoint>> offsets;
  for (const cache::CheckpointDesc& checkpoint : manifest.checkpoints) {
    const auto layers = make_layers(out, tensors, checkpoint.layers, checkpoint.n_tokens);
    offsets.push_back(fb::CreateCheckpoint(out, static_cast<std::uint32_t>(checkpoint.n_tokens),
                                           static_cast<std::uint32_t>(checkpoint.first_position),
                                           layers));
  }
  return out.CreateVector(offsets);
}

// Absent if no section is predicted.
Offset<fb::Prediction> make_prediction(Builder& out, const Manifest& manifest) {
  if (!manifest.prediction) return {};
  const fb::Sha256 profile = make_sha256(manifest.prediction->profile);
  return fb::CreatePrediction(out, &profile, manifest.prediction->step,
                              static_cast<std::uint16_t>(manifest.prediction->n_sinks));
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
          static_cast<fb::TensorName>(section.tensor),
          section.packed ? fb::Form::packed : fb::Form::dense,
          static_cast<fb::Compression>(section.compression),
          kReserved,
          kReserved};
}

Offset<flatbuffers::Vector<Offset<fb::Media>>> make_media(Builder& out, const Manifest& manifest) {
  if (manifest.media.empty()) return {};
  std::vector<Offset<fb::Media>> offsets;
  for (const cache::MediaSpan& span : manifest.media) {
    const auto id = out.CreateString(span.id);
    const auto coordinates = span.coordinates.empty() ? Offset<flatbuffers::Vector<std::int32_t>>()
                                                      : out.CreateVector(span.coordinates);
    const auto source =
        span.source.empty()
            ? Offset<flatbuffers::Vector<std::uint8_t>>()
            : out.CreateVector(reinterpret_cast<const std::uint8_t*>(span.source.data()),
                               span.source.size());
    offsets.push_back(fb::CreateMedia(
        out, static_cast<fb::MediaKind>(span.kind), static_cast<std::uint32_t>(span.begin),
        static_cast<std::uint32_t>(span.n_tokens), id, coordinates,
        static_cast<std::uint32_t>(span.next_position), span.placeholder, source));
  }
  return out.CreateVector(offsets);
}

void build(Builder& out, const Manifest& manifest, WindowTokens window_tokens) {
  const auto writer = out.CreateString(manifest.writer);
  const auto identity = make_identity(out, manifest.identity);
  const auto tokens = make_tokens(out, manifest);
  TensorWriter tensors(out);
  const auto layers = make_layers(out, tensors, manifest.layers, window_tokens);
  const auto checkpoints = make_checkpoints(out, tensors, manifest);
  std::vector<fb::Section> rows;
  rows.reserve(manifest.sections.size());
  for (const SectionInfo& section : manifest.sections) rows.push_back(make_section(section));
  const auto sections = out.CreateVectorOfStructs(rows);
  const auto gaps = make_gaps(out, manifest.gaps);
  const auto hidden_tokens = make_hidden_tokens(out, manifest);
  const auto encryption = make_encryption(out, manifest);
  const auto prediction = make_prediction(out, manifest);
  const auto media = make_media(out, manifest);
  const fb::Sha256 content_name = make_sha256(manifest.content_name);
  fb::FinishManifestBuffer(
      out, fb::CreateManifest(out, writer, identity, tokens, layers, sections, &content_name, gaps,
                              hidden_tokens, encryption, checkpoints, prediction, media));
}

// A lower bound of the FlatBuffer's size, to reject what is too large before it is built: the
// builder itself only asserts that it stays below 2 GiB.
std::uint64_t least_size(const Manifest& manifest) {
  std::uint64_t size =
      manifest.sections.size() * sizeof(fb::Section) + manifest.gaps.size() * sizeof(fb::Gap);
  if (manifest.encryption) {
    size += kEnvelopeBytes + manifest.sections.size() * sizeof(fb::Seal);
    size += manifest.encryption->writes.size() * sizeof(Salt);
  }
  size += manifest.hidden_tokens ? manifest.hidden_tokens->size() * sizeof(Sha256)
                                 : manifest.tokens.size() * sizeof(std::int32_t);
  for (const cache::MediaSpan& span : manifest.media) {
    size += span.id.size() + span.coordinates.size() * sizeof(std::int32_t) + span.source.size();
  }
  for (const cache::LayerDesc& layer : manifest.layers) {
    const cache::AttentionDesc* attention = cache::attention_of(layer);
    if (attention == nullptr) continue;
    for (const cache::TensorDesc* tensor : {&attention->k, &attention->v}) {
      if (!tensor->quant) continue;
      size += tensor->quant->mean.size() * sizeof(float);
      size += tensor->quant->transforms.size() / 64;
      size += tensor->quant->outliers.size() * sizeof(std::uint16_t);
    }
  }
  return size;
}

Error manifest_too_large(std::uint64_t size) {
  return {ErrorCode::kTooLarge, "manifest: " + std::to_string(size) + " bytes or more"};
}

}  // namespace

Result<Bytes> encode_manifest(const Manifest& manifest) {
  return encode_manifest(manifest, manifest.n_tokens());
}

Result<Bytes> encode_manifest(const Manifest& manifest, WindowTokens window_tokens) {
  if (least_size(manifest) > kMaxManifestBytes) return manifest_too_large(least_size(manifest));
  Builder out;
  build(out, manifest, window_tokens);
  const std::uint64_t size = out.GetSize() + (manifest.encryption ? kEnvelopeBytes : 0);
  if (size > kMaxManifestBytes) return manifest_too_large(size);
  const auto bytes = std::as_bytes(std::span(out.GetBufferPointer(), out.GetSize()));
  return Bytes(bytes.begin(), bytes.end());
}

}  // namespace tqcache::format
