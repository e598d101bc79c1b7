#include "tqcache/model/loading/weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <utility>

#include "tqcache/base/integers.h"
#include "tqcache/bytes.h"
#include "tqcache/model/linear/product_kernels.h"

namespace tqcache::model {
namespace {

constexpr const char* kReadable =
    "F32, F16, BF16; in rows of a multiple of 32 Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4; of "
    "256 "
    "Q2_K to Q6_K";

std::string describe(std::span<const std::uint64_t> shape) {
  std::string text;
  for (const std::uint64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

Error error_at(ErrorCode code, const std::string& name, const std::string& fact) {
  return {code, "tensor \"" + name + "\": " + fact};
}

// Finds a tensor with one of two shapes. As a matrix, its number of rows is the product of all
// dimensions but the last.
Result<Matrix> find(const Tensors& tensors, const std::string& name,
                    const std::vector<std::uint64_t>& shape,
                    const std::vector<std::uint64_t>& other_shape) {
  const auto found = tensors.find(name);
  if (found == tensors.end()) return error_at(ErrorCode::kCorrupt, name, "missing");
  const tensors::TensorView& tensor = found->second;
  if (tensor.shape != shape && (other_shape.empty() || tensor.shape != other_shape)) {
    return error_at(
        ErrorCode::kCorrupt, name,
        "shape " + describe(tensor.shape) + " where the configuration wants " + describe(shape));
  }
  const std::uint64_t n_cols = shape.back();
  const std::uint64_t bytes_a_row = row_bytes(tensor.type, n_cols);
  if (bytes_a_row == 0) {
    return error_at(ErrorCode::kUnsupported, name,
                    "type " + tensor.type_name + " in rows of " + std::to_string(n_cols) +
                        " values (readable: " + kReadable + ")");
  }
  const auto n_rows = element_count(std::span(shape).first(shape.size() - 1));
  if (!n_rows || checked_mul(*n_rows, bytes_a_row) != tensor.bytes.size()) {
    return error_at(ErrorCode::kCorrupt, name, std::to_string(tensor.bytes.size()) + " bytes");
  }
  return Matrix{tensor.type, static_cast<std::int64_t>(*n_rows), static_cast<std::int64_t>(n_cols),
                tensor.bytes};
}

// Takes the tensors of a model one by one, and checks each against the shape that the configuration
// requires. Keeps the first error until finish(), and returns empty objects after it.
//
// Errors: kCorrupt (missing, wrong shape), kUnsupported (type). The message names the tensor.
class TensorFinder {
 public:
  // `norm_offset` is added to the weights of norms. Requires: `tensors` outlives the finder.
  TensorFinder(const Tensors& tensors, float norm_offset)
      : tensors_(tensors), norm_offset_(norm_offset) {}

  bool has(const std::string& name) const { return tensors_.contains(name); }

  // A matrix. The file may store one with a single row as a vector.
  Matrix matrix(const std::string& name, std::int64_t n_rows, std::int64_t n_cols);
  // `count` consecutive matrices of one shape: [count, n_rows, n_cols].
  std::vector<Matrix> stack(const std::string& name, std::int64_t count, std::int64_t n_rows,
                            std::int64_t n_cols);
  AlignedFloats vector(const std::string& name, std::int64_t size);
  // `count` vectors of one tensor [count, size].
  std::vector<AlignedFloats> vectors(const std::string& name, std::int64_t count,
                                     std::int64_t size);
  AlignedFloats norm(const std::string& name, std::int64_t size);
  // A vector if `wanted`, otherwise an empty one.
  AlignedFloats vector_if(bool wanted, const std::string& name, std::int64_t size);
  AlignedFloats norm_if(bool wanted, const std::string& name, std::int64_t size);
  // The kernels of a per-channel convolution: [size, n_channels], whether the file has [n_channels,
  // size] or [n_channels, 1, size].
  AlignedFloats channel_kernels(const std::string& name, std::int64_t n_channels,
                                std::int64_t size);

  bool failed() const { return !first_error_.ok(); }
  // Tensors taken so far.
  const std::set<std::string>& taken() const { return taken_; }
  Result<void> finish() && { return std::move(first_error_); }

 private:
  using Shape = std::vector<std::uint64_t>;
  Matrix take(const std::string& name, const Shape& shape, const Shape& other_shape = {});

  const Tensors& tensors_;
  float norm_offset_;
  std::set<std::string> taken_;
  Result<void> first_error_;
};

// Rows [first, first + count) of a matrix. Requires: the matrix has these rows, or is empty.
Matrix rows_of(const Matrix& matrix, std::int64_t first, std::int64_t count) {
  if (matrix.n_rows == 0) return {};
  const std::uint64_t bytes = row_bytes(matrix.type, to_u64(matrix.n_cols));
  return {matrix.type, count, matrix.n_cols,
          matrix.bytes.subspan(static_cast<std::size_t>(to_u64(first) * bytes),
                               static_cast<std::size_t>(to_u64(count) * bytes))};
}

Matrix TensorFinder::take(const std::string& name, const Shape& shape, const Shape& other_shape) {
  if (failed()) return {};
  Result<Matrix> found = find(tensors_, name, shape, other_shape);
  if (!found) {
    first_error_ = std::move(found).error();
    return {};
  }
  taken_.insert(name);
  return *found;
}

Matrix TensorFinder::matrix(const std::string& name, std::int64_t n_rows, std::int64_t n_cols) {
  const Shape as_vector = n_rows == 1 ? Shape{to_u64(n_cols)} : Shape{};
  return take(name, {to_u64(n_rows), to_u64(n_cols)}, as_vector);
}

std::vector<Matrix> TensorFinder::stack(const std::string& name, std::int64_t count,
                                        std::int64_t n_rows, std::int64_t n_cols) {
  const Matrix all = take(name, {to_u64(count), to_u64(n_rows), to_u64(n_cols)});
  std::vector<Matrix> matrices;
  for (std::int64_t i = 0; i < count && !failed(); ++i) {
    matrices.push_back(rows_of(all, i * n_rows, n_rows));
  }
  return matrices;
}

AlignedFloats TensorFinder::vector(const std::string& name, std::int64_t size) {
  const Matrix row = take(name, {to_u64(size)});
  AlignedFloats values(static_cast<std::size_t>(row.n_cols));
  load_rows(row, 0, row.n_rows, values);
  return values;
}

std::vector<AlignedFloats> TensorFinder::vectors(const std::string& name, std::int64_t count,
                                                 std::int64_t size) {
  const Matrix matrix = take(name, {to_u64(count), to_u64(size)});
  std::vector<AlignedFloats> all(to_size(count));
  for (std::int64_t i = 0; i < matrix.n_rows; ++i) {
    all[to_size(i)].resize(to_size(size));
    load_rows(matrix, i, 1, all[to_size(i)]);
  }
  return all;
}

AlignedFloats TensorFinder::norm(const std::string& name, std::int64_t size) {
  AlignedFloats weights = vector(name, size);
  if (norm_offset_ == 0) return weights;
  for (float& weight : weights) weight += norm_offset_;
  return weights;
}

AlignedFloats TensorFinder::vector_if(bool wanted, const std::string& name, std::int64_t size) {
  return wanted ? vector(name, size) : AlignedFloats();
}

AlignedFloats TensorFinder::norm_if(bool wanted, const std::string& name, std::int64_t size) {
  return wanted ? norm(name, size) : AlignedFloats();
}

AlignedFloats TensorFinder::channel_kernels(const std::string& name, std::int64_t n_channels,
                                            std::int64_t size) {
  const Shape shape = {to_u64(n_channels), to_u64(size)};
  const Matrix matrix = take(name, shape, {to_u64(n_channels), 1, to_u64(size)});
  AlignedFloats rows(static_cast<std::size_t>(matrix.n_rows * matrix.n_cols));
  load_rows(matrix, 0, matrix.n_rows, rows);
  AlignedFloats kernels(rows.size());
  for (std::int64_t i = 0; i < std::ssize(rows); ++i) {
    const std::int64_t to = i % size * n_channels + i / size;
    kernels[static_cast<std::size_t>(to)] = rows[static_cast<std::size_t>(i)];
  }
  return kernels;
}

// The weights of a gated delta net, in any order that its file may have.
//
// Qwen3-Next groups queries, keys, values and gates by key head, Qwen3.5 stores them separately;
// GGUF converters change the order of value heads. The decoder and its caches use the order of
// Hugging Face: all queries, all keys, all values, and the value heads of one key head
// consecutively.
//
// Source: huggingface/transformers models/qwen3_next and models/qwen3_5; llama.cpp
// convert_hf_to_gguf.py.

using Order = std::vector<std::int32_t>;

void add_range(Order& order, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) order.push_back(static_cast<std::int32_t>(first + i));
}

// The index of value head i in the file.
std::int64_t head_in_file(const DeltaNetConfig& net, bool is_tiled, std::int64_t i) {
  if (!is_tiled) return i;
  const std::int64_t group = net.n_value_heads / net.n_key_heads;
  return i % group * net.n_key_heads + i / group;
}

// Adds the value heads in our order; each has `size` rows, and the first begins at row `first`.
void add_value_heads(Order& order, const DeltaNetConfig& net, bool is_tiled, std::int64_t first,
                     std::int64_t size) {
  for (std::int64_t i = 0; i < net.n_value_heads; ++i) {
    add_range(order, first + head_in_file(net, is_tiled, i) * size, size);
  }
}

// Adds the rows of part `part` in a matrix that has, for each key head, `parts` of these sizes.
void add_part(Order& order, std::int64_t n_key_heads, std::initializer_list<std::int64_t> parts,
              std::size_t part, std::int64_t first) {
  std::int64_t stride = 0, offset = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == part) offset = stride;
    stride += parts.begin()[i];
  }
  for (std::int64_t head = 0; head < n_key_heads; ++head) {
    add_range(order, first + head * stride + offset, parts.begin()[part]);
  }
}

// Takes the matrices of the input's products, and records the meaning of their rows.
class Inputs {
 public:
  Inputs(TensorFinder& finder, const std::string& block, const ModelConfig& config,
         DeltaNetWeights& weights)
      : finder_(finder),
        block_(block),
        net_(config.delta_net),
        d_model_(config.d_model),
        is_tiled_(config.layout.tiled_value_heads),
        weights_(weights) {}

