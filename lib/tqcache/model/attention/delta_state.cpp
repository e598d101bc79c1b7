#include "tqcache/model/attention/delta_state.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tqcache/base/dtype.h"
#include "tqcache/base/integers.h"

namespace tqcache::model {
namespace {

using cache::NamedArray;
using Shape = std::vector<std::uint64_t>;

std::uint64_t to_unsigned(std::int64_t n) { return static_cast<std::uint64_t>(n); }

Shape conv_shape(const DeltaNetConfig& net) {
  return {1, to_unsigned(net.kernel - 1), to_unsigned(net.conv_size())};
}

Shape state_shape(const DeltaNetConfig& net) {
  return {1, to_unsigned(net.n_value_heads), to_unsigned(net.value_dim), to_unsigned(net.key_dim)};
}

std::uint64_t product(const Shape& shape) {
  std::uint64_t count = 1;
  for (const std::uint64_t n : shape) count *= n;
  return count;
}

NamedArray zeros(std::string name, Shape shape) {
  AlignedBytes data(to_size(static_cast<std::int64_t>(product(shape) * sizeof(float))));
  return {std::move(name), Dtype::kF32, std::move(shape), std::move(data)};
}

AlignedFloats widened(const NamedArray& array) {
  AlignedFloats values(array.data.size() / dtype_size(array.dtype));
  load_f32(array.dtype, array.data.data(), values);
  return values;
}

bool is_pair(const cache::StateLayer& layer, const Shape& first, const Shape& second) {
  return layer.arrays.size() == 2 && layer.arrays[0].shape == first &&
         layer.arrays[1].shape == second;
}

// mlx-lm's order, in whatever type.
void adopt_same(const cache::StateLayer& from, cache::StateLayer& to) {
  for (std::size_t i = 0; i < 2; ++i) {
    const AlignedFloats values = widened(from.arrays[i]);
    std::ranges::copy(values, state_values(to.arrays[i]).begin());
  }
}

// transformers: [1, conv_size, kernel], of which the last kernel - 1 columns count, and
// [1, n_value_heads, key_dim, value_dim].
void adopt_transposed(const DeltaNetConfig& net, const cache::StateLayer& from,
                      cache::StateLayer& to) {
  const AlignedFloats conv = widened(from.arrays[0]);
  const auto columns = static_cast<std::int64_t>(from.arrays[0].shape.back());
  const std::span<float> conv_out = state_values(to.arrays[0]);
  for (std::int64_t i = 0; i < std::ssize(conv_out); ++i) {
    const std::int64_t row = i / net.conv_size(), channel = i % net.conv_size();
    conv_out[to_size(i)] = conv[to_size(channel * columns + columns - net.kernel + 1 + row)];
  }
  const AlignedFloats state = widened(from.arrays[1]);
  const std::span<float> state_out = state_values(to.arrays[1]);
  for (std::int64_t i = 0; i < std::ssize(state_out); ++i) {
    const std::int64_t head = i / (net.value_dim * net.key_dim);
    const std::int64_t value = i / net.key_dim % net.value_dim, key = i % net.key_dim;
    state_out[to_size(i)] = state[to_size((head * net.key_dim + key) * net.value_dim + value)];
  }
}

// llama.cpp: [conv_size, kernel - 1] and [n_value_heads, value_dim, key_dim] as rows, with value
// heads in the order of the GGUF file.
void adopt_rows(const ModelConfig& config, const cache::StateLayer& from, cache::StateLayer& to) {
  const DeltaNetConfig& net = config.delta_net;
  const std::int64_t group = net.n_value_heads / net.n_key_heads;
  const auto head_in_file = [&](std::int64_t head) {
    return config.form.tiled_value_heads ? head % group * net.n_key_heads + head / group : head;
  };
  const AlignedFloats conv = widened(from.arrays[0]);
  const std::span<float> conv_out = state_values(to.arrays[0]);
  for (std::int64_t i = 0; i < std::ssize(conv_out); ++i) {
    const std::int64_t row = i / net.conv_size();
    std::int64_t channel = i % net.conv_size();
    const std::int64_t value = channel - 2 * net.key_size();
    if (value >= 0) {
      channel = 2 * net.key_size() + head_in_file(value / net.value_dim) * net.value_dim +
                value % net.value_dim;
    }
    conv_out[to_size(i)] = conv[to_size(channel * (net.kernel - 1) + row)];
  }
  const AlignedFloats state = widened(from.arrays[1]);
  const std::int64_t head_size = net.value_dim * net.key_dim;
  for (std::int64_t head = 0; head < net.n_value_heads; ++head) {
    std::copy_n(state.data() + head_in_file(head) * head_size, head_size,
                state_values(to.arrays[1]).data() + head * head_size);
  }
}

bool is_ours(const DeltaNetConfig& net, const cache::StateLayer& layer) {
  return is_pair(layer, conv_shape(net), state_shape(net)) && layer.arrays[0].name == "0" &&
         layer.arrays[1].name == "1" && layer.arrays[0].dtype == Dtype::kF32 &&
         layer.arrays[1].dtype == Dtype::kF32;
}

bool is_named(const cache::StateLayer& layer, std::string_view first, std::string_view second) {
  return layer.arrays.size() == 2 && layer.arrays[0].name == first &&
         layer.arrays[1].name == second;
}

// By names, because shapes may agree where the order does not.
bool adopt_as_named(const ModelConfig& config, const cache::StateLayer& from,
                    cache::StateLayer& to) {
  const DeltaNetConfig& net = config.delta_net;
  const std::uint64_t channels = to_unsigned(net.conv_size());
  const std::uint64_t tokens = to_unsigned(net.kernel);
  const Shape transposed = {1, to_unsigned(net.n_value_heads), to_unsigned(net.key_dim),
                            to_unsigned(net.value_dim)};
  if (is_named(from, "0", "1") && is_pair(from, conv_shape(net), state_shape(net))) {
    adopt_same(from, to);
    return true;
  }
  if (is_named(from, "conv_states.0", "recurrent_states.0") &&
      (is_pair(from, {1, channels, tokens}, transposed) ||
       is_pair(from, {1, channels, tokens - 1}, transposed))) {
    adopt_transposed(net, from, to);
    return true;
  }
  if (is_named(from, "r", "s") &&
      is_pair(from, {product(conv_shape(net))}, {product(state_shape(net))})) {
    adopt_rows(config, from, to);
    return true;
  }
  return false;
}

}  // namespace

std::span<float> state_values(cache::NamedArray& array) {
  return {reinterpret_cast<float*>(array.data.data()), array.data.size() / sizeof(float)};
}

cache::StateLayer empty_delta_state(const DeltaNetConfig& config) {
  cache::StateLayer layer;
  layer.arrays.push_back(zeros("0", conv_shape(config)));
  layer.arrays.push_back(zeros("1", state_shape(config)));
  return layer;
}

Result<void> adopt_delta_state(const ModelConfig& config, cache::StateLayer& layer) {
  if (is_ours(config.delta_net, layer)) return {};
  cache::StateLayer ours = empty_delta_state(config.delta_net);
  if (!adopt_as_named(config, layer, ours)) {
    return Error{ErrorCode::kMismatch,
                 "its arrays are not the state of the model's gated delta net"};
  }
  layer = std::move(ours);
  return {};
}

std::span<const float> convolution_inputs(const cache::StateLayer& layer) {
  const AlignedBytes& data = layer.arrays[0].data;
  return {reinterpret_cast<const float*>(data.data()), data.size() / sizeof(float)};
}

std::span<const float> head_matrices(const cache::StateLayer& layer) {
  const AlignedBytes& data = layer.arrays[1].data;
  return {reinterpret_cast<const float*>(data.data()), data.size() / sizeof(float)};
}

}  // namespace tqcache::model
