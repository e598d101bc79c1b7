#include "tqcache/model/weights.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "tqcache/base/shape.h"

namespace tqcache::model {
namespace {

constexpr const char* kReadable =
    "F32, F16, BF16; in rows of a multiple of 32 Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL; of 256 Q2_K "
    "to Q6_K";

using Tensors = std::map<std::string, tensors::TensorView>;

std::string describe(std::span<const std::uint64_t> shape) {
  std::string text;
  for (const std::uint64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

Error error_at(ErrorCode code, const std::string& name, const std::string& fact) {
  return {code, "tensor \"" + name + "\": " + fact};
}

// A tensor of this shape. Seen as a matrix, a vector has one row.
Result<Matrix> find(const Tensors& tensors, const std::string& name,
                    const std::vector<std::uint64_t>& shape) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return error_at(ErrorCode::kCorrupt, name, "missing");
  const tensors::TensorView& tensor = found->second;
  if (tensor.shape != shape) {
    return error_at(
        ErrorCode::kCorrupt, name,
        "shape " + describe(tensor.shape) + " where the configuration wants " + describe(shape));
  }
  const std::uint64_t n_rows = shape.size() == 2 ? shape.front() : 1;
  const std::uint64_t bytes_a_row = row_bytes(tensor.type, shape.back());
  if (bytes_a_row == 0) {
    return error_at(ErrorCode::kUnsupported, name,
                    "type " + tensor.type_name + " in rows of " + std::to_string(shape.back()) +
                        " values (readable: " + kReadable + ")");
  }
  if (checked_mul(n_rows, bytes_a_row) != tensor.bytes.size()) {
    return error_at(ErrorCode::kCorrupt, name, std::to_string(tensor.bytes.size()) + " bytes");
  }
  return Matrix{tensor.type, static_cast<std::int64_t>(n_rows),
                static_cast<std::int64_t>(shape.back()), tensor.bytes};
}

// Finds the tensors one after another, and keeps the first error until finish().
class Finder {
 public:
  explicit Finder(const Tensors& tensors) : tensors_(tensors) {}

  Matrix matrix(const std::string& name, std::int64_t n_rows, std::int64_t n_cols) {
    return take(name, {static_cast<std::uint64_t>(n_rows), static_cast<std::uint64_t>(n_cols)});
  }

  AlignedFloats vector(const std::string& name, std::int64_t size) {
    const Matrix row = take(name, {static_cast<std::uint64_t>(size)});
    AlignedFloats values(static_cast<std::size_t>(row.n_cols));
    load_rows(row, 0, row.n_rows, values);
    return values;
  }

  bool failed() const { return !first_error_.ok(); }
  Result<void> finish() && { return std::move(first_error_); }

 private:
  Matrix take(const std::string& name, const std::vector<std::uint64_t>& shape) {
    if (failed()) return {};
    Result<Matrix> found = find(tensors_, name, shape);
    if (found) return *found;
    first_error_ = std::move(found).error();
    return {};
  }

  const Tensors& tensors_;
  Result<void> first_error_;
};

LayerWeights read_layer(Finder& finder, const std::string& block, const ModelConfig& config) {
  const std::int64_t d_model = config.d_model;
  const std::int64_t d_ff = config.d_ff;
  const std::int64_t q_size = config.n_heads * config.head_dim;
  const std::int64_t kv_size = config.n_kv_heads * config.head_dim;
  LayerWeights layer;
  layer.attention_norm = finder.vector(block + "attn_norm.weight", d_model);
  layer.q = finder.matrix(block + "attn_q.weight", q_size, d_model);
  layer.k = finder.matrix(block + "attn_k.weight", kv_size, d_model);
  layer.v = finder.matrix(block + "attn_v.weight", kv_size, d_model);
  layer.attention_output = finder.matrix(block + "attn_output.weight", d_model, q_size);
  layer.q_norm = finder.vector(block + "attn_q_norm.weight", config.head_dim);
  layer.k_norm = finder.vector(block + "attn_k_norm.weight", config.head_dim);
  layer.ffn_norm = finder.vector(block + "ffn_norm.weight", d_model);
  layer.ffn_gate = finder.matrix(block + "ffn_gate.weight", d_ff, d_model);
  layer.ffn_up = finder.matrix(block + "ffn_up.weight", d_ff, d_model);
  layer.ffn_down = finder.matrix(block + "ffn_down.weight", d_model, d_ff);
  return layer;
}

using NamePair = std::pair<std::string_view, std::string_view>;

constexpr std::array<NamePair, 3> kModelNames = {{
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
}};

constexpr std::array<NamePair, 11> kLayerNames = {{
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
}};

std::string_view look_up(std::span<const NamePair> names, std::string_view hf_name) {
  const auto found = std::ranges::find(names, hf_name, &NamePair::first);
  return found == names.end() ? std::string_view() : found->second;
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Result<Weights> read_weights(const Tensors& tensors, const ModelConfig& config) {
  Finder finder(tensors);
  Weights weights;
  weights.token_embedding = finder.matrix("token_embd.weight", config.vocab_size, config.d_model);
  for (std::int64_t i = 0; i < config.n_layers && !finder.failed(); ++i) {
    weights.layers.push_back(read_layer(finder, "blk." + std::to_string(i) + ".", config));
  }
  weights.output_norm = finder.vector("output_norm.weight", config.d_model);
  weights.output = config.tied_embeddings
                       ? weights.token_embedding
                       : finder.matrix("output.weight", config.vocab_size, config.d_model);
  TQC_TRY(std::move(finder).finish());
  return weights;
}

std::string gguf_name(std::string_view hf_name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!hf_name.starts_with(kLayers)) return std::string(look_up(kModelNames, hf_name));
  const std::string_view rest = hf_name.substr(kLayers.size());  // "3.self_attn.q_proj.weight"
  const std::size_t dot = rest.find('.');
  if (dot == std::string_view::npos || !is_number(rest.substr(0, dot))) return {};
  const std::string_view name = look_up(kLayerNames, rest.substr(dot + 1));
  if (name.empty()) return {};
  return "blk." + std::string(rest.substr(0, dot)) + "." + std::string(name);
}

}  // namespace tqcache::model