  void take() {
    finder_.has(block_ + "ssm_in.weight") ? take_fused() : take_apart();
    finder_.has(block_ + "ssm_ba.weight") ? take_fused_gates() : take_gates();
  }

 private:
  // Returns the index of its first row, counting the rows of all matrices.
  std::int64_t add(const char* name, std::int64_t n_rows) {
    weights_.inputs.push_back(finder_.matrix(block_ + name, n_rows, d_model_));
    return std::exchange(n_rows_, n_rows_ + n_rows);
  }

  void take_fused() {
    const std::int64_t values = net_.value_size() / net_.n_key_heads;  // per key head
    const auto parts = {net_.key_dim, net_.key_dim, values, values};
    const std::int64_t first = add("ssm_in.weight", net_.conv_size() + net_.value_size());
    for (std::size_t part = 0; part < parts.size(); ++part) {
      add_part(weights_.rows, net_.n_key_heads, parts, part, first);
    }
  }

  void take_apart() {
    const std::int64_t qkv = add("attn_qkv.weight", net_.conv_size());
    add_range(weights_.rows, qkv, 2 * net_.key_size());
    add_value_heads(weights_.rows, net_, is_tiled_, qkv + 2 * net_.key_size(), net_.value_dim);
    const std::int64_t gate = add("attn_gate.weight", net_.value_size());
    add_value_heads(weights_.rows, net_, is_tiled_, gate, net_.value_dim);
  }

