#include "tqcache/format/content_name.h"

#include <bit>
#include <map>
#include <span>
#include <string_view>

#include "tqcache/format/type_names.h"

namespace tqcache::format {
namespace {

constexpr std::string_view kDomain = "tqcache content name v1";

// Every number is a u64; every text has its length and every list its count in front. So no two
// contents have the same serialization.
class Serialization {
 public:
  void number(std::uint64_t value) { out_.write(value); }
  void number(std::int64_t value) { out_.write(value); }
  void number(int value) { number(std::int64_t{value}); }
  template <class Enum>
  requires std::is_enum_v<Enum>
  void number(Enum value) { number(static_cast<std::uint64_t>(value)); }
  void text(std::string_view value) { out_.append_sized(as_bytes(value)); }
  void bytes(ByteView value) { out_.append_sized(value); }
  void fixed(const Sha256& value) { out_.append(value); }  // of fixed size, so without a length

  Sha256 digest() const { return sha256(out_.bytes()); }

 private:
  ByteWriter out_;
};

void add_identity(Serialization& out, const cache::Identity& identity) {
  out.text(identity.architecture);
  out.text(identity.model_name);
  const cache::Rope& rope = identity.rope;
  const std::uint64_t with_factors = rope.factors.empty() ? 0 : 256;
  out.number(static_cast<std::uint64_t>(rope.style) + with_factors);
  out.number(rope.n_dims);
  // 0 and -0 are equal, and the manifest stores neither: they get the same digest.
  out.number(std::bit_cast<std::uint64_t>(rope.base == 0 ? 0.0 : rope.base));
  if (with_factors != 0) out.bytes(object_bytes(rope.factors));
  out.bytes(identity.weights_fingerprint);
  out.bytes(identity.tokenizer_fingerprint);
  out.bytes(identity.adapter_fingerprint ? ByteView(*identity.adapter_fingerprint) : ByteView());
  out.text(identity.source_format);
}

// Many layers may share a matrix of megabytes: its own digest represents it and is computed once.
class MatrixDigests {
 public:
  const Sha256& of(const codec::TransformMatrix& matrix) {
    const std::span<const float> values = matrix.values();
    const auto [place, is_new] = known_.try_emplace(values.data());
    if (is_new) place->second = sha256(std::as_bytes(values));
    return place->second;
  }

