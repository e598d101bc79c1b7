#include "tqcache/interop/llama/llama_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "tqcache/base/half.h"
#include "tqcache/base/integers.h"

namespace tqcache::interop {
namespace {

enum class StateOrder { kRows, kOurs, kTransformers };

// Sizes of a gated delta net. Channels are those of q, k and v, in this order.
struct DeltaNet {
  StateOrder order = StateOrder::kRows;
  std::uint64_t channels = 0, inputs = 0;  // of the convolution: channels, and inputs that it kept
  std::uint64_t heads = 0, values = 0, keys = 0;  // value heads, and the sides of their matrices
};

bool is_named(const cache::StateDesc& state, std::string_view first, std::string_view second) {
  return state.arrays.size() == 2 && state.arrays[0].name == first &&
         state.arrays[1].name == second;
}

// nullopt: arrays of an unknown kind.
std::optional<DeltaNet> delta_net_of(const cache::StateDesc& state) {
  if (is_named(state, "r", "s")) return DeltaNet{};
  const bool is_ours = is_named(state, "0", "1");
  if (!is_ours && !is_named(state, "conv_states.0", "recurrent_states.0")) return std::nullopt;
  const std::vector<std::uint64_t>& conv = state.arrays[0].shape;
  const std::vector<std::uint64_t>& matrices = state.arrays[1].shape;
  if (conv.size() != 3 || matrices.size() != 4 || conv[0] != 1 || matrices[0] != 1) {
    return std::nullopt;
  }
  if (is_ours) {
    return DeltaNet{StateOrder::kOurs, conv[2], conv[1], matrices[1], matrices[2], matrices[3]};
  }
  return DeltaNet{
      StateOrder::kTransformers, conv[1], conv[2], matrices[1], matrices[3], matrices[2]};
}

std::uint64_t count_of(const cache::ArrayDesc& array) { return element_count(array.shape).value(); }

std::vector<float> widened(const cache::ArrayDesc& array, ByteView data) {
  std::vector<float> values(count_of(array));
  load_f32(array.dtype, data.data(), values);
  return values;
}

// The converter to GGUF interleaves the value heads of these architectures.
bool has_tiled_heads(std::string_view architecture) {
  return architecture == "qwen35" || architecture == "qwen35moe";
}

}  // namespace

Result<void> check_llama_state(const LlamaLayer& model, const cache::StateDesc& state) {
  const std::optional<DeltaNet> net = delta_net_of(state);
  if (!net) return unsupported("recurrent state whose arrays llama.cpp does not have");
  const cache::ArrayDesc& first = state.arrays[0];
  const cache::ArrayDesc& second = state.arrays[1];
  std::uint64_t r_values = count_of(first);
  if (net->order == StateOrder::kRows) {
    if (first.dtype != Dtype::kF32 || second.dtype != Dtype::kF32) {
      return unsupported("recurrent state that is not f32");
    }
  } else {
    const std::uint64_t value_size = net->heads * net->values;
    const bool is_net = net->keys > 0 && net->values > 0 && net->channels > value_size &&
                        (net->channels - value_size) % (2 * net->keys) == 0 &&
                        net->heads % ((net->channels - value_size) / (2 * net->keys)) == 0;
    if (!is_net) return mismatch("recurrent state of no gated delta net");
    // transformers may keep one input more than the convolution needs.
    if (net->order == StateOrder::kTransformers && r_values > model.r_values) {
      r_values -= net->channels;
    }
  }
  if (r_values == model.r_values && count_of(second) == model.s_values) return {};
  return mismatch(fmt::format("recurrent state of {} and {} values, the model has {} and {}",
                              count_of(first), count_of(second), model.r_values, model.s_values));
}

LlamaStateRows llama_state_rows(std::string_view architecture, const cache::StateDesc& state,
                                std::span<const AlignedBytes> arrays) {
  const DeltaNet net = delta_net_of(state).value();
  std::vector<float> conv = widened(state.arrays[0], arrays[0]);
  std::vector<float> matrices = widened(state.arrays[1], arrays[1]);
  if (net.order == StateOrder::kRows) return {std::move(conv), std::move(matrices)};

  const bool is_ours = net.order == StateOrder::kOurs;
  const std::uint64_t key_channels = net.channels - net.heads * net.values;  // of q and k
  const std::uint64_t n_key_heads = key_channels / (2 * net.keys);
  const std::uint64_t group = net.heads / n_key_heads;
  const auto head_in_file = [&](std::uint64_t head) {
    return has_tiled_heads(architecture) ? head % group * n_key_heads + head / group : head;
  };

  // The inputs of a channel lie together, the oldest first.
  const std::uint64_t inputs = net.inputs;
  LlamaStateRows rows;
  rows.r.resize(conv.size());
  for (std::uint64_t channel = 0; channel < net.channels; ++channel) {
    std::uint64_t to = channel;
    if (channel >= key_channels) {
      const std::uint64_t value = channel - key_channels;
      to = key_channels + head_in_file(value / net.values) * net.values + value % net.values;
    }
    for (std::uint64_t i = 0; i < inputs; ++i) {
      rows.r[to * inputs + i] =
          is_ours ? conv[i * net.channels + channel] : conv[channel * inputs + i];
    }
  }

  // [value head][value component][key component]
  const std::uint64_t size = net.values * net.keys;
  rows.s.resize(matrices.size());
  for (std::uint64_t head = 0; head < net.heads; ++head) {
    for (std::uint64_t i = 0; i < size; ++i) {
      const std::uint64_t from = is_ours ? i : i % net.keys * net.values + i / net.keys;
      rows.s[head_in_file(head) * size + i] = matrices[head * size + from];
    }
  }
  return rows;
}

}  // namespace tqcache::interop