  void take_fused_gates() {
    const std::int64_t values = net_.n_value_heads / net_.n_key_heads;
    const std::int64_t first = add("ssm_ba.weight", 2 * net_.n_value_heads);
    for (std::size_t part = 0; part < 2; ++part) {
      add_part(weights_.rows, net_.n_key_heads, {values, values}, part, first);
    }
  }

  void take_gates() {
    for (const char* name : {"ssm_beta.weight", "ssm_alpha.weight"}) {
      const std::int64_t first = add(name, net_.n_value_heads);
      add_value_heads(weights_.rows, net_, is_tiled_, first, 1);
    }
  }

  TensorFinder& finder_;
  const std::string& block_;
  const DeltaNetConfig& net_;
  std::int64_t d_model_;
  bool is_tiled_;
  DeltaNetWeights& weights_;
  std::int64_t n_rows_ = 0;
};

// Reorders the values of each row: out[i] = row[order[i]], for `n_rows` rows.
AlignedFloats reorder(const AlignedFloats& values, const Order& order) {
  if (values.empty()) return {};
  AlignedFloats out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t row = i / order.size() * order.size();
    out[i] = values[row + to_size(order[i % order.size()])];
  }
  return out;
}

Order head_order(const DeltaNetConfig& net, bool is_tiled) {
  Order order;
  add_value_heads(order, net, is_tiled, 0, 1);
  return order;
}

Order channel_order(const DeltaNetConfig& net, bool is_tiled) {
  Order order;
  add_range(order, 0, 2 * net.key_size());
  add_value_heads(order, net, is_tiled, 2 * net.key_size(), net.value_dim);
  return order;
}

// Column j of the output matrix is for our component columns[j].
Order output_columns(const DeltaNetConfig& net, bool is_tiled) {
  if (!is_tiled || net.n_value_heads == net.n_key_heads) return {};
  Order places;  // indices of our components in the file
  add_value_heads(places, net, is_tiled, 0, net.value_dim);
  Order columns(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    columns[to_size(places[i])] = static_cast<std::int32_t>(i);
  }
  return columns;
}

// Errors: kept by the finder.
DeltaNetWeights read_delta_net(TensorFinder& finder, const std::string& block,
                               const ModelConfig& config) {
  const DeltaNetConfig& net = config.delta_net;
  const bool is_tiled = config.layout.tiled_value_heads;
  DeltaNetWeights weights;
  Inputs(finder, block, config, weights).take();
  const Order heads = head_order(net, is_tiled);
  weights.conv =
      reorder(finder.channel_kernels(block + "ssm_conv1d.weight", net.conv_size(), net.kernel),
              channel_order(net, is_tiled));
  weights.decay = reorder(finder.vector(block + "ssm_a", net.n_value_heads), heads);
  if (config.layout.log_decay) {
    for (float& value : weights.decay) value = -std::exp(value);
  }
  weights.dt_bias = reorder(finder.vector(block + "ssm_dt.bias", net.n_value_heads), heads);
  weights.norm = finder.vector(block + "ssm_norm.weight", net.value_dim);
  weights.output = finder.matrix(block + "ssm_out.weight", config.d_model, net.value_size());
  weights.columns = output_columns(net, is_tiled);
  return weights;
}