 private:
  std::map<const float*, Sha256> known_;
};

void add_part(Serialization& out, const codec::PartSpec& part, MatrixDigests& digests) {
  out.number(part.first);
  out.number(part.head_dim);
  out.number(part.bits);
  out.text(name_of(kTransformNames, part.rotation));
  out.number(part.rounds);
  out.number(part.seed);
  out.text(name_of(kScaleNames, part.scale));
  // The name of the rule says whether the step follows.
  if (part.scale == codec::ScaleRule::kStep) {
    out.number(std::uint64_t{std::bit_cast<std::uint32_t>(part.step)});
  }
  out.number(std::uint64_t{part.of_residual});
  out.number(std::uint64_t{part.has_bias});
  out.bytes(object_bytes(part.centroids));
  // The name of the rotation says whether the matrix follows.
  if (part.rotation == codec::TransformKind::kMatrix) {
    out.fixed(digests.of(part.matrix));
  }
}

void add_tensor(Serialization& out, const cache::TensorDesc& tensor, MatrixDigests& digests) {
  out.text(type_name(tensor));
  out.number(tensor.dtype);
  if (!tensor.quant) return;  // the type name says whether the rest follows
  const cache::QuantSpec& quant = *tensor.quant;
  out.text(kLayoutName);
  out.number(std::uint64_t{quant.parts.size()});
  for (const codec::PartSpec& part : quant.parts) add_part(out, part, digests);
  out.text(centering_name(quant));
  out.bytes(object_bytes(quant.mean));
  out.bytes(object_bytes(quant.outliers));
  out.number(quant.n_sinks);
  if (quant.mode == codec::Mode::kTrellis) out.bytes(object_bytes(quant.transforms));
  // The name of the centering says whether factors follow.
  if (!quant.factors.empty()) out.bytes(object_bytes(quant.factors));
}

// The length of the ids in bytes is always below kHidden, so this number says whether ids or hashes
// follow.
void add_tokens(Serialization& out, const Manifest& manifest) {
  constexpr std::uint64_t kHidden = std::uint64_t{1} << 63;
  if (!manifest.hidden_tokens) return out.bytes(object_bytes(manifest.tokens));
  out.number(kHidden + manifest.tokens.size());
  out.number(std::uint64_t{manifest.hidden_tokens->size()});
  for (const Sha256& hash : *manifest.hidden_tokens) out.fixed(hash);
}

// The name of the kind of layer says whether the size of values follows.
void add_shape(Serialization& out, const cache::AttentionDesc& attention) {
  out.number(attention.shape.n_kv_heads);
  out.number(attention.shape.head_dim);
  if (attention.value_dim != 0) out.number(attention.value_dim);
}

void add_arrays(Serialization& out, const std::vector<cache::ArrayDesc>& arrays) {
  out.number(std::uint64_t{arrays.size()});
  for (const cache::ArrayDesc& array : arrays) {
    out.text(array.name);
    out.number(array.dtype);
    out.bytes(object_bytes(array.shape));
  }
}

void add_window(Serialization& out, const cache::WindowDesc& window, WindowTokens window_tokens,
                MatrixDigests& digests) {
  const cache::AttentionDesc& attention = window.attention;
  add_shape(out, attention);
  out.number(window.window.size);
  if (cache::is_quantized(attention)) {
    add_tensor(out, attention.k, digests);
    add_tensor(out, attention.v, digests);
    return;
  }
  out.number(window.window.keep);
  add_arrays(out, cache::arrays_of(window, window_tokens));
}

void add_layer(Serialization& out, const cache::LayerDesc& layer, WindowTokens window_tokens,
               MatrixDigests& digests) {
  out.text(type_name(layer));
  std::visit(Overload{[&](const cache::AttentionDesc& attention) {
                        add_shape(out, attention);
                        add_tensor(out, attention.k, digests);
                        add_tensor(out, attention.v, digests);
                      },
                      [&](const cache::WindowDesc& window) {
                        add_window(out, window, window_tokens, digests);
                      },
                      [&](const cache::StateDesc& state) { add_arrays(out, state.arrays); }},
             layer);
}

void add_section(Serialization& out, const SectionInfo& section) {
  out.number(section.layer);
  out.number(section.tensor);
  out.number(section.block);
  out.number(std::uint64_t{section.packed});
  out.number(section.raw_bytes);
  out.bytes(section.raw_sha256);
}

}  // namespace

Sha256 content_name(const Manifest& manifest) {
  return content_name(manifest, manifest.n_tokens());
}

Sha256 content_name(const Manifest& manifest, WindowTokens window_tokens) {
  Serialization out;
  out.text(kDomain);
  add_identity(out, manifest.identity);
  add_tokens(out, manifest);
  out.number(std::uint64_t{manifest.layers.size()});
  MatrixDigests digests;
  for (const cache::LayerDesc& layer : manifest.layers) {
    add_layer(out, layer, window_tokens, digests);
  }
  out.number(std::uint64_t{manifest.sections.size()});
  for (const SectionInfo& section : manifest.sections) add_section(out, section);
  if (manifest.checkpoints.empty()) return out.digest();
  out.number(std::uint64_t{manifest.checkpoints.size()});
  for (const cache::CheckpointDesc& checkpoint : manifest.checkpoints) {
    out.number(checkpoint.n_tokens);
    out.number(checkpoint.first_position);
    out.number(std::uint64_t{checkpoint.layers.size()});
    for (const cache::LayerDesc& layer : checkpoint.layers) {
      add_layer(out, layer, checkpoint.n_tokens, digests);
    }
  }
  return out.digest();
}

}  // namespace tqcache::format
