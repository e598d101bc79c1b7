#include "tqcache/model/loading/delta_net_weights.h"

#include <cmath>
#include <utility>

#include "tqcache/base/integers.h"

namespace tqcache::model {
namespace {

using Order = std::vector<std::int32_t>;

void add_range(Order& order, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) order.push_back(static_cast<std::int32_t>(first + i));
}

// Where value head i stands in the file.
std::int64_t head_in_file(const DeltaNetConfig& net, bool is_tiled, std::int64_t i) {
  if (!is_tiled) return i;
  const std::int64_t group = net.n_value_heads / net.n_key_heads;
  return i % group * net.n_key_heads + i / group;
}

// The value heads in our order, each of `size` rows of which the first stands at `first`.
void add_value_heads(Order& order, const DeltaNetConfig& net, bool is_tiled, std::int64_t first,
                     std::int64_t size) {
  for (std::int64_t i = 0; i < net.n_value_heads; ++i) {
    add_range(order, first + head_in_file(net, is_tiled, i) * size, size);
  }
}

// Rows of a matrix that has, for each key head, `parts` of these sizes; the rows of part `part`.
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

// Takes the matrices of the input's products, and says which row of them is what.
class Inputs {
 public:
  Inputs(TensorFinder& finder, const std::string& block, const ModelConfig& config,
         DeltaNetWeights& weights)
      : finder_(finder),
        block_(block),
        net_(config.delta_net),
        d_model_(config.d_model),
        is_tiled_(config.form.tiled_value_heads),
        weights_(weights) {}

  void take() {
    finder_.has(block_ + "ssm_in.weight") ? take_fused() : take_apart();
    finder_.has(block_ + "ssm_ba.weight") ? take_fused_gates() : take_gates();
  }

 private:
  // The number of its first row, all matrices seen as one.
  std::int64_t add(const char* name, std::int64_t n_rows) {
    weights_.inputs.push_back(finder_.matrix(block_ + name, n_rows, d_model_));
    return std::exchange(n_rows_, n_rows_ + n_rows);
  }

  void take_fused() {
    const std::int64_t values = net_.value_size() / net_.n_key_heads;  // of one key head
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

// Values of one row in another order: out[i] = row[order[i]], `n_rows` times.
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

// Column j of the output's matrix is for component columns[j] of ours.
Order output_columns(const DeltaNetConfig& net, bool is_tiled) {
  if (!is_tiled || net.n_value_heads == net.n_key_heads) return {};
  Order places;  // of our components in the file
  add_value_heads(places, net, is_tiled, 0, net.value_dim);
  Order columns(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    columns[to_size(places[i])] = static_cast<std::int32_t>(i);
  }
  return columns;
}

}  // namespace

DeltaNetWeights read_delta_net(TensorFinder& finder, const std::string& block,
                               const ModelConfig& config) {
  const DeltaNetConfig& net = config.delta_net;
  const bool is_tiled = config.form.tiled_value_heads;
  DeltaNetWeights weights;
  Inputs(finder, block, config, weights).take();
  const Order heads = head_order(net, is_tiled);
  weights.conv =
      reorder(finder.channel_kernels(block + "ssm_conv1d.weight", net.conv_size(), net.kernel),
              channel_order(net, is_tiled));
  weights.decay = reorder(finder.vector(block + "ssm_a", net.n_value_heads), heads);
  if (config.form.log_decay) {
    for (float& value : weights.decay) value = -std::exp(value);
  }
  weights.dt_bias = reorder(finder.vector(block + "ssm_dt.bias", net.n_value_heads), heads);
  weights.norm = finder.vector(block + "ssm_norm.weight", net.value_dim);
  weights.output = finder.matrix(block + "ssm_out.weight", config.d_model, net.value_size());
  weights.columns = output_columns(net, is_tiled);
  return weights;
}

}  // namespace tqcache::model