AttentionWeights read_attention(TensorFinder& finder, const std::string& block, std::int64_t index,
                                const ModelConfig& config) {
  const std::int64_t d_model = config.d_model;
  const LayerConfig layer = config.layer(index);
  const std::int64_t head_dim = layer.heads.head_dim;
  const std::int64_t q_size = config.n_heads * head_dim;
  const std::int64_t kv_size = layer.heads.n_kv_heads * head_dim;
  const bool has_keys = layer.source < 0;
  AttentionWeights weights;
  if (config.layout.fused_projections) {
    const Matrix all = finder.matrix(block + "attn_qkv.weight", q_size + 2 * kv_size, d_model);
    weights.q = rows_of(all, 0, q_size);
    weights.k = rows_of(all, q_size, kv_size);
    weights.v = rows_of(all, q_size + kv_size, kv_size);
  } else {
    const std::int64_t q_rows = (config.attention_gate ? 2 : 1) * q_size;
    weights.q = finder.matrix(block + "attn_q.weight", q_rows, d_model);
    if (has_keys) weights.k = finder.matrix(block + "attn_k.weight", kv_size, d_model);
    if (has_keys && !layer.keys_as_values) {
      weights.v = finder.matrix(block + "attn_v.weight", kv_size, d_model);
    }
  }
  weights.output = finder.matrix(block + "attn_output.weight", d_model, q_size);
  const bool biases = config.qkv_biases;
  weights.q_bias = finder.vector_if(biases, block + "attn_q.bias", weights.q.n_rows);
  weights.k_bias = finder.vector_if(biases && has_keys, block + "attn_k.bias", kv_size);
  weights.v_bias = finder.vector_if(biases && has_keys, block + "attn_v.bias", kv_size);
  weights.output_bias = finder.vector_if(config.output_bias, block + "attn_output.bias", d_model);
  const bool is_wide = config.wide_qk_norms;
  weights.q_norm =
      finder.norm_if(config.qk_norms, block + "attn_q_norm.weight", is_wide ? q_size : head_dim);
  weights.k_norm = finder.norm_if(config.qk_norms && has_keys, block + "attn_k_norm.weight",
                                  is_wide ? kv_size : head_dim);
  if (config.value_norms) weights.v_norm.assign(to_size(head_dim), 1.0f);
  weights.sinks =
      finder.vector_if(config.attention_sinks, block + "attn_sinks.weight", config.n_heads);
  return weights;
}

LatentWeights read_latent_attention(TensorFinder& finder, const std::string& block,
                                    const ModelConfig& config) {
  const LatentConfig& latent = config.latent;
  const std::int64_t d_model = config.d_model, n_heads = config.n_heads;
  const std::int64_t q_size = n_heads * latent.query_size();
  LatentWeights weights;
  if (latent.query_rank > 0) {
    weights.q_a = finder.matrix(block + "attn_q_a.weight", latent.query_rank, d_model);
    weights.q_a_norm = finder.norm(block + "attn_q_a_norm.weight", latent.query_rank);
    weights.q = finder.matrix(block + "attn_q_b.weight", q_size, latent.query_rank);
  } else {
    weights.q = finder.matrix(block + "attn_q.weight", q_size, d_model);
  }
  weights.kv_a =
      finder.matrix(block + "attn_kv_a_mqa.weight", latent.rank + latent.rotated, d_model);
  weights.kv_a_norm = finder.norm(block + "attn_kv_a_norm.weight", latent.rank);
  weights.has_transposed_keys = finder.has(block + "attn_k_b.weight");
  if (weights.has_transposed_keys) {
    weights.keys = finder.stack(block + "attn_k_b.weight", n_heads, latent.rank, latent.plain);
    weights.values = finder.stack(block + "attn_v_b.weight", n_heads, latent.value, latent.rank);
  } else {
    const std::int64_t size = latent.plain + latent.value;
    const Matrix all = finder.matrix(block + "attn_kv_b.weight", n_heads * size, latent.rank);
    for (std::int64_t head = 0; head < n_heads; ++head) {
      weights.keys.push_back(rows_of(all, head * size, latent.plain));
      weights.values.push_back(rows_of(all, head * size + latent.plain, latent.value));
    }
  }
  weights.output = finder.matrix(block + "attn_output.weight", d_model, n_heads * latent.value);
  return weights;
}

// Names end in "_shexp.weight" or ".5.weight" for feed-forwards other than the layer's own.
FeedForwardWeights read_ffn(TensorFinder& finder, const std::string& block, const std::string& end,
                            std::int64_t d_ff, std::int64_t d_model) {
  return {finder.matrix(block + "ffn_gate" + end, d_ff, d_model),
          finder.matrix(block + "ffn_up" + end, d_ff, d_model),
          finder.matrix(block + "ffn_down" + end, d_model, d_ff),
          {},
          {},
          {}};
}

FeedForwardWeights read_ffn(TensorFinder& finder, const std::string& block, std::int64_t index,
                            const ModelConfig& config) {
  const std::int64_t d_ff = config.layer(index).d_ff;
  if (!config.layout.fused_projections && !config.layout.fused_gate_up) {
    FeedForwardWeights ffn = read_ffn(finder, block, ".weight", d_ff, config.d_model);
    ffn.cutoff = config.layer(index).gate_cutoff;
    ffn.gate_bias = finder.vector_if(config.mlp_biases, block + "ffn_gate.bias", d_ff);
    ffn.up_bias = finder.vector_if(config.mlp_biases, block + "ffn_up.bias", d_ff);
    ffn.down_bias = finder.vector_if(config.mlp_biases, block + "ffn_down.bias", config.d_model);
    return ffn;
  }
  const Matrix both = finder.matrix(block + "ffn_up.weight", 2 * d_ff, config.d_model);
  return {rows_of(both, 0, d_ff),
          rows_of(both, d_ff, d_ff),
          finder.matrix(block + "ffn_down.weight", config.d_model, d_ff),
          {},
          {},
          {}};
}

// All experts, stored in three tensors or in two.
std::vector<FeedForwardWeights> read_stacked_experts(TensorFinder& finder, const std::string& block,
                                                     const ExpertsConfig& experts,
                                                     std::int64_t d_model) {
  const std::string both_name = block + "ffn_gate_up_exps.weight";
  const std::int64_t n = experts.count;
  const std::int64_t d_ff = experts.d_ff;
  std::vector<Matrix> gate, up;
  if (finder.has(both_name)) {
    for (const Matrix& both : finder.stack(both_name, n, 2 * d_ff, d_model)) {
      gate.push_back(rows_of(both, 0, d_ff));
      up.push_back(rows_of(both, d_ff, d_ff));
    }
  } else {
    gate = finder.stack(block + "ffn_gate_exps.weight", n, d_ff, d_model);
    up = finder.stack(block + "ffn_up_exps.weight", n, d_ff, d_model);
  }
  const auto down = finder.stack(block + "ffn_down_exps.weight", n, d_model, d_ff);
  std::vector<FeedForwardWeights> each;
  for (std::size_t i = 0; i < down.size(); ++i) {
    each.push_back({gate[i], up[i], down[i], {}, {}, {}});
  }
  if (!experts.biases || finder.failed()) return each;
  auto gate_biases = finder.vectors(block + "ffn_gate_exps.bias", n, d_ff);
  auto up_biases = finder.vectors(block + "ffn_up_exps.bias", n, d_ff);
  auto down_biases = finder.vectors(block + "ffn_down_exps.bias", n, d_model);
  for (std::size_t i = 0; i < each.size(); ++i) {
    each[i].gate_bias = std::move(gate_biases[i]);
    each[i].up_bias = std::move(up_biases[i]);
    each[i].down_bias = std::move(down_biases[i]);
  }
  return each;
}

ExpertsWeights read_experts(TensorFinder& finder, const std::string& block,
                            const ModelConfig& config) {
  const ExpertsConfig& experts = config.experts;
  ExpertsWeights weights;
  weights.router = finder.matrix(block + "ffn_gate_inp.weight", experts.count, config.d_model);
  weights.router_bias =
      finder.vector_if(experts.biases, block + "ffn_gate_inp.bias", experts.count);
  weights.choice_bias =
      finder.vector_if(experts.choice_bias, block + "exp_probs_b.bias", experts.count);
  if (experts.biases || finder.has(block + "ffn_down_exps.weight")) {
    weights.each = read_stacked_experts(finder, block, experts, config.d_model);
  } else {
    for (std::int64_t i = 0; i < experts.count && !finder.failed(); ++i) {
      const std::string end = "." + std::to_string(i) + ".weight";
      weights.each.push_back(read_ffn(finder, block, end, experts.d_ff, config.d_model));
    }
  }
  if (experts.beside_ffn) {
    const std::int64_t d_model = config.d_model;
    weights.router_norm = finder.vector(block + "ffn_gate_inp.scale", d_model);
    for (float& each : weights.router_norm) {
      each /= static_cast<float>(std::sqrt(static_cast<double>(d_model)));
    }
    weights.norm = finder.norm(block + "pre_ffw_norm_2.weight", d_model);
    weights.post_norm = finder.norm(block + "post_ffw_norm_2.weight", d_model);
    weights.post_ffn_norm = finder.norm(block + "post_ffw_norm_1.weight", d_model);
    weights.factors = finder.vector(block + "ffn_down_exps.scale", experts.count);
  }
  if (experts.shared_d_ff == 0) return weights;
  weights.shared = read_ffn(finder, block, "_shexp.weight", experts.shared_d_ff, config.d_model);
  if (!experts.shared_gate) return weights;
  weights.shared_gate = finder.matrix(block + "ffn_gate_inp_shexp.weight", 1, config.d_model);
  return weights;
}

ParallelWeights read_parallel(TensorFinder& finder, const std::string& block,
                              const ModelConfig& config) {
  const std::int64_t n = config.n_streams;
  return {finder.norm(block + "altup_router_norm.weight", config.d_model),
          finder.matrix(block + "altup_router.weight", n, config.d_model),
          finder.matrix(block + "altup_predict_coef.weight", n * n, n),
          finder.matrix(block + "altup_correct_coef.weight", n, n),
          finder.vector(block + "altup_correct_scale.weight", config.d_model)};
}

// GGUF has one tensor for all streams, Hugging Face's files one for each.
std::vector<Matrix> read_streams(TensorFinder& finder, const std::string& name,
                                 const ModelConfig& config) {
  const std::int64_t n = config.n_streams - 1, d_model = config.d_model;
  if (n == 0 || finder.has(name + ".weight")) {
    return n == 0 ? std::vector<Matrix>() : finder.stack(name + ".weight", n, d_model, d_model);
  }
  std::vector<Matrix> streams;
  for (std::int64_t i = 0; i < n; ++i) {
    streams.push_back(finder.matrix(name + "." + std::to_string(i) + ".weight", d_model, d_model));
  }
  return streams;
}

LayerWeights read_layer(TensorFinder& finder, std::int64_t index, const ModelConfig& config) {
  const std::string block = "blk." + std::to_string(index) + ".";
  const std::int64_t d_model = config.d_model;
  LayerWeights layer;
  layer.attention_norm = finder.norm_if(config.pre_norms, block + "attn_norm.weight", d_model);
  if (config.layer(index).kind == LayerKind::kDeltaNet) {
    layer.delta_net = read_delta_net(finder, block, config);
  } else if (config.latent.rank > 0) {
    layer.latent = read_latent_attention(finder, block, config);
  } else {
    layer.attention = read_attention(finder, block, index, config);
  }
  layer.ffn_norm = finder.norm_if(config.pre_norms && !config.parallel_blocks,
                                  block + std::string(config.layout.ffn_norm), d_model);
  if (config.has_experts(index)) {
    layer.experts = read_experts(finder, block, config);
  }
  if (!config.has_experts(index) || config.experts.beside_ffn) {
    layer.ffn = read_ffn(finder, block, index, config);
  }
  if (config.layer_inputs > 0) {
    layer.inputs = {finder.matrix(block + "inp_gate.weight", config.layer_inputs, d_model),
                    finder.matrix(block + "proj.weight", d_model, config.layer_inputs),
                    finder.norm(block + "post_norm.weight", d_model)};
  }
  if (config.n_streams > 1) layer.parallel = read_parallel(finder, block, config);
  if (config.laurel_rank > 0) {
    layer.laurel = {finder.matrix(block + "laurel_l.weight", config.laurel_rank, d_model),
                    finder.matrix(block + "laurel_r.weight", d_model, config.laurel_rank),
                    finder.norm(block + "laurel_post_norm.weight", d_model)};
  }
  if (config.layer_factors) {
    const AlignedFloats factor = finder.vector(block + "layer_output_scale.weight", 1);
    if (!factor.empty()) layer.factor = factor[0];
  }
  layer.post_attention_norm =
      finder.norm_if(config.post_norms, block + "post_attention_norm.weight", d_model);
  layer.post_ffn_norm = finder.norm_if(config.post_norms, block + "post_ffw_norm.weight", d_model);
  return layer;
}

// Counts tensors that the configuration has read, or that belong to unused layers.
std::int64_t count_others(const Tensors& tensors, const ModelConfig& config) {
  std::int64_t n = 0;
  for (const char* name :
       {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"}) {
    n += static_cast<std::int64_t>(tensors.count(name));
  }
  // Published files have matrices of keys and values that are never computed.
  for (std::int64_t i = config.n_cache_layers(); i < config.n_layers; ++i) {
    for (const char* name : {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}) {
      n += static_cast<std::int64_t>(tensors.count("blk." + std::to_string(i) + "." + name));
    }
  }
  for (std::int64_t i = 0; i < config.layout.n_extra_layers; ++i) {
    const std::string block = "blk." + std::to_string(config.n_layers + i) + ".";
    for (auto each = tensors.lower_bound(block);
         each != tensors.end() && each->first.starts_with(block); ++each) {
      ++n;
    }
  }
  return n;
}

constexpr std::size_t kPieces = 16;
constexpr std::size_t kPieceBytes = 4096;        // of the weights fingerprint
constexpr std::size_t kLargePieceBytes = 65536;  // of the model fingerprint

// Calls use() for all bytes of a small tensor, otherwise for kPieces pieces, spread evenly.
template <class Use>
void for_sample(ByteView bytes, std::size_t piece_bytes, Use use) {
  if (bytes.size() <= kPieces * piece_bytes) return use(bytes);
  // No file approaches the 2^60 bytes where the product below would overflow.
  const std::size_t last = bytes.size() - piece_bytes;
  for (std::size_t i = 0; i < kPieces; ++i) {
    use(bytes.subspan(last * i / (kPieces - 1), piece_bytes));
  }
}

Bytes describe(const std::string& name, const tensors::TensorView& tensor) {
  ByteWriter out;
  out.append_sized(as_bytes(name));
  out.append_sized(as_bytes(tensor.type_name));
  out.write<std::uint64_t>(tensor.shape.size());
  for (const std::uint64_t size : tensor.shape) out.write<std::uint64_t>(size);
  out.write<std::uint64_t>(tensor.bytes.size());
  return std::move(out).take();
}

}  // namespace

void LatentWeights::load_key_rows(std::int64_t head, const LatentConfig& latent,
                                  std::span<float> out) const {
  const Matrix& matrix = keys[to_size(head)];
  if (!has_transposed_keys) return load_rows(matrix, 0, latent.plain, out);
  AlignedFloats row(to_size(latent.plain));
  for (std::int64_t i = 0; i < latent.rank; ++i) {
    load_rows(matrix, i, 1, row);
    for (std::int64_t j = 0; j < latent.plain; ++j)
      out[to_size(j * latent.rank + i)] = row[to_size(j)];
  }
}

void LatentWeights::absorb(std::int64_t head, std::span<const float> query, std::span<float> row,
                           std::span<float> out) const {
  const Matrix& matrix = keys[to_size(head)];
  const Kernels& kernels = best_kernels();
  const std::span<float> used = row.first(to_size(matrix.n_cols));
  const std::byte* const bytes = std::as_bytes(used).data();
  std::ranges::fill(out, 0.0f);
  for (std::int64_t i = 0; i < matrix.n_rows; ++i) {
    load_rows(matrix, i, 1, used);
    if (has_transposed_keys) {
      out[to_size(i)] = kernels.dot_f32(bytes, query.data(), used.size());
    } else {
      kernels.add_scaled_f32(query[to_size(i)], bytes, used.size(), out.data());
    }
  }
}

Result<Weights> read_weights(const Tensors& tensors, const ModelConfig& config) {
  TensorFinder finder(tensors, config.layout.norm_offset);
  Weights weights;
  weights.token_embedding = finder.matrix("token_embd.weight", config.vocab_size, config.d_model);
  for (std::int64_t i = 0; i < config.n_layers && !finder.failed(); ++i) {
    weights.layers.push_back(read_layer(finder, i, config));
  }
  weights.output_norm = finder.norm("output_norm.weight", config.d_model);
  weights.output = config.tied_embeddings
                       ? weights.token_embedding
                       : finder.matrix("output.weight", config.vocab_size, config.d_model);
  if (config.layer_inputs > 0) {
    const std::int64_t size = config.n_layers * config.layer_inputs;
    weights.input_embedding =
        finder.matrix("per_layer_token_embd.weight", config.layer_input_vocab, size);
    weights.input_projection = finder.matrix("per_layer_model_proj.weight", size, config.d_model);
    weights.input_norm = finder.norm("per_layer_proj_norm.weight", config.layer_inputs);
  }
  weights.to_streams = read_streams(finder, "altup_proj", config);
  weights.from_streams = read_streams(finder, "altup_unembd_proj", config);
  weights.n_tensors =
      static_cast<std::int64_t>(finder.taken().size()) + count_others(tensors, config);
  TQC_TRY(std::move(finder).finish());
  return weights;
}

Sha256 weights_fingerprint(const std::map<std::string, tensors::TensorView>& tensors) {
  ByteWriter start;
  start.append_sized(as_bytes("tqcache weights 1"));
  start.write<std::uint64_t>(tensors.size());
  Sha256Hasher hasher;
  hasher.update(start.bytes());
  for (const auto& [name, tensor] : tensors) {
    hasher.update(describe(name, tensor));
    for_sample(tensor.bytes, kPieceBytes, [&](ByteView piece) { hasher.update(piece); });
  }
  return hasher.finish();
}

namespace {

// A configuration as u64 numbers and f64 numbers, in the order of docs/reference/format.md.
class ConfigBytes {
 public:
  explicit ConfigBytes(const ModelConfig& config) {
    out_.append_sized(as_bytes(config.architecture));
    for (const std::int64_t size : {config.n_layers, config.d_model, config.d_ff, config.n_heads,
                                    config.n_kv_heads, config.head_dim, config.vocab_size}) {
      number(size);
    }
    real(config.rms_norm_epsilon);
    add(config.rope);
    for (const bool is_set : {config.tied_embeddings, config.qk_norms, config.qkv_biases,
                              config.output_bias, config.post_norms, config.attention_gate}) {
      number(is_set ? 1 : 0);
    }
    number(static_cast<std::int64_t>(config.activation));
    for (const float value : {config.rope_magnitude, config.score_scale(), config.attention_cap,
                              config.logit_cap, config.embedding_scale}) {
      real(value);
    }
    for (std::int64_t i = 0; i < config.n_layers; ++i) {
      const LayerConfig layer = config.layer(i);
      number(static_cast<std::int64_t>(layer.kind));
      number(layer.window);
      add(layer.rope);
    }
    const ExpertsConfig& experts = config.experts;
    for (const std::int64_t size : {experts.count, experts.used, experts.d_ff, experts.shared_d_ff,
                                    std::int64_t{experts.normalized}}) {
      number(size);
    }
    const DeltaNetConfig& delta = config.delta_net;
    for (const std::int64_t size :
         {delta.n_key_heads, delta.n_value_heads, delta.key_dim, delta.value_dim, delta.kernel}) {
      number(size);
    }
    const WeightLayout& layout = config.layout;
    for (const bool is_set : {layout.permuted_heads, layout.fused_projections,
                              layout.tiled_value_heads, layout.log_decay}) {
      number(is_set ? 1 : 0);
    }
    real(layout.norm_offset);
    add_later_fields(config);
    add_newest_fields(config);
    add_routing(config.experts);
    add_latents(config.latent);
    add_layer_differences(config);
  }

  const Bytes& bytes() const { return out_.bytes(); }

 private:
  void number(std::int64_t value) { out_.write(static_cast<std::uint64_t>(value)); }
  void real(double value) { out_.write(value == 0 ? 0.0 : value); }  // -0 as 0
  void add(const cache::Rope& rope) {
    number(static_cast<std::int64_t>(rope.style));
    number(rope.n_dims);
    real(rope.base);
    number(std::ssize(rope.factors));
    for (const float factor : rope.factors) real(factor);
  }

  // Fields that families since version 2 of the fingerprint need. They are added only if one of
  // them is set, so that the fingerprints of all other models stay what they are.
  void add_later_fields(const ModelConfig& config) {
    const std::array flags = {!config.pre_norms, config.wide_qk_norms, config.attention_sinks,
                              config.experts.biases, config.layout.fused_gate_up};
    const std::array factors = {config.residual_scale, config.logit_divisor};
    const bool is_set = std::ranges::any_of(flags, std::identity()) ||
                        std::ranges::any_of(factors, [](float value) { return value != 1; });
    if (!is_set) return;
    out_.append_sized(as_bytes("more"));
    for (const bool flag : flags) number(flag ? 1 : 0);
    for (const float factor : factors) real(factor);
  }

  // Likewise, of families that came later.
  void add_newest_fields(const ModelConfig& config) {
    const std::array flags = {config.layer_norms, config.norms_after_rope, config.parallel_blocks,
                              config.mlp_biases};
    if (std::ranges::none_of(flags, std::identity()) && config.query_growth == 0) return;
    out_.append_sized(as_bytes("more 2"));
    for (const bool flag : flags) number(flag ? 1 : 0);
    real(config.query_growth);
    number(config.query_growth_step);
  }

  // Likewise, of the experts of DeepSeek and GLM-4.5, whose shared expert has no gate.
  void add_routing(const ExpertsConfig& experts) {
    if (experts.shared_gate) return;
    out_.append_sized(as_bytes("experts"));
    for (const std::int64_t value :
         {experts.first_layer, std::int64_t{experts.sigmoid}, std::int64_t{experts.choice_bias},
          experts.groups, experts.used_groups, std::int64_t{experts.group_pairs}}) {
      number(value);
    }
    real(experts.scale);
  }

  // Likewise, of latent attention.
  void add_latents(const LatentConfig& latent) {
    if (latent.rank == 0) return;
    out_.append_sized(as_bytes("latents"));
    for (const std::int64_t size :
         {latent.query_rank, latent.rank, latent.rotated, latent.plain, latent.value}) {
      number(size);
    }
    real(latent.epsilon);
  }

  // Likewise, of Gemma 3n and Gemma 4.
  void add_layer_differences(const ModelConfig& config) {
    if (!config.value_norms) return;
    out_.append_sized(as_bytes("layers"));
    for (const std::int64_t value :
         {std::int64_t{config.layer_factors}, config.layer_inputs, config.layer_input_vocab,
          config.n_streams, config.laurel_rank, std::int64_t{config.experts.beside_ffn}}) {
      number(value);
    }
    for (std::int64_t i = 0; i < config.n_layers; ++i) {
      const LayerConfig layer = config.layer(i);
      for (const std::int64_t value : {layer.heads.n_kv_heads, layer.heads.head_dim, layer.d_ff,
                                       layer.source, std::int64_t{layer.keys_as_values}}) {
        number(value);
      }
      real(layer.gate_cutoff);
    }
  }

  ByteWriter out_;
};

}  // namespace

Bytes sample_checksums(const tensors::TensorView& tensor) {
  ByteWriter sample;
  for_sample(tensor.bytes, kLargePieceBytes, [&](ByteView piece) {
    const Checksum128 checksum = xxh3_128(piece);
    sample.write(checksum.high);
    sample.write(checksum.low);
  });
  return std::move(sample).take();
}

Sha256 model_fingerprint(const ModelConfig& config,
                         const std::map<std::string, tensors::TensorView>& tensors) {
  std::vector<Bytes> samples;
  for (const auto& each : tensors) samples.push_back(sample_checksums(each.second));
  return model_fingerprint(config, tensors, samples);
}

Sha256 model_fingerprint(const ModelConfig& config,
                         const std::map<std::string, tensors::TensorView>& tensors,
                         std::span<const Bytes> samples) {
  ByteWriter start;
  start.append_sized(as_bytes("tqcache model 2"));
  start.append_sized(ConfigBytes(config).bytes());
  start.write<std::uint64_t>(tensors.size());
  Sha256Hasher hasher;
  hasher.update(start.bytes());
  const Bytes* sample = samples.data();
  for (const auto& [name, tensor] : tensors) {
    hasher.update(describe(name, tensor));
    hasher.update(*sample++);
  }
  return hasher.finish();
}

}  // namespace tqcache::model
